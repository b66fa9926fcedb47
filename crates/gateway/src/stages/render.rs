//! Stage `render`: template and tokenizer turn the caller's text into ids, and the counts are checked against the
//! context window. Control ids come only from the template: message text is encoded as literal text. A relayed call is
//! put into the dialect of its upstreams (`messages`).

use std::sync::Arc;
use std::time::Instant;

use headrace_call_api::MemoryReservation;
use headrace_call_state::{GeneratedIdCache, Rejection, RenderPermit, RequestMemory, TokenizerMemory};
use headrace_catalog::{Backend, Catalog, ServedModel, TokenBackend};
use headrace_domain::{
    CacheSalt, Call, Code, KeptAnswers, ProjectId, Prompt, Sampling, SamplingDefaults, Stage, UnixNanos,
};
use headrace_engine_api::{SharedGrammar, Tenant};
use headrace_fleet::Fleet;
use headrace_grammar::FormOwner;
use headrace_identity::{Principal, TierEntitlements};
use headrace_prompt::RenderOptions;
use headrace_render::{
    ReusedHistory, cache_pins, check_supported, compile_grammar, could_fit, encode_conversation,
    encode_raw_prompt, encode_texts, end_of_fill, generator_rejection, is_constrained, may_spell,
    out_of_vocabulary, prompt_param, reasoning_budget, rendering_failed, reuse_past_answers, text_alone,
    window_exceeded,
};
use headrace_wire::{CacheDiagnosis, WireLimits};
use parking_lot::Mutex;

use crate::Gateway;
use crate::request_context::RequestContext;
use crate::state::{
    CallTerms, EnginePrompts, ModeratedCall, ReadCall, RenderedCall, RenderedInput, RenderedTokens,
    RenderedVectors, RenderedWork, RoutedCall,
};

use reread::{RereadCall, read_for};
use screen::{RelayScreen, ScreenClearance};
use tier_length::answer_tokens;

pub(crate) mod estimate;

mod messages;
mod reread;

pub(crate) mod screen;

pub(crate) mod shorten;
mod tier_length;

use estimate::MemoryEstimate;
pub(crate) use messages::likely_tokens;
pub(crate) use reread::passes_over;

/// The most prompt tokens that the results of one web search add. The hold includes them as prompt tokens.
const TOKENS_OF_A_SEARCH: u64 = 10_000;
/// The cache diagnosis if another model answers than the one that was compared.
const ANOTHER_MODEL: CacheDiagnosis = CacheDiagnosis::Unavailable { why: "another model answers" };

impl ModeratedCall {
    pub(crate) async fn render(
        self,
        gateway: &Gateway,
        context: &mut RequestContext,
    ) -> Result<RenderedCall, Rejection> {
        let RoutedCall { principal, call, taken, catalog, mut model } = self.0;
        let RequestMemory { body_bytes, tree_bytes, memory, mut turn, body } = taken;
        let terms = CallTerms::new(gateway, &principal, catalog, memory);
        let mut read = ReadCall { call, body_bytes, tree_bytes, body };
        let mut passed_over = Vec::new();
        let mut prepared = loop {
            let attempt = prepare(gateway, &terms, &model, &principal.project, read.call, turn, context);
            let RenderAttempt { call, turn: returned, outcome } = attempt.await?;
            (read.call, turn) = (call, returned);
            match outcome {
                Ok(prepared) => break prepared,
                // A prompt that is too long for one model may fit another one that the name leads to.
                Err(rejection) => loop {
                    let (ending, within) = ((rejection.code, rejection.stage), &terms.residency);
                    let next = terms.catalog.fallback(&read.call.model, ending, &model, &passed_over, within);
                    let Some(next) = next else { return Err(rejection) };
                    passed_over.push(next.name.clone());
                    match read_for(gateway, &next, &read.call, read.body.as_ref(), &terms.memory).await {
                        Ok(None) => {}
                        Ok(Some(RereadCall { call, body, tree_bytes })) => {
                            read = ReadCall { call, body_bytes, tree_bytes, body: Some(body) };
                        }
                        Err(unfit) => {
                            passes_over(context, &next, &unfit);
                            continue;
                        }
                    }
                    context.served_by(&next);
                    passed_over.push(std::mem::replace(&mut model, next).name.clone());
                    break;
                },
            }
        };
        drop(turn);
        screen(gateway, &terms, &model, &read.call, &mut prepared.rendered, context).await?;
        let work = RenderedWork::build(gateway, terms, read, model, prepared, context)?;
        Ok(RenderedCall { principal, work })
    }
}

