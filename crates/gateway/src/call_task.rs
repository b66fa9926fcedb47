//! The call task, which owns a request from its hold on: reply events in, bytes out. Every call ends with one
//! settlement, one last event to the client and one trace record, even if a step of the task panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::FutureExt;
use headrace_call_api::GiveUp;
use headrace_call_state::{Answer, KeptCallHandle, Rejection, delivery::DeliveryCut};
use headrace_domain::{CallOutcome, Code, FinishReason, ModelName, Stage, Usage};
use headrace_ledger::{ReleaseReason, SettleOutcome};
use headrace_rollout::{CallVerdict, ShadowCopy};
use tokio::sync::oneshot;

use crate::request_context::RequestContext;
use crate::stages::cache::miss;
use crate::state::FundedCall;
use crate::{Gateway, features};

// In the order of the path, then what runs when the call is over.
mod round;

mod placement;

mod race;

mod relay_attempt;

mod fall_back;
mod format_check;

pub(crate) mod source;

mod client_stream;
mod event_batcher;

mod reply;

mod early_end;

mod stored;

use crate::settle::{CallBill, CallSettlement, SettleHaste, SettledProof};

use client_stream::ClientStream;
use early_end::{cut_off, key_over, too_long};
use event_batcher::EventBatcher;
use placement::Placed;
use reply::ReplyWriter;
use round::Round;
use source::source_event::{LostJob, SourceEvent};

pub(crate) use reply::reply_meta;

/// How long the end of a call waits to learn whether its hold reached the disk.
const HOLD_WAIT: Duration = Duration::from_secs(5);
/// How long a call that was cut off, by a shutdown or for its length, waits until its last event is taken.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Everything that a request has and owes from its hold on. It is kept outside of the steps that work on it, so a panic
/// in one of them loses nothing. No step repeats what is already done.
pub(crate) struct CallTask {
    context: RequestContext,
    settlement: CallSettlement,
    line: ClientStream,
    reply: Option<ReplyWriter>,
    /// The end of the answer's body, once it is encoded.
    end: Option<BytesMut>,
    located: bool,
    ended: Option<SettledEnd>,
    round: Round,
    /// Models that failed, or that were chosen to take over.
    passed_over: Vec<ModelName>,
    noted: StoreProgress,
    /// While this exists the call counts as alive, and its hold is kept from expiring.
    beat: KeptCallHandle,
}

/// How far storing a response has progressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum StoreProgress {
    /// Nothing is stored.
    #[default]
    Nothing,
    /// The beginning is stored.
    Begun,
    /// The end is stored.
    Ended,
}

/// How the call ended, as it was settled.
struct SettledEnd {
    ending: CallEnding,
    outcome: CallOutcome,
    cut: DeliveryCut,
    told: bool,
}

impl SettledEnd {
    /// What the ending says about the model. `None` if it says nothing.
    fn went(&self) -> Option<CallVerdict> {
        match (&self.ending, &self.outcome) {
            (CallEnding::Completed, CallOutcome::Completed { finish }) => {
                let refused = finish.iter().any(|name| name == FinishReason::ContentFilter.name());
                Some(if refused { CallVerdict::Refused } else { CallVerdict::Well })
            }
            (CallEnding::Failed(rejection) | CallEnding::Refused(rejection), _) => {
                CallVerdict::of_refusal(rejection.code, rejection.status)
            }
            _ => None,
        }
    }
}

/// How the work ended, before the client is answered or charged.
enum CallEnding {
    Completed,
    /// The client went away. It pays for what was computed.
    ClientGone,
    /// The client stopped reading. It pays for what was written to it.
    Stalled {
        waited: Duration,
    },
    /// The key was revoked or expired. The client pays for what was computed.
    KeyOver(Rejection),
    /// The gateway or the engine failed. The client pays for what was delivered to it.
    Failed(Rejection),
    /// No worker took the call, or the hold never reached the disk. Nothing happened.
    Refused(Rejection),
}

