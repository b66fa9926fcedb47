//! Stage `render`: template and tokenizer turn the caller's text into ids, and the counts are checked against the
//! context window. Control ids come only from the template: message text is encoded as literal text. A relayed call is
//! put into the dialect of its upstreams (`messages`).

use std::sync::Arc;
use std::time::Instant;

use headrace_call_api::MemoryReservation;
use headrace_call_state::{AnswerRecorder, GeneratedIdCache, Rejection, RequestMemory, TokenizerMemory};
use headrace_catalog::{Backend, Catalog, ServedModel, TokenBackend};
use headrace_domain::{
    CachePin, CacheSalt, Call, Code, KeptAnswers, ProjectId, Prompt, Residency, Sampling, SamplingDefaults,
    Stage, UnixNanos,
};
use headrace_engine_api::{ReasoningBudget, SharedGrammar, Tenant};
use headrace_fleet::Fleet;
use headrace_grammar::FormOwner;
use headrace_prompt::RenderOptions;
use headrace_wire::{CacheDiagnosis, WireLimits};
use parking_lot::Mutex;

use crate::Gateway;
use crate::request_context::RequestContext;
use crate::state::{ModeratedCall, RelayedMessages, RenderedCall, RenderedWork, RoutedCall};

use reread::{RereadCall, read_for};
use screen::{RelayScreen, ScreenClearance};

pub(crate) mod estimate;

mod budget;
mod calls;
mod form;
mod held;
mod messages;
mod past;
mod pins;

mod raw;

mod reread;

pub(crate) mod screen;

pub(crate) mod shorten;

mod texts;

mod words;

pub(crate) use calls::held as held_calls;
use estimate::MemoryEstimate;
pub(crate) use messages::likely_tokens;
pub(crate) use past::with_past;
pub(crate) use reread::passes_over;
pub(crate) use texts::{encodes, text_ids};
pub(crate) use words::{could_fit, not_encoded, out_of_vocabulary, rendered, shown, text_alone};
use words::{failed, prompt_param, window_exceeded};

/// The most prompt tokens that the results of one web search add. The hold includes them as prompt tokens.
const TOKENS_OF_A_SEARCH: u64 = 10_000;
/// The cache diagnosis if another model answers than the one that was compared.
const ANOTHER_MODEL: CacheDiagnosis = CacheDiagnosis::Unavailable { why: "another model answers" };

impl ModeratedCall {
    pub(crate) async fn render(
        self,
        gateway: &Gateway,
        dossier: &mut RequestContext,
    ) -> Result<RenderedCall, Rejection> {
        let RoutedCall { principal, mut call, mut taken, catalog, mut model } = self.0;
        let mut passed_over = Vec::new();
        let (written, salt) = loop {
            let salt = salt(gateway, &principal.project, &model, &call);
            let long = taken.turn.is_some();
            raw::may_spell(&model, &call, &principal.key)?;
            let own = (salt, Arc::clone(&taken.memory), tenant_number(principal.org.as_str()));
            let written = write(gateway, &catalog, &model, call, own, taken, long).await?;
            (call, taken) = (written.call, written.kept);
            match written.encoded.and_then(|encoded| encoded.resolved(gateway, &model, &call, dossier)) {
                Ok(written) => break (written, salt),
                // A prompt that is too long for one model may fit another one that the name leads to.
                Err(why) => loop {
                    let (ending, within) = ((why.code, why.stage), &principal.regions);
                    let next = catalog.fallback(&call.model, ending, &model, &passed_over, within);
                    let Some(next) = next else { return Err(why) };
                    passed_over.push(next.name.clone());
                    match read_for(gateway, &next, &call, taken.body.as_ref(), &taken.memory).await {
                        Ok(None) => {}
                        Ok(Some(RereadCall { call: read, body, tree_bytes })) => {
                            call = read;
                            (taken.body, taken.tree_bytes) = (Some(body), tree_bytes);
                        }
                        Err(unfit) => {
                            passes_over(dossier, &next, &unfit);
                            continue;
                        }
                    }
                    dossier.served_by(&next);
                    passed_over.push(std::mem::replace(&mut model, next).name.clone());
                    break;
                },
            }
        };
        let RequestMemory { body_bytes, tree_bytes, memory, turn, body } = taken;
        drop(turn);
        let (EncodedPrompt { prompts, text, grammar, form_ns, thought, pins, past, mut messages }, sampling) =
            written;
        screened(gateway, (&catalog, &model), &call, messages.as_mut(), &principal.regions, dossier).await?;
        dossier.record.kept_answers = past.told;
        dossier.record.form_ns = dossier.record.form_ns.saturating_add(form_ns);
        let tenant = Tenant(tenant_number(principal.org.as_str()));
        let weight = catalog.weight(&principal.org);
        let (keys, residency) = (Vec::new(), principal.regions.clone());
        let keeps_words = residency.allows(gateway.config().region.as_ref());
        let work = Box::new(RenderedWork {
            call,
            body_bytes,
            tree_bytes,
            body,
            memory,
            catalog,
            model,
            prompts,
            messages,
            text,
            grammar,
            thought,
            pins,
            keeper: past.keeper,
            diagnosis: None,
            sampling,
            salt,
            keys,
            tenant,
            residency,
            keeps_words,
            weight,
        });
        take_memory(gateway, &work)?;
        dossier.end_stage(Stage::Render);
        Ok(RenderedCall { principal, work })
    }
}

