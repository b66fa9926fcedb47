//! Seeded simulation of several gateways over one shared journal: late, lost and doubled commits, cut connections,
//! clocks that disagree, pauses and kills. The assertions hold for every seed. `HEADRACE_SEEDS=n` runs more seeds; a
//! failure prints its seed, and `HEADRACE_SEED=n` runs that one alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/gateways.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod gateways;
#[path = "support/world.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{Clock, HoldId, ManualClock, UnixNanos};
use headrace_ledger::{
    BudgetMeasure, BudgetRule, BudgetScope, BudgetWindow, CommandResult, CommitFault, HoldView, JournalEvent,
    LedgerAdmin as _, LedgerClient, LedgerOperation, LedgerRefusal, MemorySharedJournal, Owner, PendingBatch,
    PlaceLimits, Receipt, SharedJournal as _, SharedLedger, SharedLedgerOptions, TurnHand, TurnOutcome,
    decode_row, verify::verify,
};

use gateways::{Random, number, opened, poll};
use world::{START, at, call, changed, grant, hold, hold_id, open, rule, set_rule, settle};

const SEEDS: u64 = 1_500;
const BALANCE: i64 = 1_000;
const LEASE: Duration = Duration::from_secs(15);
/// The most calls of a key in flight over all gateways.
const PLACES: u32 = 8;

/// A gateway, its journal and the calls that it serves.
struct Gateway {
    ledger: SharedLedger,
    hand: TurnHand,
    journal: MemorySharedJournal,
    /// How far the wall clock of its machine is ahead, in nanoseconds.
    ahead: i64,
    holding: Vec<(u128, i64, PendingBatch)>,
    held: Vec<(u128, i64)>,
    settling: Vec<(u128, i64, PendingBatch)>,
}

/// The verdicts that callers received, to be compared with the journal at the end.
#[derive(Default)]
struct ReceivedVerdicts {
    held: BTreeMap<u128, i64>,
    charged: BTreeMap<u128, i64>,
    unpaid: BTreeSet<u128>,
    unavailable: BTreeSet<u128>,
}

struct World {
    random: Random,
    clock: Arc<ManualClock>,
    journal: MemorySharedJournal,
    gateways: Vec<Option<Gateway>>,
    owners: u128,
    holds: u128,
    received: ReceivedVerdicts,
}

fn options() -> SharedLedgerOptions {
    SharedLedgerOptions { lease: LEASE, snapshot_rows: 20, ..SharedLedgerOptions::default() }
}

