//! Places for WebSockets, by key. No key has more than a share of them. If all are taken, the key with the most gives
//! one to a key with fewer. Must not know what WebSockets carry.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headrace_domain::KeyId;

use crate::activity::{ConnectionActivity, ServerWish};

/// Maximum number of open WebSockets.
pub(crate) const MOST_SOCKETS: usize = 256;
/// Maximum number of open WebSockets per key.
pub(crate) const MOST_SOCKETS_PER_KEY: usize = MOST_SOCKETS / 4;

/// The open WebSockets.
#[derive(Debug)]
pub(crate) struct WebSocketTable {
    table: Mutex<SocketCounts>,
}

#[derive(Debug, Default)]
struct SocketCounts {
    /// Total number of open WebSockets.
    open: usize,
    /// By key and number, so a key's oldest is first. Holds only keys with a WebSocket.
    of_key: HashMap<KeyId, BTreeMap<u64, Arc<ConnectionActivity>>>,
    next: u64,
}

/// A WebSocket's place, until it is dropped or given to another key.
#[derive(Debug)]
pub(crate) struct SocketPlace {
    sockets: Arc<WebSocketTable>,
    key: KeyId,
    number: u64,
}

/// Why no place is available for a WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// The key has this many, which is the maximum per key.
    OfKey(usize),
    /// There are this many in total, and none may be displaced for this key.
    All(usize),
}

impl WebSocketTable {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { table: Mutex::default() })
    }

    /// Takes a place for a WebSocket of `key`. If none is left, an idle WebSocket is displaced: the one that has been
    /// idle longest, of the key with the most. That key must have at least two more than `key`.
    pub(crate) fn take(
        self: &Arc<Self>,
        key: &KeyId,
        activity: &Arc<ConnectionActivity>,
    ) -> Result<SocketPlace, NoPlace> {
        let mut table = self.table();
        let own = table.of_key.get(key).map_or(0, BTreeMap::len);
        if own >= MOST_SOCKETS_PER_KEY {
            return Err(NoPlace::OfKey(own));
        }
        if table.open >= MOST_SOCKETS {
            table.displace(own + 2).ok_or(NoPlace::All(MOST_SOCKETS))?;
        }
        let number = table.next;
        table.next = number.saturating_add(1);
        table.open += 1;
        table.of_key.entry(key.clone()).or_default().insert(number, Arc::clone(activity));
        drop(table);
        Ok(SocketPlace { sockets: Arc::clone(self), key: key.clone(), number })
    }

    fn table(&self) -> MutexGuard<'_, SocketCounts> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SocketCounts {
    /// Displaces an idle WebSocket of a key with at least `least`.
    fn displace(&mut self, least: usize) -> Option<()> {
        let idle_of = |sockets: &BTreeMap<u64, Arc<ConnectionActivity>>| {
            let idle =
                sockets.iter().filter_map(|(number, activity)| Some((activity.idle_since()?, *number)));
            idle.min()
        };
        let keys = self.of_key.iter().filter(|(_, sockets)| sockets.len() >= least);
        let candidates = keys.filter_map(|(key, sockets)| Some((sockets.len(), key, idle_of(sockets)?)));
        let (_, key, (_, number)) = candidates.max_by_key(|(open, ..)| *open)?;
        let key = key.clone();
        // The place is free at once. The WebSocket closes when its task sees the wish.
        self.remove(&key, number)?.wish(ServerWish::Yield);
        Some(())
    }

    fn remove(&mut self, key: &KeyId, number: u64) -> Option<Arc<ConnectionActivity>> {
        let sockets = self.of_key.get_mut(key)?;
        let activity = sockets.remove(&number)?;
        if sockets.is_empty() {
            self.of_key.remove(key);
        }
        self.open = self.open.saturating_sub(1);
        Some(activity)
    }
}

impl SocketPlace {
    /// Returns the key that opened the WebSocket.
    pub(crate) const fn key(&self) -> &KeyId {
        &self.key
    }
}

impl Drop for SocketPlace {
    fn drop(&mut self) {
        self.sockets.table().remove(&self.key, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::{PeerKey, RefusalAllowances};

    struct HeldSocket {
        place: SocketPlace,
        activity: Arc<ConnectionActivity>,
    }

    fn take(sockets: &Arc<WebSocketTable>, key: &str) -> Result<HeldSocket, NoPlace> {
        let activity = ConnectionActivity::new(
            RefusalAllowances::new(60).of(PeerKey::V4([127, 0, 0, 1])),
            ServerWish::Serve,
        );
        let place = sockets.take(&KeyId::new(key).unwrap(), &activity)?;
        Ok(HeldSocket { place, activity })
    }

    /// Takes all places that a key can get. Returns them, and why no further one is available.
    fn all_of(sockets: &Arc<WebSocketTable>, key: &str) -> (Vec<HeldSocket>, NoPlace) {
        let mut held = Vec::new();
        loop {
            match take(sockets, key) {
                Ok(one) => held.push(one),
                Err(why) => return (held, why),
            }
        }
    }

    #[test]
    fn keys_that_hold_all_places_give_one_to_each_newcomer() {
        let sockets = WebSocketTable::new();
        let greedy: Vec<_> = (0..4).map(|n| all_of(&sockets, &format!("greedy-{n}"))).collect();
        assert!(greedy.iter().all(|(held, why)| held.len() == 64 && *why == NoPlace::OfKey(64)));
        let newcomers: Vec<_> = (0..100).map(|n| take(&sockets, &format!("newcomer-{n}")).unwrap()).collect();
        let left = |held: &[HeldSocket]| {
            held.iter().filter(|one| one.activity.wished() == ServerWish::Serve).count()
        };
        let left: Vec<_> = greedy.iter().map(|(held, _)| left(held)).collect();
        assert_eq!(left, [39, 39, 39, 39], "those with the most gave");
        assert!(newcomers.iter().all(|one| one.activity.wished() == ServerWish::Serve));
        assert_eq!(sockets.table().open, MOST_SOCKETS);
        // A displaced WebSocket has no place to give back.
        drop(greedy);
        assert_eq!(sockets.table().open, 100);
        drop(newcomers);
        let table = sockets.table();
        assert!(table.open == 0 && table.of_key.is_empty());
    }

    #[test]
    fn a_socket_with_a_turn_under_way_never_gives_way() {
        let sockets = WebSocketTable::new();
        let greedy: Vec<_> = (0..4).map(|n| all_of(&sockets, &format!("greedy-{n}")).0).collect();
        let turns: Vec<_> = greedy.iter().flatten().map(|one| one.activity.request()).collect();
        assert_eq!(take(&sockets, "newcomer").err(), Some(NoPlace::All(MOST_SOCKETS)));
        drop(turns);
        let one = take(&sockets, "newcomer").unwrap();
        assert_eq!(one.place.key().as_str(), "newcomer");
    }
}
