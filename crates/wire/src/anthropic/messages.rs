//! Reads the parameters of Anthropic's message request. The submodules read turns and blocks. Knows nothing about the
//! rendering of a conversation.

mod blocks;
mod context;
mod turns;

pub use blocks::TOOL_ERROR;

use headrace_domain::{
    CacheComparison, CacheMark, CacheMarkAt, Call, ClearTools, Code, Conversation, DialectExtras, EndUser,
    Endpoint, Message, MessageOrigin, MessagesExtras, Prompt, Role, Tool, ToolChoice, is_blank,
};

use blocks::BlockContext;
use turns::MessageTurns;

use crate::common::breakpoints::CacheBreakpoints;
use crate::common::content::MessageContent;
use crate::common::params::{CommonParams, LowerBound, decimal, label, stop};
use crate::common::refused;
use crate::common::refused::KnownParameters;
use crate::common::{answer_options, blank, choice, form, tools};
use crate::fault::{FieldFault, Read};
use crate::json::{JsonReader, ValueKind};
use crate::limits::WireLimits;

/// The start of the system block in which Claude Code says who pays. The block differs in every request, so it would
/// cost every prompt its cached prefix. It is not an instruction, and a model does not get it.
const ATTRIBUTION: &str = "x-anthropic-billing-header:";

/// The parameters of a body, beside those that all endpoints have.
#[derive(Default)]
struct MessagesDraft {
    turns: Option<MessageTurns>,
    system: Option<MessageContent>,
    tools: Vec<Tool>,
    choice: (ToolChoice, bool),
    /// The number of assistant turns, from the end, that keep their thinking. `None` if all turns keep it.
    keep_thinking: Option<u32>,
    /// Set if the caller asks for a diagnosis of cache misses. The inner value is the previous answer's id, if there is
    /// one.
    diagnoses: Option<Option<String>>,
    /// The marks for cached prefixes.
    marks: Vec<CacheMark>,
    /// The rule by which results of tools are cleared if there are many.
    clears: Option<Box<ClearTools>>,
}

