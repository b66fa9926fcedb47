//! The part of a limit that one process of several may use. Pure arithmetic: rounds down, so that the parts of all
//! processes never exceed the limit.

/// The units of a whole limit. Divisible by each number of gateways up to 16.
pub(crate) const WHOLE_UNITS: u32 = 720_720;

/// The part of a limit that belongs to one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitPart {
    /// A number of [`WHOLE_UNITS`], for scopes whose demand is low.
    Base(u32),
    /// A number of tokens per minute, for scopes whose shares follow demand.
    Fixed {
        /// Tokens or requests per minute.
        share: u64,
        /// The limit that `share` is a part of.
        of: u64,
    },
}

impl LimitPart {
    /// All of a limit.
    pub(crate) const WHOLE: Self = Self::Base(WHOLE_UNITS);

    /// Returns the part of `limit`, rounded down. A fixed share follows a limit that was changed since.
    #[inline]
    pub(crate) fn of(self, limit: u64) -> u64 {
        // The most frequent part, without a call.
        if matches!(self, Self::WHOLE) { limit } else { self.of_shared(limit) }
    }

    #[inline(never)]
    fn of_shared(self, limit: u64) -> u64 {
        match self {
            Self::Base(units) => scale(limit, u64::from(units), u64::from(WHOLE_UNITS)),
            Self::Fixed { share, of } if of == limit => share,
            Self::Fixed { share, of } => scale(limit, share, of).min(limit),
        }
    }
}

impl Default for LimitPart {
    fn default() -> Self {
        Self::WHOLE
    }
}

/// Returns `value * part / whole`, rounded down, or zero if `whole` is zero.
pub(crate) fn scale(value: u64, part: u64, whole: u64) -> u64 {
    let scaled = (u128::from(value) * u128::from(part)).checked_div(u128::from(whole)).unwrap_or(0);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
