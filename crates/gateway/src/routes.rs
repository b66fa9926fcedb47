//! Names that lead to several models: which of them takes a call. The choice follows from the route and from what a caller stays
//! with, and from nothing else. Must not know who serves a model, or what a call says.

use std::sync::Arc;

use headrace_domain::{Code, ModelName, RequestId, Stage, UnixNanos};
use headrace_identity::Principal;
use headrace_wire::relay::{opening, user_named};

use crate::canary::CanarySpec;

/// What a name leads to: one model, or several with weights.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Route {
    /// At least one.
    pub arms: Vec<Arm>,
    /// What stays with a model once it was sent there.
    pub sticky: Sticky,
    /// Another one makes every choice anew.
    pub seed: u64,
    /// Who answers where a model does not.
    pub fallbacks: Fallbacks,
}

/// Models that answer in the place of another one before anything of an answer has gone out, in their order, by what went wrong with
/// it. What is wrong with a call itself would be wrong everywhere, and stands nowhere here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fallbacks {
    /// The prompt does not fit its context window.
    pub context_too_long: Vec<ModelName>,
    /// It is full, or our share of it is used up.
    pub overloaded: Vec<ModelName>,
    /// It cannot be reached, does not serve us, took too long, or broke.
    pub failed: Vec<ModelName>,
    /// It does not answer for what was asked.
    pub content_refused: Vec<ModelName>,
}

impl Fallbacks {
    /// Those for calls that end with this code at this stage.
    pub(crate) fn after(&self, code: Code, stage: Stage) -> impl Iterator<Item = &ModelName> {
        const NOBODY: &[ModelName] = &[];
        let (first, then): (&[ModelName], &[ModelName]) = match code {
            Code::ContextLengthExceeded => (&self.context_too_long, NOBODY),
            // Nobody takes calls now, as those who would are full or have failed.
            Code::EngineUnavailable => (&self.overloaded, &self.failed),
            Code::UpstreamOverloaded if stage == Stage::Place => (&self.overloaded, &self.failed),
            Code::QueueFull | Code::UpstreamOverloaded => (&self.overloaded, NOBODY),
            Code::EngineFailed
            | Code::UpstreamUnreachable
            | Code::UpstreamMisconfigured
            | Code::UpstreamTimeout
            | Code::UpstreamFailed => (&self.failed, NOBODY),
            Code::ContentPolicy => (&self.content_refused, NOBODY),
            _ => (NOBODY, NOBODY),
        };
        first.iter().chain(then)
    }

    /// Whether a code at a stage says that the model failed, or that none of its workers takes calls, and not that the call is at fault.
    pub(crate) fn is_of_the_model(code: Code, stage: Stage) -> bool {
        match code {
            // The breakers of all its workers are open, or their queues are full.
            Code::UpstreamOverloaded => stage == Stage::Place,
            Code::EngineUnavailable
            | Code::EngineFailed
            | Code::UpstreamUnreachable
            | Code::UpstreamMisconfigured
            | Code::UpstreamTimeout
            | Code::UpstreamFailed => true,
            _ => false,
        }
    }

    /// Keeps those of which this is true.
    pub fn retain(&mut self, stays: impl Fn(&ModelName) -> bool) {
        let Self { context_too_long, overloaded, failed, content_refused } = self;
        for models in [context_too_long, overloaded, failed, content_refused] {
            models.retain(&stays);
        }
    }

    /// All of them, each as often as it stands there.
    pub fn all(&self) -> impl Iterator<Item = &ModelName> {
        let Self { context_too_long, overloaded, failed, content_refused } = self;
        context_too_long.iter().chain(overloaded).chain(failed).chain(content_refused)
    }
}

/// A model that a name leads to.
#[derive(Debug, Clone, PartialEq)]
pub struct Arm {
    /// As it is served.
    pub model: ModelName,
    /// Its share, relative to the sum of all. Zero: it gets no calls.
    pub weight: u32,
    /// It is on trial: where it is worse than the others, it gets no more calls.
    pub canary: Option<CanarySpec>,
}

/// What stays with a model once it was sent there, for as long as the weights stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sticky {
    /// Nothing: each call is a draw of its own.
    None,
    /// All calls of an API key.
    #[default]
    Key,
    /// All calls of a project that name the same user (`safety_identifier`, `user`, `metadata.user_id`); without one, of a key.
    User,
    /// All turns of a conversation, which is known by its system prompt and its first message of the user; what is none, by its key.
    Conversation,
}

