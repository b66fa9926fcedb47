//! The states of a request. Each transition takes the state by value and returns the next one, or the reason why the
//! request ends. Dispatching a call without a hold does not compile.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use headrace_call_api::{Credentials, MemoryReservation, PeerAddress};
use headrace_call_state::{AnswerRecorder, Rejection, RequestMemory};
use headrace_catalog::{Catalog, ServedModel, alias_header};
use headrace_domain::{
    BilledPrices, CachePin, CacheSalt, Call, Endpoint, ModelName, PrefixKeys, Prompt, Residency, Sampling,
    UnixNanos,
};
use headrace_engine_api::{ReasoningBudget, SharedGrammar, Tenant};
use headrace_identity::{Principal, TierEntitlements};
use headrace_ledger::prices::Quote;
use headrace_limits::{Lease, LimitSpec, Scope};
use headrace_rollout::RouteAsker;
use headrace_wire::{BadRequest, CacheDiagnosis};

use crate::request_context::RequestContext;
use crate::settle::CallSettlement;

/// The state of a new request, and its caller or the reason to refuse it. For requests that are not calls.
pub(crate) type IdentifiedCaller = (RequestContext, Result<Arc<Principal>, Rejection>);

/// The head of the request has arrived.
pub(crate) struct ArrivedRequest {
    pub(crate) credentials: Credentials,
    pub(crate) peer: PeerAddress,
    pub(crate) endpoint: Endpoint,
}

/// The caller is known.
pub(crate) struct AuthenticatedRequest {
    pub(crate) principal: Arc<Principal>,
    /// The directory's revocation count when the key was looked up.
    pub(crate) revocations: u64,
    pub(crate) endpoint: Endpoint,
}

/// The request is admitted: it is counted, and it holds a place within the concurrency limits.
pub(crate) struct AdmittedRequest {
    pub(crate) principal: AdmittedCaller,
    pub(crate) endpoint: Endpoint,
}

/// An admitted caller with the lease of its limits. Dropping it, at any stage, gives the lease back.
pub(crate) struct AdmittedCaller {
    pub(crate) principal: Arc<Principal>,
    pub(crate) lease: Lease,
    /// See [`AuthenticatedRequest::revocations`].
    pub(crate) revocations: u64,
}

impl Deref for AdmittedCaller {
    type Target = Principal;

    fn deref(&self) -> &Principal {
        &self.principal
    }
}

/// The body has arrived.
pub(crate) struct ReceivedRequest {
    pub(crate) principal: AdmittedCaller,
    pub(crate) endpoint: Endpoint,
    pub(crate) body: Bytes,
}

/// What reading the body needs is there: its model as far as it is known, and its memory.
pub(crate) struct PreparedRequest {
    pub(crate) principal: AdmittedCaller,
    pub(crate) endpoint: Endpoint,
    /// The body with the stored items that it names.
    pub(crate) body: Bytes,
    /// The body may be forwarded unchanged to a server that speaks the Responses API.
    pub(crate) may_pass: bool,
    pub(crate) asker: RouteAsker,
    /// `None` if the body is too long to be scanned on the event loop.
    pub(crate) named: Option<NamedModel>,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) taken: RequestMemory,
}

/// The model that a body asks for, as far as it is known before the body is read.
pub(crate) struct NamedModel {
    pub(crate) asked: Option<ModelName>,
    pub(crate) model: Option<Arc<ServedModel>>,
}

/// The meaning of the body is known.
pub(crate) struct ParsedCall {
    pub(crate) principal: AdmittedCaller,
    pub(crate) call: Box<Call>,
    pub(crate) taken: RequestMemory,
    /// The catalogue that serves the call to its end, even if a reload replaces it meanwhile.
    pub(crate) catalog: Arc<Catalog>,
    /// The name that was asked for. `None` if it cannot be a model's name.
    pub(crate) asked: Option<ModelName>,
    /// The model that takes the call. `None` if the name leads to no model. The choice is made once.
    pub(crate) model: Option<Arc<ServedModel>>,
}

