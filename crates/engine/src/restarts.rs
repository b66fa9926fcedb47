//! How often an engine may restart after its loop broke, and after which delay. Time is an argument.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Most restarts within [`WINDOW`]. An engine that breaks more often is permanently broken.
const MOST: usize = 4;
const WINDOW: Duration = Duration::from_secs(600);
/// Delay before the first restart. Each further restart within the window waits twice as long as the one before.
const FIRST_REST: Duration = Duration::from_millis(50);

/// The restarts of one engine.
#[derive(Debug, Default)]
pub(crate) struct Restarts {
    /// The restarts within the last [`WINDOW`], oldest first.
    recent: VecDeque<Instant>,
}

impl Restarts {
    /// Records a restart at `now` and returns the delay before it. `None` if there were too many.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Duration> {
        while self.recent.front().is_some_and(|&then| now.saturating_duration_since(then) >= WINDOW) {
            self.recent.pop_front();
        }
        let before = self.recent.len();
        if before >= MOST {
            return None;
        }
        self.recent.push_back(now);
        Some(FIRST_REST * (1 << before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_rest_longer_each_time_and_are_bounded_in_a_window() {
        let mut restarts = Restarts::default();
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let rests: Vec<_> =
            (0..5).map(|second| restarts.next(at(second)).map(|rest| rest.as_millis())).collect();
        assert_eq!(rests, [Some(50), Some(100), Some(200), Some(400), None]);
        assert_eq!(restarts.next(at(599)), None);
        // After ten minutes the first restart is forgotten, which makes room for another.
        assert_eq!(restarts.next(at(600)), Some(Duration::from_millis(400)));
        assert_eq!(restarts.next(at(600)), None);
        assert_eq!(restarts.next(at(2000)), Some(FIRST_REST));
    }
}
