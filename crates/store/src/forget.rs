//! Removes the name of a user from the files of a server. Each file is opened beside its server, and written anew.

use std::fmt;
use std::path::Path;

use headrace_domain::{ForgottenName, ProjectId};
use headrace_objects::ObjectError;

use crate::disk::DiskGuard;
use crate::storage::{Storage, StoreName};
use crate::{answers, files, objects, trace, usage};

/// What forgetting a user did in one store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForgottenRecords {
    /// The store.
    pub store: StoreName,
    /// Number of records that were removed or changed.
    pub records: u64,
    /// Why something may be left. `None` if nothing is.
    pub failed: Option<String>,
}

impl Storage {
    /// Removes the name of a user from traces and usage: of one project, or everywhere. These files belong to this server
    /// alone. Those of recorded requests and answers are not touched. A file is only written anew if `min_free` bytes of
    /// its disk stay free. `None` for the usual reserve.
    pub fn forget_in_traces(
        &self,
        user: &ForgottenName,
        project: Option<&ProjectId>,
        min_free: Option<u64>,
    ) -> Vec<ForgottenRecords> {
        let guard = self.guard(min_free);
        let traces =
            self.existing(StoreName::Traces, |path| trace::forget::forget(path, user, project, &guard));
        let usage =
            self.existing(StoreName::Usage, |path| usage::forget::forget(path, user, project, &guard));
        vec![traces, usage]
    }

    /// Removes stored responses and conversations, files, batches and stored answers that have the name of a user: of one
    /// project, or everywhere. In a database that several programs share, this is done once for all of them. `min_free` is
    /// that of [`Storage::forget_in_traces`].
    pub fn forget_in_objects(
        &self,
        user: &ForgottenName,
        project: Option<&ProjectId>,
        min_free: Option<u64>,
    ) -> Vec<ForgottenRecords> {
        let guard = self.guard(min_free);
        if let Some(database) = self.url().database() {
            let forgotten = headrace_postgres::forget(database, user, project);
            return vec![report(StoreName::Objects, forgotten)];
        }
        let objects = self.existing(StoreName::Objects, |path| {
            objects::forget::forget(path, user, project, &guard).map_err(ObjectError::from)
        });
        let mut running = 0;
        let mut files = self.existing(StoreName::Files, |path| {
            let found = files::forget::forget(path, user, project, &guard).map_err(ObjectError::from)?;
            running = found.running;
            Ok::<_, ObjectError>(found.removed)
        });
        if running > 0 && files.failed.is_none() {
            files.failed =
                Some(format!("{running} running batches have the name: cancel them or wait, then try again"));
        }
        let answers = self.existing(StoreName::Answers, |path| {
            answers::forget::forget(path, user, project, &guard).map_err(ObjectError::from)
        });
        vec![objects, files, answers]
    }

    /// The guard of the disk that has the files.
    fn guard(&self, min_free: Option<u64>) -> DiskGuard {
        DiskGuard::of(self.url().folder(), min_free)
    }

    fn existing<E: fmt::Display>(
        &self,
        store: StoreName,
        forget: impl FnOnce(&Path) -> Result<u64, E>,
    ) -> ForgottenRecords {
        let path = self.path(store);
        if !path.exists() {
            return ForgottenRecords { store, records: 0, failed: None };
        }
        report(store, forget(&path))
    }
}

fn report<E: fmt::Display>(store: StoreName, done: Result<u64, E>) -> ForgottenRecords {
    match done {
        Ok(records) => ForgottenRecords { store, records, failed: None },
        Err(error) => ForgottenRecords { store, records: 0, failed: Some(error.to_string()) },
    }
}
