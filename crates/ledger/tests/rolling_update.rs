//! Gateways of an older format and newer ones share a ledger while each is replaced, in simulations whose seeds are
//! printed. No gateway meets a row that it cannot read.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "the shared helpers are not all used here")]

use std::sync::Arc;

use headrace_domain::{ManualClock, UnixNanos};
use headrace_ledger::{
    BudgetMeasure, BudgetRule, BudgetScope, CommandResult, FORMAT_VERSION, LedgerClient as _, LedgerError,
    LedgerOperation, LedgerRefusal, MemorySharedJournal, Owner, PlaceLimits, SharedJournal as _,
    SharedLedger, SharedLedgerOptions, TurnHand, TurnOutcome, verify::verify,
};

#[path = "support/gateways.rs"]
mod gateways;
#[path = "support/world.rs"]
mod world;

use gateways::{Random, opened, poll};
use world::{START, at, call, changed, free_tier, grant, open, rule, set_rule, settle};

/// The newest format of the first program that shared a ledger.
const OLDEST_SHARED_FORMAT: u32 = 4;

struct Member {
    ledger: SharedLedger,
    hand: TurnHand,
    owner: Owner,
    is_old: bool,
    held: Vec<u128>,
}

fn member(journal: &MemorySharedJournal, clock: &Arc<ManualClock>, number: u128, is_old: bool) -> Member {
    let newest_format = if is_old { OLDEST_SHARED_FORMAT } else { FORMAT_VERSION };
    let options = SharedLedgerOptions { newest_format, snapshot_rows: 20, ..SharedLedgerOptions::default() };
    let (ledger, hand, _) = opened(journal, clock, number, options);
    Member { ledger, hand, owner: Owner::new(number), is_old, held: Vec::new() }
}

/// Decides one operation at a member in a turn of its own.
fn decided(member: &mut Member, operation: LedgerOperation, seed: u64) -> CommandResult {
    let mut pending = member.ledger.decide(vec![operation], at(0));
    assert_ne!(member.hand.turn(), TurnOutcome::Failed, "seed {seed}: {:?}", member.ledger.health().down);
    poll(&mut pending).unwrap().remove(0)
}

#[test]
fn a_rolling_update_meets_no_unreadable_row() {
    let mut with_rule = 0;
    for seed in 0..300 {
        let mut random = Random(seed);
        let clock = Arc::new(ManualClock::at(UnixNanos::new(START)));
        let journal = MemorySharedJournal::new();
        journal.set_time(UnixNanos::new(START));
        let (mut owners, mut holds) = (3, 0);
        let mut members: Vec<Member> = (1..=3).map(|n| member(&journal, &clock, n, true)).collect();
        for operation in [open("o", "p"), grant("o", 100_000)] {
            assert!(decided(&mut members[0], operation, seed).is_done());
        }
        let mut has_rule = false;
        for step in 0..300 {
            let index = usize::try_from(random.below(3)).unwrap();
            let has_old = members.iter().any(|member| member.is_old);
            let chosen = &mut members[index];
            match random.below(10) {
                0..=4 => {
                    holds += 1;
                    let limited = changed(call(holds, "k", 10), &|demand| {
                        demand.places = Some(PlaceLimits { key: Some(100), ..PlaceLimits::default() });
                    });
                    assert!(decided(chosen, limited, seed).is_done(), "seed {seed}, step {step}");
                    chosen.held.push(holds);
                }
                5..=7 => {
                    if let Some(hold) = chosen.held.pop() {
                        assert!(decided(chosen, settle(hold, 4), seed).is_done(), "seed {seed}, step {step}");
                    }
                }
                8 if !chosen.is_old => {
                    let daily = BudgetRule { limit: 1 << 62, ..rule("daily", BudgetScope::Project) };
                    // A budget needs the format before the newest one, and a free tier the newest.
                    let (operation, format) = match random.one_in(2) {
                        true => (set_rule(daily), FORMAT_VERSION - 1),
                        false => (free_tier("free", BudgetMeasure::Requests, 7), FORMAT_VERSION),
                    };
                    let set = decided(chosen, operation, seed);
                    let refusal = LedgerRefusal::OlderGateway { format, known: OLDEST_SHARED_FORMAT };
                    let refused = CommandResult::Refused(refusal);
                    assert_eq!(
                        (set == refused, set.is_done()),
                        (has_old, !has_old),
                        "seed {seed}, step {step}: {set:?}"
                    );
                    has_rule |= set.is_done();
                }
                9 if random.below(6) == 0 && step > 40 => {
                    // It ends its calls and leaves, and a newer program takes its place.
                    for hold in std::mem::take(&mut chosen.held) {
                        assert!(decided(chosen, settle(hold, 4), seed).is_done(), "seed {seed}, step {step}");
                    }
                    let mut handle = journal.other_handle();
                    handle.join(chosen.owner, OLDEST_SHARED_FORMAT).unwrap();
                    handle.leave(chosen.owner).unwrap();
                    owners += 1;
                    members[index] = member(&journal, &clock, owners, false);
                }
                _ => {}
            }
            // Idle gateways read what others wrote.
            for member in &mut members {
                let outcome = member.hand.turn();
                assert_ne!(outcome, TurnOutcome::Failed, "seed {seed}, step {step}");
            }
            if members.iter().any(|member| member.is_old) {
                let newest = journal.contents().rows.iter().map(|row| row.format_version).max();
                assert!(newest.unwrap() <= OLDEST_SHARED_FORMAT, "seed {seed}, step {step}");
            }
        }
        let report = verify(&journal.contents());
        assert!(report.ok(), "seed {seed}: {:?}", report.findings);
        if has_rule {
            with_rule += 1;
            let options =
                SharedLedgerOptions { newest_format: OLDEST_SHARED_FORMAT, ..SharedLedgerOptions::default() };
            let refused = SharedLedger::open_by_hand(
                Box::new(journal.other_handle()),
                Box::new(journal.other_handle()),
                Owner::new(1_000),
                Box::new(|| Owner::new(1_001)),
                clock,
                options,
            );
            let Err(LedgerError::Journal(error)) = refused else {
                panic!("seed {seed}: an older program opened it")
            };
            assert!(error.to_string().contains("newer"), "seed {seed}: {error}");
        }
    }
    assert!(with_rule > 50, "a newer format was written in {with_rule} runs");
}

#[test]
fn a_gateway_that_meets_a_row_of_a_newer_format_stops_and_names_it() {
    let clock = Arc::new(ManualClock::at(UnixNanos::new(START)));
    let journal = MemorySharedJournal::new();
    journal.set_time(UnixNanos::new(START));
    let (mut old, mut new) = (member(&journal, &clock, 1, true), member(&journal, &clock, 2, false));
    assert!(decided(&mut new, open("o", "p"), 0).is_done());
    // Others take the old gateway for ended, and it runs on.
    let mut handle = journal.other_handle();
    handle.join(old.owner, OLDEST_SHARED_FORMAT).unwrap();
    handle.leave(old.owner).unwrap();
    assert!(decided(&mut new, set_rule(rule("daily", BudgetScope::Project)), 0).is_done());
    for _ in 0..2 {
        assert_eq!(old.hand.turn(), TurnOutcome::Failed);
        let down = old.ledger.health().down.unwrap();
        assert!(down.contains("newer"), "{down}");
    }
}
