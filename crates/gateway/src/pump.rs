//! The task that owns a request from its hold on: engine events in, bytes out, and at the end one settlement, one
//! trace record and one last word to the client, whatever happened in between.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use headrace_domain::{CacheMiss, Outcome, Stage, UnixNanos, Usage};
use headrace_ledger::SettleOutcome;
use headrace_wire::{ErrorKind, LimitFacts};
use tokio::sync::oneshot;

use crate::Gateway;
use crate::answer::{Answer, AnswerBody};
use crate::delivery::{self, Delivery, DeliverySender};
use crate::dossier::Dossier;
use crate::explain;
use crate::jobs::Jobs;
use crate::miss;
use crate::place::Placed;
use crate::refused::Why;
use crate::render;
use crate::settle::{Bill, Settlement};
use crate::state::{Held, Work};

mod reply;

use reply::Reply;

/// The way to the client.
struct Line {
    /// Takes the head of the answer; gone once it was sent.
    head: Option<oneshot::Sender<Answer>>,
    /// The reader's end, until the head carries it away.
    delivery: Option<Delivery>,
    sender: DeliverySender,
    headers: Vec<(&'static str, String)>,
    content_type: &'static str,
    streamed: bool,
}

/// How the work ended, before anyone was told or charged.
enum Ending {
    Completed,
    /// The client went away: it pays for what was computed.
    ClientGone,
    /// The client stopped reading: it pays for what was written to it.
    Stalled {
        waited: Duration,
    },
    /// We or the engine failed: the client pays for what was handed to it.
    Failed(Box<Why>),
    /// The hold never reached the disk: nothing happened.
    NotHeld(String),
}

/// Owns the request until it is settled.
pub(crate) async fn carry(gateway: Arc<Gateway>, held: Held, head: oneshot::Sender<Answer>) {
    let placed = match held.place(&gateway).await {
        Ok(placed) => placed,
        Err((refused, pending)) => {
            let (answer, record) = refused.finish();
            gateway.parts().traces.record(record);
            // A listener that is gone needs no answer.
            let _ = head.send(answer);
            return pending.written(&gateway).await;
        }
    };
    let Placed { mut dossier, work, mut settlement, headers, mut jobs, placed_ns } = placed;
    let (sender, delivery) =
        delivery::channel(Arc::clone(&dossier.clock), gateway.config().delivery_buffer_bytes);
    let work = Arc::new(work);
    let mut reply = Reply::new(&work, &dossier);
    let mut line = Line {
        head: Some(head),
        delivery: Some(delivery),
        sender,
        headers,
        content_type: reply.content_type(),
        streamed: work.call.stream,
    };
    let run = run(&gateway, &dossier, &mut reply, &mut line, &mut jobs, &mut settlement);
    let ending =
        AssertUnwindSafe(run).catch_unwind().await.unwrap_or_else(|_| Ending::Failed(Box::new(panicked())));
    if !matches!(ending, Ending::Completed) {
        jobs.cancel().await;
    }
    let miss = locate(&gateway, &work, &jobs, dossier.record.started).await;
    record_engine(&mut dossier, &jobs, miss, &reply, placed_ns);
    finish(&gateway, dossier, &work, reply, line, &jobs, settlement, ending).await;
}

/// Reads events until all jobs have ended or something else ends the call.
async fn run(
    gateway: &Gateway,
    dossier: &Dossier,
    reply: &mut Reply<'_>,
    line: &mut Line,
    jobs: &mut Jobs,
    settlement: &mut Settlement,
) -> Ending {
    let config = gateway.config();
    let longest = config.longest_call();
    let period = (config.stall_timeout / 4)
        .min(config.hold_lifetime / 20)
        .clamp(Duration::from_millis(10), Duration::from_secs(1));
    let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
    let (mut durable, mut silent, mut waited) = (false, Duration::ZERO, Duration::ZERO);
    loop {
        if durable
            && line.streamed
            && line.head.is_some()
            && (reply.is_meaningful() || waited >= config.first_event_wait)
        {
            line.send_head(dossier);
        }
        let full = line.sender.is_full();
        tokio::select! {
            biased;
            written = &mut settlement.durable, if !durable => match written {
                Ok(()) => durable = true,
                Err(failed) => return Ending::NotHeld(failed.why.to_string()),
            },
            () = line.reader_moved() => if line.is_abandoned() { return Ending::ClientGone },
            () = gateway.cut_off().cancelled() => return Ending::Failed(Box::new(cut_off())),
            next = jobs.next(), if !full => match next {
                None => break,
                Some((_, None)) => return Ending::Failed(Box::new(engine_died())),
                Some((job, Some(event))) => {
                    if let Err(error) = reply.take(job, event, dossier) {
                        return Ending::Failed(Box::new(Why::job_failed(&error)));
                    }
                    silent = Duration::ZERO;
                    reply.hand_over(&line.sender, dossier);
                }
            },
            _ = tick.tick() => {
                (silent, waited) = (silent + period, waited + period);
                let held_ns = dossier.clock.monotonic_nanos().saturating_sub(settlement.taken_ns);
                if Duration::from_nanos(held_ns) >= longest {
                    return Ending::Failed(Box::new(too_long(longest)));
                }
                let stalled = Duration::from_nanos(line.sender.stalled_ns());
                if line.head.is_none() && stalled >= config.stall_timeout {
                    return Ending::Stalled { waited: stalled };
                }
                if line.head.is_none() && silent >= config.keep_alive {
                    silent = Duration::ZERO;
                    reply.keep_alive(&line.sender);
                }
            }
        }
    }
    if !durable && let Err(failed) = (&mut settlement.durable).await {
        return Ending::NotHeld(failed.why.to_string());
    }
    Ending::Completed
}

/// Settles, writes the trace, and only then says the last word, so that who has the answer can have the trace too.
#[allow(clippy::too_many_arguments, reason = "the one place where all that a request took comes together")]
async fn finish(
    gateway: &Gateway,
    mut dossier: Dossier,
    work: &Work,
    mut reply: Reply<'_>,
    mut line: Line,
    jobs: &Jobs,
    settlement: Settlement,
    ending: Ending,
) {
    let (used, _) = jobs.report();
    if let Ending::NotHeld(detail) = &ending {
        settlement.abandon(gateway);
        let why = Why::journal_unavailable(detail);
        line.fail(&mut reply, &dossier, &why);
        let outcome = Outcome::Refused(why.traced());
        return gateway.parts().traces.record(dossier.close(outcome));
    }
    let delivered = line.sender.delivered_tokens();
    let (bill, outcome) = reckon(&ending, used, delivered, &reply, work);
    let pending = settlement.settle(gateway, &bill, &mut dossier);
    let explained =
        (work.call.explain && matches!(ending, Ending::Completed)).then(|| explain::block(&dossier.record));
    let facts_dossier = dossier.for_facts();
    gateway.parts().traces.record(dossier.close(outcome));
    match ending {
        Ending::Completed => line.complete(&mut reply, &facts_dossier, &bill.charged, explained.as_ref()),
        Ending::Failed(why) => line.fail(&mut reply, &facts_dossier, &why),
        Ending::ClientGone | Ending::Stalled { .. } | Ending::NotHeld(_) => {}
    }
    drop(line);
    pending.written(gateway).await;
}

/// Who pays for what (the design's "what is charged"), and the outcome that the trace shows.
fn reckon(ending: &Ending, used: Usage, delivered: u64, reply: &Reply<'_>, work: &Work) -> (Bill, Outcome) {
    let written = Usage { output: used.output.min(delivered), ..used };
    let unwritten = Usage { output: used.output - written.output, ..Usage::default() };
    match ending {
        Ending::Completed => (
            Bill { charged: used, lost: Usage::default(), outcome: SettleOutcome::Completed },
            Outcome::Completed { finish: reply.finish_names() },
        ),
        Ending::ClientGone => (
            Bill { charged: used, lost: Usage::default(), outcome: SettleOutcome::Cancelled },
            Outcome::Cancelled { why: "the client went away".to_owned() },
        ),
        Ending::Stalled { waited } => (
            Bill { charged: written, lost: unwritten, outcome: SettleOutcome::Cancelled },
            Outcome::Cancelled { why: format!("the client read nothing for {} s", waited.as_secs()) },
        ),
        Ending::Failed(why) => {
            let handed_over = work.call.stream && delivered > 0;
            let (charged, lost) = if handed_over { (written, unwritten) } else { (Usage::default(), used) };
            (
                Bill { charged, lost, outcome: SettleOutcome::Failed },
                Outcome::Failed { stage: why.stage, message: why.message.clone() },
            )
        }
        Ending::NotHeld(why) => (
            Bill { charged: Usage::default(), lost: Usage::default(), outcome: SettleOutcome::Failed },
            Outcome::Failed { stage: Stage::Hold, message: why.clone() },
        ),
    }
}

/// The call's first cache miss with its place, for a prompt that was rendered at `now`.
async fn locate(gateway: &Gateway, work: &Arc<Work>, jobs: &Jobs, now: UnixNanos) -> Option<CacheMiss> {
    let (prompt, miss) = jobs.first_miss()?;
    if render::text_bytes(&work.call) <= gateway.config().render_inline_bytes {
        return Some(miss::located(work, prompt, miss, now));
    }
    // As in the stage `render`: a long prompt takes milliseconds, and the event loop's threads must stay free.
    let work = Arc::clone(work);
    let located = tokio::task::spawn_blocking(move || miss::located(&work, prompt, miss, now)).await;
    Some(located.unwrap_or(miss))
}

/// Lays the engine's times on the request's time line: queue, prefill and decode of the first job, and what ran beside.
fn record_engine(
    dossier: &mut Dossier,
    jobs: &Jobs,
    miss: Option<CacheMiss>,
    reply: &Reply<'_>,
    placed_ns: u64,
) {
    let (usage, engine) = jobs.report();
    dossier.record.usage = usage;
    dossier.record.first_token_ns = reply.first_token_ns();
    if let Some(mut engine) = engine.filter(|engine| engine.steps > 0) {
        engine.miss = miss;
        let prefill = placed_ns.saturating_add(engine.queue_ns);
        let decode = prefill.saturating_add(engine.prefill_ns);
        dossier.add(Stage::Queue, placed_ns, engine.queue_ns);
        dossier.add(Stage::Prefill, prefill, engine.prefill_ns);
        dossier.add(Stage::Decode, decode, engine.decode_ns);
        dossier.record.engine = Some(engine);
    }
    if let Some(first) = reply.first_token_ns() {
        let (postprocess, deliver) = reply.times_ns();
        dossier.add(Stage::Postprocess, first, postprocess);
        dossier.add(Stage::Deliver, first, deliver);
    }
}

impl Line {
    /// Sends the status line and headers, and with them the reader's end of the body.
    fn send_head(&mut self, dossier: &Dossier) {
        let (Some(head), Some(delivery)) = (self.head.take(), self.delivery.take()) else { return };
        self.sender.handed_out();
        let answer = self.answer(dossier, AnswerBody::Stream(delivery));
        // A listener that is gone drops the delivery, which tells the sender.
        let _ = head.send(answer);
    }

