//! The states of a request. Each transition takes the state by value and returns the next one, or why it ends here:
//! dispatch without a hold does not compile.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use headrace_call_api::{Credentials, Reserved};
use headrace_domain::{
    Billed, CachePin, CacheSalt, Call, Endpoint, ModelName, PrefixKeys, Prompt, Residency, Sampling,
    UnixNanos,
};
use headrace_engine_api::{SharedGrammar, ThoughtCap};
use headrace_identity::Principal;
use headrace_limits::{Lease, LimitSpec, Scope};
use headrace_wire::{BadRequest, CacheDiagnosis};

use crate::catalog::{Catalog, ServedModel};
use crate::dossier::Dossier;
use crate::kept_ids::Keeper;
use crate::notices::alias_header;
use crate::pump::settle::Settlement;
use crate::turns::Turn;

/// A request whose head is here.
pub(crate) struct Arrived {
    pub(crate) credentials: Credentials,
    pub(crate) endpoint: Endpoint,
}

/// Its caller is known.
pub(crate) struct Authenticated {
    pub(crate) principal: Arc<Principal>,
    /// Revocations that the directory had when the key was looked up.
    pub(crate) revocations: u64,
    pub(crate) endpoint: Endpoint,
}

/// It was let in: it is counted, and has its place in flight.
pub(crate) struct Admitted {
    pub(crate) principal: Caller,
    pub(crate) endpoint: Endpoint,
}

/// A caller who was let in, with its place among its limits. Dropping it, at whatever stage, gives the place back.
pub(crate) struct Caller {
    pub(crate) principal: Arc<Principal>,
    pub(crate) lease: Lease,
    /// As [`Authenticated::revocations`].
    pub(crate) revocations: u64,
}

impl Deref for Caller {
    type Target = Principal;

    fn deref(&self) -> &Principal {
        &self.principal
    }
}

/// Its body is here.
pub(crate) struct Received {
    pub(crate) principal: Caller,
    pub(crate) endpoint: Endpoint,
    pub(crate) body: Bytes,
}

/// What a call has taken to be read and rendered.
pub(crate) struct Taken {
    /// Bytes of its body: no less than all the text in it that a template may show.
    pub(crate) body_bytes: usize,
    /// What the JSON elements of that text take as trees.
    pub(crate) tree_bytes: u64,
    pub(crate) memory: Arc<Reserved>,
    /// Its turn, where it is long.
    pub(crate) turn: Option<Turn>,
    /// Its body, if the call was read to be rendered and may fall back on a model that is asked in messages.
    pub(crate) body: Option<Bytes>,
}

/// Its meaning is known.
pub(crate) struct Parsed {
    pub(crate) principal: Caller,
    pub(crate) call: Box<Call>,
    pub(crate) taken: Taken,
    /// What it is served by, to its end: whatever takes its place meanwhile.
    pub(crate) catalog: Arc<Catalog>,
    /// `None`: what it asks for could be no model's name.
    pub(crate) asked: Option<ModelName>,
    /// Who takes it, if that name leads to anybody. A choice is made once.
    pub(crate) model: Option<Arc<ServedModel>>,
}

/// Its caller may use the model that it names.
pub(crate) struct Authorized {
    pub(crate) principal: Caller,
    pub(crate) call: Box<Call>,
    pub(crate) taken: Taken,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) asked: ModelName,
    pub(crate) model: Option<Arc<ServedModel>>,
}

/// The model that serves it is known.
pub(crate) struct Routed {
    pub(crate) principal: Caller,
    pub(crate) call: Box<Call>,
    pub(crate) taken: Taken,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) model: Arc<ServedModel>,
}

/// Its input may pass.
pub(crate) struct Moderated(pub(crate) Routed);

/// What is sent to those who answer is ready: token ids, or a body in their dialect.
pub(crate) struct Rendered {
    pub(crate) principal: Caller,
    /// Apart, so that the stages that follow hand it on without a copy.
    pub(crate) work: Box<Work>,
}

/// What is to be computed.
pub(crate) struct Work {
    pub(crate) call: Box<Call>,
    /// Bytes of the body that the call came in: what decides whether work on its text stays on the event loop.
    pub(crate) body_bytes: usize,
    /// What the JSON elements of that text take as trees.
    pub(crate) tree_bytes: u64,
    /// The body of a call that was read to be rendered and may fall back on a model that is asked in messages.
    pub(crate) body: Option<Bytes>,
    /// The memory that the call may take, until the last byte of its answer has gone.
    pub(crate) memory: Arc<Reserved>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) model: Arc<ServedModel>,
    /// One per prompt, in the caller's order. None where the call is sent on in messages.
    pub(crate) prompts: Vec<Arc<[u32]>>,
    /// What is sent on, where the model is spoken to in messages.
    pub(crate) messages: Option<Messages>,
    /// What the template made of a conversation.
    pub(crate) text: Option<String>,
    /// What its answers are held to.
    pub(crate) grammar: Option<SharedGrammar>,
    /// What ends their thoughts, where they may have only so many tokens.
    pub(crate) thought: Option<Arc<ThoughtCap>>,
    /// What of the prompt is to be kept in a cache.
    pub(crate) pins: Arc<[CachePin]>,
    /// Where the ids of its answers are kept.
    pub(crate) keeper: Option<Keeper>,
    /// What its caller is told of a cache miss, where it asks for that.
    pub(crate) diagnosis: Option<CacheDiagnosis>,
    pub(crate) sampling: Sampling,
    pub(crate) salt: CacheSalt,
    /// The keys of the prompts' blocks, one list per prompt, once they are known.
    pub(crate) keys: Vec<PrefixKeys>,
    pub(crate) tenant: headrace_engine_api::Tenant,
    /// Where it may be worked on.
    pub(crate) residency: Residency,
    /// What is kept here of it may hold words of others.
    pub(crate) keeps_words: bool,
    /// The tenant's share of an engine relative to others.
    pub(crate) weight: u32,
}