/// Opens a gateway whose machine's clock is `ahead` nanoseconds ahead.
fn join(journal: &MemorySharedJournal, clock: &Arc<ManualClock>, owner: u128, ahead: i64) -> Gateway {
    let (ledger, hand, handle) = opened(journal, clock, owner, options());
    Gateway {
        ledger,
        hand,
        journal: handle,
        ahead,
        holding: Vec::new(),
        held: Vec::new(),
        settling: Vec::new(),
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let clock = Arc::new(ManualClock::at(UnixNanos::new(START)));
        let journal = MemorySharedJournal::new();
        journal.set_time(UnixNanos::new(START));
        let gateways = 2 + random.below(3);
        let mut world = Self {
            random,
            clock,
            journal,
            gateways: Vec::new(),
            owners: 0,
            holds: 0,
            received: ReceivedVerdicts::default(),
        };
        for _ in 0..gateways {
            let gateway = world.fresh_gateway();
            world.gateways.push(Some(gateway));
        }
        let first = world.gateways[0].as_mut().unwrap();
        let daily = BudgetRule { limit: 2_500, ..rule("money", BudgetScope::Project) };
        let hourly = BudgetRule {
            measure: BudgetMeasure::Requests,
            window: BudgetWindow::Hour,
            limit: 40,
            thresholds: vec![10, 50, 100],
            ..rule("requests", BudgetScope::Key)
        };
        let mut setup = vec![open("o", "p"), grant("o", BALANCE), set_rule(daily), set_rule(hourly)];
        // Of half of the seeds: lots, a contract and free tiers.
        if seed.is_multiple_of(2) {
            setup.extend(world::lots_and_free_tiers());
        }
        let mut opened = first.ledger.decide(setup, at(0));
        assert_eq!(first.hand.turn(), TurnOutcome::Written);
        assert!(poll(&mut opened).unwrap().iter().all(CommandResult::is_done));
        world
    }

    fn fresh_gateway(&mut self) -> Gateway {
        self.owners += 1;
        let hour = 3600 * 1_000_000_000_i64;
        let ahead = i64::try_from(self.random.below(2 * hour.cast_unsigned())).unwrap() - hour;
        join(&self.journal, &self.clock, self.owners, ahead)
    }

    fn advance(&mut self, by: Duration) {
        self.clock.advance(by);
        self.journal.set_time(self.clock.now());
    }

    fn step(&mut self) {
        let index = usize::try_from(self.random.below(self.gateways.len() as u64)).unwrap();
        let action = self.random.below(40);
        if self.gateways[index].is_none() {
            if action < 10 {
                let gateway = self.fresh_gateway();
                self.gateways[index] = Some(gateway);
            }
            return;
        }
        match action {
            0..=8 => self.ask(index),
            9..=13 => self.settle(index),
            14..=25 => self.turn(index),
            26..=29 => {
                self.gateways[index].as_mut().unwrap().hand.renew();
            }
            30..=32 => {
                let millis = self.random.below(700);
                self.advance(Duration::from_millis(millis));
                self.give_up();
            }
            33 => {
                let fault = match self.random.below(4) {
                    0 => CommitFault::Refused,
                    1 => CommitFault::Lost,
                    2 => CommitFault::Unheard,
                    _ => CommitFault::Late,
                };
                self.gateways[index].as_ref().unwrap().journal.fail_commit(fault);
            }
            34 => {
                let is_cut = self.random.one_in(2);
                self.gateways[index].as_ref().unwrap().journal.set_cut(is_cut);
            }
            35 | 36 => {
                let is_written = self.random.one_in(2);
                self.journal.arrive(is_written);
            }
            // A caller leaves before it knows whether its hold was taken.
            37 => {
                let gateway = self.gateways[index].as_mut().unwrap();
                if let Some((id, ..)) = gateway.holding.pop() {
                    self.received.unavailable.insert(id);
                }
            }
            38 if self.random.one_in(4) => {
                self.advance(Duration::from_secs(16));
                self.give_up();
            }
            39 if self.random.one_in(6) => self.kill(index),
            _ => {}
        }
        self.listen(index);
    }

    /// Ends a gateway like a crash. The verdicts of its callers are lost.
    fn kill(&mut self, index: usize) {
        let gateway = self.gateways[index].take().unwrap();
        let asked = gateway.holding.iter().map(|(id, ..)| *id);
        self.received.unavailable.extend(asked.chain(gateway.held.iter().map(|(id, _)| *id)));
        self.received.unavailable.extend(gateway.settling.iter().map(|(id, ..)| *id));
        // A turn in progress ends with its connection.
        gateway.journal.set_cut(true);
    }

    fn local_time(&self, index: usize) -> UnixNanos {
        let ahead = self.gateways[index].as_ref().unwrap().ahead;
        UnixNanos::new(self.clock.now().get().saturating_add_signed(ahead))
    }

    fn ask(&mut self, index: usize) {
        self.holds += 1;
        let id = self.holds;
        let amount = 1 + i64::try_from(self.random.below(300)).unwrap();
        let now = self.local_time(index);
        let LedgerOperation::Hold { hold, org, project, amount: held, owner, idempotency, demand, .. } =
            changed(call(id, "k", amount), &|demand| {
                demand.places = Some(PlaceLimits { key: Some(PLACES), ..PlaceLimits::default() });
            })
        else {
            panic!("a hold")
        };
        let expires = now.after(Duration::from_secs(600));
        let asked =
            LedgerOperation::Hold { hold, org, project, amount: held, owner, expires, idempotency, demand };
        let gateway = self.gateways[index].as_mut().unwrap();
        let pending = gateway.ledger.decide(vec![asked], now);
        gateway.holding.push((id, amount, pending));
    }

    fn settle(&mut self, index: usize) {
        let now = self.local_time(index);
        let gateway = self.gateways[index].as_mut().unwrap();
        let Some((id, amount)) = gateway.held.pop() else { return };
        let charge = i64::try_from(self.random.below(2)).unwrap() * (amount / 20);
        let pending = gateway.ledger.decide(vec![settle(id, charge)], now);
        gateway.settling.push((id, charge, pending));
    }

    fn turn(&mut self, index: usize) {
        self.gateways[index].as_mut().unwrap().hand.turn();
    }

    fn give_up(&mut self) {
        for gateway in self.gateways.iter_mut().flatten() {
            gateway.hand.give_up();
        }
    }

    /// Reads the verdicts that arrived, and checks each against the journal as it is now.
    fn listen(&mut self, index: usize) {
        let events = Events::of(&self.journal);
        let Some(gateway) = self.gateways[index].as_mut() else { return };
        let received = &mut self.received;
        gateway.holding.retain_mut(|(id, amount, pending)| {
            let Some(verdicts) = poll(pending) else { return true };
            match &verdicts[0] {
                CommandResult::Done(Receipt::Held { .. }) => {
                    assert!(
                        events.held.contains_key(id),
                        "a caller learned of hold {id} before it was durable"
                    );
                    received.held.insert(*id, *amount);
                    gateway.held.push((*id, *amount));
                }
                CommandResult::Refused(LedgerRefusal::Unavailable { .. }) => {
                    received.unavailable.insert(*id);
                }
                CommandResult::Refused(
                    LedgerRefusal::OutOfMoney { .. }
                    | LedgerRefusal::HeldInFlight { .. }
                    | LedgerRefusal::BudgetRuleExceeded(_)
                    | LedgerRefusal::PlacesTaken { .. },
                ) => assert!(!events.held.contains_key(id), "hold {id} was refused and taken"),
                other => panic!("hold {id}: {other:?}"),
            }
            false
        });
        gateway.settling.retain_mut(|(id, charge, pending)| {
            let Some(verdicts) = poll(pending) else { return true };
            match &verdicts[0] {
                CommandResult::Done(Receipt::Settled { charged, .. }) => {
                    assert_eq!(charged.get(), *charge);
                    assert_eq!(
                        events.charged.get(id),
                        Some(&*charge),
                        "a caller learned of settlement {id} before it was durable"
                    );
                    assert!(received.charged.insert(*id, *charge).is_none(), "hold {id} was settled twice");
                }
                // Others declared this gateway dead, and released the hold.
                CommandResult::Refused(LedgerRefusal::AlreadyResolved { .. }) => {
                    assert!(events.released.contains(id) || events.charged.contains_key(id));
                    received.unpaid.insert(*id);
                }
                other => panic!("settlement {id}: {other:?}"),
            }
            false
        });
    }

    /// Ends all faults, lets every caller finish, and checks the journal.
    fn finish(mut self) {
        self.journal.arrive(true);
        for index in 0..self.gateways.len() {
            if let Some(gateway) = &self.gateways[index] {
                gateway.journal.heal();
            }
        }
        for _ in 0..12 {
            self.advance(Duration::from_millis(1_100));
            self.give_up();
            self.journal.arrive(true);
            for index in 0..self.gateways.len() {
                if self.gateways[index].is_none() {
                    continue;
                }
                self.gateways[index].as_mut().unwrap().hand.renew();
                while !self.gateways[index].as_ref().unwrap().held.is_empty() {
                    self.settle(index);
                }
                for _ in 0..3 {
                    self.turn(index);
                }
                self.listen(index);
            }
        }
        // The holds of killed gateways lapse.
        let survivor = self.gateways.iter().position(Option::is_some);
        let survivor = survivor.unwrap_or_else(|| {
            let gateway = self.fresh_gateway();
            self.gateways[0] = Some(gateway);
            0
        });
        self.advance(LEASE + Duration::from_secs(1));
        for index in 0..self.gateways.len() {
            if let Some(gateway) = self.gateways[index].as_mut() {
                gateway.hand.renew();
            }
        }
        for _ in 0..3 {
            self.turn(survivor);
        }
        let contents = self.journal.contents();
        let report = verify(&contents);
        assert!(report.ok(), "{:?}", report.findings);
        let mut stamps = self.journal.stamps();
        let rows = stamps.len();
        stamps.sort_by_key(|stamp| (stamp.owner, stamp.turn));
        stamps.dedup();
        assert_eq!(stamps.len(), rows, "a turn wrote two rows");
        let gateway = self.gateways[survivor].as_ref().unwrap();
        assert_eq!(gateway.ledger.open_holds(), [], "no hold outlives its gateway");
        assert_eq!(gateway.ledger.totals(), report.totals);
        let events = Events::of(&self.journal);
        for id in self.received.held.keys() {
            assert!(events.held.contains_key(id), "a caller holds {id}, and the journal lost it");
        }
        for (id, charge) in &self.received.charged {
            assert_eq!(
                events.charged.get(id),
                Some(charge),
                "a caller paid for {id}, and the journal lost it"
            );
        }
        for (id, charge) in &events.charged {
            let is_received = self.received.charged.get(id) == Some(charge);
            assert!(
                is_received || self.received.unavailable.contains(id) || self.received.unpaid.contains(id),
                "hold {id}"
            );
        }
        for id in &self.received.unavailable {
            let ended = events.released.contains(id) || events.charged.contains_key(id);
            assert_eq!(events.held.contains_key(id), ended, "hold {id} is open, and no caller knows of it");
        }
        // Every gateway has the same state.
        for index in 0..self.gateways.len() {
            if self.gateways[index].is_none() {
                continue;
            }
            self.turn(index);
            let gateway = self.gateways[index].as_ref().unwrap();
            assert_eq!(gateway.ledger.totals(), report.totals, "gateway {index}");
            let time = self.journal.time();
            let of_survivor = self.gateways[survivor].as_ref().unwrap().ledger.budgets(time);
            assert_eq!(gateway.ledger.budgets(time), of_survivor, "gateway {index}");
            let survivor = &self.gateways[survivor].as_ref().unwrap().ledger;
            assert_eq!(gateway.ledger.lots(None, time), survivor.lots(None, time), "gateway {index}");
            assert_eq!(gateway.ledger.free_tiers(time), survivor.free_tiers(time), "gateway {index}");
        }
    }
}

