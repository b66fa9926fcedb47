//! A key for whoever sits at the server's own machine and may read its data directory: made when first asked for, good for
//! hours, and the same one again for the same asker, so that asking makes no rows. Must not know what it is used for.

use std::time::Duration;

use headrace_domain::{AdminCode, ProjectId, UnixNanos};

use super::AdminService;
use crate::command::{AdminCommand, AdminReply};
use crate::error::AdminError;
use crate::lent::LentKey;

/// How long such a key is good.
const LENT_FOR: Duration = Duration::from_secs(12 * 3600);
/// A key that ends sooner than this is not given again: a new one is made.
const GIVEN_AGAIN_UNTIL: Duration = Duration::from_secs(3600);
/// Askers whose keys are remembered. One more gets a key that is not given again.
const MAX_REMEMBERED: usize = 64;
/// The project whose money such calls spend, where nobody names one.
const DEFAULT_PROJECT: &str = "default";

impl AdminService {
    /// A key for `actor`. Whoever may ask may make keys that last: this one is for convenience, and gives no more.
    pub(super) fn lend_key(
        &self,
        project: Option<ProjectId>,
        actor: &str,
        now: UnixNanos,
    ) -> Result<AdminReply, AdminError> {
        let project = self.paying(project)?;
        // Locked to the end: of two who ask at once the second gets the first one's.
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
        };
        let AdminReply::KeyCreated { key, secret, .. } = self.create_key(create, actor, now)? else {
            return Err(AdminError::new(AdminCode::Internal, "no key came of it", ""));
        };
        if lent.len() < MAX_REMEMBERED || lent.contains_key(&asker) {
            lent.insert(asker, LentKey { id: key.id.clone(), secret: secret.clone(), ends });
        }
        Ok(AdminReply::KeyLent { key, secret })
    }

    /// The project that is named; else `default`; else the only one.
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
