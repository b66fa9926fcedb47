//! Money in integer nano-dollars, and prices in nano-dollars per million tokens. Every operation is checked. Must not
//! know accounts or what is sold.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An amount in nano-dollars (10⁻⁹ US dollars). `i64` holds ±9.2 billion dollars.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NanoDollars(i64);

/// A price in nano-dollars per million tokens: $1 per million tokens is 1 000 000 000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NanoDollarsPerMillion(i64);

/// How a cost between two nano-dollars is rounded, once per line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearest, halves up. For charges.
    Nearest,
    /// Up. For holds.
    Up,
}

/// Why an amount could not be computed or parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MoneyError {
    /// The result does not fit `i64` nano-dollars.
    Overflow,
    /// A price below zero.
    NegativePrice,
    /// Text that is not an amount of dollars with at most nine decimals.
    NotAnAmount(String),
}

impl fmt::Display for MoneyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overflow => {
                f.write_str("the amount does not fit 64-bit nano-dollars (±9.2 billion dollars)")
            }
            Self::NegativePrice => f.write_str("a price must not be negative"),
            Self::NotAnAmount(text) => {
                write!(f, "`{text}` is not an amount of dollars such as 5, 0.25 or 0.000000001")
            }
        }
    }
}

impl std::error::Error for MoneyError {}

const NANOS_PER_DOLLAR: i64 = 1_000_000_000;
const TOKENS_PER_PRICE: i64 = 1_000_000;

impl NanoDollars {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// The largest amount.
    pub const MAX: Self = Self(i64::MAX);

    /// Creates an amount from nano-dollars.
    pub const fn new(nanos: i64) -> Self {
        Self(nanos)
    }

    /// Returns the amount in nano-dollars.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// Parses dollars: `5`, `$5`, `-0.25`, `0.000000001`. Accepts at most nine decimals and never rounds.
    pub fn from_dollars(text: &str) -> Result<Self, MoneyError> {
        let bad = || MoneyError::NotAnAmount(text.to_owned());
        let trimmed = text.trim();
        let (negative, digits) = match trimmed.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, trimmed),
        };
        let digits = digits.strip_prefix('$').unwrap_or(digits);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || fraction.len() > 9 || !all_digits(whole) || !all_digits(fraction) {
            return Err(bad());
        }
        let dollars: i64 = whole.parse().map_err(|_| MoneyError::Overflow)?;
        let nanos: i64 =
            if fraction.is_empty() { 0 } else { format!("{fraction:0<9}").parse().map_err(|_| bad())? };
        let total = dollars
            .checked_mul(NANOS_PER_DOLLAR)
            .and_then(|n| n.checked_add(nanos))
            .ok_or(MoneyError::Overflow)?;
        Ok(Self(if negative { -total } else { total }))
    }

    /// Returns the sum, or `Overflow`.
    pub fn checked_add(self, other: Self) -> Result<Self, MoneyError> {
        self.0.checked_add(other.0).map(Self).ok_or(MoneyError::Overflow)
    }

    /// Returns the difference, or `Overflow`.
    pub fn checked_sub(self, other: Self) -> Result<Self, MoneyError> {
        self.0.checked_sub(other.0).map(Self).ok_or(MoneyError::Overflow)
    }

    /// Returns the amount with the opposite sign, or `Overflow`.
    pub fn checked_neg(self) -> Result<Self, MoneyError> {
        self.0.checked_neg().map(Self).ok_or(MoneyError::Overflow)
    }

    /// Returns the sum of all amounts, or `Overflow`.
    pub fn checked_sum(amounts: impl IntoIterator<Item = Self>) -> Result<Self, MoneyError> {
        amounts.into_iter().try_fold(Self::ZERO, Self::checked_add)
    }

    /// Returns whether the amount is below zero.
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }
}

/// Dollars with as many decimals as the amount has, at least two: `$0.000012345`, `$5.00`.
impl fmt::Display for NanoDollars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let nanos = self.0.unsigned_abs();
        let unit = NANOS_PER_DOLLAR.unsigned_abs();
        let fraction = format!("{:09}", nanos % unit);
        let kept = fraction.trim_end_matches('0').len().max(2);
        write!(f, "{sign}${}.{}", nanos / unit, fraction.get(..kept).unwrap_or(&fraction))
    }
}

impl NanoDollarsPerMillion {
    /// A price of zero.
    pub const FREE: Self = Self(0);

