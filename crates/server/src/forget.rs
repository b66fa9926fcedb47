//! Removes a user from all stores that a server has, and asks the other gateways to do so. Must not know who asks for it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use headrace_admin::ForgottenStore;
use headrace_admin_http::PeerAccess;
use headrace_domain::{ForgottenName, ProjectId};
use headrace_store::{ForgottenRecords, Storage, StorageUrl};
use headrace_trace::{ContentArchive, TraceRecorder};

/// Time limit for storing what waits, before it is searched.
const FLUSH: Duration = Duration::from_secs(10);

/// The stores of a server, running or not.
#[allow(missing_debug_implementations, reason = "holds stores and a client")]
#[derive(Clone)]
pub struct UserForgetter {
    storage: Storage,
    /// The stores of clients' objects.
    objects: Storage,
    contents: Arc<dyn ContentArchive>,
    /// `None` if no server runs.
    recorder: Option<Arc<TraceRecorder>>,
    /// `None` if no other gateway has the same stores, or no server runs.
    peers: Option<PeerAccess>,
}

impl UserForgetter {
    /// The stores in a data directory. `objects_dir` is the directory of objects, if it is another one.
    pub fn new(storage: &Storage, objects_dir: Option<&Path>, contents: Arc<dyn ContentArchive>) -> Self {
        let objects = match objects_dir.filter(|_| !storage.is_shared()) {
            Some(dir) => Storage::open(StorageUrl::of_folder(dir), None),
            None => storage.clone(),
        };
        Self { storage: storage.clone(), objects, contents, recorder: None, peers: None }
    }

    /// Adds the recorder of a running server.
    #[must_use]
    pub(crate) fn with_recorder(self, recorder: &Arc<TraceRecorder>) -> Self {
        Self { recorder: Some(Arc::clone(recorder)), ..self }
    }

    /// Adds the other gateways with the same stores.
    #[must_use]
    pub(crate) fn with_peers(self, peers: Option<PeerAccess>) -> Self {
        Self { peers, ..self }
    }

    /// Removes a user from all stores: those of this server, those that gateways share, and those of the other gateways.
    /// Returns what was done in each. Blocks, for as long as the files are written anew.
    pub fn forget(&self, user: &str, project: Option<&ProjectId>) -> Vec<ForgottenStore> {
        let mut done = self.forget_here(user, project);
        if let Some(name) = ForgottenName::new(user) {
            done.extend(self.objects.forget_in_objects(&name, project).into_iter().map(view));
        }
        if let Some(peers) = &self.peers {
            done.extend(peers.forget(user, project));
        }
        done
    }

    /// Like [`Self::forget`], for what belongs to this server alone: traces, usage, and recorded requests and answers.
    pub fn forget_here(&self, user: &str, project: Option<&ProjectId>) -> Vec<ForgottenStore> {
        let Some(name) = ForgottenName::new(user) else { return Vec::new() };
        let mut waits = None;
        if let Some(recorder) = &self.recorder {
            if !recorder.flush(FLUSH) {
                waits = Some("traces wait to be stored: try again".to_owned());
            }
            recorder.forget(&name, project);
        }
        let mut done: Vec<_> = self.storage.forget_in_traces(&name, project).into_iter().map(view).collect();
        if let (Some(first), Some(why)) = (done.first_mut(), waits) {
            first.failed.get_or_insert(why);
        }
        let contents = self.contents.forget(&name, project);
        done.push(match contents {
            Ok(records) => ForgottenStore { store: "contents".to_owned(), records, failed: None },
            Err(error) => {
                ForgottenStore { store: "contents".to_owned(), records: 0, failed: Some(error.to_string()) }
            }
        });
        done
    }
}

fn view(found: ForgottenRecords) -> ForgottenStore {
    let ForgottenRecords { store, records, failed } = found;
    let store = store.file().trim_end_matches(".sqlite").to_owned();
    ForgottenStore { store, records, failed }
}
