//! Parses the body of `POST /v1/responses` into a call. Knows no store, and nothing about the rendering of a
//! conversation.

use std::borrow::Cow;
use std::sync::Arc;

use headrace_domain::{
    CacheComparison, Call, CallLabels, Code, Conversation, DialectExtras, EndUser, Endpoint, Message,
    MessageOrigin, Prompt, ReasoningOptions, ResponseAsk, ResponseFormat, Role, is_blank,
};

use crate::common::answer_options::{USUAL_VERBOSITY, verbosity};
use crate::common::blank;
use crate::common::cache_options;
use crate::common::form::json_form;
use crate::common::metadata::metadata;
use crate::common::names::schema_name;
use crate::common::params::{CommonParams, integer, label};
use crate::common::refused;
use crate::common::refused::KnownParameters;
use crate::fault::{FieldFault, Read};
use crate::json::{JsonReader, ValueKind};
use crate::limits::WireLimits;

use super::echo::RequestEcho;
use super::items::{self, InputTurns};
use super::tools::{self, ResponsesTools};

/// Parameters that mean the same as on the other endpoints.
const SHARED: &[&str] = &[
    "temperature",
    "top_p",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "stop",
    "stop_token_ids",
    "min_tokens",
    "ignore_eos",
    "service_tier",
    "model",
    "stream",
    "top_k",
    "seed",
    "headrace",
    "timeout",
    "cache_salt",
];

/// Values of `include` that are accepted but have no effect.
const INCLUDES: &[&str] = &[
    "web_search_call.action.sources",
    "web_search_call.results",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
];

/// The body as read so far.
#[derive(Default)]
struct ResponsesDraft {
    turns: Option<InputTurns>,
    input: String,
    instructions: Option<String>,
    tools: ResponsesTools,
    choice: headrace_domain::ToolChoice,
    one_call: bool,
    form: Option<ResponseFormat>,
    reasoning: ReasoningOptions,
    ask: ResponseAsk,
    logprobs: bool,
    top_logprobs: Option<u32>,
    echo: RequestEcho,
}

