//! Refunds of charges: never more than a charge in sum, once per reference, and found in the journal by the id of a call.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
#![allow(dead_code, reason = "the shared helpers are not all used here")]

use headrace_domain::{HoldId, NanoDollars};
use headrace_ledger::core::LedgerCore;
use headrace_ledger::verify::verify;
use headrace_ledger::{
    JournalHistory as _, Ledger, LedgerOperation, LedgerOptions, LedgerRefusal, MemoryJournal, Receipt,
    RefundableCharge,
};
use proptest::prelude::*;

#[path = "support/world.rs"]
mod world;
use world::*;

fn charge(n: u128, charged: i64) -> RefundableCharge {
    RefundableCharge {
        hold: hold_id(n),
        org: org("o"),
        project: project("p"),
        charged: nano(charged),
        shares: Vec::new(),
    }
}

fn refund(n: u128, charged: i64, amount: Option<i64>, reference: &str) -> LedgerOperation {
    let amount = amount.map(nano);
    LedgerOperation::Refund { charge: Box::new(charge(n, charged)), amount, reference: reference.into() }
}

fn funded() -> LedgerCore {
    let mut core = LedgerCore::new();
    for operation in [open("o", "p"), open("other", "q"), grant("o", 1_000), hold(1, 100), settle(1, 60)] {
        core.apply(operation, at(0)).unwrap();
    }
    core
}

fn done(core: &mut LedgerCore, operation: LedgerOperation) -> (NanoDollars, NanoDollars, bool) {
    match core.apply(operation, at(1)).unwrap().receipt {
        Receipt::Refunded { amount, left, before, .. } => (amount, left, before),
        other => panic!("{other:?}"),
    }
}

#[test]
fn refunds_of_a_hold_never_exceed_its_charge_and_a_reference_refunds_once() {
    let mut core = funded();
    assert_eq!(done(&mut core, refund(1, 60, Some(20), "a")), (nano(20), nano(40), false));
    assert_eq!(done(&mut core, refund(1, 60, Some(20), "a")), (nano(20), nano(40), true), "the same refund");
    assert_eq!(done(&mut core, refund(1, 60, None, "a")), (nano(20), nano(40), true), "the same refund");
    let refused = core.apply(refund(1, 60, Some(41), "b"), at(1)).unwrap_err();
    let LedgerRefusal::RefundExceedsCharge { charged, refunded, asked, .. } = refused else {
        panic!("{refused}")
    };
    assert_eq!((charged, refunded, asked), (nano(60), nano(20), nano(41)));
    let used = core.apply(refund(1, 60, Some(21), "a"), at(1)).unwrap_err();
    assert!(
        matches!(used, LedgerRefusal::RefundReferenceUsed { amount, .. } if amount == nano(20)),
        "{used}"
    );
    assert_eq!(done(&mut core, refund(1, 60, None, "b")), (nano(40), nano(0), false), "all that is left");
    let refused = core.apply(refund(1, 60, None, "c"), at(1)).unwrap_err();
    assert!(matches!(refused, LedgerRefusal::RefundExceedsCharge { .. }), "{refused}");
    let totals = core.totals();
    assert_eq!((totals.refunded, totals.revenue, totals.available), (nano(-60), nano(60), nano(1_000)));
    let standing = core.standing(&org("o"), &project("p"), at(1)).unwrap();
    assert_eq!(standing.spent, nano(60), "a refund does not change what a call used of budgets");
}

#[test]
fn what_was_not_charged_is_not_refunded() {
    let mut core = funded();
    for operation in [hold(2, 50), hold(3, 50), release(3), hold(4, 50), settle(4, 0)] {
        core.apply(operation, at(0)).unwrap();
    }
    let foreign = RefundableCharge { org: org("other"), ..charge(1, 60) };
    for (what, operation) in [
        ("an open hold", refund(2, 50, None, "r")),
        ("a released hold", refund(3, 50, None, "r")),
        ("a free call", refund(4, 0, None, "r")),
        ("another sum than was charged", refund(1, 61, None, "r")),
        ("nothing", refund(1, 60, Some(0), "r")),
        ("less than nothing", refund(1, 60, Some(-1), "r")),
        ("without a reference", refund(1, 60, None, "")),
        ("with a long reference", refund(1, 60, None, &"r".repeat(257))),
        (
            "another organisation's charge",
            LedgerOperation::Refund { charge: Box::new(foreign), amount: None, reference: "r".into() },
        ),
    ] {
        let before = core.totals();
        assert!(core.apply(operation, at(1)).is_err(), "{what}");
        assert_eq!(core.totals(), before, "{what}");
    }
}