impl CallTerms {
    fn new(
        gateway: &Gateway,
        principal: &Principal,
        catalog: Arc<Catalog>,
        memory: Arc<MemoryReservation>,
    ) -> Self {
        let residency = principal.regions.clone();
        Self {
            tenant: Tenant(tenant_number(principal.org.as_str())),
            weight: catalog.weight(&principal.org),
            keeps_words: residency.allows(gateway.config().region.as_ref()),
            residency,
            tiers: principal.tier.clone(),
            catalog,
            memory,
            funded_tokens: None,
        }
    }
}

impl RenderedWork {
    /// Makes the work of a call. Records what rendering found, and reserves the memory that the call may need.
    ///
    /// # Errors
    /// The call may need more memory than there is for it.
    fn build(
        gateway: &Gateway,
        terms: CallTerms,
        read: ReadCall,
        model: Arc<ServedModel>,
        prepared: PreparedCall,
        context: &mut RequestContext,
    ) -> Result<Box<Self>, Rejection> {
        let ReadCall { call, body_bytes, tree_bytes, body } = read;
        let PreparedCall { rendered, mut sampling, salt, form_ns, kept_answers } = prepared;
        if let Some(tokens) = terms.funded_tokens {
            sampling.max_tokens = sampling.max_tokens.min(tokens);
        }
        context.record.kept_answers = kept_answers;
        context.record.form_ns = context.record.form_ns.saturating_add(form_ns);
        let diagnosis = None;
        let work = Box::new(Self {
            call,
            body_bytes,
            tree_bytes,
            body,
            terms,
            model,
            sampling,
            salt,
            diagnosis,
            rendered,
        });
        take_memory(gateway, &work)?;
        context.end_stage(Stage::Render);
        Ok(work)
    }

    /// Renders the same call for another model, and reserves the memory that it may take there.
    pub(crate) async fn for_model(
        &self,
        gateway: &Gateway,
        model: Arc<ServedModel>,
        context: &mut RequestContext,
    ) -> Result<Box<Self>, Rejection> {
        let memory = &self.terms.memory;
        let turn = match self.body_bytes > gateway.config().render_inline_bytes {
            true => Some(gateway.turns().enter(memory.key(), self.body_bytes).await?),
            false => None,
        };
        let reread = read_for(gateway, &model, &self.call, self.body.as_ref(), memory).await?;
        let (call, body, tree_bytes) = match reread {
            Some(RereadCall { call, body, tree_bytes }) => (call, Some(body), tree_bytes),
            None => (self.call.clone(), self.body.clone(), self.tree_bytes),
        };
        let read = ReadCall { call, body_bytes: self.body_bytes, tree_bytes, body };
        let mut work = self.rerender(gateway, model, read, turn, context).await?;
        work.diagnosis = self.diagnosis.as_ref().map(|_| ANOTHER_MODEL);
        Ok(work)
    }

    /// Renders a call that was read again or changed, under the terms of this one. `turn` is its turn at the gate for
    /// long bodies, if it has one.
    async fn rerender(
        &self,
        gateway: &Gateway,
        model: Arc<ServedModel>,
        mut read: ReadCall,
        turn: Option<RenderPermit>,
        context: &mut RequestContext,
    ) -> Result<Box<Self>, Rejection> {
        let project =
            context.record.project.as_ref().ok_or_else(|| rendering_failed("the call has no project"))?;
        let attempt = prepare(gateway, &self.terms, &model, project, read.call, turn, context);
        let RenderAttempt { call, turn, outcome } = attempt.await?;
        let mut prepared = outcome?;
        drop(turn);
        read.call = call;
        screen(gateway, &self.terms, &model, &read.call, &mut prepared.rendered, context).await?;
        let mut work = Self::build(gateway, self.terms.clone(), read, model, prepared, context)?;
        work.hash();
        context.end_stage(Stage::Cache);
        Ok(work)
    }
}

