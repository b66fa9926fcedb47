//! What a bucket knows of the source of its slices. Knows no bucket.

use headrace_domain::UnixNanos;

/// Lifetime of a slice. What is left of it then lapses, because its source has refilled it meanwhile.
const SLICE_NANOS: u64 = 5_000_000_000;

/// What a bucket knows of its source.
#[derive(Debug, Clone, Default)]
pub(crate) struct SliceState {
    /// The time of the oldest grant that the bucket may still hold a part of.
    pub(crate) oldest: UnixNanos,
    /// What the source had left after the last grant, in tokens or requests.
    pub(crate) elsewhere: u64,
    /// The time of the last grant.
    pub(crate) granted: UnixNanos,
    /// The part of the limit that the source answers for. `None` for the whole limit.
    pub(crate) share: Option<u64>,
}

impl SliceState {
    /// Whether what is left of the slices has lapsed.
    pub(crate) fn has_lapsed(&self, now: UnixNanos) -> bool {
        now.get().saturating_sub(self.oldest.get()) > SLICE_NANOS
    }

    /// The part of `limit` that the source answers for.
    pub(crate) fn part_of(&self, limit: u64) -> u64 {
        self.share.map_or(limit, |share| share.min(limit))
    }
}
