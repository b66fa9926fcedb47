//! Tiers: create, list, change, remove and assign them. Must not know how they are enforced.

use headrace_domain::UnixNanos;

use super::AdminService;
use crate::command::AdminReply;
use crate::error::AdminError;
use crate::tier_act::TierAct;

impl AdminService {
    pub(super) fn tiers(&self, act: TierAct, actor: &str, now: UnixNanos) -> Result<AdminReply, AdminError> {
        let directory = &self.directory;
        Ok(match act {
            TierAct::List => AdminReply::Tiers(directory.tiers()),
            TierAct::Create { name, rules } => {
                AdminReply::TierSet(directory.create_tier(name, rules, actor, now)?)
            }
            TierAct::Change { name, rules } => {
                AdminReply::TierSet(directory.change_tier(&name, rules, actor, now)?)
            }
            TierAct::Remove { name } => {
                directory.remove_tier(&name, actor, now)?;
                AdminReply::TierRemoved(name)
            }
            TierAct::Assign { to, tier } => {
                directory.assign_tier(&to, tier.as_ref(), actor, now)?;
                AdminReply::TierAssigned(to, tier)
            }
        })
    }
}
