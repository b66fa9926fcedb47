//! The connections of the admin listener: how many may be open, and which one is closed for a new one. Knows no HTTP.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

/// A peer has at most the listener's connections divided by this. If it opens one more, its own oldest one closes.
const PEER_SHARE: usize = 2;

/// The open connections, by number.
pub(crate) struct ConnectionTable {
    most: usize,
    start: Instant,
    table: Mutex<ConnectionRows>,
}

#[derive(Default)]
struct ConnectionRows {
    open: BTreeMap<u64, Arc<AdminConnection>>,
    next: u64,
}

/// One connection, as requests on it see it.
#[derive(Debug)]
pub(crate) struct AdminConnection {
    pub(crate) peer: IpAddr,
    start: Instant,
    /// Requests of operators that are being answered. A connection with any of them is never displaced.
    serving: AtomicUsize,
    /// Milliseconds from `start` to the last begin or end of a request on this connection.
    last_ms: AtomicU64,
    gives_way: Notify,
}

/// A connection's entry in the table, for as long as the connection is open.
pub(crate) struct ConnectionEntry {
    connections: Arc<ConnectionTable>,
    number: u64,
    pub(crate) line: Arc<AdminConnection>,
}

/// A request of an operator that is being answered. It is dropped at the end of the answer.
#[derive(Debug)]
pub(crate) struct ServingGuard(Arc<AdminConnection>);

impl ConnectionTable {
    /// Makes a table for `most` connections.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, start: Instant::now(), table: Mutex::default() })
    }

    /// Adds a connection. If there are too many, in total or from this peer, displaces the one that has had no
    /// operator's request for longest. Returns `None` if none may be displaced.
    pub(crate) fn add(self: &Arc<Self>, peer: IpAddr) -> Option<ConnectionEntry> {
        let same = |line: &AdminConnection| network(line.peer) == network(peer);
        let mut table = self.table();
        let of_peer = table.open.values().filter(|line| same(line)).count();
        if of_peer >= self.most.div_ceil(PEER_SHARE) {
            table.displace(same)?;
        } else if table.open.len() >= self.most {
            table.displace(|_| true)?;
        }
        let line = AdminConnection::new(peer, self.start);
        let number = table.next;
        table.next = number.saturating_add(1);
        table.open.insert(number, Arc::clone(&line));
        drop(table);
        Some(ConnectionEntry { connections: Arc::clone(self), number, line })
    }

    /// Displaces up to `most` connections, because their file descriptors are needed.
    pub(crate) fn displace_up_to(&self, most: usize) {
        let mut table = self.table();
        for _ in 0..most {
            if table.displace(|_| true).is_none() {
                return;
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, ConnectionRows> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionRows {
    fn displace(&mut self, may: impl Fn(&AdminConnection) -> bool) -> Option<()> {
        let of = |line: &AdminConnection| line.serving.load(Ordering::Acquire) == 0 && may(line);
        let candidates = self.open.iter().filter(|(_, line)| of(line));
        let (number, _) = candidates.min_by_key(|(_, line)| line.last_ms.load(Ordering::Acquire))?;
        let number = *number;
        // The entry is free at once. The connection closes when its task receives the notification.
        self.open.remove(&number)?.gives_way.notify_one();
        Some(())
    }
}

impl AdminConnection {
    /// Makes a connection that is in no table.
    #[cfg(test)]
    pub(crate) fn of(peer: IpAddr) -> Arc<Self> {
        Self::new(peer, Instant::now())
    }

    fn new(peer: IpAddr, start: Instant) -> Arc<Self> {
        let (serving, last_ms) = (AtomicUsize::new(0), AtomicU64::new(0));
        let line = Self { peer, start, serving, last_ms, gives_way: Notify::new() };
        line.touch();
        Arc::new(line)
    }

    /// Records that a request began or ended now.
    pub(crate) fn touch(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(now, Ordering::Release);
    }

    /// Marks that an operator's request is being answered, until the result is dropped.
    pub(crate) fn serve(self: &Arc<Self>) -> ServingGuard {
        self.serving.fetch_add(1, Ordering::AcqRel);
        ServingGuard(Arc::clone(self))
    }

    /// Resolves when the connection is displaced and must close.
    pub(crate) async fn gives_way(&self) {
        self.gives_way.notified().await;
    }
}

impl Drop for ServingGuard {
    fn drop(&mut self) {
        self.0.touch();
        self.0.serving.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for ConnectionEntry {
    fn drop(&mut self) {
        self.connections.table().open.remove(&self.number);
    }
}

/// Returns what counts as one peer: an IPv4 address, or the /64 network of an IPv6 address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let prefix = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(prefix.into())
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    async fn is_asked_to_go(entry: &ConnectionEntry) -> bool {
        tokio::time::timeout(Duration::ZERO, entry.line.gives_way()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_without_an_operator_gives_way() {
        let connections = ConnectionTable::new(8);
        let mut held = Vec::new();
        for peer in [ONE, ONE, ONE, ONE, OTHER, OTHER, OTHER, OTHER] {
            held.push(connections.add(peer).unwrap());
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        let serving: Vec<_> = held.iter().take(2).map(|entry| entry.line.serve()).collect();
        let next = connections.add(ONE).unwrap();
        assert_eq!(connections.table().open.len(), 8);
        assert!(is_asked_to_go(&held[2]).await, "of its own peer, the oldest that serves no operator");
        assert!(!is_asked_to_go(&held[0]).await && !is_asked_to_go(&held[4]).await);
        let third = "10.0.0.3".parse().unwrap();
        let last = connections.add(third).unwrap();
        assert!(is_asked_to_go(&held[3]).await, "of all, the oldest");
        drop(serving);
        tokio::time::advance(Duration::from_millis(10)).await;
        connections.displace_up_to(100);
        assert!(connections.table().open.is_empty());
        assert!(is_asked_to_go(&last).await && is_asked_to_go(&next).await && is_asked_to_go(&held[0]).await);
    }

    #[tokio::test(start_paused = true)]
    async fn where_all_serve_operators_none_gives_way() {
        let connections = ConnectionTable::new(2);
        let held = [connections.add(ONE).unwrap(), connections.add(OTHER).unwrap()];
        let _serving: Vec<_> = held.iter().map(|entry| entry.line.serve()).collect();
        assert!(connections.add("10.0.0.3".parse().unwrap()).is_none());
    }
}
