//! One job in progress: one call per choice, merged into the engine's events. Must not know response bodies.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use headrace_domain::{Dialect, EngineTrace, FinishReason, TokenLogprob, TopLogprob, Usage};
use headrace_engine_api::{
    AnswerBounds, EventSender, Job, JobError, JobEvent, JobReport, RelayAnswer as _, RelayError, RelayEvent,
};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::answer::UpstreamAnswer;
use crate::ask::PostRequest;
use crate::gate::GateTenant;
use crate::load_gauge::LoadGauge;
use crate::server::UpstreamServer;
use crate::tokens::ask::TokenAsk;
use crate::tokens::choice::{ChoiceRules, TokenChoice};
use crate::tokens::form;
use crate::tokens::model::TokenModelSpec;
use crate::tokens::piece::{TokenPiece, TokenScore};
use crate::tokens::protocol::{TokenProtocol, TokenReader};

/// How long an ended choice waits for its usage, which holds the number of cached prompt tokens.
const USAGE_WAIT: Duration = Duration::from_secs(2);
/// How long it waits for the end of the stream after its usage. After that end, the connection can be reused.
const END_WAIT: Duration = Duration::from_millis(250);

/// Where a job is sent.
pub(super) struct JobTarget {
    pub(super) server: Arc<UpstreamServer>,
    /// The gauge of the model at the server.
    pub(super) gauge: Arc<LoadGauge>,
}

/// One job.
pub(super) struct TokenRun {
    server: Arc<UpstreamServer>,
    gauge: Arc<LoadGauge>,
    model: Arc<TokenModelSpec>,
    job: Job,
    rules: ChoiceRules,
    sender: EventSender,
    /// Notified when the reader has caught up or has cancelled the job.
    woken: Arc<Notify>,
    calls: Vec<ChoiceCall>,
    /// Only prompts of this tenant were sent to the server.
    alone: bool,
    trace: EngineTrace,
    output: u64,
    /// Prompt tokens that every choice found in the cache.
    cached: Option<u64>,
    /// Index of the call to poll first: the one after the call that produced the last event.
    turn: usize,
    started: bool,
    submitted_ns: u64,
    started_ns: u64,
    first_token_ns: Option<u64>,
}

/// One choice and the call that generates it.
struct ChoiceCall {
    choice: TokenChoice,
    /// `None` if the call is over.
    answer: Option<UpstreamAnswer>,
    protocol: TokenProtocol,
    reader: TokenReader,
    /// The answer's ids so far. They are needed if the rest has to be requested again.
    ids: Vec<u32>,
    /// Deadline of the stream after the choice has ended. `None` before that.
    over_at: Option<Instant>,
    /// The usage has arrived.
    reported: bool,
}

impl ChoiceCall {
    /// Sets the deadline of a stream whose choice has ended, so that neither silence nor heartbeats keep the call open.
    fn set_end(&mut self) {
        if self.choice.has_ended() {
            let wait = if self.reported { END_WAIT } else { USAGE_WAIT };
            let at = Instant::now() + wait;
            self.over_at = Some(self.over_at.map_or(at, |before| before.min(at)));
        }
    }
}

impl TokenRun {
    pub(super) fn new(
        JobTarget { server, gauge }: JobTarget,
        model: Arc<TokenModelSpec>,
        job: Job,
        sender: EventSender,
        woken: Arc<Notify>,
    ) -> Self {
        let rules = ChoiceRules::new(job.sampling.clone(), &model, job.parts().0.len());
        let now = model.clock.monotonic_nanos();
        let alone = server.is_alone(job.salt.label());
        Self {
            server,
            gauge,
            model,
            job,
            rules,
            sender,
            woken,
            calls: Vec::new(),
            alone,
            trace: EngineTrace::default(),
            output: 0,
            cached: None,
            turn: 0,
            started: false,
            submitted_ns: now,
            started_ns: now,
            first_token_ns: None,
        }
    }

    /// Runs until every choice has ended, the job has failed, or its reader has cancelled it.
    pub(super) async fn run_to_end(mut self) {
        for index in 0..self.job.sampling.n {
            self.call(index);
        }
        let ended = self.run().await;
        // Calls in progress are cancelled before the end of the job is reported.
        self.calls.clear();
        let report = Arc::new(JobReport { usage: self.usage(), engine: std::mem::take(&mut self.trace) });
        self.sender.finish(match ended {
            Ok(()) => JobEvent::Done(report),
            Err(error) => JobEvent::Failed { error, report },
        });
    }

