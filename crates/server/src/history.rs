//! Samples of the last minutes, so that a chart has a past when it is opened. Must not know what draws it.

use std::collections::VecDeque;
use std::time::Duration;

use headrace_domain::UnixNanos;
use headrace_trace::MinuteStats;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// Interval between samples.
pub(crate) const SAMPLE_EVERY: Duration = Duration::from_secs(5);
/// Maximum number of samples: ten minutes of them.
const MOST_SAMPLES: usize = 120;
const NANOS_PER_MICRO: u64 = 1_000;
const SECONDS_PER_MINUTE: f64 = 60.0;

/// A bounded list of samples, oldest first.
#[derive(Default)]
pub(crate) struct StatsHistory(Mutex<VecDeque<MinuteSample>>);

/// The figures of the minute before a point in time.
#[derive(Clone, Copy)]
struct MinuteSample {
    /// Seconds since 1970.
    at: u64,
    completion_per_s: f64,
    prompt_per_s: f64,
    /// Microseconds, median. `None` if no call had a first token.
    first_us: Option<u64>,
    /// Microseconds, median. `None` if no call waited in a queue.
    queue_us: Option<u64>,
}

impl StatsHistory {
    /// Adds a sample. Drops the oldest one if the list is full.
    pub(crate) fn add(&self, at: UnixNanos, minute: &MinuteStats) {
        let median = |of: &headrace_trace::Percentiles| (of.calls > 0).then_some(of.p50_ns / NANOS_PER_MICRO);
        let sample = MinuteSample {
            at: at.seconds(),
            completion_per_s: minute.completion_tokens as f64 / SECONDS_PER_MINUTE,
            prompt_per_s: minute.prompt_tokens as f64 / SECONDS_PER_MINUTE,
            first_us: median(&minute.first_token),
            queue_us: median(&minute.queue),
        };
        let mut samples = self.0.lock();
        if samples.back().is_some_and(|last| last.at >= sample.at) {
            return;
        }
        if samples.len() >= MOST_SAMPLES {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    /// Each figure as a list, oldest first.
    pub(crate) fn json(&self) -> Value {
        let samples = self.0.lock();
        let all = |of: &dyn Fn(&MinuteSample) -> Value| samples.iter().map(of).collect::<Vec<_>>();
        json!({
            "at_unix_s": all(&|sample| sample.at.into()),
            "completion_tokens_per_s": all(&|sample| sample.completion_per_s.into()),
            "prompt_tokens_per_s": all(&|sample| sample.prompt_per_s.into()),
            "ttft_p50_us": all(&|sample| sample.first_us.into()),
            "queue_p50_us": all(&|sample| sample.queue_us.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_kept_in_order_and_bounded() {
        let history = StatsHistory::default();
        let at = |seconds: u64| UnixNanos::new(seconds * 1_000_000_000);
        let minute = |completion_tokens| {
            let mut minute = MinuteStats::default();
            minute.completion_tokens = completion_tokens;
            minute
        };
        for n in 0..200 {
            history.add(at(1_000 + n * 5), &minute(n * 60));
        }
        // A clock that goes back adds nothing.
        history.add(at(1_000), &minute(7));
        let json = history.json();
        let list = |name: &str| json[name].as_array().unwrap().clone();
        assert_eq!(list("at_unix_s").len(), MOST_SAMPLES);
        assert_eq!(
            (list("at_unix_s")[0].as_u64(), list("at_unix_s")[119].as_u64()),
            (Some(1_400), Some(1_995))
        );
        assert_eq!(list("completion_tokens_per_s")[119].as_f64(), Some(199.0));
        assert!(list("ttft_p50_us").iter().all(Value::is_null), "no call, no time");
    }
}
