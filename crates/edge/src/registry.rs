//! The open connections: limits per peer and in total, and the choice of the one that is displaced by a new one. Must
//! not know what connections carry.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::activity::{ConnectionActivity, ServerWish};
use crate::peer::{PeerKey, RefusalAllowances};

/// Maximum number of connections that are examined when one must be displaced.
const MOST_LOOKED_AT: usize = 4_096;
/// The total number of places divided by this is reserved for peers with fewer connections than that.
const KEPT_SHARE: usize = 16;

/// The open connections and their limits.
pub(crate) struct ConnectionRegistry {
    most: usize,
    most_of_peer: usize,
    allowances: RefusalAllowances,
    table: Mutex<RegistryTable>,
}

#[derive(Default)]
struct RegistryTable {
    /// By number, so the oldest is first.
    open: BTreeMap<u64, RegistryEntry>,
    of_peer: HashMap<PeerKey, usize>,
    next: u64,
    /// Where the last search for a connection to displace ended.
    looked_to: u64,
    /// The server accepts connections only for a while. Each new one is asked to close after its next answer.
    retires: bool,
}

struct RegistryEntry {
    peer: PeerKey,
    activity: Arc<ConnectionActivity>,
}

/// A connection's place in the registry, for as long as it is open and was not displaced.
pub(crate) struct RegisteredConnection {
    registry: Arc<ConnectionRegistry>,
    number: u64,
    pub(crate) activity: Arc<ConnectionActivity>,
}

/// Why no place is available for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RegistryFull {
    /// The peer has its maximum number of connections, and all of them are busy.
    OfPeer(usize),
    /// The total number of connections is reached, and all of them are busy.
    All(usize),
}

impl ConnectionRegistry {
    /// Creates a registry with `most` places in total, `most_of_peer` per peer, and an allowance of refusals per peer
    /// and minute.
    pub(crate) fn new(most: usize, most_of_peer: usize, refusals_per_minute: u32) -> Arc<Self> {
        let allowances = RefusalAllowances::new(refusals_per_minute);
        Arc::new(Self { most, most_of_peer, allowances, table: Mutex::default() })
    }

    /// Takes a place for a new connection. If none is left, the connection that has been idle longest is displaced. A
    /// connection with a request in flight is never displaced. The last places are reserved for peers with few
    /// connections.
    pub(crate) fn register(self: &Arc<Self>, peer: PeerKey) -> Result<RegisteredConnection, RegistryFull> {
        let allowance = self.allowances.of(peer);
        let mut table = self.table();
        // Behind a proxy, one peer may have all connections.
        let kept = if self.most_of_peer >= self.most { 0 } else { self.most / KEPT_SHARE };
        let of_peer = table.of_peer.get(&peer).copied().unwrap_or(0);
        if of_peer >= self.most_of_peer {
            table.displace(|entry| entry.peer == peer).ok_or(RegistryFull::OfPeer(self.most_of_peer))?;
        } else if table.open.len() >= self.most {
            table.displace(|_| true).ok_or(RegistryFull::All(self.most))?;
        } else if of_peer >= kept.max(1) && table.open.len() >= self.most - kept {
            table.displace(|_| true).ok_or(RegistryFull::OfPeer(of_peer))?;
        }
        let wish = if table.retires { ServerWish::Retire } else { ServerWish::Serve };
        let activity = ConnectionActivity::new(allowance, wish);
        let number = table.next;
        table.next = number.saturating_add(1);
        table.open.insert(number, RegistryEntry { peer, activity: Arc::clone(&activity) });
        *table.of_peer.entry(peer).or_default() += 1;
        drop(table);
        Ok(RegisteredConnection { registry: Arc::clone(self), number, activity })
    }

    /// Returns the maximum number of connections.
    pub(crate) const fn most(&self) -> usize {
        self.most
    }

    /// Closes up to `most` connections, those that have been idle longest first, because their file descriptors are
    /// needed.
    pub(crate) fn close_idle(&self, most: usize) {
        let mut table = self.table();
        for _ in 0..most {
            if table.displace(|_| true).is_none() {
                return;
            }
        }
    }

