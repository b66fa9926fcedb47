//! How events travel from the engine's thread to the task that owns the request, and the signals that go back: a cancel,
//! and that a reader who had fallen behind has caught up. The engine never waits: a job whose unread events have
//! reached its bound is to stand still until half of them are taken. Knows nothing of how an engine does that.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::sync::{mpsc, watch};

use crate::{Event, JobReport};

/// What both ends know of a job's way, beside the events themselves.
#[derive(Debug)]
struct Way {
    /// Bytes of events that may wait unread.
    bound: usize,
    /// Bytes of events sent and not taken yet.
    unread: AtomicUsize,
    /// The job stands still until its reader has caught up.
    paused: AtomicBool,
    cancelled: AtomicBool,
}

/// An event with the bytes it counts for.
#[derive(Debug)]
struct Posted {
    event: Event,
    bytes: usize,
}

/// The engine's end. Dropping it without a terminal event tells the reader that the engine died.
#[derive(Debug)]
pub struct EventSender {
    events: mpsc::UnboundedSender<Posted>,
    way: Arc<Way>,
    report: watch::Sender<Option<Arc<JobReport>>>,
}

/// What [`Ticket::split`] leaves for cancelling.
pub struct TicketControl {
    way: Arc<Way>,
    report: watch::Receiver<Option<Arc<JobReport>>>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

/// The reader's end of a job's events.
pub struct Events {
    events: mpsc::UnboundedReceiver<Posted>,
    way: Arc<Way>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

/// A job that was accepted.
pub struct Ticket {
    events: Events,
    control: TicketControl,
}

/// Resolves to what a cancelled job took, once the engine has let go of it.
#[derive(Debug)]
pub struct Cancelled {
    report: watch::Receiver<Option<Arc<JobReport>>>,
}

/// Makes both ends of a job that is to stand still once `unread_bytes` of its events wait ([`crate::Job::unread_bytes`]).
/// `wake` is called on a cancel, and when the reader of a job that stands still has caught up or gone: so that an idle
/// engine looks.
pub fn channel(unread_bytes: usize, wake: Arc<dyn Fn() + Send + Sync>) -> (EventSender, Ticket) {
    let (events, reader) = mpsc::unbounded_channel();
    let (report, report_reader) = watch::channel(None);
    let way = Arc::new(Way {
        bound: unread_bytes.max(1),
        unread: AtomicUsize::new(0),
        paused: AtomicBool::new(false),
        cancelled: AtomicBool::new(false),
    });
    let sender = EventSender { events, way: Arc::clone(&way), report };
    let control = TicketControl { way: Arc::clone(&way), report: report_reader, wake: Arc::clone(&wake) };
    (sender, Ticket { events: Events { events: reader, way, wake }, control })
}

impl Way {
    /// Whether the reader has taken enough of what waited for the job to go on.
    fn is_drained(&self) -> bool {
        self.unread.load(Ordering::SeqCst) <= self.bound / 2
    }
}

impl EventSender {
    /// Sends an event that is not terminal. Never waits, and takes it beyond the bound too: see [`Self::is_full`].
    /// `false`: nobody reads any more, which counts as a cancel.
    pub fn send(&self, event: Event) -> bool {
        let bytes = event.bytes();
        self.way.unread.fetch_add(bytes, Ordering::SeqCst);
        self.events.send(Posted { event, bytes }).is_ok()
    }

    /// Whether so much waits unread that the job is to stand still. One atomic load.
    pub fn is_full(&self) -> bool {
        self.way.unread.load(Ordering::Relaxed) >= self.way.bound
    }

    /// Bytes of events that may wait unread.
    pub fn bound(&self) -> usize {
        self.way.bound
    }

    /// The job is about to stand still: from now on its reader wakes the engine once it has caught up or is gone.
    /// `false`: it has done so already, and the job goes on.
    pub fn pause(&self) -> bool {
        self.way.paused.store(true, Ordering::SeqCst);
        // Either this sees what the reader took, or the reader sees that the job stands still: both are in one order.
        if self.way.is_drained() {
            self.way.paused.store(false, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// Whether a job that was paused is to stand still yet.
    pub fn is_paused(&self) -> bool {
        self.way.paused.load(Ordering::SeqCst)
    }

    /// Whether the job shall end: it was cancelled, or its reader is gone.
    pub fn is_cancelled(&self) -> bool {
        self.way.cancelled.load(Ordering::Acquire) || self.events.is_closed()
    }

    /// Sends the terminal event and resolves every receipt.
    pub fn finish(self, last: Event) {
        let report = match &last {
            Event::Done(report) | Event::Failed { report, .. } => Arc::clone(report),
            _ => Arc::default(),
        };
        self.report.send_replace(Some(report));
        // A reader that is gone has its receipt.
        self.send(last);
    }
}

impl Ticket {
    /// The events, and what cancels them.
    pub fn split(self) -> (Events, TicketControl) {
        (self.events, self.control)
    }
}

impl Events {
    /// The next event; `None` after the terminal one, or if the engine died.
    pub async fn next(&mut self) -> Option<Event> {
        let posted = self.events.recv().await;
        self.take(posted)
    }

    /// As [`Events::next`], for readers of several jobs at once.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_recv(cx).map(|posted| self.take(posted))
    }

    /// The next event if one is there already.
    pub fn try_next(&mut self) -> Option<Event> {
        let posted = self.events.try_recv().ok();
        self.take(posted)
    }

    /// Blocks until the next event: for tests and tools that run outside a runtime.
    pub fn next_blocking(&mut self) -> Option<Event> {
        let posted = self.events.blocking_recv();
        self.take(posted)
    }

    /// Bytes of events that wait here.
    pub fn unread_bytes(&self) -> usize {
        self.way.unread.load(Ordering::SeqCst)
    }

    fn take(&self, posted: Option<Posted>) -> Option<Event> {
        let Posted { event, bytes } = posted?;
        self.way.unread.fetch_sub(bytes, Ordering::SeqCst);
        if self.way.paused.load(Ordering::SeqCst) && self.way.is_drained() {
            self.go_on();
        }
        Some(event)
    }

    /// Wakes the engine if the job stands still, once.
    fn go_on(&self) {
        if self.way.paused.swap(false, Ordering::SeqCst) {
            (self.wake)();
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // What stands still is in no step that would notice.
        self.events.close();
        self.go_on();
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("way", &self.way).finish_non_exhaustive()
    }
}

impl TicketControl {
    /// Asks the engine to let go. Its blocks are free within a step. What comes back tells what had been computed.
    pub fn cancel(&self) -> Cancelled {
        self.way.cancelled.store(true, Ordering::Release);
        (self.wake)();
        Cancelled { report: self.report.clone() }
    }
}

impl Cancelled {
    /// What the job took. If the engine died, nothing is known and the report is empty.
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

    /// A way of 1,000 bytes, and how often the engine was woken.
    fn way() -> (EventSender, Events, Arc<AtomicUsize>) {
        let woken = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&woken);
        let wake = Arc::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        let (sender, ticket) = channel(1000, wake);
        (sender, ticket.split().0, woken)
    }

    fn tokens(text: usize) -> Event {
        Event::Tokens { choice: 0, ids: vec![1], text: "x".repeat(text), logprobs: Vec::new() }
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
        // Who has caught up before the pause was spoken out is not paused, and nobody is woken for nothing.
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

    /// Both sides at once, many times: whoever stands still is woken.
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
