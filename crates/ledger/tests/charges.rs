//! Settlements found again by the times of their calls, and the charges of a period: seeded journals, compared with the
//! movements of money.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
#![allow(dead_code, reason = "the shared helpers are not all used here")]

use std::collections::BTreeMap;
use std::time::Duration;

use headrace_domain::UnixNanos;
use headrace_ledger::{
    Account, FundedAmounts, HoldDemand, JournalEvent, JournalHistory, Ledger, LedgerOperation, LedgerOptions,
    LotId, LotKind, LotTerms, MemoryJournal, MoneySource, RefundableCharge, SettleOutcome, WindowBounds,
    charges_of, decode_row, find_settlement,
};

#[path = "support/gateways.rs"]
mod gateways;
#[path = "support/world.rs"]
mod world;

use gateways::Random;
use world::*;

/// The hold of a call, when it was taken and settled, and what it was charged. `None` if it was released.
struct Call {
    hold: u128,
    org: &'static str,
    taken: u64,
    ended: u64,
    settled: bool,
}

/// A journal of calls of two organisations. Some calls run over midnight.
fn journal_of(random: &mut Random) -> (MemoryJournal, Vec<Call>) {
    let journal = MemoryJournal::new();
    let options = LedgerOptions { retry: Duration::from_millis(1), ..LedgerOptions::default() };
    let ledger = Ledger::open_with(Box::new(journal.clone()), OWNER, at(0), options).unwrap().0;
    let run = |command, now| {
        let done = ledger.transact(vec![command], at(now));
        done.durable.wait().unwrap();
        assert!(done.verdicts.iter().all(headrace_ledger::CommandResult::is_done), "{:?}", done.verdicts);
    };
    for (org_name, project_name) in [("o", "p"), ("o", "q"), ("x", "y")] {
        run(open(org_name, project_name), 0);
    }
    for org_name in ["o", "x"] {
        run(grant(org_name, 1_000_000_000), 0);
    }
    let (mut now, mut open_calls, mut calls) = (0, Vec::<Call>::new(), Vec::new());
    for number in 1..=u128::from(120 + random.below(100)) {
        now += random.below(1_200) * SECOND;
        let (org_name, project_name) = [("o", "p"), ("o", "q"), ("x", "y")][random.index(3)];
        let amount = i64::try_from(random.below(5_000)).unwrap();
        let mut held = hold_of(org_name, project_name, number, amount, None);
        if let LedgerOperation::Hold { expires, demand, .. } = &mut held {
            *expires = at(now + DAY);
            assert_eq!(*demand, None::<HoldDemand>);
        }
        run(held, now);
        open_calls.push(Call { hold: number, org: org_name, taken: now, ended: 0, settled: false });
        while !open_calls.is_empty() && random.below(3) > 0 {
            let mut call = open_calls.swap_remove(random.index(open_calls.len()));
            now += random.below(600) * SECOND;
            call.ended = now;
            call.settled = random.below(5) > 0;
            let of_lines = i64::try_from(random.below(6_000)).unwrap();
            let outcome = [SettleOutcome::Completed, SettleOutcome::Cancelled][random.index(2)];
            match call.settled {
                true => run(settle_as(call.hold, of_lines, 0, outcome, None), now),
                false => run(release(call.hold), now),
            }
            calls.push(call);
        }
    }
    (journal, calls)
}

/// What an organisation was charged in a period, by the entries of all settlements.
fn charged_by_entries(journal: &MemoryJournal, name: &str, period: WindowBounds) -> i64 {
    let mut orgs = BTreeMap::new();
    let mut sum = 0;
    for row in journal.rows_after(0, usize::MAX).unwrap() {
        for transaction in decode_row(&row).unwrap() {
            match &transaction.event {
                JournalEvent::Held(held) => drop(orgs.insert(held.hold.bits(), held.org.to_string())),
                JournalEvent::Settled(settled)
                    if orgs.get(&settled.hold.bits()).is_some_and(|org| org == name)
                        && period.start <= transaction.time
                        && transaction.time < period.end =>
                {
                    for entry in &transaction.entries {
                        if matches!(entry.account, Account::Available(_) | Account::Held(_)) {
                            sum -= entry.amount.get();
                        }
                    }
                }
                _ => {}
            }
        }
    }
    sum
}

