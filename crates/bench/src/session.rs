//! A running conversation: sends each call when it is due and a slot is free. Knows no schedule and counts nothing; it
//! reports events.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::CancellationToken;

use crate::conversation::{BenchConversation, CallWriter};
use crate::live::RunCounters;
use crate::target::{BenchTarget, CallEnd, HeardCall};
use crate::window::{MeasureWindow, RunPhase};
use crate::{PlannedCall, PlannedSession, SessionIter};

/// Minimum pause of a closed-loop user after a failed call. Otherwise a server that refuses at once would be called as
/// fast as the machine can.
const FAILED_PAUSE: Duration = Duration::from_millis(100);

/// State shared by all conversations of a run.
#[derive(Debug)]
pub(crate) struct BenchContext {
    pub(crate) target: BenchTarget,
    pub(crate) writer: CallWriter,
    pub(crate) window: MeasureWindow,
    pub(crate) live: RunCounters,
    /// Slots for calls in flight.
    pub(crate) slots: Semaphore,
    pub(crate) start: Instant,
    /// Cancelled when no further call becomes due.
    pub(crate) no_more: CancellationToken,
    /// Cancelled when no further call is sent, even if it is due.
    pub(crate) end: CancellationToken,
    /// Cancelled when calls in flight are cut off.
    pub(crate) cancel: CancellationToken,
}

/// A session whose first body is written.
#[derive(Debug)]
pub(crate) struct PreparedSession {
    pub(crate) session: PlannedSession,
    conversation: BenchConversation,
    body: Vec<u8>,
}

/// An event of a call or a conversation.
#[derive(Debug)]
pub(crate) enum SessionEvent {
    Ended(Box<CallRecord>),
    /// A measured call was due and never sent.
    Unsent,
    /// The remaining calls of a conversation after a failed call.
    Abandoned(usize),
}

/// A call that was sent.
#[derive(Debug, Clone)]
pub(crate) struct CallRecord {
    pub(crate) call: PlannedCall,
    /// The conversation's number, if it has several calls.
    pub(crate) session: Option<u64>,
    pub(crate) prefix: Option<crate::SharedPrefixUse>,
    pub(crate) measured: bool,
    /// When it was due, and when it was sent, from the start of the run.
    pub(crate) due: Duration,
    pub(crate) sent: Duration,
    /// The part of the time from due to sent that was spent waiting for a slot.
    pub(crate) waited: Duration,
    pub(crate) heard: HeardCall,
}

/// How a conversation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConversationEnd {
    Whole,
    Failed,
    /// The run is over.
    Over,
}

impl BenchContext {
    /// Writes the first body before the session is due.
    pub(crate) fn prepare(&self, session: PlannedSession) -> Option<PreparedSession> {
        let call = session.calls.first()?;
        let conversation = self.writer.begin(&session, call);
        let body = self.writer.body(&conversation, call);
        Some(PreparedSession { session, conversation, body })
    }

