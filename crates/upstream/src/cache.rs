//! What a server tells of its cache: its events, in order and without gaps, or word that something was missed. Knows no index and
//! no choice between servers.

mod batch;
pub(crate) mod feed;
mod order;
mod zmtp;

use std::sync::Weak;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::cache::batch::Said;
pub use crate::cache::batch::{StoredBlocks, StoredLabel};
pub use crate::cache::feed::CacheFeed;
use crate::cache::feed::host;
use crate::cache::order::{Next, Order};
use crate::cache::zmtp::{Peer, Role};
use crate::server::Server;

/// How often it is looked whether anybody still needs the server.
const TICK: Duration = Duration::from_secs(1);
/// The first wait before another connection; each is twice as long as the one before.
const AGAIN: Duration = Duration::from_millis(250);
const AGAIN_MOST: Duration = Duration::from_secs(15);
/// The longest wait for the next part of a replay.
const REPLAY_WAIT: Duration = Duration::from_secs(5);
/// Replays are not asked for more often.
const REPLAY_EVERY: Duration = Duration::from_secs(1);
/// Blocks that are told together, at most: whoever places calls waits for as long as they are taken in.
const PIECE: usize = 256;
/// Ends a replay.
const REPLAY_END: u64 = u64::MAX;

/// What a server tells of its cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheEvent {
    /// What was told before counts no longer. `whole`: what follows is all that is in its cache.
    Begins {
        /// See above.
        whole: bool,
    },
    /// Blocks were stored.
    Stored(StoredBlocks),
    /// Blocks were given up, by the server's own hashes.
    Removed(Vec<u128>),
    /// All blocks were given up.
    Cleared,
    /// Nothing is told any longer: it is not reached.
    Unknown,
}

/// Hears a server's events until nobody needs the server any longer. Ends at once where it publishes none.
pub(crate) async fn follow(server: Weak<Server>, mut tell: impl FnMut(CacheEvent) + Send) {
    let mut again = AGAIN;
    loop {
        let Some(feed) = server.upgrade().and_then(|server| server.spec.cache_feed.clone()) else { return };
        let mut follower =
            Follower { feed, server: server.clone(), tell: &mut tell, order: Order::default(), asked: None };
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

/// One connection's worth of events.
struct Follower<'a, F> {
    feed: CacheFeed,
    server: Weak<Server>,
    tell: &'a mut F,
    order: Order,
    /// When a replay was asked for last.
    asked: Option<Instant>,
}

impl<F: FnMut(CacheEvent)> Follower<'_, F> {
    /// Hears what comes on one connection; why it is over.
    async fn hear(&mut self) -> String {
        match self.try_to_hear().await {
            Ok(never) => match never {},
            Err(why) => why,
        }
    }

    async fn try_to_hear(&mut self) -> Result<std::convert::Infallible, String> {
        // What is published meanwhile waits on this connection.
        let mut live = Peer::connect(host(&self.feed.events)?, Role::Subscriber).await?;
        if let Some(server) = self.server.upgrade() {
            *server.cache_fault.lock() = None;
        }
        self.replay(0).await;
        loop {
            let Ok(message) = timeout(TICK, live.message()).await else {
                if self.server.strong_count() == 0 {
                    return Err("nobody needs it any longer".to_owned());
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
            Next::Known => return,
            Next::Follows => return self.take(number, payload),
            Next::Missed { from } => from,
        };
        // What a replay brings has this one in it.
        if self.replay(from).await && self.order.has(number) {
            return;
        }
        (self.tell)(CacheEvent::Begins { whole: number == 0 });
        self.take(number, payload);
    }

    /// Takes in a batch that follows what was taken in before.
    fn take(&mut self, number: u64, payload: &[u8]) {
        self.order.taken(number);
        match batch::read(payload) {
            Ok(said) => said.into_iter().for_each(|said| self.said(said)),
            Err(why) => self.begin_anew(&format!("what is no batch of events: {why}")),
        }
    }

    fn said(&mut self, said: Said) {
        match said {
            Said::Stored(stored) => pieces(stored, |piece| (self.tell)(CacheEvent::Stored(piece))),
            Said::Removed(blocks) => (self.tell)(CacheEvent::Removed(blocks)),
            Said::Cleared => (self.tell)(CacheEvent::Cleared),
            Said::Other => {}
        }
    }

    /// Something cannot be read: what it changed is not known.
    fn begin_anew(&mut self, why: &str) {
        if let Some(server) = self.server.upgrade() {
            *server.cache_fault.lock() = Some(format!("{} sent {why}", self.feed.events));
        }
        (self.tell)(CacheEvent::Begins { whole: false });
    }

    /// Has events told again from a number on. `false`: not all of them can be had; from 0 on those that can are taken.
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
                    *server.cache_fault.lock() = Some(format!("nothing was told again: {why}"));
                }
                false
            }
        }
    }

    async fn replayed(&mut self, replay: &str, from: u64) -> Result<bool, String> {
        let mut peer = Peer::connect(host(replay)?, Role::Dealer).await?;
        peer.send(&[b"", &from.to_be_bytes()]).await?;
        let mut next = from;
        loop {
            let message = timeout(REPLAY_WAIT, peer.message()).await;
            let message = message
                .map_err(|_| format!("{replay} did not go on within {} s", REPLAY_WAIT.as_secs()))??;
            let [delimiter, number, payload] = message.as_slice() else {
                return Err(format!("{replay} answered something that is no event"));
            };
            let number = number_of(number).filter(|_| delimiter.is_empty());
            let number = number.ok_or_else(|| format!("{replay} answered an event without its number"))?;
            if number == REPLAY_END {
                if next == 0 {
                    // Nothing was ever published.
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

/// Tells many blocks in several pieces, each after the one before it.
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
