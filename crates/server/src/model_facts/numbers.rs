//! Counts and sizes for people.

/// Formats a count, such as `1.04 billion`. Counts below a million are written in full.
pub(super) fn count(number: u64) -> String {
    match number {
        0..1_000_000 => number.to_string(),
        1_000_000..1_000_000_000 => format!("{:.1} million", number as f64 / 1e6),
        _ => format!("{:.2} billion", number as f64 / 1e9),
    }
}

/// Formats a size, such as `1.2 GiB`.
pub(super) fn bytes(number: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = UNITS.into_iter().find(|(_, size)| number >= *size);
    unit.map_or_else(
        || format!("{number} B"),
        |(name, size)| format!("{:.1} {name}", number as f64 / size as f64),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_readable() {
        let rows =
            [(0, "0 B"), (1_023, "1023 B"), (1_536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (3 << 29, "1.5 GiB")];
        for (number, expected) in rows {
            assert_eq!(bytes(number), expected);
        }
        for (number, expected) in [(999, "999"), (1_500_000, "1.5 million"), (1_040_000_000, "1.04 billion")]
        {
            assert_eq!(count(number), expected);
        }
    }
}
