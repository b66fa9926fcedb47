//! The request for one answer at a server that takes ids. Must not know request bodies.

use headrace_domain::{CacheSalt, ResponseFormat};
use headrace_engine_api::Job;
use serde_json::{Map, Value, json};

use crate::tokens::choice::ChoiceRules;

/// One answer, or the rest of one.
pub(super) struct TokenAsk<'a> {
    /// The model's name at the server.
    pub(super) model: &'a str,
    pub(super) job: &'a Job,
    pub(super) rules: &'a ChoiceRules,
    pub(super) choice: u32,
    /// The prompt, followed by the part of the answer that exists.
    pub(super) prompt: &'a [u32],
    /// Number of ids of the prompt that belong to the answer.
    pub(super) generated: u32,
    /// The server's cache holds only prompts of this tenant.
    pub(super) alone: bool,
}

/// Returns what a body takes from the job itself: the form of the answer and the salt of the cache.
fn form_and_salt(job: &Job) -> (Option<&ResponseFormat>, &CacheSalt) {
    let Job {
        grammar,
        salt,
        // The numbers and ids of one answer: fields of `TokenAsk`.
        first_choice: _,
        prompt: _,
        generated: _,
        // In `ChoiceRules`.
        sampling: _,
        // Not in a body: a header, and the bounds and the place of the call.
        trace: _,
        request: _,
        tenant: _,
        weight: _,
        start_deadline_ns: _,
        unread_bytes: _,
        // Not set: `Capabilities::thought_caps` is off.
        thought: _,
        // Hints for an engine's own cache and queue, which other servers do not take.
        keys: _,
        pins: _,
        held: _,
        priority: _,
    } = job;
    (grammar.as_ref().map(|grammar| &**grammar.form()), salt)
}

impl TokenAsk<'_> {
    /// Returns what is left of a token count that applies to the whole answer.
    pub(super) fn left(&self, count: u32) -> u32 {
        count.saturating_sub(self.generated)
    }

    /// Returns the form that the answer must match.
    pub(super) fn form(&self) -> Option<&ResponseFormat> {
        form_and_salt(self.job).0
    }

    /// Returns the tenant's cache label. Without the label, no other tenant can hit these prefixes.
    pub(super) fn label(&self) -> String {
        form_and_salt(self.job).1.label().to_string()
    }

    /// Returns the biases by id. In JSON the ids are property names.
    pub(super) fn bias_by_name(&self) -> Value {
        let biases = self.rules.sampling.logit_bias.iter();
        biases.map(|(id, bias)| (id.to_string(), json!(bias))).collect::<Map<_, _>>().into()
    }
}
