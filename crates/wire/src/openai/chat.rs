//! Reads OpenAI's chat completion request. Knows nothing about the rendering of a conversation.

use std::borrow::Cow;

use headrace_domain::{Call, Code, Conversation, DialectExtras, Endpoint, Message, Prompt, Role};

use crate::common::call_ids::CallIds;
use crate::common::content;
use crate::common::content::MessageContent;
use crate::common::params::{CommonParams, label};
use crate::common::refused;
use crate::common::refused::KnownParameters;
use crate::common::{answer_options, blank, cache_options, choice, tools};
use crate::fault::{FieldFault, Read};
use crate::json::JsonReader;
use crate::limits::WireLimits;

/// Reads the whole body.
pub(crate) fn read(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Call> {
    let mut params = CommonParams::new(Endpoint::ChatCompletions, limits);
    let mut messages = None;
    let mut tools = Vec::new();
    let (mut choice, mut parallel) = (None, None);
    let mut ending = PromptEnding::default();
    r.object(|r, key| {
        match key.as_ref() {
            "messages" => messages = Some(read_marked(r, limits)?),
            "prompt_cache_options" => {
                r.optional(|r| cache_options::read(r, limits, false))?;
            }
            "tools" => tools = r.optional(|r| tools::openai_tools(r, limits))?.unwrap_or_default(),
            "tool_choice" => choice = r.optional(|r| choice::openai(r, limits))?,
            "parallel_tool_calls" => parallel = r.optional(JsonReader::bool)?,
            "continue_final_message" => ending.continues = r.optional(JsonReader::bool)?,
            "add_generation_prompt" => ending.begins = r.optional(JsonReader::bool)?,
            key => {
                if !params.take_openai(key, r)? && !answer_options::take(&mut params, key, r)? {
                    refused::read(KnownParameters::Chat, key, r, limits)?;
                }
            }
        }
        Ok(())
    })?;
    r.end()?;
    let (messages, marked) = messages.ok_or_else(|| FieldFault::missing("messages"))?;
    check_blank(&messages).map_err(|fault| fault.under_key("messages"))?;
    let continues = ending.settle(&messages)?;
    let tool_choice = choice.unwrap_or_default();
    choice::check(&tool_choice, &tools)?;
    let settled = params.settle(1)?;
    let mut conversation = Conversation {
        messages,
        tools,
        tool_choice,
        continues,
        one_call: parallel == Some(false),
        template: std::mem::take(&mut params.template),
        asks_verbosity: false,
    };
    params.verbosity.take().into_iter().for_each(|word| conversation.ask_verbosity(word));
    let user = params.end_user();
    Ok(Call {
        endpoint: Endpoint::ChatCompletions,
        model: settled.model,
        prompt: Prompt::Conversation(conversation),
        origins: Vec::new(),
        sampling: settled.sampling,
        stream: params.stream,
        include_usage: params.include_usage,
        return_token_ids: params.return_token_ids,
        explain: params.explain,
        cache_marks: cache_options::marks(&marked),
        cache_salt: params.cache_salt,
        timeout: params.timeout,
        user,
        labels: params.labels.take(),
        tier: params.tier,
        form: settled.form,
        reasoning: params.reasoning,
        dialect: DialectExtras::None,
    })
}

pub(crate) fn read_messages(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Vec<Message>> {
    read_marked(r, limits).map(|(messages, _)| messages)
}

/// Reads the messages. Also returns the indexes of those behind which a cached prefix ends.
fn read_marked(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<(Vec<Message>, Vec<u32>)> {
    let (mut messages, mut marked, mut ids) = (Vec::new(), Vec::new(), CallIds::openai());
    r.array(limits.max_messages, |r, index| {
        let (message, is_marked) = read_message(r, limits)?;
        if is_marked {
            marked.push(u32::try_from(index).unwrap_or(u32::MAX));
        }
        tie(&message, &mut ids)?;
        messages.push(message);
        Ok(())
    })?;
    if messages.is_empty() {
        return Err(FieldFault::new(Code::EmptyArray, "it must have at least one message"));
    }
    Ok((messages, marked))
}

/// Refuses blank messages of the user, and conversations in which all messages are blank.
fn check_blank(messages: &[Message]) -> Read<()> {
    if let Some(index) = blank::first_blank(messages) {
        return Err(blank::message().under_key("content").under_index(index));
    }
    if blank::any_says_something(messages) { Ok(()) } else { Err(blank::conversation()) }
}

/// The end of a prompt: vLLM's two switches, which must have opposite values.
#[derive(Default)]
pub(crate) struct PromptEnding {
    /// The last message is continued.
    pub(crate) continues: Option<bool>,
    /// A new answer of the assistant begins.
    pub(crate) begins: Option<bool>,
}

impl PromptEnding {
    /// Returns whether the last message is continued.
    pub(crate) fn settle(&self, messages: &[Message]) -> Read<bool> {
        let continues = self.continues == Some(true);
        if self.begins == Some(!continues) || self.begins.is_none() {
            let last = messages.last().filter(|_| continues);
            return match last {
                Some(last) if last.role != Role::Assistant || !last.tool_calls.is_empty() => {
                    let message = "the last message must be text of the assistant";
                    Err(FieldFault::at("continue_final_message", Code::InvalidValue, message))
                }
                _ => Ok(continues),
            };
        }
        let message = "it is true unless `continue_final_message` is; leave it out";
        Err(FieldFault::at("add_generation_prompt", Code::UnsupportedParameter, message))
    }
}

/// Ties the tool calls and the result of a message to those of other messages.
fn tie(message: &Message, ids: &mut CallIds) -> Read<()> {
    for (index, call) in message.tool_calls.iter().enumerate() {
        let tied = ids.called(&call.id);
        tied.map_err(|fault| fault.under_key("id").under_index(index).under_key("tool_calls"))?;
    }
    let Some(id) = &message.tool_call_id else { return Ok(()) };
    ids.answered(id).map_err(|fault| fault.under_key("tool_call_id"))
}

/// The fields of a message, before its role says which of them are allowed.
#[derive(Default)]
struct MessageDraft {
    role: Option<Role>,
    content: Option<MessageContent>,
    /// The model's refusal in place of an answer.
    refusal: Option<String>,
    /// The first unknown field. Another server may have put it into an answer that the client sends back.
    stranger: Option<String>,
    name: Option<String>,
    reasoning: Option<String>,
    tool_calls: Option<Vec<headrace_domain::ToolCall>>,
    tool_call_id: Option<String>,
}

fn read_message(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<(Message, bool)> {
    let mut draft = MessageDraft::default();
    r.object(|r, key| {
        match key.as_ref() {
            "role" => draft.role = Some(role(r)?),
            "content" => draft.content = r.optional(|r| content::read(r, limits))?,
            "name" => draft.name = r.optional(|r| label(r, limits))?,
            // Two spellings of the same field. Clients that send both send the same text.
            "reasoning_content" | "reasoning" => {
                let text = r.optional(JsonReader::string)?.map(Cow::into_owned);
                draft.reasoning = draft.reasoning.take().or(text);
            }
            "tool_calls" => draft.tool_calls = r.optional(|r| tools::openai_tool_calls(r, limits))?,
            "tool_call_id" => draft.tool_call_id = r.optional(|r| label(r, limits))?,
            "refusal" => draft.refusal = r.optional(JsonReader::string)?.map(Cow::into_owned),
            // SDKs send back these fields of an answer as null or empty.
            "audio" | "function_call" => {
                let unsupported =
                    || FieldFault::new(Code::UnsupportedParameter, "it is not supported; leave it out");
                r.optional(|_| Err::<(), _>(unsupported()))?;
            }
            "annotations" => {
                r.optional(|r| r.array(0, |_, _| Ok(())))?;
            }
            key => {
                draft.stranger.get_or_insert_with(|| key.to_owned());
                r.skip()?;
            }
        }
        Ok(())
    })?;
    let is_marked = draft.content.as_ref().is_some_and(|content| content.is_marked);
    finish_message(draft).map(|message| (message, is_marked))
}

fn finish_message(draft: MessageDraft) -> Read<Message> {
    let role = draft.role.ok_or_else(|| FieldFault::missing("role"))?;
    let tool_calls = draft.tool_calls.unwrap_or_default();
    let stray = |key, owner: &str| {
        Err(FieldFault::at(key, Code::InvalidValue, format!("only a message of role `{owner}` has it")))
    };
    if role != Role::Assistant {
        if !tool_calls.is_empty() {
            return stray("tool_calls", "assistant");
        }
        if draft.reasoning.is_some() {
            return stray("reasoning_content", "assistant");
        }
        if draft.refusal.is_some() {
            return stray("refusal", "assistant");
        }
        if let Some(key) = draft.stranger {
            return Err(FieldFault::unknown().under_key(&key));
        }
    }
    if role == Role::Tool {
        if draft.tool_call_id.is_none() {
            return Err(FieldFault::missing("tool_call_id"));
        }
    } else if draft.tool_call_id.is_some() {
        return stray("tool_call_id", "tool");
    }
    let content = match (draft.content, draft.refusal) {
        (Some(mut content), Some(refusal)) => {
            content.push_text(&refusal);
            Some(content)
        }
        (content, refusal) => content.or(refusal.map(MessageContent::of_text)),
    };
    if content.is_none() && tool_calls.is_empty() {
        return Err(FieldFault::missing("content"));
    }
    let (content, joints, media) = match content {
        Some(MessageContent { text, joints, media, is_marked: _ }) => (Some(text), joints, media),
        None => (None, Vec::new(), Vec::new()),
    };
    Ok(Message {
        role,
        content,
        joints,
        media,
        name: draft.name,
        reasoning: draft.reasoning,
        tool_calls,
        tool_call_id: draft.tool_call_id,
    })
}

fn role(r: &mut JsonReader<'_>) -> Read<Role> {
    match r.string()?.as_ref() {
        "system" | "developer" => Ok(Role::System),
        "user" => Ok(Role::User),
        "assistant" => Ok(Role::Assistant),
        "tool" => Ok(Role::Tool),
        "function" => Err(FieldFault::new(Code::UnsupportedValue, "use the role `tool` with `tool_call_id`")),
        _ => Err(FieldFault::new(
            Code::InvalidValue,
            "it must be `system`, `developer`, `user`, `assistant` or `tool`",
        )),
    }
}
