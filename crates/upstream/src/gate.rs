//! How many calls one server is asked at once, and a bounded queue before it: first come, first served. Knows no connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use headrace_engine_api::RelayError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::spec::Queue;

/// The places at a server.
#[derive(Debug)]
pub(crate) struct Gate {
    places: Option<Arc<Semaphore>>,
    queue: Queue,
    waiting: AtomicUsize,
    /// How long a place was held lately: a moving average, in nanoseconds; 0: unknown.
    held_ns: AtomicU64,
}

/// A call's place. Dropping it gives it to the next one.
#[derive(Debug)]
pub(crate) struct Place {
    gate: Arc<Gate>,
    since: Instant,
    _permit: Option<OwnedSemaphorePermit>,
}

/// Counts a waiting call, also one that gives up.
struct Waiting<'a>(&'a AtomicUsize);

impl Gate {
    pub(crate) fn new(queue: Queue) -> Self {
        let places = queue.in_flight.map(|most| Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))));
        Self { places, queue, waiting: AtomicUsize::new(0), held_ns: AtomicU64::new(0) }
    }

    /// Waits for a place, at most until `deadline`.
    ///
    /// # Errors
    /// [`RelayError::Unavailable`] where the queue is full or the wait took too long.
    pub(crate) async fn enter(self: &Arc<Self>, deadline: Instant) -> Result<Place, RelayError> {
        let Some(places) = &self.places else {
            return Ok(self.place(None));
        };
        if let Ok(permit) = Arc::clone(places).try_acquire_owned() {
            return Ok(self.place(Some(permit)));
        }
        let Some(_waiting) = Waiting::join(&self.waiting, self.queue.waiting) else {
            return Err(self.refused(&format!("{} wait for one", self.queue.waiting)));
        };
        let until = deadline.min(Instant::now() + self.queue.wait);
        match tokio::time::timeout_at(until, Arc::clone(places).acquire_owned()).await {
            Ok(Ok(permit)) => Ok(self.place(Some(permit))),
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => Err(self.refused("none became free in time")),
        }
    }

    /// Calls that wait for a place.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    fn place(self: &Arc<Self>, permit: Option<OwnedSemaphorePermit>) -> Place {
        Place { gate: Arc::clone(self), since: Instant::now(), _permit: permit }
    }

    fn refused(&self, why: &str) -> RelayError {
        let most = self.queue.in_flight.unwrap_or(usize::MAX);
        RelayError::Unavailable {
            why: format!("all {most} places that we take there are in use, and {why}"),
            retry_after: Some(self.expected_wait(most)),
        }
    }

    /// When a place may be free for one more: what is ahead of it, at the pace of late. A second to a minute.
    fn expected_wait(&self, places: usize) -> Duration {
        let ahead = u64::try_from(self.waiting() + 1).unwrap_or(u64::MAX);
        let places = u64::try_from(places.max(1)).unwrap_or(u64::MAX);
        let wait = Duration::from_nanos(self.held_ns.load(Ordering::Relaxed).saturating_mul(ahead) / places);
        wait.clamp(Duration::from_secs(1), Duration::from_secs(60))
    }
}

impl<'a> Waiting<'a> {
    fn join(count: &'a AtomicUsize, most: usize) -> Option<Self> {
        let join = |waiting| (waiting < most).then_some(waiting + 1);
        count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, join).ok().map(|_| Self(count))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let held = u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // Two that end at once may lose one of both: it is an estimate.
        let former = self.gate.held_ns.load(Ordering::Relaxed);
        let next = if former == 0 { held } else { former - former / 8 + held / 8 };
        self.gate.held_ns.store(next, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(in_flight: usize, waiting: usize) -> Arc<Gate> {
        let wait = Duration::from_secs(10);
        Arc::new(Gate::new(Queue { in_flight: Some(in_flight), waiting, wait }))
    }

    fn in_an_hour() -> Instant {
        Instant::now() + Duration::from_secs(3600)
    }

    #[tokio::test(start_paused = true)]
    async fn places_go_to_those_who_waited_longest() {
        let gate = gate(1, 8);
        let first = gate.enter(in_an_hour()).await.unwrap();
        let (order, mut came) = tokio::sync::mpsc::unbounded_channel();
        for number in 0..4 {
            let (gate, order) = (Arc::clone(&gate), order.clone());
            tokio::spawn(async move {
                let place = gate.enter(in_an_hour()).await.unwrap();
                order.send(number).unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
                drop(place);
            });
            tokio::task::yield_now().await;
        }
        assert_eq!(gate.waiting(), 4);
        drop(first);
        for number in 0..4 {
            assert_eq!(came.recv().await, Some(number));
        }
        assert_eq!(gate.waiting(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_and_a_long_wait_are_refused_with_when_to_come_again() {
        let gate = gate(1, 1);
        let place = gate.enter(in_an_hour()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(4)).await;
        drop(place);
        let _place = gate.enter(in_an_hour()).await.unwrap();
        let begun = Instant::now();
        let waiting = {
            let gate = Arc::clone(&gate);
            tokio::spawn(async move { gate.enter(in_an_hour()).await.map(drop) })
        };
        tokio::task::yield_now().await;
        let RelayError::Unavailable { why, retry_after } = gate.enter(in_an_hour()).await.unwrap_err() else {
            panic!("it is unavailable");
        };
        assert!(why.contains("all 1 places") && why.contains("1 wait for one"), "{why}");
        assert_eq!(retry_after, Some(Duration::from_secs(8)));
        let error = waiting.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("none became free in time"), "{error}");
        assert_eq!(begun.elapsed(), Duration::from_secs(10));
        // Who gives up waiting leaves the queue.
        drop(tokio::time::timeout(Duration::from_secs(1), gate.enter(in_an_hour())).await);
        assert_eq!(gate.waiting(), 0);
    }
}
