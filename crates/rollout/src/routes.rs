//! Names that lead to several models, and which of them takes a call. The choice depends only on the route and on the
//! attribute by which calls stay with a model: key, user or conversation. Must not know who serves a model or what a
//! call says.

use std::sync::Arc;

use headrace_domain::{Code, ModelName, RequestId, Stage, UnixNanos};
use headrace_identity::Principal;
use headrace_relay::{opening, user_named};

use crate::canary::CanarySpec;

/// The models behind a name: one, or several with weights.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelRoute {
    /// At least one arm.
    pub arms: Vec<RouteArm>,
    /// Which calls stay with the same model.
    pub sticky: StickyBy,
    /// Changing the seed changes all choices.
    pub seed: u64,
    /// The models that answer if the chosen model fails.
    pub fallbacks: FallbackModels,
}

/// Models that replace a failed model before anything of an answer has gone out: one ordered list per kind of
/// failure. Faults of the call itself are not listed, because every model would reject it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FallbackModels {
    /// For prompts that exceed the model's context window.
    pub context_too_long: Vec<ModelName>,
    /// For models that are overloaded, or whose quota for this server is used up.
    pub overloaded: Vec<ModelName>,
    /// For models that are unreachable, refuse to serve us, took too long, or broke off.
    pub failed: Vec<ModelName>,
    /// For requests whose content the model refuses.
    pub content_refused: Vec<ModelName>,
}

impl FallbackModels {
    /// The fallbacks for calls that end with this code at this stage.
    pub fn after(&self, code: Code, stage: Stage) -> impl Iterator<Item = &ModelName> {
        const NOBODY: &[ModelName] = &[];
        let (first, then): (&[ModelName], &[ModelName]) = match code {
            Code::ContextLengthExceeded => (&self.context_too_long, NOBODY),
            // No worker takes calls now: those that would are full or have failed.
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

    /// Whether the code and the stage mean that the model failed or that none of its workers takes calls. `false` if
    /// the call is at fault.
    pub fn is_of_the_model(code: Code, stage: Stage) -> bool {
        match code {
            // All workers of the model have open breakers or full queues.
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

    /// Keeps the models for which `stays` is true.
    pub fn retain(&mut self, stays: impl Fn(&ModelName) -> bool) {
        let Self { context_too_long, overloaded, failed, content_refused } = self;
        for models in [context_too_long, overloaded, failed, content_refused] {
            models.retain(&stays);
        }
    }

    /// All models in the lists, with repetitions.
    pub fn all(&self) -> impl Iterator<Item = &ModelName> {
        let Self { context_too_long, overloaded, failed, content_refused } = self;
        context_too_long.iter().chain(overloaded).chain(failed).chain(content_refused)
    }
}

/// A model behind a name.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteArm {
    /// The name under which it is served.
    pub model: ModelName,
    /// Its share of the calls, relative to the sum of all weights. An arm with weight 0 gets no calls.
    pub weight: u32,
    /// Set if the model is a canary, which gets no more calls once it is worse than the others.
    pub canary: Option<CanarySpec>,
}

/// Which calls stay with the same model, for as long as the weights stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StickyBy {
    /// No calls: each one is drawn separately.
    None,
    /// All calls of an API key.
    #[default]
    Key,
    /// All calls of a project that name the same user (`safety_identifier`, `user` or `metadata.user_id`). Without a
    /// user, all calls of a key.
    User,
    /// All turns of a conversation, which is identified by its system prompt and its first user message. Without a
    /// conversation, all calls of a key.
    Conversation,
}

impl StickyBy {
    /// All variants, in the order in which they are listed.
    pub const ALL: [Self; 4] = [Self::None, Self::Key, Self::User, Self::Conversation];

    /// The name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Key => "key",
            Self::User => "user",
            Self::Conversation => "conversation",
        }
    }
}

impl ModelRoute {
    /// A route to a single model.
    pub fn to(model: ModelName) -> Self {
        Self { arms: vec![RouteArm { model, weight: 1, canary: None }], ..Self::default() }
    }

