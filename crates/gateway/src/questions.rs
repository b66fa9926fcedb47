//! Questions about text and tokens besides calls: token counts, tokenizing and detokenizing. They count as requests
//! and cost nothing. Their memory and time are bounded like a call's. A count for another provider's model is
//! forwarded to its server (`passed`).

mod passed;
mod prompt_count;

pub(crate) use prompt_count::count_prompt;

use std::sync::Arc;

use bytes::Bytes;
use headrace_call_api::{BodySource, MemoryReservation, Question};
use headrace_call_state::{
    Answer, GeneratedIdCache, NoMemory, NotEncoded, Rejection, TokenizerMemory, keep_memory,
};
use headrace_catalog::{Backend, Catalog, EncoderOutput, ServedModel, TokenBackend, VectorBackend};
use headrace_domain::{
    Call, Code, Conversation, Endpoint, KeyId, ModelName, Prompt, PromptItem, Stage, UnixNanos,
};
use headrace_engine_api::Capabilities;
use headrace_identity::{EntitlementRefusal, Principal, may_use};
use headrace_prompt::RenderOptions;
use headrace_relay::{model_named, skim_question};
use headrace_render::{
    could_fit, encode_conversation, encoder_rejection, not_encoded, out_of_vocabulary, reuse_past_answers,
    text_alone, text_ids,
};
use headrace_rollout::RouteAsker;
use headrace_tokenizer::Tokenizer;
use headrace_wire::{
    TokenizeRequest, WireLimits, count_body, detokenize_body, parse_count, parse_detokenize, parse_tokenize,
    tokenize_body,
};

use crate::Gateway;
use crate::look_up::{Looked, respond};
use crate::refusal::draining;
use crate::refusal::refuse;
use crate::request_context::RequestContext;
use crate::stages::authorize::{name_kept, unknown_model_of};
use crate::stages::moderate::may_pass;
use crate::stages::prepare::reserve;
use crate::stages::render::salt_of;
use crate::stages::render::shorten::shortened;
use crate::stages::route::region_not_allowed;
use crate::state::IdentifiedCaller;

use passed::{CountRequester, RelayedCount};

/// Bytes that a token id takes in an answer: as a number, and as JSON in a growing buffer.
const WRITTEN_ID: u64 = 40;
/// Bytes that a token id and its spelling take: as above, with the spelling as a string and as JSON.
const SPELT_ID: u64 = 192;

/// Bytes that decoding takes: for each token a string, and for each byte of text the text and its JSON.
const DECODED_ID: u64 = 112;
const DECODED_BYTE: u64 = 16;