/// The caller may use the model that it names.
pub(crate) struct AuthorizedCall {
    pub(crate) principal: AdmittedCaller,
    pub(crate) call: Box<Call>,
    pub(crate) taken: RequestMemory,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) asked: ModelName,
    pub(crate) model: Option<Arc<ServedModel>>,
}

/// The model that serves the call is known.
pub(crate) struct RoutedCall {
    pub(crate) principal: AdmittedCaller,
    pub(crate) call: Box<Call>,
    pub(crate) taken: RequestMemory,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) model: Arc<ServedModel>,
}

/// The content rules accept the input.
pub(crate) struct ModeratedCall(pub(crate) RoutedCall);

/// The prompt is ready to send: token ids, or a body in the upstream's dialect.
pub(crate) struct RenderedCall {
    pub(crate) principal: AdmittedCaller,
    /// Boxed, so that the following stages pass it on without a copy.
    pub(crate) work: Box<RenderedWork>,
}

/// A call as it was read for its model. Stage `render` starts from it.
pub(crate) struct ReadCall {
    pub(crate) call: Box<Call>,
    /// See [`RequestMemory::body_bytes`].
    pub(crate) body_bytes: usize,
    /// See [`RequestMemory::tree_bytes`].
    pub(crate) tree_bytes: u64,
    /// See [`RequestMemory::body`].
    pub(crate) body: Option<Bytes>,
}

/// The terms of a call. They stay the same if the call is rendered again.
#[derive(Clone)]
pub(crate) struct CallTerms {
    /// The catalogue that serves the call to its end, even if a reload replaces it meanwhile.
    pub(crate) catalog: Arc<Catalog>,
    /// The memory that the call may take, held until the last byte of its answer has gone.
    pub(crate) memory: Arc<MemoryReservation>,
    pub(crate) tenant: Tenant,
    /// The organisation's weight at an engine.
    pub(crate) weight: u32,
    /// The regions in which the call may be processed.
    pub(crate) residency: Residency,
    /// What the caller's tiers allow. `None` if it has no tier.
    pub(crate) tiers: Option<Arc<TierEntitlements>>,
    /// Whether an upstream's words about the call may be kept in its trace. They may repeat the caller's text.
    pub(crate) keeps_words: bool,
    /// The tokens that each answer may have at most, because the money covers no more. `None` without such a bound.
    pub(crate) funded_tokens: Option<u32>,
}

/// The work of a call for the workers of one model. Stage `render` builds it, in one place.
pub(crate) struct RenderedWork {
    pub(crate) call: Box<Call>,
    /// As [`RequestMemory::body_bytes`]. Decides whether work on the call's text stays on the event loop.
    pub(crate) body_bytes: usize,
    /// Bytes that the JSON elements of that text take as trees.
    pub(crate) tree_bytes: u64,
    /// The body of a call that was parsed to be rendered and may fall back to a model with a message backend.
    pub(crate) body: Option<Bytes>,
    pub(crate) terms: CallTerms,
    pub(crate) model: Arc<ServedModel>,
    pub(crate) sampling: Sampling,
    pub(crate) salt: CacheSalt,
    /// The diagnosis of cache misses, if the client asks for one.
    pub(crate) diagnosis: Option<CacheDiagnosis>,
    pub(crate) rendered: RenderedInput,
}

/// The part of the work that depends on the kind of the model's backend.
pub(crate) enum RenderedInput {
    /// Prompts for engines that generate.
    Tokens(RenderedTokens),
    /// Texts for engines that encode.
    Vectors(RenderedVectors),
    /// A body for other providers' servers.
    Messages(RelayedMessages),
}

