//! The last reported load of one server, per model. Must not know how the server is polled or the format of its
//! answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use headrace_engine_api::{LoadReport, ReportAge};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::load_reading::{LoadReading, LoadReadings, PartialLoad};

/// A complete report younger than this is not replaced by a partial one.
const FRESH: Duration = Duration::from_secs(3);
/// The reported loads of one server's models.
pub(crate) struct ServerLoads {
    gauges: Mutex<Vec<(String, Arc<LoadGauge>)>>,
    /// Index of the endpoint to poll, among those of the server's kind.
    pub(crate) place: AtomicUsize,
    /// Why the load is unknown, as of the last poll.
    fault: Mutex<Option<String>>,
}

impl ServerLoads {
    pub(crate) fn new() -> Self {
        Self { gauges: Mutex::default(), place: AtomicUsize::new(0), fault: Mutex::default() }
    }

    /// Returns the gauge of a model. All callers share one gauge for as long as one of them holds it.
    pub(crate) fn gauge(&self, model: &str) -> Arc<LoadGauge> {
        let mut gauges = self.gauges.lock();
        if let Some((_, gauge)) = gauges.iter().find(|(name, _)| name == model) {
            return Arc::clone(gauge);
        }
        gauges.retain(|(_, gauge)| Arc::strong_count(gauge) > 1);
        let gauge = Arc::new(LoadGauge::new());
        gauges.push((model.to_owned(), Arc::clone(&gauge)));
        gauge
    }

    /// Returns why the load is unknown. `None` if it was reported, or the server was not polled.
    pub(crate) fn fault(&self) -> Option<String> {
        self.fault.lock().clone()
    }

    /// Records the result of a poll that began at `asked`.
    pub(crate) fn record_answer(&self, asked: Instant, said: Result<LoadReadings, String>) {
        *self.fault.lock() = said.as_ref().err().cloned();
        let Ok(readings) = said else { return };
        for (model, gauge) in &*self.gauges.lock() {
            if let Some(reading) = readings.of(model) {
                gauge.record(reading, asked);
            }
        }
    }
}

/// The last reported load of one model at one server. Every placed call reads it, so it has no lock. A read during a
/// write may mix two reports, which is acceptable for a hint.
#[derive(Debug)]
pub(crate) struct LoadGauge {
    born: Instant,
    /// Time of the report: nanoseconds since `born`, plus one. 0 means no report.
    at: AtomicU64,
    /// Running calls in the upper half, waiting calls in the lower.
    calls: AtomicU64,
    waiting_tokens: AtomicU64,
    /// Thousandths in use, plus one. 0 means unknown.
    cache_used: AtomicU32,
}

impl LoadGauge {
    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        let (at, calls, waiting_tokens) = (zero(), zero(), zero());
        Self { born: Instant::now(), at, calls, waiting_tokens, cache_used: AtomicU32::new(0) }
    }

    fn record(&self, reading: LoadReading, at: Instant) {
        let LoadReading { running, waiting, waiting_tokens, cache_used } = reading;
        self.calls.store(u64::from(running) << 32 | u64::from(waiting), Ordering::Relaxed);
        self.waiting_tokens.store(waiting_tokens, Ordering::Relaxed);
        self.cache_used.store(cache_used.map_or(0, |part| u32::from(part) + 1), Ordering::Relaxed);
        self.at.store(self.nanos(at).saturating_add(1), Ordering::Release);
    }

    /// Applies a report from the head of an answer. If it lacks the number of running calls, the calls of this process
    /// count instead, and a recent complete report takes precedence.
    pub(crate) fn record_header(&self, part: &PartialLoad, running_here: impl FnOnce() -> u32) {
        let now = Instant::now();
        let whole = part.running.is_some();
        if !whole && self.age(now).is_some_and(|age| age < FRESH) {
            return;
        }
        let Some(waiting) = part.waiting else { return };
        let running = part.running.unwrap_or_else(running_here);
        self.record(LoadReading { running, waiting, waiting_tokens: 0, cache_used: part.cache_used }, now);
    }

    fn nanos(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.born);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    fn age(&self, now: Instant) -> Option<Duration> {
        let at = self.at.load(Ordering::Acquire).checked_sub(1)?;
        Some(Duration::from_nanos(self.nanos(now).saturating_sub(at)))
    }

    /// Returns the last report, or `None` if there is none.
    pub(crate) fn report(&self) -> Option<LoadReport> {
        let age = self.age(Instant::now())?;
        let calls = self.calls.load(Ordering::Relaxed);
        Some(LoadReport {
            reported: ReportAge::Ago { nanos: u64::try_from(age.as_nanos()).unwrap_or(u64::MAX) },
            running: (calls >> 32) as u32,
            waiting: calls as u32,
            waiting_tokens: self.waiting_tokens.load(Ordering::Relaxed),
            cache_used_permille: self
                .cache_used
                .load(Ordering::Relaxed)
                .checked_sub(1)
                .and_then(|part| u16::try_from(part).ok()),
            ..LoadReport::default()
        })
    }
}