/// The events of a journal, by hold.
#[derive(Default)]
struct Events {
    held: BTreeMap<u128, Owner>,
    charged: BTreeMap<u128, i64>,
    released: BTreeSet<u128>,
}

impl Events {
    fn of(journal: &MemorySharedJournal) -> Self {
        let (mut events, mut in_flight) = (Self::default(), BTreeSet::new());
        for row in journal.contents().rows {
            for transaction in decode_row(&row).unwrap() {
                match transaction.event {
                    JournalEvent::Held(held) => {
                        let before = events.held.insert(held.hold.bits(), held.owner);
                        assert_eq!(before, None, "hold {} was taken twice", held.hold);
                        if held.budgeted.is_some_and(|budgeted| budgeted.places.key.is_some()) {
                            in_flight.insert(held.hold);
                            assert!(in_flight.len() <= PLACES as usize, "too many calls are in flight");
                        }
                    }
                    JournalEvent::Settled(settled) => {
                        in_flight.remove(&settled.hold);
                        events.charged.insert(settled.hold.bits(), settled.charged.get());
                    }
                    JournalEvent::Released { hold, .. } => {
                        in_flight.remove(&hold);
                        events.released.insert(hold.bits());
                    }
                    _ => {}
                }
            }
        }
        events
    }
}

