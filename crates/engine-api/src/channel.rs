//! Event channel between the engine's thread and the task that owns the request. Two signals go back to the engine: a
//! cancel, and the notice that a slow reader has caught up. The engine never waits for a reader. If the unread events
//! of a job reach its bound, the engine should pause the job until half of them are read. This module does not know how
//! an engine does that.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::sync::{mpsc, watch};

use crate::{JobEvent, JobReport};

/// State of one job's channel that both ends share, in addition to the events themselves.
#[derive(Debug)]
struct JobChannel {
    /// Maximum bytes of unread events before the job is paused.
    bound: usize,
    /// Bytes of events that are sent and not yet read.
    unread: AtomicUsize,
    /// Set while the job is paused, until its reader has caught up.
    paused: AtomicBool,
    cancelled: AtomicBool,
}

/// An event and the bytes that it counts for.
#[derive(Debug)]
struct PostedEvent {
    event: JobEvent,
    bytes: usize,
}

/// The engine's end of a job. If it is dropped without a terminal event, the reader learns that the engine died.
#[derive(Debug)]
pub struct EventSender {
    events: mpsc::UnboundedSender<PostedEvent>,
    way: Arc<JobChannel>,
    report: watch::Sender<Option<Arc<JobReport>>>,
}

/// Cancels a job after [`JobTicket::split`] has taken its events.
pub struct TicketControl {
    way: Arc<JobChannel>,
    report: watch::Receiver<Option<Arc<JobReport>>>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

/// The reader's end of a job's events.
pub struct JobEvents {
    events: mpsc::UnboundedReceiver<PostedEvent>,
    way: Arc<JobChannel>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

/// The caller's handle of an accepted job.
pub struct JobTicket {
    events: JobEvents,
    control: TicketControl,
}

/// Resolves to the report of a cancelled job, once the engine has released the job.
#[derive(Debug)]
pub struct CancelledJob {
    report: watch::Receiver<Option<Arc<JobReport>>>,
}

/// Both ends call `wake` so that an idle engine looks at the job. They do so on a cancel, and when the reader of a
/// paused job has caught up or is dropped.
pub fn channel(unread_bytes: usize, wake: Arc<dyn Fn() + Send + Sync>) -> (EventSender, JobTicket) {
    let (events, reader) = mpsc::unbounded_channel();
    let (report, report_reader) = watch::channel(None);
    let way = Arc::new(JobChannel {
        bound: unread_bytes.max(1),
        unread: AtomicUsize::new(0),
        paused: AtomicBool::new(false),
        cancelled: AtomicBool::new(false),
    });
    let sender = EventSender { events, way: Arc::clone(&way), report };
    let control = TicketControl { way: Arc::clone(&way), report: report_reader, wake: Arc::clone(&wake) };
    (sender, JobTicket { events: JobEvents { events: reader, way, wake }, control })
}

impl JobChannel {
    /// Returns whether the reader has read enough for a paused job to continue: at most half of the bound is unread.
    fn is_drained(&self) -> bool {
        self.unread.load(Ordering::SeqCst) <= self.bound / 2
    }
}

impl EventSender {
    /// Sends an event that is not terminal. Never waits, and accepts events beyond the bound: see [`Self::is_full`].
    /// Returns `false` if the reader is gone, which counts as a cancel.
    pub fn send(&self, event: JobEvent) -> bool {
        let bytes = event.bytes();
        self.way.unread.fetch_add(bytes, Ordering::SeqCst);
        self.events.send(PostedEvent { event, bytes }).is_ok()
    }

    /// Returns whether the unread events have reached the bound, so that the job should be paused. One atomic load.
    pub fn is_full(&self) -> bool {
        self.way.unread.load(Ordering::Relaxed) >= self.way.bound
    }

    /// Maximum bytes of unread events before the job is paused.
    pub fn bound(&self) -> usize {
        self.way.bound
    }

