//! Time as an argument: crates take a [`Clock`], so that simulations and tests run in virtual time.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Nanoseconds since 1970-01-01 00:00 UTC. The type of ledger time, trace time and expiry times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixNanos(u64);

impl UnixNanos {
    /// Creates a time from nanoseconds since the epoch.
    pub const fn new(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns nanoseconds since the epoch.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns whole seconds since the epoch, as in the OpenAI field `created`.
    pub const fn seconds(self) -> u64 {
        self.0 / 1_000_000_000
    }

    /// Returns this time plus `duration`, or the largest time if the sum overflows.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns the time since `earlier`. Zero if `earlier` is later than this time.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A source of time.
pub trait Clock: Send + Sync {
    /// Returns the wall time.
    fn now(&self) -> UnixNanos;

    /// Returns nanoseconds since an arbitrary start that never go backwards. For durations.
    fn monotonic_nanos(&self) -> u64;
}

/// The machine's clock.
#[derive(Debug)]
pub struct SystemClock {
    start_ns: u64,
}

impl SystemClock {
    /// Creates a clock whose monotonic time begins now.
    pub fn new() -> Self {
        Self { start_ns: machine::monotonic_nanos() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> UnixNanos {
        UnixNanos(machine::wall_nanos())
    }

    fn monotonic_nanos(&self) -> u64 {
        machine::monotonic_nanos().saturating_sub(self.start_ns)
    }
}

/// The kernel's time as a plain number. A call reads the clock dozens of times, and each time the standard library
/// would split seconds and nanoseconds and join them again.
#[cfg(target_os = "linux")]
mod machine {
    use rustix::time::{ClockId, clock_gettime};

    pub(super) fn wall_nanos() -> u64 {
        nanos(ClockId::Realtime)
    }

    pub(super) fn monotonic_nanos() -> u64 {
        nanos(ClockId::Monotonic)
    }

    /// Times before 1970 become 1970.
    fn nanos(clock: ClockId) -> u64 {
        let time = clock_gettime(clock);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        // The kernel's nanosecond part is at least 0 and less than one second, so the cast is lossless.
        seconds.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
    }
}

#[cfg(not(target_os = "linux"))]
mod machine {
    use std::sync::OnceLock;
    use std::time::Instant;

    #[allow(clippy::disallowed_methods, reason = "the one place where the machine's wall clock is read")]
    pub(super) fn wall_nanos() -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Counts from the first call.
    pub(super) fn monotonic_nanos() -> u64 {
        static START: OnceLock<Instant> = OnceLock::new();
        let passed = START.get_or_init(Instant::now).elapsed();
        passed.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(passed.subsec_nanos()))
    }
}

/// A wrapper that makes another clock's wall time steady. It follows a step of the wall clock gradually, whether an
/// operator, a time server or a sleeping machine caused the step. Wall time passes at least at half the pace of
/// monotonic time and at most at [`SteadyClock::MOST_RATE`] times that pace. It therefore never runs backwards, a brief
/// error moves it only briefly, and it recovers by itself.
///
/// It follows only when it is read, so read it about every second.
#[derive(Debug)]
pub struct SteadyClock<C> {
    clock: C,
    /// Steady wall time minus monotonic time, as of `followed_ns`.
    offset: AtomicI64,
    /// Monotonic time up to which the wall clock was followed.
    followed_ns: AtomicU64,
    follow: Mutex<()>,
}

impl<C: Clock> SteadyClock<C> {
    /// The fastest pace of wall time, relative to monotonic time.
    pub const MOST_RATE: u32 = 10;
    /// Minimum time between two updates of the offset, in nanoseconds.
    const EVERY_NS: u64 = 1_000_000;

    /// Creates a clock that begins at the wall time of `clock`.
    pub fn new(clock: C) -> Self {
        let (mono, wall) = (clock.monotonic_nanos(), clock.now());
        let offset = AtomicI64::new(signed(wall.0).saturating_sub(signed(mono)));
        Self { clock, offset, followed_ns: AtomicU64::new(mono), follow: Mutex::new(()) }
    }
}

fn signed(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

impl<C: Clock> Clock for SteadyClock<C> {
    fn now(&self) -> UnixNanos {
        let (mono, wall) = (self.clock.monotonic_nanos(), self.clock.now());
        let wanted = signed(wall.0).saturating_sub(signed(mono));
        let passed = mono.saturating_sub(self.followed_ns.load(Ordering::Acquire));
        let offset = self.offset.load(Ordering::Acquire);
        let faster = signed(passed).saturating_mul(i64::from(Self::MOST_RATE) - 1);
        let next = wanted.clamp(offset.saturating_sub(signed(passed / 2)), offset.saturating_add(faster));
        if passed >= Self::EVERY_NS {
            let _one = self.follow.lock().unwrap_or_else(PoisonError::into_inner);
            if self.followed_ns.load(Ordering::Acquire) < mono {
                self.offset.store(next, Ordering::Release);
                self.followed_ns.store(mono, Ordering::Release);
            }
        }
        UnixNanos(u64::try_from(signed(mono).saturating_add(next)).unwrap_or(0))
    }

    fn monotonic_nanos(&self) -> u64 {
        self.clock.monotonic_nanos()
    }
}

/// A clock that moves only by explicit calls. For tests and simulations.
#[derive(Debug, Default)]
pub struct ManualClock {
    nanos: AtomicU64,
    stepped: AtomicI64,
}

impl ManualClock {
    /// Creates a clock that shows `now`.
    pub fn at(now: UnixNanos) -> Self {
        Self { nanos: AtomicU64::new(now.0), stepped: AtomicI64::new(0) }
    }

    /// Steps the wall clock forward or back, but not the monotonic time.
    pub fn step_nanos(&self, by: i64) {
        self.stepped.fetch_add(by, Ordering::SeqCst);
    }

    /// Moves both times forward.
    pub fn advance(&self, by: Duration) {
        self.nanos.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> UnixNanos {
        UnixNanos(
            self.nanos.load(Ordering::SeqCst).saturating_add_signed(self.stepped.load(Ordering::SeqCst)),
        )
    }

    fn monotonic_nanos(&self) -> u64 {
        self.nanos.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;
    const DAY: i64 = 86_400 * SECOND;
    const START: u64 = 1_800_000_000_000_000_000;

    /// Lets `count` seconds pass with ten reads per second. Returns how far the steady wall time moved, in seconds.
    fn seconds(clock: &SteadyClock<ManualClock>, count: u64) -> f64 {
        let before = clock.now();
        for _ in 0..count * 10 {
            let last = clock.now();
            clock.clock.advance(Duration::from_millis(100));
            assert!(clock.now() >= last, "it never runs backwards");
        }
        clock.now().since(before).as_secs_f64()
    }

    fn behind(clock: &SteadyClock<ManualClock>) -> i64 {
        signed(clock.clock.now().0) - signed(clock.now().0)
    }

    #[test]
    fn the_machines_clock_is_the_standard_librarys() {
        let clock = SystemClock::new();
        let unix = |time: std::time::SystemTime| {
            u64::try_from(time.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos()).unwrap()
        };
        for _ in 0..1_000 {
            #[allow(clippy::disallowed_methods, reason = "what it is compared with")]
            let read = || unix(std::time::SystemTime::now());
            let (before, now, after) = (read(), clock.now().get(), read());
            assert!((before..=after).contains(&now), "{before} {now} {after}");
        }
        let (began, mono) = (std::time::Instant::now(), clock.monotonic_nanos());
        std::thread::sleep(Duration::from_millis(20));
        let (passed, most) = (clock.monotonic_nanos() - mono, began.elapsed());
        assert!(passed >= 20_000_000 && u128::from(passed) <= most.as_nanos(), "{passed} {most:?}");
        let fresh = SystemClock::new().monotonic_nanos();
        assert!(fresh < 1_000_000_000, "monotonic time begins with the clock: {fresh}");
    }

    #[test]
    fn it_is_the_wall_clock_while_that_goes_steadily() {
        let clock = SteadyClock::new(ManualClock::at(UnixNanos::new(START)));
        assert_eq!(seconds(&clock, 100), 100.0);
        clock.clock.step_nanos(50_000_000);
        assert_eq!(seconds(&clock, 1), 1.05, "a small correction is taken at once");
        assert_eq!(behind(&clock), 0);
    }

    #[test]
    fn a_step_that_is_taken_back_moves_it_by_moments_and_it_finds_back() {
        let clock = SteadyClock::new(ManualClock::at(UnixNanos::new(START)));
        seconds(&clock, 10);
        clock.clock.step_nanos(400 * DAY);
        assert_eq!(seconds(&clock, 1), 10.0);
        clock.clock.step_nanos(-400 * DAY);
        seconds(&clock, 17);
        assert!(behind(&clock) < 0);
        seconds(&clock, 3);
        assert_eq!(behind(&clock), 0);
    }

    #[test]
    fn a_step_that_stays_is_followed_whichever_way_it_goes() {
        let clock = SteadyClock::new(ManualClock::at(UnixNanos::new(START)));
        seconds(&clock, 10);
        // A machine that slept for two minutes, or a clock that an operator set.
        clock.clock.step_nanos(120 * SECOND);
        assert_eq!(seconds(&clock, 6), 60.0);
        seconds(&clock, 10);
        assert_eq!(behind(&clock), 0);
        clock.clock.step_nanos(-60 * SECOND);
        assert_eq!(seconds(&clock, 60), 30.0);
        seconds(&clock, 61);
        assert_eq!(behind(&clock), 0);
    }
}
