//! Anthropic's message request: text, tool use and tool results. Knows nothing of how a conversation is rendered.

use headrace_domain::{Call, Code, Conversation, Endpoint, Message, MessageOrigin, Prompt, Role, ToolCall};

use crate::call_ids::CallIds;
use crate::content::not_text;
use crate::fault::{Fault, Read};
use crate::json::{Kind, Reader};
use crate::params::{Knobs, Low, decimal, label, stop};
use crate::refused::{self, Known, cache_control};
use crate::{WireLimits, choice, form, tools, wishes};

/// What a failed tool's result is led by in the prompt, so that the model sees `is_error`.
pub(crate) const TOOL_ERROR: &str = "Error: ";

/// Reads the whole body.
pub(crate) fn read(r: &mut Reader<'_>, limits: &WireLimits) -> Read<Call> {
    let mut knobs = Knobs::new(Endpoint::Messages, limits);
    let (mut messages, mut system) = (None, None);
    let mut tools = Vec::new();
    let mut choice = None;
    r.object(|r, key| {
        match key.as_ref() {
            "messages" => messages = Some(read_messages(r, limits)?),
            "system" => system = r.optional(|r| text_blocks(r, limits))?,
            "temperature" => {
                knobs.sampling.temperature = r.optional(|r| decimal(r, Low::From(0.0), 1.0))?;
            }
            "stop_sequences" => {
                knobs.sampling.stop = r
                    .optional(|r| {
                        r.require(Kind::Array)?;
                        stop(r, limits, limits.max_stop_strings)
                    })?
                    .unwrap_or_default();
            }
            "tools" => tools = r.optional(|r| tools::anthropic_tools(r, limits))?.unwrap_or_default(),
            "tool_choice" => choice = r.optional(choice::anthropic)?,
            "thinking" => {
                r.optional(|r| wishes::thinking(r, &mut knobs.reasoning, limits))?;
            }
            "output_config" => {
                r.optional(|r| output_config(r, &mut knobs))?;
            }
            "output_format" => {
                let form = r.optional(form::anthropic_format)?;
                knobs.hold_to(form);
            }
            "metadata" => refused::anthropic_metadata(r, limits)?,
            "cache_control" => cache_control(r)?,
            key => {
                if !knobs.take_common(key, r)? {
                    refused::read(Known::Messages, key, r, limits)?;
                }
            }
        }
        Ok(())
    })?;
    r.end()?;
    let Turns { mut messages, mut origins } = messages.ok_or_else(|| Fault::missing("messages"))?;
    if let Some(system) = system {
        messages.insert(0, Message::text(Role::System, system));
        origins.insert(0, MessageOrigin::System);
    }
    let (tool_choice, one_call) = choice.unwrap_or_default();
    choice::check(&tool_choice, &tools)?;
    let settled = knobs.settle(1)?;
    let max_tokens = settled.sampling.max_tokens.ok_or_else(|| Fault::missing("max_tokens"))?;
    if knobs.reasoning.budget_tokens.is_some_and(|budget| budget >= max_tokens) {
        let message = "it must be less than `max_tokens`, which counts the thinking too";
        let fault = Fault::at("budget_tokens", Code::IntegerAboveMaxValue, message);
        return Err(fault.under_key("thinking"));
    }
    Ok(Call {
        endpoint: Endpoint::Messages,
        model: settled.model,
        prompt: Prompt::Conversation(Conversation {
            messages,
            tools,
            tool_choice,
            one_call,
            template: std::mem::take(&mut knobs.template),
        }),
        origins,
        sampling: settled.sampling,
        stream: knobs.stream,
        include_usage: true,
        return_token_ids: false,
        echo: false,
        explain: knobs.explain,
        cache_salt: knobs.cache_salt,
        timeout: knobs.timeout,
        tier: knobs.tier,
        form: settled.form,
        reasoning: knobs.reasoning,
        response: None,
    })
}

/// Effort and format of an answer.
fn output_config(r: &mut Reader<'_>, knobs: &mut Knobs<'_>) -> Read<()> {
    r.object(|r, key| match key.as_ref() {
        "effort" => wishes::anthropic_effort(r, &mut knobs.reasoning),
        "format" => {
            let form = r.optional(form::anthropic_format)?;
            knobs.hold_to(form);
            Ok(())
        }
        "task_budget" => {
            let message = "how much of a task is left is not told to the model; leave it out";
            r.optional(|_| Err::<(), _>(Fault::new(Code::UnsupportedParameter, message))).map(drop)
        }
        _ => Err(Fault::unknown()),
    })
}

/// The messages that the turns became, and where each stands in them.
#[derive(Default)]
struct Turns {
    messages: Vec<Message>,
    origins: Vec<MessageOrigin>,
}

