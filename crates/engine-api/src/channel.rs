//! How events travel from the engine's thread to the task that owns the request, and the one signal that goes back.
//! The queue is unbounded because the engine must never wait; it is bounded in effect: the task that reads it never
//! waits for a client, and a job makes at most `max_tokens × n` events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::sync::{mpsc, watch};

use crate::{Event, JobReport};

/// The engine's end. Dropping it without a terminal event tells the reader that the engine died.
#[derive(Debug)]
pub struct EventSender {
    events: mpsc::UnboundedSender<Event>,
    cancelled: Arc<AtomicBool>,
    report: watch::Sender<Option<JobReport>>,
}

/// What [`Ticket::split`] leaves for cancelling.
pub struct TicketControl {
    cancelled: Arc<AtomicBool>,
    report: watch::Receiver<Option<JobReport>>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

/// The reader's end of a job's events.
#[derive(Debug)]
pub struct Events {
    events: mpsc::UnboundedReceiver<Event>,
}

/// A job that was accepted.
pub struct Ticket {
    events: Events,
    control: TicketControl,
}

/// Resolves to what a cancelled job took, once the engine has let go of it.
#[derive(Debug)]
pub struct Receipt {
    report: watch::Receiver<Option<JobReport>>,
}

/// Makes both ends. `wake` is called on cancel, so that an idle engine looks.
pub fn channel(wake: Arc<dyn Fn() + Send + Sync>) -> (EventSender, Ticket) {
    let (events, reader) = mpsc::unbounded_channel();
    let (report, report_reader) = watch::channel(None);
    let cancelled = Arc::new(AtomicBool::new(false));
    let sender = EventSender { events, cancelled: Arc::clone(&cancelled), report };
    let control = TicketControl { cancelled, report: report_reader, wake };
    (sender, Ticket { events: Events { events: reader }, control })
}

impl EventSender {
    /// Sends an event that is not terminal. `false`: nobody reads any more, which counts as a cancel.
    pub fn send(&self, event: Event) -> bool {
        self.events.send(event).is_ok()
    }

    /// Whether the job shall end: it was cancelled, or its reader is gone.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire) || self.events.is_closed()
    }

    /// Sends the terminal event and resolves every receipt.
    pub fn finish(self, last: Event) {
        let report = match &last {
            Event::Done(report) | Event::Failed { report, .. } => report.clone(),
            _ => JobReport::default(),
        };
        self.report.send_replace(Some(report));
        // A reader that is gone has its receipt.
        let _ = self.events.send(last);
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
        self.events.recv().await
    }

    /// As [`Events::next`], for readers of several jobs at once.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_recv(cx)
    }

    /// The next event if one is there already.
    pub fn try_next(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// Blocks until the next event: for tests and tools that run outside a runtime.
    pub fn next_blocking(&mut self) -> Option<Event> {
        self.events.blocking_recv()
    }
}

impl TicketControl {
    /// Asks the engine to let go. Its blocks are free within a step; the receipt says what had been computed.
    pub fn cancel(&self) -> Receipt {
        self.cancelled.store(true, Ordering::Release);
        (self.wake)();
        Receipt { report: self.report.clone() }
    }
}

impl Receipt {
    /// What the job took. If the engine died, nothing is known and the report is empty.
    pub async fn report(mut self) -> JobReport {
        match self.report.wait_for(Option::is_some).await {
            Ok(report) => report.clone().unwrap_or_default(),
            Err(_) => JobReport::default(),
        }
    }
}
