//! The connections that are open: how many there may be, of one peer and in all, and which one gives way to a new one.
//! Knows nothing of what they carry.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::activity::{Activity, Wish};
use crate::peer::{Allowances, Peer};

/// Connections that are looked at when one must give way.
const MOST_LOOKED_AT: usize = 4_096;
/// All places divided by this are kept for peers with few connections: with fewer than the kept places.
const KEPT_SHARE: usize = 16;

/// See the top of the file.
pub(crate) struct Registry {
    most: usize,
    most_of_peer: usize,
    allowances: Allowances,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// By number, so the oldest first.
    open: BTreeMap<u64, Entry>,
    of_peer: HashMap<Peer, usize>,
    next: u64,
    /// Where the last search for one that gives way ended.
    looked_to: u64,
    /// The server takes connections for a while only: each new one is asked to close after its next answer.
    retires: bool,
}

struct Entry {
    peer: Peer,
    activity: Arc<Activity>,
}

/// A connection's place in the registry, for as long as it is open and has not given way.
pub(crate) struct Registered {
    registry: Arc<Registry>,
    number: u64,
    pub(crate) activity: Arc<Activity>,
}

/// Why a connection finds no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// Its peer has as many as one may, and all of them are at work.
    OfPeer(usize),
    /// There are as many as there may be, and all of them are at work.
    All(usize),
}

impl Registry {
    /// With so many places, so many of them for one peer, and so many refusals a minute for one peer.
    pub(crate) fn new(most: usize, most_of_peer: usize, refusals_per_minute: u32) -> Arc<Self> {
        let allowances = Allowances::new(refusals_per_minute);
        Arc::new(Self { most, most_of_peer, allowances, table: Mutex::default() })
    }

    /// A place for a new connection. When there is none left, the connection that has been idle longest gives way; one
    /// with a request in flight never does. The last places are for peers that have few connections.
    pub(crate) fn register(self: &Arc<Self>, peer: Peer) -> Result<Registered, Full> {
        let allowance = self.allowances.of(peer);
        let mut table = self.table();
        // Behind a proxy one peer may have them all.
        let kept = if self.most_of_peer >= self.most { 0 } else { self.most / KEPT_SHARE };
        let of_peer = table.of_peer.get(&peer).copied().unwrap_or(0);
        if of_peer >= self.most_of_peer {
            table.displace(|entry| entry.peer == peer).ok_or(Full::OfPeer(self.most_of_peer))?;
        } else if table.open.len() >= self.most {
            table.displace(|_| true).ok_or(Full::All(self.most))?;
        } else if of_peer >= kept.max(1) && table.open.len() >= self.most - kept {
            table.displace(|_| true).ok_or(Full::OfPeer(of_peer))?;
        }
        let wish = if table.retires { Wish::Retire } else { Wish::Serve };
        let activity = Activity::new(allowance, wish);
        let number = table.next;
        table.next = number.saturating_add(1);
        table.open.insert(number, Entry { peer, activity: Arc::clone(&activity) });
        *table.of_peer.entry(peer).or_default() += 1;
        drop(table);
        Ok(Registered { registry: Arc::clone(self), number, activity })
    }

    /// How many connections there may be.
    pub(crate) const fn most(&self) -> usize {
        self.most
    }

    /// Closes up to `most` connections, those that have been idle longest first, because their descriptors are needed.
    pub(crate) fn let_go_of(&self, most: usize) {
        let mut table = self.table();
        for _ in 0..most {
            if table.displace(|_| true).is_none() {
                return;
            }
        }
    }

    /// Asks all connections, those that are still to come among them, to close after their next answer.
    pub(crate) fn retire_all(&self) {
        self.table().retires = true;
        self.wish_all(Wish::Retire);
    }

