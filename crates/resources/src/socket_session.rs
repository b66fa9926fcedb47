//! The newest response of a WebSocket session, kept in memory while the session is open. The next turn continues from
//! it, whether or not it was stored. If that turn fails, the response is forgotten. One per session, within a bound
//! and within the memory of its key. Knows no session.
//!
//! Source: <https://developers.openai.com/api/docs/guides/websocket-mode>.

use std::sync::Arc;

use headrace_call_api::MemoryReservation;
use headrace_call_state::CallMemory;
use headrace_domain::{KeyId, ProjectId};
use parking_lot::Mutex;
use serde::Deserialize;

/// The most bytes of items that are kept for one session. A longer conversation continues from the store.
const MOST_KEPT_BYTES: usize = 8 << 20;

/// The state of a WebSocket session. Clones share it.
#[derive(Clone, Default)]
pub struct SocketSession(Arc<Mutex<SessionHistory>>);

#[derive(Default)]
struct SessionHistory {
    newest: Option<NewestResponse>,
    /// What the running turn continues from.
    before: SessionPrefix,
}

/// What a turn continues from. Kept until the next turn begins, even if this one fails and its call gives back its
/// memory.
#[derive(Default)]
enum SessionPrefix {
    /// No history.
    #[default]
    Nothing,
    /// These items, with their memory.
    Items { lists: Arc<Vec<String>>, _memory: MemoryReservation },
    /// More than there was memory for. The following turn continues from the store.
    NotKept,
}

/// A response with its whole history.
struct NewestResponse {
    id: String,
    project: ProjectId,
    /// JSON lists of items, oldest first.
    lists: Arc<Vec<String>>,
    /// The memory of the lists. Given back with the session, or by the next turn.
    memory: MemoryReservation,
}

impl SocketSession {
    /// The items of the response with this id and of its history, if it is the newest response.
    pub(crate) fn find(&self, project: &ProjectId, id: &str) -> Option<Arc<Vec<String>>> {
        let kept = self.0.lock();
        let newest = kept.newest.as_ref().filter(|newest| newest.id == id && newest.project == *project);
        newest.map(|newest| Arc::clone(&newest.lists))
    }

    /// Begins a turn. It has no history until [`Self::continue_from`] is called.
    pub fn begun(&self) {
        self.0.lock().before = SessionPrefix::Nothing;
    }

    /// Records the items that the running turn continues from. If it fails, no other turn may continue from them.
    /// What the client did in between, such as running tools, would be lost.
    pub(crate) fn continue_from(&self, lists: Arc<Vec<String>>, memory: &CallMemory, key: &KeyId) {
        let mut kept = self.0.lock();
        kept.before = SessionPrefix::NotKept;
        let reserved = match kept.newest.take() {
            Some(newest) if Arc::ptr_eq(&newest.lists, &lists) => Some(newest.memory),
            other => {
                kept.newest = other;
                let bytes: usize = lists.iter().map(String::len).sum();
                // If they are too long, they are not kept for the following turn either.
                (bytes <= MOST_KEPT_BYTES).then(|| memory.reserve(key, bytes as u64).ok()).flatten()
            }
        };
        if let Some(reserved) = reserved {
            kept.before = SessionPrefix::Items { lists, _memory: reserved };
        }
    }

    /// Handles a turn that was refused before it read any history: the response that it names is forgotten as well.
    pub fn refused(&self, turn: &[u8]) {
        /// The one field that is needed. Other fields, and their errors, are not read into memory.
        #[derive(Deserialize)]
        struct PreviousResponse {
            previous_response_id: Option<String>,
        }
        // `serde` would also accept a list here.
        let turn = Some(turn).filter(|turn| turn.trim_ascii_start().starts_with(b"{"));
        let turn = turn.and_then(|turn| serde_json::from_slice::<PreviousResponse>(turn).ok());
        let previous = turn.and_then(|turn| turn.previous_response_id);
        let mut kept = self.0.lock();
        if kept.newest.as_ref().is_some_and(|newest| Some(&newest.id) == previous.as_ref()) {
            kept.newest = None;
        }
    }