impl Turns {
    /// Takes the messages that turn number `index` became, each with the block that it begins with.
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

fn read_messages(r: &mut Reader<'_>, limits: &WireLimits) -> Read<Turns> {
    let (mut turns, mut ids) = (Turns::default(), CallIds::anthropic());
    let mut last = None;
    r.array(limits.max_messages, |r, index| {
        let (role, messages) = read_turn(r, limits, &mut ids)?;
        turns.take(index, messages);
        last = Some((index, role));
        Ok(())
    })?;
    match last {
        None => Err(Fault::new(Code::EmptyArray, "it must have at least one message")),
        Some((index, Role::Assistant)) => {
            let message = "a last message of the assistant would have to be continued, which is not supported; end \
                           with a message of the user";
            Err(Fault::new(Code::UnsupportedValue, message).under_index(index))
        }
        Some(_) => Ok(turns),
    }
}

/// A turn before its role is known: its blocks in order.
enum Block {
    Text(String),
    Thinking(String),
    ToolUse(ToolCall),
    ToolResult { id: String, text: String },
}

/// Reads one turn into one or more messages, each with the block that it begins with: results of tools become messages of
/// their own.
fn read_turn(
    r: &mut Reader<'_>,
    limits: &WireLimits,
    ids: &mut CallIds,
) -> Read<(Role, Vec<(usize, Message)>)> {
    let (mut role, mut blocks) = (None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "role" => {
                role = Some(match r.string()?.as_ref() {
                    "user" => Role::User,
                    "assistant" => Role::Assistant,
                    "system" => {
                        return Err(Fault::new(Code::UnsupportedValue, "send it as the parameter `system`"));
                    }
                    _ => return Err(Fault::new(Code::InvalidValue, "it must be `user` or `assistant`")),
                });
            }
            "content" => blocks = Some(read_blocks(r, limits)?),
            _ => return Err(Fault::unknown()),
        }
        Ok(())
    })?;
    let role = role.ok_or_else(|| Fault::missing("role"))?;
    let blocks = blocks.ok_or_else(|| Fault::missing("content"))?;
    let messages = match role {
        Role::Assistant => assistant(blocks, ids).map(|message| vec![(0, message)]),
        _ => user(blocks, ids),
    };
    Ok((role, messages.map_err(|fault| fault.under_key("content"))?))
}

fn assistant(blocks: Vec<Block>, ids: &mut CallIds) -> Read<Message> {
    let mut message = Message { content: None, ..Message::text(Role::Assistant, "") };
    for (index, block) in blocks.into_iter().enumerate() {
        match block {
            Block::Text(text) => message.content.get_or_insert_default().push_str(&text),
            Block::Thinking(text) => message.reasoning.get_or_insert_default().push_str(&text),
            Block::ToolUse(call) => {
                ids.called(&call.id).map_err(|fault| fault.under_key("id").under_index(index))?;
                message.tool_calls.push(call);
            }
            Block::ToolResult { .. } => return Err(misplaced("user").under_index(index)),
        }
    }
    if message.content.is_none() && message.tool_calls.is_empty() {
        message.content = Some(String::new());
    }
    Ok(message)
}

fn user(blocks: Vec<Block>, ids: &mut CallIds) -> Read<Vec<(usize, Message)>> {
    let mut messages = Vec::new();
    let mut open: Option<(usize, String)> = None;
    let text = |(block, text)| (block, Message::text(Role::User, text));
    let only_text = blocks.iter().all(|block| matches!(block, Block::Text(_)));
    for (index, block) in blocks.into_iter().enumerate() {
        match block {
            Block::Text(more) => open.get_or_insert_with(|| (index, String::new())).1.push_str(&more),
            Block::ToolResult { id, text: result } => {
                ids.answered(&id).map_err(|fault| fault.under_key("tool_use_id").under_index(index))?;
                messages.extend(open.take().map(text));
                let message = Message::text(Role::Tool, result);
                messages.push((index, Message { tool_call_id: Some(id), ..message }));
            }
            Block::ToolUse(_) | Block::Thinking(_) => return Err(misplaced("assistant").under_index(index)),
        }
    }
    if only_text {
        open.get_or_insert_default();
    }
    messages.extend(open.map(text));
    Ok(messages)
}

fn misplaced(role: &str) -> Fault {
    Fault::new(Code::InvalidValue, format!("only a message of role `{role}` may hold such a block"))
}