    fn call(&mut self, index: u32) {
        let number = self.job.first_choice + index;
        let mut choice = TokenChoice::new(number, &self.rules, &self.model);
        if let Some(reason) = choice.take_up(self.job.parts().1, &self.rules) {
            // Only the end of this choice had not been reported.
            self.sender.send(JobEvent::Finished { choice: number, reason });
            return;
        }
        let protocol = TokenProtocol::of(&self.server);
        // llama.cpp would restart the form in a continuation, so an answer with a form is not streamed: lost ids could
        // not be requested again.
        let stream = protocol != TokenProtocol::Llama || self.job.grammar.is_none();
        let answer = Some(self.ask(protocol, number, &[], stream));
        let (reader, ids) = (protocol.reader(), Vec::new());
        self.calls.push(ChoiceCall { choice, answer, protocol, reader, ids, over_at: None, reported: false });
    }

    /// Requests an answer, or the continuation after `ids`.
    fn ask(&self, protocol: TokenProtocol, choice: u32, ids: &[u32], stream: bool) -> UpstreamAnswer {
        let begun;
        let prompt = match ids {
            [] => &*self.job.prompt,
            ids => {
                begun = [&*self.job.prompt, ids].concat();
                &begun
            }
        };
        let generated = self.job.generated.saturating_add(u32::try_from(ids.len()).unwrap_or(u32::MAX));
        let (model, job, rules) = (self.model.model.as_str(), &self.job, &self.rules);
        let ask = TokenAsk { model, job, rules, choice, prompt, generated, alone: self.alone };
        let post = PostRequest {
            url: protocol.url(&self.server),
            dialect: Dialect::OpenAi,
            request: self.job.request,
            body: Bytes::from(protocol.body(&ask, stream).to_string()),
            stream,
            headers: self.job.trace.iter().map(|parent| ("traceparent", parent.to_string())).collect(),
            head_within: self.time_to_start().filter(|_| ids.is_empty()),
            asker: GateTenant { tenant: self.job.tenant, weight: self.job.weight },
            gauge: Arc::clone(&self.gauge),
            bounds: bounds(ask.left(rules.limit), job.sampling.logprobs),
        };
        UpstreamAnswer::new(Arc::clone(&self.server), post)
    }

    /// Switches to the older protocol, because the server lacks the newer endpoint.
    fn ask_otherwise(&mut self, index: usize) {
        self.server.set_lacks_generate();
        let protocol = TokenProtocol::of(&self.server);
        let Some(number) = self.calls.get(index).map(|call| call.choice.number) else { return };
        let answer = self.ask(protocol, number, &[], true);
        if let Some(call) = self.calls.get_mut(index) {
            (call.answer, call.protocol, call.reader) = (Some(answer), protocol, protocol.reader());
        }
    }

    /// Requests the rest of an answer in one piece.
    fn ask_for_the_rest(&mut self, index: usize) {
        let Some(call) = self.calls.get_mut(index) else { return };
        call.answer = None;
        let (number, protocol, ids) = (call.choice.number, call.protocol, std::mem::take(&mut call.ids));
        let answer = self.ask(protocol, number, &ids, false);
        if let Some(call) = self.calls.get_mut(index) {
            (call.answer, call.ids) = (Some(answer), ids);
        }
    }

    fn time_to_start(&self) -> Option<Duration> {
        let deadline = self.job.start_deadline_ns?;
        Some(Duration::from_nanos(deadline.saturating_sub(self.model.clock.monotonic_nanos())))
    }

