//! A job on the wire: its fields, and whether a worker may pass it to an engine. Both directions. The engine checks the
//! sampling values again.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use headrace_domain::{CachePin, CacheSalt, RequestId, ResponseFormat, Sampling};
use headrace_engine_api::{FormThought, Job, Priority, ReasoningBudget, Tenant};
use serde::{Deserialize, Serialize};

use crate::limits::{
    LEAST_UNREAD_BYTES, MAX_BEHIND_BYTES, MAX_BETWEEN, MAX_CHOICES, MAX_IDS, MAX_NAME_BYTES, MAX_PINS,
    MAX_STOP_BYTES, MAX_STOPS, MAX_WEIGHT, MOST_UNREAD_BYTES, PROTOCOL,
};

/// A job for one of a worker's models.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobRequest<'a> {
    model: Cow<'a, str>,
    bits: Cow<'a, str>,
    request: RequestId,
    first_choice: u32,
    prompt: Cow<'a, [u32]>,
    generated: u32,
    sampling: Cow<'a, Sampling>,
    thought: Option<Cow<'a, ReasoningBudget>>,
    salt: [u8; 32],
    tenant: u64,
    weight: u32,
    is_idle: bool,
    start_within_ns: Option<u64>,
    unread_bytes: u64,
    /// Appended as JSON after the fields above, and only if it is not empty: older workers refuse a job with additional
    /// bytes.
    #[serde(skip)]
    behind: JobExtras,
}

/// The appendix of a job. Workers that do not announce fuller jobs know only the first two fields.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JobExtras {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    form: Option<ResponseFormat>,
    /// Written even if it is absent, for compatibility.
    #[serde(default)]
    thought: Option<FormThought>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pins: Vec<CachePin>,
    /// The worker must send a complete report at the end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    in_full: bool,
}

/// The form of a job's answers, before it is compiled.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldTo {
    /// The form.
    pub form: ResponseFormat,
    /// The reasoning that may precede the form.
    pub thought: Option<FormThought>,
}

/// The model that a job is for, as the gateway knows it.
#[derive(Debug, Clone, Copy)]
pub struct ExpectedModel<'a> {
    /// The model's name at the worker.
    pub name: &'a str,
    /// Identifies everything that decides the bits of an answer.
    pub bits: &'a str,
}

/// Why bytes are not a valid job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AskFault {
    /// The bytes have another protocol version.
    Version(u8),
    /// The bytes cannot be parsed.
    Malformed,
    /// A field has an invalid value.
    Value(String),
}

impl fmt::Display for AskFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(
                f,
                "a job of version {version} of the worker protocol; {PROTOCOL} is spoken here: update the older of both"
            ),
            Self::Malformed => f.write_str("bytes that are no job"),
            Self::Value(what) => f.write_str(what),
        }
    }
}

impl<'a> JobRequest<'a> {
    /// Creates a job in the form that every worker accepts, without prefixes to keep. `now_ns` is the time of the clock
    /// that defines the job's deadline.
    pub fn new(job: &'a Job, model: ExpectedModel<'a>, now_ns: u64) -> Self {
        let Job {
            request,
            first_choice,
            prompt,
            generated,
            sampling,
            grammar,
            thought,
            salt,
            tenant: Tenant(tenant),
            weight,
            priority,
            start_deadline_ns,
            unread_bytes,
            // The worker computes them itself.
            keys: _,
            // In `fuller`, for workers that know them.
            pins: _,
            // A worker has no message that releases it.
            held: _,
            // Sent as a header.
            trace: _,
        } = job;
        Self {
            model: model.name.into(),
            bits: model.bits.into(),
            request: *request,
            first_choice: *first_choice,
            prompt: Cow::Borrowed(prompt),
            generated: *generated,
            sampling: Cow::Borrowed(sampling),
            thought: thought.as_deref().map(Cow::Borrowed),
            salt: salt.to_bytes(),
            tenant: *tenant,
            weight: *weight,
            is_idle: *priority == Priority::Idle,
            start_within_ns: start_deadline_ns.map(|deadline| deadline.saturating_sub(now_ns)),
            unread_bytes: *unread_bytes as u64,
            behind: JobExtras {
                form: grammar.as_ref().map(|grammar| (**grammar.form()).clone()),
                thought: grammar.as_ref().and_then(|grammar| grammar.thought().cloned()),
                ..JobExtras::default()
            },
        }
    }

    /// Adds the prefixes to keep, and asks for a complete report. Only for workers with
    /// [`crate::AboutModel::fuller_jobs`].
    #[must_use]
    pub fn fuller(mut self, job: &Job) -> Self {
        self.behind.pins = job.pins.iter().take(MAX_PINS).copied().collect();
        self.behind.in_full = true;
        self
    }

    /// Returns the bytes for the wire: the version, the fields, and the appendix.
    pub fn to_bytes(&self) -> Vec<u8> {
        let room = 512 + self.prompt.len().saturating_mul(3);
        let mut bytes = Vec::with_capacity(room);
        bytes.push(PROTOCOL);
        // Writing to memory cannot fail.
        let mut bytes = postcard::to_extend(self, bytes).unwrap_or_default();
        if self.behind != JobExtras::default() {
            // Plain data whose maps have text keys, so serialization cannot fail.
            bytes.extend(serde_json::to_vec(&self.behind).unwrap_or_default());
        }
        bytes
    }

