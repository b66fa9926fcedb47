//! Parameters of more than one endpoint: scalars with their ranges, sampling, delivery.
//! Knows nothing about messages, prompts or tools.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{
    CallLabels, Code, EndUser, Endpoint, ReasoningOptions, ResponseFormat, SamplingRequest, ServiceTier,
};
use serde_json::{Map, Value};

use crate::common::metadata::labels;
use crate::fault::{FieldFault, Read};
use crate::json::{JsonReader, ValueKind};
use crate::limits::WireLimits;

/// The most stop strings in OpenAI's dialect.
const MAX_OPENAI_STOP_STRINGS: usize = 4;

/// The longest `timeout`, in seconds.
const MOST_TIMEOUT_S: f64 = 86_400.0;

/// The parameters that OpenAI's endpoints and the Messages endpoint share, as read so far.
pub struct CommonParams<'l> {
    /// The limits on the content of the request.
    pub limits: &'l WireLimits,
    pub(crate) endpoint: Endpoint,
    model: Option<String>,
    /// The sampling parameters, before the checks that span several of them.
    pub sampling: SamplingRequest,
    n: Option<u32>,
    best_of: Option<u32>,
    max_completion_tokens: Option<u32>,
    /// Chat's switch. Completions have only the count.
    logprobs: Option<bool>,
    top_logprobs: Option<u8>,
    /// Whether the answer is a stream.
    pub stream: bool,
    stream_options: bool,
    /// Whether `max_tokens` may be 0, so that only the prompt is read. The server that answers supports this.
    pub none_may_come: bool,
    /// Whether a stream ends with the usage.
    pub include_usage: bool,
    pub(crate) return_token_ids: bool,
    /// Whether the answer repeats the prompt.
    pub echo: bool,
    /// Whether the answer carries times and cost.
    pub explain: bool,
    /// The caller's salt for cached prefixes.
    pub cache_salt: Option<String>,
    /// The time within which the answer must come.
    pub timeout: Option<Duration>,
    /// The service tier that is asked for.
    pub tier: ServiceTier,
    /// The end user, by the newer parameter and by the older one.
    pub user: (Option<EndUser>, Option<EndUser>),
    /// The labels of `metadata`.
    pub labels: Option<Box<CallLabels>>,
    /// The response format. `two_forms` is set if two parameters set one.
    form: Option<ResponseFormat>,
    two_forms: bool,
    pub(crate) reasoning: ReasoningOptions,
    /// Additional variables of the chat template.
    pub(crate) template: Map<String, Value>,
    /// The verbosity of the answer, if it is not the default.
    pub(crate) verbosity: Option<String>,
}

/// The parameters that all calls have, after the checks that span several parameters.
pub struct CheckedParams {
    /// The name of the model.
    pub model: String,
    /// The sampling parameters.
    pub sampling: SamplingRequest,
    pub(crate) form: Option<Arc<ResponseFormat>>,
}

impl<'l> CommonParams<'l> {
    /// Creates the parameters of a request that sets none.
    pub fn new(endpoint: Endpoint, limits: &'l WireLimits) -> Self {
        Self {
            limits,
            endpoint,
            model: None,
            sampling: SamplingRequest::default(),
            n: None,
            best_of: None,
            max_completion_tokens: None,
            logprobs: None,
            top_logprobs: None,
            stream: false,
            stream_options: false,
            none_may_come: false,
            include_usage: false,
            return_token_ids: false,
            echo: false,
            explain: false,
            cache_salt: None,
            timeout: None,
            tier: ServiceTier::Standard,
            user: (None, None),
            labels: None,
            form: None,
            two_forms: false,
            reasoning: ReasoningOptions::default(),
            template: Map::new(),
            verbosity: None,
        }
    }

    /// Sets the response format, if there is one.
    pub(crate) fn hold_to(&mut self, form: Option<ResponseFormat>) {
        self.two_forms |= form.is_some() && self.form.is_some();
        self.form = self.form.take().or(form);
    }