/// An admitted question.
pub(crate) struct AdmittedQuestion {
    question: Question,
    principal: Arc<Principal>,
    context: RequestContext,
    headers: Vec<(&'static str, String)>,
}

impl AdmittedQuestion {
    /// The key that the question is for.
    pub(crate) fn key(&self) -> &KeyId {
        &self.principal.key
    }
}

impl Gateway {
    /// Admits a question if the caller's key is valid and its request limit allows it.
    pub(crate) fn admit_question(
        &self,
        question: Question,
        (mut context, principal): IdentifiedCaller,
        headers: Vec<(&'static str, String)>,
    ) -> Result<AdmittedQuestion, Answer> {
        match principal {
            Ok(principal) => {
                context.is_of(&principal, self.records_of(principal.records));
                Ok(AdmittedQuestion { question, principal, context, headers })
            }
            Err(why) => Err(respond(&context, Err(why))),
        }
    }

    /// Answers a question. A refused question leaves a trace, as a refused call does.
    pub(crate) async fn answer_question(&self, mut asked: AdmittedQuestion, body: impl BodySource) -> Answer {
        match self.look_into(&mut asked, body).await {
            Ok(answer) => respond(&asked.context, Ok(answer)),
            Err(rejection) => refuse(self, asked.context, &rejection),
        }
    }

    async fn look_into(&self, asked: &mut AdmittedQuestion, body: impl BodySource) -> Looked {
        let read = tokio::select! {
            biased;
            read = body.read() => read,
            () = self.cut_off().cancelled() => return Err(draining()),
        };
        let body = read.map_err(|refusal| Rejection::of_body(&refusal))?;
        let taken = reserve(self, &asked.principal.key, &body, false).await?;
        // Found before the body is read: a refusal keeps the name, too.
        asked.context.record.model_asked = model_named(&body).as_deref().and_then(name_kept);
        let asker = RouteAsker {
            secret: self.parts().cache_secret,
            principal: Arc::clone(&asked.principal),
            request: asked.context.id,
            now: self.parts().clock.now(),
            to: None,
        };
        let (catalog, limits) = (self.catalog(), self.config().wire.clone());
        let kept = Arc::clone(self.kept_ids());
        let question =
            QuestionContext { question: asked.question, asker, catalog: Arc::clone(&catalog), kept, limits };
        let (answered, taken) = if taken.turn.is_none() {
            (question.answer(body, &taken.memory)?, taken)
        } else {
            // A long body takes milliseconds, and the event loop's threads must stay free. The reservation moves to
            // the other thread, where it lasts as long as the work.
            let reading = tokio::task::spawn_blocking(move || {
                let mut taken = taken;
                taken.reserve_trees(&body)?;
                Ok::<_, Rejection>((question.answer(body, &taken.memory)?, taken))
            });
            let stopped = |_| {
                Rejection::new(
                    Code::InternalError,
                    "The question could not be read: its reading was stopped.",
                )
                .at(Stage::Parse)
            };
            reading.await.map_err(stopped)??
        };
        let passed = match answered {
            QuestionAnswer::Here(body) => return Ok(keep_memory(taken.memory, Answer::json(200, body))),
            QuestionAnswer::Elsewhere(passed) => passed,
        };
        let AdmittedQuestion { principal, context, headers, .. } = asked;
        let now = self.parts().clock.now();
        let asks = CountRequester { principal, request: context.id, headers, now };
        tokio::select! {
            biased;
            told = passed.answer(&catalog, asks) => told,
            () = self.cut_off().cancelled() => Err(draining()),
        }
    }
}

/// The answer to a question, or the question to forward.
enum QuestionAnswer {
    Here(Vec<u8>),
    Elsewhere(Box<RelayedCount>),
}

/// A question whose body has arrived, with what answering it needs.
struct QuestionContext {
    question: Question,
    asker: RouteAsker,
    catalog: Arc<Catalog>,
    kept: Arc<GeneratedIdCache>,
    limits: WireLimits,
}

impl QuestionContext {
    fn answer(&self, body: Bytes, memory: &MemoryReservation) -> Result<QuestionAnswer, Rejection> {
        match self.question {
            Question::CountTokens => self.count(body, TokenizerMemory(memory)),
            Question::Tokenize => self.tokenize(&body, memory).map(QuestionAnswer::Here),
            Question::Detokenize => self.detokenize(&body, memory).map(QuestionAnswer::Here),
        }
    }

    fn count(&self, body: Bytes, room: TokenizerMemory<'_>) -> Result<QuestionAnswer, Rejection> {
        // As with calls, the model decides how the body is read.
        let named = model_named(&body).and_then(|name| ModelName::new(&name).ok());
        let model = named.and_then(|name| self.catalog.choose(&name, &self.asker, &body));
        if model.is_some_and(|model| model.backend.is_messages()) {
            let mut call = skim_question(Endpoint::Messages, body.clone(), &self.limits)?;
            let model = self.model(&call.model, Endpoint::Messages, &body)?;
            // Content that the rules keep out of forwarded calls is not forwarded in a question either.
            may_pass(&self.catalog, &self.asker.principal.project, &model, &mut call)?;
            return Ok(QuestionAnswer::Elsewhere(Box::new(RelayedCount { model, call })));
        }
        let call = parse_count(&body, &self.limits)?;
        let model = self.model(&call.model, Endpoint::Messages, &body)?;
        text_alone(&model, &call)?;
        let call = shortened(&model, Box::new(call), (self.asker.now, room), &self.limits)
            .map_err(|(_, rejection)| rejection)?;
        let (Backend::Tokens(backend), Prompt::Conversation(conversation)) = (&model.backend, &call.prompt)
        else {
            return Err(unread());
        };
        let reasoning = Some(&call.reasoning);
        let options = RenderOptions { add_generation_prompt: true, now: self.asker.now, reasoning };
        let ids = conversation_ids(&model, backend, &call, (conversation, &options), room)?;
        // As for a call: earlier answers count with their generated ids.
        let salt = salt_of(&self.asker.secret, &self.asker.principal.project, &model, &call);
        let past =
            reuse_past_answers(&model, backend, &call, (&self.kept, &salt), (ids, None), self.asker.now);
        Ok(QuestionAnswer::Here(count_body(past.ids.len() as u64, false)))
    }