/// Reads the whole body of a call.
pub(crate) fn read(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Call> {
    let mut params = CommonParams::new(Endpoint::Messages, limits);
    // `max_tokens: 0` reads a prompt into the cache ahead of its call.
    params.none_may_come = true;
    let said = read_body(r, &mut params)?;
    let call = settle(said, &mut params)?;
    let max_tokens = call.sampling.max_tokens.ok_or_else(|| FieldFault::missing("max_tokens"))?;
    if call.reasoning.budget_tokens.is_some_and(|budget| budget >= max_tokens) {
        let message = "it must be less than `max_tokens`, which counts the thinking too";
        let fault = FieldFault::at("budget_tokens", Code::IntegerAboveMaxValue, message);
        return Err(fault.under_key("thinking"));
    }
    Ok(call)
}

/// Reads the whole body of a token count: a call that may lack the parameters for its answer.
pub(crate) fn read_count(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Call> {
    let mut params = CommonParams::new(Endpoint::Messages, limits);
    params.none_may_come = true;
    let said = read_body(r, &mut params)?;
    settle(said, &mut params)
}

fn read_body(r: &mut JsonReader<'_>, params: &mut CommonParams<'_>) -> Read<MessagesDraft> {
    let (limits, breakpoints) = (params.limits, &CacheBreakpoints::default());
    let within = BlockContext { limits, breakpoints };
    let mut said = MessagesDraft::default();
    r.object(|r, key| {
        match key.as_ref() {
            "messages" => {
                said.turns = Some(turns::read(r, within)?);
                breakpoints.enter(CacheMarkAt::Head);
            }
            "system" => said.system = r.optional(|r| system(r, within))?.flatten(),
            "temperature" => {
                params.sampling.temperature = r.optional(|r| decimal(r, LowerBound::From(0.0), 1.0))?;
            }
            "stop_sequences" => {
                let stops = |r: &mut JsonReader<'_>| {
                    r.require(ValueKind::Array)?;
                    stop(r, limits, limits.max_stop_strings)
                };
                params.sampling.stop = r.optional(stops)?.unwrap_or_default();
            }
            "tools" => {
                let read = |r: &mut JsonReader<'_>| tools::anthropic_tools(r, limits, breakpoints);
                said.tools = r.optional(read)?.unwrap_or_default();
            }
            "tool_choice" => said.choice = r.optional(choice::anthropic)?.unwrap_or_default(),
            "thinking" => {
                r.optional(|r| answer_options::thinking(r, &mut params.reasoning, limits))?;
            }
            "output_config" => {
                r.optional(|r| output_config(r, params))?;
            }
            "output_format" => {
                let form = r.optional(form::anthropic_format)?;
                params.hold_to(form);
            }
            "context_management" => {
                let edits = r.optional(|r| context::management(r, limits))?.unwrap_or_default();
                (said.keep_thinking, said.clears) = (edits.keep_thinking, edits.clears);
            }
            "diagnostics" => said.diagnoses = r.optional(|r| diagnostics(r, limits))?,
            "metadata" => params.user.0 = r.optional(|r| metadata(r, limits))?.flatten(),
            "cache_control" => breakpoints.read_at(CacheMarkAt::Last, r)?,
            key => {
                if !params.take_common(key, r)? && !answer_options::take(params, key, r)? {
                    refused::read(KnownParameters::Messages, key, r, limits)?;
                }
            }
        }
        Ok(())
    })?;
    r.end()?;
    said.marks = breakpoints.take();
    Ok(said)
}

/// Reads an object of labels. `user_id` is the only one that exists.
fn metadata(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Option<EndUser>> {
    let mut user = None;
    r.object(|r, key| match key.as_ref() {
        "user_id" => {
            user = r.optional(|r| label(r, limits))?;
            Ok(())
        }
        _ => Err(FieldFault::unknown()),
    })?;
    Ok(user.as_deref().and_then(EndUser::named))
}

fn settle(said: MessagesDraft, params: &mut CommonParams<'_>) -> Read<Call> {
    let MessagesDraft {
        turns,
        system,
        tools,
        choice: (tool_choice, one_call),
        keep_thinking,
        diagnoses,
        marks,
        clears,
    } = said;
    let MessageTurns { mut messages, mut origins, continues } =
        turns.ok_or_else(|| FieldFault::missing("messages"))?;
    check_blank(&messages, &origins, system.as_ref().map(|system| system.text.as_str()))?;
    if let Some(most) = keep_thinking {
        forget_thinking(&mut messages, most);
    }
    if let Some(system) = system {
        messages.insert(0, system.into_message(Role::System));
        origins.insert(0, MessageOrigin::System);
    }
    choice::check(&tool_choice, &tools)?;
    let settled = params.settle(1)?;
    Ok(Call {
        endpoint: Endpoint::Messages,
        model: settled.model,
        prompt: Prompt::Conversation(Conversation {
            messages,
            tools,
            tool_choice,
            one_call,
            continues,
            template: std::mem::take(&mut params.template),
            asks_verbosity: false,
        }),
        origins,
        sampling: settled.sampling,
        stream: params.stream,
        include_usage: true,
        return_token_ids: false,
        explain: params.explain,
        cache_marks: marks,
        cache_salt: params.cache_salt.take(),
        timeout: params.timeout,
        user: params.end_user(),
        labels: params.labels.take(),
        tier: params.tier,
        form: settled.form,
        dialect: DialectExtras::messages(MessagesExtras {
            comparison: diagnoses.map(|previous_answer| CacheComparison { previous_answer }),
            clears: clears.map(|clears| *clears),
            cleared: None,
        }),
        reasoning: std::mem::take(&mut params.reasoning),
    })
}

/// Refuses blank messages of the user, and conversations in which all messages and `system` are blank.
fn check_blank(messages: &[Message], origins: &[MessageOrigin], system: Option<&str>) -> Read<()> {
    if let Some(at) = blank::first_blank(messages) {
        let mut fault = blank::message();
        if let Some(MessageOrigin::Message { index, block }) = origins.get(at) {
            let number = |at: u32| usize::try_from(at).unwrap_or(usize::MAX);
            fault = block.iter().fold(fault, |fault, block| fault.under_index(number(*block)));
            fault = fault.under_key("content").under_index(number(*index));
        }
        return Err(fault.under_key("messages"));
    }
    let says_something = blank::any_says_something(messages) || system.is_some_and(|text| !is_blank(text));
    if says_something { Ok(()) } else { Err(blank::conversation().under_key("messages")) }
}

/// Reads `system`. `None` if nothing remains without the attribution.
fn system(r: &mut JsonReader<'_>, within: BlockContext<'_>) -> Read<Option<MessageContent>> {
    let is_text = r.kind()? == ValueKind::String;
    let mut texts = blocks::texts(r, within)?;
    let attributed = texts.first().is_some_and(|first| first.text.starts_with(ATTRIBUTION));
    if attributed && is_text {
        // The attribution is the first line. The instructions follow it.
        let rest = blocks::joined(&texts).text.split_once('\n').map(|(_, rest)| rest.to_owned());
        return Ok(rest.filter(|rest| !rest.is_empty()).map(MessageContent::of_text));
    }
    if attributed {
        texts.remove(0);
        if texts.is_empty() {
            return Ok(None);
        }
    }
    Ok(Some(blocks::joined(&texts)))
}

/// Reads the effort and the format of an answer.
fn output_config(r: &mut JsonReader<'_>, params: &mut CommonParams<'_>) -> Read<()> {
    r.object(|r, key| match key.as_ref() {
        "effort" => answer_options::anthropic_effort(r, &mut params.reasoning),
        "format" => {
            let form = r.optional(form::anthropic_format)?;
            params.hold_to(form);
            Ok(())
        }
        "task_budget" => {
            let message = "the model does not receive how much of a task is left; leave it out";
            r.optional(|_| Err::<(), _>(FieldFault::new(Code::UnsupportedParameter, message))).map(drop)
        }
        _ => Err(FieldFault::unknown()),
    })
}

/// Removes the thinking of all assistant turns except the last `most` that have some.
fn forget_thinking(messages: &mut [Message], most: u32) {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let thought = messages.iter_mut().rev().filter(|message| message.reasoning.is_some());
    thought.skip(most).for_each(|message| message.reasoning = None);
}

/// Reads the id of the previous message, which the prompt is compared with.
fn diagnostics(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Option<String>> {
    let mut previous = None;
    r.object(|r, key| {
        match key.as_ref() {
            "previous_message_id" => previous = r.optional(|r| label(r, limits))?,
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    Ok(previous)
}