    /// Asks all connections, including future ones, to close after their next answer.
    pub(crate) fn retire_all(&self) {
        self.table().retires = true;
        self.wish_all(ServerWish::Retire);
    }

    /// Makes the same wish to all connections. Returns their number.
    pub(crate) fn wish_all(&self, wish: ServerWish) -> usize {
        let table = self.table();
        for entry in table.open.values() {
            entry.activity.wish(wish);
        }
        table.open.len()
    }

    fn table(&self) -> MutexGuard<'_, RegistryTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RegistryTable {
    /// Displaces the connection that has been idle longest among those that `may` accepts. Connections without a valid
    /// key come before those with one, and answered ones before new ones.
    fn displace(&mut self, may: impl Fn(&RegistryEntry) -> bool) -> Option<()> {
        let behind = self.open.range(self.looked_to..);
        let before = self.open.range(..self.looked_to);
        let mut longest = None;
        for (number, entry) in behind.chain(before).filter(|(_, entry)| may(entry)).take(MOST_LOOKED_AT) {
            self.looked_to = number.saturating_add(1);
            if let Some(since) = entry.activity.gives_way_since() {
                let order = (entry.activity.is_trusted(), entry.activity.is_new(), since);
                if longest.is_none_or(|(first, _)| order < first) {
                    longest = Some((order, *number));
                }
            }
        }
        let (_, number) = longest?;
        // The place is free at once. The connection closes when its task sees the wish.
        self.remove(number)?.activity.wish(ServerWish::Yield);
        Some(())
    }

    fn remove(&mut self, number: u64) -> Option<RegistryEntry> {
        let entry = self.open.remove(&number)?;
        if let Some(count) = self.of_peer.get_mut(&entry.peer) {
            *count -= 1;
            if *count == 0 {
                self.of_peer.remove(&entry.peer);
            }
        }
        Some(entry)
    }
}

