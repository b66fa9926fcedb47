//! Kinds of setting values with their minimum and maximum. Knows no setting.

use std::time::Duration;

use super::value::SettingKind;

/// An integer from `least` to `most`.
pub(super) const fn count(least: u64, most: u64) -> SettingKind {
    SettingKind::Count { least, most }
}

/// A size from `least` to `most` bytes.
pub(super) const fn bytes(least: u64, most: u64) -> SettingKind {
    SettingKind::Bytes { least, most }
}

/// A duration from `least` to `most` milliseconds.
pub(super) const fn millis(least: u64, most: u64) -> SettingKind {
    SettingKind::Duration { least: Duration::from_millis(least), most: Duration::from_millis(most) }
}

/// A duration from `least` to `most` seconds.
pub(super) const fn seconds(least: u64, most: u64) -> SettingKind {
    SettingKind::Duration { least: Duration::from_secs(least), most: Duration::from_secs(most) }
}

pub(super) const MINUTE: u64 = 60;
pub(super) const HOUR: u64 = 60 * MINUTE;
pub(super) const DAY: u64 = 24 * HOUR;
pub(super) const KIB: u64 = 1 << 10;
pub(super) const MIB: u64 = 1 << 20;
pub(super) const GIB: u64 = 1 << 30;
pub(super) const TIB: u64 = 1 << 40;
/// Bounds on a number of threads. The maximum exceeds the processors of any machine.
pub(super) const THREADS: SettingKind = count(1, 1024);
/// Bounds on the items of one request.
pub(super) const ITEMS: SettingKind = count(1, 1 << 20);
/// Bounds on the items of one request, if zero is allowed.
pub(super) const ITEMS_OR_NONE: SettingKind = count(0, 1 << 20);
pub(super) const RATE: SettingKind = SettingKind::Count { least: 0, most: u32::MAX as u64 };
pub(super) const LONG_RATE: SettingKind = SettingKind::Count { least: 0, most: i64::MAX as u64 };
