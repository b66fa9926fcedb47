//! A server's prefix cache as its events describe it: events in order and without gaps, or a notice that some were
//! missed. Must not know an index or how servers are chosen.

mod batch;
mod order;
mod zmtp;

use std::sync::Weak;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::cache::batch::KvEvent;
pub use crate::cache::batch::{StoredBlocks, StoredLabel};
use crate::cache::order::{EventOrder, EventPosition};
use crate::cache::zmtp::{ZmtpPeer, ZmtpRole};
use crate::cache_feed::{CacheFeed, host};
use crate::server::UpstreamServer;

/// How often the follower checks whether the server is still in use.
const TICK: Duration = Duration::from_secs(1);
/// First delay before a reconnection. Each further delay is twice as long.
const AGAIN: Duration = Duration::from_millis(250);
const AGAIN_MOST: Duration = Duration::from_secs(15);
/// Maximum wait for the next message of a replay.
const REPLAY_WAIT: Duration = Duration::from_secs(5);
/// Minimum time between two replay requests.
const REPLAY_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of blocks reported at once. Placing calls waits while they are processed.
const PIECE: usize = 256;
/// Event number that ends a replay.
const REPLAY_END: u64 = u64::MAX;

/// A change in a server's prefix cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheEvent {
    /// Earlier events no longer count. `whole`: the events that follow describe the complete cache.
    Begins {
        /// Whether the events that follow describe the complete cache.
        whole: bool,
    },
    /// Blocks were stored.
    Stored(StoredBlocks),
    /// Blocks were evicted, by the server's own hashes.
    Removed(Vec<u128>),
    /// All blocks were evicted.
    Cleared,
    /// The state of the cache is unknown, because the server's feed is disconnected.
    Unknown,
}

/// Follows a server's events until the server is no longer in use. Returns at once if it publishes none.
pub(crate) async fn follow(server: Weak<UpstreamServer>, mut tell: impl FnMut(CacheEvent) + Send) {
    let mut again = AGAIN;
    loop {
        let Some(feed) = server.upgrade().and_then(|server| server.spec.cache_feed.clone()) else { return };
        let mut follower = CacheFollower {
            feed,
            server: server.clone(),
            tell: &mut tell,
            order: EventOrder::default(),
            asked: None,
        };
        let why = follower.hear().await;
        let heard = follower.order.has_begun();
        tell(CacheEvent::Unknown);
        let Some(server) = server.upgrade() else { return };
        *server.cache_fault.lock() = Some(why);
        drop(server);
        again = if heard { AGAIN } else { again.saturating_mul(2).min(AGAIN_MOST) };
        tokio::time::sleep(again).await;
    }
}

/// The events of one connection.
struct CacheFollower<'a, F> {
    feed: CacheFeed,
    server: Weak<UpstreamServer>,
    tell: &'a mut F,
    order: EventOrder,
    /// Time of the last replay request.
    asked: Option<Instant>,
}