    /// Reads a parameter that every endpoint has. Returns `false` and reads nothing if `key` is not one of them.
    pub(crate) fn take_common(&mut self, key: &str, r: &mut JsonReader<'_>) -> Read<bool> {
        let limits = self.limits;
        match key {
            "model" => self.model = Some(label(r, limits)?),
            "stream" => self.stream = r.optional(JsonReader::bool)?.unwrap_or(false),
            "top_p" => self.sampling.top_p = r.optional(|r| decimal(r, LowerBound::Above(0.0), 1.0))?,
            "top_k" => self.sampling.top_k = r.optional(top_k)?,
            "seed" => self.sampling.seed = r.optional(seed)?,
            "max_tokens" => self.sampling.max_tokens = r.optional(|r| self.most_tokens(r))?,
            "headrace" => {
                let mut explain = false;
                r.optional(|r| {
                    r.object(|r, key| match key.as_ref() {
                        "explain" => {
                            explain = r.optional(JsonReader::bool)?.unwrap_or(false);
                            Ok(())
                        }
                        _ => Err(FieldFault::unknown()),
                    })
                })?;
                self.explain = explain;
            }
            "timeout" => {
                let seconds = r.optional(|r| decimal(r, LowerBound::Above(0.0), MOST_TIMEOUT_S))?;
                self.timeout = seconds.map(Duration::from_secs_f32);
            }
            "cache_salt" => self.cache_salt = r.optional(|r| label(r, limits))?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads a parameter that both of OpenAI's generating endpoints have. Returns `false` and reads nothing if `key` is
    /// not one of them.
    pub fn take_openai(&mut self, key: &str, r: &mut JsonReader<'_>) -> Read<bool> {
        let limits = self.limits;
        let sampling = &mut self.sampling;
        match key {
            "temperature" => sampling.temperature = r.optional(|r| decimal(r, LowerBound::From(0.0), 2.0))?,
            "min_p" => sampling.min_p = r.optional(|r| decimal(r, LowerBound::From(0.0), 1.0))?,
            "frequency_penalty" => sampling.frequency_penalty = r.optional(penalty)?,
            "presence_penalty" => sampling.presence_penalty = r.optional(penalty)?,
            "repetition_penalty" => {
                sampling.repetition_penalty = r.optional(|r| decimal(r, LowerBound::Above(0.0), 2.0))?;
            }
            "logit_bias" => {
                sampling.logit_bias = r.optional(|r| logit_bias(r, limits))?.unwrap_or_default();
            }
            "stop" => {
                let most = limits.max_stop_strings.min(MAX_OPENAI_STOP_STRINGS);
                sampling.stop = r.optional(|r| stop(r, limits, most))?.unwrap_or_default();
            }
            "stop_token_ids" => {
                let max = limits.max_stop_token_ids;
                sampling.stop_token_ids = r.optional(|r| ids(r, max))?.unwrap_or_default();
            }
            "min_tokens" => {
                let cap = limits.max_output_tokens_per_request;
                sampling.min_tokens = r.optional(|r| integer(r, 0, cap))?.unwrap_or(0);
            }
            "ignore_eos" => sampling.ignore_eos = r.optional(JsonReader::bool)?.unwrap_or(false),
            "prompt_logprobs" => {
                sampling.prompt_logprobs = r.optional(|r| small(r, limits.max_logprobs))?;
            }
            "n" => self.n = r.optional(|r| integer(r, 1, limits.max_n))?,
            "best_of" => self.best_of = r.optional(|r| integer(r, 1, limits.max_n))?,
            "return_token_ids" => self.return_token_ids = r.optional(JsonReader::bool)?.unwrap_or(false),
            "service_tier" => self.tier = r.optional(service_tier)?.unwrap_or_default(),
            "safety_identifier" => self.user.0 = r.optional(|r| end_user(r, limits))?.flatten(),
            "user" => self.user.1 = r.optional(|r| end_user(r, limits))?.flatten(),
            "metadata" => self.labels = r.optional(|r| labels(r, limits))?.flatten(),
            "stream_options" => {
                self.stream_options = r.optional(|r| self.include_usage_of(r))?.is_some();
            }
            "max_completion_tokens" if self.endpoint == Endpoint::ChatCompletions => {
                let cap = limits.max_output_tokens_per_request;
                self.max_completion_tokens = r.optional(|r| integer(r, 1, cap))?;
            }
            "logprobs" if self.endpoint == Endpoint::ChatCompletions => {
                self.logprobs = r.optional(JsonReader::bool)?;
            }
            "top_logprobs" if self.endpoint == Endpoint::ChatCompletions => {
                self.top_logprobs = r.optional(|r| small(r, limits.max_logprobs))?;
            }
            "logprobs" => self.sampling.logprobs = r.optional(|r| small(r, limits.max_logprobs))?,
            "echo" if self.endpoint == Endpoint::Completions => {
                self.echo = r.optional(JsonReader::bool)?.unwrap_or(false);
            }
            _ => return self.take_common(key, r),
        }
        Ok(true)
    }

    /// Reads the most tokens of an answer. 0 is valid for an endpoint that has a use for it. The least value in an
    /// error message is one that is accepted.
    fn most_tokens(&self, r: &mut JsonReader<'_>) -> Read<u32> {
        let cap = self.limits.max_output_tokens_per_request;
        if self.none_may_come {
            return integer(r, 0, cap);
        }
        // Completions accept 0 only with `echo`, which is known once the whole body is read.
        let least = u32::from(self.endpoint != Endpoint::Completions);
        integer(r, least, cap).map_err(|fault| {
            let mut codes = [Code::IntegerBelowMinValue, Code::IntegerAboveMaxValue].into_iter();
            match codes.find(|code| least == 0 && fault.is(*code)) {
                Some(code) => out_of_bounds(code, cap),
                None => fault,
            }
        })
    }

    fn include_usage_of(&mut self, r: &mut JsonReader<'_>) -> Read<()> {
        r.object(|r, key| match key.as_ref() {
            "include_usage" => {
                self.include_usage = r.optional(JsonReader::bool)?.unwrap_or(false);
                Ok(())
            }
            // Padding, and usage in every chunk. This server does neither, so `false` is accepted.
            "include_obfuscation" | "continuous_usage_stats" => match r.optional(JsonReader::bool)? {
                Some(true) => {
                    Err(FieldFault::new(Code::UnsupportedParameter, "it is not supported; leave it out"))
                }
                _ => Ok(()),
            },
            _ => Err(FieldFault::unknown()),
        })
    }

    /// Takes the end user. The newer parameter takes precedence.
    pub fn end_user(&mut self) -> Option<EndUser> {
        let (newer, older) = std::mem::take(&mut self.user);
        newer.or(older)
    }

    /// Takes the model's name, which every call must have.
    pub(crate) fn named(&mut self) -> Read<String> {
        self.model.take().ok_or_else(|| FieldFault::missing("model"))
    }

    /// Checks the rules that span several parameters. `prompts` is the number of prompts.
    pub fn settle(&mut self, prompts: usize) -> Read<CheckedParams> {
        let model = self.model.take().ok_or_else(|| FieldFault::missing("model"))?;
        self.settle_lengths()?;
        self.settle_logprobs()?;
        let n = self.n.unwrap_or(1);
        if self.best_of.is_some_and(|best_of| best_of != n) {
            let message = "it must equal `n`: answers are not ranked against each other; leave it out";
            return Err(FieldFault::at("best_of", Code::UnsupportedParameter, message));
        }
        let choices = u32::try_from(prompts).ok().and_then(|prompts| prompts.checked_mul(n));
        if choices.is_none_or(|choices| choices > self.limits.max_choices) {
            let max = self.limits.max_choices;
            let message = format!("prompts times `n` may be at most {max}; send several requests");
            return Err(FieldFault::at("n", Code::IntegerAboveMaxValue, message));
        }
        if self.stream_options && !self.stream {
            let message = "it is allowed only with `stream: true`";
            return Err(FieldFault::at("stream_options", Code::InvalidValue, message));
        }
        if self.two_forms {
            let message = "an answer can have one form; send one of the parameters that say which";
            return Err(FieldFault::at(self.form_param(), Code::InvalidValue, message));
        }
        self.sampling.n = n;
        let form = self.form.take().map(Arc::new);
        Ok(CheckedParams { model, sampling: std::mem::take(&mut self.sampling), form })
    }

    const fn form_param(&self) -> &'static str {
        if matches!(self.endpoint, Endpoint::Messages) { "output_config" } else { "response_format" }
    }

    fn settle_lengths(&mut self) -> Read<()> {
        let cap = self.limits.max_output_tokens_per_request;
        let sampling = &mut self.sampling;
        if sampling.max_tokens == Some(0) && !self.echo && !self.none_may_come {
            return Err(out_of_bounds(Code::IntegerBelowMinValue, cap).under_key("max_tokens"));
        }
        match (sampling.max_tokens, self.max_completion_tokens) {
            (Some(old), Some(new)) if old != new => {
                let message = "it contradicts `max_tokens`; send one of them";
                return Err(FieldFault::at("max_completion_tokens", Code::InvalidValue, message));
            }
            (None, new) => sampling.max_tokens = new,
            _ => {}
        }
        if sampling.max_tokens.is_some_and(|max| sampling.min_tokens > max) {
            let message = "it must not exceed the greatest number of tokens asked for";
            return Err(FieldFault::at("min_tokens", Code::IntegerAboveMaxValue, message));
        }
        Ok(())
    }

    fn settle_logprobs(&mut self) -> Read<()> {
        let sampling = &mut self.sampling;
        if self.endpoint == Endpoint::ChatCompletions {
            let on = self.logprobs.unwrap_or(false);
            // Without log-probabilities there are no alternatives anyway, so 0 is accepted.
            if self.top_logprobs.is_some_and(|top| top > 0) && !on {
                let message = "it needs `logprobs: true`";
                return Err(FieldFault::at("top_logprobs", Code::InvalidValue, message));
            }
            sampling.logprobs = on.then(|| self.top_logprobs.unwrap_or(0));
        }
        if self.echo && sampling.logprobs.is_some() {
            if sampling.prompt_logprobs.is_some() {
                let message = "`echo` with `logprobs` scores the prompt already; leave it out";
                return Err(FieldFault::at("prompt_logprobs", Code::InvalidValue, message));
            }
            sampling.prompt_logprobs = sampling.logprobs;
        }
        Ok(())
    }
}

/// The lower bound of a decimal.
#[derive(Clone, Copy)]
pub(crate) enum LowerBound {
    /// This value or more.
    From(f64),
    /// More than this value.
    Above(f64),
}

/// Reads a number between `low` and `high`, in single precision.
pub(crate) fn decimal(r: &mut JsonReader<'_>, low: LowerBound, high: f64) -> Read<f32> {
    let text = r.number()?;
    // A number too large for a double becomes infinite and fails the range like any other.
    let value = text.parse::<f64>().unwrap_or(f64::NAN);
    #[allow(clippy::cast_possible_truncation, reason = "the range is checked on the result too")]
    let single = value as f32;
    let (enough, need) = match low {
        LowerBound::From(least) => (value >= least, format!("at least {least}")),
        LowerBound::Above(bound) => (value > bound && f64::from(single) > bound, format!("above {bound}")),
    };
    if !enough {
        return Err(FieldFault::new(
            Code::DecimalBelowMinValue,
            format!("it must be {need} and at most {high}"),
        ));
    }
    if value > high {
        return Err(FieldFault::new(
            Code::DecimalAboveMaxValue,
            format!("it must be {need} and at most {high}"),
        ));
    }
    Ok(single)
}

fn penalty(r: &mut JsonReader<'_>) -> Read<f32> {
    decimal(r, LowerBound::From(-2.0), 2.0)
}

/// Reads a whole number between `low` and `high`.
pub fn integer(r: &mut JsonReader<'_>, low: u32, high: u32) -> Read<u32> {
    let text = r.number()?;
    // The common case comes first, because a list may have many numbers.
    if let Ok(value) = text.parse::<u32>()
        && (low..=high).contains(&value)
    {
        return Ok(value);
    }
    let text = require_whole(text)?;
    let code = match text.parse::<i64>() {
        Ok(value) if value < i64::from(low) => Code::IntegerBelowMinValue,
        // Minus zero.
        Ok(0) => return Ok(0),
        Err(_) if text.starts_with('-') => Code::IntegerBelowMinValue,
        _ => Code::IntegerAboveMaxValue,
    };
    Err(FieldFault::new(code, format!("it must be at least {low} and at most {high}")))
}

/// The fault for `max_tokens` of a completion. 0 is accepted only with `echo`, which then scores the prompt.
fn out_of_bounds(code: Code, cap: u32) -> FieldFault {
    let message = format!("it must be at least 1 and at most {cap} (0, with `echo`, only scores the prompt)");
    FieldFault::new(code, message)
}

fn small(r: &mut JsonReader<'_>, high: u8) -> Read<u8> {
    let value = integer(r, 0, u32::from(high))?;
    Ok(u8::try_from(value).unwrap_or(high))
}

/// Reads a number without a point and an exponent.
fn whole<'a>(r: &mut JsonReader<'a>) -> Read<&'a str> {
    r.number().and_then(require_whole)
}