/// Owns the request until it is settled, answered and traced, and its last byte is taken. Returns the shadow copy that
/// is to be made of it.
pub(crate) async fn carry(
    gateway: Arc<Gateway>,
    context: RequestContext,
    funded: FundedCall,
    head: oneshot::Sender<Answer>,
) -> Option<Box<ShadowCopy>> {
    // Boxed, so that moving the call copies nothing.
    let mut call = Box::new(CallTask::new(&gateway, context, funded, head));
    if guarded(call.travel(&gateway)).await.is_none() {
        Box::pin(call.salvage(&gateway)).await;
    }
    call.close(&gateway).await
}

/// The result of a step. `None` if it panicked. Not an `async fn`, which would reserve space for the step twice.
fn guarded<F: Future>(step: F) -> impl Future<Output = Option<F::Output>> {
    AssertUnwindSafe(step).catch_unwind().map(Result::ok)
}

fn attempt<T>(step: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(step)).ok()
}

impl CallTask {
    fn new(
        gateway: &Gateway,
        context: RequestContext,
        funded: FundedCall,
        head: oneshot::Sender<Answer>,
    ) -> Self {
        let FundedCall { work, settlement, headers } = funded;
        let beat = gateway.hold_keeper().join(settlement.hold(), context.record.key.clone());
        let line = ClientStream::new(gateway.config(), head, headers, &work);
        if let Some(kept) = features::on_task(&context, &work) {
            line.sender.keep(kept);
        }
        Self {
            line,
            context,
            settlement,
            reply: None,
            end: None,
            located: false,
            ended: None,
            round: Round::new(work, &gateway.config().wire),
            passed_over: Vec::new(),
            noted: StoreProgress::default(),
            beat,
        }
    }

    async fn travel(&mut self, gateway: &Gateway) {
        let ending = self.round(gateway).await;
        self.finish(gateway, ending).await;
    }

    /// The steps that end every call, once: the end of its answer, its settlement, its last event.
    async fn finish(&mut self, gateway: &Gateway, ending: CallEnding) {
        // An answer that cannot be encoded is not charged, so its end is encoded before it is settled.
        let ending = match ending {
            CallEnding::Completed => self.complete(gateway).await,
            other => other,
        };
        let settled = self.settle(gateway, ending).await;
        self.tell(settled);
        self.note_end(gateway).await;
        if !self.located {
            // The call is over: no client waits for this, and its time does not count as the call's.
            self.locate(gateway).await;
            let miss = self.context.record.engine.as_ref().and_then(|engine| engine.miss);
            let ended_ns = self.context.line.end_ns();
            self.context.record.after_ns =
                miss.map_or(0, |_| self.context.elapsed_ns().saturating_sub(ended_ns));
        }
    }

    /// Runs a round: places its prompts, reads the answers, and adds the round to the call's record. If it fails before
    /// anything has gone out, it may start again with the same or a fallback model. Rounds share one hold and line.
    async fn round(&mut self, gateway: &Gateway) -> CallEnding {
        let ending = loop {
            let ending = match self.round.place(gateway, &mut self.context) {
                Ok(placed) => self.judged_run(gateway, &placed).await,
                Err(rejection) => CallEnding::Refused(rejection),
            };
            if matches!(ending, CallEnding::Completed) {
                break ending;
            }
            self.round.source.cancel().await;
            if !self.asks_again(gateway, &ending) && !Box::pin(self.falls_back(gateway, &ending)).await {
                break ending;
            }
        };
        let ending = self.held(ending).await;
        self.round.note(&mut self.context, self.reply.as_mut());
        ending
    }

    /// Replaces the ending if the hold never reached the disk: then nothing happened, and no money is held.
    async fn held(&mut self, ending: CallEnding) -> CallEnding {
        if matches!(ending, CallEnding::Refused(_)) {
            return ending;
        }
        match tokio::time::timeout(HOLD_WAIT, self.settlement.held()).await {
            Ok(Err(failed)) => not_held(&failed),
            Ok(Ok(())) | Err(_) => ending,
        }
    }

