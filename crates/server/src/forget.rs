//! Removes a user from all stores that a server has, and asks the other gateways to do so. Must not know who asks for it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use headrace_admin::ForgottenStore;
use headrace_admin_http::{OperatorSessions, PeerAccess};
use headrace_domain::{ForgottenName, ProjectId};
use headrace_store::{ForgottenRecords, Storage, StorageUrl};
use headrace_trace::{ContentArchive, ContentRecorder, TraceRecorder};

use crate::datadir::SecretFiles;
use crate::other_gateways;
use crate::session_file::SessionFile;

/// Time limit for storing what waits, before it is searched.
const FLUSH_LIMIT: Duration = Duration::from_secs(10);

/// The stores of a server, running or not.
#[allow(missing_debug_implementations, reason = "holds stores and a client")]
#[derive(Clone)]
pub struct UserForgetter {
    storage: Storage,
    /// The stores of clients' objects.
    objects: Storage,
    contents: Arc<dyn ContentArchive>,
    /// Bytes of the disk that stay free. `None` for the usual reserve.
    min_free: Option<u64>,
    /// `None` if no server runs.
    recorders: Option<LiveRecorders>,
    /// How long each recorder may take to store what waits.
    flush_limit: Duration,
    /// `None` if no other gateway has the same stores. The error says why the others cannot be asked.
    peers: Option<Result<PeerAccess, String>>,
    sessions: SessionPlace,
}

/// The recorders of a running server, which have what is not stored yet.
#[derive(Clone)]
struct LiveRecorders {
    traces: Arc<TraceRecorder>,
    contents: Arc<ContentRecorder>,
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
    /// The stores in a data directory. `objects_dir` is the directory of objects, if it is another one. `min_free` bytes of
    /// each disk stay free, or the usual reserve.
    pub fn new(
        storage: &Storage,
        objects_dir: Option<&Path>,
        min_free: Option<u64>,
        contents: Arc<dyn ContentArchive>,
    ) -> Self {
        let objects = match objects_dir.filter(|_| !storage.is_shared()) {
            Some(dir) => Storage::open(StorageUrl::of_folder(dir), None),
            None => storage.clone(),
        };
        Self {
            storage: storage.clone(),
            objects,
            contents,
            min_free,
            recorders: None,
            flush_limit: FLUSH_LIMIT,
            peers: None,
            sessions: SessionPlace::Nowhere,
        }
    }

    /// Adds the recorders of a running server.
    #[must_use]
    pub(crate) fn with_recorders(self, traces: &Arc<TraceRecorder>, contents: &Arc<ContentRecorder>) -> Self {
        let recorders = LiveRecorders { traces: Arc::clone(traces), contents: Arc::clone(contents) };
        Self { recorders: Some(recorders), ..self }
    }

    /// Adds the other gateways with the same stores.
    #[must_use]
    pub(crate) fn with_peers(self, peers: Option<PeerAccess>) -> Self {
        Self { peers: peers.map(Ok), ..self }
    }

    /// Adds the gateways that share the stores with the stopped gateway of a data directory. `own` is its name.
    #[must_use]
    pub fn with_gateways(self, data_dir: &Path, files: &SecretFiles<'_>, own: &str) -> Self {
        let peers = other_gateways::access(data_dir, files, own);
        Self { peers: peers.unwrap_or_else(|error| Some(Err(error.to_string()))), ..self }
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
            done.extend(self.objects.forget_in_objects(&name, project, self.min_free).into_iter().map(view));
        }
        match &self.peers {
            Some(Ok(peers)) => done.extend(peers.forget(user, project)),
            Some(Err(why)) => done.push(done_in("other gateways", Err(why.clone()))),
            None => {}
        }
        done
    }

    /// Like [`Self::forget`], for what belongs to this server alone: traces, usage, recorded requests and answers, and
    /// sessions. A session belongs to no project, so it ends only without one.
    pub fn forget_here(&self, user: &str, project: Option<&ProjectId>) -> Vec<ForgottenStore> {
        let Some(name) = ForgottenName::new(user) else { return Vec::new() };
        let (mut traces_wait, mut contents_wait) = (false, false);
        if let Some(LiveRecorders { traces, contents }) = &self.recorders {
            traces_wait = !traces.flush(self.flush_limit);
            contents_wait = !contents.flush(self.flush_limit);
            traces.forget(&name, project);
        }
        let traces = self.storage.forget_in_traces(&name, project, self.min_free);
        let mut done: Vec<_> = traces.into_iter().map(view).collect();
        if let Some(first) = done.first_mut() {
            note_waiting(first, traces_wait);
        }
        let contents = self.contents.forget(&name, project).map_err(|error| error.to_string());
        let mut contents = done_in("contents", contents);
        note_waiting(&mut contents, contents_wait);
        done.push(contents);
        let sessions = match (&self.sessions, project) {
            (SessionPlace::Nowhere, _) | (_, Some(_)) => None,
            (SessionPlace::Open(sessions), None) => Some(sessions.forget(user)),
            (SessionPlace::Stored(dir), None) => Some(SessionFile::forget(dir, user)),
        };
        done.extend(sessions.map(|ended| done_in("sessions", ended)));
        done
    }
}

