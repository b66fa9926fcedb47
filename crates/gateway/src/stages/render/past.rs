//! Former answers in a prompt, as they were generated: a reply whose text would become other ids still continues what was computed. Must
//! not know what is in any cache.

use std::sync::Arc;

use headrace_domain::{CacheSalt, Call, KeptAnswers, UnixNanos};

use crate::catalog::ServedModel;
use crate::kept_ids::{Continued, Keeper, KeptIds};
use crate::lane::TokenLane;
use crate::policy::PastAnswers;

/// A prompt, and what is kept of it and for it.
pub(crate) struct Past {
    pub(crate) ids: Vec<u32>,
    /// What of it goes on as it was generated, where that is not what its text becomes.
    pub(crate) told: Option<KeptAnswers>,
    /// Where its own answers are kept.
    pub(crate) keeper: Option<Keeper>,
}

/// The prompt, `said` its text, with former answers as they were generated. Whoever names a seed wants what anybody would be answered who sends the same:
/// its prompt is what its text becomes.
pub(crate) fn with_past(
    model: &ServedModel,
    lane: &TokenLane,
    call: &Call,
    (kept, salt): (&Arc<KeptIds>, &CacheSalt),
    (ids, said): (Vec<u32>, Option<&str>),
    now: UnixNanos,
) -> Past {
    if model.policy.past_answers == PastAnswers::AsText || call.sampling.seed.is_some() {
        return Past { ids, told: None, keeper: None };
    }
    let Continued { ids: other, answers, tokens, end } =
        kept.continued(salt, &lane.tokenizer, (&ids, said), now);
    Past {
        ids: other.unwrap_or(ids),
        told: (answers > 0).then_some(KeptAnswers { answers, tokens }),
        keeper: end.map(|end| Keeper::new(Arc::clone(kept), *salt, end)),
    }
}