/// Prompts to be continued, and how.
pub(crate) struct RenderedTokens {
    pub(crate) prompts: EnginePrompts,
    /// The text that the template produced from a conversation. `None` for raw prompts.
    pub(crate) text: Option<String>,
    /// The grammar that the answers must match, if any.
    pub(crate) grammar: Option<SharedGrammar>,
    /// The reasoning budget, if there is one.
    pub(crate) reasoning_budget: Option<Arc<ReasoningBudget>>,
    /// The parts of the prompt that the client asks to keep in the prefix cache.
    pub(crate) pins: Arc<[CachePin]>,
    /// Records the generated ids of the answers, if they can be reused.
    pub(crate) recorder: Option<AnswerRecorder>,
}

/// Texts to be encoded.
pub(crate) struct RenderedVectors {
    pub(crate) texts: EnginePrompts,
}

/// Prompts as engines get them.
pub(crate) struct EnginePrompts {
    /// The token ids of each prompt, in the caller's order.
    pub(crate) ids: Vec<Arc<[u32]>>,
    /// The block keys of each prompt, one list per prompt. Empty before the stage `cache`.
    pub(crate) keys: Vec<PrefixKeys>,
}

/// A call as it is sent to other providers' servers.
pub(crate) struct RelayedMessages {
    /// Upper estimate of the prompt tokens, for limits and the hold. Never used for a bill.
    pub(crate) most_prompt_tokens: u64,
    /// Best estimate of the prompt tokens, for placement and for calls whose upstream reports no usage.
    pub(crate) likely_prompt_tokens: u64,
    /// Hashes of the beginnings of the conversation. They route the call to the server that got the same beginning
    /// before. Empty if the model has a single target.
    pub(crate) trail: Vec<u64>,
    /// Whether another server may continue the answer from its text if it breaks off. Such an answer is parsed and
    /// re-encoded here from the start.
    pub(crate) may_resume: bool,
    /// The chat call that is sent if upstreams lack the call's own endpoint. Its answer is converted here.
    pub(crate) chat: Option<Box<Call>>,
    /// The call in the dialect that is not its caller's, if some target speaks it, or the reason why it cannot be
    /// translated. Boxed, so that other calls reserve no space for it.
    pub(crate) translated: Option<Box<Result<Call, BadRequest>>>,
    /// The upstreams that may get the extras that the call asks for besides tokens. `None` if it asks for none.
    pub(crate) cleared: Option<Box<[Arc<str>]>>,
    /// The most web searches that the hold covers.
    pub(crate) most_searches: u64,
    /// Whether callers see cached-token counts of servers that do not separate tenants.
    pub(crate) shows_shared_cache: bool,
}

/// The block keys of the prompts are known. From here on the work is immutable and may be shared.
pub(crate) struct KeyedCall {
    pub(crate) principal: AdmittedCaller,
    pub(crate) work: Arc<RenderedWork>,
}

/// The limits and the money of the call are taken.
pub(crate) struct FundedCall {
    pub(crate) work: Arc<RenderedWork>,
    pub(crate) settlement: CallSettlement,
    /// The `x-ratelimit-*` headers.
    pub(crate) headers: Vec<(&'static str, String)>,
}

impl EnginePrompts {
    /// Prompts whose keys are not computed yet.
    pub(crate) const fn new(ids: Vec<Arc<[u32]>>) -> Self {
        Self { ids, keys: Vec::new() }
    }

    /// The ids of a prompt, and the keys of its blocks.
    pub(crate) fn get(&self, part: usize) -> Option<(&Arc<[u32]>, &PrefixKeys)> {
        self.ids.get(part).zip(self.keys.get(part))
    }

    /// The tokens of all prompts together.
    pub(crate) fn tokens(&self) -> u64 {
        self.ids.iter().map(|ids| ids.len() as u64).sum()
    }

    /// The tokens of the longest prompt.
    pub(crate) fn longest(&self) -> usize {
        self.ids.iter().map(|ids| ids.len()).max().unwrap_or(0)
    }
}

impl RenderedInput {
    /// The prompts for engines. `None` for a message backend.
    pub(crate) const fn prompts(&self) -> Option<&EnginePrompts> {
        match self {
            Self::Tokens(RenderedTokens { prompts, .. })
            | Self::Vectors(RenderedVectors { texts: prompts }) => Some(prompts),
            Self::Messages(_) => None,
        }
    }

