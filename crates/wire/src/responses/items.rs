//! Converts the items of an input to messages of a conversation. The texts, reasoning and tool calls of one assistant
//! turn form one message. Knows no parameters beside the input.

use std::borrow::Cow;
use std::collections::HashSet;

use headrace_domain::{Code, Conversation, MediaPart, Message, MessageOrigin, Role, ToolCall};

use crate::common::content::MessageContent;
use crate::common::custom;
use crate::common::names::tool_name;
use crate::common::params::label;
use crate::fault::{FieldFault, Read};
use crate::json::{JsonReader, ValueKind};
use crate::limits::WireLimits;

use super::hosted::{HostedItem, HostedKind};
use super::parts;
use super::sealed::SealedReasoning;
use super::tools::ResponsesTools;

const OTHERS_REFUSED: &str = "only messages, reasoning, compactions, additional tools, calls of functions and custom tools with their outputs, and \
                              calls of MCP, file search, code interpreter and web search are taken; leave it out, or say what it \
                              holds in a message";
/// Precedes the short form of turns that were compacted.
const COMPACTED: &str = "What was said before, in short:\n";

/// The messages that the items become, in order.
#[derive(Debug, Default)]
pub(super) struct InputTurns {
    pub(super) messages: Vec<Message>,
    pub(super) origins: Vec<MessageOrigin>,
    /// Indexes of the items behind which a cached prefix ends.
    pub(super) marked: Vec<u32>,
    /// Tools that the developer's items offer beside the call's own tools.
    pub(super) tools: ResponsesTools,
}

/// The fields of an item of any type.
#[derive(Default)]
struct ItemDraft {
    role: Option<Role>,
    content: Option<MessageContent>,
    /// The reasoning as plain text.
    thought: Option<String>,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<String>,
    input: Option<String>,
    output: Option<MessageContent>,
    summary: Option<String>,
    sealed: Option<String>,
    tools: Option<ResponsesTools>,
}

/// The types of items that are accepted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InputItemKind {
    Message,
    Call,
    CallOutput,
    CustomCall,
    CustomOutput,
    Reasoning,
    Compaction,
    Tools,
    Hosted(HostedKind),
}

