//! Playground calls, each made once under its key. A request with the same key and body reads the same answer from its
//! first byte, even while the call still runs. In memory and bounded. Must not know what a call is.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use headrace_domain::{AdminCode, UnixNanos};
use headrace_identity::OperatorId;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::problem::ApiProblem;
use crate::seams::PlaygroundAnswer;

/// Maximum number of calls that run or whose answers are kept, in total and for one operator.
const MAX_PLAYS: usize = 128;
const MAX_PLAYS_PER_OPERATOR: usize = 32;
/// Maximum size of an answer, in bytes. A call whose answer exceeds it is stopped.
pub(crate) const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// How long an answer is kept, from the start of its call.
pub(crate) const KEPT: Duration = Duration::from_secs(60 * 60);
/// How long a call runs while no client reads it. A page that is reloaded returns sooner.
const ABANDONED_AFTER: Duration = Duration::from_secs(15);
/// The content type of an event stream.
const EVENT_STREAM: &str = "text/event-stream";

/// The operator and the idempotency key of a call.
pub(crate) type PlayKey = (OperatorId, String);

/// All calls, by key.
#[derive(Default)]
pub(crate) struct StoredAnswers {
    kept: Mutex<HashMap<PlayKey, Arc<StoredCall>>>,
}

/// One call: the hash of its request, and its answer so far.
pub(crate) struct StoredCall {
    asked: blake3::Hash,
    begun: UnixNanos,
    answer: Mutex<StoredPieces>,
    /// A counter that changes with the head, each piece and the end. Readers wait for changes. It is closed while there
    /// are no readers.
    changes: watch::Sender<u64>,
    stop: CancellationToken,
}

#[derive(Default)]
struct StoredPieces {
    head: Option<StoredHead>,
    pieces: Vec<Bytes>,
    bytes: usize,
    end: Option<StoredEnd>,
}

/// Status and headers of an answer.
#[derive(Debug, Clone)]
pub(crate) struct StoredHead {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    pub(crate) headers: Vec<(&'static str, String)>,
}

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoredEnd {
    Whole,
    /// The operator stopped it.
    Stopped,
    /// No client read it for [`ABANDONED_AFTER`].
    Abandoned,
    /// It grew beyond [`MAX_ANSWER_BYTES`].
    TooLong,
    /// Its source broke off.
    Broken,
}

impl StoredEnd {
    /// Why the answer is not whole. `None` if it is.
    fn fault(self) -> Option<String> {
        Some(match self {
            Self::Whole => return None,
            Self::Stopped => "the call was stopped by its operator".to_owned(),
            Self::Abandoned => {
                format!(
                    "no page read the answer for {} seconds, so the call was stopped",
                    ABANDONED_AFTER.as_secs()
                )
            }
            Self::TooLong => {
                format!(
                    "the answer grew beyond {MAX_ANSWER_BYTES} bytes, the most that is kept, so the call was stopped"
                )
            }
            Self::Broken => "the answer broke off before its end".to_owned(),
        })
    }
}

/// The last event of an answer that is not whole. Clients of every dialect read it as an error.
fn last_event(fault: &str) -> Bytes {
    let error = ApiProblem::new(AdminCode::Stopped, fault).into_event();
    format!("event: error\ndata: {error}\n\n").into()
}

/// The outcome of [`StoredAnswers::enter`].
pub(crate) enum PlayEntry {
    /// The call is new. The caller must make it.
    New(Arc<StoredCall>),
    /// The same call was made before.
    Again(Arc<StoredCall>),
    /// Another call was made under this key.
    OtherBody,
    /// Too many calls are running.
    Full,
}

impl StoredAnswers {
    /// Finds the call under a key, or adds a new one. `asked` is the hash of the request.
    pub(crate) fn enter(&self, key: PlayKey, asked: blake3::Hash, now: UnixNanos) -> PlayEntry {
        let mut kept = self.kept.lock();
        kept.retain(|_, play| !play.is_over() || now < play.begun.after(KEPT));
        if let Some(play) = kept.get(&key) {
            return if play.asked == asked {
                PlayEntry::Again(Arc::clone(play))
            } else {
                PlayEntry::OtherBody
            };
        }
        let own = |other: &PlayKey| other.0 == key.0;
        if !make_room(&mut kept, MAX_PLAYS_PER_OPERATOR, own) || !make_room(&mut kept, MAX_PLAYS, |_| true) {
            return PlayEntry::Full;
        }
        let (changes, _) = watch::channel(0);
        let (answer, stop) = (Mutex::default(), CancellationToken::new());
        let play = Arc::new(StoredCall { asked, begun: now, answer, changes, stop });
        kept.insert(key, Arc::clone(&play));
        PlayEntry::New(play)
    }

