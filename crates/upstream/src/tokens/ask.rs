//! What is asked of a server that takes ids, for one answer. Knows no bodies.

use headrace_domain::Form;
use headrace_engine_api::Job;
use serde_json::{Map, Value, json};

use crate::tokens::choice::Rules;

/// One answer, or what is left of it.
pub(super) struct Ask<'a> {
    /// The model's name there.
    pub(super) model: &'a str,
    pub(super) job: &'a Job,
    pub(super) rules: &'a Rules,
    pub(super) choice: u32,
    /// The prompt, with what there is of the answer.
    pub(super) prompt: &'a [u32],
    /// How many ids of the prompt are the answer's.
    pub(super) generated: u32,
    /// Nobody else's prompts are in the server's cache.
    pub(super) alone: bool,
}

impl Ask<'_> {
    /// What is left of a number of tokens of the whole answer.
    pub(super) fn left(&self, count: u32) -> u32 {
        count.saturating_sub(self.generated)
    }

    /// What the answer is held to.
    pub(super) fn form(&self) -> Option<&Form> {
        self.job.grammar.as_ref().map(|grammar| &**grammar.form())
    }

    /// Tenants share no prefix: without its label nobody finds another's.
    pub(super) fn label(&self) -> String {
        self.job.salt.label().to_string()
    }

    /// Biases by ids, which are names in JSON.
    pub(super) fn bias_by_name(&self) -> Value {
        let biases = self.rules.sampling.logit_bias.iter();
        biases.map(|(id, bias)| (id.to_string(), json!(bias))).collect::<Map<_, _>>().into()
    }
}