    /// Whether the route only renames one model, without a canary or fallbacks.
    pub fn is_plain(&self) -> bool {
        self.arms.len() == 1
            && self.arms.iter().all(|arm| arm.weight > 0 && arm.canary.is_none())
            && self.fallbacks.all().next().is_none()
    }

    /// All models that may answer under the name, fallbacks included.
    pub fn models(&self) -> impl Iterator<Item = &ModelName> {
        self.arms.iter().map(|arm| &arm.model).chain(self.fallbacks.all())
    }

    /// The model with the greatest weight, the first one if several are equal. Represents the name if there is no
    /// call to choose for.
    pub fn main(&self) -> Option<&ModelName> {
        let greatest = self.arms.iter().rev().max_by_key(|arm| arm.weight)?;
        Some(&greatest.model)
    }

    /// The arms that get calls.
    pub fn open(&self) -> impl Iterator<Item = &RouteArm> {
        self.arms.iter().filter(|arm| arm.weight > 0)
    }

    /// Whether there are several arms to choose from.
    pub fn has_choice(&self) -> bool {
        self.arms.len() > 1
    }

    /// Chooses an arm for a draw. Each arm's probability is proportional to its weight. Each arm's score depends only
    /// on the draw and on that arm (weighted rendezvous hashing: Schindelhauer and Schomaker, "Weighted distributed
    /// hash tables", 2005). A changed weight therefore moves draws only to that arm or only away from it. Arms for
    /// which `among` is false get no draws. The other arms keep theirs.
    pub fn choose(&self, draw: &RouteDraw, among: impl Fn(&RouteArm) -> bool) -> Option<&RouteArm> {
        let near = |arm: &RouteArm| draw.at(&arm.model) / f64::from(arm.weight);
        let arms = self.open().filter(|arm| among(arm));
        arms.min_by(|a, b| near(a).total_cmp(&near(b)))
    }
}

/// The attributes of a call on which the choice may depend.
pub struct RouteAsker {
    /// The key of the hash.
    pub secret: [u8; 32],
    /// The caller.
    pub principal: Arc<Principal>,
    /// The request's id.
    pub request: RequestId,
    /// When the call arrived.
    pub now: UnixNanos,
    /// The model that gets a shadow copy, which may differ from the one in its body. `None` for other calls.
    pub to: Option<ModelName>,
}

/// A keyed hash of what a choice depends on. Without the key, callers cannot steer their calls.
pub struct RouteDraw([u8; 32]);

impl RouteDraw {
    /// The draw for a call with this body that asks for `name`.
    pub fn new(name: &ModelName, route: &ModelRoute, asker: &RouteAsker, body: &[u8]) -> Self {
        let tenant = asker.principal.project.as_str().as_bytes();
        let of_user = || Some([b"user".as_slice(), tenant, user_named(body)?.as_bytes()].map(put).concat());
        let of_begun = || {
            let texts = opening(body);
            (!texts.is_empty()).then(|| [b"conversation".as_slice(), tenant, &texts].map(put).concat())
        };
        let stays = match route.sticky {
            StickyBy::None => Some(put(&asker.request.bits().to_le_bytes())),
            StickyBy::Key => None,
            StickyBy::User => of_user(),
            StickyBy::Conversation => of_begun(),
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

    /// The draw's distance from a model of weight 1: exponentially distributed, with mean 1.
    fn at(&self, model: &ModelName) -> f64 {
        let hash = blake3::keyed_hash(&self.0, model.as_str().as_bytes());
        let bits = hash.as_bytes().iter().take(8).fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
        // In (0, 1), with 53 bits.
        -(((bits >> 11) as f64 + 0.5) / (1_u64 << 53) as f64).ln()
    }
}

/// Prefixes a part with its length, so that different sequences of parts never give the same bytes.
fn put(part: &[u8]) -> Vec<u8> {
    [&(part.len() as u64).to_le_bytes(), part].concat()
}

#[cfg(test)]
mod tests;