    fn tokenize(&self, body: &[u8], memory: &MemoryReservation) -> Result<Vec<u8>, Rejection> {
        let asked = parse_tokenize(body, &self.limits)?;
        let usual = match asked.prompt {
            Prompt::Conversation(_) => Endpoint::ChatCompletions,
            Prompt::Raw(_) | Prompt::Encode(_) | Prompt::Relayed(_) => Endpoint::Completions,
        };
        let endpoint = self.endpoint(&asked.model, usual, body);
        let model = self.model(&asked.model, endpoint, body)?;
        let (tokenizer, capabilities) = words_of(&model)?;
        let is_spelt = asked.return_token_strs;
        let ids = match &model.backend {
            Backend::Vectors(backend) => text_ids_of(&model, backend, asked, TokenizerMemory(memory))?,
            backend => {
                let backend = backend.tokens().ok_or_else(unread)?;
                tokenized(&model, backend, asked, endpoint, (self.asker.now, TokenizerMemory(memory)))?
            }
        };
        let each = if is_spelt { SPELT_ID } else { WRITTEN_ID };
        let written = memory.add(each.saturating_mul(ids.len() as u64));
        written.map_err(|full| NoMemory::of(memory, full).at(Stage::Render))?;
        let spelt = |id: &u32| tokenizer.spelling(*id).unwrap_or_default();
        let strings: Option<Vec<String>> = is_spelt.then(|| ids.iter().map(spelt).collect());
        Ok(tokenize_body(&ids, capabilities.context_window, strings.as_deref()))
    }

    fn detokenize(&self, body: &[u8], memory: &MemoryReservation) -> Result<Vec<u8>, Rejection> {
        let asked = parse_detokenize(body, &self.limits)?;
        let endpoint = self.endpoint(&asked.model, Endpoint::Completions, body);
        let model = self.model(&asked.model, endpoint, body)?;
        let (tokenizer, capabilities) = words_of(&model)?;
        if let Some(id) = asked.tokens.iter().find(|id| **id >= capabilities.vocab) {
            return Err(out_of_vocabulary("tokens", *id, &model, capabilities));
        }
        let text = asked.tokens.iter().filter_map(|id| tokenizer.token_bytes(*id));
        let text: u64 = text.map(|bytes| bytes.len() as u64).sum();
        let ids = DECODED_ID.saturating_mul(asked.tokens.len() as u64);
        let needed = ids.saturating_add(text.saturating_mul(DECODED_BYTE));
        memory.add(needed).map_err(|full| NoMemory::of(memory, full).at(Stage::Render))?;
        Ok(detokenize_body(&tokenizer.decode(&asked.tokens, false)))
    }

    /// The endpoint for which the key needs permission: one that the model serves, or `usual` if it generates text.
    fn endpoint(&self, name: &str, usual: Endpoint, body: &[u8]) -> Endpoint {
        let name = ModelName::new(name).ok();
        let model = name.and_then(|name| self.catalog.choose(&name, &self.asker, body));
        match model.as_ref().map(|model| &model.backend) {
            Some(Backend::Vectors(VectorBackend { makes: EncoderOutput::Vectors { .. }, .. })) => {
                Endpoint::Embeddings
            }
            Some(Backend::Vectors(VectorBackend { makes: EncoderOutput::Scores, .. })) => Endpoint::Rerank,
            _ => usual,
        }
    }