    /// Creates a price from nano-dollars per million tokens. Returns an error if it is below zero.
    pub fn new(nanos: i64) -> Result<Self, MoneyError> {
        if nanos < 0 { Err(MoneyError::NegativePrice) } else { Ok(Self(nanos)) }
    }

    /// Returns the price in nano-dollars per million tokens.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// Returns the cost of `tokens` at this price: one exact product, rounded once.
    pub fn cost(self, tokens: u64, rounding: Rounding) -> Result<NanoDollars, MoneyError> {
        let nudge = match rounding {
            Rounding::Nearest => TOKENS_PER_PRICE / 2,
            Rounding::Up => TOKENS_PER_PRICE - 1,
        };
        // The cost of nearly every call fits in 64 bits, and there the compiler turns the division into a
        // multiplication.
        let small = u64::try_from(self.0).ok().and_then(|price| price.checked_mul(tokens));
        if let Some(sum) = small.and_then(|product| product.checked_add(nudge.unsigned_abs())) {
            let cost = i64::try_from(sum / TOKENS_PER_PRICE.unsigned_abs());
            return cost.map(NanoDollars).map_err(|_| MoneyError::Overflow);
        }
        let (product, nudge) = (i128::from(self.0) * i128::from(tokens), i128::from(nudge));
        i64::try_from((product + nudge) / i128::from(TOKENS_PER_PRICE))
            .map(NanoDollars)
            .map_err(|_| MoneyError::Overflow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn dollars_parse_and_print() {
        for (text, nanos, printed) in [
            ("5", 5_000_000_000, "$5.00"),
            ("$0.25", 250_000_000, "$0.25"),
            ("0.000000001", 1, "$0.000000001"),
            ("-1.5", -1_500_000_000, "-$1.50"),
        ] {
            assert_eq!(NanoDollars::from_dollars(text), Ok(NanoDollars::new(nanos)), "{text}");
            assert_eq!(NanoDollars::new(nanos).to_string(), printed);
        }
        for bad in ["", ".5", "1e9", "1.0000000001", "NaN", "1,0", "--1"] {
            assert!(matches!(NanoDollars::from_dollars(bad), Err(MoneyError::NotAnAmount(_))), "{bad}");
        }
        assert_eq!(NanoDollars::from_dollars("99999999999"), Err(MoneyError::Overflow));
    }

    #[test]
    fn a_line_is_rounded_once() {
        let price = NanoDollarsPerMillion::new(1).unwrap();
        assert_eq!(price.cost(499_999, Rounding::Nearest), Ok(NanoDollars::ZERO));
        assert_eq!(price.cost(500_000, Rounding::Nearest), Ok(NanoDollars::new(1)));
        assert_eq!(price.cost(1, Rounding::Up), Ok(NanoDollars::new(1)));
        assert_eq!(price.cost(0, Rounding::Up), Ok(NanoDollars::ZERO));
        let dear = NanoDollarsPerMillion::new(i64::MAX).unwrap();
        assert_eq!(dear.cost(u64::MAX, Rounding::Up), Err(MoneyError::Overflow));
    }

    proptest! {
        #[test]
        fn a_hold_covers_its_charge(price in 0..=i64::MAX / 1_000_000, tokens in 0u64..1_000_000) {
            let price = NanoDollarsPerMillion::new(price).unwrap();
            let held = price.cost(tokens, Rounding::Up).unwrap();
            let charged = price.cost(tokens, Rounding::Nearest).unwrap();
            prop_assert!(charged <= held && held.get() - charged.get() <= 1);
        }

        /// Covers products of any width.
        #[test]
        fn a_line_costs_its_exact_product_rounded(
            price in prop_oneof![0..=i64::MAX, 0i64..10_000_000_000],
            tokens in prop_oneof![any::<u64>(), 0u64..10_000_000_000],
        ) {
            let line = NanoDollarsPerMillion::new(price).unwrap();
            let product = i128::from(price) * i128::from(tokens);
            for (rounding, nudge) in [(Rounding::Nearest, 500_000), (Rounding::Up, 999_999)] {
                let plain = i64::try_from((product + nudge) / 1_000_000).map_err(|_| MoneyError::Overflow);
                prop_assert_eq!(line.cost(tokens, rounding), plain.map(NanoDollars::new));
            }
        }

        #[test]
        fn printing_loses_nothing(nanos in -i64::MAX..=i64::MAX) {
            let amount = NanoDollars::new(nanos);
            let text = amount.to_string().replacen('$', "", 1);
            prop_assert_eq!(NanoDollars::from_dollars(&text), Ok(amount));
        }
    }
}