/// Reads the whole body.
pub(crate) fn read(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Call> {
    let mut params = CommonParams::new(Endpoint::Responses, limits);
    let mut draft = ResponsesDraft {
        ask: ResponseAsk { store: true, ..ResponseAsk::default() },
        ..ResponsesDraft::default()
    };
    r.object(|r, key| {
        let key = key.as_ref();
        if SHARED.contains(&key) {
            return params.take_openai(key, r).map(drop);
        }
        if draft.take_prompt(key, r, limits)? || draft.take_state(key, r, limits)? {
            return Ok(());
        }
        draft.take_answer(key, r, limits, &mut params)
    })?;
    r.end()?;
    draft.finish(params)
}

impl ResponsesDraft {
    /// Reads a parameter that the model sees. Returns `false` and reads nothing if `key` is not one of them.
    fn take_prompt(&mut self, key: &str, r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<bool> {
        match key {
            "input" => {
                let mut turns = InputTurns::default();
                let ((), text) = r.with_raw(|r| turns.input(r, limits))?;
                turns.finish();
                (self.turns, self.input) = (Some(turns), text.to_owned());
            }
            "instructions" => self.instructions = r.optional(JsonReader::string)?.map(Cow::into_owned),
            "tools" => self.tools = r.optional(|r| ResponsesTools::read(r, limits))?.unwrap_or_default(),
            "tool_choice" => {
                if let Some(text) = r.optional(JsonReader::raw)? {
                    self.choice = tools::choice(&mut r.inner(text), limits)?;
                    self.echo.tool_choice = Some(text.to_owned());
                }
            }
            "parallel_tool_calls" => self.one_call = r.optional(JsonReader::bool)? == Some(false),
            "max_tool_calls" => {
                // The bound is for calls of tools that run on the server, and there are none.
                self.echo.max_tool_calls = r.optional(|r| integer(r, 1, u32::MAX))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads how the answer is stored, and what it continues. Returns `false` and reads nothing if `key` is not such a
    /// parameter.
    fn take_state(&mut self, key: &str, r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<bool> {
        let ask = &mut self.ask;
        match key {
            "store" => ask.store = r.optional(JsonReader::bool)?.unwrap_or(true),
            "background" => ask.background = r.optional(JsonReader::bool)?.unwrap_or(false),
            "previous_response_id" => ask.previous = r.optional(|r| label(r, limits))?,
            "conversation" => ask.conversation = r.optional(|r| conversation(r, limits))?,
            "metadata" => self.echo.metadata = r.optional(|r| metadata(r, limits))?,
            "safety_identifier" => self.echo.safety_identifier = r.optional(|r| label(r, limits))?,
            "prompt_cache_options" => {
                self.echo.cache = r.optional(|r| cache_options::read(r, limits, true))?;
            }
            "prompt_cache_key" => self.echo.prompt_cache_key = r.optional(|r| label(r, limits))?,
            // A client's data about itself and its session (Codex). The model does not see it.
            "client_metadata" => r.optional(|r| r.object(|r, _| r.string().map(drop))).map(drop)?,
            "user" => self.echo.user = r.optional(|r| label(r, limits))?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads how the answer is made and shown.
    fn take_answer(
        &mut self,
        key: &str,
        r: &mut JsonReader<'_>,
        limits: &WireLimits,
        params: &mut CommonParams<'_>,
    ) -> Read<()> {
        match key {
            "max_output_tokens" => {
                let cap = limits.max_output_tokens_per_request;
                params.sampling.max_tokens = r.optional(|r| integer(r, 1, cap))?;
            }
            "top_logprobs" => {
                let most = u32::from(limits.max_logprobs);
                self.top_logprobs = r.optional(|r| integer(r, 0, most))?;
            }
            "include" => r.optional(|r| self.include(r)).map(drop)?,
            "text" => r.optional(|r| self.text(r)).map(drop)?,
            "reasoning" => r.optional(|r| self.reason(r)).map(drop)?,
            "truncation" => {
                let cuts = r.optional(|r| match r.string()?.as_ref() {
                    "auto" => Ok(true),
                    "disabled" => Ok(false),
                    _ => Err(FieldFault::new(Code::InvalidValue, "it must be `auto` or `disabled`")),
                })?;
                self.ask.cuts = cuts.unwrap_or(false);
            }
            "stream_options" => r.optional(stream_options).map(drop)?,
            _ => return refused::read(KnownParameters::Responses, key, r, limits),
        }
        Ok(())
    }

    fn include(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        r.array(INCLUDES.len() + 2, |r, _| {
            match r.string()?.as_ref() {
                "message.output_text.logprobs" => self.logprobs = true,
                "reasoning.encrypted_content" => self.ask.sealed_reasoning = true,
                name if INCLUDES.contains(&name) => {}
                _ => return Err(FieldFault::new(Code::InvalidValue, "there is no such thing to include")),
            }
            Ok(())
        })
    }

    fn text(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        r.object(|r, key| {
            match key.as_ref() {
                "format" => {
                    if let Some(text) = r.optional(JsonReader::raw)? {
                        self.form = format(&mut r.inner(text), &mut self.echo)?;
                    }
                }
                "verbosity" => self.echo.verbosity = r.optional(verbosity)?,
                _ => return Err(FieldFault::unknown()),
            }
            Ok(())
        })
    }

    fn reason(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        r.object(|r, key| {
            match key.as_ref() {
                "effort" => {
                    let effort = r.optional(JsonReader::string)?.map(Cow::into_owned);
                    if effort.as_deref().is_some_and(|effort| !EFFORTS.contains(&effort)) {
                        let message =
                            "it must be `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`";
                        return Err(FieldFault::new(Code::InvalidValue, message));
                    }
                    self.echo.effort.clone_from(&effort);
                    self.reasoning.enabled = effort.as_deref().map(|effort| effort != "none");
                    self.reasoning.effort = effort.filter(|effort| effort != "none");
                }
                // The second name is the older one.
                "summary" | "generate_summary" => {
                    let summary = r.optional(JsonReader::string)?.map(Cow::into_owned);
                    if summary.as_deref().is_some_and(|word| !SUMMARIES.contains(&word)) {
                        return Err(FieldFault::new(
                            Code::InvalidValue,
                            "it must be `auto`, `concise` or `detailed`",
                        ));
                    }
                    self.ask.reasoning_summary |= summary.is_some();
                    self.echo.summary = summary.or(self.echo.summary.take());
                }
                _ => return Err(FieldFault::unknown()),
            }
            Ok(())
        })
    }

    /// Adds the tools that items of the input offer, behind the call's own.
    fn take_added(&mut self, limits: &WireLimits) -> Read<()> {
        if let Some(turns) = &mut self.turns {
            let added = std::mem::take(&mut turns.tools);
            self.tools.add(added).map_err(|fault| fault.under_key("input"))?;
        }
        if self.tools.tools.len() > limits.max_tools {
            let message = format!("with those of its items, there may be at most {}", limits.max_tools);
            return Err(FieldFault::at("tools", Code::ArrayAboveMaxLength, message));
        }
        Ok(())
    }

    /// Checks that the continued state and the storage of the answer fit together.
    fn check_state(&self) -> Read<()> {
        if self.ask.previous.is_some() && self.ask.conversation.is_some() {
            let message = "it continues its conversation; send one of the two";
            return Err(FieldFault::at("previous_response_id", Code::InvalidValue, message));
        }
        if self.ask.background && !self.ask.store {
            let message = "it needs `store: true`: without it, the answer could not be fetched";
            return Err(FieldFault::at("background", Code::InvalidValue, message));
        }
        Ok(())
    }

    /// Refuses blank items of the user, and inputs in which all items are blank.
    fn check_blank(&self, continues: bool) -> Read<()> {
        let Some(turns) = &self.turns else { return Ok(()) };
        if let Some(at) = blank::first_blank(&turns.messages) {
            let item = match turns.origins.get(at) {
                Some(MessageOrigin::Message { index, .. }) if !self.input.starts_with('"') => Some(*index),
                _ => None,
            };
            let of_item = |fault: FieldFault, index: u32| {
                fault.under_key("content").under_index(usize::try_from(index).unwrap_or(usize::MAX))
            };
            return Err(item.into_iter().fold(blank::message(), of_item).under_key("input"));
        }
        let says_something = blank::any_says_something(&turns.messages)
            || self.instructions.as_deref().is_some_and(|text| !is_blank(text));
        if continues || says_something || turns.messages.is_empty() {
            return Ok(());
        }
        Err(blank::conversation().under_key("input"))
    }

    fn finish(mut self, mut params: CommonParams<'_>) -> Read<Call> {
        self.take_added(params.limits)?;
        // The continued state may contain the tools that the choice names, and the calls that the outputs name.
        let continues = self.ask.previous.is_some() || self.ask.conversation.is_some();
        if !continues {
            tools::check(&self.choice, &self.tools.tools)?;
        }
        self.check_state()?;
        self.check_blank(continues)?;
        if self.logprobs || self.top_logprobs.is_some_and(|top| top > 0) {
            let top = self.top_logprobs.unwrap_or(0);
            params.sampling.logprobs = Some(u8::try_from(top).unwrap_or(u8::MAX));
        }
        self.echo.top_logprobs = self.top_logprobs.unwrap_or(0);
        let settled = params.settle(1)?;
        let Self {
            turns,
            input,
            instructions,
            tools,
            choice,
            one_call,
            form,
            reasoning,
            mut ask,
            mut echo,
            ..
        } = self;
        (echo.tools, echo.instructions, echo.one_call) = (tools.echo, instructions.clone(), one_call);
        let verbosity = echo.verbosity.clone().filter(|word| word != USUAL_VERBOSITY);
        let comparison = echo.cache.as_ref().map(|cache| cache.comparison.clone());
        ask.comparison = comparison.map(|previous_answer| CacheComparison { previous_answer });
        let user = echo.safety_identifier.as_deref().or(echo.user.as_deref()).and_then(EndUser::named);
        let labels = echo.metadata.as_deref().and_then(CallLabels::of_json).map(Box::new);
        ask.echo = echo.written(&ask, &settled.sampling, params.tier);
        let InputTurns { mut messages, mut origins, marked, tools: _ } = turns.unwrap_or_default();
        if let Some(instructions) = instructions {
            messages.insert(0, Message::text(Role::System, instructions));
            origins.insert(0, MessageOrigin::System);
        }
        ask.input = input;
        ask.skipped_tools = tools.skipped;
        let mut conversation = Conversation {
            messages,
            tools: tools.tools,
            tool_choice: choice,
            one_call,
            ..Conversation::default()
        };
        verbosity.into_iter().for_each(|word| conversation.ask_verbosity(word));
        if !continues {
            items::check(&conversation, &origins)?;
        }
        Ok(Call {
            origins,
            sampling: settled.sampling,
            stream: params.stream,
            include_usage: true,
            explain: params.explain,
            cache_salt: params.cache_salt,
            timeout: params.timeout,
            tier: params.tier,
            user,
            labels,
            form: form.map(Arc::new),
            reasoning,
            cache_marks: cache_options::marks(&marked),
            dialect: DialectExtras::Responses(Arc::new(ask)),
            ..Call::of_prompt(Endpoint::Responses, settled.model, Prompt::Conversation(conversation))
        })
    }
}

const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];
const SUMMARIES: &[&str] = &["auto", "concise", "detailed"];

/// Reads the response format. `None` if the answer is plain text.
fn format(r: &mut JsonReader<'_>, echo: &mut RequestEcho) -> Read<Option<ResponseFormat>> {
    let (mut kind, mut name, mut description, mut schema, mut strict) = (None, None, None, None, None);
    r.object(|r, key| {
        match key.as_ref() {
            "type" => kind = Some(r.string()?),
            "name" => name = Some(schema_name(r)?),
            "description" => description = r.optional(JsonReader::string)?.map(Cow::into_owned),
            "schema" => {
                r.require(ValueKind::Object)?;
                schema = Some(r.raw()?);
            }
            "strict" => strict = r.optional(JsonReader::bool)?,
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    match kind.as_deref() {
        Some("text") => Ok(None),
        Some("json_object") => {
            echo.format = Some(r#"{"type":"json_object"}"#.to_owned());
            Ok(Some(ResponseFormat::JsonObject))
        }
        Some("json_schema") => {
            let name = name.ok_or_else(|| FieldFault::missing("name"))?;
            let text = schema.ok_or_else(|| FieldFault::missing("schema"))?;
            echo.json_schema(&name, description.as_deref(), text, strict);
            // The text was read before, so it is JSON. Its keys stay in the order in which they were sent.
            let schema = serde_json::from_str(text)
                .map_err(|_| FieldFault::at("schema", Code::InvalidValue, "a number in it is too large"))?;
            let strict = strict == Some(true);
            Ok(Some(ResponseFormat::JsonSchema(json_form(Some(name), schema, strict))))
        }
        Some(_) => {
            let message = "it must be `text`, `json_object` or `json_schema`";
            Err(FieldFault::at("type", Code::InvalidValue, message))
        }
        None => Err(FieldFault::missing("type")),
    }
}

/// Reads an id, or an object that contains it.
fn conversation(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<String> {
    if r.kind()? == ValueKind::String {
        return label(r, limits);
    }
    let mut id = None;
    r.object(|r, key| match key.as_ref() {
        "id" => {
            id = Some(label(r, limits)?);
            Ok(())
        }
        _ => Err(FieldFault::unknown()),
    })?;
    id.ok_or_else(|| FieldFault::missing("id"))
}

fn stream_options(r: &mut JsonReader<'_>) -> Read<()> {
    r.object(|r, key| match key.as_ref() {
        "include_obfuscation" => match r.optional(JsonReader::bool)? {
            Some(true) => {
                Err(FieldFault::new(Code::UnsupportedParameter, "it is not supported; leave it out"))
            }
            _ => Ok(()),
        },
        _ => Err(FieldFault::unknown()),
    })
}