    /// Ends a turn successfully: it becomes the newest one, if there is memory for it.
    pub(crate) fn ended(
        &self,
        (id, project): (String, ProjectId),
        more: [String; 2],
        memory: &CallMemory,
        key: &KeyId,
    ) {
        let mut kept = self.0.lock();
        // The memory of the previous response is free for the new one.
        kept.newest = None;
        let before = match std::mem::take(&mut kept.before) {
            SessionPrefix::Nothing => Arc::default(),
            SessionPrefix::Items { lists, .. } => lists,
            SessionPrefix::NotKept => return,
        };
        let bytes: usize = before.iter().chain(&more).map(String::len).sum();
        if bytes > MOST_KEPT_BYTES {
            return;
        }
        let Ok(memory) = memory.reserve(key, bytes as u64) else { return };
        let mut lists = Arc::unwrap_or_clone(before);
        lists.extend(more);
        kept.newest = Some(NewestResponse { id, project, lists: Arc::new(lists), memory });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headrace_call_state::MemoryBounds;

    #[test]
    fn the_newest_turn_alone_is_kept_within_its_bounds() {
        let memory = CallMemory::new(MemoryBounds { call: 1 << 30, key: 100, all: 1 << 30 });
        let (key, project) = (KeyId::new("k").unwrap(), ProjectId::new("p").unwrap());
        let (turns, other) = (SocketSession::default(), ProjectId::new("q").unwrap());
        let end = |id: &str, bytes: usize| {
            let more = ["x".repeat(bytes), String::new()];
            turns.clone().ended((id.to_owned(), project.clone()), more, &memory, &key);
        };
        end("a", 30);
        let first = turns.find(&project, "a").unwrap();
        assert_eq!((first.len(), memory.taken()), (2, 30));
        assert!(turns.find(&other, "a").is_none() && turns.find(&project, "b").is_none());
        turns.continue_from(first, &memory, &key);
        end("b", 60);
        assert!(turns.find(&project, "a").is_none(), "a newer one took its place");
        let second = turns.find(&project, "b").unwrap();
        assert_eq!((second.len(), memory.taken()), (4, 90));
        // A response that another turn continues, or tried to, is no longer there, however that turn ends.
        turns.continue_from(second, &memory, &key);
        assert!(turns.find(&project, "b").is_none());
        turns.begun();
        end("b", 60);
        for other in [r#"{"previous_response_id":"a"}"#, r#"{"input":"b"}"#, "b", r#"["b"]"#] {
            turns.refused(other.as_bytes());
            assert!(turns.find(&project, "b").is_some());
        }
        turns.refused(br#"{"previous_response_id":"b","x":1}"#);
        assert!(turns.find(&project, "b").is_none());
        turns.begun();
        end("b", 60);
        // The items that a turn continues from keep their memory until the next turn begins, even if this one fails.
        turns.continue_from(Arc::new(vec!["x".repeat(40)]), &memory, &key);
        assert_eq!(memory.taken(), 100);
        turns.begun();
        assert_eq!(memory.taken(), 60);
        // If there is no memory, the following turn finds nothing here.
        turns.continue_from(Arc::new(vec!["x".repeat(41)]), &memory, &key);
        assert_eq!(memory.taken(), 60);
        end("b", 10);
        assert!(turns.find(&project, "b").is_none() && memory.taken() == 0);
        end("b", 60);
        // If a turn does not continue from the previous response, that one is gone. A response that does not fit is
        // not kept, and its memory is free.
        end("c", 101);
        assert!(turns.find(&project, "c").is_none() && turns.find(&project, "b").is_none());
        assert_eq!(memory.taken(), 0);
        end("d", 100);
        assert_eq!(turns.find(&project, "d").unwrap().len(), 2);
        drop(turns);
        assert_eq!(memory.taken(), 0, "given back with the connection");
        let roomy = CallMemory::new(MemoryBounds { call: 1 << 30, key: 1 << 30, all: 1 << 30 });
        let turns = SocketSession::default();
        let long = ["x".repeat(MOST_KEPT_BYTES + 1), String::new()];
        turns.ended(("e".to_owned(), project.clone()), long, &roomy, &key);
        assert!(turns.find(&project, "e").is_none());
    }
}
