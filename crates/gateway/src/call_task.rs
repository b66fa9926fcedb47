//! The call task, which owns a request from its hold on: reply events in, bytes out. Every call ends with one
//! settlement, one last event to the client and one trace record, even if a step of the task panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::FutureExt;
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

mod answer_loop;

mod placement;

mod race;

mod relay_attempt;

mod fall_back;
mod format_check;
mod further_round;

pub(crate) mod source;

mod client_stream;
mod event_batcher;

mod answer_judges;
mod answer_section;
mod held_tokens;
mod recorded_reply;
mod reply;
mod reply_meta;
mod restore;
pub(crate) mod screen;

mod call_ending;
mod early_end;

mod stored;

use crate::settle::{CallBill, CallSettlement, SettleHaste, SettledProof, delivered_usage};

use call_ending::CallEnding;
use client_stream::ClientStream;
use reply::ReplyWriter;
use round::Round;

pub(crate) use reply_meta::reply_meta;

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
    /// Tokens that were made and that a content rule withheld.
    withheld: Usage,
    /// While this exists the call counts as alive, and its hold is kept from expiring.
    ticker: KeptCallHandle,
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
    /// The client has learned how the call ended.
    is_announced: bool,
}

impl SettledEnd {
    /// What the ending says about the model. `None` if it says nothing.
    fn verdict(&self) -> Option<CallVerdict> {
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

/// Owns the request until it is settled, answered and traced, and its last byte is taken. Returns the shadow copy that
/// is to be made of it.
pub(crate) async fn run_call(
    gateway: Arc<Gateway>,
    context: RequestContext,
    funded: FundedCall,
    head: oneshot::Sender<Answer>,
) -> Option<Box<ShadowCopy>> {
    // Boxed, so that moving the call copies nothing.
    let mut call = Box::new(CallTask::new(&gateway, context, funded, head));
    if guarded(call.serve(&gateway)).await.is_none() {
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
        mut context: RequestContext,
        funded: FundedCall,
        head: oneshot::Sender<Answer>,
    ) -> Self {
        let FundedCall { work, settlement, headers } = funded;
        let ticker = gateway.hold_keeper().join(settlement.hold(), context.record.key.clone());
        let mut line = ClientStream::new(gateway.config(), head, headers, &work);
        line.runs_on = features::runs_on(gateway, &context, &work);
        if features::is_answer_hashed(gateway, &context, &work) {
            line.hash();
        }
        if let Some(copy) = features::on_task(gateway, &context, &work) {
            line.sender.keep(copy);
        }
        if let Some(recorded) = features::on_recorded_task(gateway, &mut context, &work) {
            // What is put back into the answer is not recorded: placeholders are.
            match context.placeholders {
                Some(_) => line.sender.record_apart(recorded),
                None => line.sender.record(recorded),
            }
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
            withheld: Usage::default(),
            ticker,
        }
    }

    async fn serve(&mut self, gateway: &Gateway) {
        let ending = self.round(gateway).await;
        self.finish(gateway, ending).await;
    }

    /// The steps that end every call, once: the end of its answer, its settlement, its last event.
    async fn finish(&mut self, gateway: &Gateway, ending: CallEnding) {
        // No further round comes.
        self.context.held = None;
        // An answer that cannot be encoded is not charged, so its end is encoded before it is settled.
        let ending = match ending {
            CallEnding::Completed => self.complete(gateway).await,
            other => other,
        };
        let settled = self.settle(gateway, ending).await;
        self.announce(settled);
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
                Ok(placed) => self.checked_run(gateway, &placed).await,
                Err(rejection) => CallEnding::Refused(rejection),
            };
            let is_complete = matches!(ending, CallEnding::Completed);
            if is_complete && !self.reply.as_ref().is_some_and(ReplyWriter::is_cut) {
                break ending;
            }
            self.round.source.cancel().await;
            if is_complete {
                break ending;
            }
            if !self.asks_again(gateway, &ending) && !Box::pin(self.falls_back(gateway, &ending)).await {
                break ending;
            }
        };
        let ending = match ending {
            // What earlier rounds used is not undone.
            CallEnding::Refused(rejection) if self.settlement.has_ended_rounds() => {
                CallEnding::Failed(rejection)
            }
            ending => ending,
        };
        let ending = self.held(ending).await;
        self.round.note(&mut self.context, self.reply.as_mut(), &ending);
        self.note_screened(&ending);
        ending
    }

