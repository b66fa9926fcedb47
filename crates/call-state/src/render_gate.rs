//! The gate for long bodies: limits how many bytes of bodies are parsed and rendered concurrently, over all callers
//! and to half of that for one key. Must not know what is read.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::KeyId;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes are counted in units of this size.
const UNIT_BYTES: usize = 1024;
/// The most calls that hold a turn at once, however short. Each takes a thread. With fewer processors, one call per
/// processor, but at least two.
const MOST_CALLS: usize = 64;
/// How long a call waits for its turn.
const MOST_WAIT: Duration = Duration::from_secs(5);

/// The bound, and the calls within it.
pub struct RenderGate {
    most_bytes: usize,
    /// The least bytes that a call counts as.
    least_bytes: usize,
    most_wait: Duration,
    all: Arc<Semaphore>,
    keys: Arc<Mutex<HashMap<KeyId, KeyShare>>>,
}

/// One key's half of the bound. Exists while a call of the key holds or awaits a turn.
struct KeyShare {
    turns: Arc<Semaphore>,
    calls: usize,
}

/// A call's turn. Dropping it frees its share.
pub struct RenderPermit {
    _all: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
    _call: RegisteredCall,
}

/// Registers a call that holds or awaits a turn.
struct RegisteredCall {
    keys: Arc<Mutex<HashMap<KeyId, KeyShare>>>,
    key: KeyId,
}

/// A call got no turn in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoTurn {
    /// `true` if the key's own calls filled its half, `false` if all calls filled the whole.
    pub own: bool,
    /// The size in bytes of the half or of the whole.
    pub limit_bytes: usize,
    /// How long the call waited.
    pub waited: Duration,
}

impl RenderGate {
    /// Creates a gate for `most_bytes` in all on this machine.
    pub fn new(most_bytes: usize) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self::of(most_bytes, processors.clamp(2, MOST_CALLS))
    }

    fn of(most_bytes: usize, most_calls: usize) -> Self {
        let all = Arc::new(Semaphore::new(units(most_bytes)));
        let least_bytes = most_bytes / most_calls;
        Self { most_bytes, least_bytes, most_wait: MOST_WAIT, all, keys: Arc::default() }
    }

    /// Waits for a turn of `bytes`. A call larger than a key's half counts as that half, so that it can proceed.
    pub async fn enter(&self, key: &KeyId, bytes: usize) -> Result<RenderPermit, NoTurn> {
        let part = self.most_bytes / 2;
        let weight = units(bytes.max(self.least_bytes)).min(units(part));
        let weight = u32::try_from(weight).unwrap_or(u32::MAX);
        let (call, turns) = self.register(key, units(part));
        let full = |own, limit_bytes| NoTurn { own, limit_bytes, waited: self.most_wait };
        let until = tokio::time::Instant::now() + self.most_wait;
        let own = tokio::time::timeout_at(until, turns.acquire_many_owned(weight)).await;
        let Ok(Ok(own)) = own else { return Err(full(true, part)) };
        let all = tokio::time::timeout_at(until, Arc::clone(&self.all).acquire_many_owned(weight)).await;
        let Ok(Ok(all)) = all else { return Err(full(false, self.most_bytes)) };
        Ok(RenderPermit { _all: all, _own: own, _call: call })
    }

    fn register(&self, key: &KeyId, part: usize) -> (RegisteredCall, Arc<Semaphore>) {
        let mut keys = self.keys.lock();
        let new = || KeyShare { turns: Arc::new(Semaphore::new(part)), calls: 0 };
        let share = keys.entry(key.clone()).or_insert_with(new);
        share.calls += 1;
        (RegisteredCall { keys: Arc::clone(&self.keys), key: key.clone() }, Arc::clone(&share.turns))
    }
}

fn units(bytes: usize) -> usize {
    bytes.div_ceil(UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS)
}

impl Drop for RegisteredCall {
    fn drop(&mut self) {
        let mut keys = self.keys.lock();
        if let Some(share) = keys.get_mut(&self.key) {
            share.calls -= 1;
            if share.calls == 0 {
                keys.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> KeyId {
        KeyId::new(name).unwrap()
    }

    #[tokio::test]
    async fn a_key_has_half_and_everybody_the_whole() {
        let waited = Duration::from_millis(50);
        let turns = RenderGate { most_wait: waited, ..RenderGate::of(8 * UNIT_BYTES, 8) };
        let (a, b, c) = (key("a"), key("b"), key("c"));
        let first = turns.enter(&a, 3 * UNIT_BYTES).await.unwrap();
        let own = turns.enter(&a, 2 * UNIT_BYTES).await.map(drop).unwrap_err();
        assert_eq!(own, NoTurn { own: true, limit_bytes: 4 * UNIT_BYTES, waited });
        // A larger call counts as half of the bound, which leaves room for the three units of the other key.
        let second = turns.enter(&b, 100 * UNIT_BYTES).await.unwrap();
        let none = turns.enter(&c, 2 * UNIT_BYTES).await.map(drop).unwrap_err();
        assert_eq!(none, NoTurn { own: false, limit_bytes: 8 * UNIT_BYTES, waited });
        let (waiting, ()) = tokio::join!(turns.enter(&c, 2 * UNIT_BYTES), async { drop(first) });
        assert!(waiting.is_ok(), "a turn that comes in time is taken");
        drop((waiting, second));
        assert!(turns.keys.lock().is_empty(), "nothing is kept of keys that are gone");
        assert_eq!(turns.all.available_permits(), 8);
    }

    #[tokio::test]
    async fn short_calls_do_not_fill_it_with_threads() {
        for most in [2, 8, MOST_CALLS] {
            let turns =
                RenderGate { most_wait: Duration::ZERO, ..RenderGate::of(MOST_CALLS * 4 * UNIT_BYTES, most) };
            let mut taken = Vec::new();
            for name in ["a", "b", "c"] {
                let before = taken.len();
                while let Ok(turn) = turns.enter(&key(name), 1).await {
                    taken.push(turn);
                }
                assert!(taken.len() - before <= most / 2, "of one key");
            }
            assert_eq!(taken.len(), most);
        }
    }
}
