//! What ends, as it ends: the figures of the last minute, a bounded stream of rows for whoever listens, and words about calls that
//! were slow, refused or failed. Fed by the recorder; knows no engine and no gateway.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{KeyId, Stage, TraceRecord, UnixNanos};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use crate::call::{CallRow, Ended};
use crate::units::{humane_duration, plain};
use crate::window::{Minute, Window};

/// Ended calls that wait for whoever listens; who is further behind is told how many it missed, and goes on.
pub const EVENTS_WAITING: usize = 256;
/// Calls that are remembered for words.
const REMEMBERED: usize = 256;
/// A call that took the server longer than this is worth a word, whatever is usual.
const SLOW: Duration = Duration::from_secs(5);
/// So are calls that took longer than this, where that is many times the minute's median to the first token.
const SLOW_FOR_ITS_LIKE: Duration = Duration::from_secs(1);
/// How many times.
const TIMES_THE_MEDIAN: u64 = 8;
/// Words are of calls that ended this long ago or later.
const RECENT: Duration = Duration::from_secs(60);
/// Notes of one kind.
const NOTES_OF_A_KIND: usize = 5;

/// See the top of the file.
pub struct Live {
    window: Window,
    events: broadcast::Sender<Arc<CallRow>>,
    remembered: Mutex<VecDeque<Arc<CallRow>>>,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            window: Window::new(),
            events: broadcast::Sender::new(EVENTS_WAITING),
            remembered: Mutex::new(VecDeque::with_capacity(REMEMBERED)),
        }
    }
}

impl Live {
    /// Calls as they end, from now on: those that are stored, a moment after their end. Who lags by more than
    /// [`EVENTS_WAITING`] misses the oldest.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<CallRow>> {
        self.events.subscribe()
    }

    /// The figures of the minute before `now`.
    pub fn minute(&self, now: UnixNanos) -> Minute {
        self.window.minute(now)
    }

    /// Words about calls that ended within the minute before `now`: those that failed, those that were refused, by code, and the
    /// slowest; the newest of each first.
    pub fn notes(&self, now: UnixNanos) -> Vec<Note> {
        self.notes_with(now, &|key| key.to_string())
    }

    /// As [`Live::notes`]. `key_name` says how a key is named in the sentences.
    pub fn notes_with(&self, now: UnixNanos, key_name: &dyn Fn(&KeyId) -> String) -> Vec<Note> {
        let median_ns = self.window.minute(now).first_token.p50_ns;
        let remembered = self.remembered.lock();
        let oldest = now.get().saturating_sub(nanos(RECENT));
        let newest = remembered.iter().rev();
        let recent: Vec<&Arc<CallRow>> =
            newest.filter(|row| row.started.get().saturating_add(row.duration_ns) >= oldest).collect();
        let mut notes = Vec::new();
        let failed = recent.iter().filter(|row| row.ended == Ended::Failed);
        notes.extend(failed.take(NOTES_OF_A_KIND).map(|row| Note::failed(row, key_name)));
        notes.extend(refusals(&recent, key_name).take(NOTES_OF_A_KIND));
        let mut slow: Vec<&&Arc<CallRow>> = recent.iter().filter(|row| is_slow(row, median_ns)).collect();
        slow.sort_by_key(|row| std::cmp::Reverse(row.server_ns));
        notes.extend(slow.into_iter().take(NOTES_OF_A_KIND).map(|row| Note::slow(row, median_ns, key_name)));
        notes
    }

    /// Counts a call into the minute. On the task of the call that ended: no lock, nothing allocated.
    pub(crate) fn count(&self, record: &TraceRecord) {
        if record.worker_job.is_none() {
            self.window.count(record);
        }
    }

    /// Tells of a call, off its task. A worker job is no call.
    pub(crate) fn tell(&self, record: &TraceRecord) {
        if record.worker_job.is_some() {
            return;
        }
        let is_notable = match Ended::of(&record.outcome) {
            Ended::Refused | Ended::Failed => true,
            Ended::Completed | Ended::Cancelled => record.server_ns() >= nanos(SLOW_FOR_ITS_LIKE),
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
            // Whoever listened may have gone.
            let _ = self.events.send(row);
        }
    }
}

/// Something worth a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// `failed`, `refused`, `slow`, or what others note: `queue`, `upstream`.
    pub kind: &'static str,
    /// A sentence. Texts of callers in it are harmless for a terminal.
    pub text: String,
    /// The call that it is about, or the newest of several.
    pub request: Option<headrace_domain::RequestId>,
    /// The code of a refusal.
    pub code: Option<String>,
}

impl Note {
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
        if let Some(stage) = row.stage.filter(|_| row.ended == Ended::Completed) {
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

    /// `kind`, `text`, `request` and `code`.
    pub fn json(&self) -> Value {
        json!({
            "kind": self.kind,
            "text": self.text,
            "request": self.request.map(|id| id.to_string()),
            "code": self.code,
        })
    }
}

/// A note for each code and whoever met it.
fn refusals<'a>(
    recent: &'a [&Arc<CallRow>],
    key_name: &'a dyn Fn(&KeyId) -> String,
) -> impl Iterator<Item = Note> + 'a {
    let refused = |row: &&&Arc<CallRow>| row.ended == Ended::Refused;
    let same = |a: &CallRow, b: &CallRow| a.code == b.code && a.key == b.key;
    let first = move |at: usize, row: &&Arc<CallRow>| {
        !recent.iter().take(at).any(|before| before.ended == Ended::Refused && same(before, row))
    };
    let newest = recent.iter().enumerate().filter(move |(at, row)| refused(row) && first(*at, row));
    newest.map(move |(_, row)| {
        let count = recent.iter().filter(|other| other.ended == Ended::Refused && same(other, row)).count();
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
        Note { kind: "refused", text, request: Some(row.id), code: row.code.clone() }
    })
}

fn is_slow(row: &CallRow, median_ns: u64) -> bool {
    let is_ran = matches!(row.ended, Ended::Completed | Ended::Cancelled);
    let first = row.first_token_ns.unwrap_or(row.server_ns);
    let for_its_like = median_ns > 0 && first >= median_ns.saturating_mul(TIMES_THE_MEDIAN);
    is_ran && (row.server_ns >= nanos(SLOW) || (row.server_ns >= nanos(SLOW_FOR_ITS_LIKE) && for_its_like))
}

/// Whose, and for which model.
fn of(row: &CallRow, key_name: &dyn Fn(&KeyId) -> String) -> String {
    let key = row.key.as_ref().map(|key| format!(" of {}", plain(&key_name(key)))).unwrap_or_default();
    let model = row.model().map(|model| format!(" for {}", plain(model))).unwrap_or_default();
    key + &model
}

/// What a stage is to people.
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
