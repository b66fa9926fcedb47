//! Decides which calls are measured: those after the warm-up and before the end. Knows only times since the start of
//! the run.

use std::sync::Mutex;
use std::time::Duration;

use crate::{BenchConfig, StopRule, Warmup};

/// The phase of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunPhase {
    /// The call is sent and not measured.
    Warmup,
    /// The call is sent and measured.
    Measured,
    /// The call is not sent, and no later call is.
    Over,
}

#[derive(Debug)]
pub(crate) struct MeasureWindow {
    warmup: Warmup,
    stop: StopRule,
    state: Mutex<WindowState>,
}

#[derive(Debug, Default)]
struct WindowState {
    /// When the first measured call was due, or when the warm-up time was over.
    begin: Option<Duration>,
    measured: u64,
}

impl MeasureWindow {
    pub(crate) fn new(config: &BenchConfig) -> Self {
        Self { warmup: config.warmup, stop: config.stop, state: Mutex::default() }
    }

    /// The phase of call `index`, which is due at `at`.
    pub(crate) fn admit(&self, index: u64, at: Duration) -> RunPhase {
        let (warm, begin) = match self.warmup {
            Warmup::Calls(calls) => (index < calls, at),
            Warmup::Time(time) => (at < time, time),
        };
        if warm {
            return RunPhase::Warmup;
        }
        let mut state = self.state();
        let begin = *state.begin.get_or_insert(begin);
        let late = self.stop.duration.is_some_and(|length| at >= begin.saturating_add(length));
        if late || self.stop.requests.is_some_and(|most| state.measured >= most) {
            return RunPhase::Over;
        }
        state.measured = state.measured.saturating_add(1);
        RunPhase::Measured
    }

    /// When measuring started.
    pub(crate) fn begin(&self) -> Option<Duration> {
        match self.warmup {
            Warmup::Time(time) => Some(time),
            Warmup::Calls(_) => self.state().begin,
        }
    }

    /// When measuring ends, if the configuration limits the time.
    pub(crate) fn end(&self) -> Option<Duration> {
        Some(self.begin()?.saturating_add(self.stop.duration?))
    }

    fn state(&self) -> std::sync::MutexGuard<'_, WindowState> {
        // Nothing in here can panic halfway.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RunPhase::{Measured, Over, Warmup as Warm};

    #[test]
    fn phases() {
        let secs = Duration::from_secs;
        type Row = (Warmup, Option<u64>, Option<u64>, Vec<(u64, u64, RunPhase)>, Option<u64>);
        let rows: Vec<Row> = vec![
            (
                Warmup::Calls(0),
                None,
                Some(5),
                vec![(0, 1, Measured), (1, 5, Measured), (2, 6, Over)],
                Some(1),
            ),
            (Warmup::Calls(1), Some(1), None, vec![(0, 0, Warm), (1, 3, Measured), (2, 3, Over)], Some(3)),
            (
                Warmup::Time(secs(2)),
                None,
                Some(5),
                vec![(0, 1, Warm), (1, 4, Measured), (2, 6, Measured), (3, 7, Over)],
                Some(2),
            ),
            (
                Warmup::Time(secs(2)),
                Some(1),
                Some(5),
                vec![(0, 1, Warm), (1, 4, Measured), (2, 5, Over)],
                Some(2),
            ),
            (Warmup::Calls(9), Some(1), None, vec![(0, 0, Warm)], None),
        ];
        for (warmup, requests, duration, calls, begin) in rows {
            let stop = StopRule { requests, duration: duration.map(secs) };
            let window = MeasureWindow::new(&BenchConfig { warmup, stop, ..BenchConfig::new("http://h") });
            for (index, at, phase) in calls {
                assert_eq!(window.admit(index, secs(at)), phase, "{warmup:?} {stop:?}: call {index}");
            }
            assert_eq!(window.begin(), begin.map(secs));
            assert_eq!(window.end(), begin.zip(duration).map(|(begin, length)| secs(begin + length)));
        }
    }
}