/// A call as others' servers are sent it.
pub(crate) struct Messages {
    /// Its prompt in tokens, estimated upward: for limits and the hold, never for a bill.
    pub(crate) most_prompt_tokens: u64,
    /// The same, estimated as well as it can be: where nobody reports what a call took.
    pub(crate) likely_prompt_tokens: u64,
    /// Where it leads, from its beginning on: by that it goes where its beginning went before. Empty where nobody chooses.
    pub(crate) trail: Vec<u64>,
    /// Should its answer break off, somebody else goes on from its text: it is read here, and written anew.
    pub(crate) may_resume: bool,
    /// The chat that is asked for where the call's own endpoint is none that upstreams have; its answer is read here.
    pub(crate) chat: Option<Box<Call>>,
    /// The call in the other dialect than its caller's, where some target speaks that: or why it cannot be said in it. Apart, so that
    /// no other call has room for it.
    pub(crate) translated: Option<Box<Result<Call, BadRequest>>>,
    /// The upstreams that may be sent what it asks for beside tokens. `None` if it asks for nothing of that kind.
    pub(crate) cleared: Option<Box<[Arc<str>]>>,
    /// The most web searches that it is held for.
    pub(crate) most_searches: u64,
    /// Whether callers see what was cached at servers that separate no tenants.
    pub(crate) shows_shared_cache: bool,
}

/// The keys of its prompts are known. From here on its work changes no more, and may be shared.
pub(crate) struct Keyed {
    pub(crate) principal: Caller,
    pub(crate) work: Arc<Work>,
}

/// Its limits and its money are taken.
pub(crate) struct Funded {
    pub(crate) work: Arc<Work>,
    pub(crate) settlement: Settlement,
    /// `x-ratelimit-*`
    pub(crate) headers: Vec<(&'static str, String)>,
}

impl Work {
    /// What an answer's headers say of the name that was asked for.
    pub(crate) fn told(&self, dossier: &Dossier) -> Vec<(&'static str, String)> {
        let (catalog, served) = (&self.catalog, &self.model.name);
        let Some(asked) = dossier.record.model_asked.as_deref() else { return Vec::new() };
        let name = if catalog.has_notices() { ModelName::new(asked).ok() } else { None };
        let notice = name.as_ref().and_then(|name| catalog.notice(name, served));
        let alias = catalog.tells_aliases().then(|| alias_header(asked, served.as_str())).flatten();
        let notices = notice.into_iter().flat_map(|(_, notice)| notice.headers());
        alias.into_iter().chain(notices).collect()
    }

    /// All prompt tokens; of a call in messages, the most that they may be.
    pub(crate) fn prompt_tokens(&self) -> u64 {
        let counted: u64 = self.prompts.iter().map(|ids| ids.len() as u64).sum();
        self.messages.as_ref().map_or(counted, |messages| messages.most_prompt_tokens)
    }

    /// In how many parts it is put to those who answer.
    pub(crate) fn parts(&self) -> usize {
        if self.messages.is_some() { 1 } else { self.prompts.len() }
    }

    /// How many answers it has: each prompt's, one after the other.
    pub(crate) fn choices(&self) -> u32 {
        self.answered_prompts().saturating_mul(self.sampling.n)
    }

    /// How many prompts are answered. A call in messages may hold several in its one body.
    fn answered_prompts(&self) -> u32 {
        match &self.call.prompt {
            Prompt::Relayed(relayed) if self.messages.is_some() => relayed.prompts,
            _ => u32::try_from(self.parts()).unwrap_or(u32::MAX),
        }
    }

    /// The most tokens that may be generated over all choices.
    pub(crate) fn most_output_tokens(&self) -> u64 {
        u64::from(self.sampling.max_tokens)
            .saturating_mul(u64::from(self.sampling.n))
            .saturating_mul(u64::from(self.answered_prompts()))
    }

    /// What it is held for at `now`, as its trace keeps it.
    pub(crate) fn held_for(&self, now: UnixNanos) -> Billed {
        Billed {
            at: now,
            held_prompt_tokens: self.prompt_tokens(),
            held_output_tokens: self.most_output_tokens(),
            prompt_prices: None,
            lines: Vec::new(),
        }
    }
}

/// The scopes whose limits a caller's request counts against, before its model is known.
pub(crate) fn caller_scopes(principal: &Principal) -> [(Scope, LimitSpec); 3] {
    let spec = |limits: &headrace_identity::RateLimits| LimitSpec {
        requests_per_minute: limits.requests_per_minute,
        tokens_per_minute: limits.tokens_per_minute,
        concurrency: limits.concurrency,
    };
    [
        (Scope::Key(principal.key.clone()), spec(&principal.limits)),
        (Scope::Project(principal.project.clone()), spec(&principal.project_limits)),
        (Scope::Org(principal.org.clone()), spec(&principal.org_limits)),
    ]
}
