//! Windows of budget rules, by the calendar of a time zone. Two versions of the program may have different zone data.
//! Therefore the gateway that takes a hold writes the bounds into its row, and no other gateway and no replay computes
//! them again.

use headrace_domain::UnixNanos;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _, Zoned};

use crate::budget_rule::{BudgetWindow, WindowBounds};
use crate::calendar::parse_date;
use crate::time_zone::find_zone;

/// All time.
pub(crate) const TOTAL: WindowBounds =
    WindowBounds { start: UnixNanos::new(0), end: UnixNanos::new(u64::MAX) };

/// Returns the window that contains `time`. A window that the calendar cannot express ends at the end of time.
pub(crate) fn window_at(window: BudgetWindow, zone: &TimeZone, time: UnixNanos) -> WindowBounds {
    let bounds = match window {
        BudgetWindow::Total => return TOTAL,
        window => calendar_window(window, zone, time),
    };
    // Rules of zones may be such that an hour of the clock begins late. A window always contains its time.
    bounds.map_or(TOTAL, |(start, end)| WindowBounds {
        start: start.min(time),
        end: end.max(UnixNanos::new(time.get().saturating_add(1))),
    })
}

fn calendar_window(window: BudgetWindow, zone: &TimeZone, time: UnixNanos) -> Option<(UnixNanos, UnixNanos)> {
    let local = Timestamp::from_nanosecond(time.get().into()).ok()?.to_zoned(zone.clone());
    let first_moment = |date: Date| date.to_zoned(zone.clone()).ok()?.start_of_day().ok();
    let date = local.date();
    let (start, end) = match window {
        BudgetWindow::Hour => {
            let start = local.with().minute(0).second(0).subsec_nanosecond(0).build().ok()?;
            let end = start.checked_add(1.hour()).ok()?;
            (start, end)
        }
        BudgetWindow::Week => {
            let since_monday = i64::from(date.weekday().to_monday_zero_offset());
            let monday = date.checked_sub(since_monday.days()).ok()?;
            (first_moment(monday)?, first_moment(monday.checked_add(7.days()).ok()?)?)
        }
        BudgetWindow::Month => {
            let first = date.first_of_month();
            (first_moment(first)?, first_moment(first.checked_add(1.month()).ok()?)?)
        }
        BudgetWindow::Day | BudgetWindow::Total => {
            (first_moment(date)?, first_moment(date.tomorrow().ok()?)?)
        }
    };
    Some((unix(&start)?, unix(&end)?))
}

/// Returns the bounds of a calendar month such as `2026-11` in an IANA time zone. `None` if the month or the zone does not
/// exist.
pub fn month_bounds(month: &str, zone: &str) -> Option<WindowBounds> {
    let first = parse_date(&format!("{month}-01"))?;
    let date = Timestamp::from_nanosecond(first.get().into()).ok()?.to_zoned(TimeZone::UTC).date();
    let midday = date.at(12, 0, 0, 0).to_zoned(find_zone(zone)?).ok()?;
    let (start, end) = calendar_window(BudgetWindow::Month, midday.time_zone(), unix(&midday)?)?;
    Some(WindowBounds { start, end })
}

/// Returns the date of a time in an IANA time zone, such as `2026-11-05`. `None` if the zone does not exist.
pub fn local_date(time: UnixNanos, zone: &str) -> Option<String> {
    let local = Timestamp::from_nanosecond(time.get().into()).ok()?.to_zoned(find_zone(zone)?);
    Some(local.date().to_string())
}

/// Returns the date that many days after a date such as `2026-11-05`. `None` if it is no date, or the result does not exist.
pub fn days_after(date: &str, days: u32) -> Option<String> {
    let date: Date = date.parse().ok()?;
    Some(date.checked_add(i64::from(days).days()).ok()?.to_string())
}

