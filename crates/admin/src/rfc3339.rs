//! Times as text in JSON, `2026-11-21T01:34:08.123456789Z`: nanoseconds since 1970 are larger than the numbers that many
//! readers of JSON can hold exactly. For serde's `with`; knows nothing of what happened then.

use headrace_domain::UnixNanos;
use jiff::Timestamp;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

/// Writes a time.
pub(crate) fn serialize<S: Serializer>(time: &UnixNanos, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&stamp(*time))
}

/// Reads what [`serialize`] writes.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<UnixNanos, D::Error> {
    let text = String::deserialize(deserializer)?;
    read(&text).map_err(D::Error::custom)
}

/// The same for a time that may be absent.
pub(crate) mod option {
    use super::{Deserialize, Deserializer, Error, Serializer, UnixNanos, read, stamp};

    pub(crate) fn serialize<S: Serializer>(
        time: &Option<UnixNanos>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => serializer.collect_str(&stamp(*time)),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<UnixNanos>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| read(&text)).transpose().map_err(D::Error::custom)
    }
}

fn stamp(time: UnixNanos) -> Timestamp {
    // 2⁶⁴ nanoseconds end in the year 2554, well within what a timestamp holds.
    Timestamp::from_nanosecond(time.get().into()).unwrap_or_default()
}

fn read(text: &str) -> Result<UnixNanos, String> {
    let stamp: Timestamp = text.parse().map_err(|error: jiff::Error| error.to_string())?;
    let nanos = u64::try_from(stamp.as_nanosecond()).map_err(|_| format!("{text} lies before 1970"))?;
    Ok(UnixNanos::new(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_text_and_lose_no_digit() {
        for (nanos, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (1_790_000_000_123_456_789, "2026-09-21T14:13:20.123456789Z"),
            (u64::MAX, "2554-07-21T23:34:33.709551615Z"),
        ] {
            assert_eq!(stamp(UnixNanos::new(nanos)).to_string(), text);
            assert_eq!(read(text), Ok(UnixNanos::new(nanos)));
        }
        assert!(read("1969-12-31T23:59:59Z").is_err() && read("yesterday").is_err());
    }
}
