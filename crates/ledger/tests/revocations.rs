//! Seeded races between revoking a key on one gateway and holding with it on another. After a revocation was
//! acknowledged, no gateway takes a hold with that key. `HEADRACE_SEEDS=n` runs more seeds; a failure prints its seed, and
//! `HEADRACE_SEED=n` runs that one alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/gateways.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod gateways;
#[path = "support/world.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod world;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headrace_domain::{Clock, ManualClock, UnixNanos};
use headrace_ledger::{
    CallerCheck, CommandResult, CommitFault, JournalError, JournalEvent, LedgerClient as _, LedgerRefusal,
    MemorySharedJournal, PendingBatch, SharedIdentities, SharedLedger, SharedLedgerOptions, TurnHand,
    decode_row,
};

use gateways::{Random, number, opened, poll};
use world::{START, at, grant, hold, open};

const KEYS: usize = 6;

/// What happens at a look. `None` if nothing does.
type LookAction = Option<Box<dyn FnOnce() + Send>>;

/// The revoked keys, in the order of their revocation: one list in the database, and one copy in each gateway.
struct KnownKeys {
    database: Arc<Mutex<Vec<usize>>>,
    loaded: Mutex<Vec<usize>>,
    is_cut: Mutex<bool>,
    /// What happens at the next looks at the number of loaded changes, the last one first.
    looks: Mutex<Vec<LookAction>>,
}

impl SharedIdentities for KnownKeys {
    fn loaded(&self) -> u64 {
        let next = self.looks.lock().unwrap().pop().flatten();
        if let Some(act) = next {
            act();
        }
        self.loaded.lock().unwrap().len() as u64
    }

    fn load(&self) -> Result<(), JournalError> {
        if *self.is_cut.lock().unwrap() {
            return Err(JournalError::Io("the connection is cut".into()));
        }
        let all = self.database.lock().unwrap().clone();
        *self.loaded.lock().unwrap() = all;
        Ok(())
    }
}

struct Caller {
    key: usize,
    known: Arc<KnownKeys>,
}

impl CallerCheck for Caller {
    fn is_valid(&self) -> bool {
        !self.known.loaded.lock().unwrap().contains(&self.key)
    }
}

struct Gateway {
    ledger: SharedLedger,
    hand: TurnHand,
    journal: MemorySharedJournal,
    known: Arc<KnownKeys>,
    asked: Vec<(u128, usize, PendingBatch)>,
}

struct World {
    random: Random,
    clock: Arc<ManualClock>,
    journal: MemorySharedJournal,
    revoked: Arc<Mutex<Vec<usize>>>,
    gateways: Vec<Gateway>,
    keys_of_holds: BTreeMap<u128, usize>,
    /// Calls refused because their key was revoked.
    ended: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let clock = Arc::new(ManualClock::at(UnixNanos::new(START)));
        let journal = MemorySharedJournal::new();
        journal.set_time(UnixNanos::new(START));
        let revoked = Arc::new(Mutex::new(Vec::new()));
        let count = 2 + u128::from(random.below(3));
        let mut gateways: Vec<_> =
            (1..=count).map(|owner| gateway(owner, &journal, &clock, &revoked)).collect();
        let mut funded = gateways[0].ledger.decide(vec![open("o", "p"), grant("o", 1_000_000)], at(0));
        gateways[0].hand.turn();
        assert!(poll(&mut funded).unwrap()[0].is_done());
        Self { random, clock, journal, revoked, gateways, keys_of_holds: BTreeMap::new(), ended: 0 }
    }

    fn step(&mut self) {
        let index = self.random.index(self.gateways.len());
        let gateway = &mut self.gateways[index];
        match self.random.below(24) {
            0..=8 => {
                let (key, id) = (self.random.index(KEYS), self.keys_of_holds.len() as u128 + 1);
                self.keys_of_holds.insert(id, key);
                let caller = Arc::new(Caller { key, known: Arc::clone(&gateway.known) });
                gateway.asked.push((id, key, gateway.ledger.decide_for(caller, vec![hold(id, 1)], at(0))));
            }
            9..=17 => {
                gateway.hand.turn();
            }
            18 | 19 => {
                let key = self.random.index(KEYS);
                // The transaction locks the head, and gives up if a turn keeps it locked.
                let mut revoked = self.revoked.lock().unwrap();
                if !revoked.contains(&key) && self.journal.change_identities() {
                    revoked.push(key);
                }
            }
            20 => {
                let faults =
                    [CommitFault::Refused, CommitFault::Lost, CommitFault::Unheard, CommitFault::Late];
                gateway.journal.fail_commit(faults[self.random.index(4)]);
            }
            21 => {
                *gateway.known.is_cut.lock().unwrap() = self.random.below(2) == 0;
            }
            22 => self.journal.arrive(self.random.below(2) == 0),
            _ => {
                // The regular poll, or a pause.
                if self.random.below(2) == 0 {
                    let _ = gateway.known.load();
                }
                let pause = Duration::from_millis(self.random.below(700));
                self.clock.advance(pause);
                self.journal.set_time(self.clock.now());
                self.gateways.iter_mut().for_each(|gateway| gateway.hand.give_up());
            }
        }
        self.listen(index);
    }

    fn listen(&mut self, index: usize) {
        let (revoked, ended) = (self.revoked.lock().unwrap().clone(), &mut self.ended);
        self.gateways[index].asked.retain_mut(|(id, key, pending)| {
            let Some(verdicts) = poll(pending) else { return true };
            match &verdicts[0] {
                CommandResult::Done(_) | CommandResult::Refused(LedgerRefusal::Unavailable { .. }) => {}
                CommandResult::Refused(LedgerRefusal::CallerEnded) => {
                    assert!(revoked.contains(key), "key {key} of hold {id} is valid");
                    *ended += 1;
                }
                other => panic!("hold {id}: {other:?}"),
            }
            false
        });
    }

    /// Ends all faults, and checks each hold in the journal against the order of revocations.
    fn finish(mut self) -> usize {
        self.journal.arrive(true);
        for index in 0..self.gateways.len() {
            let gateway = &mut self.gateways[index];
            gateway.journal.heal();
            *gateway.known.is_cut.lock().unwrap() = false;
            for _ in 0..3 {
                gateway.hand.turn();
            }
            self.listen(index);
            assert!(self.gateways[index].asked.is_empty(), "every caller has an answer");
        }
        let (revoked, changes) = (self.revoked.lock().unwrap().clone(), self.journal.identity_changes());
        assert_eq!(revoked.len(), changes.len());
        for (row, stored) in self.journal.contents().rows.iter().enumerate() {
            for transaction in decode_row(stored).unwrap() {
                let JournalEvent::Held(held) = transaction.event else { continue };
                let key = self.keys_of_holds[&held.hold.bits()];
                if let Some(change) = revoked.iter().position(|revoked| *revoked == key) {
                    let rows = changes[change];
                    assert!(
                        row < rows,
                        "row {} holds with key {key}, which was revoked after row {rows}",
                        row + 1
                    );
                }
            }
        }
        self.ended
    }
}

