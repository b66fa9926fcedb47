//! Amounts of invoices: whole cents beside exact nano-dollars, and their form in JSON. Must not know invoices.

use std::fmt;

use headrace_domain::NanoDollars;

/// Nano-dollars of a cent.
const NANOS_PER_CENT: i64 = 10_000_000;
/// Hundredths of a percent in the whole.
const BASIS: i128 = 10_000;

/// An amount in whole cents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct CentAmount(pub i64);

/// Rounds to the nearest cent, halves away from zero.
pub(crate) fn round(amount: NanoDollars) -> CentAmount {
    let (whole, rest) = (amount.get() / NANOS_PER_CENT, amount.get() % NANOS_PER_CENT);
    let up = i64::from(rest.unsigned_abs() >= NANOS_PER_CENT.unsigned_abs() / 2);
    CentAmount(whole + up * amount.get().signum())
}

impl CentAmount {
    /// The sum. `None` if it does not fit.
    pub fn plus(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    /// The difference. `None` if it does not fit.
    pub fn minus(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Self)
    }

    /// The amount in nano-dollars. `None` if it does not fit.
    pub fn nanos(self) -> Option<NanoDollars> {
        self.0.checked_mul(NANOS_PER_CENT).map(NanoDollars::new)
    }

    /// This share of the amount, in hundredths of a percent, to the nearest cent.
    pub fn times_basis_points(self, points: u32) -> Option<Self> {
        let product = i128::from(self.0) * i128::from(points);
        let rounded = (product.abs() + BASIS / 2) / BASIS * product.signum();
        i64::try_from(rounded).ok().map(Self)
    }
}

/// Dollars with two decimals: `-0.05`, `12.30`.
impl fmt::Display for CentAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let cents = self.0.unsigned_abs();
        write!(f, "{sign}{}.{:02}", cents / 100, cents % 100)
    }
}

/// Dollars with as many decimals as the amount has, at least two, without a sign for the currency.
pub(crate) fn dollars(amount: NanoDollars) -> String {
    amount.to_string().replacen('$', "", 1)
}

/// Forms in JSON.
pub(crate) mod decimal {
    use super::CentAmount;

    /// CentAmount as text with two decimals.
    pub(crate) mod cents {
        use headrace_domain::NanoDollars;
        use serde::de::Error as _;
        use serde::{Deserialize, Deserializer, Serializer};

        use super::CentAmount;

        pub(crate) fn serialize<S: Serializer>(
            amount: &CentAmount,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            serializer.collect_str(amount)
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<CentAmount, D::Error> {
            let text = String::deserialize(deserializer)?;
            let amount = NanoDollars::from_dollars(&text).map_err(D::Error::custom)?;
            Some(super::super::round(amount))
                .filter(|cents| cents.nanos() == Some(amount))
                .ok_or_else(|| D::Error::custom(format!("`{text}` is no amount in cents")))
        }
    }

    /// Nano-dollars as text in dollars.
    pub(crate) mod nanos {
        use headrace_domain::NanoDollars;
        use serde::de::Error as _;
        use serde::{Deserialize, Deserializer, Serializer};

        pub(crate) fn serialize<S: Serializer>(
            amount: &NanoDollars,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            serializer.serialize_str(&super::super::dollars(*amount))
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<NanoDollars, D::Error> {
            NanoDollars::from_dollars(&String::deserialize(deserializer)?).map_err(D::Error::custom)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_round_to_the_nearest_cent_away_from_zero() {
        for (nanos, cents, text) in [
            (0, 0, "0.00"),
            (4_999_999, 0, "0.00"),
            (5_000_000, 1, "0.01"),
            (-5_000_000, -1, "-0.01"),
            (-4_999_999, 0, "0.00"),
            (123_456_789_000, 12_346, "123.46"),
            (-12_344_999_999, -1_234, "-12.34"),
        ] {
            let rounded = round(NanoDollars::new(nanos));
            assert_eq!((rounded, rounded.to_string().as_str()), (CentAmount(cents), text), "{nanos}");
        }
        let _ = (round(NanoDollars::new(i64::MAX)), round(NanoDollars::new(i64::MIN)));
    }

    #[test]
    fn taxes_round_to_the_nearest_cent() {
        for (cents, points, tax) in
            [(10_000, 1900, 1_900), (1, 1900, 0), (3, 1900, 1), (-3, 1900, -1), (999, 0, 0), (50, 100, 1)]
        {
            assert_eq!(
                CentAmount(cents).times_basis_points(points),
                Some(CentAmount(tax)),
                "{cents} {points}"
            );
        }
    }
}