    /// Reads the source until its answers are complete or something else ends the call.
    async fn run(&mut self, gateway: &Gateway, _: &Placed) -> CallEnding {
        let config = gateway.config();
        let longest = config.longest_call();
        let period = config.period();
        let (mut durable, mut silent, mut waited) = (false, Duration::ZERO, None::<Duration>);
        let Self { context, settlement, line, reply, round, beat, .. } = self;
        round.source.listen(context.id);
        // One answer in one encoder, however many rounds it takes.
        let reply = reply.get_or_insert_with(|| ReplyWriter::new(&round.work, context));
        let (mut events, mut ahead) = (Vec::new(), EventBatcher::default());
        let patience = round.patience(gateway, context);
        let mut has_patience = patience.is_some();
        let mut impatient = std::pin::pin!(tokio::time::sleep(patience.unwrap_or_default()));
        if gateway.cut_off().is_cancelled() {
            return CallEnding::Failed(cut_off());
        }
        line.content_type = reply.content_type();
        loop {
            if line.may_begin() && (reply.is_meaningful() || waited >= Some(config.first_event_wait)) {
                if durable {
                    line.begin(context);
                } else {
                    settlement.durable.hurry();
                }
            }
            let full = line.sender.is_full();
            if full != round.pauses.is_paused() {
                round.pauses.set(full, context.elapsed_ns());
            }
            tokio::select! {
                biased;
                () = line.reader_moved() => if let Some(why) = line.given_up() {
                    // The transport's stall time is longer than ours, even if it took a last frame in between.
                    let stalled = line.stalled(context.clock.monotonic_nanos());
                    return gave_up(why, stalled.max(config.stall_timeout));
                },
                () = beat.next() => {
                    if gateway.cut_off().is_cancelled() {
                        return CallEnding::Failed(cut_off());
                    }
                    if let Some(refusal) = beat.key_refusal() {
                        return CallEnding::KeyOver(key_over(&refusal));
                    }
                    // The first beat comes at any time within the first period, so it counts as no wait.
                    waited = Some(waited.map_or(Duration::ZERO, |waited| waited + period));
                    silent += period;
                    let now_ns = context.clock.monotonic_nanos();
                    if Duration::from_nanos(now_ns.saturating_sub(settlement.taken_ns)) >= longest {
                        return CallEnding::Failed(too_long(longest));
                    }
                    let stalled = line.stalled(now_ns);
                    if stalled >= config.stall_timeout {
                        return CallEnding::Stalled { waited: stalled };
                    }
                    if line.has_begun() && silent >= config.keep_alive {
                        silent = Duration::ZERO;
                        reply.keep_alive(&line.sender);
                    }
                }
                said = ahead.next(&mut round.source, context, &mut events), if !full => match said {
                    SourceEvent::Over => break,
                    SourceEvent::Lost(lost) => {
                        if let Err(rejection) = move_on(gateway, context, line, reply, round, *lost) {
                            return CallEnding::Failed(rejection);
                        }
                    }
                    SourceEvent::Outrun(outrun) => round.outrun(gateway, context, *outrun),
                    SourceEvent::Passed(passed) => {
                        reply.pass(passed, context);
                        silent = Duration::ZERO;
                        reply.hand_over(&line.sender, context);
                    }
                    SourceEvent::More(more) => {
                        ahead.take_in(reply, &mut round.source, more, &mut events, context).await;
                        silent = Duration::ZERO;
                        reply.hand_over(&line.sender, context);
                    }
                },
                // After the source. The first poll steps back for one turn, so that other calls' holds can join the
                // write. A second poll in the same turn would request the write at once.
                written = &mut settlement.durable, if !durable => match written {
                    Ok(()) => durable = true,
                    Err(failed) => return not_held(&failed),
                },
                () = &mut impatient, if has_patience => {
                    has_patience = false;
                    round.race(gateway, context);
                }
            }
        }
        settlement.held().await.map_or_else(|failed| not_held(&failed), |()| CallEnding::Completed)
    }