    /// The model behind a name, if the caller may use it at this endpoint and it is offered within the caller's
    /// residency.
    fn model(&self, name: &str, endpoint: Endpoint, body: &[u8]) -> Result<Arc<ServedModel>, Rejection> {
        let (catalog, principal) = (&self.catalog, &self.asker.principal);
        let unknown = || unknown_model_of(name, principal, catalog);
        may_use(principal, name, endpoint).map_err(|refusal| match refusal {
            EntitlementRefusal::Endpoint(_) => {
                Rejection::new(Code::EndpointNotEntitled, format!("{refusal} Ask for a key that may."))
            }
            EntitlementRefusal::Model => unknown(),
        })?;
        let asked = ModelName::new(name).map_err(|_| unknown())?;
        let model = catalog.choose(&asked, &self.asker, body).ok_or_else(unknown)?;
        if let Some((ended, notice)) = catalog.notice(&asked, &model.name)
            && notice.is_over(self.asker.now)
            && !notice.moves
        {
            return Err(Rejection::retired(notice.refusal(ended)));
        }
        if !catalog.fleet().serves_within(&model.name, &principal.regions) {
            return Err(region_not_allowed(principal, catalog, &asked));
        }
        Ok(model)
    }
}

/// The token ids of the text or conversation in the question.
fn tokenized(
    model: &ServedModel,
    backend: &TokenBackend,
    asked: TokenizeRequest,
    endpoint: Endpoint,
    (now, room): (UnixNanos, TokenizerMemory<'_>),
) -> Result<Vec<u32>, Rejection> {
    let TokenizeRequest { model: name, prompt, add_generation_prompt, add_special_tokens, .. } = asked;
    let call = Call::of_prompt(endpoint, name, prompt);
    match &call.prompt {
        Prompt::Conversation(conversation) => {
            let options = RenderOptions { add_generation_prompt, now, reasoning: Some(&call.reasoning) };
            conversation_ids(model, backend, &call, (conversation, &options), room)
        }
        Prompt::Raw(items) => {
            could_fit(model, &call)?;
            let Some(PromptItem::Text(text)) = items.first() else { return Err(unread()) };
            let ids = room.encode(usize::MAX, |bounds| {
                backend.tokenizer.encode_plain_within(text, add_special_tokens, bounds)
            });
            ids.map_err(|error| match error {
                NotEncoded::NoMemory(_) => not_encoded(error),
                NotEncoded::TooMany | NotEncoded::Failed(_) => unread(),
            })
        }
        Prompt::Encode(_) | Prompt::Relayed(_) => Err(unread()),
    }
}

fn conversation_ids(
    model: &ServedModel,
    backend: &TokenBackend,
    call: &Call,
    (conversation, options): (&Conversation, &RenderOptions<'_>),
    room: TokenizerMemory<'_>,
) -> Result<Vec<u32>, Rejection> {
    text_alone(model, call)?;
    could_fit(model, call)?;
    encode_conversation(model, backend, conversation, options, room).map(|(ids, _)| ids)
}

/// The token ids of a text as an encoder would take it.
fn text_ids_of(
    model: &ServedModel,
    backend: &VectorBackend,
    asked: TokenizeRequest,
    room: TokenizerMemory<'_>,
) -> Result<Vec<u32>, Rejection> {
    let Prompt::Raw(items) = asked.prompt else { return Err(encoder_rejection(model, backend)) };
    let Some(PromptItem::Text(text)) = items.into_iter().next() else { return Err(unread()) };
    text_ids(model, backend, text, asked.add_special_tokens, room)
}

/// The tokenizer of a model, and the capabilities that bound its ids.
///
/// # Errors
/// The model's tokenizer is at another provider's server.
fn words_of(model: &ServedModel) -> Result<(&Tokenizer, &Capabilities), Rejection> {
    match &model.backend {
        Backend::Tokens(backend) => Ok((&backend.tokenizer, &backend.capabilities)),
        Backend::Vectors(backend) => Ok((&backend.tokenizer, &backend.capabilities)),
        Backend::Messages(_) => {
            let message = format!(
                "Only the server that answers for `{}` knows its tokens. Ask that server.",
                model.name
            );
            Err(Rejection::new(Code::UnsupportedParameter, message).at(Stage::Render).with_param("model"))
        }
    }
}

fn unread() -> Rejection {
    Rejection::new(Code::RenderFailed, "The question could not be read as it was sent. Nothing was charged.")
}