impl RenderedWork {
    /// Renders the same call for another model, and reserves the memory that it may take there.
    pub(crate) async fn for_model(
        &self,
        gateway: &Gateway,
        model: Arc<ServedModel>,
        dossier: &mut RequestContext,
    ) -> Result<Self, Rejection> {
        let long = self.body_bytes > gateway.config().render_inline_bytes;
        let turn = match long {
            true => Some(gateway.turns().enter(self.memory.key(), self.body_bytes).await?),
            false => None,
        };
        let read = read_for(gateway, &model, &self.call, self.body.as_ref(), &self.memory).await?;
        let (call, body, tree_bytes) = match read {
            Some(RereadCall { call, body, tree_bytes }) => (call, Some(body), tree_bytes),
            None => (self.call.clone(), self.body.clone(), self.tree_bytes),
        };
        raw::may_spell(&model, &call, self.memory.key())?;
        let project = dossier.record.project.as_ref().ok_or_else(|| failed("nobody knows whose it is"))?;
        let salt = salt(gateway, project, &model, &call);
        let own = (salt, Arc::clone(&self.memory), self.tenant.0);
        let written = write(gateway, &self.catalog, &model, call, own, turn, long).await?;
        let (call, encoded) = (written.call, written.encoded?);
        let (EncodedPrompt { prompts, text, grammar, form_ns, thought, pins, past, mut messages }, sampling) =
            encoded.resolved(gateway, &model, &call, dossier)?;
        let served = (&*self.catalog, &*model);
        screened(gateway, served, &call, messages.as_mut(), &self.residency, dossier).await?;
        dossier.record.kept_answers = past.told;
        dossier.record.form_ns = dossier.record.form_ns.saturating_add(form_ns);
        let mut work = Self {
            body_bytes: self.body_bytes,
            tree_bytes,
            body,
            memory: Arc::clone(&self.memory),
            catalog: Arc::clone(&self.catalog),
            prompts,
            messages,
            text,
            grammar,
            thought,
            pins,
            keeper: past.keeper,
            diagnosis: self.diagnosis.as_ref().map(|_| ANOTHER_MODEL),
            sampling,
            salt,
            keys: Vec::new(),
            tenant: self.tenant,
            residency: self.residency.clone(),
            keeps_words: self.keeps_words,
            weight: self.weight,
            call,
            model,
        };
        take_memory(gateway, &work)?;
        dossier.end_stage(Stage::Render);
        work.hash();
        dossier.end_stage(Stage::Cache);
        Ok(work)
    }
}

/// Judges what a relayed call asks for besides tokens, and notes which servers it may be sent to.
async fn screened(
    gateway: &Gateway,
    (catalog, model): (&Catalog, &ServedModel),
    call: &Call,
    messages: Option<&mut RelayedMessages>,
    regions: &Residency,
    dossier: &RequestContext,
) -> Result<(), Rejection> {
    let Some(messages) = messages else { return Ok(()) };
    let parts = gateway.parts();
    messages.shows_shared_cache = !parts.directory.has_several_orgs();
    let Some(relayed) = ScreenClearance::body(messages.chat.as_deref().unwrap_or(call)) else {
        return Ok(());
    };
    let headers = if messages.chat.is_none() { &*dossier.dialect_headers } else { &[] };
    let screen = RelayScreen { catalog, model, call, relayed, regions, headers, now: parts.clock.now() };
    // Most calls have nothing to judge. For the others, host names may have to be looked up.
    if screen.is_needed() {
        let cleared = Box::pin(screen.clear()).await?;
        (messages.cleared, messages.most_searches) = (Some(cleared.upstreams), cleared.most_searches);
        let found = cleared.most_searches.saturating_mul(TOKENS_OF_A_SEARCH);
        messages.most_prompt_tokens = messages.most_prompt_tokens.saturating_add(found);
    }
    Ok(())
}

