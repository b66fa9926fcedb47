//! Commands about tiers as serializable data. Contains no decisions.

use headrace_domain::TierName;
use headrace_identity::{TierHolder, TierRules};
use serde::{Deserialize, Serialize};

/// A command about tiers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "snake_case", deny_unknown_fields)]
pub enum TierAct {
    /// Lists all tiers.
    List,
    /// Creates a tier.
    Create {
        /// The tier's name.
        name: TierName,
        /// What it allows.
        rules: TierRules,
    },
    /// Changes a tier, for all that have it.
    Change {
        /// The tier's name.
        name: TierName,
        /// The new rules. They replace all rules.
        rules: TierRules,
    },
    /// Removes a tier that is assigned to none.
    Remove {
        /// The tier's name.
        name: TierName,
    },
    /// Assigns a tier in place of the one before.
    Assign {
        /// The organisation, project or key.
        to: TierHolder,
        /// The tier. `None` for no tier.
        tier: Option<TierName>,
    },
}