    /// Encodes the end of the answer, with its cost and the place of a cache miss if the caller asked for them.
    async fn encode_end(&mut self, gateway: &Gateway) {
        let used = self.context.record.usage;
        let mut explained = None;
        if self.round.work.call.explain {
            self.locate(gateway).await;
            self.context.record.cost = self.settlement.price(&used, &self.context);
            self.context.note_times();
            let mut block = gateway.parts().records.block(&self.context.record);
            if let Some(fields) = block.as_object_mut() {
                // Written as in the trace. How the call as a whole ended is not known yet.
                let finish = serde_json::json!({ "finish_reasons": self.finish_names() });
                fields.insert("outcome".to_owned(), finish);
            }
            explained = Some(block);
        }
        if let Some(reply) = &mut self.reply {
            self.end = Some(reply.finish(&used, explained, self.context.clock.now()).await);
        }
        self.context.end_stage(Stage::Deliver);
    }

    /// Ends the hold, once. What the transport has not taken is discarded: nothing unpaid goes out afterwards.
    async fn settle(&mut self, gateway: &Gateway, ending: CallEnding) -> SettledProof {
        if let Some(settled) = self.settlement.settled() {
            return settled;
        }
        let used = self.context.record.usage;
        let cut = match ending {
            CallEnding::Completed => DeliveryCut::default(),
            _ => self.line.sender.cut(),
        };
        let (bill, outcome) = reckon(&ending, used, cut.tokens, self.finish_names());
        if let CallEnding::Failed(rejection) = &ending {
            self.context.record.failed_with = Some(rejection.failure());
        }
        let bill = bill.map(|bill| if self.context.copy().is_some() { bill.into_loss() } else { bill });
        self.ended = Some(SettledEnd { ending, outcome, cut, told: false });
        let settled = match bill {
            Some(bill) => self.settlement.settle(gateway, &bill, &mut self.context).await,
            None => self.settlement.release(gateway, ReleaseReason::Refused).await,
        };
        if let (Some(message), Some(ended)) = (self.settlement.unpaid(), &mut self.ended) {
            ended.outcome = CallOutcome::Failed { stage: Stage::Settle, message };
        }
        self.context.end_stage(Stage::Settle);
        settled
    }

    /// Completes or fails the answer, once. Needs a [`SettledProof`]: a client with its whole answer finds no money held.
    fn tell(&mut self, _: SettledProof) {
        let Self { context, line, reply, end, ended, .. } = self;
        let Some(ended) = ended.as_mut().filter(|ended| !ended.told) else { return };
        ended.told = true;
        match &ended.ending {
            CallEnding::Completed => {
                let tokens = reply.as_ref().map_or(0, ReplyWriter::written);
                line.complete(context, end.take().unwrap_or_default(), tokens);
            }
            CallEnding::Failed(rejection)
            | CallEnding::Refused(rejection)
            | CallEnding::KeyOver(rejection) => line.fail(reply.as_mut(), context, rejection, ended.cut),
            CallEnding::ClientGone | CallEnding::Stalled { .. } => line.sender.break_off(),
        }
        context.end_stage(Stage::Deliver);
    }

    /// Finishes a call after a step panicked. Each part is guarded by itself, and the money comes first.
    async fn salvage(&mut self, gateway: &Gateway) {
        tracing::error!(request = %self.context.id, "a call panicked; it is settled as failed");
        guarded(self.round.source.cancel()).await;
        attempt(|| self.round.note(&mut self.context, self.reply.as_mut()));
        let broken = || CallEnding::Failed(panicked());
        let ending = guarded(self.held(broken())).await.unwrap_or_else(broken);
        if guarded(self.settle(gateway, ending)).await.is_none() {
            guarded(self.settlement.release(gateway, ReleaseReason::Failed)).await;
        }
        if let Some(settled) = self.settlement.settled() {
            attempt(|| self.tell(settled));
        }
        guarded(self.note_end(gateway)).await;
        // If sending the last event itself panicked, an error is still better than no answer.
        let rejection = panicked();
        if self.line.refuse(&self.context, &rejection)
            && let Some(ended) = &mut self.ended
        {
            ended.outcome = failed(&rejection);
        }
    }

