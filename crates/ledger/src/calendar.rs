//! UTC dates and months over nanoseconds since 1970, as budgets and price versions need them. Knows no time zones and
//! no leap seconds (Unix time has none).

use headrace_domain::UnixNanos;

const NANOS_PER_DAY: u64 = 86_400 * 1_000_000_000;

/// A calendar month, UTC: `year * 12 + month - 1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct MonthNumber(pub(crate) u32);

impl MonthNumber {
    /// Returns the month that contains `time`.
    pub(crate) fn of(time: UnixNanos) -> Self {
        let (year, month, _) = civil(time.get() / NANOS_PER_DAY);
        Self(year * 12 + month - 1)
    }

    /// Returns the first moment of the next month, or the end of time if that moment cannot be represented.
    pub(crate) fn end(self) -> UnixNanos {
        let next = self.0.saturating_add(1);
        midnight(next / 12, next % 12 + 1, 1).unwrap_or(UnixNanos::new(u64::MAX))
    }
}

/// Returns the UTC date of `time`, such as `2026-11-05`.
pub(crate) fn date(time: UnixNanos) -> String {
    let (year, month, day) = civil(time.get() / NANOS_PER_DAY);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Returns the first moment of a date written as `2026-11-05`. `None` unless it is a date from 1970 to 2500.
pub(crate) fn parse_date(text: &str) -> Option<UnixNanos> {
    let mut parts = text.split('-');
    let mut part = |digits: usize| {
        let part = parts.next()?;
        let plain = part.len() == digits && part.bytes().all(|b| b.is_ascii_digit());
        if plain { part.parse::<u32>().ok() } else { None }
    };
    let (year, month, day) = (part(4)?, part(2)?, part(2)?);
    if parts.next().is_some() || !(1970..=2500).contains(&year) {
        return None;
    }
    let time = midnight(year, month, day)?;
    // A day that the month does not have would give another date.
    (date(time) == text).then_some(time)
}

/// Converts days since 1970 to (year, month, day). Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".
fn civil(days: u64) -> (u32, u32, u32) {
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    (narrow(year), narrow(month), narrow(day))
}

/// Returns the first moment of a date from 1970 on. `None` before 1970, outside month 1–12 or day 1–31, or beyond 64
/// bits.
fn midnight(year: u32, month: u32, day: u32) -> Option<UnixNanos> {
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let (year, month, day) = (u64::from(year), u64::from(month), u64::from(day));
    let year = year - u64::from(month <= 2);
    let era = year / 400;
    let year_of_era = year % 400;
    let shifted_month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = (era * 146_097 + day_of_era).checked_sub(719_468)?;
    days.checked_mul(NANOS_PER_DAY).map(UnixNanos::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_round_trip() {
        for (text, seconds) in [
            ("1970-01-01", 0),
            ("2000-02-29", 951_782_400),
            ("2024-02-29", 1_709_164_800),
            ("2026-11-05", 1_793_836_800),
            ("2100-03-01", 4_107_542_400),
        ] {
            let time = parse_date(text).unwrap();
            assert_eq!(time.seconds(), seconds, "{text}");
            assert_eq!(date(time), text);
        }
        for bad in [
            "",
            "2026-02-30",
            "2025-02-29",
            "2026-13-01",
            "2026-1-01",
            "1969-12-31",
            "2026-01-01-",
            "20260101",
            "+026-01-01",
        ] {
            assert_eq!(parse_date(bad), None, "{bad}");
        }
    }

    #[test]
    fn every_day_follows_the_one_before_it() {
        let mut last = (1969, 12, 31);
        for day in 0..200_000 {
            let (y, m, d) = civil(day);
            assert_eq!(midnight(y, m, d), day.checked_mul(NANOS_PER_DAY).map(UnixNanos::new));
            let follows = (y, m, d) == (last.0, last.1, last.2 + 1)
                || (d == 1 && (y, m) == (last.0, last.1 + 1))
                || (d == 1 && m == 1 && y == last.0 + 1 && last.1 == 12);
            assert!(follows, "{last:?} then {:?}", (y, m, d));
            last = (y, m, d);
        }
    }

    #[test]
    fn a_month_ends_where_the_next_begins() {
        for text in ["2026-01-31", "2026-12-01", "2024-02-29"] {
            let month = MonthNumber::of(parse_date(text).unwrap());
            let end = month.end();
            assert_eq!(MonthNumber::of(end).0, month.0 + 1);
            assert_eq!(MonthNumber::of(UnixNanos::new(end.get() - 1)), month);
        }
        assert_eq!(MonthNumber(u32::MAX).end(), UnixNanos::new(u64::MAX));
    }
}
