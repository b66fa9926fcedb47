//! Puts the generated ids of earlier answers into a prompt. A reply whose text would encode to other ids then still
//! continues what was computed. Must not know what is in any cache.

use std::sync::Arc;

use headrace_call_state::{AnswerRecorder, GeneratedIdCache, ReusedPrompt};
use headrace_catalog::{PastAnswers, ServedModel, TokenBackend};
use headrace_domain::{CacheSalt, Call, KeptAnswers, UnixNanos};

/// A prompt, and its use of the generated-id cache.
pub(crate) struct ReusedHistory {
    pub(crate) ids: Vec<u32>,
    /// The earlier answers that are reused with their generated ids, if those differ from what their text encodes to.
    pub(crate) told: Option<KeptAnswers>,
    /// Where to keep the ids of its own answers.
    pub(crate) keeper: Option<AnswerRecorder>,
}

/// The prompt with earlier answers as they were generated. `said` is its text.
///
/// A call with a seed wants the answer that everyone gets for the same request, so its prompt is what its text encodes
/// to.
pub(crate) fn with_past(
    model: &ServedModel,
    lane: &TokenBackend,
    call: &Call,
    (kept, salt): (&Arc<GeneratedIdCache>, &CacheSalt),
    (ids, said): (Vec<u32>, Option<&str>),
    now: UnixNanos,
) -> ReusedHistory {
    if model.policy.past_answers == PastAnswers::AsText || call.sampling.seed.is_some() {
        return ReusedHistory { ids, told: None, keeper: None };
    }
    let ReusedPrompt { ids: other, answers, tokens, end } =
        kept.continued(salt, &lane.tokenizer, (&ids, said), now);
    ReusedHistory {
        ids: other.unwrap_or(ids),
        told: (answers > 0).then_some(KeptAnswers { answers, tokens }),
        keeper: end.map(|end| AnswerRecorder::new(Arc::clone(kept), *salt, end)),
    }
}
