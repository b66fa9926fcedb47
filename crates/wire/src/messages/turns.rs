//! Converts Anthropic's turns to messages. One turn may become several messages. A last turn of the assistant is the
//! start of the answer. Knows no parameters.

use headrace_domain::{CacheMarkAt, Code, Message, MessageOrigin, Role, is_blank};

use super::blocks::{self, Block, Within};
use crate::blank;
use crate::call_ids::CallIds;
use crate::content::Content;
use crate::fault::{Fault, Read};
use crate::json::Reader;

/// The messages that the turns became, and the place of each in the request.
#[derive(Default)]
pub(super) struct Turns {
    pub(super) messages: Vec<Message>,
    pub(super) origins: Vec<MessageOrigin>,
    /// Whether the last message is the start of the answer.
    pub(super) continues: bool,
}

impl Turns {
    /// Adds the messages of turn number `index`, each with the index of its first block.
    fn take(&mut self, index: usize, messages: Vec<(usize, Message)>) {
        let number = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let several = messages.len() > 1;
        for (block, message) in messages {
            let block = several.then(|| number(block));
            self.origins.push(MessageOrigin::Message { index: number(index), block });
            self.messages.push(message);
        }
    }
}

pub(super) fn read(r: &mut Reader<'_>, within: Within<'_>) -> Read<Turns> {
    let (mut turns, mut ids) = (Turns::default(), CallIds::anthropic());
    let mut last = None;
    r.array(within.limits.max_messages, |r, index| {
        within.breakpoints.enter(CacheMarkAt::Message(u32::try_from(index).unwrap_or(u32::MAX)));
        let (role, messages) = turn(r, within, &mut ids)?;
        turns.take(index, messages);
        last = Some((index, role));
        Ok(())
    })?;
    match last {
        None => Err(Fault::new(Code::EmptyArray, "it must have at least one message")),
        Some((index, Role::Assistant)) => {
            turns.continues = true;
            let ends = turns.messages.last().map_or(Ok(()), beginning);
            ends.map(|()| turns).map_err(|fault| fault.under_index(index))
        }
        Some(_) => Ok(turns),
    }
}

/// Checks whether a message can be the start of an answer.
fn beginning(message: &Message) -> Read<()> {
    if !message.tool_calls.is_empty() {
        let message = "the calls of its tools have no results; send them in a message of the user";
        return Err(Fault::new(Code::InvalidValue, message));
    }
    let text = message.content.as_deref().unwrap_or_default();
    if text.trim_end().len() != text.len() {
        let message = "a last message of the assistant is continued, and must not end in white space";
        return Err(Fault::at("content", Code::InvalidValue, message));
    }
    Ok(())
}

/// Reads one turn into one or more messages, each with the index of its first block. Results of tools become messages
/// of their own.
fn turn(r: &mut Reader<'_>, within: Within<'_>, ids: &mut CallIds) -> Read<(Role, Vec<(usize, Message)>)> {
    let (mut role, mut blocks) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "role" => {
                role = Some(match r.string()?.as_ref() {
                    "user" => Role::User,
                    "assistant" => Role::Assistant,
                    "system" => Role::System,
                    _ => {
                        let message = "it must be `user`, `assistant` or `system`";
                        return Err(Fault::new(Code::InvalidValue, message));
                    }
                });
            }
            "content" => blocks = Some(blocks::read(r, within)?),
            _ => return Err(Fault::unknown()),
        }
        Ok(())
    })?;
    let role = role.ok_or_else(|| Fault::missing("role"))?;
    let blocks = blocks.ok_or_else(|| Fault::missing("content"))?;
    let messages = match role {
        Role::Assistant => assistant(blocks, ids).map(|message| vec![(0, message)]),
        Role::System => system(blocks).map(|message| vec![(0, message)]),
        Role::User | Role::Tool => user(blocks, ids),
    };
    Ok((role, messages.map_err(|fault| fault.under_key("content"))?))
}

/// Instructions in the middle of a conversation stay in their place, so that everything before them stays cached.
fn system(blocks: Vec<Block>) -> Read<Message> {
    let mut joined = String::new();
    for (index, block) in blocks.into_iter().enumerate() {
        let Block::Text(text) = block else {
            return Err(Fault::new(Code::InvalidValue, "a message of role `system` may hold text alone")
                .under_index(index));
        };
        joined.push_str(&text);
    }
    Ok(Message::text(Role::System, joined))
}

fn assistant(blocks: Vec<Block>, ids: &mut CallIds) -> Read<Message> {
    let mut message = Message { content: None, ..Message::text(Role::Assistant, "") };
    for (index, block) in blocks.into_iter().enumerate() {
        match block {
            Block::Text(text) => message.content.get_or_insert_default().push_str(&text),
            Block::Thinking(text) => message.reasoning.get_or_insert_default().push_str(&text),
            // This server cannot read it, and a model that did not write it does not miss it.
            Block::Sealed => {}
            Block::ToolUse(call) => {
                ids.called(&call.id).map_err(|fault| fault.under_key("id").under_index(index))?;
                message.tool_calls.push(call);
            }
            Block::ToolResult { .. } | Block::Media(_) => return Err(misplaced("user").under_index(index)),
        }
    }
    if message.content.is_none() && message.tool_calls.is_empty() {
        message.content = Some(String::new());
    }
    Ok(message)
}

fn user(blocks: Vec<Block>, ids: &mut CallIds) -> Read<Vec<(usize, Message)>> {
    let mut messages = Vec::new();
    let mut open: Option<(usize, Content)> = None;
    let said = |(block, content)| {
        let Content { text, media, is_marked: _ } = content;
        (block, Message { media, ..Message::text(Role::User, text) })
    };
    let several = blocks.len() > 1;
    let only_text = blocks.iter().all(|block| matches!(block, Block::Text(_)));
    for (index, block) in blocks.into_iter().enumerate() {
        match block {
            // Anthropic's rule: a text block must have a visible character, even beside other blocks.
            Block::Text(text) if several && is_blank(&text) => return Err(blank::block().under_index(index)),
            Block::Text(more) => opened(&mut open, index).text.push_str(&more),
            Block::Media(part) => opened(&mut open, index).push(part, "content", index),
            Block::ToolResult { id, mut content } => {
                ids.answered(&id).map_err(|fault| fault.under_key("tool_use_id").under_index(index))?;
                messages.extend(open.take().map(said));
                content
                    .media
                    .iter_mut()
                    .for_each(|part| part.place = format!("content[{index}].{}", part.place));
                let Content { text, media, is_marked: _ } = content;
                let message = Message { media, ..Message::text(Role::Tool, text) };
                messages.push((index, Message { tool_call_id: Some(id), ..message }));
            }
            Block::ToolUse(_) | Block::Thinking(_) | Block::Sealed => {
                return Err(misplaced("assistant").under_index(index));
            }
        }
    }
    if only_text {
        open.get_or_insert_default();
    }
    messages.extend(open.map(said));
    Ok(messages)
}

/// Returns the open message of the user. If there is none, opens one that begins at this block.
fn opened(open: &mut Option<(usize, Content)>, index: usize) -> &mut Content {
    &mut open.get_or_insert_with(|| (index, Content::default())).1
}

fn misplaced(role: &str) -> Fault {
    Fault::new(Code::InvalidValue, format!("only a message of role `{role}` may hold such a block"))
}