impl Drop for RegisteredConnection {
    fn drop(&mut self) {
        self.registry.table().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ONE: PeerKey = PeerKey::V4([10, 0, 0, 1]);
    const OTHER: PeerKey = PeerKey::V4([10, 0, 0, 2]);

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_gives_way_and_never_one_at_work() {
        let registry = ConnectionRegistry::new(3, 3, 60);
        let first = registry.register(ONE).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        let second = registry.register(ONE).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        let third = registry.register(OTHER).unwrap();
        // The first connection shows activity, so the second is the one that has been idle longest.
        tokio::time::advance(Duration::from_secs(1)).await;
        first.activity.touch();
        let fourth = registry.register(OTHER).unwrap();
        let wishes = [&first, &second, &third, &fourth].map(|one| one.activity.wished());
        assert_eq!(wishes, [ServerWish::Serve, ServerWish::Yield, ServerWish::Serve, ServerWish::Serve]);
        drop(second);
        assert_eq!(registry.table().open.len(), 3, "its place was given back once");

        let at_work = [&first, &third, &fourth].map(|one| one.activity.request());
        assert_eq!(registry.register(OTHER).err(), Some(RegistryFull::All(3)));
        drop(at_work);
        assert!(registry.register(OTHER).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn one_peer_never_has_all_places() {
        let registry = ConnectionRegistry::new(4, 2, 60);
        let held: Vec<_> = (0..2).map(|_| registry.register(ONE).unwrap()).collect();
        let at_work: Vec<_> = held.iter().map(|one| one.activity.request()).collect();
        assert_eq!(registry.register(ONE).err(), Some(RegistryFull::OfPeer(2)));
        let other = registry.register(OTHER).unwrap();
        drop(at_work);
        tokio::time::advance(Duration::from_secs(1)).await;
        let third = registry.register(ONE).unwrap();
        assert_eq!(other.activity.wished(), ServerWish::Serve, "its own connection gives way, not another's");
        assert_eq!(registry.table().of_peer.get(&ONE), Some(&2));
        drop((held, third, other));
        assert!(registry.table().of_peer.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_places_are_for_peers_with_few_connections() {
        let registry = ConnectionRegistry::new(32, 31, 60);
        let busy = |peer| {
            registry.register(peer).map(|one| {
                let work = one.activity.request();
                (one, work)
            })
        };
        let mut held: Vec<_> = (0..30).map(|_| busy(ONE).ok().unwrap()).collect();
        assert_eq!(busy(ONE).err(), Some(RegistryFull::OfPeer(30)));
        held.extend([busy(OTHER).ok().unwrap(), busy(OTHER).ok().unwrap()]);
        assert_eq!(busy(OTHER).err(), Some(RegistryFull::All(32)));
        // An idle connection is still displaced for a peer that has many.
        drop(held.pop());
        let idle = registry.register(OTHER).unwrap();
        assert!(busy(ONE).is_ok());
        assert_eq!(idle.activity.wished(), ServerWish::Yield);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_that_takes_nothing_of_its_answer_gives_way_and_a_caller_does_not() {
        let registry = ConnectionRegistry::new(2, 2, 60);
        let (stranger, caller) = (registry.register(ONE).unwrap(), registry.register(OTHER).unwrap());
        caller.activity.trust();
        for blocked in [&stranger, &caller] {
            blocked.activity.write_blocked();
        }
        let next = registry.register(OTHER).unwrap();
        assert_eq!(stranger.activity.wished(), ServerWish::Yield);
        let _work = next.activity.request();
        assert_eq!(registry.register(ONE).err(), Some(RegistryFull::All(2)));
        assert_eq!(caller.activity.wished(), ServerWish::Serve);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_gives_way_before_a_caller_that_has_been_idle_for_longer() {
        let registry = ConnectionRegistry::new(2, 2, 60);
        let caller = registry.register(ONE).unwrap();
        caller.activity.trust();
        tokio::time::advance(Duration::from_secs(1)).await;
        let stranger = registry.register(OTHER).unwrap();
        let next = registry.register(OTHER).unwrap();
        assert_eq!(
            (stranger.activity.wished(), caller.activity.wished()),
            (ServerWish::Yield, ServerWish::Serve)
        );
        next.activity.trust();
        drop(stranger);
        let _last = registry.register(ONE).unwrap();
        assert_eq!(
            caller.activity.wished(),
            ServerWish::Yield,
            "among callers, the one that has been idle for longest"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_gives_way_behind_those_that_were_answered() {
        let registry = ConnectionRegistry::new(3, 3, 60);
        let new = registry.register(ONE).unwrap();
        let answered: Vec<_> = (0..2).map(|_| registry.register(ONE).unwrap()).collect();
        for one in &answered {
            tokio::time::advance(Duration::from_millis(1)).await;
            drop(one.activity.request());
        }
        let wishes = |registered: &[&RegisteredConnection]| {
            registered.iter().map(|one| one.activity.wished()).collect::<Vec<_>>()
        };
        let _fourth = registry.register(ONE).unwrap();
        assert_eq!(
            wishes(&[&new, &answered[0], &answered[1]]),
            [ServerWish::Serve, ServerWish::Yield, ServerWish::Serve]
        );
        // A new connection is protected only for a while: a peer that never sends a request would keep its place
        // otherwise.
        tokio::time::advance(Duration::from_secs(10)).await;
        let _fifth = registry.register(ONE).unwrap();
        assert_eq!(wishes(&[&new, &answered[1]]), [ServerWish::Yield, ServerWish::Serve]);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connections_are_closed_when_their_resources_are_needed() {
        let registry = ConnectionRegistry::new(8, 8, 60);
        let held: Vec<_> = (0..4).map(|_| registry.register(ONE).unwrap()).collect();
        let _work = held.first().unwrap().activity.request();
        registry.close_idle(2);
        assert_eq!(held.iter().filter(|one| one.activity.wished() == ServerWish::Yield).count(), 2);
        registry.close_idle(100);
        assert_eq!(held.iter().filter(|one| one.activity.wished() == ServerWish::Yield).count(), 3);
    }
}