#[test]
fn a_fleet_never_oversells_and_never_loses_a_verdict() {
    let seeds = 1..=number("HEADRACE_SEEDS").unwrap_or(SEEDS);
    let (mut charged, mut unpaid, mut unavailable) = (0, 0, 0);
    for seed in number("HEADRACE_SEED").map_or(seeds, |seed| seed..=seed) {
        println!("HEADRACE_SEED={seed}");
        let mut world = World::new(seed);
        for _ in 0..150 {
            world.step();
        }
        charged += world.received.charged.len();
        unpaid += world.received.unpaid.len();
        unavailable += world.received.unavailable.len();
        world.finish();
    }
    println!(
        "{charged} settlements, {unpaid} refused to gateways declared dead, {unavailable} calls without an answer"
    );
    if number("HEADRACE_SEED").is_none() {
        assert!(charged > 1_000 && unpaid > 10 && unavailable > 100, "the faults happened");
    }
}

/// Gateways over one journal.
fn fleet(count: u128) -> (MemorySharedJournal, Arc<ManualClock>, Vec<Gateway>) {
    let clock = Arc::new(ManualClock::at(UnixNanos::new(START)));
    let journal = MemorySharedJournal::new();
    journal.set_time(UnixNanos::new(START));
    let gateways = (1..=count).map(|owner| join(&journal, &clock, owner, 0)).collect();
    (journal, clock, gateways)
}

fn fund(gateway: &mut Gateway, amount: i64) {
    let mut funded = gateway.ledger.decide(vec![open("o", "p"), grant("o", amount)], at(0));
    assert_eq!(gateway.hand.turn(), TurnOutcome::Written);
    assert!(poll(&mut funded).unwrap().iter().all(CommandResult::is_done));
}

#[test]
fn of_64_calls_over_three_gateways_with_a_free_tier_for_one_exactly_one_is_free() {
    for seed in 0..200 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let (_, _, mut gateways) = fleet(3);
        let tier = world::free_tier("daily", BudgetMeasure::Requests, 1);
        let mut funded = gateways[0].ledger.decide(vec![open("o", "p"), tier], at(0));
        assert_eq!(gateways[0].hand.turn(), TurnOutcome::Written);
        assert!(poll(&mut funded).unwrap().iter().all(CommandResult::is_done));
        let mut asked: Vec<_> = (0..64_u128)
            .map(|n| gateways[random.index(3)].ledger.decide(vec![call(n + 1, "k", 100)], at(0)))
            .collect();
        for _ in 0..6 {
            gateways[random.index(3)].hand.turn();
        }
        for gateway in &mut gateways {
            gateway.hand.turn();
        }
        let verdicts: Vec<_> = asked.iter_mut().map(|pending| poll(pending).unwrap().remove(0)).collect();
        let done = verdicts.iter().filter(|verdict| verdict.is_done()).count();
        let is_refusal = |verdict: &&CommandResult| match verdict {
            CommandResult::Refused(
                LedgerRefusal::HeldInFlight { free: Some(free), .. }
                | LedgerRefusal::OutOfMoney { free: Some(free), .. },
            ) => free.left == 0,
            _ => false,
        };
        assert_eq!((done, verdicts.iter().filter(is_refusal).count()), (1, 63), "seed {seed}");
    }
}

#[test]
fn of_64_calls_over_three_gateways_with_money_for_one_exactly_one_runs() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let (_, _, mut gateways) = fleet(3);
        fund(&mut gateways[0], 100);
        let mut asked: Vec<_> = (0..64_u128)
            .map(|n| gateways[usize::try_from(n % 3).unwrap()].ledger.decide(vec![hold(n + 1, 100)], at(0)))
            .collect();
        for _ in 0..6 {
            let index = usize::try_from(random.below(3)).unwrap();
            gateways[index].hand.turn();
        }
        for gateway in &mut gateways {
            gateway.hand.turn();
        }
        let verdicts: Vec<_> = asked.iter_mut().map(|pending| poll(pending).unwrap().remove(0)).collect();
        let done = verdicts.iter().filter(|verdict| verdict.is_done()).count();
        let refused = verdicts
            .iter()
            .filter(|verdict| matches!(verdict, CommandResult::Refused(LedgerRefusal::HeldInFlight { .. })));
        assert_eq!((done, refused.count()), (1, 63), "seed {seed}");
    }
}

#[test]
fn of_64_calls_over_three_gateways_a_rule_of_ten_requests_a_day_answers_exactly_ten() {
    for seed in 0..100 {
        let mut random = Random(seed);
        let (journal, _, mut gateways) = fleet(3);
        fund(&mut gateways[0], 100_000);
        let daily =
            BudgetRule { measure: BudgetMeasure::Requests, limit: 10, ..rule("daily", BudgetScope::Key) };
        let mut set = gateways[1].ledger.decide(vec![set_rule(daily)], at(0));
        gateways[1].hand.turn();
        assert!(poll(&mut set).unwrap()[0].is_done());
        let mut asked: Vec<_> = (0..64_u128)
            .map(|n| {
                gateways[usize::try_from(n % 3).unwrap()].ledger.decide(vec![call(n + 1, "k", 100)], at(0))
            })
            .collect();
        for _ in 0..6 {
            let index = usize::try_from(random.below(3)).unwrap();
            gateways[index].hand.turn();
        }
        for gateway in &mut gateways {
            gateway.hand.turn();
        }
        let verdicts: Vec<_> = asked.iter_mut().map(|pending| poll(pending).unwrap().remove(0)).collect();
        let done = verdicts.iter().filter(|verdict| verdict.is_done()).count();
        let refused = verdicts.iter().filter(|verdict| {
            matches!(verdict, CommandResult::Refused(LedgerRefusal::BudgetRuleExceeded(_)))
        });
        assert_eq!((done, refused.count()), (10, 54), "seed {seed}");
        assert!(verify(&journal.contents()).ok());
    }
}