/// Reports records that the search could not find, because they are not stored yet.
fn note_waiting(done: &mut ForgottenStore, waits: bool) {
    if waits {
        let why = format!("some {} wait to be stored: try again", done.store);
        done.failed.get_or_insert(why);
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, channel};

    use headrace_domain::{
        CallContent, ContentSink, Endpoint, RecordLevel, RecordPolicy, RequestId, SystemClock, UnixNanos,
    };
    use headrace_trace::{
        CallCursor, ContentPage, ContentQuery, ContentRecorderConfig, ContentRedactor, ContentStore, Metrics,
        MetricsConfig, RecorderConfig, StoredContent, TraceError,
    };

    use super::*;

    /// A store whose writes wait until the other end is dropped.
    struct HangingStore(Mutex<Receiver<()>>);

    impl ContentStore for HangingStore {
        fn append(&self, _: &[StoredContent]) -> Result<(), TraceError> {
            let _ = self.0.lock().unwrap().recv();
            Ok(())
        }
        fn sweep(&self, _: UnixNanos) -> Result<u64, TraceError> {
            Ok(0)
        }
        fn get(&self, _: RequestId) -> Result<Option<StoredContent>, TraceError> {
            Ok(None)
        }
        fn search(
            &self,
            _: &ContentQuery,
            _: Option<CallCursor>,
            _: usize,
        ) -> Result<ContentPage, TraceError> {
            Ok(ContentPage::default())
        }
        fn forget(&self, _: &ForgottenName, _: Option<&ProjectId>) -> Result<u64, TraceError> {
            Ok(0)
        }
    }

    struct NoRedactor;

    impl ContentRedactor for NoRedactor {
        fn redact(&self, _: &str) -> Option<String> {
            None
        }
    }

    #[test]
    fn contents_that_wait_to_be_stored_are_reported_as_left() {
        let dir = tempfile::tempdir().unwrap();
        let storage = Storage::open(StorageUrl::of_folder(dir.path()), None);
        let metrics = Arc::new(Metrics::new(&MetricsConfig::default()));
        let traces = TraceRecorder::start(None, metrics, RecorderConfig::default()).unwrap();
        let (release, released) = channel();
        let contents = ContentRecorder::start(
            Arc::new(HangingStore(Mutex::new(released))),
            Arc::new(NoRedactor),
            Arc::new(SystemClock::new()),
            ContentRecorderConfig::default(),
        );
        let contents = contents.unwrap();
        contents.record(Box::new(CallContent {
            id: RequestId::from_bits(1),
            started: UnixNanos::new(1),
            org: None,
            project: "web".parse().unwrap(),
            key: None,
            user: None,
            endpoint: Endpoint::ChatCompletions,
            model: None,
            stream: false,
            policy: RecordPolicy { level: RecordLevel::Full, keep_seconds: 60 },
            request: "{}".into(),
            request_cut: false,
            answer: "{}".into(),
            answer_cut: false,
        }));
        let archive = storage.contents(1 << 30, None);
        let forgetter =
            UserForgetter::new(&storage, None, Some(0), archive).with_recorders(&traces, &contents);
        let hurried = UserForgetter { flush_limit: Duration::from_millis(20), ..forgetter.clone() };
        let failed = |forgetter: &UserForgetter| -> Vec<String> {
            let done = forgetter.forget_here("eva@example.com", None).into_iter();
            done.filter(|store| store.failed.is_some()).map(|store| store.store).collect()
        };
        assert_eq!(failed(&hurried), ["contents"]);
        drop(release);
        assert_eq!(failed(&forgetter), [""; 0]);
    }
}
