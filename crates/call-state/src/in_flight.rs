//! The in-flight table: shows the current stage of each call. A call has a slot with cache lines of its own. Taking a
//! slot is one exchange, and reporting a stage is one plain store. A reader blocks a call only while it copies three
//! names. Must not know why a call is in a stage.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use headrace_domain::{KeyId, ModelName, OrgId, RequestId, Stage};
use parking_lot::Mutex;

/// Calls that can be shown at once. Further calls are served as usual, but not shown. A power of two.
const SLOTS: usize = 2048;
/// Slots that a call tries before it goes without one.
const TRIES: usize = 8;
/// `since` of a slot that no call uses.
const FREE: u64 = 0;
/// `since` of a slot that a call is filling.
const TAKEN: u64 = u64::MAX;

/// The table of slots.
pub struct InFlightTable {
    rows: Box<[InFlightRow]>,
}

#[repr(align(64))]
struct InFlightRow {
    /// Monotonic nanoseconds at the call's first byte, plus one. Otherwise [`FREE`] or [`TAKEN`].
    since: AtomicU64,
    high: AtomicU64,
    low: AtomicU64,
    stage: AtomicU8,
    /// Tokens of the answer so far.
    written: AtomicU64,
    /// A lock per slot. Only a reader of the table can contend for it.
    names: Mutex<CallNames>,
}

/// The names of a call, as far as they are known: who pays, and which model serves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct CallNames {
    org: Option<OrgId>,
    key: Option<KeyId>,
    model: Option<ModelName>,
}

/// A call's slot. Dropping it frees the slot.
pub struct InFlightSlot {
    table: Arc<InFlightTable>,
    at: usize,
}

/// A call in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InFlightCall {
    /// The request id.
    pub id: RequestId,
    /// The current stage.
    pub stage: Stage,
    /// Nanoseconds since the first byte of the request.
    pub age_ns: u64,
    /// The paying organisation, once it is known.
    pub org: Option<OrgId>,
    /// The public id of the key, once it is known.
    pub key: Option<KeyId>,
    /// The serving model, once it is known.
    pub model: Option<ModelName>,
    /// Tokens of the answer so far, if they are counted as they come.
    pub completion_tokens: u64,
}

impl InFlightTable {
    /// Creates a table without calls.
    pub fn new() -> Arc<Self> {
        let free = |_| InFlightRow {
            since: AtomicU64::new(FREE),
            high: AtomicU64::new(0),
            low: AtomicU64::new(0),
            stage: AtomicU8::new(0),
            written: AtomicU64::new(0),
            names: Mutex::default(),
        };
        Arc::new(Self { rows: (0..SLOTS).map(free).collect() })
    }

    /// Takes a slot for a call. Returns `None` if all slots near the one that its id hashes to are taken.
    pub fn take_slot(self: &Arc<Self>, id: RequestId, started_mono_ns: u64) -> Option<InFlightSlot> {
        let bits = id.bits();
        // The low bits of an id are random.
        let first = usize::try_from(bits % SLOTS as u128).unwrap_or(0);
        let free = (0..TRIES).map(|step| (first + step) % SLOTS).find(|at| {
            self.rows.get(*at).is_some_and(|place| {
                place.since.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
            })
        })?;
        // A reader that sees any of the stores below also sees that `since` has changed.
        fence(Ordering::Release);
        let place = self.rows.get(free)?;
        place.high.store((bits >> 64) as u64, Ordering::Relaxed);
        place.low.store(bits as u64, Ordering::Relaxed);
        place.stage.store(Stage::Connect as u8, Ordering::Relaxed);
        place.written.store(0, Ordering::Relaxed);
        place.since.store(started_mono_ns.saturating_add(1).min(TAKEN - 1), Ordering::Release);
        Some(InFlightSlot { table: Arc::clone(self), at: free })
    }

    /// The calls in the table, oldest first.
    pub fn look(&self, mono_ns: u64) -> Vec<InFlightCall> {
        let mut calls: Vec<InFlightCall> = self.rows.iter().filter_map(|place| place.look(mono_ns)).collect();
        calls.sort_by_key(|call| std::cmp::Reverse(call.age_ns));
        calls
    }
}

impl InFlightRow {
    fn look(&self, mono_ns: u64) -> Option<InFlightCall> {
        let since = self.since.load(Ordering::Acquire);
        if matches!(since, FREE | TAKEN) {
            return None;
        }
        let bits = u128::from(self.high.load(Ordering::Relaxed)) << 64
            | u128::from(self.low.load(Ordering::Relaxed));
        let stage = Stage::ALL.get(usize::from(self.stage.load(Ordering::Relaxed))).copied()?;
        let completion_tokens = self.written.load(Ordering::Relaxed);
        let CallNames { org, key, model } = self.names.lock().clone();
        // Another call may have taken the slot meanwhile. The values read would then mix both calls.
        fence(Ordering::Acquire);
        let still = self.since.load(Ordering::Relaxed) == since;
        still.then(|| InFlightCall {
            id: RequestId::from_bits(bits),
            stage,
            age_ns: mono_ns.saturating_sub(since - 1),
            org,
            key,
            model,
            completion_tokens,
        })
    }
}