    fn answer(&mut self, dossier: &Dossier, body: AnswerBody) -> Answer {
        let mut headers = std::mem::take(&mut self.headers);
        headers.extend(dossier.id_headers());
        if self.streamed {
            headers.push(("cache-control", "no-cache".to_owned()));
        }
        Answer { status: 200, content_type: self.content_type, headers, body }
    }

    /// Returns when the client may have gone away or taken something.
    async fn reader_moved(&mut self) {
        match &mut self.head {
            Some(head) => head.closed().await,
            None => self.sender.reader_moved().await,
        }
    }

    fn is_abandoned(&self) -> bool {
        match &self.head {
            Some(head) => head.is_closed(),
            None => self.sender.is_abandoned(),
        }
    }

    /// The last word of an answer that ended well.
    fn complete(
        &mut self,
        reply: &mut Reply<'_>,
        dossier: &Dossier,
        usage: &Usage,
        explained: Option<&serde_json::Value>,
    ) {
        let mut out = reply.finish(usage, explained);
        if self.streamed {
            self.send_head(dossier);
            self.sender.push(&mut out, reply.generated());
        } else if let Some(head) = self.head.take() {
            let answer = self.answer(dossier, AnswerBody::Whole(out.freeze()));
            let _ = head.send(answer);
        }
    }