#[test]
fn charges_of_periods_are_the_ledgers_to_the_nano_dollar() {
    for seed in 0..25 {
        println!("seed {seed}");
        let (journal, calls) = journal_of(&mut Random(seed));
        let end = calls.iter().map(|call| call.ended).max().unwrap() + SECOND;
        for name in ["o", "x"] {
            let mut parts = 0;
            let mut counted = 0;
            // Days partition all time.
            for day in 0..=end / DAY {
                let period = WindowBounds { start: at(day * DAY), end: at((day + 1) * DAY) };
                let charges = charges_of(&journal, &org(name), period).unwrap();
                let of_lines: i64 = charges.lines.values().map(|(_, amount)| amount.get()).sum();
                let not_charged: i64 = charges.not_charged.values().map(|amount| amount.get()).sum();
                assert!(charges.not_charged.values().all(|amount| amount.is_negative()));
                assert_eq!(of_lines + not_charged, charges.charged.get(), "lines are the whole");
                assert_eq!(charges.charged.get(), charged_by_entries(&journal, name, period), "day {day}");
                parts += charges.charged.get();
                counted += charges.calls;
            }
            let whole = WindowBounds { start: at(0), end: at(end) };
            let all = charges_of(&journal, &org(name), whole).unwrap();
            assert_eq!((all.charged.get(), all.calls), (parts, counted));
            assert_eq!(all.last_row, journal.last_row_before(UnixNanos::new(u64::MAX)).unwrap());
        }
    }
}

fn lot(kind: LotKind, amount: i64, ends: Option<u64>) -> LedgerOperation {
    let (begins, ends, models) = (at(0), ends.map(at), None);
    let terms = LotTerms { kind, amount: nano(amount), begins, ends, models, reference: "a test".into() };
    LedgerOperation::MakeLot { org: org("o"), terms: Box::new(terms) }
}