fn unix(at: &Zoned) -> Option<UnixNanos> {
    u64::try_from(at.timestamp().as_nanosecond()).ok().map(UnixNanos::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_by_the_calendar() {
        for (date, days, expected) in [
            ("2026-10-01", 30, Some("2026-10-31")),
            ("2026-02-27", 2, Some("2026-03-01")),
            ("2026-11-05", 0, Some("2026-11-05")),
            ("2026-13-05", 1, None),
            ("9999-12-31", 1, None),
        ] {
            assert_eq!(days_after(date, days).as_deref(), expected, "{date} {days}");
        }
    }

    fn at(text: &str) -> UnixNanos {
        let time: Timestamp = text.parse().unwrap();
        UnixNanos::new(u64::try_from(time.as_nanosecond()).unwrap())
    }

    #[test]
    fn windows_are_those_of_the_calendar_in_the_zone() {
        use BudgetWindow::{Day, Hour, Month, Week};
        for (window, zone, time, start, end) in [
            (Day, "UTC", "2026-11-20T00:00:00Z", "2026-11-20T00:00:00Z", "2026-11-21T00:00:00Z"),
            (Day, "UTC", "2026-11-20T23:59:59.999999999Z", "2026-11-20T00:00:00Z", "2026-11-21T00:00:00Z"),
            (
                Day,
                "America/Los_Angeles",
                "2026-11-20T07:59:59Z",
                "2026-11-19T08:00:00Z",
                "2026-11-20T08:00:00Z",
            ),
            // The day on which clocks go back has 25 hours, and the one on which they go forward 23.
            (Day, "Europe/Berlin", "2026-10-25T12:00:00Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"),
            (Day, "Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"),
            // Midnight does not exist on this day: it begins at one o'clock.
            (Day, "America/Asuncion", "2023-10-01T12:00:00Z", "2023-10-01T04:00:00Z", "2023-10-02T03:00:00Z"),
            // A day that an island skipped: the next one follows the one before it.
            (Day, "Pacific/Apia", "2011-12-30T09:00:00Z", "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"),
            (Week, "UTC", "2026-11-22T23:00:00Z", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"),
            (Week, "UTC", "2026-11-23T00:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"),
            (Week, "Asia/Tokyo", "2026-11-22T15:00:00Z", "2026-11-22T15:00:00Z", "2026-11-29T15:00:00Z"),
            (Month, "UTC", "2026-12-31T23:00:00Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            (Month, "Asia/Tokyo", "2026-12-31T15:00:00Z", "2026-12-31T15:00:00Z", "2027-01-31T15:00:00Z"),
            (Month, "Europe/Berlin", "2026-03-31T21:59:59Z", "2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z"),
            (Hour, "Asia/Kolkata", "2026-11-20T10:00:00Z", "2026-11-20T09:30:00Z", "2026-11-20T10:30:00Z"),
            // The hour from two to three happens twice, and each is a window.
            (Hour, "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z"),
            (Hour, "Europe/Berlin", "2026-10-25T01:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"),
        ] {
            let zone_data = find_zone(zone).unwrap();
            let found = window_at(window, &zone_data, at(time));
            assert_eq!(found, WindowBounds { start: at(start), end: at(end) }, "{window:?} {zone} {time}");
        }
        let far = window_at(Day, &find_zone("UTC").unwrap(), UnixNanos::new(u64::MAX - 1));
        assert!(far.start < far.end);
        assert_eq!(window_at(BudgetWindow::Total, &TimeZone::UTC, at("2026-11-20T00:00:00Z")), TOTAL);
        assert!(find_zone("Europe/Nowhere").is_none());
    }

    #[test]
    fn months_have_the_bounds_of_their_zone() {
        for (month, zone, start, end) in [
            ("2026-11", "UTC", "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"),
            ("2026-12", "Asia/Tokyo", "2026-11-30T15:00:00Z", "2026-12-31T15:00:00Z"),
            ("2026-03", "Europe/Berlin", "2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z"),
        ] {
            assert_eq!(month_bounds(month, zone), Some(WindowBounds { start: at(start), end: at(end) }));
        }
        for (month, zone) in [("2026-13", "UTC"), ("2026-1", "UTC"), ("x", "UTC"), ("2026-11", "Mars/Crater")]
        {
            assert_eq!(month_bounds(month, zone), None, "{month} {zone}");
        }
    }

    #[test]
    fn every_moment_of_a_year_is_in_exactly_one_window() {
        for zone in ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"] {
            let zone = find_zone(zone).unwrap();
            for window in [BudgetWindow::Hour, BudgetWindow::Day, BudgetWindow::Week, BudgetWindow::Month] {
                let (mut time, end) = (at("2026-01-01T00:00:00Z"), at("2027-01-01T00:00:00Z"));
                let mut before: Option<WindowBounds> = None;
                while time < end {
                    let found = window_at(window, &zone, time);
                    assert!(found.start <= time && time < found.end, "{window:?} {time:?} {found:?}");
                    if let Some(before) = before.filter(|before| *before != found) {
                        // Hours of a zone that shifts by half an hour may overlap; a ledger begins no window early.
                        assert!(found.end > before.end, "{window:?} {before:?} {found:?}");
                        let is_lord_howe = zone.iana_name() == Some("Australia/Lord_Howe");
                        if !(is_lord_howe && window == BudgetWindow::Hour) {
                            assert_eq!(found.start, before.end, "{window:?}");
                        }
                    }
                    before = Some(found);
                    time = UnixNanos::new(time.get() + 29 * 60 * 1_000_000_000);
                }
            }
        }
    }
}