fn read_blocks(r: &mut Reader<'_>, limits: &WireLimits) -> Read<Vec<Block>> {
    match r.kind()? {
        Kind::String => Ok(vec![Block::Text(r.string()?.into_owned())]),
        Kind::Array => {
            let mut blocks = Vec::new();
            r.array(limits.max_content_parts, |r, _| {
                blocks.push(read_block(r, limits)?);
                Ok(())
            })?;
            Ok(blocks)
        }
        _ => Err(Fault::new(Code::InvalidType, "it must be a string or a list of blocks")),
    }
}

/// The fields of a block as they come, before its type says which belong.
#[derive(Default)]
struct Draft {
    kind: Option<String>,
    text: Option<String>,
    thinking: Option<String>,
    id: Option<String>,
    name: Option<String>,
    input: Option<String>,
    tool_use_id: Option<String>,
    content: Option<String>,
    is_error: bool,
}

impl Draft {
    /// A field that a block of this type does not have.
    fn stray(&self, kind: &str) -> Option<&'static str> {
        let fields = [
            ("text", self.text.is_some(), "text"),
            ("thinking", self.thinking.is_some(), "thinking"),
            ("id", self.id.is_some(), "tool_use"),
            ("name", self.name.is_some(), "tool_use"),
            ("input", self.input.is_some(), "tool_use"),
            ("tool_use_id", self.tool_use_id.is_some(), "tool_result"),
            ("content", self.content.is_some(), "tool_result"),
            ("is_error", self.is_error, "tool_result"),
        ];
        fields.iter().find(|(_, present, owner)| *present && *owner != kind).map(|(key, ..)| *key)
    }
}

fn read_block(r: &mut Reader<'_>, limits: &WireLimits) -> Read<Block> {
    let mut draft = Draft::default();
    r.object(|r, key| {
        match key.as_ref() {
            "type" => {
                let kind = r.string()?;
                if !matches!(kind.as_ref(), "text" | "thinking" | "tool_use" | "tool_result") {
                    return Err(not_text().of_parent());
                }
                draft.kind = Some(kind.into_owned());
            }
            "text" => draft.text = Some(r.string()?.into_owned()),
            "thinking" => draft.thinking = Some(r.string()?.into_owned()),
            // It vouches for Anthropic's own thinking text; ours needs none.
            "signature" => r.optional(Reader::string).map(drop)?,
            "citations" => r.optional(|r| r.array(0, |_, _| Ok(()))).map(drop)?,
            "id" => draft.id = Some(label(r, limits)?),
            "name" => draft.name = Some(tools::anthropic_tool_name(r)?),
            "input" => draft.input = Some(tools::arguments_object(r)?.to_owned()),
            "tool_use_id" => draft.tool_use_id = Some(label(r, limits)?),
            "content" => draft.content = r.optional(|r| text_blocks(r, limits))?,
            "is_error" => draft.is_error = r.optional(Reader::bool)?.unwrap_or(false),
            "cache_control" => cache_control(r)?,
            // What an image or a document carries its data in: the block is to blame.
            "source" => return Err(not_text().of_parent()),
            _ => return Err(Fault::unknown()),
        }
        Ok(())
    })?;
    finish_block(draft)
}

fn finish_block(draft: Draft) -> Read<Block> {
    let kind = draft.kind.as_deref().ok_or_else(|| Fault::missing("type"))?;
    if let Some(key) = draft.stray(kind) {
        return Err(Fault::unknown().under_key(key));
    }
    let missing = |key: &'static str| move || Fault::missing(key);
    Ok(match kind {
        "text" => Block::Text(draft.text.ok_or_else(missing("text"))?),
        "thinking" => Block::Thinking(draft.thinking.ok_or_else(missing("thinking"))?),
        "tool_use" => Block::ToolUse(ToolCall {
            id: draft.id.ok_or_else(missing("id"))?,
            name: draft.name.ok_or_else(missing("name"))?,
            arguments: draft.input.ok_or_else(missing("input"))?,
        }),
        _ => {
            let id = draft.tool_use_id.ok_or_else(missing("tool_use_id"))?;
            let text = draft.content.unwrap_or_default();
            Block::ToolResult { id, text: if draft.is_error { format!("{TOOL_ERROR}{text}") } else { text } }
        }
    })
}

/// A string or a list of text blocks, joined with nothing between them.
fn text_blocks(r: &mut Reader<'_>, limits: &WireLimits) -> Read<String> {
    if r.kind()? == Kind::String {
        return Ok(r.string()?.into_owned());
    }
    if r.kind()? != Kind::Array {
        return Err(Fault::new(Code::InvalidType, "it must be a string or a list of text blocks"));
    }
    let mut joined = String::new();
    r.array(limits.max_content_parts, |r, _| match read_block(r, limits)? {
        Block::Text(text) => {
            joined.push_str(&text);
            Ok(())
        }
        _ => Err(not_text()),
    })?;
    Ok(joined)
}
