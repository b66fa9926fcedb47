//! Canaries: watches the calls that a route sends to a canary model and to the stable models beside it. A canary that
//! is worse gets no more calls from that moment, and the evidence is kept. Must not know how a call is served or who
//! is notified.

use std::collections::hash_map::{self, DefaultHasher};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use headrace_domain::{Code, ModelName, TraceRecord, UnixNanos};
use parking_lot::Mutex;

mod rule;

use rule::{BadCallRate, MOST_CALLS};

/// Calls of the canary between two evaluations.
const LOOK_EVERY: u32 = 8;

/// When a canary counts as worse than the stable models of its route.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CanarySpec {
    /// Calls that ended longer ago do not count.
    pub window: Duration,
    /// The canary needs at least this many calls before it is judged.
    pub min_calls: u32,
    /// By how much the canary's failure rate may exceed the stable one: 0.01 is one call in a hundred.
    pub errors: f64,
    /// By how much the canary's rate of refused content may exceed the stable one.
    pub refusals: f64,
    /// The greatest tolerated ratio of the 95th percentiles of the time to the first token, canary to stable.
    pub first_token: f64,
}

/// How a call ended, as far as the model is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallVerdict {
    /// It completed.
    Well,
    /// The content of the call was refused.
    Refused,
    /// The model failed.
    Failed,
}

impl CallVerdict {
    /// The outcome that a refusal counts as. `None` if the refusal says nothing of the model.
    pub const fn of_refusal(code: Code, status: u16) -> Option<Self> {
        match code {
            Code::ShuttingDown => None,
            Code::ContentPolicy => Some(Self::Refused),
            _ if status >= 500 || status == 429 => Some(Self::Failed),
            // The caller's own fault, which the caller can fix.
            _ => None,
        }
    }
}

/// When and why a canary was rolled back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CanaryRollback {
    /// Time of the rollback.
    pub at: UnixNanos,
    /// The evidence, in words.
    pub why: String,
}

/// A canary that was rolled back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CanaryNews {
    /// The route.
    pub route: ModelName,
    /// The model.
    pub model: ModelName,
    /// Fingerprint of the canary's configuration entry. Another entry is another trial.
    pub fingerprint: String,
    /// When and why.
    pub rolled_back: CanaryRollback,
}

/// A canary's figures, as operators see them.
#[derive(Debug, Clone, PartialEq)]
pub struct CanaryView {
    /// Calls in the window: of the canary, and of the stable models.
    pub calls: [usize; 2],
    /// Failed calls among these.
    pub errors: [usize; 2],
    /// Calls among these whose content was refused.
    pub refusals: [usize; 2],
    /// The 95th percentile of the time to the first token, in microseconds.
    pub first_token_p95_us: [Option<u32>; 2],
    /// When and why the canary was rolled back. `None` while it is on trial.
    pub rolled_back: Option<CanaryRollback>,
}

/// A canary's configuration entry besides its name. Another entry is another trial.
#[derive(Debug, Clone, Copy, PartialEq)]
struct CanaryEntry {
    weight: u32,
    spec: CanarySpec,
}

/// Observations of one canary. Outlives the catalogue for as long as the canary's entry stays the same.
pub struct CanaryWatch {
    /// The route.
    pub route: ModelName,
    /// The canary.
    pub model: ModelName,
    entry: CanaryEntry,
    out: AtomicBool,
    state: Mutex<WatchState>,
}

#[derive(Default)]
struct WatchState {
    canary: CallWindow,
    stable: CallWindow,
    since_look: u32,
    looks: u64,
    rolled_back: Option<CanaryRollback>,
    told: bool,
}

#[derive(Default)]
struct CallWindow {
    calls: VecDeque<WatchedCall>,
    /// All calls, counted.
    counts: CallCounts,
    /// The same by caller.
    callers: HashMap<u64, CallCounts>,
}

/// Numbers of calls.
#[derive(Debug, Clone, Copy, Default)]
struct CallCounts {
    calls: usize,
    errors: usize,
    refusals: usize,
}

