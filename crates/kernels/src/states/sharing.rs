//! Which heads of a recurrence share a query and a key. Must not know: how they are computed.

/// Which heads share a query and a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeadSharing {
    /// Runs of this many neighbouring heads.
    Runs(usize),
    /// Heads whose numbers are equal modulo this number of keys.
    Strided(usize),
}

impl HeadSharing {
    /// Returns the number of the key of a head.
    #[inline]
    pub(crate) const fn key_of(self, head: usize) -> usize {
        match self {
            Self::Runs(heads) => head / heads,
            Self::Strided(keys) => head % keys,
        }
    }

    /// Returns the number of keys of `heads` heads. `None` if they do not share keys evenly.
    pub(crate) const fn keys(self, heads: usize) -> Option<usize> {
        match self {
            Self::Runs(0) | Self::Strided(0) => None,
            Self::Runs(each) if heads.is_multiple_of(each) => Some(heads / each),
            Self::Strided(keys) if heads.is_multiple_of(keys) => Some(keys),
            Self::Runs(_) | Self::Strided(_) => None,
        }
    }
}