    /// Stops the call under a key. Returns `false` if there is none.
    pub(crate) fn stop(&self, key: &PlayKey) -> bool {
        let found = self.kept.lock().get(key).cloned();
        found.inspect(|play| play.stop.cancel()).is_some()
    }
}

/// Removes the oldest finished answers while there are too many. Returns `false` if too many calls are running.
fn make_room(
    kept: &mut HashMap<PlayKey, Arc<StoredCall>>,
    most: usize,
    counts: impl Fn(&PlayKey) -> bool,
) -> bool {
    while kept.keys().filter(|key| counts(key)).count() >= most {
        let over = kept.iter().filter(|(key, play)| counts(key) && play.is_over());
        let Some(oldest) = over.min_by_key(|(_, play)| play.begun).map(|(key, _)| key.clone()) else {
            return false;
        };
        kept.remove(&oldest);
    }
    true
}

impl StoredCall {
    fn is_over(&self) -> bool {
        self.answer.lock().end.is_some()
    }

    /// Stops the call.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Reads the answer to its end, or until the call is stopped or abandoned, or the answer is too long.
    pub(crate) async fn take_in(self: Arc<Self>, played: impl Future<Output = PlaygroundAnswer>) {
        let mut given_up = std::pin::pin!(self.given_up());
        let PlaygroundAnswer { status, content_type, headers, mut body } = tokio::select! {
            played = played => played,
            end = &mut given_up => return self.end(end),
        };
        self.answer.lock().head = Some(StoredHead { status, content_type, headers });
        self.notify();
        let end = loop {
            let piece = tokio::select! {
                piece = body.next() => piece,
                // Dropping the body tells the call that its client disconnected.
                end = &mut given_up => break end,
            };
            match piece {
                None => break StoredEnd::Whole,
                Some(Err(_)) => break StoredEnd::Broken,
                Some(Ok(piece)) => {
                    let mut answer = self.answer.lock();
                    answer.bytes = answer.bytes.saturating_add(piece.len());
                    if answer.bytes > MAX_ANSWER_BYTES {
                        break StoredEnd::TooLong;
                    }
                    answer.pieces.push(piece);
                    drop(answer);
                    self.notify();
                }
            }
        };
        self.end(end);
    }

    fn notify(&self) {
        self.changes.send_modify(|count| *count = count.saturating_add(1));
    }

    fn end(&self, end: StoredEnd) {
        self.answer.lock().end.get_or_insert(end);
        self.notify();
    }

    /// Waits until the call is stopped, or no client has read it for [`ABANDONED_AFTER`].
    async fn given_up(&self) -> StoredEnd {
        let abandoned = async {
            loop {
                self.changes.closed().await;
                tokio::time::sleep(ABANDONED_AFTER).await;
                if self.changes.is_closed() {
                    return;
                }
            }
        };
        tokio::select! {
            () = self.stop.cancelled() => StoredEnd::Stopped,
            () = abandoned => StoredEnd::Abandoned,
        }
    }

    /// Waits for status and headers. `None` if the call ended before them.
    pub(crate) async fn head(&self) -> Option<StoredHead> {
        let mut changes = self.changes.subscribe();
        loop {
            {
                let answer = self.answer.lock();
                if answer.head.is_some() || answer.end.is_some() {
                    return answer.head.clone();
                }
            }
            changes.changed().await.ok()?;
        }
    }