fn require_whole(text: &str) -> Read<&str> {
    if text.contains(['.', 'e', 'E']) {
        return Err(FieldFault::new(
            Code::InvalidType,
            "it must be a whole number, written without point or exponent",
        ));
    }
    Ok(text)
}

fn service_tier(r: &mut JsonReader<'_>) -> Read<ServiceTier> {
    match r.string()?.as_ref() {
        "auto" | "default" => Ok(ServiceTier::Standard),
        "flex" => Ok(ServiceTier::Flex),
        _ => Err(FieldFault::new(
            Code::UnsupportedParameter,
            "there are `auto`, `default` and `flex`; leave it out",
        )),
    }
}

/// Reads vLLM's spelling: −1 and 0 switch it off.
fn top_k(r: &mut JsonReader<'_>) -> Read<Option<NonZeroU32>> {
    let out_of = |code| {
        FieldFault::new(code, format!("it must be at least -1 and at most {} (-1 and 0: off)", u32::MAX))
    };
    let text = whole(r)?;
    match text.parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(value) if value < -1 => Err(out_of(Code::IntegerBelowMinValue)),
        Ok(value) => {
            u32::try_from(value).map(NonZeroU32::new).map_err(|_| out_of(Code::IntegerAboveMaxValue))
        }
        Err(_) if text.starts_with('-') => Err(out_of(Code::IntegerBelowMinValue)),
        Err(_) => Err(out_of(Code::IntegerAboveMaxValue)),
    }
}

