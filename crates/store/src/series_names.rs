//! Names of secrets that are numbered within a series. Must not know where they are kept.

/// The series of the keys that sign receipts.
pub const RECEIPT_KEYS: &str = "receipt-key";
/// Maximum number of secrets of a series.
pub const MAX_SERIES_SECRETS: u32 = 1_000;

/// Returns the name of a secret of a series.
pub fn series_name(series: &str, number: u32) -> String {
    format!("{series}-{number}")
}

/// Whether a name is that of a secret of a series.
pub fn is_of_series(name: &str, series: &str) -> bool {
    let number = name.strip_prefix(series).and_then(|rest| rest.strip_prefix('-'));
    number.is_some_and(|number| {
        number.parse().is_ok_and(|number: u32| number > 0 && series_name(series, number) == name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_series_are_numbered_from_one() {
        for (name, is) in [
            ("receipt-key-1", true),
            ("receipt-key-17", true),
            ("receipt-key-0", false),
            ("receipt-key-01", false),
            ("receipt-key-", false),
            ("receipt-key", false),
            ("receipt-key-1.new", false),
            ("key-hash", false),
        ] {
            assert_eq!(is_of_series(name, RECEIPT_KEYS), is, "{name}");
        }
    }
}
