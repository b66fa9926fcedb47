//! Times as text, `2026-11-21T01:34:08.123456789Z` (RFC 3339, UTC), and for serde's `with`: nanoseconds since 1970 are larger
//! than the numbers that many readers of JSON can hold exactly. Knows no clock and no other zone.
//!
//! Days to dates and back: Howard Hinnant, `chrono`-compatible low-level date algorithms.

use std::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

use crate::clock::UnixNanos;

const SECOND_NS: u64 = 1_000_000_000;
const DAY_S: u64 = 86_400;
/// Days of four hundred years, and from 0000-03-01 to 1970-01-01.
const ERA_DAYS: u64 = 146_097;
const EPOCH_DAYS: u64 = 719_468;

/// A time that is written as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rfc3339(pub UnixNanos);

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.0.get() / SECOND_NS, self.0.get() % SECOND_NS);
        let (year, month, day) = date(seconds / DAY_S);
        let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        if nanos > 0 {
            let digits = format!("{nanos:09}");
            write!(f, ".{}", digits.trim_end_matches('0'))?;
        }
        f.write_str("Z")
    }
}

/// Reads what [`Rfc3339`] writes; `None`: it is no such time.
fn read(text: &str) -> Option<UnixNanos> {
    let (day, time) = text.strip_suffix('Z')?.split_once('T')?;
    let [year, month, day] = numbers(day, '-', [4, 2, 2])?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
    let days = days(year, month, day)?;
    if date(days) != (year, month, day) || hour > 23 || minute > 59 || second > 59 || fraction.len() > 9 {
        return None;
    }
    let nanos = digits(fraction)?.checked_mul(10_u64.pow(9 - u32::try_from(fraction.len()).ok()?))?;
    let seconds = days.checked_mul(DAY_S)? + hour * 3_600 + minute * 60 + second;
    Some(UnixNanos::new(seconds.checked_mul(SECOND_NS)?.checked_add(nanos)?))
}

fn numbers(text: &str, between: char, widths: [usize; 3]) -> Option<[u64; 3]> {
    let mut parts = text.split(between);
    let mut numbers = [0; 3];
    for (number, width) in numbers.iter_mut().zip(widths) {
        *number = digits(parts.next().filter(|part| part.len() == width)?)?;
    }
    parts.next().is_none().then_some(numbers)
}

fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Year, month and day of the month, so many days after 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    // Counted from 0000-03-01, so that leap days come last in a year; eras have 400 years.
    let shifted = days + EPOCH_DAYS;
    let (era, day_of_era) = (shifted / ERA_DAYS, shifted % ERA_DAYS);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// Days from 1970-01-01 to a date; `None`: it lies before that, or is none.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year = year.checked_sub(u64::from(month <= 2))?;
    let (era, year_of_era) = (year / 400, year % 400);
    let month_from_march = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * ERA_DAYS + day_of_era).checked_sub(EPOCH_DAYS)
}

/// Writes a time.
///
/// # Errors
/// The serializer's.
pub fn serialize<S: Serializer>(time: &UnixNanos, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&Rfc3339(*time))
}

/// Reads what [`serialize`] writes.
///
/// # Errors
/// The deserializer's, and a text that is no such time.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<UnixNanos, D::Error> {
    let text = String::deserialize(deserializer)?;
    parsed(&text)
}

fn parsed<E: Error>(text: &str) -> Result<UnixNanos, E> {
    read(text).ok_or_else(|| E::custom(format!("`{text}` is not a time as 2026-11-21T01:34:08Z")))
}

/// The same for a time that may be absent.
pub mod option {
    use super::{Deserialize, Deserializer, Rfc3339, Serializer, UnixNanos, parsed};

    /// Writes a time, or null.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<S: Serializer>(time: &Option<UnixNanos>, serializer: S) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => serializer.collect_str(&Rfc3339(*time)),
            None => serializer.serialize_none(),
        }
    }

    /// Reads what [`serialize`] writes.
    ///
    /// # Errors
    /// The deserializer's, and a text that is no such time.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<UnixNanos>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| parsed(&text)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_text_and_lose_no_digit() {
        for (nanos, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400 * SECOND_NS, "2000-02-29T00:00:00Z"),
            (1_709_251_199 * SECOND_NS + 500_000_000, "2024-02-29T23:59:59.5Z"),
            (1_790_000_000_123_456_789, "2026-09-21T14:13:20.123456789Z"),
            (4_102_444_800 * SECOND_NS, "2100-01-01T00:00:00Z"),
            (u64::MAX, "2554-07-21T23:34:33.709551615Z"),
        ] {
            assert_eq!(Rfc3339(UnixNanos::new(nanos)).to_string(), text);
            assert_eq!(read(text), Some(UnixNanos::new(nanos)));
        }
    }

    #[test]
    fn what_is_no_such_time_is_not_read() {
        for text in [
            "1969-12-31T23:59:59Z",
            "yesterday",
            "",
            "Z",
            "2023-02-29T00:00:00Z",
            "2023-04-31T00:00:00Z",
            "2023-13-01T00:00:00Z",
            "2023-00-01T00:00:00Z",
            "2023-01-00T00:00:00Z",
            "2023-01-01T24:00:00Z",
            "2023-01-01T00:60:00Z",
            "2023-01-01T00:00:60Z",
            "2023-01-01T00:00:00.Z",
            "2023-01-01T00:00:00.1234567890Z",
            "2023-01-01T00:00:00+01:00",
            "2023-1-1T00:00:00Z",
            "2023-01-01T00:00:+1Z",
            "2554-07-21T23:34:33.709551616Z",
            "9999-12-31T23:59:59Z",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(nanos: u64) {
            let time = UnixNanos::new(nanos);
            prop_assert_eq!(read(&Rfc3339(time).to_string()), Some(time));
        }

        #[test]
        fn anything_is_read_or_not(text in "[0-9TZ:.-]{0,32}") {
            if let Some(time) = read(&text) {
                prop_assert_eq!(read(&Rfc3339(time).to_string()), Some(time));
            }
        }
    }
}