/// Reads any whole number of 64 bits, signed or unsigned.
fn seed(r: &mut JsonReader<'_>) -> Read<u64> {
    let text = whole(r)?;
    if let Ok(value) = text.parse::<i64>() {
        return Ok(value.cast_unsigned());
    }
    let code = if text.starts_with('-') { Code::IntegerBelowMinValue } else { Code::IntegerAboveMaxValue };
    text.parse::<u64>().map_err(|_| FieldFault::new(code, "it must be a whole number of at most 64 bits"))
}

/// Reads a list of token ids.
pub(crate) fn ids(r: &mut JsonReader<'_>, max: usize) -> Read<Vec<u32>> {
    let mut ids = Vec::new();
    r.array(max, |r, _| {
        ids.push(integer(r, 0, u32::MAX)?);
        Ok(())
    })?;
    Ok(ids)
}

fn logit_bias(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Vec<(u32, f32)>> {
    let mut biases = Vec::new();
    r.object(|r, key| {
        if biases.len() >= limits.max_logit_bias {
            let message = format!("it may name at most {} tokens", limits.max_logit_bias);
            return Err(FieldFault::new(Code::ObjectAboveMaxProperties, message).of_parent());
        }
        // Each id has exactly one spelling, so that no token can be named twice.
        let id = key.parse::<u32>().ok().filter(|id| id.to_string() == key.as_ref());
        let id = id.ok_or_else(|| {
            let message = "the key must be a token id: a whole number without sign or leading zeros";
            FieldFault::new(Code::InvalidValue, message)
        })?;
        biases.push((id, decimal(r, LowerBound::From(-100.0), 100.0)?));
        Ok(())
    })?;
    biases.sort_unstable_by_key(|(id, _)| *id);
    Ok(biases)
}

/// Reads one stop string or a list of at most `most`.
pub(crate) fn stop(r: &mut JsonReader<'_>, limits: &WireLimits, most: usize) -> Read<Vec<String>> {
    if r.kind()? == ValueKind::String {
        return Ok(vec![stop_string(r, limits)?]);
    }
    if r.kind()? != ValueKind::Array {
        return Err(FieldFault::new(Code::InvalidType, "it must be a string or a list of strings"));
    }
    let mut strings = Vec::new();
    r.array(most, |r, _| {
        strings.push(stop_string(r, limits)?);
        Ok(())
    })?;
    Ok(strings)
}

fn stop_string(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<String> {
    bounded(r, limits.max_stop_bytes)
}

/// Reads a string of 1 to `max_label_bytes` bytes without control characters: a name, an id, a salt.
pub fn label(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<String> {
    let text = bounded(r, limits.max_label_bytes)?;
    let is_plain = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if !is_plain && text.chars().any(char::is_control) {
        return Err(FieldFault::new(Code::InvalidValue, "it must not hold control characters"));
    }
    Ok(text)
}

/// Reads any short string.
pub(crate) fn short<'a>(r: &mut JsonReader<'a>, limits: &WireLimits) -> Read<Cow<'a, str>> {
    let text = r.string()?;
    if text.len() > limits.max_label_bytes {
        let message = format!("it may have at most {} bytes", limits.max_label_bytes);
        return Err(FieldFault::new(Code::StringAboveMaxLength, message));
    }
    Ok(text)
}

/// Reads the label of the end user. `None` if it is empty.
fn end_user(r: &mut JsonReader<'_>, limits: &WireLimits) -> Read<Option<EndUser>> {
    Ok(EndUser::named(&short(r, limits)?))
}

/// Reads a string of 1 to `max` bytes.
fn bounded(r: &mut JsonReader<'_>, max: usize) -> Read<String> {
    let text = r.string()?;
    if text.is_empty() {
        return Err(FieldFault::new(Code::EmptyString, "it must not be empty"));
    }
    if text.len() > max {
        return Err(FieldFault::new(Code::StringAboveMaxLength, format!("it may have at most {max} bytes")));
    }
    Ok(text.into_owned())
}