/// Judges what a relayed call asks for besides tokens, and notes which servers it may be sent to.
async fn screen(
    gateway: &Gateway,
    terms: &CallTerms,
    model: &ServedModel,
    call: &Call,
    rendered: &mut RenderedInput,
    context: &RequestContext,
) -> Result<(), Rejection> {
    let RenderedInput::Messages(messages) = rendered else { return Ok(()) };
    let parts = gateway.parts();
    messages.shows_shared_cache = !parts.directory.has_several_orgs();
    let Some(relayed) = ScreenClearance::body(messages.chat.as_deref().unwrap_or(call)) else {
        return Ok(());
    };
    let headers = if messages.chat.is_none() { &*context.dialect_headers } else { &[] };
    let (catalog, regions, now) = (&*terms.catalog, &terms.residency, parts.clock.now());
    let screen = RelayScreen { catalog, model, call, relayed, regions, headers, now };
    // Most calls have nothing to judge. For the others, host names may have to be looked up.
    if screen.is_needed() {
        let cleared = Box::pin(screen.clear()).await?;
        (messages.cleared, messages.most_searches) = (Some(cleared.upstreams), cleared.most_searches);
        let found = cleared.most_searches.saturating_mul(TOKENS_OF_A_SEARCH);
        messages.most_prompt_tokens = messages.most_prompt_tokens.saturating_add(found);
    }
    Ok(())
}

/// An attempt to render a call for a model. The call and its turn come back, whatever the outcome.
struct RenderAttempt<T> {
    call: Box<Call>,
    /// The turn at the gate for long bodies. `None` for a short body.
    turn: Option<RenderPermit>,
    outcome: Result<T, Rejection>,
}

/// A call that a model can take.
struct PreparedCall {
    rendered: RenderedInput,
    sampling: Sampling,
    salt: CacheSalt,
    /// See [`EncodedCall::form_ns`].
    form_ns: u64,
    kept_answers: Option<KeptAnswers>,
}

/// Encodes a call for a model, and resolves its sampling parameters.
///
/// # Errors
/// The call may not spell out control tokens, or its rendering was stopped. No other model is tried then.
async fn prepare(
    gateway: &Gateway,
    terms: &CallTerms,
    model: &Arc<ServedModel>,
    project: &ProjectId,
    call: Box<Call>,
    turn: Option<RenderPermit>,
    context: &RequestContext,
) -> Result<RenderAttempt<PreparedCall>, Rejection> {
    let salt = salt_of(&gateway.parts().cache_secret, project, model, &call);
    may_spell(model, &call, terms.memory.key())?;
    let RenderAttempt { call, turn, outcome } = encode(gateway, terms, model, call, salt, turn).await?;
    let outcome = outcome.and_then(|EncodedCall { rendered, form_ns, kept_answers }| {
        let tiers = terms.tiers.as_deref();
        let sampling = sampling(gateway, model, &call, &rendered, (tiers, context.drawn_bits()))?;
        Ok(PreparedCall { rendered, sampling, salt, form_ns, kept_answers })
    });
    Ok(RenderAttempt { call, turn, outcome })
}

/// Encodes a call, off the event loop if that may take long.
async fn encode(
    gateway: &Gateway,
    terms: &CallTerms,
    model: &Arc<ServedModel>,
    call: Box<Call>,
    salt: CacheSalt,
    turn: Option<RenderPermit>,
) -> Result<RenderAttempt<EncodedCall>, Rejection> {
    let compiling = is_constrained(&call).then(|| gateway.memory().none_yet(terms.memory.key()));
    let inputs = EncodeInputs {
        fleet: Arc::clone(terms.catalog.fleet()),
        generated_ids: Arc::clone(gateway.kept_ids()),
        salt,
        memory: Arc::clone(&terms.memory),
        most_answer_tokens: messages::bound(gateway, model).min(likely_room(terms, &call)),
        limits: gateway.config().wire.clone(),
        now: gateway.parts().clock.now(),
        tenant: terms.tenant.0,
        compiling: Mutex::new(compiling),
    };
    // Compiling a grammar, and rendering several times to shorten a conversation, may take as long as a long prompt.
    if turn.is_none() && !is_constrained(&call) && !shorten::is_asked(&call) {
        let (call, outcome) = shorten_and_encode(model, call, &inputs);
        return Ok(RenderAttempt { call, turn, outcome });
    }
    // A long prompt takes milliseconds: the threads of the event loop must stay free for health checks. The memory and
    // the turn stay taken meanwhile, even if the client goes away.
    let model = Arc::clone(model);
    let encoding = tokio::task::spawn_blocking(move || {
        let (call, outcome) = shorten_and_encode(&model, call, &inputs);
        RenderAttempt { call, turn, outcome }
    });
    encoding.await.map_err(|_| rendering_failed("the rendering was stopped"))
}

/// The longest answer that the caller's tiers allow for a relayed call that names no bound, by an estimate of its prompt.
/// Stage `render` rejects a call without room later.
fn likely_room(terms: &CallTerms, call: &Call) -> u32 {
    let Prompt::Relayed(relayed) = &call.prompt else { return u32::MAX };
    answer_tokens(terms.tiers.as_deref(), likely_tokens(relayed), None).unwrap_or(u32::MAX)
}