#[test]
fn rules_and_places_wait_until_every_live_gateway_can_read_them() {
    let (journal, _, mut gateways) = fleet(1);
    fund(&mut gateways[0], 1_000);
    let (mut older, owner) = (journal.other_handle(), Owner::new(50));
    older.join(owner, 4).unwrap();
    let daily = || set_rule(rule("daily", BudgetScope::Key));
    let limited = |n| {
        changed(call(n, "k", 10), &|demand| {
            demand.places = Some(PlaceLimits { key: Some(1), ..PlaceLimits::default() });
        })
    };
    let mut decide = |command: LedgerOperation| {
        let mut pending = gateways[0].ledger.decide(vec![command], at(0));
        gateways[0].hand.turn();
        poll(&mut pending).unwrap().remove(0)
    };
    let refused = CommandResult::Refused(LedgerRefusal::OlderGateway { format: 5, known: 4 });
    assert_eq!(decide(daily()), refused);
    for n in [1, 2] {
        assert!(decide(limited(n)).is_done(), "each gateway counts its own calls meanwhile");
    }
    assert!(journal.contents().rows.iter().all(|row| row.format_version < 5));
    older.leave(owner).unwrap();
    assert!(decide(daily()).is_done());
    assert!(decide(limited(3)).is_done());
    assert!(matches!(decide(limited(4)), CommandResult::Refused(LedgerRefusal::PlacesTaken { .. })));
}

#[test]
fn a_gateway_declared_dead_by_mistake_continues_under_another_name_and_frees_nothing_twice() {
    let (journal, clock, mut gateways) = fleet(2);
    fund(&mut gateways[0], 100);
    let mut held = gateways[0].ledger.decide(vec![hold(1, 60)], at(0));
    gateways[0].hand.turn();
    assert!(poll(&mut held).unwrap()[0].is_done());
    let former = gateways[0].ledger.owner();
    clock.advance(LEASE + Duration::from_secs(1));
    journal.set_time(clock.now());
    gateways[1].hand.renew();
    assert_eq!(gateways[1].hand.turn(), TurnOutcome::Written);
    assert_eq!(gateways[1].ledger.open_holds(), [], "its hold was released");
    let mut settled = gateways[0].ledger.decide(vec![settle(1, 50)], at(0));
    assert_eq!(gateways[0].hand.turn(), TurnOutcome::Read, "it joins again first");
    assert_ne!(gateways[0].ledger.owner(), former);
    gateways[0].hand.turn();
    let verdicts = poll(&mut settled).unwrap();
    assert!(
        matches!(verdicts[0], CommandResult::Refused(LedgerRefusal::AlreadyResolved { .. })),
        "{verdicts:?}"
    );
    let mut held = gateways[0].ledger.decide(vec![hold(2, 100)], at(0));
    gateways[0].hand.turn();
    assert!(poll(&mut held).unwrap()[0].is_done(), "all the money is there");
}

#[test]
fn a_caller_is_answered_in_time_and_a_hold_that_was_taken_all_the_same_is_released() {
    let (journal, clock, mut gateways) = fleet(2);
    fund(&mut gateways[0], 100);
    let mut held = gateways[0].ledger.decide(vec![hold(1, 60)], at(0));
    gateways[0].journal.fail_commit(CommitFault::Unheard);
    assert_eq!(gateways[0].hand.turn(), TurnOutcome::Failed);
    clock.advance(Duration::from_millis(999));
    gateways[0].hand.give_up();
    assert!(poll(&mut held).is_none());
    clock.advance(Duration::from_millis(1));
    gateways[0].hand.give_up();
    let verdicts = poll(&mut held).unwrap();
    assert!(matches!(verdicts[0], CommandResult::Refused(LedgerRefusal::Unavailable { .. })));
    gateways[1].hand.turn();
    assert_eq!(gateways[1].ledger.open_holds().len(), 1, "the row is in the journal");
    assert_eq!(gateways[0].hand.turn(), TurnOutcome::Written, "it learns that, and releases the hold");
    gateways[1].hand.turn();
    assert_eq!(gateways[1].ledger.open_holds(), []);
    assert!(verify(&journal.contents()).ok());
}

