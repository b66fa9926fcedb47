//! How a caller's limits stand, as headers of an answer. Knows no limit.

use std::time::Duration;

use headrace_limits::RateStanding;

/// OpenAI's rate-limit headers for the tightest scope; absent where nothing is limited.
pub(crate) fn rate_headers(standing: &RateStanding) -> Vec<(&'static str, String)> {
    let mut headers = Vec::with_capacity(6);
    // Whole seconds, rounded up.
    let seconds = |wait: Duration| format!("{}s", wait.as_secs() + u64::from(wait.subsec_nanos() > 0));
    if let (Some(limit), Some(left)) = (standing.limit_requests, standing.remaining_requests) {
        headers.push(("x-ratelimit-limit-requests", limit.to_string()));
        headers.push(("x-ratelimit-remaining-requests", left.to_string()));
        headers.push(("x-ratelimit-reset-requests", seconds(standing.reset_requests)));
    }
    if let (Some(limit), Some(left)) = (standing.limit_tokens, standing.remaining_tokens) {
        headers.push(("x-ratelimit-limit-tokens", limit.to_string()));
        headers.push(("x-ratelimit-remaining-tokens", left.to_string()));
        headers.push(("x-ratelimit-reset-tokens", seconds(standing.reset_tokens)));
    }
    headers
}