/// A call as it is sent to a model, or why it cannot be sent, with the value `kept` for the caller meanwhile.
struct WrittenCall<T> {
    call: Box<Call>,
    encoded: Result<EncodedPrompt, Rejection>,
    kept: T,
}

async fn write<T: Send + 'static>(
    gateway: &Gateway,
    catalog: &Catalog,
    model: &Arc<ServedModel>,
    call: Box<Call>,
    (salt, memory, tenant): (CacheSalt, Arc<MemoryReservation>, u64),
    kept: T,
    long: bool,
) -> Result<WrittenCall<T>, Rejection> {
    let compiling = form::is_held(&call).then(|| gateway.memory().none_yet(memory.key()));
    let means = RenderContext {
        fleet: Arc::clone(catalog.fleet()),
        kept: Arc::clone(gateway.kept_ids()),
        salt,
        memory,
        most_answer_tokens: messages::bound(gateway, model),
        limits: gateway.config().wire.clone(),
        now: gateway.parts().clock.now(),
        tenant,
        compiling: Mutex::new(compiling),
    };
    // Compiling a grammar, and rendering several times to shorten a conversation, may take as long as a long prompt.
    if !long && !form::is_held(&call) && !shorten::is_asked(&call) {
        let (call, encoded) = put(model, call, &means);
        return Ok(WrittenCall { call, encoded, kept });
    }
    // A long prompt takes milliseconds: the threads of the event loop must stay free for health checks. What was taken
    // stays reserved meanwhile, even if the client goes away.
    let model = Arc::clone(model);
    let rendering = tokio::task::spawn_blocking(move || {
        let (call, encoded) = put(&model, call, &means);
        WrittenCall { call, encoded, kept }
    });
    rendering.await.map_err(|_| failed("the rendering was stopped"))
}

/// What rendering a call for a model needs.
struct RenderContext {
    fleet: Arc<Fleet>,
    kept: Arc<GeneratedIdCache>,
    salt: CacheSalt,
    memory: Arc<MemoryReservation>,
    /// The most tokens of an answer if the caller names no bound.
    most_answer_tokens: u32,
    /// The limits that the call was read within.
    limits: WireLimits,
    now: UnixNanos,
    /// The tenant that a form is compiled for, and the reservation to which its memory is added.
    tenant: u64,
    compiling: Mutex<Option<MemoryReservation>>,
}