impl InputTurns {
    /// Reads an `input`: a text, or a list of items.
    pub(super) fn input(&mut self, r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<()> {
        match r.kind()? {
            ValueKind::String => {
                let text = r.string()?.into_owned();
                self.push(Message::text(Role::User, text), 0);
                Ok(())
            }
            ValueKind::Array => r.array(limits.max_messages, |r, index| {
                r.require(ValueKind::Object)?;
                let text = r.raw()?;
                self.item(r.inner(text), index, limits)
            }),
            _ => Err(FieldFault::new(Code::InvalidType, "it must be a string or a list of items")),
        }
    }

    fn item(&mut self, mut r: JsonReader<'_>, index: usize, limits: &WireLimits) -> Read<()> {
        let kind = kind_of(&r)?;
        if let InputItemKind::Hosted(kind) = kind {
            let item = HostedItem::read(&mut r, kind, limits)?;
            self.hosted(item, index);
            return Ok(());
        }
        let draft = ItemDraft::read(&mut r, kind, limits)?;
        self.take(kind, draft, index)
    }

    fn take(&mut self, kind: InputItemKind, draft: ItemDraft, index: usize) -> Read<()> {
        let missing = |key: &'static str| move || FieldFault::missing(key);
        if [&draft.content, &draft.output].into_iter().flatten().any(|content| content.is_marked) {
            self.marked.push(u32::try_from(index).unwrap_or(u32::MAX));
        }
        match kind {
            InputItemKind::Message => {
                let content = draft.content.ok_or_else(missing("content"))?;
                match draft.role.ok_or_else(missing("role"))? {
                    Role::Assistant => self.said(content, index),
                    role => self.push(content.into_message(role), index),
                }
            }
            InputItemKind::Call => self.called(
                ToolCall {
                    id: draft.call_id.ok_or_else(missing("call_id"))?,
                    name: draft.name.ok_or_else(missing("name"))?,
                    arguments: draft.arguments.ok_or_else(missing("arguments"))?,
                },
                index,
            ),
            InputItemKind::CustomCall => self.called(
                ToolCall {
                    id: draft.call_id.ok_or_else(missing("call_id"))?,
                    name: draft.name.ok_or_else(missing("name"))?,
                    arguments: custom::arguments(&draft.input.ok_or_else(missing("input"))?),
                },
                index,
            ),
            InputItemKind::CallOutput | InputItemKind::CustomOutput => {
                let mut message = draft.output.ok_or_else(missing("output"))?.into_message(Role::Tool);
                message.tool_call_id = Some(draft.call_id.ok_or_else(missing("call_id"))?);
                self.push(message, index);
            }
            InputItemKind::Reasoning => self.thought(draft, index),
            InputItemKind::Compaction => {
                let field = draft.sealed.ok_or_else(missing("encrypted_content"))?;
                let Some(SealedReasoning::Text(text)) = SealedReasoning::of_field(&field) else {
                    let message = "it was not compacted here: send the items that it replaces";
                    return Err(FieldFault::at("encrypted_content", Code::InvalidValue, message));
                };
                self.push(Message::text(Role::System, format!("{COMPACTED}{text}")), index);
            }
            InputItemKind::Tools => {
                if draft.role != Some(Role::System) {
                    let message = "it must be `developer`: no other role offers tools";
                    return Err(FieldFault::at("role", Code::InvalidValue, message));
                }
                let more = draft.tools.ok_or_else(missing("tools"))?;
                self.tools.add(more).map_err(|fault| fault.under_key("tools"))?;
            }
            // Read elsewhere, because these items have fields of their own.
            InputItemKind::Hosted(_) => {}
        }
        Ok(())
    }

    /// Adds the call and the result of a tool that ran on a server.
    fn hosted(&mut self, item: HostedItem, index: usize) {
        match item {
            HostedItem::Nothing => {}
            HostedItem::Call(call) => self.called(call, index),
            HostedItem::Result { call_id, result } => self.resulted(call_id, result, index),
            HostedItem::Answered { call, result, request } => {
                let known = request.filter(|request| self.has_call(request));
                let call_id = known.clone().unwrap_or_else(|| call.id.clone());
                if known.is_none() {
                    self.called(call, index);
                }
                self.resulted(call_id, result, index);
            }
        }
    }

    fn has_call(&self, id: &str) -> bool {
        self.messages.iter().rev().flat_map(|message| &message.tool_calls).any(|call| call.id == id)
    }

    /// Adds the result of a call. The result of a call that had to be approved replaces the approval.
    fn resulted(&mut self, call_id: String, result: String, index: usize) {
        let is_of = |message: &&mut Message| message.tool_call_id.as_deref() == Some(&call_id);
        if let Some(earlier) = self.messages.iter_mut().rev().find(is_of) {
            earlier.content = Some(result);
            return;
        }
        let mut message = Message::text(Role::Tool, result);
        message.tool_call_id = Some(call_id);
        self.push(message, index);
    }

    pub(super) fn push(&mut self, message: Message, index: usize) {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        self.messages.push(message);
        self.origins.push(MessageOrigin::Message { index, block: None });
    }

    /// Returns the last message if it is the assistant's and can be extended, as `fits` decides.
    fn open(&mut self, fits: impl FnOnce(&Message) -> bool) -> Option<&mut Message> {
        self.messages.last_mut().filter(|last| last.role == Role::Assistant && fits(last))
    }

    /// Adds text of the assistant. Text behind calls joins their message, because nothing may come between calls and
    /// their results.
    fn said(&mut self, content: MessageContent, index: usize) {
        match self.open(|last| last.content.is_none() || !last.tool_calls.is_empty()) {
            Some(last) => {
                let text = last.content.take().unwrap_or_default();
                let before = text.len();
                let mut said = MessageContent {
                    text,
                    joints: std::mem::take(&mut last.joints),
                    ..MessageContent::default()
                };
                said.append_text(&content);
                (last.content, last.joints) = (Some(said.text), said.joints);
                last.media.extend(content.media.into_iter().map(|part| MediaPart {
                    behind_bytes: part.behind_bytes.saturating_add(before),
                    ..part
                }));
            }
            None => self.push(content.into_message(Role::Assistant), index),
        }
    }

    fn called(&mut self, call: ToolCall, index: usize) {
        match self.open(|_| true) {
            Some(last) => last.tool_calls.push(call),
            None => {
                let mut message = Message::text(Role::Assistant, "");
                (message.content, message.tool_calls) = (None, vec![call]);
                self.push(message, index);
            }
        }
    }

    fn thought(&mut self, draft: ItemDraft, index: usize) {
        let sealed = draft.sealed.as_deref().and_then(SealedReasoning::of_field);
        let text = match (draft.thought, sealed) {
            (Some(text), _) if !text.is_empty() => text,
            (_, Some(SealedReasoning::Text(text))) => text,
            // Another server sealed the reasoning, so only its summary is available.
            _ => draft.summary.unwrap_or_default(),
        };
        if text.is_empty() {
            return;
        }
        match self.open(|last| last.content.is_none() || !last.tool_calls.is_empty()) {
            Some(last) => last.reasoning.get_or_insert_default().push_str(&text),
            None => {
                let mut message = Message::text(Role::Assistant, "");
                (message.content, message.reasoning) = (None, Some(text));
                self.push(message, index);
            }
        }
    }

    /// Adds an empty text to turns that contain only reasoning, because a message must have a text.
    pub(super) fn finish(&mut self) {
        for message in &mut self.messages {
            if message.content.is_none() && message.tool_calls.is_empty() {
                message.content = Some(String::new());
            }
        }
    }
}

/// Finds the type of an item. The field may be anywhere in the item.
fn kind_of(r: &JsonReader<'_>) -> Read<InputItemKind> {
    let mut r = r.again();
    let (mut kind, mut has_role) = (None, false);
    r.object(|r, key| {
        match key.as_ref() {
            "type" => kind = r.optional(JsonReader::string)?,
            "role" => {
                has_role = true;
                r.skip()?;
            }
            _ => r.skip()?,
        }
        Ok(())
    })?;
    let unsupported = |message: &str| Err(FieldFault::at("type", Code::UnsupportedContent, message));
    match kind.as_deref() {
        Some("message") => Ok(InputItemKind::Message),
        None if has_role => Ok(InputItemKind::Message),
        None => Err(FieldFault::missing("type")),
        Some("function_call") => Ok(InputItemKind::Call),
        Some("function_call_output") => Ok(InputItemKind::CallOutput),
        Some("custom_tool_call") => Ok(InputItemKind::CustomCall),
        Some("custom_tool_call_output") => Ok(InputItemKind::CustomOutput),
        Some("reasoning") => Ok(InputItemKind::Reasoning),
        Some("compaction" | "compaction_summary") => Ok(InputItemKind::Compaction),
        Some("additional_tools") => Ok(InputItemKind::Tools),
        Some("item_reference") => unsupported("the item that it names is not there; send the item itself"),
        Some(kind) => match HostedKind::of(kind) {
            Some(kind) => Ok(InputItemKind::Hosted(kind)),
            None => unsupported(OTHERS_REFUSED),
        },
    }
}

impl ItemDraft {
    fn read(r: &mut JsonReader<'_>, kind: InputItemKind, limits: &WireLimits) -> Read<Self> {
        let mut draft = Self::default();
        r.object(|r, key| {
            match (key.as_ref(), kind) {
                ("type", _) => r.skip()?,
                // Items of answers have these fields. They do not affect what the model sees.
                ("id" | "status" | "phase" | "created_by", _) => {
                    r.optional(|r| label(r, limits)).map(drop)?
                }
                ("tools", InputItemKind::Tools) => draft.tools = Some(ResponsesTools::read(r, limits)?),
                ("role", InputItemKind::Message | InputItemKind::Tools) => draft.role = Some(role(r)?),
                ("content", InputItemKind::Message) => {
                    draft.content = Some(parts::read(r, limits, "content")?)
                }
                ("content", InputItemKind::Reasoning) => {
                    draft.thought = r.optional(|r| parts::list(r, limits, ""))?;
                }
                ("summary", InputItemKind::Reasoning) => {
                    draft.summary = r.optional(|r| parts::list(r, limits, "\n\n"))?;
                }
                ("encrypted_content", InputItemKind::Reasoning | InputItemKind::Compaction) => {
                    draft.sealed = r.optional(JsonReader::string)?.map(Cow::into_owned);
                }
                (
                    "call_id",
                    InputItemKind::Call
                    | InputItemKind::CallOutput
                    | InputItemKind::CustomCall
                    | InputItemKind::CustomOutput,
                ) => {
                    draft.call_id = Some(label(r, limits)?);
                }
                ("name", InputItemKind::Call | InputItemKind::CustomCall) => draft.name = Some(tool_name(r)?),
                ("arguments", InputItemKind::Call) => {
                    draft.arguments = Some(crate::common::tools::arguments_text(r)?)
                }
                ("input", InputItemKind::CustomCall) => draft.input = Some(r.string()?.into_owned()),
                ("output", InputItemKind::CallOutput | InputItemKind::CustomOutput) => {
                    draft.output = Some(parts::read(r, limits, "output")?);
                }
                ("name", InputItemKind::CallOutput | InputItemKind::CustomOutput)
                | ("caller" | "namespace", _) => {
                    r.optional(|r| r.skip()).map(drop)?;
                }
                _ => return Err(FieldFault::unknown()),
            }
            Ok(())
        })?;
        Ok(draft)
    }
}

fn role(r: &mut JsonReader<'_>) -> Read<Role> {
    match r.string()?.as_ref() {
        "system" | "developer" => Ok(Role::System),
        "user" => Ok(Role::User),
        "assistant" => Ok(Role::Assistant),
        _ => Err(FieldFault::new(
            Code::InvalidValue,
            "it must be `user`, `assistant`, `system` or `developer`; results of tools are items of their own",
        )),
    }
}

/// Checks that every result names a call before it, so that the model can match the two.
///
/// # Errors
/// Fails at the first result that does not, and if the conversation has no messages. `origins` are those of the messages.
pub(super) fn check(conversation: &Conversation, origins: &[MessageOrigin]) -> Read<()> {
    let mut called: HashSet<&str> = HashSet::new();
    for (at, message) in conversation.messages.iter().enumerate() {
        called.extend(message.tool_calls.iter().map(|call| call.id.as_str()));
        if message.tool_call_id.as_deref().is_some_and(|id| !called.contains(id)) {
            let item = match origins.get(at) {
                Some(MessageOrigin::Message { index, .. }) => format!(" (item {index})"),
                _ => String::new(),
            };
            let message = format!(
                "an output{item} names a call that is not before it; send the call too, or the response that it was in as \
                 `previous_response_id`"
            );
            // OpenAI's servers name the whole input, too.
            return Err(FieldFault::new(Code::InvalidValue, message).under_key("input"));
        }
    }
    if conversation.messages.is_empty() {
        return Err(FieldFault::missing("input"));
    }
    Ok(())
}
