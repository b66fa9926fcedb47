//! Datasets: named sets of recorded requests and answers. Their items are copies, so they outlive the retention of the
//! calls. Plain data.

use headrace_domain::rfc3339;
use headrace_domain::{OrgId, UnixNanos};
use serde::{Deserialize, Serialize};

use super::score::RecordName;

/// Maximum items of a dataset.
pub const MAX_DATASET_ITEMS: u64 = 100_000;
/// Maximum number of datasets.
pub const MAX_DATASETS: u64 = 1_000;

/// A dataset without its items.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallDataset {
    /// Its name, unique on this server.
    pub name: RecordName,
    /// The organisation whose calls it may have. `None` for calls of all organisations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<OrgId>,
    /// The filters by which its items were chosen, in words.
    pub from: String,
    /// Who created it.
    pub actor: String,
    /// When it was created.
    #[serde(with = "rfc3339")]
    pub created: UnixNanos,
    /// Number of its items.
    #[serde(default)]
    pub items: u64,
}