impl<F: FnMut(CacheEvent)> CacheFollower<'_, F> {
    /// Follows the events of one connection. Returns why it ended.
    async fn hear(&mut self) -> String {
        match self.try_to_hear().await {
            Ok(never) => match never {},
            Err(why) => why,
        }
    }

    async fn try_to_hear(&mut self) -> Result<std::convert::Infallible, String> {
        // Events that are published during the replay wait on this connection.
        let mut live = ZmtpPeer::connect(host(&self.feed.events)?, ZmtpRole::Subscriber).await?;
        if let Some(server) = self.server.upgrade() {
            *server.cache_fault.lock() = None;
        }
        self.replay(0).await;
        loop {
            let Ok(message) = timeout(TICK, live.message()).await else {
                if self.server.strong_count() == 0 {
                    return Err("it is not needed any longer".to_owned());
                }
                continue;
            };
            let message = message?;
            let [_topic, number, payload] = message.as_slice() else {
                self.begin_anew("a message that is no event");
                continue;
            };
            let Some(number) = number_of(number) else {
                self.begin_anew("an event without its number");
                continue;
            };
            self.live(number, payload).await;
        }
    }

    async fn live(&mut self, number: u64, payload: &[u8]) {
        let from = match self.order.live(number) {
            EventPosition::Known => return,
            EventPosition::Follows => return self.take(number, payload),
            EventPosition::Missed { from } => from,
        };
        // A replay also includes this event.
        if self.replay(from).await && self.order.has(number) {
            return;
        }
        (self.tell)(CacheEvent::Begins { whole: number == 0 });
        self.take(number, payload);
    }

    /// Applies a batch that directly follows the previous one.
    fn take(&mut self, number: u64, payload: &[u8]) {
        self.order.taken(number);
        match batch::read(payload) {
            Ok(said) => said.into_iter().for_each(|said| self.said(said)),
            Err(why) => self.begin_anew(&format!("what is no batch of events: {why}")),
        }
    }

    fn said(&mut self, said: KvEvent) {
        match said {
            KvEvent::Stored(stored) => pieces(stored, |piece| (self.tell)(CacheEvent::Stored(piece))),
            KvEvent::Removed(blocks) => (self.tell)(CacheEvent::Removed(blocks)),
            KvEvent::Cleared => (self.tell)(CacheEvent::Cleared),
            KvEvent::Other => {}
        }
    }

    /// Starts over because a message cannot be read and its changes are unknown.
    fn begin_anew(&mut self, why: &str) {
        if let Some(server) = self.server.upgrade() {
            *server.cache_fault.lock() = Some(format!("{} sent {why}", self.feed.events));
        }
        (self.tell)(CacheEvent::Begins { whole: false });
    }

    /// Requests a replay from an event number on. Returns `false` if no complete replay is available. A replay from 0
    /// accepts the events that the server still has.
    async fn replay(&mut self, from: u64) -> bool {
        let Some(replay) = self.feed.replay.clone() else { return false };
        if self.asked.is_some_and(|asked| asked.elapsed() < REPLAY_EVERY) {
            return false;
        }
        self.asked = Some(Instant::now());
        match self.replayed(&replay, from).await {
            Ok(all) => all,
            Err(why) => {
                if let Some(server) = self.server.upgrade() {
                    *server.cache_fault.lock() = Some(format!("the events were not replayed: {why}"));
                }
                false
            }
        }
    }

    async fn replayed(&mut self, replay: &str, from: u64) -> Result<bool, String> {
        let mut peer = ZmtpPeer::connect(host(replay)?, ZmtpRole::Dealer).await?;
        peer.send(&[b"", &from.to_be_bytes()]).await?;
        let mut next = from;
        loop {
            let message = timeout(REPLAY_WAIT, peer.message()).await;
            let message = message
                .map_err(|_| format!("{replay} did not continue within {} s", REPLAY_WAIT.as_secs()))??;
            let [delimiter, number, payload] = message.as_slice() else {
                return Err(format!("{replay} answered something that is no event"));
            };
            let number = number_of(number).filter(|_| delimiter.is_empty());
            let number = number.ok_or_else(|| format!("{replay} answered an event without its number"))?;
            if number == REPLAY_END {
                if next == 0 {
                    // The server has never published an event.
                    (self.tell)(CacheEvent::Begins { whole: true });
                    self.order.begin();
                }
                return Ok(next > from || from == 0);
            }
            let first = next == from;
            if number != next && !(first && from == 0) {
                return Err(format!("{replay} has no event {next} any longer"));
            }
            let said = batch::read(payload)?;
            if first && from == 0 {
                (self.tell)(CacheEvent::Begins { whole: number == 0 });
            }
            self.order.taken(number);
            said.into_iter().for_each(|said| self.said(said));
            next = number + 1;
        }
    }
}

fn number_of(frame: &[u8]) -> Option<u64> {
    frame.try_into().ok().map(u64::from_be_bytes)
}

/// Reports many blocks in several pieces. Each piece is the child of the one before it.
fn pieces(stored: StoredBlocks, mut tell: impl FnMut(StoredBlocks)) {
    if stored.blocks.len() <= PIECE {
        return tell(stored);
    }
    let StoredBlocks { mut parent, blocks, tokens, block_tokens, label } = stored;
    for (blocks, tokens) in blocks.chunks(PIECE).zip(tokens.chunks(PIECE * block_tokens)) {
        tell(StoredBlocks { parent, blocks: blocks.to_vec(), tokens: tokens.to_vec(), block_tokens, label });
        parent = blocks.last().copied();
    }
}
