//! How busy a server is: what it says of itself, model by model and with the age of that, and otherwise what we have under way
//! there. Knows neither how it is asked nor in which words it answers, and no choice between servers.

mod ask;
mod header;
mod json;
mod page;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use headrace_engine_api::{LoadReport, Reported};
use parking_lot::Mutex;
use tokio::time::Instant;

pub(crate) use ask::follow;
pub(crate) use header::{FORMAT_HEADER, LOAD_HEADER};

use crate::server::Server;

/// A whole report that is younger than this is not replaced by one that says but half of it.
const FRESH: Duration = Duration::from_secs(3);
/// Nobody has so many calls: what says so is no report.
const MOST_CALLS: f64 = 1e6;
/// The same of tokens.
const MOST_TOKENS: f64 = 1e12;

/// What a server says of one model, or of all together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Reading {
    pub(crate) running: u32,
    pub(crate) waiting: u32,
    pub(crate) waiting_tokens: u64,
    /// Part of the KV memory in use, in thousandths.
    pub(crate) cache_used: Option<u16>,
}

impl Reading {
    fn and(self, other: Self) -> Self {
        Self {
            running: self.running.saturating_add(other.running),
            waiting: self.waiting.saturating_add(other.waiting),
            waiting_tokens: self.waiting_tokens.saturating_add(other.waiting_tokens),
            // What is full somewhere is full.
            cache_used: self.cache_used.max(other.cache_used),
        }
    }
}

/// What one answer says: of models by their names there, and of what has no name.
#[derive(Debug, PartialEq, Eq, Default)]
pub(crate) struct Readings {
    pub(crate) by_model: Vec<(String, Reading)>,
    pub(crate) unnamed: Option<Reading>,
}

impl Readings {
    fn unnamed(reading: Reading) -> Self {
        Self { by_model: Vec::new(), unnamed: Some(reading) }
    }

    /// Of one model. A name that is not told apart, such as an adapter's, has the load of the whole server.
    fn of(&self, model: &str) -> Option<Reading> {
        let named = self.by_model.iter().find(|(name, _)| name == model).map(|(_, reading)| *reading);
        let all = || {
            let named = self.by_model.iter().map(|(_, reading)| *reading);
            named.chain(self.unnamed).reduce(Reading::and)
        };
        named.or_else(all)
    }
}

/// What one server says of its models.
pub(crate) struct Loads {
    gauges: Mutex<Vec<(String, Arc<Gauge>)>>,
    /// Which of the places that its kind has is asked.
    place: AtomicUsize,
    /// Why nothing is known, as far as it was asked.
    fault: Mutex<Option<String>>,
}

impl Loads {
    pub(crate) fn new() -> Self {
        Self { gauges: Mutex::default(), place: AtomicUsize::new(0), fault: Mutex::default() }
    }

    /// Where the load of a model is kept. The same one for all who ask for as long as anybody has it.
    pub(crate) fn gauge(&self, model: &str) -> Arc<Gauge> {
        let mut gauges = self.gauges.lock();
        if let Some((_, gauge)) = gauges.iter().find(|(name, _)| name == model) {
            return Arc::clone(gauge);
        }
        gauges.retain(|(_, gauge)| Arc::strong_count(gauge) > 1);
        let gauge = Arc::new(Gauge::new());
        gauges.push((model.to_owned(), Arc::clone(&gauge)));
        gauge
    }

    /// Why nothing is known of its load; `None`: it told, or was not asked.
    pub(crate) fn fault(&self) -> Option<String> {
        self.fault.lock().clone()
    }

    /// It was asked at a time, and this came of it.
    fn told(&self, asked: Instant, said: Result<Readings, String>) {
        *self.fault.lock() = said.as_ref().err().cloned();
        let Ok(readings) = said else { return };
        for (model, gauge) in &*self.gauges.lock() {
            if let Some(reading) = readings.of(model) {
                gauge.tell(reading, asked);
            }
        }
    }
}