    fn since_start(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.start)
    }

    /// Waits until `due`. Returns `false` if no further call becomes due.
    async fn wait_until(&self, due: Instant) -> bool {
        tokio::select! {
            biased;
            () = self.no_more.cancelled() => false,
            () = tokio::time::sleep_until(due.into()) => true,
        }
    }

    /// Makes all calls of a session. The first call is due at `due`.
    pub(crate) async fn carry(
        &self,
        prepared: PreparedSession,
        due: Instant,
        events: &UnboundedSender<SessionEvent>,
    ) -> ConversationEnd {
        let PreparedSession { session, mut conversation, mut body } = prepared;
        let mut due = due;
        for (place, call) in session.calls.iter().enumerate() {
            let next = session.calls.get(place.saturating_add(1));
            // A conversation continues with the real answer.
            let keep = next.is_some_and(|next| next.messages.is_none());
            let answer = match self.send(&session, call, std::mem::take(&mut body), due, keep, events).await {
                SentOutcome::Answered(answer) => answer,
                SentOutcome::Failed => {
                    let left = session.calls.len().saturating_sub(place.saturating_add(1));
                    let _ = events.send(SessionEvent::Abandoned(left));
                    return ConversationEnd::Failed;
                }
                SentOutcome::Over => return ConversationEnd::Over,
            };
            let Some(next) = next else { break };
            let ended = Instant::now();
            self.writer.go_on(&mut conversation, &answer, next);
            body = self.writer.body(&conversation, next);
            // The next call is due when the pause is over, the trace's time is reached, and its body is written.
            let written = Instant::now();
            let paused = ended.checked_add(next.pause);
            let recorded = self.start.checked_add(next.not_before.unwrap_or_default());
            let (Some(paused), Some(recorded)) = (paused, recorded) else { return ConversationEnd::Over };
            due = written.max(paused).max(recorded);
            if due > written && !self.wait_until(due).await {
                return ConversationEnd::Over;
            }
        }
        ConversationEnd::Whole
    }

    async fn send(
        &self,
        session: &PlannedSession,
        call: &PlannedCall,
        body: Vec<u8>,
        due: Instant,
        keep: bool,
        events: &UnboundedSender<SessionEvent>,
    ) -> SentOutcome {
        let phase = self.window.admit(call.index, self.since_start(due));
        if phase == RunPhase::Over {
            self.no_more.cancel();
            return SentOutcome::Over;
        }
        let asked = Instant::now();
        let (permit, waited) = match self.slots.try_acquire() {
            Ok(permit) => (permit, Duration::ZERO),
            Err(_) => {
                let _counted = self.live.wait();
                let permit = tokio::select! {
                    biased;
                    () = self.end.cancelled() => None,
                    permit = self.slots.acquire() => permit.ok(),
                };
                let Some(permit) = permit else {
                    if phase == RunPhase::Measured {
                        let _ = events.send(SessionEvent::Unsent);
                    }
                    return SentOutcome::Over;
                };
                (permit, asked.elapsed())
            }
        };
        let flying = self.live.fly();
        let mut heard = HeardCall::begin(call.output);
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => heard.end = heard.sent.elapsed(),
            () = self.target.call(body, keep, &self.live, &mut heard) => {}
        }
        drop((permit, flying));
        let answer = std::mem::take(&mut heard.answer);
        let sent = match heard.ending {
            CallEnd::Ok => SentOutcome::Answered(answer),
            CallEnd::Failed(_) => SentOutcome::Failed,
            CallEnd::CutOff => SentOutcome::Over,
        };
        let record = CallRecord {
            call: call.clone(),
            session: (session.calls.len() > 1).then_some(session.index),
            prefix: session.prefix,
            measured: phase == RunPhase::Measured,
            due: self.since_start(due),
            sent: self.since_start(heard.sent),
            waited,
            heard,
        };
        // The send fails only if the run itself was dropped.
        let _ = events.send(SessionEvent::Ended(Box::new(record)));
        sent
    }

    /// A user of a closed loop: takes the next session when the previous one has ended.
    pub(crate) async fn user(
        &self,
        sessions: Arc<Mutex<SessionIter>>,
        events: UnboundedSender<SessionEvent>,
    ) {
        let mut last = None;
        while !self.no_more.is_cancelled() {
            let session = sessions.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(prepared) = session.and_then(|session| self.prepare(session)) else { return };
            let think = prepared.session.calls.first().map(|call| call.pause).unwrap_or_default();
            let pause = match last {
                None => Duration::ZERO,
                Some(ConversationEnd::Failed) => think.max(FAILED_PAUSE),
                Some(_) => think,
            };
            if !pause.is_zero() {
                let Some(due) = Instant::now().checked_add(pause) else { return };
                if !self.wait_until(due).await {
                    return;
                }
            }
            let carried = self.carry(prepared, Instant::now(), &events).await;
            if carried == ConversationEnd::Over {
                return;
            }
            last = Some(carried);
        }
    }
}

/// How a call ended, for the conversation.
enum SentOutcome {
    Answered(String),
    Failed,
    Over,
}
