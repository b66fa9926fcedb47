//! Decides whether and when to retry a call: bounded, with jitter, and never after the first byte of an answer. Pure:
//! randomness is an argument, and nothing sleeps here.
//!
//! Source of the backoff: "full jitter" on the upper half, <https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>.

use std::time::Duration;

use crate::{ApiError, ClientError};

/// How often to retry a call, and how long to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Maximum number of retries after the first attempt. 0 disables retries.
    pub max_retries: u32,
    /// Maximum wait before the first retry. Doubles with each further retry.
    pub first_backoff: Duration,
    /// Maximum wait that the client chooses itself.
    pub max_backoff: Duration,
    /// Maximum `Retry-After` that the client waits for. A longer one is an error at once, so that a caller never hangs
    /// for minutes. The error contains the wait.
    pub max_retry_after: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_retries: 2,
            first_backoff: Duration::from_millis(500),
            max_backoff: Duration::from_secs(8),
            max_retry_after: Duration::from_secs(20),
        }
    }
}

impl RetryPolicy {
    /// A policy without retries.
    pub const fn none() -> Self {
        Self {
            max_retries: 0,
            first_backoff: Duration::ZERO,
            max_backoff: Duration::ZERO,
            max_retry_after: Duration::ZERO,
        }
    }

    /// Returns the wait before the next attempt, after `tried` failed attempts (at least 1). The last one failed with
    /// `error`. Returns `None` to give up. `random` must be uniform over all of `u32`.
    pub(crate) fn wait(&self, error: &ClientError, tried: u32, random: u32) -> Option<Duration> {
        if tried > self.max_retries {
            return None;
        }
        let asked = match error {
            // No answer had started. The server drops its work when the connection closes.
            ClientError::Connection(_) | ClientError::Broken(_) => None,
            ClientError::Api(error) if is_transient(error) => error.retry_after,
            _ => return None,
        };
        let backoff = self.backoff(tried, random);
        match asked {
            Some(asked) if asked > self.max_retry_after => None,
            // Never earlier than the server asked for. The jitter separates clients that received the same wait.
            Some(asked) => Some(asked.saturating_add(backoff.min(self.first_backoff) / 4)),
            None => Some(backoff),
        }
    }

    /// A random wait between half of the doubled wait and all of it.
    fn backoff(&self, tried: u32, random: u32) -> Duration {
        let factor = 1_u32.checked_shl(tried.saturating_sub(1)).unwrap_or(u32::MAX);
        let ceiling = self.first_backoff.saturating_mul(factor).min(self.max_backoff);
        let half = ceiling / 2;
        half + half.mul_f64(f64::from(random) / f64::from(u32::MAX))
    }
}

/// Returns `true` if the same request may succeed later. Missing funds (402, `insufficient_quota`) do not come back by
/// themselves, unless the caller's own calls hold them. In that case the server sends a time to retry.
fn is_transient(error: &ApiError) -> bool {
    match error.status {
        Some(429) => error.kind.as_deref() != Some("insufficient_quota") || error.retry_after.is_some(),
        Some(402) => error.retry_after.is_some(),
        Some(408 | 500 | 502 | 503 | 504 | 529) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(status: u16, kind: &str, retry_after_ms: Option<u64>) -> ClientError {
        ClientError::Api(Box::new(ApiError {
            status: Some(status),
            kind: Some(kind.to_owned()),
            retry_after: retry_after_ms.map(Duration::from_millis),
            ..ApiError::default()
        }))
    }

    #[test]
    fn what_is_tried_again() {
        let policy = RetryPolicy::default();
        let rows = [
            (ClientError::Connection("refused".into()), 1, Some(250)),
            (ClientError::Connection("refused".into()), 2, Some(500)),
            (ClientError::Connection("refused".into()), 3, None),
            (api(429, "rate_limit_error", Some(3_000)), 1, Some(3_062)),
            (api(429, "rate_limit_error", Some(20_001)), 1, None),
            (api(429, "insufficient_quota", None), 1, None),
            (api(402, "insufficient_quota", None), 1, None),
            (api(402, "insufficient_quota", Some(1_000)), 1, Some(1_062)),
            (api(503, "overloaded_error", None), 1, Some(250)),
            (api(500, "server_error", None), 2, Some(500)),
            (api(400, "invalid_request_error", None), 1, None),
            (api(401, "authentication_error", None), 1, None),
            (api(404, "invalid_request_error", Some(1)), 1, None),
            (ClientError::CutOff { request_id: None, cause: None }, 1, None),
            (ClientError::Protocol("x".into()), 1, None),
            (ClientError::Timeout("x".into()), 1, None),
        ];
        for (error, tried, millis) in rows {
            let wait = policy.wait(&error, tried, 0).map(|wait| wait.as_millis());
            assert_eq!(wait, millis, "{error:?} after {tried}");
        }
        assert_eq!(RetryPolicy::none().wait(&api(503, "x", None), 1, 0), None);
    }

    #[test]
    fn waits_are_bounded() {
        let policy = RetryPolicy { max_retries: u32::MAX, ..RetryPolicy::default() };
        for tried in [1, 2, 5, 31, 32, 33, u32::MAX] {
            for random in [0, 1, u32::MAX / 2, u32::MAX] {
                let wait = policy.wait(&api(503, "x", None), tried, random).unwrap();
                assert!(
                    wait <= policy.max_backoff && wait >= policy.first_backoff / 2,
                    "{tried} {random} {wait:?}"
                );
            }
        }
        assert_eq!(policy.wait(&api(503, "x", None), 1, u32::MAX), Some(policy.first_backoff));
    }
}