/// The load of one model at one server, as it was told last. Read for every call that is placed: no lock. What is read while it
/// is written may be of two reports; a hint may.
#[derive(Debug)]
pub(crate) struct Gauge {
    born: Instant,
    /// When it was true, in nanoseconds since `born`, plus one; 0: nothing was told.
    at: AtomicU64,
    /// Running in the upper half, waiting in the lower.
    calls: AtomicU64,
    waiting_tokens: AtomicU64,
    /// In thousandths, plus one; 0: unknown.
    cache_used: AtomicU32,
}

impl Gauge {
    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        let (at, calls, waiting_tokens) = (zero(), zero(), zero());
        Self { born: Instant::now(), at, calls, waiting_tokens, cache_used: AtomicU32::new(0) }
    }

    fn tell(&self, reading: Reading, at: Instant) {
        let Reading { running, waiting, waiting_tokens, cache_used } = reading;
        self.calls.store(u64::from(running) << 32 | u64::from(waiting), Ordering::Relaxed);
        self.waiting_tokens.store(waiting_tokens, Ordering::Relaxed);
        self.cache_used.store(cache_used.map_or(0, |part| u32::from(part) + 1), Ordering::Relaxed);
        self.at.store(self.nanos(at).saturating_add(1), Ordering::Release);
    }

    /// The head of an answer says this. Where it does not say how many calls run, those from here count, and what was asked for
    /// lately is believed rather.
    pub(crate) fn tell_of_header(&self, values: &[&[u8]], server: &Server) {
        let Some(part) = header::read(values) else { return };
        let now = Instant::now();
        let whole = part.running.is_some();
        if !whole && self.age(now).is_some_and(|age| age < FRESH) {
            return;
        }
        let Some(waiting) = part.waiting else { return };
        let running = part.running.unwrap_or_else(|| seen_here(server).running);
        self.tell(Reading { running, waiting, waiting_tokens: 0, cache_used: part.cache_used }, now);
    }

    fn nanos(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.born);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    fn age(&self, now: Instant) -> Option<Duration> {
        let at = self.at.load(Ordering::Acquire).checked_sub(1)?;
        Some(Duration::from_nanos(self.nanos(now).saturating_sub(at)))
    }

    /// What it said, or where it said nothing what is under way from here.
    pub(crate) fn report(&self, server: &Server) -> LoadReport {
        let Some(age) = self.age(Instant::now()) else { return seen_here(server) };
        let calls = self.calls.load(Ordering::Relaxed);
        LoadReport {
            reported: Reported::Ago { nanos: u64::try_from(age.as_nanos()).unwrap_or(u64::MAX) },
            running: (calls >> 32) as u32,
            waiting: calls as u32,
            waiting_tokens: self.waiting_tokens.load(Ordering::Relaxed),
            cache_used_permille: self
                .cache_used
                .load(Ordering::Relaxed)
                .checked_sub(1)
                .and_then(|part| u16::try_from(part).ok()),
            ..LoadReport::default()
        }
    }
}

/// The calls that this process has there, and those that wait here for a place. What others have there is not known, and a
/// server that has not said anything is not idle.
fn seen_here(server: &Server) -> LoadReport {
    let count = |calls: u64| u32::try_from(calls).unwrap_or(u32::MAX);
    let waiting = server.gate.waiting() as u64;
    let running = server.counters.in_flight().saturating_sub(waiting);
    let reported = Reported::Never;
    LoadReport { reported, running: count(running), waiting: count(waiting), ..LoadReport::default() }
}

/// A number of calls, if it is one.
fn calls(value: f64) -> Option<u32> {
    (0.0..=MOST_CALLS).contains(&value).then_some(value as u32)
}

/// A number of tokens, if it is one.
fn tokens(value: f64) -> Option<u64> {
    (0.0..=MOST_TOKENS).contains(&value).then_some(value as u64)
}

/// A part from 0 to 1, in thousandths, if it is one. Some servers are a little beyond when they are full.
fn part(value: f64) -> Option<u16> {
    (0.0..=1.5).contains(&value).then(|| (value.min(1.0) * 1000.0).round() as u16)
}
