//! Lends keys to users of the server's machine who may read its data directory. A key lives for hours, and the same
//! user gets the same key again, so repeated requests add no rows. Must not know what a key is used for.

use std::time::Duration;

use headrace_domain::{AdminCode, ProjectId, UnixNanos};
use headrace_identity::KeyDetails;

use super::AdminService;
use crate::command::{AdminCommand, AdminReply};
use crate::error::AdminError;
use crate::lent::LentKey;

/// Lifetime of a lent key.
const LENT_FOR: Duration = Duration::from_secs(12 * 3600);
/// Minimum remaining lifetime of a key that is lent again. Below it a new key is created.
const GIVEN_AGAIN_UNTIL: Duration = Duration::from_secs(3600);
/// Maximum number of remembered keys. Beyond it, a new key is not remembered and so not lent again.
const MAX_REMEMBERED: usize = 64;
/// The project that pays if the command names none.
const DEFAULT_PROJECT: &str = "default";

impl AdminService {
    /// Lends a key to `actor`. This grants no new rights: a user who can send this command can also create lasting
    /// keys.
    pub(super) fn lend_key(
        &self,
        project: Option<ProjectId>,
        actor: &str,
        now: UnixNanos,
    ) -> Result<AdminReply, AdminError> {
        let project = self.paying(project)?;
        // Locked to the end, so that the second of two simultaneous requests gets the first one's key.
        let mut lent = self.lent.0.lock();
        lent.retain(|_, key| key.ends > now);
        let asker = (actor.to_owned(), project.clone());
        let least = now.after(GIVEN_AGAIN_UNTIL);
        if let Some(known) = lent.get(&asker).filter(|known| known.ends > least)
            && let Some(key) = self.directory.key(&known.id).filter(|key| key.revoked.is_none())
        {
            return Ok(AdminReply::KeyLent { key, secret: known.secret.clone() });
        }
        let ends = now.after(LENT_FOR);
        let create = AdminCommand::CreateKey {
            project,
            name: format!("lent to {actor}"),
            models: None,
            endpoints: None,
            limits: None,
            regions: headrace_domain::Residency::Anywhere,
            expires: Some(ends),
            secret: None,
            details: KeyDetails::default(),
            tier: None,
        };
        let AdminReply::KeyCreated { key, secret, .. } = self.create_key(create, actor, now)? else {
            return Err(AdminError::new(AdminCode::Internal, "no key came of it", ""));
        };
        if lent.len() < MAX_REMEMBERED || lent.contains_key(&asker) {
            lent.insert(asker, LentKey { id: key.id.clone(), secret: secret.clone(), ends });
        }
        Ok(AdminReply::KeyLent { key, secret })
    }

    /// Returns the named project, otherwise `default`, otherwise the only project.
    fn paying(&self, named: Option<ProjectId>) -> Result<ProjectId, AdminError> {
        if let Some(named) = named {
            return Ok(named);
        }
        let mut ids: Vec<_> = self.directory.projects().into_iter().map(|project| project.id).collect();
        if let Some(default) = ids.iter().find(|id| id.as_str() == DEFAULT_PROJECT) {
            return Ok(default.clone());
        }
        match (ids.pop(), ids.is_empty()) {
            (Some(only), true) => Ok(only),
            (None, _) => Err(AdminError::new(
                AdminCode::UnknownProject,
                "there is no project that could pay",
                "headrace projects create ID --org ORG",
            )),
            (Some(_), false) => Err(AdminError::new(
                AdminCode::ProjectNotNamed,
                "there are several projects and none is called `default`: which one pays is not known",
                "name a key of your own: headrace keys create --project PROJECT --name NAME",
            )),
        }
    }
}