    /// The last word of one that did not: an error's status where the head is still here, else an error event and
    /// never what ends a good stream.
    fn fail(&mut self, reply: &mut Reply<'_>, dossier: &Dossier, why: &Why) {
        match self.head.take() {
            Some(head) => {
                let _ = head.send(why.answer(dossier));
            }
            None => {
                let mut out = reply.fail(&why.facts(dossier));
                self.sender.push(&mut out, reply.generated());
            }
        }
    }
}

fn panicked() -> Why {
    Why::new(
        Stage::Postprocess,
        500,
        ErrorKind::Internal,
        "internal_error",
        "The call failed inside. What was not delivered is not charged.",
    )
}

fn engine_died() -> Why {
    Why::new(
        Stage::Decode,
        503,
        ErrorKind::Overloaded,
        "engine_unavailable",
        "The engine stopped. What was not delivered is not charged. Try again.",
    )
    .retry_after(Duration::from_secs(1))
}

fn too_long(longest: Duration) -> Why {
    let seconds = longest.as_secs();
    let mut why = Why::new(
        Stage::Decode,
        504,
        ErrorKind::Timeout,
        "call_too_long",
        format!(
            "The call was not done after {seconds} s, the longest that its money is held for (`gateway.hold_lifetime`). What was \
             not delivered is not charged. Ask for fewer tokens, stream, or call when less waits."
        ),
    );
    let (rule, scope) = ("hold_lifetime".to_owned(), "seconds".to_owned());
    why.limit = Some(LimitFacts { rule, scope, limit: seconds, observed: seconds });
    why
}

fn cut_off() -> Why {
    Why::new(
        Stage::Decode,
        503,
        ErrorKind::Overloaded,
        "shutting_down",
        "The server is shutting down and the time for calls in flight is over. What was not delivered is not charged.",
    )
    .retry_after(Duration::from_secs(2))
}
