//! Puts the generated ids of earlier answers into a prompt. A reply whose text would encode to other ids then still
//! continues what was computed. Must not know what is in any cache.

use std::sync::Arc;

use headrace_call_state::{AnswerRecorder, GeneratedIdCache, ReusedPrompt};
use headrace_catalog::{PastAnswers, ServedModel, TokenBackend};
use headrace_domain::{CacheSalt, Call, KeptAnswers, UnixNanos};

/// A prompt, and its use of the generated-id cache.
pub struct ReusedHistory {
    /// The prompt.
    pub ids: Vec<u32>,
    /// The earlier answers that are reused with their generated ids, if those differ from what their text encodes to.
    pub kept_answers: Option<KeptAnswers>,
    /// Records the ids of its own answers, if they can be reused.
    pub recorder: Option<AnswerRecorder>,
}

/// The prompt with earlier answers as they were generated. `text` is its text.
///
/// A call with a seed wants the answer that everyone gets for the same request, so its prompt is what its text encodes
/// to.
pub fn reuse_past_answers(
    model: &ServedModel,
    backend: &TokenBackend,
    call: &Call,
    (cache, salt): (&Arc<GeneratedIdCache>, &CacheSalt),
    (ids, text): (Vec<u32>, Option<&str>),
    now: UnixNanos,
) -> ReusedHistory {
    if model.policy.past_answers == PastAnswers::AsText || call.sampling.seed.is_some() {
        return ReusedHistory { ids, kept_answers: None, recorder: None };
    }
    let ReusedPrompt { ids: other, answers, tokens, end } =
        cache.continued(salt, &backend.tokenizer, (&ids, text), now);
    ReusedHistory {
        ids: other.unwrap_or(ids),
        kept_answers: (answers > 0).then_some(KeptAnswers { answers, tokens }),
        recorder: end.map(|end| AnswerRecorder::new(Arc::clone(cache), *salt, end)),
    }
}
