//! Times as text, `2026-11-21T01:34:08.123456789Z` (RFC 3339, UTC), also for serde's `with`. Many JSON readers cannot
//! hold nanoseconds since 1970 exactly as a number. Must not know a clock or another time zone.

use std::fmt;

use jiff::Timestamp;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

use crate::clock::UnixNanos;

/// Length of a time up to its seconds, in bytes: `2026-11-21T01:34:08`.
const TO_SECONDS: usize = 19;

/// A time that is written as RFC 3339 text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rfc3339(pub UnixNanos);

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Every `u64` of nanoseconds lies before the year 2555, which the library can write.
        let time = Timestamp::from_nanosecond(self.0.get().into()).map_err(|_| fmt::Error)?;
        time.fmt(f)
    }
}

/// Parses what [`Rfc3339`] writes. Returns `None` for any other text. The library alone accepts more: other zones, leap
/// seconds, a space for the `T`.
fn read(text: &str) -> Option<UnixNanos> {
    let nanos = text.parse::<Timestamp>().ok()?.as_nanosecond();
    let time = UnixNanos::new(u64::try_from(nanos).ok()?);
    let is_plain =
        text.ends_with('Z') && text.get(..TO_SECONDS) == Rfc3339(time).to_string().get(..TO_SECONDS);
    is_plain.then_some(time)
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
/// The deserializer's error, or an error if the text is not such a time.
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
    /// The deserializer's error, or an error if the text is not such a time.
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
            (951_782_400 * 1_000_000_000, "2000-02-29T00:00:00Z"),
            (1_709_251_199 * 1_000_000_000 + 500_000_000, "2024-02-29T23:59:59.5Z"),
            (1_790_000_000_123_456_789, "2026-09-21T14:13:20.123456789Z"),
            (4_102_444_800 * 1_000_000_000, "2100-01-01T00:00:00Z"),
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