impl CallCounts {
    fn add(&mut self, went: CallVerdict) {
        self.calls += 1;
        match went {
            CallVerdict::Well => {}
            CallVerdict::Refused => self.refusals += 1,
            CallVerdict::Failed => self.errors += 1,
        }
    }

    fn remove(&mut self, went: CallVerdict) {
        self.calls = self.calls.saturating_sub(1);
        match went {
            CallVerdict::Well => {}
            CallVerdict::Refused => self.refusals = self.refusals.saturating_sub(1),
            CallVerdict::Failed => self.errors = self.errors.saturating_sub(1),
        }
    }

    fn of(&self, went: CallVerdict) -> usize {
        match went {
            CallVerdict::Well => self.calls - self.errors - self.refusals,
            CallVerdict::Refused => self.refusals,
            CallVerdict::Failed => self.errors,
        }
    }
}

#[derive(Clone, Copy)]
struct WatchedCall {
    at: UnixNanos,
    went: CallVerdict,
    first_token_us: Option<u32>,
    /// Hash of the key that made the call.
    caller: u64,
}

impl CallWindow {
    fn put(&mut self, seen: WatchedCall) {
        if self.calls.len() == MOST_CALLS {
            self.drop_first();
        }
        self.counts.add(seen.went);
        self.callers.entry(seen.caller).or_default().add(seen.went);
        self.calls.push_back(seen);
    }

    fn forget_before(&mut self, oldest: UnixNanos) {
        while self.calls.front().is_some_and(|seen| seen.at < oldest) {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        if let Some(seen) = self.calls.pop_front() {
            self.counts.remove(seen.went);
            if let hash_map::Entry::Occupied(mut counts) = self.callers.entry(seen.caller) {
                counts.get_mut().remove(seen.went);
                if counts.get().calls == 0 {
                    counts.remove();
                }
            }
        }
    }

    /// The calls of all callers except those in `left_out`.
    fn without<'a>(&'a self, left_out: &'a [u64]) -> impl Iterator<Item = &'a WatchedCall> {
        self.calls.iter().filter(|seen| !left_out.contains(&seen.caller))
    }

    /// The rate of an outcome without the callers in `left_out`, which are different ones.
    fn rate(&self, left_out: &[u64], went: CallVerdict) -> BadCallRate {
        let gone = left_out.iter().filter_map(|caller| self.callers.get(caller));
        let (bad, of) = gone.fold((self.counts.of(went), self.counts.calls), |(bad, of), counts| {
            (bad - counts.of(went), of - counts.calls)
        });
        BadCallRate { bad, of }
    }

    fn times(&self, left_out: &[u64]) -> Vec<u32> {
        self.without(left_out).filter_map(|seen| seen.first_token_us).collect()
    }

    /// The caller with the most calls.
    fn busiest(&self) -> Option<u64> {
        let most = self.callers.iter().max_by_key(|(caller, counts)| (counts.calls, **caller));
        most.map(|(caller, _)| *caller)
    }

    /// The caller with the most calls for which `counts` is true.
    fn most_of(&self, left_out: &[u64], counts: impl Fn(&WatchedCall) -> bool) -> Option<u64> {
        let mut callers: HashMap<u64, u32> = HashMap::new();
        for seen in self.without(left_out).filter(|seen| counts(seen)) {
            *callers.entry(seen.caller).or_default() += 1;
        }
        callers.into_iter().max_by_key(|(caller, calls)| (*calls, *caller)).map(|(caller, _)| caller)
    }
}

impl CanaryWatch {
    /// Starts to watch a canary with this weight in the route.
    pub fn new(route: &ModelName, model: &ModelName, weight: u32, spec: CanarySpec) -> Self {
        let (out, state, entry) = (AtomicBool::new(false), Mutex::default(), CanaryEntry { weight, spec });
        Self { route: route.clone(), model: model.clone(), entry, out, state }
    }

    /// Whether the canary was rolled back and gets no more calls.
    pub fn is_out(&self) -> bool {
        self.out.load(Ordering::Relaxed)
    }

