//! The names of a caller's tiers, as they travel with a request. Plain data.

use crate::id::TierName;

/// The tiers that are assigned to a key, its project and its organisation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HolderTiers {
    /// The tier of the key.
    pub key: Option<TierName>,
    /// The tier of the project.
    pub project: Option<TierName>,
    /// The tier of the organisation.
    pub org: Option<TierName>,
}
