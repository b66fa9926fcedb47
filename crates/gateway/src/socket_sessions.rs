//! The sessions of open responses sockets, by id. A session lasts as long as the admission of its handshake, so an edge
//! that bounds its sockets bounds the sessions, too.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use headrace_call_api::SessionId;
use headrace_domain::KeyId;
use parking_lot::RwLock;

/// The open sessions. `S` is the state of one, and its clones share it.
#[derive(Default)]
pub(crate) struct SocketSessions<S> {
    open: RwLock<HashMap<SessionId, KeyedSession<S>>>,
    next: AtomicU64,
}

/// The state of a session, and the key that opened it.
struct KeyedSession<S> {
    key: KeyId,
    state: S,
}

/// An open session. Dropping it ends the session.
pub(crate) struct OpenSession<S> {
    sessions: Arc<SocketSessions<S>>,
    id: SessionId,
    key: KeyId,
}

impl<S: Clone + Default> SocketSessions<S> {
    /// Opens a session for a socket of `key`.
    pub(crate) fn open(self: &Arc<Self>, key: KeyId) -> OpenSession<S> {
        let id = SessionId::new(self.next.fetch_add(1, Ordering::Relaxed));
        self.open.write().insert(id, KeyedSession { key: key.clone(), state: S::default() });
        OpenSession { sessions: Arc::clone(self), id, key }
    }

    /// Returns the state of an open session, whichever key opened it.
    pub(crate) fn find(&self, id: SessionId) -> Option<S> {
        self.open.read().get(&id).map(|session| session.state.clone())
    }

    /// Returns the state of an open session that `key` opened.
    pub(crate) fn find_of(&self, key: &KeyId, id: SessionId) -> Option<S> {
        self.open.read().get(&id).filter(|session| session.key == *key).map(|session| session.state.clone())
    }
}

impl<S> OpenSession<S> {
    pub(crate) const fn id(&self) -> SessionId {
        self.id
    }

    /// The key that opened the socket.
    pub(crate) const fn key(&self) -> &KeyId {
        &self.key
    }
}

impl<S> Drop for OpenSession<S> {
    fn drop(&mut self) {
        self.sessions.open.write().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_found_until_its_handshake_is_dropped() {
        let sessions = Arc::new(SocketSessions::<()>::default());
        let open = |key| sessions.open(KeyId::new(key).unwrap());
        let (first, second) = (open("a"), open("a"));
        assert_ne!(first.id(), second.id());
        let id = first.id();
        assert!(sessions.find(id).is_some());
        drop(first);
        assert!(sessions.find(id).is_none() && sessions.find(second.id()).is_some());
        let other = KeyId::new("b").unwrap();
        assert!(sessions.find_of(second.key(), second.id()).is_some());
        assert!(sessions.find_of(&other, second.id()).is_none());
        drop(second);
        assert!(sessions.open.read().is_empty());
    }
}