fn gateway(
    owner: u128,
    journal: &MemorySharedJournal,
    clock: &Arc<ManualClock>,
    revoked: &Arc<Mutex<Vec<usize>>>,
) -> Gateway {
    let (ledger, hand, handle) = opened(journal, clock, owner, SharedLedgerOptions::default());
    let known = Arc::new(KnownKeys {
        database: Arc::clone(revoked),
        loaded: Mutex::default(),
        is_cut: Mutex::default(),
        looks: Mutex::default(),
    });
    ledger.check_callers(Arc::clone(&known) as Arc<dyn SharedIdentities>);
    Gateway { ledger, hand, journal: handle, known, asked: Vec::new() }
}

#[test]
fn no_hold_is_taken_with_a_key_after_its_revocation_was_acknowledged() {
    let seeds = 1..=number("HEADRACE_SEEDS").unwrap_or(1_000);
    let mut ended = 0;
    for seed in number("HEADRACE_SEED").map_or(seeds, |seed| seed..=seed) {
        println!("HEADRACE_SEED={seed}");
        let mut world = World::new(seed);
        for _ in 0..120 {
            world.step();
        }
        ended += world.finish();
    }
    println!("{ended} calls were refused because their key was revoked");
    assert!(number("HEADRACE_SEED").is_some() || ended > 1_000, "the races happened");
}

#[test]
fn a_call_that_arrives_within_a_turn_is_checked_in_the_next_one() {
    let mut world = World::new(1);
    let [gateway, ..] = world.gateways.as_mut_slice() else { panic!("two gateways") };
    assert!(world.journal.change_identities());
    world.revoked.lock().unwrap().push(0);
    let (ledger, known) = (gateway.ledger.clone(), Arc::clone(&gateway.known));
    let asked = Arc::new(Mutex::new(None));
    let (slot, caller) = (Arc::clone(&asked), Arc::new(Caller { key: 0, known: Arc::clone(&known) }));
    let arrives = move || {
        *slot.lock().unwrap() = Some(ledger.decide_for(caller, vec![hold(1, 1)], at(0)));
    };
    // The first look finds that no caller waits; the call arrives at the second one.
    *known.looks.lock().unwrap() = vec![Some(Box::new(arrives)), None];
    gateway.hand.turn();
    let mut pending = asked.lock().unwrap().take().unwrap();
    assert!(poll(&mut pending).is_none(), "it waits for a turn that has loaded the revocation");
    gateway.hand.turn();
    let verdicts = poll(&mut pending).unwrap();
    assert_eq!(verdicts, [CommandResult::Refused(LedgerRefusal::CallerEnded)]);
}
