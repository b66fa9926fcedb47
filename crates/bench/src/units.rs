//! Durations in people's notation. Knows no flag.

use std::time::Duration;

/// Parses `250us`, `500ms`, `1.5s`, `2m` or `1h`. A bare number is seconds.
///
/// # Errors
/// A message that does not repeat the text.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit.trim() {
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3_600.0,
        _ => return Err("it must be a duration such as 250us, 500ms, 2s, 5m or 1h".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| "it must begin with a number, as 500ms or 2s".to_owned())?;
    Duration::try_from_secs_f64(number * scale).map_err(|_| "it is longer than can be counted".to_owned())
}

/// The shortest text that [`parse_duration`] reads back to the microsecond.
pub fn show_duration(time: Duration) -> String {
    let micros = time.as_micros();
    match micros {
        0 => "0s".to_owned(),
        _ if micros.is_multiple_of(1_000_000) => format!("{}s", micros / 1_000_000),
        _ if micros.is_multiple_of(1_000) => format!("{}ms", micros / 1_000),
        _ => format!("{micros}us"),
    }
}

/// Microseconds, saturating at the maximum.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// `part / whole`, or 0 if `whole` is not positive.
pub(crate) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let rows = [
            ("250us", Some(250)),
            ("500ms", Some(500_000)),
            ("1.5s", Some(1_500_000)),
            ("2", Some(2_000_000)),
            ("2m", Some(120_000_000)),
            ("1h", Some(3_600_000_000)),
            (" 5 ms", Some(5_000)),
            ("", None),
            ("-1s", None),
            ("1d", None),
            ("1e9", None),
            ("1.2.3s", None),
            ("99999999999999999999999999h", None),
        ];
        for (text, micros) in rows {
            let read = parse_duration(text).ok().map(|time| time.as_micros());
            assert_eq!(read, micros, "{text}");
        }
        for micros in [0, 1, 999, 1_000, 1_500, 2_000_000, 61_000_000] {
            let time = Duration::from_micros(micros);
            assert_eq!(parse_duration(&show_duration(time)), Ok(time));
        }
    }
}