    /// Like [`Self::prompts`].
    pub(crate) const fn prompts_mut(&mut self) -> Option<&mut EnginePrompts> {
        match self {
            Self::Tokens(RenderedTokens { prompts, .. })
            | Self::Vectors(RenderedVectors { texts: prompts }) => Some(prompts),
            Self::Messages(_) => None,
        }
    }

    /// The prompts for engines that generate. `None` for other backends.
    pub(crate) const fn tokens(&self) -> Option<&RenderedTokens> {
        match self {
            Self::Tokens(tokens) => Some(tokens),
            Self::Vectors(_) | Self::Messages(_) => None,
        }
    }

    /// The call as it is sent to other providers' servers. `None` for engines.
    pub(crate) const fn messages(&self) -> Option<&RelayedMessages> {
        match self {
            Self::Messages(messages) => Some(messages),
            Self::Tokens(_) | Self::Vectors(_) => None,
        }
    }
}

impl RenderedWork {
    /// The headers that describe the name that was asked for.
    pub(crate) fn name_headers(&self, context: &RequestContext) -> Vec<(&'static str, String)> {
        let (catalog, served) = (&self.terms.catalog, &self.model.name);
        let Some(asked) = context.record.model_asked.as_deref() else { return Vec::new() };
        let name = if catalog.has_notices() { ModelName::new(asked).ok() } else { None };
        let notice = name.as_ref().and_then(|name| catalog.notice(name, served));
        let alias = catalog.shows_aliases().then(|| alias_header(asked, served.as_str())).flatten();
        let notices = notice.into_iter().flat_map(|(_, notice)| notice.headers());
        alias.into_iter().chain(notices).collect()
    }

    /// All prompt tokens. For a message backend, their upper estimate.
    pub(crate) fn prompt_tokens(&self) -> u64 {
        match &self.rendered {
            RenderedInput::Tokens(RenderedTokens { prompts, .. })
            | RenderedInput::Vectors(RenderedVectors { texts: prompts }) => prompts.tokens(),
            RenderedInput::Messages(messages) => messages.most_prompt_tokens,
        }
    }

    /// The number of parts that are submitted separately: one per prompt, or one for a message backend.
    pub(crate) fn parts(&self) -> usize {
        self.rendered.prompts().map_or(1, |prompts| prompts.ids.len())
    }

    /// The number of answers, over all prompts.
    pub(crate) fn choices(&self) -> u32 {
        self.answered_prompts().saturating_mul(self.sampling.n)
    }

    /// The number of prompts that are answered. The one body of a message call may hold several.
    fn answered_prompts(&self) -> u32 {
        match (&self.call.prompt, &self.rendered) {
            (Prompt::Relayed(relayed), RenderedInput::Messages(_)) => relayed.prompts,
            _ => u32::try_from(self.parts()).unwrap_or(u32::MAX),
        }
    }

    /// The most tokens that may be generated over all answers.
    pub(crate) fn most_output_tokens(&self) -> u64 {
        u64::from(self.sampling.max_tokens)
            .saturating_mul(u64::from(self.sampling.n))
            .saturating_mul(u64::from(self.answered_prompts()))
    }

    /// What the call is held for at `now`, as its trace records it.
    pub(crate) fn held_for(&self, quote: &Quote, now: UnixNanos) -> BilledPrices {
        BilledPrices {
            at: now,
            holder_tier: quote.holder_tier().cloned(),
            held_prompt_tokens: self.prompt_tokens(),
            held_output_tokens: self.most_output_tokens(),
            prompt_prices: None,
            lines: Vec::new(),
        }
    }
}

/// The scopes whose limits a caller's request counts against before its model is known.
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
