//! Live view of finished calls: the last minute's figures, a bounded stream of rows for subscribers, and notes about
//! slow, refused and failed calls. Fed by the recorder; knows no engine and no gateway.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{KeyId, Stage, TraceRecord, UnixNanos};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use crate::call::{CallEndKind, CallRow};
use crate::units::{humane_duration, plain};
use crate::window::{MinuteStats, MinuteWindow};

/// Maximum finished calls that wait for a subscriber. A subscriber that lags further learns how many calls it missed.
pub const EVENTS_WAITING: usize = 256;
/// Maximum calls that are remembered for notes.
const REMEMBERED: usize = 256;
/// A call gets a note if the server took longer than this.
const SLOW: Duration = Duration::from_secs(5);
/// A call also gets a note if it took longer than this and its time to the first token is many times the minute's
/// median.
const SLOW_FOR_ITS_LIKE: Duration = Duration::from_secs(1);
/// The factor over the median.
const TIMES_THE_MEDIAN: u64 = 8;
/// Notes describe calls that ended at most this long ago.
const RECENT: Duration = Duration::from_secs(60);
/// Maximum notes of one kind.
const NOTES_OF_A_KIND: usize = 5;

/// The live view. See the top of the file.
pub struct LiveCalls {
    window: MinuteWindow,
    events: broadcast::Sender<Arc<CallRow>>,
    remembered: Mutex<VecDeque<Arc<CallRow>>>,
}

impl Default for LiveCalls {
    fn default() -> Self {
        Self {
            window: MinuteWindow::new(),
            events: broadcast::Sender::new(EVENTS_WAITING),
            remembered: Mutex::new(VecDeque::with_capacity(REMEMBERED)),
        }
    }
}

impl LiveCalls {
    /// Subscribes to calls that end from now on and are stored, shortly after they end. A subscriber that lags by more
    /// than [`EVENTS_WAITING`] calls misses the oldest.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<CallRow>> {
        self.events.subscribe()
    }

    /// The figures of the minute before `now`.
    pub fn minute(&self, now: UnixNanos) -> MinuteStats {
        self.window.minute(now)
    }

    /// Notes about calls that ended within the minute before `now`: failed calls, refusals grouped by code and key, and
    /// the slowest calls. Failures and refusals are sorted newest first, slow calls slowest first.
    pub fn notes(&self, now: UnixNanos) -> Vec<LiveNote> {
        self.notes_with(now, &|key| key.to_string())
    }

    /// Like [`LiveCalls::notes`], but `key_name` returns the name of a key in the sentences.
    pub fn notes_with(&self, now: UnixNanos, key_name: &dyn Fn(&KeyId) -> String) -> Vec<LiveNote> {
        let median_ns = self.window.minute(now).first_token.p50_ns;
        let remembered = self.remembered.lock();
        let oldest = now.get().saturating_sub(nanos(RECENT));
        let newest = remembered.iter().rev();
        let recent: Vec<&Arc<CallRow>> =
            newest.filter(|row| row.started.get().saturating_add(row.duration_ns) >= oldest).collect();
        let mut notes = Vec::new();
        let failed = recent.iter().filter(|row| row.ended == CallEndKind::Failed);
        notes.extend(failed.take(NOTES_OF_A_KIND).map(|row| LiveNote::failed(row, key_name)));
        notes.extend(refusals(&recent, key_name).take(NOTES_OF_A_KIND));
        let mut slow: Vec<&&Arc<CallRow>> = recent.iter().filter(|row| is_slow(row, median_ns)).collect();
        slow.sort_by_key(|row| std::cmp::Reverse(row.server_ns));
        notes.extend(
            slow.into_iter().take(NOTES_OF_A_KIND).map(|row| LiveNote::slow(row, median_ns, key_name)),
        );
        notes
    }

    /// Counts a call into the minute. Runs on the task of the finished call, so it takes no lock and allocates nothing.
    pub(crate) fn count(&self, record: &TraceRecord) {
        if record.worker_job.is_none() {
            self.window.count(record);
        }
    }

    /// Publishes a finished call to subscribers and notes. Runs off the call's task. Skips worker jobs.
    pub(crate) fn publish(&self, record: &TraceRecord) {
        if record.worker_job.is_some() {
            return;
        }
        let is_notable = match CallEndKind::of(&record.outcome) {
            CallEndKind::Refused | CallEndKind::Failed => true,
            CallEndKind::Completed | CallEndKind::Cancelled => record.server_ns() >= nanos(SLOW_FOR_ITS_LIKE),
        };
        let is_heard = self.events.receiver_count() > 0;
        if !is_notable && !is_heard {
            return;
        }
        let row = Arc::new(CallRow::of(record));
        if is_notable {
            let mut remembered = self.remembered.lock();
            if remembered.len() >= REMEMBERED {
                remembered.pop_front();
            }
            remembered.push_back(Arc::clone(&row));
        }
        if is_heard {
            // The send fails if all subscribers have gone, which is fine.
            let _ = self.events.send(row);
        }
    }
}