    /// Asks all connections for the same; returns how many there are.
    pub(crate) fn wish_all(&self, wish: Wish) -> usize {
        let table = self.table();
        for entry in table.open.values() {
            entry.activity.wish(wish);
        }
        table.open.len()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Has the connection give way that has been idle longest of those that may: one without a good key before one with, and one that
    /// has been answered before a new one.
    fn displace(&mut self, may: impl Fn(&Entry) -> bool) -> Option<()> {
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
        // Its place is free at once; it closes when its task sees the wish.
        self.remove(number)?.activity.wish(Wish::Yield);
        Some(())
    }

    fn remove(&mut self, number: u64) -> Option<Entry> {
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

impl Drop for Registered {
    fn drop(&mut self) {
        self.registry.table().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ONE: Peer = Peer::V4([10, 0, 0, 1]);
    const OTHER: Peer = Peer::V4([10, 0, 0, 2]);

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_gives_way_and_never_one_at_work() {
        let registry = Registry::new(3, 3, 60);
        let first = registry.register(ONE).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        let second = registry.register(ONE).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        let third = registry.register(OTHER).unwrap();
        // The first says something now and then, which makes the second the longest idle.
        tokio::time::advance(Duration::from_secs(1)).await;
        first.activity.touch();
        let fourth = registry.register(OTHER).unwrap();
        let wishes = [&first, &second, &third, &fourth].map(|one| one.activity.wished());
        assert_eq!(wishes, [Wish::Serve, Wish::Yield, Wish::Serve, Wish::Serve]);
        drop(second);
        assert_eq!(registry.table().open.len(), 3, "its place was given back once");

        let at_work = [&first, &third, &fourth].map(|one| one.activity.request());
        assert_eq!(registry.register(OTHER).err(), Some(Full::All(3)));
        drop(at_work);
        assert!(registry.register(OTHER).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn one_peer_never_has_all_places() {
        let registry = Registry::new(4, 2, 60);
        let held: Vec<_> = (0..2).map(|_| registry.register(ONE).unwrap()).collect();
        let at_work: Vec<_> = held.iter().map(|one| one.activity.request()).collect();
        assert_eq!(registry.register(ONE).err(), Some(Full::OfPeer(2)));
        let other = registry.register(OTHER).unwrap();
        drop(at_work);
        tokio::time::advance(Duration::from_secs(1)).await;
        let third = registry.register(ONE).unwrap();
        assert_eq!(other.activity.wished(), Wish::Serve, "its own connection gives way, not another's");
        assert_eq!(registry.table().of_peer.get(&ONE), Some(&2));
        drop((held, third, other));
        assert!(registry.table().of_peer.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_places_are_for_peers_with_few_connections() {
        let registry = Registry::new(32, 31, 60);
        let busy = |peer| {
            registry.register(peer).map(|one| {
                let work = one.activity.request();
                (one, work)
            })
        };
        let mut held: Vec<_> = (0..30).map(|_| busy(ONE).ok().unwrap()).collect();
        assert_eq!(busy(ONE).err(), Some(Full::OfPeer(30)));
        held.extend([busy(OTHER).ok().unwrap(), busy(OTHER).ok().unwrap()]);
        assert_eq!(busy(OTHER).err(), Some(Full::All(32)));
        // An idle connection still gives way to a peer with many.
        drop(held.pop());
        let idle = registry.register(OTHER).unwrap();
        assert!(busy(ONE).is_ok());
        assert_eq!(idle.activity.wished(), Wish::Yield);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_that_takes_nothing_of_its_answer_gives_way_and_a_caller_does_not() {
        let registry = Registry::new(2, 2, 60);
        let (stranger, caller) = (registry.register(ONE).unwrap(), registry.register(OTHER).unwrap());
        caller.activity.trust();
        for blocked in [&stranger, &caller] {
            blocked.activity.write_blocked();
        }
        let next = registry.register(OTHER).unwrap();
        assert_eq!(stranger.activity.wished(), Wish::Yield);
        let _work = next.activity.request();
        assert_eq!(registry.register(ONE).err(), Some(Full::All(2)));
        assert_eq!(caller.activity.wished(), Wish::Serve);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_gives_way_before_a_caller_that_has_been_idle_for_longer() {
        let registry = Registry::new(2, 2, 60);
        let caller = registry.register(ONE).unwrap();
        caller.activity.trust();
        tokio::time::advance(Duration::from_secs(1)).await;
        let stranger = registry.register(OTHER).unwrap();
        let next = registry.register(OTHER).unwrap();
        assert_eq!((stranger.activity.wished(), caller.activity.wished()), (Wish::Yield, Wish::Serve));
        next.activity.trust();
        drop(stranger);
        let _last = registry.register(ONE).unwrap();
        assert_eq!(
            caller.activity.wished(),
            Wish::Yield,
            "among callers, the one that has been idle for longest"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_gives_way_behind_those_that_were_answered() {
        let registry = Registry::new(3, 3, 60);
        let new = registry.register(ONE).unwrap();
        let answered: Vec<_> = (0..2).map(|_| registry.register(ONE).unwrap()).collect();
        for one in &answered {
            tokio::time::advance(Duration::from_millis(1)).await;
            drop(one.activity.request());
        }
        let wishes = |registered: &[&Registered]| {
            registered.iter().map(|one| one.activity.wished()).collect::<Vec<_>>()
        };
        let _fourth = registry.register(ONE).unwrap();
        assert_eq!(wishes(&[&new, &answered[0], &answered[1]]), [Wish::Serve, Wish::Yield, Wish::Serve]);
        // Not for long: a peer that never asks for anything would hold its place.
        tokio::time::advance(Duration::from_secs(10)).await;
        let _fifth = registry.register(ONE).unwrap();
        assert_eq!(wishes(&[&new, &answered[1]]), [Wish::Yield, Wish::Serve]);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connections_are_let_go_of_when_what_they_hold_is_needed() {
        let registry = Registry::new(8, 8, 60);
        let held: Vec<_> = (0..4).map(|_| registry.register(ONE).unwrap()).collect();
        let _work = held.first().unwrap().activity.request();
        registry.let_go_of(2);
        assert_eq!(held.iter().filter(|one| one.activity.wished() == Wish::Yield).count(), 2);
        registry.let_go_of(100);
        assert_eq!(held.iter().filter(|one| one.activity.wished() == Wish::Yield).count(), 3);
    }
}