    /// Parses a job.
    ///
    /// # Errors
    /// Why it is not a job that an engine could be given.
    pub fn read(bytes: &[u8]) -> Result<JobRequest<'static>, AskFault> {
        let (version, bytes) = bytes.split_first().ok_or(AskFault::Malformed)?;
        if *version != PROTOCOL {
            return Err(AskFault::Version(*version));
        }
        let read = postcard::take_from_bytes(bytes);
        let (mut ask, rest): (JobRequest<'static>, &[u8]) = read.map_err(|_| AskFault::Malformed)?;
        ask.check()?;
        if !rest.is_empty() {
            ask.behind = JobExtras::read(rest, ask.prompt.len())?;
        }
        Ok(ask)
    }

    fn check(&self) -> Result<(), AskFault> {
        let bad = |what: String| Err(AskFault::Value(what));
        let Sampling {
            n,
            stop,
            stop_token_ids,
            logit_bias,
            // Single values, which the engine checks.
            temperature: _,
            top_p: _,
            top_k: _,
            min_p: _,
            frequency_penalty: _,
            presence_penalty: _,
            repetition_penalty: _,
            seed: _,
            max_tokens: _,
            min_tokens: _,
            ignore_eos: _,
            logprobs: _,
            prompt_logprobs: _,
        } = &*self.sampling;
        if self.model.len().max(self.bits.len()) > MAX_NAME_BYTES {
            return bad(format!("a name of more than {MAX_NAME_BYTES} bytes"));
        }
        if self.prompt.is_empty() {
            return bad("a prompt without a token".to_owned());
        }
        if *n == 0 || *n > MAX_CHOICES || self.first_choice.checked_add(*n).is_none() {
            return bad(format!(
                "n = {n} from choice {} on; at most {MAX_CHOICES} answers",
                self.first_choice
            ));
        }
        if self.generated as usize >= self.prompt.len() {
            return bad(format!("{} of {} ids generated before", self.generated, self.prompt.len()));
        }
        let stop_bytes: usize = stop.iter().map(String::len).sum();
        if stop.len() > MAX_STOPS || stop_bytes > MAX_STOP_BYTES {
            let count = stop.len();
            return bad(format!(
                "{count} stop strings of {stop_bytes} bytes; at most {MAX_STOPS} of {MAX_STOP_BYTES}"
            ));
        }
        if stop_token_ids.len().max(logit_bias.len()) > MAX_IDS {
            return bad(format!("more than {MAX_IDS} ids with a bias, or that stop"));
        }
        if !logit_bias.is_sorted_by(|(id, _), (next, _)| id < next) {
            return bad("`logit_bias` must name each id once, in ascending order".to_owned());
        }
        Ok(())
    }

    /// Returns the model that the job is for.
    pub fn model(&self) -> ExpectedModel<'_> {
        ExpectedModel { name: &self.model, bits: &self.bits }
    }

    /// Takes the form of the answers out of the job.
    pub fn take_held_to(&mut self) -> Option<HeldTo> {
        let form = self.behind.form.take()?;
        Some(HeldTo { form, thought: self.behind.thought.take() })
    }

    /// Returns whether the worker must send a complete report at the end.
    pub fn in_full(&self) -> bool {
        self.behind.in_full
    }

    /// Converts the job for an engine, without its form. `now_ns` is the time of the engine's clock.
    pub fn into_job(self, now_ns: u64) -> Job {
        let Self {
            request,
            first_choice,
            prompt,
            generated,
            sampling,
            thought,
            salt,
            tenant,
            weight,
            is_idle,
            start_within_ns,
            unread_bytes,
            // Compared with the worker's own model before: `model`.
            model: _,
            bits: _,
            // The form is compiled before (`take_held_to`), and the report is sent after the job (`in_full`).
            behind: JobExtras { pins, form: _, thought: _, in_full: _ },
        } = self;
        let unread = usize::try_from(unread_bytes).unwrap_or(usize::MAX);
        Job {
            request,
            first_choice,
            prompt: Arc::from(prompt.into_owned()),
            generated,
            sampling: sampling.into_owned(),
            salt: CacheSalt::from_bytes(salt),
            keys: None,
            pins: pins.into(),
            held: None,
            grammar: None,
            thought: thought.map(|thought| Arc::new(thought.into_owned())),
            tenant: Tenant(tenant),
            weight: weight.clamp(1, MAX_WEIGHT),
            priority: if is_idle { Priority::Idle } else { Priority::Normal },
            start_deadline_ns: start_within_ns.map(|within| now_ns.saturating_add(within)),
            trace: None,
            unread_bytes: unread.clamp(LEAST_UNREAD_BYTES, MOST_UNREAD_BYTES),
        }
    }
}

impl JobExtras {
    /// Parses the appendix of a job with `prompt` prompt tokens.
    fn read(json: &[u8], prompt: usize) -> Result<Self, AskFault> {
        let bad = |what: String| Err(AskFault::Value(what));
        if json.len() > MAX_BEHIND_BYTES {
            let bytes = json.len();
            return bad(format!("{bytes} bytes behind a job; at most {MAX_BEHIND_BYTES}"));
        }
        let behind: Self = serde_json::from_slice(json).map_err(|_| AskFault::Malformed)?;
        let Self { form, thought, pins, in_full: _ } = &behind;
        let between = thought.as_ref().map_or(0, |thought| thought.between.len());
        if between > MAX_BETWEEN {
            return bad(format!("{between} ids behind a thought; at most {MAX_BETWEEN}"));
        }
        if form.is_none() && thought.is_some() {
            return bad("a thought before no form".to_owned());
        }
        if pins.len() > MAX_PINS {
            return bad(format!("{} prefixes to be kept; at most {MAX_PINS}", pins.len()));
        }
        if !pins.is_sorted_by_key(|pin| pin.tokens) || pins.iter().any(|pin| pin.tokens as usize > prompt) {
            return bad(
                "prefixes to be kept that the prompt has not, or that do not stand in their order".to_owned()
            );
        }
        Ok(behind)
    }
}