    /// Records the end of a call: of the canary itself (`canary`), or of a stable model of the route.
    pub fn ended(
        &self,
        canary: bool,
        went: CallVerdict,
        first_token_us: Option<u32>,
        (caller, now): (u64, UnixNanos),
    ) {
        if self.is_out() {
            return;
        }
        let state = &mut *self.state.lock();
        let oldest = UnixNanos::new(now.get().saturating_sub(nanos(self.entry.spec.window)));
        state.canary.forget_before(oldest);
        state.stable.forget_before(oldest);
        let seen = WatchedCall { at: now, went, first_token_us, caller };
        if !canary {
            return state.stable.put(seen);
        }
        state.canary.put(seen);
        state.since_look += 1;
        if state.since_look < LOOK_EVERY || state.canary.calls.len() < self.entry.spec.min_calls as usize {
            return;
        }
        (state.since_look, state.looks) = (0, state.looks + 1);
        if let Some(why) = state.breach(&self.entry.spec) {
            self.out.store(true, Ordering::Relaxed);
            let (route, model) = (&self.route, &self.model);
            tracing::warn!(%route, %model, %why, "a canary is worse than what it is compared with: it gets no more calls");
            state.rolled_back = Some(CanaryRollback { at: now, why });
        }
    }

    /// Restores an earlier rollback. It is not reported as news again.
    pub fn roll_back(&self, why: CanaryRollback) {
        let mut state = self.state.lock();
        (state.rolled_back, state.told) = (Some(why), true);
        self.out.store(true, Ordering::Relaxed);
    }

    /// Starts the trial again from scratch. Returns whether the canary had been rolled back.
    pub fn resume(&self) -> bool {
        *self.state.lock() = WatchState::default();
        self.out.swap(false, Ordering::Relaxed)
    }

    /// The canary's rollback. Returned once, to the first caller that asks.
    pub fn news(&self) -> Option<CanaryNews> {
        if !self.is_out() {
            return None;
        }
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.told, true) {
            return None;
        }
        let (route, model) = (self.route.clone(), self.model.clone());
        Some(CanaryNews {
            route,
            model,
            fingerprint: self.fingerprint(),
            rolled_back: state.rolled_back.clone()?,
        })
    }

    /// Whether both watch the same model with the same entry.
    fn is_like(&self, other: &Self) -> bool {
        (&self.model, self.entry) == (&other.model, other.entry)
    }

    /// Whether `news` concerns this canary with the same entry.
    pub fn is_of(&self, news: &CanaryNews) -> bool {
        (&self.route, &self.model) == (&news.route, &news.model) && self.fingerprint() == news.fingerprint
    }

    /// Fingerprint of the configuration entry.
    fn fingerprint(&self) -> String {
        let CanarySpec { window, min_calls, errors, refusals, first_token } = self.entry.spec;
        let entry = format!("{} {window:?} {min_calls} {errors} {refusals} {first_token}", self.entry.weight);
        blake3::hash(entry.as_bytes()).to_hex().chars().take(16).collect()
    }

    /// The current figures.
    pub fn view(&self) -> CanaryView {
        let state = self.state.lock();
        let WatchState { canary, stable, rolled_back, .. } = &*state;
        CanaryView {
            calls: [canary.calls.len(), stable.calls.len()],
            errors: [canary.counts.errors, stable.counts.errors],
            refusals: [canary.counts.refusals, stable.counts.refusals],
            first_token_p95_us: [canary, stable].map(|sample| rule::p95(&mut sample.times(&[]))),
            rolled_back: rolled_back.clone(),
        }
    }
}

/// The respects in which a canary can be worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CanarySignal {
    Failed,
    Refused,
    Slow,
}

impl CanarySignal {
    const ALL: [Self; 3] = [Self::Failed, Self::Refused, Self::Slow];
}

/// One signal of the canary and of the stable models.
struct SignalComparison {
    own: BadCallRate,
    beside: BadCallRate,
    /// By how much the canary's rate may exceed the stable one.
    tolerated: f64,
    /// The canary's time to the first token, in microseconds, beyond which a call counts as slow.
    slow_us: u32,
}