impl RenderContext {
    /// The grammar of a call's answers, and the nanoseconds that compiling it took.
    fn grammar(
        &self,
        model: &ServedModel,
        lane: &TokenBackend,
        call: &Call,
        prompt: &str,
    ) -> Result<(Option<SharedGrammar>, u64), Rejection> {
        let begun = form::is_held(call).then(Instant::now);
        let grammar = self.form_of(|owner| form::grammar(model, lane, call, prompt, owner))?;
        let nanos = begun.map_or(0, |begun| u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
        Ok((grammar, nanos))
    }

    /// Runs `compile` in the tenant's name, with memory of the call's key.
    fn form_of<T>(&self, compile: impl FnOnce(&FormOwner<'_>) -> T) -> T {
        let reserve = |bytes| -> Option<Box<dyn Send>> {
            let memory = self.compiling.lock().take()?;
            memory.resize(bytes).ok()?;
            Some(Box::new(memory))
        };
        compile(&FormOwner { tenant: self.tenant, memory: Some(&reserve) })
    }
}

fn salt(gateway: &Gateway, project: &ProjectId, model: &ServedModel, call: &Call) -> CacheSalt {
    salt_of(&gateway.parts().cache_secret, project, model, call)
}

/// The cache salt of a call. Calls with the same salt may share cached prefixes.
pub(crate) fn salt_of(secret: &[u8; 32], project: &ProjectId, model: &ServedModel, call: &Call) -> CacheSalt {
    CacheSalt::derive(secret, project.as_str(), model.name.as_str(), call.cache_salt.as_deref())
}

/// Reserves the memory that the call may need, in place of what reading it took.
fn take_memory(gateway: &Gateway, work: &RenderedWork) -> Result<(), Rejection> {
    let estimate = MemoryEstimate::of(work, gateway.config().delivery_buffer_bytes);
    let bound = gateway.memory().bounds().call;
    if estimate.bytes() > bound {
        return Err(estimate.refusal(work, bound));
    }
    gateway.memory().resize(&work.memory, estimate.bytes()).map_err(|full| full.at(Stage::Render))
}

/// The rendered call, ready to send.
struct EncodedPrompt {
    /// The prompts as ids.
    prompts: Vec<Arc<[u32]>>,
    /// A conversation as the template wrote it.
    text: Option<String>,
    /// The grammar that constrains its answers.
    grammar: Option<SharedGrammar>,
    /// Nanoseconds that compiling `grammar` took.
    form_ns: u64,
    /// Reasoning budget, if the call has one.
    thought: Option<Arc<ReasoningBudget>>,
    /// The prefixes of the prompt that are to be kept in a cache.
    pins: Arc<[CachePin]>,
    /// Reused ids of earlier answers, and where to keep the ids of its own.
    past: ReusedIds,
    /// The relayed call.
    messages: Option<RelayedMessages>,
}

/// See [`past`].
#[derive(Default)]
struct ReusedIds {
    told: Option<KeptAnswers>,
    keeper: Option<AnswerRecorder>,
}

impl EncodedPrompt {
    /// Prompts, and nothing else.
    fn of(prompts: Vec<Arc<[u32]>>) -> Self {
        let (pins, past) = (Arc::default(), ReusedIds::default());
        Self { prompts, text: None, grammar: None, form_ns: 0, thought: None, pins, past, messages: None }
    }

    /// Adds the sampling parameters, resolved for the model.
    fn resolved(
        self,
        gateway: &Gateway,
        model: &ServedModel,
        call: &Call,
        dossier: &RequestContext,
    ) -> Result<(Self, Sampling), Rejection> {
        let sampling = match &model.lane {
            Backend::Tokens(lane) => {
                resolve(gateway, model, lane, call, &self.prompts, dossier.drawn_bits())?
            }
            // An encoder samples nothing.
            Backend::Vectors(_) => call.sampling.resolve(&SamplingDefaults::default(), 0, 0),
            Backend::Messages(_) => messages::resolve(gateway, model, call),
        };
        Ok((self, sampling))
    }
}

/// Shortens the conversation to the available space if the call asks for that, and encodes it.
fn put(
    model: &ServedModel,
    call: Box<Call>,
    means: &RenderContext,
) -> (Box<Call>, Result<EncodedPrompt, Rejection>) {
    match text_alone(model, &call) {
        Ok(()) => {}
        Err(why) => return (call, Err(why)),
    }
    match shorten::shortened(model, call, (means.now, TokenizerMemory(&means.memory)), &means.limits) {
        Ok(call) => {
            let encoded = encode(model, &call, means);
            (call, encoded)
        }
        Err((call, why)) => (call, Err(why)),
    }
}

fn encode(model: &ServedModel, call: &Call, means: &RenderContext) -> Result<EncodedPrompt, Rejection> {
    match &model.lane {
        Backend::Tokens(lane) => tokens(model, lane, call, means),
        Backend::Vectors(lane) => {
            let most_tokens = means.limits.max_encode_tokens;
            let prompts = texts::encode(model, lane, call, most_tokens, TokenizerMemory(&means.memory))?;
            Ok(EncodedPrompt::of(prompts))
        }
        Backend::Messages(_) => {
            let RenderContext { fleet, salt, most_answer_tokens, limits, .. } = means;
            let messages = messages::prepare(model, fleet, call, salt, *most_answer_tokens, limits)?;
            Ok(EncodedPrompt { messages: Some(messages), ..EncodedPrompt::of(Vec::new()) })
        }
    }
}

fn tokens(
    model: &ServedModel,
    lane: &TokenBackend,
    call: &Call,
    means: &RenderContext,
) -> Result<EncodedPrompt, Rejection> {
    held::check(model, lane, call)?;
    could_fit(model, call)?;
    match &call.prompt {
        Prompt::Conversation(conversation) => {
            let reasoning = Some(&call.reasoning);
            let options = RenderOptions { add_generation_prompt: true, now: means.now, reasoning };
            let (ids, text) = rendered(model, lane, conversation, &options, TokenizerMemory(&means.memory))?;
            let kept = (&means.kept, &means.salt);
            let past::ReusedHistory { ids, told, keeper } =
                with_past(model, lane, call, kept, (ids, Some(&text)), means.now);
            let (grammar, form_ns) = means.grammar(model, lane, call, &text)?;
            let thought = budget::cap(model, lane, call, (&text, grammar.is_some()))?;
            let pins = pins::pins(lane, call, &text, &ids);
            let prompts = vec![ids.into()];
            let past = ReusedIds { told, keeper };
            Ok(EncodedPrompt {
                text: Some(text),
                grammar,
                form_ns,
                thought,
                pins,
                past,
                ..EncodedPrompt::of(prompts)
            })
        }
        Prompt::Encode(_) => Err(texts::generates(model)),
        Prompt::Relayed(_) => Err(failed("it was read to be sent on")),
        Prompt::Raw(items) => {
            let room = TokenizerMemory(&means.memory);
            let each = items.iter().enumerate().map(|item| raw::encode(model, lane, call, item, room));
            let (grammar, form_ns) = means.grammar(model, lane, call, "")?;
            let prompts = each.collect::<Result<_, _>>()?;
            Ok(EncodedPrompt { grammar, form_ns, ..EncodedPrompt::of(prompts) })
        }
    }
}

/// Fills in what the caller left open and checks it against the model's window and vocabulary.
fn resolve(
    gateway: &Gateway,
    model: &ServedModel,
    lane: &TokenBackend,
    call: &Call,
    prompts: &[Arc<[u32]>],
    request_bits: u128,
) -> Result<Sampling, Rejection> {
    let window = lane.capabilities.context_window;
    let longest = prompts.iter().map(|ids| ids.len()).max().unwrap_or(0);
    let longest = u32::try_from(longest).unwrap_or(u32::MAX);
    let scoring_only = call.sampling.max_tokens == Some(0);
    if longest > window || (longest == window && !scoring_only) {
        return Err(window_exceeded(prompt_param(call), &format!("{longest} tokens"), model));
    }
    let room = window.saturating_sub(longest);
    let max_tokens = match call.sampling.max_tokens {
        Some(asked) if asked > room => {
            let message = format!(
                "The prompt has {longest} tokens and `max_tokens` asks for {asked} more; the context window of \
                 `{}` is {window} tokens. Ask for at most {room}, or shorten the prompt.",
                model.name
            );
            return Err(Rejection::new(Code::ContextLengthExceeded, message).with_param("max_tokens"));
        }
        Some(asked) => asked,
        None => model.default_max_tokens.unwrap_or(gateway.config().default_max_tokens).min(room),
    };
    if call.sampling.min_tokens > max_tokens {
        let message = format!(
            "`min_tokens` is {} and at most {max_tokens} tokens may be generated.",
            call.sampling.min_tokens
        );
        return Err(Rejection::new(Code::InvalidValue, message).at(Stage::Render).with_param("min_tokens"));
    }
    let vocab = lane.capabilities.vocab;
    if let Some((id, _)) = call.sampling.logit_bias.iter().find(|(id, _)| *id >= vocab) {
        return Err(out_of_vocabulary("logit_bias", *id, model, &lane.capabilities));
    }
    if let Some(id) = call.sampling.stop_token_ids.iter().find(|id| **id >= vocab) {
        return Err(out_of_vocabulary("stop_token_ids", *id, model, &lane.capabilities));
    }
    // The low bits of a UUID v7 are random. They seed a call that names no seed.
    let drawn = u64::try_from(request_bits & u128::from(u64::MAX)).unwrap_or(0);
    let mut sampling = call.sampling.resolve(&lane.defaults, max_tokens, drawn);
    sampling.stop_token_ids.extend(raw::end_of_fill(lane, call));
    Ok(sampling)
}

/// The tenant's number in the engine's fair queue: the FNV-1a hash of its name.
pub(crate) fn tenant_number(org: &str) -> u64 {
    org.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