/// A noteworthy event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveNote {
    /// `failed`, `refused` or `slow`, or a kind from elsewhere, such as `queue` or `upstream`.
    pub kind: &'static str,
    /// One sentence. Callers' texts in it are safe for a terminal.
    pub text: String,
    /// The call that the note is about, or the newest of several calls.
    pub request: Option<headrace_domain::RequestId>,
    /// The code of a refusal.
    pub code: Option<String>,
}

impl LiveNote {
    fn failed(row: &CallRow, key_name: &dyn Fn(&KeyId) -> String) -> Self {
        let place = row.stage.map(|stage| format!(" in {stage}")).unwrap_or_default();
        let said = row.message.as_deref().map(|said| format!(": {}", plain(said))).unwrap_or_default();
        let text = format!(
            "A call{} failed{place} after {}{said}",
            of(row, key_name),
            humane_duration(row.duration_ns)
        );
        Self { kind: "failed", text, request: Some(row.id), code: None }
    }

    fn slow(row: &CallRow, median_ns: u64, key_name: &dyn Fn(&KeyId) -> String) -> Self {
        let mut text = format!("A call{} took {}", of(row, key_name), humane_duration(row.server_ns));
        if let Some(stage) = row.stage.filter(|_| row.ended == CallEndKind::Completed) {
            // Writing to a string cannot fail.
            let _ = write!(text, ", most of it in {}", in_words(stage));
        }
        if let Some(first) = row.first_token_ns {
            let _ = write!(text, "; its first token came after {}", humane_duration(first));
            if median_ns > 0 {
                let _ = write!(text, " (median of the minute: {})", humane_duration(median_ns));
            }
        }
        Self { kind: "slow", text, request: Some(row.id), code: None }
    }

    /// The fields `kind`, `text`, `request` and `code`.
    pub fn json(&self) -> Value {
        json!({
            "kind": self.kind,
            "text": self.text,
            "request": self.request.map(|id| id.to_string()),
            "code": self.code,
        })
    }
}

/// One note per code and key.
fn refusals<'a>(
    recent: &'a [&Arc<CallRow>],
    key_name: &'a dyn Fn(&KeyId) -> String,
) -> impl Iterator<Item = LiveNote> + 'a {
    let refused = |row: &&&Arc<CallRow>| row.ended == CallEndKind::Refused;
    let same = |a: &CallRow, b: &CallRow| a.code == b.code && a.key == b.key;
    let first = move |at: usize, row: &&Arc<CallRow>| {
        !recent.iter().take(at).any(|before| before.ended == CallEndKind::Refused && same(before, row))
    };
    let newest = recent.iter().enumerate().filter(move |(at, row)| refused(row) && first(*at, row));
    newest.map(move |(_, row)| {
        let count =
            recent.iter().filter(|other| other.ended == CallEndKind::Refused && same(other, row)).count();
        let (calls, were) =
            if count == 1 { ("A call".to_owned(), "was") } else { (format!("{count} calls"), "were") };
        let key = row
            .key
            .as_ref()
            .map_or_else(|| "without a good key".to_owned(), |key| format!("of {}", plain(&key_name(key))));
        let stage = row.stage.map(|stage| format!(" in {stage}")).unwrap_or_default();
        let status = row.status.map(|status| format!(" with {status}")).unwrap_or_default();
        let said = row.message.as_deref().map(|said| format!(": {}", plain(said))).unwrap_or_default();
        let text = format!("{calls} {key} {were} refused{stage}{status}{said}");
        LiveNote { kind: "refused", text, request: Some(row.id), code: row.code.clone() }
    })
}

fn is_slow(row: &CallRow, median_ns: u64) -> bool {
    let is_ran = matches!(row.ended, CallEndKind::Completed | CallEndKind::Cancelled);
    let first = row.first_token_ns.unwrap_or(row.server_ns);
    let for_its_like = median_ns > 0 && first >= median_ns.saturating_mul(TIMES_THE_MEDIAN);
    is_ran && (row.server_ns >= nanos(SLOW) || (row.server_ns >= nanos(SLOW_FOR_ITS_LIKE) && for_its_like))
}

/// The key and the model of a call.
fn of(row: &CallRow, key_name: &dyn Fn(&KeyId) -> String) -> String {
    let key = row.key.as_ref().map(|key| format!(" of {}", plain(&key_name(key)))).unwrap_or_default();
    let model = row.model().map(|model| format!(" for {}", plain(model))).unwrap_or_default();
    key + &model
}

/// The stage's name for people.
const fn in_words(stage: Stage) -> &'static str {
    match stage {
        Stage::Queue => "the engine's queue",
        Stage::Prefill => "prefill (computing the prompt)",
        Stage::Decode => "decode (generating)",
        Stage::Upstream => "waiting for the upstream's first words",
        Stage::Receive => "receiving its body",
        Stage::Reader => "waiting for a client that does not read",
        stage => stage.name(),
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
