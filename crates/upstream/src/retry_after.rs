//! Computes from the headers of a refusal when a server may be asked again. Must not know a clock: a date is compared
//! with the `date` header of the same answer.
//!
//! Sources: RFC 9110, 10.2.3; OpenAI's `retry-after-ms` and `x-ratelimit-reset-*` (`1s`, `6m0s`, `120ms`); Anthropic's
//! `anthropic-ratelimit-*-reset` (RFC 3339).

use std::time::{Duration, SystemTime};

use http::HeaderMap;

/// Maximum delay that a client is given.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Pairs of headers: what remains of a limit, and when it is full again.
const LIMITS: [(&str, &str); 5] = [
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
    ("anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset"),
    ("anthropic-ratelimit-output-tokens-remaining", "anthropic-ratelimit-output-tokens-reset"),
];

/// Returns the delay after which the server may be asked again. It is the delay that the server states. If it states
/// none and the status is 429, it is the time until the exhausted limits are full again.
pub(crate) fn retry_after(status: u16, headers: &HeaderMap) -> Option<Duration> {
    let outright = millis(headers).or_else(|| after(headers));
    let wait = outright.or_else(|| (status == 429).then(|| limits_reset(headers)).flatten());
    wait.map(|wait| wait.min(LONGEST))
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

fn millis(headers: &HeaderMap) -> Option<Duration> {
    seconds_of(text(headers, "retry-after-ms")?, 1e-3)
}

fn after(headers: &HeaderMap) -> Option<Duration> {
    let said = text(headers, "retry-after")?;
    seconds_of(said, 1.0).or_else(|| {
        let (until, now) = (httpdate::parse_http_date(said).ok()?, date(headers)?);
        Some(until.duration_since(now).unwrap_or_default())
    })
}

fn date(headers: &HeaderMap) -> Option<SystemTime> {
    httpdate::parse_http_date(text(headers, "date")?).ok()
}

/// Returns the longest reset time among exhausted limits. If none is marked as exhausted, among all limits.
fn limits_reset(headers: &HeaderMap) -> Option<Duration> {
    let waits = |used_up: bool| {
        let limits =
            LIMITS.iter().filter(move |(remaining, _)| !used_up || text(headers, remaining) == Some("0"));
        limits.filter_map(|(_, reset)| reset_of(text(headers, reset)?, headers)).max()
    };
    waits(true).or_else(|| waits(false))
}

fn reset_of(said: &str, headers: &HeaderMap) -> Option<Duration> {
    if let Ok(until) = said.parse::<jiff::Timestamp>() {
        let until = SystemTime::from(until);
        return Some(until.duration_since(date(headers)?).unwrap_or_default());
    }
    seconds_of(said, 1.0).or_else(|| spelt_out(said))
}

/// Parses `1h2m3.5s`, `120ms`.
fn spelt_out(said: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = said;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let unit_end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let unit = match unit {
            "d" => 86_400.0,
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            _ => return None,
        };
        total = total.checked_add(seconds_of(number, unit)?)?;
        rest = tail;
    }
    (!said.is_empty()).then_some(total)
}

fn seconds_of(number: &str, unit: f64) -> Option<Duration> {
    let seconds = number.parse::<f64>().ok()? * unit;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    #[test]
    fn every_way_to_say_when_is_read() {
        let date = ("date", "Sun, 22 Nov 2026 08:00:00 GMT");
        for (status, headers, millis) in [
            (429, vec![], None),
            (503, vec![("retry-after", "7")], Some(7000)),
            (429, vec![("retry-after", "0.25")], Some(250)),
            (429, vec![("retry-after", "7"), ("retry-after-ms", "1500")], Some(1500)),
            (503, vec![("retry-after", "Sun, 22 Nov 2026 08:00:30 GMT"), date], Some(30_000)),
            (503, vec![("retry-after", "Sun, 22 Nov 2026 07:00:00 GMT"), date], Some(0)),
            (503, vec![("retry-after", "Sun, 22 Nov 2026 08:00:30 GMT")], None),
            (503, vec![("retry-after", "soon")], None),
            (503, vec![("retry-after", "-5")], None),
            (503, vec![("retry-after", "NaN")], None),
            (503, vec![("retry-after", "1e30")], None),
            (503, vec![("retry-after", "99999999")], Some(86_400_000)),
            (
                429,
                vec![("x-ratelimit-reset-requests", "6m0s"), ("x-ratelimit-reset-tokens", "120ms")],
                Some(360_000),
            ),
            (
                429,
                vec![
                    ("x-ratelimit-reset-requests", "6m0s"),
                    ("x-ratelimit-reset-tokens", "1.5s"),
                    ("x-ratelimit-remaining-requests", "9"),
                    ("x-ratelimit-remaining-tokens", "0"),
                ],
                Some(1500),
            ),
            (500, vec![("x-ratelimit-reset-requests", "6m0s")], None),
            (429, vec![("x-ratelimit-reset-requests", "6 parsecs")], None),
            (429, vec![("anthropic-ratelimit-requests-reset", "2026-11-22T08:00:12Z"), date], Some(12_000)),
            (429, vec![("anthropic-ratelimit-requests-reset", "2026-11-22T08:00:12Z")], None),
        ] {
            let map: HeaderMap = headers
                .iter()
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
                .collect();
            assert_eq!(retry_after(status, &map), millis.map(Duration::from_millis), "{status} {headers:?}");
        }
    }
}