    /// How each choice ended. A suffix after a colon says why a text that looked like a tool call stayed text, or that
    /// a stop string ended the reasoning.
    fn finish_names(&self) -> Vec<String> {
        let names = self.reply.as_ref().map(ReplyWriter::finish_names).unwrap_or_default();
        let source = &self.round.source;
        let told = |(choice, name): (usize, &&'static str)| match source.fault(choice) {
            Some(fault) => format!("{name}:{fault}"),
            None => source.finish_name(choice).unwrap_or(name).to_owned(),
        };
        names.iter().enumerate().map(told).collect()
    }

    /// Writes the trace, and stays until the client has taken its last byte and the settlement is on the disk. Returns
    /// the shadow copy that is to be made of the call.
    async fn close(self: Box<Self>, gateway: &Gateway) -> Option<Box<ShadowCopy>> {
        let Self { mut context, mut settlement, mut line, ended, reply, round, mut beat, .. } = *self;
        drop((reply, round));
        let traces = &gateway.parts().traces;
        let (start, clock) = (context.start(), Arc::clone(&context.clock));
        let went = ended.as_ref().and_then(SettledEnd::went);
        let outcome = ended.map_or_else(|| failed(&panicked()), |ended| ended.outcome);
        attempt(|| context.seal(outcome));
        attempt(|| features::on_verdict(gateway, &mut context, went));
        let sent = line.sender.kept();
        let copy = guarded(features::on_end(gateway, &mut context, sent)).await.flatten();
        if attempt(|| traces.record(context.record)).is_none() {
            attempt(|| traces.record(start.panicked(clock)));
        }
        let taken_ns = settlement.taken_ns;
        let lines = guarded(see_off(gateway, &mut line, &mut beat, taken_ns));
        let books = async {
            // Tried again if it panics. The settlement has been sent: only its way to the disk is watched.
            if guarded(settlement.written(gateway, SettleHaste::Watches)).await.is_none() {
                guarded(settlement.written(gateway, SettleHaste::Watches)).await;
            }
        };
        tokio::join!(lines, books);
        copy
    }

    /// Finds the place of the first cache miss in the caller's request, once.
    async fn locate(&mut self, gateway: &Gateway) {
        if std::mem::replace(&mut self.located, true) {
            return;
        }
        let Some((prompt, miss)) = self.round.first_miss() else { return };
        let Some(engine) = &mut self.context.record.engine else { return };
        let now = self.context.record.started;
        let work = Arc::clone(&self.round.work);
        let locate = move || attempt(|| miss::located(&work, prompt, miss, now)).unwrap_or(miss);
        engine.miss = Some(if self.round.work.body_bytes <= gateway.config().render_inline_bytes {
            locate()
        } else {
            // As in stage `render`: a long prompt takes milliseconds, and the threads of the event loop must stay free.
            tokio::task::spawn_blocking(locate).await.unwrap_or(miss)
        });
    }
}

/// Moves a lost part of the call to another worker, unseen by the client or with a remark in the stream.
fn move_on(
    gateway: &Gateway,
    context: &mut RequestContext,
    line: &ClientStream,
    reply: &mut ReplyWriter,
    round: &mut Round,
    mut lost: LostJob,
) -> Result<(), Rejection> {
    if lost.unless_seen && !line.has_begun() {
        line.sender.cut();
        *reply = ReplyWriter::new(&round.work, context);
        round.source.unsaid();
        lost.may_move = true;
    }
    let before = context.record.continued.len();
    round.place_again(gateway, context, lost)?;
    reply.remark(context.record.continued.get(before..).unwrap_or_default(), &line.sender);
    Ok(())
}