#[test]
fn charges_and_refunds_have_the_amounts_of_each_source() {
    let journal = MemoryJournal::new();
    let options = LedgerOptions { retry: Duration::from_millis(1), ..LedgerOptions::default() };
    let ledger = Ledger::open_with(Box::new(journal.clone()), OWNER, at(0), options).unwrap().0;
    let run = |command, now| {
        let done = ledger.transact(vec![command], at(now));
        done.durable.wait().unwrap();
        assert!(done.verdicts.iter().all(headrace_ledger::CommandResult::is_done), "{:?}", done.verdicts);
    };
    run(open("o", "p"), 0);
    run(grant("o", 100), 0);
    for (kind, amount) in [(LotKind::Promotional, 40), (LotKind::Paid, 30), (LotKind::Contract, 1_000)] {
        run(lot(kind, amount, Some(60 * DAY)), 0);
    }
    // Promotional 40, paid 30, balance 100, contract 80.
    run(hold(1, 200), SECOND);
    run(LedgerOperation::Extend { hold: hold_id(1), amount: nano(50), model: None }, 2 * SECOND);
    run(settle(1, 245), 3 * SECOND);
    run(hold(2, 10), 4 * SECOND);
    run(settle(2, 10), 5 * SECOND);
    let period = WindowBounds { start: at(0), end: at(DAY) };
    let amounts = |given, owed| FundedAmounts { given: nano(given), owed: nano(owed) };
    let charges = charges_of(&journal, &org("o"), period).unwrap();
    assert_eq!((charges.charged, charges.funded), (nano(255), amounts(40, 85)));
    assert_eq!(charges.refunded_after(0), Some(FundedAmounts::default()));

    let shares = [
        (MoneySource::Lot(LotId::new(1)), 40),
        (MoneySource::Lot(LotId::new(2)), 30),
        (MoneySource::Balance, 100),
        (MoneySource::Contract(LotId::new(3)), 75),
    ];
    let shares =
        shares.map(|(source, amount)| headrace_ledger::ChargedShare { source, amount: nano(amount) });
    let charge = RefundableCharge {
        hold: hold_id(1),
        org: org("o"),
        project: project("p"),
        charged: nano(245),
        shares: shares.to_vec(),
    };
    let refund = |amount, reference: &str| LedgerOperation::Refund {
        charge: Box::new(charge.clone()),
        amount,
        reference: reference.into(),
    };
    // The last part of the charge goes back first: the contract's 75, and 5 of the balance.
    run(refund(Some(nano(80)), "a part"), 6 * SECOND);
    let first = charges_of(&journal, &org("o"), period).unwrap();
    assert_eq!(first.refunded_after(0), Some(amounts(0, 75)));
    // The promotional lot ends, so that its part goes to a new lot. It was given all the same.
    run(LedgerOperation::EndLot { lot: LotId::new(1) }, 7 * SECOND);
    run(refund(None, "the rest"), 8 * SECOND);
    let all = charges_of(&journal, &org("o"), period).unwrap();
    assert_eq!((all.funded, all.refunded_after(0)), (charges.funded, Some(amounts(40, 75))));
    assert_eq!(all.refunded_after(first.last_row), Some(amounts(40, 0)), "the later refund alone");

    // What a call draws from the lot of a refund is given, too.
    run(hold(3, 40), 9 * SECOND);
    run(settle(3, 40), 10 * SECOND);
    let later = charges_of(&journal, &org("o"), period).unwrap();
    assert_eq!(
        (later.charged, later.funded),
        (nano(295), amounts(50, 85)),
        "30 of the paid lot, 10 of the new one"
    );
}

#[test]
fn every_settlement_is_found_by_its_times_and_no_released_hold_is() {
    for seed in 100..110 {
        println!("seed {seed}");
        let (journal, calls) = journal_of(&mut Random(seed));
        for call in &calls {
            let find = |taken, ended| find_settlement(&journal, hold_id(call.hold), taken, ended).unwrap();
            let found = find(at(call.taken), at(call.ended));
            assert_eq!(found.is_some(), call.settled);
            // A clock that is half an hour off only costs time.
            let early = at(call.ended.saturating_sub(1_800 * SECOND));
            assert_eq!(find(early, early), found);
            let Some(found) = found else { continue };
            assert_eq!((found.time, found.settled.hold), (at(call.ended), hold_id(call.hold)));
            let row = journal.rows_after(found.sequence - 1, 1).unwrap().remove(0);
            assert_eq!((row.sequence, row.checksum), (found.sequence, found.checksum));
        }
        assert_eq!(find_settlement(&journal, hold_id(9_999), at(0), at(1)).unwrap(), None);
    }
}

#[test]
fn the_last_row_before_a_time_is_found_in_journals_of_every_length() {
    let journal = MemoryJournal::new();
    let options = LedgerOptions { retry: Duration::from_millis(1), ..LedgerOptions::default() };
    let ledger = Ledger::open_with(Box::new(journal.clone()), OWNER, at(0), options).unwrap().0;
    assert_eq!(journal.last_row_before(at(0)).unwrap(), 0);
    for number in 0..40_u64 {
        let name = format!("p{number}");
        let done = ledger.transact(vec![open("o", &name)], at(number * 10));
        done.durable.wait().unwrap();
        let rows = journal.rows_after(0, usize::MAX).unwrap();
        for time in 0..=number * 10 + 11 {
            let expected = rows.iter().filter(|row| row.time < at(time)).count() as u64;
            assert_eq!(journal.last_row_before(at(time)).unwrap(), expected, "{number} rows, time {time}");
        }
    }
}
