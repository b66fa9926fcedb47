//! What follows from a try: delivered, another try later, or none. Must not know what was sent.

use std::time::Duration;

use headrace_domain::UnixNanos;
use headrace_ledger::DeliveryOutcome;
use headrace_upstream::WebhookAnswer;

/// The waits after each failed try, in seconds. Together about three days.
const WAITS_S: [u64; 11] =
    [5, 30, 120, 600, 1_800, 3_600, 3 * 3_600, 6 * 3_600, 12 * 3_600, 24 * 3_600, 24 * 3_600];
/// The status with which an endpoint says that it wants no more events.
const GONE: u16 = 410;
/// Maximum length of a result that is kept, in characters.
const MAX_RESULT_CHARS: usize = 200;

/// Returns what follows from the answer to a try after `tries` earlier ones, and its result as text.
pub(super) fn outcome_of(
    tries: u32,
    answer: &Result<WebhookAnswer, String>,
    now: UnixNanos,
) -> (DeliveryOutcome, String) {
    let (retry_after, result) = match answer {
        Ok(WebhookAnswer { status, .. }) if (200..300).contains(status) => {
            return (DeliveryOutcome::Delivered, format!("status {status}"));
        }
        Ok(WebhookAnswer { status: GONE, .. }) => {
            return (DeliveryOutcome::EndpointGone, format!("status {GONE}"));
        }
        Ok(WebhookAnswer { status, retry_after }) => (*retry_after, format!("status {status}")),
        Err(why) => (None, why.chars().take(MAX_RESULT_CHARS).collect()),
    };
    let wait = WAITS_S.get(tries as usize).map(|seconds| Duration::from_secs(*seconds));
    let outcome = match wait {
        Some(wait) => {
            let wait = wait.max(retry_after.unwrap_or_default());
            DeliveryOutcome::Retry(now.after(wait))
        }
        None => DeliveryOutcome::Failed,
    };
    (outcome, result)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixNanos = UnixNanos::new(1_000_000_000_000);

    fn answered(status: u16, retry_after: Option<u64>) -> Result<WebhookAnswer, String> {
        Ok(WebhookAnswer { status, retry_after: retry_after.map(Duration::from_secs) })
    }

    #[test]
    fn gaps_grow_and_end_after_about_three_days() {
        let mut last = Duration::ZERO;
        let mut sum = Duration::ZERO;
        for tries in 0..11 {
            let (outcome, result) = outcome_of(tries, &answered(500, None), NOW);
            let DeliveryOutcome::Retry(next) = outcome else { panic!("{outcome:?}") };
            let wait = Duration::from_nanos(next.get() - NOW.get());
            assert!(wait >= last && result == "status 500", "{tries}: {wait:?} {result}");
            (last, sum) = (wait, sum + wait);
        }
        assert!((60..80).contains(&(sum.as_secs() / 3600)), "{sum:?}");
        assert_eq!(outcome_of(11, &answered(500, None), NOW).0, DeliveryOutcome::Failed);
    }

    #[test]
    fn the_status_decides() {
        for status in [200, 201, 204, 299] {
            assert_eq!(outcome_of(0, &answered(status, None), NOW).0, DeliveryOutcome::Delivered);
        }
        assert_eq!(outcome_of(0, &answered(410, None), NOW).0, DeliveryOutcome::EndpointGone);
        let later = |seconds| DeliveryOutcome::Retry(NOW.after(Duration::from_secs(seconds)));
        for status in [301, 302, 400, 404, 429, 503] {
            assert_eq!(outcome_of(0, &answered(status, None), NOW).0, later(5), "{status}");
        }
        assert_eq!(outcome_of(0, &answered(429, Some(90)), NOW).0, later(90));
        assert_eq!(outcome_of(1, &Err("refused".to_owned()), NOW), (later(30), "refused".to_owned()));
    }
}