#[test]
fn a_settlement_waits_for_the_journal_as_long_as_it_takes() {
    let (_, clock, mut gateways) = fleet(1);
    fund(&mut gateways[0], 100);
    let mut held = gateways[0].ledger.decide(vec![hold(1, 60)], at(0));
    gateways[0].hand.turn();
    assert!(poll(&mut held).unwrap()[0].is_done());
    gateways[0].journal.set_cut(true);
    let mut settled = gateways[0].ledger.decide(vec![settle(1, 50)], at(0));
    for _ in 0..10 {
        assert_eq!(gateways[0].hand.turn(), TurnOutcome::Failed);
        clock.advance(Duration::from_secs(1));
        gateways[0].hand.give_up();
    }
    assert!(poll(&mut settled).is_none());
    assert!(gateways[0].ledger.health().down.is_some());
    gateways[0].journal.set_cut(false);
    assert_eq!(gateways[0].hand.turn(), TurnOutcome::Written);
    assert!(poll(&mut settled).unwrap()[0].is_done());
    assert_eq!(gateways[0].ledger.health().down, None);
}

#[test]
fn a_journal_that_went_back_is_noticed_at_the_next_turn() {
    // The other gateway does not know the lost row. It writes none, one or more rows in its place.
    for others in 0..4_u128 {
        let (journal, _, mut gateways) = fleet(2);
        fund(&mut gateways[0], 100);
        gateways[1].hand.turn();
        let mut held = gateways[0].ledger.decide(vec![hold(1, 60)], at(0));
        gateways[0].hand.turn();
        assert!(poll(&mut held).unwrap()[0].is_done());
        journal.lose_rows(1);
        for n in 0..others {
            let mut other = gateways[1].ledger.decide(vec![hold(2 + n, 10)], at(0));
            gateways[1].hand.turn();
            assert!(poll(&mut other).unwrap()[0].is_done());
        }
        let mut refused = gateways[0].ledger.decide(vec![hold(9, 1)], at(0));
        for _ in 0..3 {
            assert_eq!(gateways[0].hand.turn(), TurnOutcome::Failed, "it stays refused");
        }
        assert!(poll(&mut refused).is_none());
        let down = gateways[0].ledger.health().down.unwrap();
        assert!(down.contains("went back"), "{others} rows of others: {down}");
        assert!(verify(&journal.contents()).ok());
    }
}

