//! Removes a user from all stores that a server has, and asks the other gateways to do so. Must not know who asks for it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use headrace_admin::ForgottenStore;
use headrace_admin_http::{OperatorSessions, PeerAccess};
use headrace_domain::{ForgottenName, ProjectId};
use headrace_store::{ForgottenRecords, Storage, StorageUrl};
use headrace_trace::{ContentArchive, TraceRecorder};

use crate::session_file::SessionFile;

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
    sessions: SessionPlace,
}

/// Where the sessions of operators are.
#[derive(Clone)]
enum SessionPlace {
    /// There are none.
    Nowhere,
    /// At the admin listener.
    Open(Arc<OperatorSessions>),
    /// In the file of this data directory. No server runs.
    Stored(PathBuf),
}

impl UserForgetter {
    /// The stores in a data directory. `objects_dir` is the directory of objects, if it is another one.
    pub fn new(storage: &Storage, objects_dir: Option<&Path>, contents: Arc<dyn ContentArchive>) -> Self {
        let objects = match objects_dir.filter(|_| !storage.is_shared()) {
            Some(dir) => Storage::open(StorageUrl::of_folder(dir), None),
            None => storage.clone(),
        };
        Self {
            storage: storage.clone(),
            objects,
            contents,
            recorder: None,
            peers: None,
            sessions: SessionPlace::Nowhere,
        }
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

    /// Adds the sessions of operators of a running server.
    #[must_use]
    pub(crate) fn with_sessions(self, sessions: Option<&Arc<OperatorSessions>>) -> Self {
        let sessions = sessions.map_or(SessionPlace::Nowhere, |open| SessionPlace::Open(Arc::clone(open)));
        Self { sessions, ..self }
    }

    /// Adds the stored sessions of operators in the data directory of a stopped server.
    #[must_use]
    pub fn with_session_file(self, data_dir: &Path) -> Self {
        Self { sessions: SessionPlace::Stored(data_dir.to_owned()), ..self }
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

    /// Like [`Self::forget`], for what belongs to this server alone: traces, usage, recorded requests and answers, and
    /// sessions. A session belongs to no project, so it ends only without one.
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
        let contents = self.contents.forget(&name, project).map_err(|error| error.to_string());
        done.push(done_in("contents", contents));
        let sessions = match (&self.sessions, project) {
            (SessionPlace::Nowhere, _) | (_, Some(_)) => None,
            (SessionPlace::Open(sessions), None) => Some(sessions.forget(user)),
            (SessionPlace::Stored(dir), None) => Some(SessionFile::forget(dir, user)),
        };
        done.extend(sessions.map(|ended| done_in("sessions", ended)));
        done
    }
}

fn done_in(store: &str, done: Result<u64, String>) -> ForgottenStore {
    let (records, failed) = match done {
        Ok(records) => (records, None),
        Err(why) => (0, Some(why)),
    };
    ForgottenStore { store: store.to_owned(), records, failed }
}

fn view(found: ForgottenRecords) -> ForgottenStore {
    let ForgottenRecords { store, records, failed } = found;
    let store = store.file().trim_end_matches(".sqlite").to_owned();
    ForgottenStore { store, records, failed }
}