    /// Records which content rules matched the answer. Tokens that a rule withheld are not charged.
    fn note_screened(&mut self, ending: &CallEnding) {
        self.context.note_judges();
        let record = &mut self.context.record;
        let Some(screen) = self.reply.as_ref().and_then(ReplyWriter::screen) else { return };
        let mut verdicts = screen.verdicts();
        for late in std::mem::take(&mut record.output_verdicts) {
            if !verdicts.contains(&late) {
                verdicts.push(late);
            }
        }
        record.output_verdicts = verdicts;
        if matches!(ending, CallEnding::Completed) && screen.has_blocked() {
            let made = record.usage.output.saturating_add(record.usage.reasoning);
            let has_ids = self.round.source.as_engine().is_some();
            let delivered = screen.delivered_tokens(made, has_ids);
            (record.usage, self.withheld) = delivered_usage(self.settlement.usages(record.usage), delivered);
        }
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
        let parts = delivered_usage(self.settlement.usages(used), cut.tokens);
        let (bill, outcome) = bill_of(&ending, parts, self.withheld, cut.tokens, self.finish_names());
        if matches!(ending, CallEnding::Completed) {
            let answer = (&self.line.sender, self.end.as_deref().unwrap_or_default(), self.line.content_type);
            features::before_settle(gateway, &mut self.context, answer).await;
        }
        if let CallEnding::Failed(rejection) = &ending {
            self.context.record.failed_with = Some(rejection.failure());
        }
        let bill = bill.map(|bill| if self.context.copy().is_some() { bill.into_loss() } else { bill });
        self.ended = Some(SettledEnd { ending, outcome, cut, is_announced: false });
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
    fn announce(&mut self, _: SettledProof) {
        let Self { context, line, reply, end, ended, .. } = self;
        let Some(ended) = ended.as_mut().filter(|ended| !ended.is_announced) else { return };
        ended.is_announced = true;
        match &ended.ending {
            CallEnding::Completed => {
                let tokens = reply.as_ref().map_or(0, ReplyWriter::written);
                if let Some(reply) = reply {
                    reply.hand_over_recorded(&line.sender);
                }
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
        self.context.held = None;
        let broken = || CallEnding::Failed(panicked());
        attempt(|| self.round.note(&mut self.context, self.reply.as_mut(), &broken()));
        let ending = guarded(self.held(broken())).await.unwrap_or_else(broken);
        if guarded(self.settle(gateway, ending)).await.is_none() {
            guarded(self.settlement.release(gateway, ReleaseReason::Failed)).await;
        }
        if let Some(settled) = self.settlement.settled() {
            attempt(|| self.announce(settled));
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

    /// How each choice ended.
    fn finish_names(&self) -> Vec<String> {
        let names = self.reply.as_ref().map(ReplyWriter::finish_names).unwrap_or_default();
        let screen = self.reply.as_ref().and_then(ReplyWriter::screen);
        let is_blocked = |choice| screen.is_some_and(|screen| screen.is_blocked(choice));
        let name_of = |(choice, name): (usize, &&'static str)| match is_blocked(choice) {
            true => (*name).to_owned(),
            false => self.round.source.finish_name(choice, name).into_owned(),
        };
        names.iter().enumerate().map(name_of).collect()
    }

    /// Writes the trace, and stays until the client has taken its last byte and the settlement is on the disk. Returns
    /// the shadow copy that is to be made of the call.
    async fn close(self: Box<Self>, gateway: &Gateway) -> Option<Box<ShadowCopy>> {
        let Self { mut context, mut settlement, mut line, ended, reply, round, mut ticker, .. } = *self;
        drop((reply, round));
        let traces = &gateway.parts().traces;
        let (start, clock) = (context.start(), Arc::clone(&context.clock));
        let verdict = ended.as_ref().and_then(SettledEnd::verdict);
        let outcome = ended.map_or_else(|| failed(&panicked()), |ended| ended.outcome);
        attempt(|| context.seal(outcome));
        attempt(|| features::on_verdict(gateway, &mut context, verdict));
        attempt(|| context.record.sent = line.sent().map(Box::new));
        attempt(|| features::on_recorded_end(gateway, &mut context, line.sender.recorded()));
        let sent = line.sender.kept();
        let copy = guarded(features::on_end(gateway, &mut context, sent)).await.flatten();
        if attempt(|| traces.record(context.record)).is_none() {
            attempt(|| traces.record(start.panicked(clock)));
        }
        let taken_ns = settlement.taken_ns;
        let lines = guarded(see_off(gateway, &mut line, &mut ticker, taken_ns));
        let settled = async {
            // Tried again if it panics. The settlement has been sent: only its way to the disk is watched.
            if guarded(settlement.written(gateway, SettleHaste::Watches)).await.is_none() {
                guarded(settlement.written(gateway, SettleHaste::Watches)).await;
            }
        };
        tokio::join!(lines, settled);
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

/// Keeps the answer until its last byte is taken. If the reader stops, the remaining bytes are discarded.
async fn see_off(gateway: &Gateway, line: &mut ClientStream, ticker: &mut KeptCallHandle, taken_ns: u64) {
    let config = gateway.config();
    let clock = &gateway.parts().clock;
    let began_ns = clock.monotonic_nanos();
    let mut closing_since = None;
    while line.has_begun() && !line.sender.is_empty() && line.abort_reason().is_none() {
        tokio::select! {
            biased;
            () = line.reader_moved() => {}
            () = ticker.next() => {
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
/// The bill is `None` if nothing happened. The usage comes as the part that was `written`, with the prompts, and the rest.
fn bill_of(
    ending: &CallEnding,
    (written, unwritten): (Usage, Usage),
    withheld: Usage,
    delivered: u64,
    finish: Vec<String>,
) -> (Option<CallBill>, CallOutcome) {
    let used = written.plus(&unwritten);
    let nothing = Usage::default();
    let bill = |charged, lost, outcome| Some(CallBill { charged, lost, outcome });
    let cancelled = |why: String| CallOutcome::Cancelled { why };
    match ending {
        CallEnding::Completed => {
            (bill(used, withheld, SettleOutcome::Completed), CallOutcome::Completed { finish })
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

fn panicked() -> Rejection {
    Rejection::new(Code::InternalError, "The call failed inside. What was not delivered is not charged.")
}

#[cfg(test)]
mod tests;
