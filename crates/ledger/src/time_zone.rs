//! IANA time zones. Their data is part of the program and never read from the machine.

use std::sync::LazyLock;

use jiff::tz::{TimeZone, TimeZoneDatabase};

static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// Returns a zone by its IANA name. `None` if there is no such zone.
pub(crate) fn find_zone(name: &str) -> Option<TimeZone> {
    ZONES.get(name).ok()
}