#[test]
fn a_gateway_expires_its_own_holds_only_at_the_journals_time() {
    let (journal, clock, mut gateways) = fleet(2);
    fund(&mut gateways[0], 100);
    let expiring = |n: u128, now: UnixNanos| match hold(n, 10) {
        LedgerOperation::Hold { hold, org, project, amount, owner, idempotency, demand, .. } => {
            LedgerOperation::Hold {
                hold,
                org,
                project,
                amount,
                owner,
                expires: now.after(Duration::from_secs(60)),
                idempotency,
                demand,
            }
        }
        other => other,
    };
    // Their machines' clocks are a day apart.
    let clocks = [at(0), at(world::DAY)];
    for (n, gateway) in gateways.iter_mut().enumerate() {
        let mut held = gateway.ledger.decide(vec![expiring(n as u128 + 1, clocks[n])], clocks[n]);
        gateway.hand.turn();
        assert!(poll(&mut held).unwrap()[0].is_done());
    }
    let expire = |gateway: &mut Gateway, now| {
        let mut expired = gateway.ledger.decide(vec![LedgerOperation::ExpireHolds], now);
        gateway.hand.turn();
        match poll(&mut expired).unwrap().remove(0) {
            CommandResult::Done(Receipt::ReleasedMany { holds, .. }) => holds,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(expire(&mut gateways[1], clocks[1]), []);
    clock.advance(Duration::from_secs(61));
    journal.set_time(clock.now());
    for gateway in &mut gateways {
        gateway.hand.renew();
    }
    assert_eq!(expire(&mut gateways[0], clocks[0]), [hold_id(1)]);
    assert!(matches!(gateways[0].ledger.hold(&hold_id(2)), Some(HoldView::Open(_))));
    assert_eq!(expire(&mut gateways[1], clocks[1]), [HoldId::from_bits(2)]);
}

#[test]
fn threads_take_turns_by_themselves_and_leave_when_they_are_closed() {
    let journal = MemorySharedJournal::new();
    journal.set_time(UnixNanos::new(START));
    let clock: Arc<dyn Clock> = Arc::new(headrace_domain::SystemClock::new());
    let opened = |owner: u128| {
        let handle = journal.other_handle();
        let next = Box::new(move || Owner::new(owner + 100));
        let clock = Arc::clone(&clock);
        let (presence, owner) = (Box::new(handle.clone()), Owner::new(owner));
        // Rows do not count in this test, only transactions do.
        let options =
            SharedLedgerOptions { snapshot_rows: u64::MAX, snapshot_transactions: 100, ..options() };
        SharedLedger::open(Box::new(handle), presence, owner, next, clock, options).unwrap()
    };
    let gateways = [opened(1).0, opened(2).0];
    let funded = gateways[0].transact(vec![open("o", "p"), grant("o", 10_000)], at(0));
    assert!(funded.verdicts.iter().all(CommandResult::is_done));
    std::thread::scope(|scope| {
        for (first, gateway) in [(1, &gateways[0]), (10_001, &gateways[1])] {
            for caller in 0..4_u128 {
                scope.spawn(move || {
                    for n in 0..50 {
                        let id = first + caller * 100 + n;
                        let held = gateway.transact(vec![hold(id, 7)], at(0));
                        assert!(held.verdicts[0].is_done(), "{:?}", held.verdicts);
                        let settled = gateway.transact(vec![settle(id, 5)], at(0));
                        assert!(settled.verdicts[0].is_done(), "{:?}", settled.verdicts);
                    }
                });
            }
        }
    });
    assert!(
        gateways[0].health().snapshots >= 1 && gateways[1].health().snapshots >= 1,
        "for 802 transactions"
    );
    let left = gateways[0].transact(vec![hold(99_999, 7)], at(0));
    assert!(left.verdicts[0].is_done());
    for gateway in &gateways {
        gateway.close().unwrap();
        let refused = gateway.transact(vec![hold(99_998, 7)], at(0));
        assert!(matches!(refused.verdicts[0], CommandResult::Refused(LedgerRefusal::Unavailable { .. })));
    }
    let report = verify(&journal.contents());
    assert!(report.ok(), "{:?}", report.findings);
    assert_eq!(report.totals.revenue.get(), 2 * 4 * 50 * 5);
    assert_eq!(report.totals.held.get(), 0, "what a gateway leaves open is released");
    let (again, opened) = opened(3);
    assert_eq!(opened.rows_replayed, 0, "the last gateway left a snapshot");
    again.close().unwrap();
}

#[test]
fn an_outage_longer_than_the_lease_makes_no_gateway_declare_another_one_dead() {
    let (journal, clock, mut gateways) = fleet(2);
    fund(&mut gateways[0], 100);
    let mut held = gateways[1].ledger.decide(vec![hold(1, 60)], at(0));
    gateways[1].hand.turn();
    assert!(poll(&mut held).unwrap()[0].is_done());
    let advance = |by: Duration| {
        clock.advance(by);
        journal.set_time(clock.now());
    };
    gateways.iter().for_each(|gateway| gateway.journal.set_cut(true));
    for _ in 0..4 {
        advance(LEASE);
        for gateway in &mut gateways {
            assert!(!gateway.hand.renew());
            assert_eq!(gateway.hand.turn(), TurnOutcome::Failed);
        }
    }
    gateways.iter().for_each(|gateway| gateway.journal.set_cut(false));
    // The first one is back a little earlier than the other one.
    for _ in 0..3 {
        assert!(gateways[0].hand.renew());
        assert_eq!(gateways[0].hand.turn(), TurnOutcome::Read);
        advance(Duration::from_secs(2));
    }
    assert!(gateways[1].hand.renew());
    let mut settled = gateways[1].ledger.decide(vec![settle(1, 50)], at(0));
    assert_eq!(gateways[1].hand.turn(), TurnOutcome::Written);
    assert!(poll(&mut settled).unwrap()[0].is_done());
}

#[test]
fn a_jump_of_the_journals_clock_stops_decisions_until_it_is_set_right() {
    let (journal, clock, mut gateways) = fleet(1);
    fund(&mut gateways[0], 100);
    let hour = Duration::from_secs(3600);
    // A night without calls is no jump.
    clock.advance(8 * hour);
    journal.set_time(clock.now());
    gateways[0].hand.renew();
    let mut held = gateways[0].ledger.decide(vec![hold(1, 10)], at(0));
    gateways[0].hand.turn();
    assert!(poll(&mut held).unwrap()[0].is_done());
    journal.set_time(clock.now().after(hour + Duration::from_secs(1)));
    let mut held = gateways[0].ledger.decide(vec![hold(2, 10)], at(0));
    assert_eq!(gateways[0].hand.turn(), TurnOutcome::Failed);
    let down = gateways[0].ledger.health().down.unwrap();
    assert!(down.contains("clock is 3601 s ahead"), "{down}");
    journal.set_time(clock.now().after(hour));
    assert_eq!(gateways[0].hand.turn(), TurnOutcome::Written);
    assert!(poll(&mut held).unwrap()[0].is_done());
    assert!(verify(&journal.contents()).ok());
}

/// Two gateways. The second one has read a row of the first one that the journal then lost.
fn vanished(is_acknowledged: bool) -> (MemorySharedJournal, Arc<ManualClock>, Vec<Gateway>, PendingBatch) {
    let (journal, clock, mut gateways) = fleet(2);
    fund(&mut gateways[0], 100);
    let mut own = gateways[1].ledger.decide(vec![hold(1, 10)], at(0));
    gateways[1].hand.turn();
    assert!(poll(&mut own).unwrap()[0].is_done());
    if !is_acknowledged {
        gateways[0].journal.fail_commit(CommitFault::Unheard);
    }
    let mut held = gateways[0].ledger.decide(vec![hold(2, 60)], at(0));
    gateways[0].hand.turn();
    assert_eq!(poll(&mut held).is_some(), is_acknowledged);
    assert_eq!(gateways[1].hand.turn(), TurnOutcome::Read);
    assert_eq!(gateways[1].ledger.open_holds().len(), 2, "it has read the row");
    journal.lose_rows(1);
    (journal, clock, gateways, held)
}

fn pass(journal: &MemorySharedJournal, clock: &ManualClock, time: Duration) {
    clock.advance(time);
    journal.set_time(clock.now());
}

#[test]
fn what_vanished_rows_held_is_free_again() {
    let (journal, clock, mut gateways, held) = vanished(false);
    // The caller leaves, so that the hold is not decided again.
    drop(held);
    for second in 0..4 {
        gateways[1].hand.turn();
        gateways[0].hand.turn();
        pass(&journal, &clock, Duration::from_secs(1));
        assert!(gateways.iter_mut().all(|gateway| gateway.hand.renew()), "after {second} s");
    }
    let mut all = gateways[1].ledger.decide(vec![hold(3, 90)], at(0));
    assert_eq!(gateways[1].hand.turn(), TurnOutcome::Written);
    assert!(poll(&mut all).unwrap()[0].is_done(), "10 of 100 are held");
    assert!(verify(&journal.contents()).ok());
}

#[test]
fn a_turn_on_top_of_vanished_rows_is_decided_again() {
    let (journal, clock, mut gateways) = fleet(2);
    fund(&mut gateways[0], 100);
    gateways[0].journal.fail_commit(CommitFault::Unheard);
    let mut first = gateways[0].ledger.decide(vec![hold(1, 60)], at(0));
    gateways[0].hand.turn();
    gateways[1].journal.fail_commit(CommitFault::Unheard);
    let mut second = gateways[1].ledger.decide(vec![hold(2, 30)], at(0));
    assert_eq!(gateways[1].hand.turn(), TurnOutcome::Failed);
    journal.lose_rows(2);
    for _ in 0..4 {
        gateways[1].hand.turn();
        gateways[0].hand.turn();
        pass(&journal, &clock, Duration::from_secs(1));
        assert!(gateways.iter_mut().all(|gateway| gateway.hand.renew()));
    }
    gateways[1].hand.turn();
    for pending in [&mut first, &mut second] {
        assert!(poll(pending).unwrap()[0].is_done());
    }
    let report = verify(&journal.contents());
    assert!(report.ok(), "{:?}", report.findings);
    assert_eq!((report.totals.held.get(), report.totals.holds), (90, 2), "each once");
}

#[test]
fn a_row_that_a_caller_was_told_of_late_counts_as_acknowledged() {
    let (journal, _, mut gateways) = fleet(1);
    fund(&mut gateways[0], 100);
    gateways[0].journal.fail_commit(CommitFault::Unheard);
    let mut held = gateways[0].ledger.decide(vec![hold(1, 60)], at(0));
    assert_eq!(gateways[0].hand.turn(), TurnOutcome::Failed);
    gateways[0].hand.turn();
    assert!(poll(&mut held).unwrap()[0].is_done(), "the next turn found the row");
    journal.lose_rows(1);
    assert_eq!(gateways[0].hand.turn(), TurnOutcome::Failed);
    let down = gateways[0].ledger.health().down.unwrap();
    assert!(down.contains("went back"), "{down}");
}

#[test]
fn a_gateway_continues_after_rows_vanished_that_no_caller_was_told_of() {
    let (journal, clock, mut gateways, mut held) = vanished(false);
    let mut waits = gateways[1].ledger.decide(vec![hold(3, 40)], at(0));
    for second in 0..3 {
        assert_eq!(gateways[1].hand.turn(), TurnOutcome::Failed, "after {second} s");
        assert!(poll(&mut waits).is_none());
        gateways[0].hand.turn();
        pass(&journal, &clock, Duration::from_secs(1));
        assert!(gateways.iter_mut().all(|gateway| gateway.hand.renew()));
    }
    assert!(poll(&mut held).unwrap()[0].is_done(), "decided anew");
    assert_eq!(gateways[1].hand.turn(), TurnOutcome::Read);
    // 10 and 60 are held, and 40 is more than the rest.
    assert!(!poll(&mut waits).unwrap()[0].is_done());
    let mut fits = gateways[1].ledger.decide(vec![hold(4, 30)], at(0));
    assert_eq!(gateways[1].hand.turn(), TurnOutcome::Written);
    assert!(poll(&mut fits).unwrap()[0].is_done());
    let mut settled = gateways[1].ledger.decide(vec![settle(1, 5)], at(0));
    gateways[1].hand.turn();
    assert!(poll(&mut settled).unwrap()[0].is_done(), "its own hold was not lost");
    assert!(verify(&journal.contents()).ok());
}

#[test]
fn a_gateway_halts_if_nothing_vouches_for_the_rows_that_vanished() {
    // The author of the rows was killed with the database, has halted because its callers know of them, or has left.
    for author in ["killed", "halted", "left"] {
        let (journal, clock, mut gateways, _) = vanished(true);
        for second in 0..3 {
            assert_eq!(gateways[1].hand.turn(), TurnOutcome::Failed, "after {second} s");
            let down = gateways[1].ledger.health().down.unwrap();
            assert!(down.contains("whether they were acknowledged"), "{down}");
            if author == "halted" {
                assert_eq!(gateways[0].hand.turn(), TurnOutcome::Failed);
                assert!(!gateways[0].hand.renew(), "a gateway that has halted is not live");
            }
            if author == "left" {
                assert!(gateways[0].hand.renew());
                let mut handle = journal.other_handle();
                handle.join(Owner::new(1), 5).unwrap();
                handle.leave(Owner::new(1)).unwrap();
            }
            pass(&journal, &clock, Duration::from_secs(1));
            assert!(gateways[1].hand.renew());
        }
        for _ in 0..2 {
            assert_eq!(gateways[1].hand.turn(), TurnOutcome::Failed);
            let down = gateways[1].ledger.health().down.unwrap();
            assert!(down.contains("went back"), "{down}");
            assert!(!gateways[1].hand.renew());
        }
    }
}