    /// Marks the job as paused. From now on its reader wakes the engine once it has caught up or is dropped. Returns
    /// `false` if the reader has caught up already: the job then continues.
    pub fn pause(&self) -> bool {
        self.way.paused.store(true, Ordering::SeqCst);
        // Both sides use one sequentially consistent order: either this load sees what the reader took, or the reader
        // sees the pause.
        if self.way.is_drained() {
            self.way.paused.store(false, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// Returns whether a paused job must still wait for its reader.
    pub fn is_paused(&self) -> bool {
        self.way.paused.load(Ordering::SeqCst)
    }

    /// Returns whether the job should end: it was cancelled, or its reader is gone.
    pub fn is_cancelled(&self) -> bool {
        self.way.cancelled.load(Ordering::Acquire) || self.events.is_closed()
    }

    /// Sends the terminal event and hands its report to every [`CancelledJob`].
    pub fn finish(self, last: JobEvent) {
        let report = match &last {
            JobEvent::Done(report) | JobEvent::Failed { report, .. } => Arc::clone(report),
            _ => Arc::default(),
        };
        self.report.send_replace(Some(report));
        // A reader that is gone has the report through its `CancelledJob`.
        self.send(last);
    }
}

impl JobTicket {
    /// Splits the ticket into the events and the handle that cancels them.
    pub fn split(self) -> (JobEvents, TicketControl) {
        (self.events, self.control)
    }
}

impl JobEvents {
    /// Returns the next event. `None` after the terminal event, or if the engine died.
    pub async fn next(&mut self) -> Option<JobEvent> {
        let posted = self.events.recv().await;
        self.take(posted)
    }

    /// Like [`JobEvents::next`], for readers of several jobs at once.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<JobEvent>> {
        self.events.poll_recv(cx).map(|posted| self.take(posted))
    }

    /// Returns the next event if one is waiting.
    pub fn try_next(&mut self) -> Option<JobEvent> {
        let posted = self.events.try_recv().ok();
        self.take(posted)
    }

    /// Blocks until the next event. For tests and tools that run outside a runtime.
    pub fn next_blocking(&mut self) -> Option<JobEvent> {
        let posted = self.events.blocking_recv();
        self.take(posted)
    }

    /// Bytes of unread events.
    pub fn unread_bytes(&self) -> usize {
        self.way.unread.load(Ordering::SeqCst)
    }

    fn take(&self, posted: Option<PostedEvent>) -> Option<JobEvent> {
        let PostedEvent { event, bytes } = posted?;
        self.way.unread.fetch_sub(bytes, Ordering::SeqCst);
        if self.way.paused.load(Ordering::SeqCst) && self.way.is_drained() {
            self.go_on();
        }
        Some(event)
    }

    /// Wakes the engine once if the job is paused.
    fn go_on(&self) {
        if self.way.paused.swap(false, Ordering::SeqCst) {
            (self.wake)();
        }
    }
}

impl Drop for JobEvents {
    fn drop(&mut self) {
        // A paused job is in no step, so no step would notice that its reader is gone.
        self.events.close();
        self.go_on();
    }
}

impl fmt::Debug for JobEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("way", &self.way).finish_non_exhaustive()
    }
}

impl TicketControl {
    /// Asks the engine to release the job. Its blocks are free within a step. The returned future yields what was
    /// computed.
    pub fn cancel(&self) -> CancelledJob {
        self.way.cancelled.store(true, Ordering::Release);
        (self.wake)();
        CancelledJob { report: self.report.clone() }
    }
}

impl CancelledJob {
    /// Waits for the report of the job. Returns an empty report if the engine died.
    pub async fn report(mut self) -> Arc<JobReport> {
        match self.report.wait_for(Option::is_some).await {
            Ok(report) => report.clone().unwrap_or_default(),
            Err(_) => Arc::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A channel with a bound of 1,000 bytes, and a counter of wakes.
    fn way() -> (EventSender, JobEvents, Arc<AtomicUsize>) {
        let woken = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&woken);
        let wake = Arc::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        let (sender, ticket) = channel(1000, wake);
        (sender, ticket.split().0, woken)
    }

    fn tokens(text: usize) -> JobEvent {
        JobEvent::Tokens { choice: 0, ids: vec![1], text: "x".repeat(text), logprobs: Vec::new() }
    }

    #[test]
    fn a_full_way_pauses_and_wakes_once_half_of_it_is_read() {
        let (sender, mut events, woken) = way();
        let each = tokens(100).bytes();
        while !sender.is_full() {
            sender.send(tokens(100));
        }
        let sent = events.unread_bytes() / each;
        assert_eq!(events.unread_bytes(), sent * each);
        assert!(sender.pause() && sender.is_paused());
        while sender.is_paused() {
            assert!(events.unread_bytes() > 500 && woken.load(Ordering::SeqCst) == 0);
            events.try_next().unwrap();
        }
        assert!(events.unread_bytes() <= 500);
        while events.try_next().is_some() {}
        assert_eq!((woken.load(Ordering::SeqCst), events.unread_bytes()), (1, 0));
        // A reader that caught up before `pause` was called is not paused, and the engine is not woken for nothing.
        assert!(!sender.pause() && !sender.is_paused());
        drop(events);
        assert_eq!(woken.load(Ordering::SeqCst), 1);
        assert!(sender.is_cancelled());
    }

    #[test]
    fn a_reader_that_goes_away_from_a_full_way_wakes_the_engine() {
        let (sender, events, woken) = way();
        sender.send(tokens(2000));
        assert!(sender.is_full() && sender.pause());
        drop(events);
        assert_eq!((woken.load(Ordering::SeqCst), sender.is_cancelled()), (1, true));
    }

    /// Runs both sides at once, many times: a paused job is always woken.
    #[test]
    fn no_wake_is_lost_between_a_pause_and_a_reader_that_catches_up() {
        for round in 0..2000 {
            let (sender, mut events, woken) = way();
            sender.send(tokens(600));
            sender.send(tokens(600));
            let reader = std::thread::spawn(move || {
                (0..round % 50).for_each(|_| std::hint::spin_loop());
                while events.try_next().is_some() {}
                events
            });
            let paused = sender.pause();
            drop(reader.join().unwrap());
            assert!(!sender.is_paused(), "the reader has caught up");
            assert!(!paused || woken.load(Ordering::SeqCst) == 1, "round {round}");
        }
    }
}