impl InFlightSlot {
    /// Records that the call is now in `stage`.
    pub fn is_in(&self, stage: Stage) {
        if let Some(place) = self.table.rows.get(self.at) {
            place.stage.store(stage as u8, Ordering::Relaxed);
        }
    }

    /// Records the number of answer tokens so far.
    pub fn has_written(&self, tokens: u64) {
        if let Some(place) = self.table.rows.get(self.at) {
            place.written.store(tokens, Ordering::Relaxed);
        }
    }

    /// Records the organisation and the key of the call.
    pub fn is_of(&self, org: &OrgId, key: &KeyId) {
        if let Some(place) = self.table.rows.get(self.at) {
            let mut names = place.names.lock();
            (names.org, names.key) = (Some(org.clone()), Some(key.clone()));
        }
    }

    /// Records the model that serves the call.
    pub fn is_for(&self, model: &ModelName) {
        if let Some(place) = self.table.rows.get(self.at) {
            place.names.lock().model = Some(model.clone());
        }
    }

    /// Records that the call has finished `stage` and is in the next one.
    pub fn has_done(&self, stage: Stage) {
        if let Some(next) = after(stage) {
            self.is_in(next);
        }
    }
}

impl Drop for InFlightSlot {
    fn drop(&mut self) {
        if let Some(place) = self.table.rows.get(self.at) {
            drop(std::mem::take(&mut *place.names.lock()));
            place.since.store(FREE, Ordering::Release);
        }
    }
}

/// The stage that follows, if it is the same for every call.
const fn after(stage: Stage) -> Option<Stage> {
    Some(match stage {
        Stage::Connect => Stage::Authenticate,
        Stage::Authenticate => Stage::Receive,
        Stage::Receive => Stage::Parse,
        Stage::Parse => Stage::Authorize,
        Stage::Authorize => Stage::Route,
        Stage::Route => Stage::Moderate,
        Stage::Moderate => Stage::Render,
        Stage::Render => Stage::Cache,
        Stage::Cache => Stage::Hold,
        Stage::Hold => Stage::Place,
        Stage::Settle => Stage::Deliver,
        // The stage `place` reports what follows it, and the reader of events reports the stage while they come.
        Stage::Place
        | Stage::Upstream
        | Stage::Queue
        | Stage::Prefill
        | Stage::Decode
        | Stage::Handover
        | Stage::Reader
        | Stage::Postprocess
        | Stage::Deliver => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_seen_where_it_is_until_it_leaves() {
        let table = InFlightTable::new();
        let id = RequestId::from_bits(7 << 64 | 5);
        let slot = table.take_slot(id, 1_000).unwrap();
        let later = table.take_slot(RequestId::from_bits(5), 3_000).unwrap();
        slot.has_done(Stage::Render);
        later.is_in(Stage::Decode);
        later.has_written(17);
        later.is_of(&OrgId::new("acme").unwrap(), &KeyId::new("key-1").unwrap());
        later.is_for(&ModelName::new("demo").unwrap());
        let names: Vec<_> =
            table.look(4_000).into_iter().map(|call| (call.org, call.key, call.model)).collect();
        let (org, key, model) = names[1].clone();
        assert_eq!(names[0], (None, None, None));
        assert_eq!(
            (org.unwrap().as_str(), key.unwrap().as_str(), model.unwrap().as_str()),
            ("acme", "key-1", "demo")
        );
        let seen: Vec<_> = table.look(4_000).iter().map(|call| (call.id, call.stage, call.age_ns)).collect();
        assert_eq!(seen, [(id, Stage::Cache, 3_000), (RequestId::from_bits(5), Stage::Decode, 1_000)]);
        let written: Vec<_> = table.look(4_000).iter().map(|call| call.completion_tokens).collect();
        assert_eq!(written, [0, 17]);
        drop(slot);
        assert_eq!(table.look(4_000).len(), 1);
        drop(later);
        assert_eq!(table.look(4_000), []);
        let next = table.take_slot(RequestId::from_bits(5), 3_000).unwrap();
        let last = &table.look(4_000)[0];
        assert_eq!(
            (last.org.clone(), last.completion_tokens),
            (None, 0),
            "what the last one said is gone with it"
        );
        drop(next);
    }

    #[test]
    fn who_finds_no_seat_does_without_and_takes_nobodys() {
        let table = InFlightTable::new();
        let rows: Vec<_> = (0..TRIES + 3).map(|_| table.take_slot(RequestId::from_bits(9), 1)).collect();
        assert_eq!(rows.iter().flatten().count(), TRIES);
        drop(rows);
        assert!(table.take_slot(RequestId::from_bits(9), 1).is_some());
    }

    #[test]
    fn nobody_sees_a_call_that_never_was() {
        let table = InFlightTable::new();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for n in 1..=3_u64 {
                let (table, stop) = (&table, &stop);
                scope.spawn(move || {
                    let id = RequestId::from_bits(u128::from(n) << 64 | u128::from(n) << 20 | 11);
                    while !stop.load(Ordering::Relaxed) {
                        let slot = table.take_slot(id, n).unwrap();
                        slot.is_in(Stage::Hold);
                    }
                });
            }
            for _ in 0..2_000 {
                for call in table.look(10) {
                    let n = call.id.bits() >> 64;
                    assert_eq!(call.id.bits(), n << 64 | n << 20 | 11);
                    assert_eq!(u128::from(10 - call.age_ns), n);
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