/// What encoding a call for a model needs.
struct EncodeInputs {
    fleet: Arc<Fleet>,
    generated_ids: Arc<GeneratedIdCache>,
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

impl EncodeInputs {
    /// The grammar of a call's answers, and the nanoseconds that compiling it took.
    fn grammar(
        &self,
        model: &ServedModel,
        backend: &TokenBackend,
        call: &Call,
        prompt: &str,
    ) -> Result<(Option<SharedGrammar>, u64), Rejection> {
        let from = is_constrained(call).then(Instant::now);
        let grammar = self.form_of(|owner| compile_grammar(model, backend, call, prompt, owner))?;
        let nanos = from.map_or(0, |from| u64::try_from(from.elapsed().as_nanos()).unwrap_or(u64::MAX));
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

/// The cache salt of a call. Calls with the same salt may share cached prefixes.
pub(crate) fn salt_of(secret: &[u8; 32], project: &ProjectId, model: &ServedModel, call: &Call) -> CacheSalt {
    CacheSalt::derive(secret, project.as_str(), model.name.as_str(), call.cache_salt.as_deref())
}

/// Replaces the memory that reading the body reserved by the memory that the call may need.
fn take_memory(gateway: &Gateway, work: &RenderedWork) -> Result<(), Rejection> {
    let estimate = MemoryEstimate::of(work, gateway.config().delivery_buffer_bytes);
    let bound = gateway.memory().bounds().call;
    if estimate.bytes() > bound {
        return Err(estimate.refusal(work, bound));
    }
    gateway.memory().resize(&work.terms.memory, estimate.bytes()).map_err(|full| full.at(Stage::Render))
}

/// A call in the form in which its model takes it.
struct EncodedCall {
    rendered: RenderedInput,
    /// Nanoseconds that compiling its grammar took.
    form_ns: u64,
    /// The earlier answers in its prompt whose generated ids are reused.
    kept_answers: Option<KeptAnswers>,
}

impl EncodedCall {
    /// A call without a grammar and without earlier answers.
    const fn of(rendered: RenderedInput) -> Self {
        Self { rendered, form_ns: 0, kept_answers: None }
    }
}

/// Shortens the conversation to the available space if the call asks for that, and encodes it.
fn shorten_and_encode(
    model: &ServedModel,
    call: Box<Call>,
    inputs: &EncodeInputs,
) -> (Box<Call>, Result<EncodedCall, Rejection>) {
    match text_alone(model, &call) {
        Ok(()) => {}
        Err(rejection) => return (call, Err(rejection)),
    }
    match shorten::shortened(model, call, (inputs.now, TokenizerMemory(&inputs.memory)), &inputs.limits) {
        Ok(call) => {
            let encoded = encode_by_backend(model, &call, inputs);
            (call, encoded)
        }
        Err((call, rejection)) => (call, Err(rejection)),
    }
}

fn encode_by_backend(
    model: &ServedModel,
    call: &Call,
    inputs: &EncodeInputs,
) -> Result<EncodedCall, Rejection> {
    match &model.backend {
        Backend::Tokens(backend) => encode_prompts(model, backend, call, inputs),
        Backend::Vectors(backend) => {
            let most_tokens = inputs.limits.max_encode_tokens;
            let texts = encode_texts(model, backend, call, most_tokens, TokenizerMemory(&inputs.memory))?;
            Ok(EncodedCall::of(RenderedInput::Vectors(RenderedVectors { texts: EnginePrompts::new(texts) })))
        }
        Backend::Messages(_) => {
            let EncodeInputs { fleet, salt, most_answer_tokens, limits, .. } = inputs;
            let messages = messages::prepare(model, fleet, call, salt, *most_answer_tokens, limits)?;
            Ok(EncodedCall::of(RenderedInput::Messages(messages)))
        }
    }
}

fn encode_prompts(
    model: &ServedModel,
    backend: &TokenBackend,
    call: &Call,
    inputs: &EncodeInputs,
) -> Result<EncodedCall, Rejection> {
    check_supported(model, backend, call)?;
    could_fit(model, call)?;
    let memory = TokenizerMemory(&inputs.memory);
    match &call.prompt {
        Prompt::Conversation(conversation) => {
            let reasoning = Some(&call.reasoning);
            let options = RenderOptions { add_generation_prompt: true, now: inputs.now, reasoning };
            let (ids, text) = encode_conversation(model, backend, conversation, &options, memory)?;
            let cache = (&inputs.generated_ids, &inputs.salt);
            let past = reuse_past_answers(model, backend, call, cache, (ids, Some(&text)), inputs.now);
            let ReusedHistory { ids, kept_answers, recorder } = past;
            let (grammar, form_ns) = inputs.grammar(model, backend, call, &text)?;
            let reasoning_budget = reasoning_budget(model, backend, call, (&text, grammar.is_some()))?;
            let pins = cache_pins(backend, call, &text, &ids);
            let prompts = EnginePrompts::new(vec![ids.into()]);
            let text = Some(text);
            let tokens = RenderedTokens { prompts, text, grammar, reasoning_budget, pins, recorder };
            Ok(EncodedCall { rendered: RenderedInput::Tokens(tokens), form_ns, kept_answers })
        }
        Prompt::Encode(_) => Err(generator_rejection(model)),
        Prompt::Relayed(_) => Err(rendering_failed("it was read to be sent on")),
        Prompt::Raw(items) => {
            let each =
                items.iter().enumerate().map(|item| encode_raw_prompt(model, backend, call, item, memory));
            let (grammar, form_ns) = inputs.grammar(model, backend, call, "")?;
            let tokens = RenderedTokens {
                prompts: EnginePrompts::new(each.collect::<Result<_, _>>()?),
                text: None,
                grammar,
                reasoning_budget: None,
                pins: Arc::default(),
                recorder: None,
            };
            Ok(EncodedCall { rendered: RenderedInput::Tokens(tokens), form_ns, kept_answers: None })
        }
    }
}

/// The sampling parameters of a call, resolved for the model.
fn sampling(
    gateway: &Gateway,
    model: &ServedModel,
    call: &Call,
    rendered: &RenderedInput,
    (tiers, request_bits): (Option<&TierEntitlements>, u128),
) -> Result<Sampling, Rejection> {
    let longest = rendered.prompts().map_or(0, EnginePrompts::longest);
    match &model.backend {
        Backend::Tokens(backend) => {
            let most = answer_tokens(tiers, longest as u64, call.sampling.max_tokens)?;
            resolve(gateway, model, backend, call, (longest, most), request_bits)
        }
        // An encoder samples nothing.
        Backend::Vectors(_) => {
            answer_tokens(tiers, longest as u64, Some(0))?;
            Ok(call.sampling.resolve(&SamplingDefaults::default(), 0, 0))
        }
        Backend::Messages(_) => {
            let prompt = rendered.messages().map_or(0, |messages| messages.likely_prompt_tokens);
            let most = answer_tokens(tiers, prompt, call.sampling.max_tokens)?;
            Ok(messages::resolve(gateway, model, call, most))
        }
    }
}

/// Fills in what the caller left open and checks it against the model's window and vocabulary. The longest prompt has
/// `longest` tokens, and the caller's tiers allow answers of `most` tokens.
fn resolve(
    gateway: &Gateway,
    model: &ServedModel,
    backend: &TokenBackend,
    call: &Call,
    (longest, most): (usize, u32),
    request_bits: u128,
) -> Result<Sampling, Rejection> {
    let window = backend.capabilities.context_window;
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
        None => model.default_max_tokens.unwrap_or(gateway.config().default_max_tokens).min(room).min(most),
    };
    if call.sampling.min_tokens > max_tokens {
        let message = format!(
            "`min_tokens` is {} and at most {max_tokens} tokens may be generated.",
            call.sampling.min_tokens
        );
        return Err(Rejection::new(Code::InvalidValue, message).at(Stage::Render).with_param("min_tokens"));
    }
    let vocab = backend.capabilities.vocab;
    if let Some((id, _)) = call.sampling.logit_bias.iter().find(|(id, _)| *id >= vocab) {
        return Err(out_of_vocabulary("logit_bias", *id, model, &backend.capabilities));
    }
    if let Some(id) = call.sampling.stop_token_ids.iter().find(|id| **id >= vocab) {
        return Err(out_of_vocabulary("stop_token_ids", *id, model, &backend.capabilities));
    }
    // The low bits of a UUID v7 are random. They seed a call that names no seed.
    let drawn = u64::try_from(request_bits & u128::from(u64::MAX)).unwrap_or(0);
    let mut sampling = call.sampling.resolve(&backend.defaults, max_tokens, drawn);
    sampling.stop_token_ids.extend(end_of_fill(backend, call));
    Ok(sampling)
}

/// The tenant's number in the engine's fair queue: the FNV-1a hash of its name.
pub(crate) fn tenant_number(org: &str) -> u64 {
    org.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
