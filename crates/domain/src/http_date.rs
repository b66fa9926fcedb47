//! Times in HTTP headers: `Sun, 31 Jan 2027 00:00:00 GMT` (RFC 9110, 5.6.7). Must not know a header.

use std::fmt;

use jiff::Timestamp;

use crate::clock::UnixNanos;

/// A time that is written in HTTP's format, to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpDate(pub UnixNanos);

impl fmt::Display for HttpDate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Every `u64` of nanoseconds lies before the year 2555, which the library can write.
        let time = Timestamp::from_nanosecond(self.0.get().into()).map_err(|_| fmt::Error)?;
        time.strftime("%a, %d %b %Y %H:%M:%S GMT").fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_as_the_standard_does() {
        for (second, expected) in
            [(784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"), (1_801_353_600, "Sun, 31 Jan 2027 00:00:00 GMT")]
        {
            assert_eq!(HttpDate(UnixNanos::new(second * 1_000_000_000)).to_string(), expected);
        }
    }
}