/// Keeps the answer until its last byte is taken. If the reader stops, the remaining bytes are discarded.
async fn see_off(gateway: &Gateway, line: &mut ClientStream, beat: &mut KeptCallHandle, taken_ns: u64) {
    let config = gateway.config();
    let clock = &gateway.parts().clock;
    let began_ns = clock.monotonic_nanos();
    let mut closing_since = None;
    while line.has_begun() && !line.sender.is_empty() && line.given_up().is_none() {
        tokio::select! {
            biased;
            () = line.reader_moved() => {}
            () = beat.next() => {
                if gateway.cut_off().is_cancelled() {
                    let since = *closing_since.get_or_insert_with(tokio::time::Instant::now);
                    if since.elapsed() >= LAST_WORDS {
                        break;
                    }
                }
                let now_ns = clock.monotonic_nanos();
                let since = |then_ns: u64| Duration::from_nanos(now_ns.saturating_sub(then_ns));
                // A call that was ended for its length still has its last event to send.
                let too_long = since(taken_ns) >= config.longest_call() && since(began_ns) >= LAST_WORDS;
                if line.stalled(now_ns) >= config.stall_timeout || too_long {
                    break;
                }
            }
        }
    }
    if !line.sender.is_empty() {
        line.sender.break_off();
    }
}

/// What the client pays and what is lost (`docs/internals/ledger.md`, "What is charged"), and the outcome for the trace.
/// The bill is `None` if nothing happened.
fn reckon(
    ending: &CallEnding,
    used: Usage,
    delivered: u64,
    finish: Vec<String>,
) -> (Option<CallBill>, CallOutcome) {
    // Reasoning precedes the text, so delivered tokens count as reasoning first. Reasoning that was never delivered is
    // not charged if the answer is not.
    let reasoning = used.reasoning.min(delivered);
    let written = Usage { reasoning, output: used.output.min(delivered - reasoning), ..used };
    let unwritten = Usage {
        reasoning: used.reasoning - written.reasoning,
        output: used.output - written.output,
        ..Usage::default()
    };
    let nothing = Usage::default();
    let bill = |charged, lost, outcome| Some(CallBill { charged, lost, outcome });
    let cancelled = |why: String| CallOutcome::Cancelled { why };
    match ending {
        CallEnding::Completed => {
            (bill(used, nothing, SettleOutcome::Completed), CallOutcome::Completed { finish })
        }
        CallEnding::ClientGone => {
            (bill(used, nothing, SettleOutcome::Cancelled), cancelled("the client went away".to_owned()))
        }
        CallEnding::KeyOver(rejection) => {
            (bill(used, nothing, SettleOutcome::Cancelled), cancelled(rejection.traced().message))
        }
        CallEnding::Stalled { waited } => (
            bill(written, unwritten, SettleOutcome::Cancelled),
            cancelled(format!("the client read nothing for {} s", waited.as_secs())),
        ),
        // The caller's own form ended the answer, so its usage is charged as if the client had cancelled.
        CallEnding::Failed(rejection) if rejection.code == Code::FormLost => {
            (bill(used, nothing, SettleOutcome::Failed), failed(rejection))
        }
        CallEnding::Failed(rejection) => {
            let (charged, lost) = if delivered > 0 { (written, unwritten) } else { (nothing, used) };
            (bill(charged, lost, SettleOutcome::Failed), failed(rejection))
        }
        CallEnding::Refused(rejection) => (None, CallOutcome::Refused(rejection.traced())),
    }
}

fn failed(rejection: &Rejection) -> CallOutcome {
    CallOutcome::Failed { stage: rejection.stage, message: rejection.traced().message }
}

fn not_held(failed: &headrace_ledger::JournalFailed) -> CallEnding {
    CallEnding::Refused(Rejection::journal_unavailable(&failed.why))
}

fn gave_up(why: GiveUp, waited: Duration) -> CallEnding {
    match why {
        GiveUp::ClientGone => CallEnding::ClientGone,
        GiveUp::ReaderStalled => CallEnding::Stalled { waited },
        GiveUp::ShuttingDown => CallEnding::Failed(cut_off()),
    }
}

fn panicked() -> Rejection {
    Rejection::new(Code::InternalError, "The call failed inside. What was not delivered is not charged.")
}

#[cfg(test)]
mod tests;
