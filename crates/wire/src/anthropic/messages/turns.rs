//! Converts Anthropic's turns to messages. One turn may become several messages. A last turn of the assistant is the
//! start of the answer. Knows no parameters.

use headrace_domain::{CacheMarkAt, Code, Message, MessageOrigin, Role, is_blank};

use super::blocks::{self, BlockContext, ReadBlock};
use crate::common::blank;
use crate::common::call_ids::CallIds;
use crate::common::content::MessageContent;
use crate::fault::{FieldFault, Read};
use crate::json::JsonReader;

/// The messages that the turns became, and the place of each in the request.
#[derive(Default)]
pub(super) struct MessageTurns {
    pub(super) messages: Vec<Message>,
    pub(super) origins: Vec<MessageOrigin>,
    /// Whether the last message is the start of the answer.
    pub(super) continues: bool,
}

impl MessageTurns {
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

pub(super) fn read(r: &mut JsonReader<'_>, within: BlockContext<'_>) -> Read<MessageTurns> {
    let (mut turns, mut ids) = (MessageTurns::default(), CallIds::anthropic());
    let mut last = None;
    r.array(within.limits.max_messages, |r, index| {
        within.breakpoints.enter(CacheMarkAt::Message(u32::try_from(index).unwrap_or(u32::MAX)));
        let (role, messages) = turn(r, within, &mut ids)?;
        turns.take(index, messages);
        last = Some((index, role));
        Ok(())
    })?;
    match last {
        None => Err(FieldFault::new(Code::EmptyArray, "it must have at least one message")),
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
        return Err(FieldFault::new(Code::InvalidValue, message));
    }
    let text = message.content.as_deref().unwrap_or_default();
    if text.trim_end().len() != text.len() {
        let message = "a last message of the assistant is continued, and must not end in white space";
        return Err(FieldFault::at("content", Code::InvalidValue, message));
    }
    Ok(())
}

/// Reads one turn into one or more messages, each with the index of its first block. Results of tools become messages
/// of their own.
fn turn(
    r: &mut JsonReader<'_>,
    within: BlockContext<'_>,
    ids: &mut CallIds,
) -> Read<(Role, Vec<(usize, Message)>)> {
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
                        return Err(FieldFault::new(Code::InvalidValue, message));
                    }
                });
            }
            "content" => blocks = Some(blocks::read(r, within)?),
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    let role = role.ok_or_else(|| FieldFault::missing("role"))?;
    let blocks = blocks.ok_or_else(|| FieldFault::missing("content"))?;
    let messages = match role {
        Role::Assistant => assistant(blocks, ids).map(|message| vec![(0, message)]),
        Role::System => system(blocks).map(|message| vec![(0, message)]),
        Role::User | Role::Tool => user(blocks, ids),
    };
    Ok((role, messages.map_err(|fault| fault.under_key("content"))?))
}

/// Instructions in the middle of a conversation stay in their place, so that everything before them stays cached.
fn system(blocks: Vec<ReadBlock>) -> Read<Message> {
    let mut joined = MessageContent::default();
    for (index, block) in blocks.into_iter().enumerate() {
        let ReadBlock::Text(text) = block else {
            return Err(FieldFault::new(
                Code::InvalidValue,
                "a message of role `system` may hold text alone",
            )
            .under_index(index));
        };
        joined.append_text(&text);
    }
    Ok(joined.into_message(Role::System))
}

fn assistant(blocks: Vec<ReadBlock>, ids: &mut CallIds) -> Read<Message> {
    let mut message = Message { content: None, ..Message::text(Role::Assistant, "") };
    let mut content: Option<MessageContent> = None;
    for (index, block) in blocks.into_iter().enumerate() {
        match block {
            ReadBlock::Text(text) => content.get_or_insert_default().append_text(&text),
            ReadBlock::Thinking(text) => message.reasoning.get_or_insert_default().push_str(&text),
            // This server cannot read it, and a model that did not write it does not miss it.
            ReadBlock::Sealed => {}
            ReadBlock::ToolUse(call) => {
                ids.called(&call.id).map_err(|fault| fault.under_key("id").under_index(index))?;
                message.tool_calls.push(call);
            }
            ReadBlock::ToolResult { .. } | ReadBlock::Media(_) => {
                return Err(misplaced("user").under_index(index));
            }
        }
    }
    if content.is_none() && message.tool_calls.is_empty() {
        content = Some(MessageContent::default());
    }
    if let Some(MessageContent { text, joints, .. }) = content {
        (message.content, message.joints) = (Some(text), joints);
    }
    Ok(message)
}

fn user(blocks: Vec<ReadBlock>, ids: &mut CallIds) -> Read<Vec<(usize, Message)>> {
    let mut messages = Vec::new();
    let mut open: Option<(usize, MessageContent)> = None;
    let said = |(block, content): (usize, MessageContent)| (block, content.into_message(Role::User));
    let several = blocks.len() > 1;
    let only_text = blocks.iter().all(|block| matches!(block, ReadBlock::Text(_)));
    for (index, block) in blocks.into_iter().enumerate() {
        match block {
            // Anthropic's rule: a text block must have a visible character, even beside other blocks.
            ReadBlock::Text(text) if several && is_blank(&text.text) => {
                return Err(blank::block().under_index(index));
            }
            ReadBlock::Text(more) => opened(&mut open, index).append_text(&more),
            ReadBlock::Media(part) => opened(&mut open, index).push(part, "content", index),
            ReadBlock::ToolResult { id, mut content } => {
                ids.answered(&id).map_err(|fault| fault.under_key("tool_use_id").under_index(index))?;
                messages.extend(open.take().map(said));
                content
                    .media
                    .iter_mut()
                    .for_each(|part| part.place = format!("content[{index}].{}", part.place));
                let message = content.into_message(Role::Tool);
                messages.push((index, Message { tool_call_id: Some(id), ..message }));
            }
            ReadBlock::ToolUse(_) | ReadBlock::Thinking(_) | ReadBlock::Sealed => {
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
fn opened(open: &mut Option<(usize, MessageContent)>, index: usize) -> &mut MessageContent {
    &mut open.get_or_insert_with(|| (index, MessageContent::default())).1
}

fn misplaced(role: &str) -> FieldFault {
    FieldFault::new(Code::InvalidValue, format!("only a message of role `{role}` may hold such a block"))
}
