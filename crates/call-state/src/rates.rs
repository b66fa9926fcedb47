//! The state of a caller's limits, as headers in its dialect. Knows no limit.

use std::time::Duration;

use headrace_domain::rfc3339::Rfc3339;
use headrace_domain::{Dialect, UnixNanos};
use headrace_limits::RateStanding;

/// A rate limit: the maximum, what is left, and the time until all of it is available again.
type Rate = Option<(u64, u64, Duration)>;

/// Rate-limit headers for the tightest scope. Empty if nothing is limited. Every answer has OpenAI's headers. In
/// Anthropic's dialect its own headers are added.
pub fn rate_headers(
    standing: &RateStanding,
    dialect: Dialect,
    now: UnixNanos,
) -> Vec<(&'static str, String)> {
    let rate = |limit: Option<u64>, left: Option<u64>, reset| Some((limit?, left?, reset));
    let requests = rate(standing.limit_requests, standing.remaining_requests, standing.reset_requests);
    let tokens = rate(standing.limit_tokens, standing.remaining_tokens, standing.reset_tokens);
    let mut headers = Vec::with_capacity(if dialect == Dialect::Anthropic { 12 } else { 6 });
    let names =
        ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"];
    write(&mut headers, names, requests, openai_reset);
    let names = ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"];
    write(&mut headers, names, tokens, openai_reset);
    if dialect == Dialect::Anthropic {
        let reset = |wait: Duration| Rfc3339(whole_second(now.after(wait))).to_string();
        let names = [
            "anthropic-ratelimit-requests-limit",
            "anthropic-ratelimit-requests-remaining",
            "anthropic-ratelimit-requests-reset",
        ];
        write(&mut headers, names, requests, reset);
        let names = [
            "anthropic-ratelimit-tokens-limit",
            "anthropic-ratelimit-tokens-remaining",
            "anthropic-ratelimit-tokens-reset",
        ];
        write(&mut headers, names, tokens, reset);
    }
    headers
}

fn write(
    headers: &mut Vec<(&'static str, String)>,
    [limit, remaining, reset]: [&'static str; 3],
    rate: Rate,
    until: impl Fn(Duration) -> String,
) {
    if let Some((most, left, wait)) = rate {
        headers.push((limit, most.to_string()));
        headers.push((remaining, left.to_string()));
        headers.push((reset, until(wait)));
    }
}

/// Whole seconds, rounded up.
fn openai_reset(wait: Duration) -> String {
    // Without `format!`, which costs three times as much. Every answer has two of these.
    let mut text = (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).to_string();
    text.push('s');
    text
}

/// The first whole second at or after `time`.
fn whole_second(time: UnixNanos) -> UnixNanos {
    UnixNanos::new(time.get().div_ceil(1_000_000_000).saturating_mul(1_000_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_told_in_the_words_of_the_dialect() {
        let standing = RateStanding {
            limit_requests: Some(60),
            remaining_requests: Some(59),
            reset_requests: Duration::from_millis(900),
            limit_tokens: None,
            remaining_tokens: None,
            reset_tokens: Duration::ZERO,
        };
        let now = UnixNanos::new(1_700_000_000_300_000_000);
        let text = |dialect| {
            let headers = rate_headers(&standing, dialect, now).into_iter();
            headers.map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join("\n")
        };
        let openai = "x-ratelimit-limit-requests: 60\nx-ratelimit-remaining-requests: 59\nx-ratelimit-reset-requests: 1s";
        assert_eq!(text(Dialect::OpenAi), openai);
        assert_eq!(
            text(Dialect::Anthropic),
            format!(
                "{openai}\nanthropic-ratelimit-requests-limit: 60\nanthropic-ratelimit-requests-remaining: 59\n\
                 anthropic-ratelimit-requests-reset: 2023-11-14T22:13:22Z"
            )
        );
    }
}