    /// Reads the answer from its first byte, as it arrives. If the answer is incomplete, an event stream ends with an
    /// event that says why, and any other answer ends with an error.
    pub(crate) fn read(self: &Arc<Self>) -> StoredAnswerReader {
        let changes = self.changes.subscribe();
        let play = Arc::clone(self);
        let pieces =
            futures_util::stream::unfold((play, changes, 0_usize), |(play, mut changes, at)| async move {
                loop {
                    let (piece, end, is_events) = {
                        let answer = play.answer.lock();
                        let head = answer.head.as_ref();
                        let is_events = head.is_some_and(|head| head.content_type.starts_with(EVENT_STREAM));
                        (answer.pieces.get(at).cloned(), answer.end, is_events)
                    };
                    let piece = match (piece, end) {
                        (Some(piece), _) => return Some((Ok(piece), (play, changes, at.saturating_add(1)))),
                        // The error event was already read.
                        (None, Some(_)) if at == usize::MAX => return None,
                        (None, Some(end)) => match end.fault()? {
                            fault if is_events => Ok(last_event(&fault)),
                            fault => Err(std::io::Error::other(fault)),
                        },
                        (None, None) => {
                            changes.changed().await.ok()?;
                            continue;
                        }
                    };
                    return Some((piece, (play, changes, usize::MAX)));
                }
            });
        StoredAnswerReader { pieces: Box::pin(pieces) }
    }
}

/// An answer that is being read.
pub(crate) struct StoredAnswerReader {
    pieces: Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send>>,
}

impl Stream for StoredAnswerReader {
    type Item = std::io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.pieces.as_mut().poll_next(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    const NOW: UnixNanos = UnixNanos::new(1_000_000_000_000);

    fn key(operator: &str, key: &str) -> PlayKey {
        (OperatorId::new(operator).unwrap(), key.to_owned())
    }

    fn of(body: &str) -> blake3::Hash {
        blake3::hash(body.as_bytes())
    }

    fn played(body: mpsc::Receiver<Bytes>) -> PlaygroundAnswer {
        let pieces = futures_util::stream::unfold(body, |mut body| async move {
            body.recv().await.map(|piece| (Ok(piece), body))
        });
        PlaygroundAnswer {
            status: 200,
            content_type: "text/event-stream",
            headers: Vec::new(),
            body: Box::pin(pieces),
        }
    }

    async fn whole(play: &Arc<StoredCall>) -> Result<String, String> {
        let mut text = String::new();
        let mut reading = play.read();
        while let Some(piece) = reading.next().await {
            match piece {
                Ok(piece) => text.push_str(std::str::from_utf8(&piece).unwrap()),
                Err(_) => return Err(text),
            }
        }
        Ok(text)
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_back_reads_the_same_answer_from_its_first_byte() {
        let plays = StoredAnswers::default();
        let PlayEntry::New(play) = plays.enter(key("op_a", "1"), of("x"), NOW) else { panic!() };
        let (send, body) = mpsc::channel(8);
        let making = tokio::spawn(Arc::clone(&play).take_in(async { played(body) }));
        send.send("one ".into()).await.unwrap();
        let mut first = play.read();
        assert_eq!(first.next().await.unwrap().unwrap(), "one ");
        // The page is reloaded.
        drop(first);
        tokio::time::sleep(ABANDONED_AFTER / 2).await;
        let PlayEntry::Again(again) = plays.enter(key("op_a", "1"), of("x"), NOW) else { panic!() };
        let reading = tokio::spawn(async move { whole(&again).await });
        tokio::time::sleep(ABANDONED_AFTER * 2).await;
        send.send("two".into()).await.unwrap();
        drop(send);
        assert_eq!(reading.await.unwrap(), Ok("one two".to_owned()));
        making.await.unwrap();
        assert_eq!(whole(&play).await, Ok("one two".to_owned()), "and once it is over");
        assert!(matches!(plays.enter(key("op_a", "1"), of("y"), NOW), PlayEntry::OtherBody));
        assert!(
            matches!(plays.enter(key("op_b", "1"), of("y"), NOW), PlayEntry::New(_)),
            "keys are each operator's own"
        );
        assert!(
            matches!(plays.enter(key("op_a", "1"), of("y"), NOW.after(KEPT)), PlayEntry::New(_)),
            "forgotten"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_stopped_or_abandoned_is_let_go_of() {
        let plays = StoredAnswers::default();
        for stopped in [true, false] {
            let name = key("op_a", if stopped { "stopped" } else { "abandoned" });
            let PlayEntry::New(play) = plays.enter(name.clone(), of("x"), NOW) else { panic!() };
            let (send, body) = mpsc::channel(8);
            let making = tokio::spawn(Arc::clone(&play).take_in(async { played(body) }));
            send.send("one".into()).await.unwrap();
            let mut reading = play.read();
            reading.next().await.unwrap().unwrap();
            if stopped {
                assert!(plays.stop(&name));
            } else {
                drop(reading);
            }
            making.await.unwrap();
            assert!(send.send("two".into()).await.is_err(), "the call's client went away");
            let why = if stopped { "stopped by its operator" } else { "no page read the answer" };
            // A reloaded page reads the same end.
            for _ in 0..2 {
                let text = whole(&play).await.unwrap();
                let (events, last) = text.split_once("event: error\ndata: ").unwrap();
                let error: serde_json::Value =
                    serde_json::from_str(last.strip_suffix("\n\n").unwrap()).unwrap();
                assert_eq!((events, &error["error"]["code"]), ("one", &serde_json::json!("stopped")));
                assert!(error["error"]["message"].as_str().unwrap().contains(why), "{error}");
            }
        }
        assert!(!plays.stop(&key("op_a", "none")));
    }

    #[tokio::test]
    async fn an_answer_that_is_no_stream_of_events_breaks_off() {
        let plays = StoredAnswers::default();
        let PlayEntry::New(play) = plays.enter(key("op_a", "k"), of("x"), NOW) else { panic!() };
        let (send, body) = mpsc::channel(8);
        let json = PlaygroundAnswer { content_type: "application/json", ..played(body) };
        let making = tokio::spawn(Arc::clone(&play).take_in(async { json }));
        send.send("{\"a\"".into()).await.unwrap();
        let mut reading = play.read();
        reading.next().await.unwrap().unwrap();
        assert!(plays.stop(&key("op_a", "k")));
        making.await.unwrap();
        assert!(reading.next().await.unwrap().is_err(), "half an object does not look whole");
        assert!(reading.next().await.is_none());
    }

    #[tokio::test]
    async fn answers_are_bounded_in_number_and_length() {
        let plays = StoredAnswers::default();
        for n in 0..MAX_PLAYS_PER_OPERATOR {
            assert!(
                matches!(plays.enter(key("op_a", &n.to_string()), of("x"), NOW), PlayEntry::New(_)),
                "{n}"
            );
        }
        assert!(matches!(plays.enter(key("op_a", "more"), of("x"), NOW), PlayEntry::Full));
        let PlayEntry::Again(long) = plays.enter(key("op_a", "0"), of("x"), NOW) else { panic!() };
        let _listens = long.read();
        let (send, body) = mpsc::channel(8);
        let making = tokio::spawn(Arc::clone(&long).take_in(async { played(body) }));
        while send.send(Bytes::from(vec![b'a'; 1024 * 1024])).await.is_ok() {}
        making.await.unwrap();
        assert!(long.answer.lock().pieces.iter().map(Bytes::len).sum::<usize>() <= MAX_ANSWER_BYTES);
        assert!(
            matches!(plays.enter(key("op_a", "more"), of("x"), NOW), PlayEntry::New(_)),
            "one that is over gives way"
        );
    }
}