#[test]
fn a_charge_is_found_in_the_journal_by_the_id_of_its_call() {
    let journal = MemoryJournal::new();
    let options = LedgerOptions { snapshot_rows: 3, ..LedgerOptions::default() };
    let (ledger, _) = Ledger::open_with(Box::new(journal.clone()), OWNER, at(0), options).unwrap();
    ledger.transact(vec![open("o", "p"), grant("o", 1_000_000)], at(0)).durable.wait().unwrap();
    // Ids name the time of their request in milliseconds.
    let id = |n: u64| (u128::from(at(n * SECOND).get() / 1_000_000) << 80) | u128::from(n);
    for n in 1..600_u64 {
        let amount = i64::try_from(n).unwrap();
        let mut batch = vec![hold(id(n), 1_000)];
        let end = if n % 7 == 0 { release(id(n)) } else { settle(id(n), amount) };
        // Some calls end long after they began.
        if n % 3 == 0 {
            ledger.transact(std::mem::take(&mut batch), at(n * SECOND)).durable.wait().unwrap();
        }
        batch.push(end);
        ledger.transact(batch, at((n + n % 5) * SECOND)).durable.wait().unwrap();
    }
    for n in 1..600_u64 {
        let amount = i64::try_from(n).unwrap();
        let found = journal.charge_of(hold_id(id(n))).unwrap();
        let expected = (n % 7 != 0).then(|| RefundableCharge { hold: hold_id(id(n)), ..charge(1, amount) });
        assert_eq!(found, expected, "{n}");
    }
    // An id whose time is not that of its rows is found by reading all of them.
    for (of, time) in [(9_001_u128, 700), (u128::MAX - 1, 701)] {
        let batch = vec![hold(of, 10), settle(of, 7)];
        ledger.transact(batch, at(time * SECOND)).durable.wait().unwrap();
        assert_eq!(journal.charge_of(hold_id(of)).unwrap().unwrap().charged, nano(7));
    }
    assert_eq!(journal.charge_of(HoldId::from_bits(5)).unwrap(), None);
    ledger.close().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_refunds_leave_a_journal_that_passes_its_check(
        steps in prop::collection::vec((1u128..6, prop::option::of(-2i64..40), 0usize..8, any::<bool>()), 1..60)
    ) {
        let journal = MemoryJournal::new();
        let options = LedgerOptions { snapshot_rows: 4, ..LedgerOptions::default() };
        let (ledger, _) = Ledger::open_with(Box::new(journal.clone()), OWNER, at(0), options).unwrap();
        let mut commands = vec![open("o", "p"), grant("o", 10_000)];
        for n in 1..6 {
            commands.extend([hold(n, 100), settle(n, 10 * i64::try_from(n).unwrap())]);
        }
        ledger.transact(commands, at(0)).durable.wait().unwrap();
        let mut given = 0;
        for (n, amount, reference, is_late) in steps {
            let charged = 10 * i64::try_from(n).unwrap();
            let time = at(if is_late { 2 * SECOND } else { SECOND });
            let result = ledger.transact(vec![refund(n, charged, amount, &format!("r{reference}"))], time);
            if let Ok(Receipt::Refunded { amount, before: false, .. }) = result.verdicts[0].clone().into_result() {
                given += amount.get();
            }
            result.durable.wait().unwrap();
        }
        let live = ledger.totals();
        prop_assert_eq!(live.refunded, nano(-given));
        ledger.close().unwrap();
        let report = verify(&journal.contents());
        prop_assert!(report.ok(), "{}", report);
        prop_assert_eq!(report.totals, live);
        let mut without = journal.contents();
        without.snapshots.clear();
        for contents in [journal.contents(), without] {
            let (again, opened) = Ledger::open(Box::new(MemoryJournal::with(contents)), OWNER, at(0)).unwrap();
            prop_assert_eq!(opened.totals, live);
            let repeated = again.transact(vec![refund(1, 10, Some(1_000), "r0")], at(3 * SECOND));
            prop_assert!(!repeated.verdicts[0].is_done());
        }
    }
}