    async fn run(&mut self) -> Result<(), JobError> {
        loop {
            if self.sender.is_cancelled() {
                return Err(JobError::Cancelled);
            }
            if self.sender.is_paused() || self.sender.is_full() && self.sender.pause() {
                self.woken.notified().await;
                continue;
            }
            let (calls, turn) = (&mut self.calls, self.turn);
            let waiting = calls.iter().filter(|call| call.answer.is_some());
            let over_at = waiting.filter_map(|call| call.over_at).min();
            let over = async {
                match over_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let next = tokio::select! {
                biased;
                () = self.woken.notified() => continue,
                next = poll_fn(|cx| poll_any(calls, turn, cx)) => next,
                () = over => {
                    self.close_late();
                    continue;
                }
            };
            match next {
                Some((index, event)) => {
                    self.turn = index + 1;
                    self.take(index, event)?;
                }
                None => return Ok(()),
            }
        }
    }

    /// Cancels the streams of ended choices that are past their deadline.
    fn close_late(&mut self) {
        let now = Instant::now();
        for call in self.calls.iter_mut().filter(|call| call.over_at.is_some_and(|at| at <= now)) {
            call.answer = None;
        }
    }

    fn take(&mut self, index: usize, event: Option<RelayEvent>) -> Result<(), JobError> {
        let failed = |detail: String| Err(JobError::Internal { detail });
        match event {
            Some(RelayEvent::Head(_)) => {
                self.start();
                Ok(())
            }
            Some(RelayEvent::Event(event)) => {
                let Some(call) = self.calls.get_mut(index) else { return Ok(()) };
                match call.reader.read(&event.data, &self.model) {
                    Ok(piece) => self.pieces(index, piece),
                    Err(what) => failed(format!("`{}` sent {what}", self.server.spec.name)),
                }
            }
            Some(RelayEvent::Whole(body)) => {
                let Some(call) = self.calls.get(index) else { return Ok(()) };
                match call.reader.read_whole(&body) {
                    Ok(piece) => self.pieces(index, piece),
                    Err(what) => failed(format!("`{}` sent {what}", self.server.spec.name)),
                }
            }
            Some(RelayEvent::Failed(error))
                if self.calls.get(index).is_some_and(|call| call.protocol.is_not_there(&error)) =>
            {
                self.ask_otherwise(index);
                Ok(())
            }
            // The text was complete. Only the number of cached prompt tokens stays unknown.
            Some(RelayEvent::Failed(_))
                if self.calls.get(index).is_some_and(|call| call.choice.has_ended()) =>
            {
                self.over(index)
            }
            Some(RelayEvent::Failed(_)) if !self.started && self.time_to_start() == Some(Duration::ZERO) => {
                Err(JobError::Expired { retry_after: Duration::from_secs(1) })
            }
            Some(RelayEvent::Failed(RelayError::Status { status: 400, .. }))
                if !self.started && self.job.grammar.is_some() =>
            {
                Err(form::not_taken(&self.job))
            }
            Some(RelayEvent::Failed(error)) => failed(format!("`{}`: {error}", self.server.spec.name)),
            None => self.over(index),
        }
    }

    /// Records that the server computes.
    fn start(&mut self) {
        if !std::mem::replace(&mut self.started, true) {
            self.started_ns = self.model.clock.monotonic_nanos();
            self.trace.queue_ns = self.started_ns.saturating_sub(self.submitted_ns);
            // The server reports the number of cached tokens at the end.
            self.sender.send(JobEvent::Started { cached_tokens: 0 });
        }
    }

    /// Processes one event of a choice's stream.
    fn pieces(&mut self, index: usize, piece: TokenPiece) -> Result<(), JobError> {
        self.cached = piece
            .cached
            .map_or(self.cached, |cached| Some(self.cached.map_or(cached, |least| least.min(cached))));
        let Some(call) = self.calls.get_mut(index) else { return Ok(()) };
        call.reported |= piece.cached.is_some();
        call.set_end();
        if piece.done {
            call.answer = None;
            return self.done(index);
        }
        if call.choice.has_ended() {
            return Ok(());
        }
        if piece.lost {
            self.ask_for_the_rest(index);
            return Ok(());
        }
        let (mut text, mut ended, mut taken) = (String::new(), None, 0);
        for id in &piece.ids {
            taken += 1;
            ended = call.choice.take(*id, &self.rules, &mut text);
            if ended.is_some() {
                break;
            }
        }
        // Our own rules ended the choice first, so the call is cancelled and the server computes nothing more.
        if ended.is_some() && piece.finish.is_none() {
            call.answer = None;
        }
        let server_ended = piece.finish.filter(|_| ended.is_none());
        let ended = ended.or_else(|| Some(call.choice.end(server_ended?, &self.rules, &mut text)));
        call.set_end();
        let choice = call.choice.number;
        let mut ids = piece.ids;
        ids.truncate(taken);
        call.ids.extend_from_slice(&ids);
        let logprobs = self.logprobs(&ids, piece.scores);
        self.emit(choice, ids, text, logprobs, ended);
        Ok(())
    }

    fn emit(
        &mut self,
        choice: u32,
        ids: Vec<u32>,
        text: String,
        logprobs: Vec<TokenLogprob>,
        ended: Option<FinishReason>,
    ) {
        self.start();
        if !ids.is_empty() {
            let now = self.model.clock.monotonic_nanos();
            let first = *self.first_token_ns.get_or_insert(now);
            self.trace.prefill_ns = first.saturating_sub(self.started_ns);
            self.trace.decode_ns = now.saturating_sub(first);
            self.output += ids.len() as u64;
        }
        if !ids.is_empty() || !text.is_empty() {
            self.sender.send(JobEvent::Tokens { choice, ids, text, logprobs });
        }
        if let Some(reason) = ended {
            self.sender.send(JobEvent::Finished { choice, reason });
        }
    }

    fn logprobs(&self, ids: &[u32], scores: Vec<TokenScore>) -> Vec<TokenLogprob> {
        let Some(most) = self.job.sampling.logprobs else { return Vec::new() };
        let bytes = |id: u32| self.model.tokenizer.token_bytes(id).unwrap_or(&[]).to_vec();
        let top = |(id, logprob): (u32, f32)| TopLogprob { id, bytes: bytes(id), logprob };
        let one = |(id, score): (&u32, TokenScore)| TokenLogprob {
            id: *id,
            bytes: bytes(*id),
            logprob: Some(score.chosen),
            top: score.top.into_iter().take(usize::from(most)).map(top).collect(),
        };
        ids.iter().zip(scores).map(one).collect()
    }

    /// All choices share one prompt. A token that one choice found cached may have been computed for another, so the
    /// minimum counts.
    fn usage(&self) -> Usage {
        let prompt = self.job.prompt.len() as u64;
        let cached_input = self.cached.unwrap_or(0).min(prompt);
        Usage { input: prompt - cached_input, cached_input, output: self.output, ..Usage::default() }
    }

    /// Handles the server's end marker. Without another reason, the choice ended by itself, if it has any token.
    fn done(&mut self, index: usize) -> Result<(), JobError> {
        let Some(call) = self.calls.get_mut(index).filter(|call| !call.choice.has_ended()) else {
            return Ok(());
        };
        if call.ids.is_empty() {
            return self.over(index);
        }
        let mut text = String::new();
        let reason = call.choice.end(FinishReason::Stop, &self.rules, &mut text);
        let choice = call.choice.number;
        self.emit(choice, Vec::new(), text, Vec::new(), Some(reason));
        Ok(())
    }

    /// Handles the end of a choice's stream.
    fn over(&mut self, index: usize) -> Result<(), JobError> {
        let Some(call) = self.calls.get_mut(index) else { return Ok(()) };
        call.answer = None;
        if call.choice.has_ended() {
            return Ok(());
        }
        let detail = format!("`{}` ended its answer without saying why", self.server.spec.name);
        Err(JobError::Internal { detail })
    }
}

/// Bytes of an answer besides its tokens: head, usage, and comments while the call waits at the server.
const ANSWER_BYTES: u64 = 256 << 10;
/// Bytes that surround a token in an event of its own.
const TOKEN_BYTES: u64 = 1 << 10;
/// Bytes of one log-probability.
const SCORE_BYTES: u64 = 256;
/// Maximum size of an event. It holds the tokens of one step, or of a few steps if its reader was late.
const MAX_EVENT_BYTES: usize = 1 << 20;

/// Limits the bytes of an answer of `tokens` tokens to four times the longest such answer. The call's estimate already
/// covers the memory.
fn bounds(tokens: u32, top: Option<u8>) -> AnswerBounds {
    let scores = top.map_or(0, |top| u64::from(top).saturating_add(1));
    let token = TOKEN_BYTES.saturating_add(SCORE_BYTES.saturating_mul(scores));
    let most_bytes = ANSWER_BYTES.saturating_add(token.saturating_mul(tokens.into())).saturating_mul(4);
    AnswerBounds { most_event_bytes: MAX_EVENT_BYTES, ..AnswerBounds::up_to(most_bytes) }
}

/// Polls the calls for the next event, starting at index `turn`. Returns `None` if all calls are over.
fn poll_any(
    calls: &mut [ChoiceCall],
    turn: usize,
    cx: &mut Context<'_>,
) -> Poll<Option<(usize, Option<RelayEvent>)>> {
    let mut over = true;
    let (before, after) = calls.split_at_mut(turn.min(calls.len()));
    let begin = before.len();
    let after = (begin..).zip(after);
    for (index, call) in after.chain((0..).zip(before)) {
        let Some(answer) = &mut call.answer else { continue };
        over = false;
        if let Poll::Ready(event) = answer.poll_next(cx) {
            return Poll::Ready(Some((index, event)));
        }
    }
    if over { Poll::Ready(None) } else { Poll::Pending }
}