impl WatchState {
    /// In which respect the canary is worse, in words. `None` if it is not worse.
    fn breach(&self, spec: &CanarySpec) -> Option<String> {
        let level = rule::at_look(self.looks);
        if !self.has_several_callers() {
            return CanarySignal::ALL.into_iter().find_map(|signal| self.worse(spec, signal, &[], level));
        }
        let busiest = self.canary.busiest();
        let without = [&[][..], busiest.as_slice()];
        let tests =
            without.into_iter().flat_map(|left_out| CanarySignal::ALL.map(|signal| (signal, left_out)));
        tests.into_iter().find_map(|(signal, left_out)| {
            let why = self.worse(spec, signal, left_out, level / 2.0)?;
            self.others_bear_out(spec, signal, left_out).then_some(why)
        })
    }

    /// Whether more than one key called the canary or the stable models within the window.
    fn has_several_callers(&self) -> bool {
        let mut callers = self.canary.callers.keys().chain(self.stable.callers.keys());
        let first = callers.next();
        callers.any(|caller| Some(caller) != first)
    }

    /// Whether the signal is also worse without the key that has most of the bad calls.
    fn others_bear_out(&self, spec: &CanarySpec, signal: CanarySignal, left_out: &[u64]) -> bool {
        let Some(measured) = self.measure(spec, signal, left_out) else { return false };
        let bad = |seen: &WatchedCall| match signal {
            CanarySignal::Failed => seen.went == CallVerdict::Failed,
            CanarySignal::Refused => seen.went == CallVerdict::Refused,
            CanarySignal::Slow => seen.first_token_us.is_some_and(|us| us > measured.slow_us),
        };
        let Some(most) = self.canary.most_of(left_out, bad) else { return false };
        let left_out = [left_out, &[most]].concat();
        let others = self.measure(spec, signal, &left_out);
        others.is_some_and(|SignalComparison { own, beside, tolerated, .. }| {
            rule::worse(own, beside, tolerated, rule::corroborates(self.looks)).is_some()
        })
    }

    fn measure(&self, spec: &CanarySpec, signal: CanarySignal, left_out: &[u64]) -> Option<SignalComparison> {
        let Self { canary, stable, .. } = self;
        let rates = |went, tolerated| {
            let [own, beside] = [canary, stable].map(|sample| sample.rate(left_out, went));
            Some(SignalComparison { own, beside, tolerated, slow_us: u32::MAX })
        };
        match signal {
            CanarySignal::Failed => rates(CallVerdict::Failed, spec.errors),
            CanarySignal::Refused => rates(CallVerdict::Refused, spec.refusals),
            CanarySignal::Slow => {
                let [own, beside] = [canary, stable].map(|sample| sample.times(left_out));
                let ([own, beside], slow_us) = rule::slow(&own, &beside, spec.first_token)?;
                Some(SignalComparison { own, beside, tolerated: 0.0, slow_us })
            }
        }
    }

    /// Describes how the signal is worse without the callers in `left_out`. `None` if it is not worse at this level.
    fn worse(&self, spec: &CanarySpec, signal: CanarySignal, left_out: &[u64], level: f64) -> Option<String> {
        let SignalComparison { own, beside, tolerated, .. } = self.measure(spec, signal, left_out)?;
        let likely = rule::worse(own, beside, tolerated, level)?;
        let figures = RateComparison { own, beside, likely };
        let of_whom = if left_out.is_empty() { "" } else { " (without the key that calls it most)" };
        Some(match signal {
            CanarySignal::Failed => format!("calls that fail{of_whom}: {figures}"),
            CanarySignal::Refused => format!("calls whose content is refused{of_whom}: {figures}"),
            CanarySignal::Slow => {
                let times = [&self.canary, &self.stable].map(|sample| rule::p95(&mut sample.times(left_out)));
                let [own, beside] = times.map(|us| us.map_or(0.0, |us| f64::from(us) / 1000.0));
                let most = spec.first_token;
                format!(
                    "time to the first token{of_whom}: a 95th percentile of {own:.1} ms beside {beside:.1} ms, where {most} times as \
                     much is let pass; calls that take longer: {figures}"
                )
            }
        })
    }
}