impl Sticky {
    /// Every one, in the order of a list.
    pub const ALL: [Self; 4] = [Self::None, Self::Key, Self::User, Self::Conversation];

    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Key => "key",
            Self::User => "user",
            Self::Conversation => "conversation",
        }
    }
}

impl Route {
    /// A further name of one model.
    pub fn to(model: ModelName) -> Self {
        Self { arms: vec![Arm { model, weight: 1, canary: None }], ..Self::default() }
    }

    /// Whether it is a further name of one model and nothing more.
    pub fn is_plain(&self) -> bool {
        self.arms.len() == 1
            && self.arms.iter().all(|arm| arm.weight > 0 && arm.canary.is_none())
            && self.fallbacks.all().next().is_none()
    }

    /// Every model that may answer under the name.
    pub fn models(&self) -> impl Iterator<Item = &ModelName> {
        self.arms.iter().map(|arm| &arm.model).chain(self.fallbacks.all())
    }

    /// The model with the greatest weight, the first of several: what the name stands for where no call is at hand.
    pub fn main(&self) -> Option<&ModelName> {
        let greatest = self.arms.iter().rev().max_by_key(|arm| arm.weight)?;
        Some(&greatest.model)
    }

    /// The arms that get calls.
    pub(crate) fn open(&self) -> impl Iterator<Item = &Arm> {
        self.arms.iter().filter(|arm| arm.weight > 0)
    }

    /// Whether there is something to choose.
    pub(crate) fn has_choice(&self) -> bool {
        self.arms.len() > 1
    }

    /// The arm that a draw falls on, each as likely as its weight says. Each arm's place depends on the draw and on that arm alone
    /// (weighted rendezvous hashing: Schindelhauer and Schomaker, "Weighted distributed hash tables", 2005), so that another
    /// weight of one moves draws only to it, or only away from it. Arms that are not `among` the choice get nothing, and those that are
    /// keep what they have.
    pub(crate) fn choose(&self, draw: &Draw, among: impl Fn(&Arm) -> bool) -> Option<&Arm> {
        let near = |arm: &Arm| draw.at(&arm.model) / f64::from(arm.weight);
        let arms = self.open().filter(|arm| among(arm));
        arms.min_by(|a, b| near(a).total_cmp(&near(b)))
    }
}

/// Who asks, as far as a choice may follow from it.
pub(crate) struct Asker {
    /// The key of the hash.
    pub(crate) secret: [u8; 32],
    pub(crate) principal: Arc<Principal>,
    pub(crate) request: RequestId,
    pub(crate) now: UnixNanos,
    /// Of a copy of a call: whoever gets it, whatever its body names.
    pub(crate) to: Option<ModelName>,
}

/// What a choice follows from, hashed with a key: who does not know that cannot choose where a call goes.
pub(crate) struct Draw([u8; 32]);

impl Draw {
    /// Of a call with this body that asks for `name`.
    pub(crate) fn new(name: &ModelName, route: &Route, asker: &Asker, body: &[u8]) -> Self {
        let tenant = asker.principal.project.as_str().as_bytes();
        let of_user = || Some([b"user".as_slice(), tenant, user_named(body)?.as_bytes()].map(put).concat());
        let of_begun = || {
            let texts = opening(body);
            (!texts.is_empty()).then(|| [b"conversation".as_slice(), tenant, &texts].map(put).concat())
        };
        let stays = match route.sticky {
            Sticky::None => Some(put(&asker.request.bits().to_le_bytes())),
            Sticky::Key => None,
            Sticky::User => of_user(),
            Sticky::Conversation => of_begun(),
        };
        let stays = stays.unwrap_or_else(|| {
            [b"key".as_slice(), asker.principal.key.as_str().as_bytes()].map(put).concat()
        });
        let mut hasher = blake3::Hasher::new_keyed(&asker.secret);
        for part in
            [b"headrace route".as_slice(), name.as_str().as_bytes(), &route.seed.to_le_bytes(), &stays]
        {
            hasher.update(&put(part));
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// How far it falls from a model of weight 1: exponentially distributed, with mean 1.
    fn at(&self, model: &ModelName) -> f64 {
        let hash = blake3::keyed_hash(&self.0, model.as_str().as_bytes());
        let bits = hash.as_bytes().iter().take(8).fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
        // In (0, 1), with 53 bits.
        -(((bits >> 11) as f64 + 0.5) / (1_u64 << 53) as f64).ln()
    }
}

/// A part of several, with its length, so that no two rows of parts are alike.
fn put(part: &[u8]) -> Vec<u8> {
    [&(part.len() as u64).to_le_bytes(), part].concat()
}

#[cfg(test)]
mod tests;
