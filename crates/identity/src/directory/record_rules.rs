//! The record policies of projects. Must not know what is recorded, or where.

use headrace_domain::{ProjectId, RecordRules, UnixNanos};

use super::{Directory, IdentityError, entry};
use crate::ProjectRecord;
use crate::record::check_text;

impl Directory {
    /// Changes what a project sets of its record policy. Calls in flight continue with the policy before.
    ///
    /// # Errors
    /// [`IdentityError::UnknownProject`], [`IdentityError::Invalid`] for the kept time, or a store error.
    pub fn set_project_records(
        &self,
        id: &ProjectId,
        rules: RecordRules,
        actor: &str,
        now: UnixNanos,
    ) -> Result<ProjectRecord, IdentityError> {
        check_text("actor", actor)?;
        if !rules.is_valid() {
            let why = "must be 1 second to 3650 days";
            return Err(IdentityError::Invalid { field: "keep_seconds", why });
        }
        let _one_change = self.waiting.lock();
        let project = self.project(id).ok_or_else(|| IdentityError::UnknownProject(id.clone()))?;
        let changed = ProjectRecord { records: rules, ..project };
        let audit = entry(now, actor, "project.records", id.as_str(), rules.to_string());
        self.store.upsert_project(&changed, &audit)?;
        let mut records = self.records.write();
        records.put_project(changed.clone());
        self.entries.put(records.entries_of_project(id)?);
        Ok(changed)
    }
}