/// Odds from which no number is printed.
const CERTAIN_ODDS: f64 = 1e9;

/// Two rates, formatted for people.
struct RateComparison {
    own: BadCallRate,
    beside: BadCallRate,
    likely: f64,
}

impl fmt::Display for RateComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { own, beside, likely } = self;
        let part = |rate: &BadCallRate| 100.0 * rate.share();
        write!(
            f,
            "{} of {} ({:.1} %), beside {} of {} ({:.1} %)",
            own.bad,
            own.of,
            part(own),
            beside.bad,
            beside.of,
            part(beside)
        )?;
        let odds = 1.0 / likely.max(1e-300);
        if odds >= CERTAIN_ODDS {
            return f.write_str(
                "; chance alone would do this to two equal models less than once in a billion times",
            );
        }
        write!(f, "; chance alone would do this to two equal models about once in {odds:.0} times")
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The canaries of one route.
pub struct RouteCanaries {
    arms: Vec<WatchHandle>,
}

/// The watch of one canary: the catalogue's own, or that of an earlier catalogue with the same entry.
struct WatchHandle {
    own: Arc<CanaryWatch>,
    former: OnceLock<Arc<CanaryWatch>>,
}

impl WatchHandle {
    fn watch(&self) -> &Arc<CanaryWatch> {
        self.former.get().unwrap_or(&self.own)
    }
}

impl RouteCanaries {
    /// Returns `None` if the route has no canary.
    pub fn of(watches: impl Iterator<Item = CanaryWatch>) -> Option<Self> {
        let place = |own| WatchHandle { own: Arc::new(own), former: OnceLock::new() };
        let arms: Vec<_> = watches.map(place).collect();
        (!arms.is_empty()).then_some(Self { arms })
    }

    /// Continues the watches of an earlier catalogue for canaries whose entries are the same.
    pub fn continue_from(&self, former: &Self) {
        for place in &self.arms {
            let same = former.watches().find(|watch| watch.is_like(&place.own));
            if let Some(same) = same {
                // `set` cannot fail: a catalogue comes into force once.
                let _ = place.former.set(Arc::clone(same));
            }
        }
    }

    /// The watches of the route's canaries.
    pub fn watches(&self) -> impl Iterator<Item = &Arc<CanaryWatch>> {
        self.arms.iter().map(WatchHandle::watch)
    }

    /// Whether this model was rolled back and gets no more calls.
    pub fn is_out(&self, model: &ModelName) -> bool {
        self.watches().any(|watch| watch.model == *model && watch.is_out())
    }

    /// The watches that a call to this model counts towards: its own, or those of all canaries if it is a stable
    /// model.
    pub fn call(&self, model: &ModelName) -> Option<Box<CallCanaries>> {
        let own = |watch: &&Arc<CanaryWatch>| watch.model == *model;
        let watches = match self.watches().find(own) {
            Some(watch) => vec![(Arc::clone(watch), true)],
            None => self.watches().map(|watch| (Arc::clone(watch), false)).collect(),
        };
        Some(Box::new(CallCanaries { watches, model: model.clone() }))
    }
}

/// A call that counts towards canary watches.
pub struct CallCanaries {
    watches: Vec<(Arc<CanaryWatch>, bool)>,
    model: ModelName,
}

impl CallCanaries {
    /// Records the end of the call. If another model took the call over in the end, the call counts as failed.
    pub fn ended(&self, went: CallVerdict, record: &TraceRecord, now: UnixNanos) {
        let taken_over = record.model_served.as_deref() != Some(self.model.as_str());
        let went = if taken_over { CallVerdict::Failed } else { went };
        let first_token = record.time_to_first_token_ns().filter(|_| !taken_over);
        let first_token_us = first_token.map(|ns| u32::try_from(ns / 1000).unwrap_or(u32::MAX));
        let mut hasher = DefaultHasher::new();
        record.key.hash(&mut hasher);
        let caller = hasher.finish();
        for (watch, canary) in &self.watches {
            watch.ended(*canary, went, first_token_us, (caller, now));
        }
    }
}

#[cfg(test)]
mod tests;
