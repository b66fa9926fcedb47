//! Lots, contracts and free tiers: what holds draw from and in which order, where money goes back to, and what ends.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
#![allow(dead_code, reason = "the shared helpers are not all used here")]

use headrace_domain::{ModelName, NanoDollars};
use headrace_ledger::core::{AppliedCommand, LedgerCore};
use headrace_ledger::{
    BudgetMeasure, BudgetScope, FreeLeft, FreeTier, JournalEvent, LedgerOperation, LedgerRefusal, LotId,
    LotKind, LotTerms, MoneySource, Receipt, RefundTarget, RefundableCharge, Transaction,
};

#[path = "support/world.rs"]
mod world;
use world::*;

fn lot(kind: LotKind, amount: i64, ends: Option<u64>, models: &[&str]) -> LedgerOperation {
    let models: Vec<_> = models.iter().map(|name| ModelName::new(name).unwrap()).collect();
    let terms = LotTerms {
        kind,
        amount: nano(amount),
        begins: at(0),
        ends: ends.map(at),
        models: (!models.is_empty()).then(|| models.into()),
        reference: "a test".into(),
    };
    LedgerOperation::MakeLot { org: org("o"), terms: Box::new(terms) }
}

fn free_tier(name: &str, measure: BudgetMeasure, limit: u64, models: &[&str]) -> LedgerOperation {
    let rule = headrace_ledger::BudgetRule { measure, limit, ..rule(name, BudgetScope::Key) };
    let models: Vec<_> = models.iter().map(|name| ModelName::new(name).unwrap()).collect();
    let models = (!models.is_empty()).then(|| models.into());
    LedgerOperation::SetFreeTier { tier: Box::new(FreeTier { rule, models }) }
}

fn opened(balance: i64) -> LedgerCore {
    let mut core = LedgerCore::new();
    core.apply(open("o", "p"), at(0)).unwrap();
    if balance > 0 {
        core.apply(grant("o", balance), at(0)).unwrap();
    }
    core
}

/// Applies an operation. A hold lasts a month.
fn apply(
    core: &mut LedgerCore,
    operation: LedgerOperation,
    time: u64,
) -> Result<AppliedCommand, LedgerRefusal> {
    let operation = match operation {
        LedgerOperation::Hold { hold, org, project, amount, owner, idempotency, demand, .. } => {
            let expires = at(30 * DAY);
            LedgerOperation::Hold { hold, org, project, amount, owner, expires, idempotency, demand }
        }
        other => other,
    };
    core.apply(operation, at(time))
}

fn applied(core: &mut LedgerCore, operation: LedgerOperation, time: u64) -> (Receipt, Vec<Transaction>) {
    let applied = apply(core, operation.clone(), time).unwrap_or_else(|why| panic!("{operation:?}: {why}"));
    (applied.receipt, applied.transactions)
}

/// The shares of the hold that the first of these transactions takes.
fn shares(transactions: &[Transaction]) -> Vec<(MoneySource, i64)> {
    let funding = match &transactions[0].event {
        JournalEvent::Held(held) => &held.funding,
        JournalEvent::Extended { funding, .. } => funding,
        other => panic!("{other:?}"),
    };
    let shares = funding.iter().flat_map(|funding| &funding.shares);
    shares.map(|share| (share.source, share.amount.get())).collect()
}

fn left(core: &LedgerCore) -> Vec<(u64, i64)> {
    core.lots(None, at(0)).iter().map(|of| (of.lot.id.get(), of.left.get())).collect()
}

fn lot_source(number: u64) -> MoneySource {
    MoneySource::Lot(LotId::new(number))
}

#[test]
fn a_hold_draws_what_ends_soonest_then_gifts_then_what_was_paid_and_contracts_last() {
    let mut core = opened(10);
    for operation in [
        lot(LotKind::Contract, 100, Some(DAY), &[]),
        lot(LotKind::Paid, 10, None, &[]),
        lot(LotKind::Promotional, 10, None, &[]),
        lot(LotKind::Paid, 10, Some(3 * DAY), &[]),
        lot(LotKind::Promotional, 10, Some(3 * DAY), &[]),
        lot(LotKind::Paid, 10, Some(2 * DAY), &[]),
        lot(LotKind::Paid, 10, Some(DAY), &["other"]),
    ] {
        applied(&mut core, operation, 0);
    }
    let (_, transactions) = applied(&mut core, call(1, "k", 75), 1);
    assert_eq!(
        shares(&transactions),
        [
            (lot_source(6), 10),
            (lot_source(5), 10),
            (lot_source(4), 10),
            (lot_source(3), 10),
            (MoneySource::Balance, 10),
            (lot_source(2), 10),
            (MoneySource::Contract(LotId::new(1)), 15),
        ]
    );
    let accounts: Vec<String> =
        transactions[0].entries.iter().map(|entry| entry.account.to_string()).collect();
    assert_eq!(
        accounts,
        [
            "lot_6",
            "lot_5",
            "lot_4",
            "lot_3",
            "org/o/available",
            "lot_2",
            "org/o/receivable",
            "project/p/held"
        ]
    );
    let standing = core.standing(&org("o"), &project("p"), at(1)).unwrap();
    assert_eq!(
        (standing.owed, standing.held_credit),
        (nano(0), nano(15)),
        "nothing is owed before the call ends"
    );
    // The first shares are charged, and the last ones go back.
    applied(&mut core, settle(1, 33), 2);
    assert_eq!(left(&core), [(1, 100), (2, 10), (3, 7), (4, 0), (5, 0), (6, 0), (7, 10)]);
    let standing = core.standing(&org("o"), &project("p"), at(2)).unwrap();
    assert_eq!((standing.owed, standing.credit, standing.in_lots), (nano(0), nano(100), nano(27)));
}

#[test]
fn a_lot_pays_only_for_its_models_and_only_in_its_time() {
    let mut core = opened(100);
    applied(&mut core, lot(LotKind::Paid, 50, None, &["demo-1"]), 0);
    applied(&mut core, lot(LotKind::Paid, 50, None, &["other"]), 0);
    let LedgerOperation::MakeLot { org, mut terms } = lot(LotKind::Promotional, 50, None, &[]) else {
        panic!("a lot")
    };
    terms.begins = at(DAY);
    applied(&mut core, LedgerOperation::MakeLot { org, terms }, 0);
    let (_, plain) = applied(&mut core, hold(1, 60), 1);
    assert_eq!(shares(&plain), [], "a hold without a model draws from the balance alone");
    let (_, of_model) = applied(&mut core, call(2, "k", 60), 1);
    assert_eq!(shares(&of_model), [(MoneySource::Balance, 40), (lot_source(1), 20)]);
    let refused = apply(&mut core, call(3, "k", 60), 1).unwrap_err();
    let LedgerRefusal::HeldInFlight { balance, held, needed, covered, .. } = refused else {
        panic!("{refused}")
    };
    assert_eq!((balance, held, needed, covered), (nano(150), nano(120), nano(60), nano(30)));
    let (_, later) = applied(&mut core, call(3, "k", 60), DAY);
    assert_eq!(shares(&later), [(lot_source(3), 50), (lot_source(1), 10)]);
}

#[test]
fn what_comes_back_to_an_ended_lot_is_expired_and_no_call_waits_for_its_removal() {
    let mut core = opened(0);
    applied(&mut core, lot(LotKind::Paid, 100, Some(DAY), &[]), 0);
    applied(&mut core, hold(1, 70), 1);
    let late = apply(&mut core, hold(2, 30), DAY).unwrap_err();
    assert!(matches!(late, LedgerRefusal::HeldInFlight { covered, .. } if covered == nano(0)), "{late}");
    applied(&mut core, settle(1, 20), DAY + 1);
    let totals = core.totals();
    assert_eq!((totals.expired, totals.in_lots, totals.revenue), (nano(50), nano(30), nano(20)));
    assert!(core.lots(None, at(DAY)).is_empty(), "an ended lot is not listed");
    // The next hold of the organisation removes it.
    applied(&mut core, grant("o", 10), DAY + 2);
    let (_, transactions) = applied(&mut core, hold(3, 10), DAY + 2);
    assert!(matches!(transactions[1].event, JournalEvent::LotEnded { lot } if lot == LotId::new(1)));
    let totals = core.totals();
    assert_eq!((totals.expired, totals.in_lots), (nano(80), nano(0)));
}

#[test]
fn an_extension_draws_from_the_lots_of_its_hold_and_from_those_for_all_models() {
    let mut core = opened(5);
    applied(&mut core, lot(LotKind::Paid, 20, Some(DAY), &["demo-1"]), 0);
    applied(&mut core, call(1, "k", 10), 1);
    applied(&mut core, lot(LotKind::Promotional, 3, None, &[]), 1);
    applied(&mut core, lot(LotKind::Promotional, 3, None, &["demo-1"]), 1);
    let extend = |amount| LedgerOperation::Extend { hold: hold_id(1), amount: nano(amount), model: None };
    let (_, transactions) = applied(&mut core, extend(15), 2);
    assert_eq!(shares(&transactions), [(lot_source(1), 10), (lot_source(2), 3), (MoneySource::Balance, 2)]);
    assert!(apply(&mut core, extend(4), 2).is_err(), "the lot for the model is another one");
    applied(&mut core, settle(1, 11), 3);
    assert_eq!(left(&core), [(1, 9), (2, 3), (3, 3)]);
    assert_eq!(core.standing(&org("o"), &project("p"), at(3)).unwrap().balance, nano(20));
}

#[test]
fn a_contract_is_used_up_to_its_amount_and_a_payment_restores_it() {
    let mut core = opened(0);
    applied(&mut core, lot(LotKind::Contract, 100, None, &[]), 0);
    applied(&mut core, hold(1, 80), 1);
    assert!(apply(&mut core, hold(2, 30), 1).is_err());
    applied(&mut core, settle(1, 60), 2);
    let totals = core.totals();
    assert_eq!((totals.receivable, totals.revenue, totals.paid_in), (nano(-60), nano(60), nano(0)));
    assert!(apply(&mut core, pay(61), 3).is_err(), "more than is owed");
    assert!(apply(&mut core, pay(0), 3).is_err());
    let (receipt, _) = applied(&mut core, pay(50), 3);
    assert_eq!(receipt, Receipt::DebtPaid { owed: nano(10) });
    assert_eq!(left(&core), [(1, 90)]);
    let totals = core.totals();
    assert_eq!((totals.receivable, totals.paid_in), (nano(-10), nano(-50)));
    // The end of the contract does not change what is owed.
    applied(&mut core, LedgerOperation::EndLot { lot: LotId::new(1) }, 4);
    assert_eq!((core.totals().receivable, core.totals().expired), (nano(-10), nano(0)));
    applied(&mut core, pay(10), 5);
    assert_eq!(core.totals().receivable, nano(0));
}

fn pay(amount: i64) -> LedgerOperation {
    LedgerOperation::PayDebt { org: org("o"), amount: nano(amount), reference: "invoice".into() }
}

#[test]
fn payments_and_refunds_leave_what_calls_in_flight_may_give_back() {
    let mut core = opened(0);
    applied(&mut core, lot(LotKind::Contract, 100, None, &[]), 0);
    let (_, transactions) = applied(&mut core, hold(1, 80), 1);
    assert!(apply(&mut core, pay(1), 1).is_err(), "nothing is owed before the call ends");
    let JournalEvent::Held(held) = &transactions[0].event else { panic!("a hold") };
    let shares = held.funding.as_ref().unwrap().charged(nano(60));
    applied(&mut core, settle(1, 60), 2);
    applied(&mut core, hold(2, 40), 3);
    assert!(apply(&mut core, pay(61), 3).is_err(), "the second call has not ended");
    let (receipt, _) = applied(&mut core, pay(60), 3);
    assert_eq!(receipt, Receipt::DebtPaid { owed: nano(0) });
    applied(&mut core, settle(2, 10), 4);
    assert_eq!((core.totals().receivable, left(&core)), (nano(-10), vec![(1, 90)]));

    // The charge of 60 is paid, and 10 are owed: a refund forgives no more, also with calls in flight.
    applied(&mut core, hold(3, 80), 5);
    let charge = RefundableCharge {
        hold: hold_id(1),
        org: org("o"),
        project: project("p"),
        charged: nano(60),
        shares,
    };
    let refund = LedgerOperation::Refund { charge: Box::new(charge), amount: None, reference: "a".into() };
    applied(&mut core, refund, 6);
    applied(&mut core, release(3), 7);
    assert_eq!((core.totals().receivable, left(&core)), (nano(0), vec![(1, 100), (2, 50)]));
    let standing = core.standing(&org("o"), &project("p"), at(8)).unwrap();
    assert_eq!((standing.owed, standing.held_credit, standing.held), (nano(0), nano(0), nano(0)));
}

#[test]
fn a_payment_restores_no_credit_that_a_call_in_flight_holds() {
    let mut core = opened(0);
    applied(&mut core, lot(LotKind::Contract, 100, Some(9 * DAY), &[]), 0);
    applied(&mut core, lot(LotKind::Contract, 100, None, &[]), 0);
    applied(&mut core, hold(1, 60), 1);
    applied(&mut core, settle(1, 60), 1);
    applied(&mut core, hold(2, 40), 2);
    applied(&mut core, hold(3, 30), 3);
    applied(&mut core, settle(3, 30), 3);
    assert_eq!(left(&core), [(1, 0), (2, 70)]);
    applied(&mut core, pay(90), 4);
    assert_eq!(left(&core), [(1, 60), (2, 100)], "40 of the first contract are in flight");
    applied(&mut core, release(2), 5);
    assert_eq!(left(&core), [(1, 100), (2, 100)]);
}

#[test]
fn a_refund_goes_back_to_its_lots_while_they_live_and_otherwise_to_a_new_one() {
    let mut core = opened(20);
    applied(&mut core, lot(LotKind::Paid, 10, Some(DAY), &[]), 0);
    applied(&mut core, lot(LotKind::Promotional, 10, Some(2 * DAY), &[]), 0);
    applied(&mut core, lot(LotKind::Contract, 50, None, &[]), 0);
    let (_, transactions) = applied(&mut core, hold(1, 60), 1);
    let JournalEvent::Held(held) = &transactions[0].event else { panic!("a hold") };
    let shares = held.funding.as_ref().unwrap().charged(nano(45));
    applied(&mut core, settle(1, 45), 2);
    let charge = RefundableCharge {
        hold: hold_id(1),
        org: org("o"),
        project: project("p"),
        charged: nano(45),
        shares,
    };
    let refund = |amount: Option<i64>, reference: &str| LedgerOperation::Refund {
        charge: Box::new(charge.clone()),
        amount: amount.map(nano),
        reference: reference.into(),
    };
    let parts = |transactions: &[Transaction]| match &transactions[0].event {
        JournalEvent::Refunded(refund) => {
            refund.parts.iter().map(|part| (part.to, part.amount.get())).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    let contract = RefundTarget::Contract(LotId::new(3));
    let (_, first) = applied(&mut core, refund(Some(8), "a"), 3);
    assert_eq!(parts(&first), [(contract, 5), (RefundTarget::Balance, 3)]);
    // The first lot has ended, and the second one lives.
    let (_, second) = applied(&mut core, refund(None, "b"), DAY);
    let lot_2 = RefundTarget::Lot(LotId::new(2));
    assert_eq!(
        parts(&second),
        [(RefundTarget::Balance, 17), (lot_2, 10), (RefundTarget::NewLot(LotId::new(4)), 10)]
    );
    let new = &core.lots(None, at(DAY))[2];
    assert_eq!((new.lot.terms.kind, new.left, new.lot.terms.ends), (LotKind::Promotional, nano(10), None));
    let totals = core.totals();
    assert_eq!((totals.refunded, totals.receivable), (nano(-45), nano(0)));
}

fn free_left(receipt: Receipt) -> FreeLeft {
    match receipt {
        Receipt::Held { free: Some(free), .. } => *free,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_free_tier_pays_for_requests_of_a_day_and_then_the_balance_does() {
    let mut core = opened(100);
    applied(&mut core, free_tier("daily", BudgetMeasure::Requests, 2, &[]), 0);
    for (n, expected) in [(1, 1), (2, 0)] {
        let (receipt, transactions) = applied(&mut core, call(n, "k", 1_000), 1);
        assert_eq!(shares(&transactions), [(MoneySource::Free, 1_000)]);
        let left = free_left(receipt);
        assert_eq!((left.left, left.limit, left.resets), (expected, 2, Some(at(DAY))));
    }
    let refused = apply(&mut core, call(3, "k", 1_000), 2).unwrap_err();
    let LedgerRefusal::OutOfMoney { covered, free: Some(free), .. } = &refused else { panic!("{refused}") };
    assert_eq!((*covered, free.left, free.limit), (nano(100), 0, 2));
    let (receipt, transactions) = applied(&mut core, call(4, "k", 60), 2);
    assert_eq!((shares(&transactions), free_left(receipt).left), (vec![], 0));
    let (receipt, _) = applied(&mut core, call(5, "other", 1_000), 2);
    assert_eq!(free_left(receipt).left, 1, "each key has an amount of its own");
    // A released call does not count, and one that ran does.
    applied(&mut core, release(1), 3);
    applied(&mut core, settle(2, 700), 3);
    let (receipt, _) = applied(&mut core, call(6, "k", 1_000), 3);
    assert_eq!(free_left(receipt).left, 0);
    let totals = core.totals();
    assert_eq!((totals.promotional, totals.revenue), (nano(-2_700), nano(700)));
    let (receipt, _) = applied(&mut core, call(7, "k", 1_000), DAY);
    assert_eq!(free_left(receipt).left, 1, "a new day");
}

#[test]
fn free_dollars_pay_a_part_and_free_tokens_all_or_nothing() {
    let mut core = opened(100);
    applied(&mut core, free_tier("money", BudgetMeasure::Dollars, 30, &["demo-1"]), 0);
    let (receipt, transactions) = applied(&mut core, call(1, "k", 50), 1);
    assert_eq!(shares(&transactions), [(MoneySource::Free, 30), (MoneySource::Balance, 20)]);
    assert_eq!(free_left(receipt).left, 0);
    applied(&mut core, settle(1, 10), 2);
    let (receipt, transactions) = applied(&mut core, call(2, "k", 10), 3);
    assert_eq!((shares(&transactions), free_left(receipt).left), (vec![(MoneySource::Free, 10)], 10));
    applied(
        &mut core,
        LedgerOperation::RemoveFreeTier { name: headrace_domain::BudgetName::new("money").unwrap() },
        3,
    );
    applied(&mut core, free_tier("tokens", BudgetMeasure::Tokens, 40, &[]), 3);
    let (_, transactions) = applied(&mut core, call(3, "k", 50), 4);
    assert_eq!(shares(&transactions), [], "fifty tokens are more than are free");
    let (_, transactions) = applied(&mut core, call(4, "k", 40), 4);
    assert_eq!(shares(&transactions), [(MoneySource::Free, 40)]);
    applied(&mut core, settle(4, 15), 5);
    let report = &core.free_tiers(at(5))[0];
    assert_eq!((report.counters[0].used, report.counters[0].left), (15, 25));
}

#[test]
fn free_tokens_pay_a_whole_call_even_beside_a_lot_that_ends_sooner() {
    let mut core = opened(0);
    applied(&mut core, lot(LotKind::Promotional, 30, Some(DAY / 2), &[]), 0);
    applied(&mut core, free_tier("tokens", BudgetMeasure::Tokens, 100, &[]), 0);
    let (_, transactions) = applied(&mut core, call(1, "k", 50), 1);
    assert_eq!(shares(&transactions), [(MoneySource::Free, 50)]);
    let (_, transactions) = applied(&mut core, call(2, "k", 20), 1);
    assert_eq!(shares(&transactions), [(lot_source(1), 20)], "the lot covers it, and ends sooner");
    applied(&mut core, settle(1, 25), 2);
    let report = &core.free_tiers(at(2))[0];
    assert_eq!((report.counters[0].used, left(&core)), (25, vec![(1, 10)]));
}

#[test]
fn a_charge_uses_the_first_of_two_free_tiers_alone() {
    let mut core = opened(0);
    applied(&mut core, free_tier("first", BudgetMeasure::Dollars, 30, &[]), 0);
    applied(&mut core, free_tier("second", BudgetMeasure::Dollars, 20, &[]), 0);
    let (_, transactions) = applied(&mut core, call(1, "k", 50), 1);
    assert_eq!(shares(&transactions), [(MoneySource::Free, 30), (MoneySource::Free, 20)]);
    applied(&mut core, settle(1, 10), 2);
    let used: Vec<u64> = core.free_tiers(at(2)).iter().map(|report| report.counters[0].used).collect();
    assert_eq!(used, [10, 0]);
}

#[test]
fn the_reported_free_tier_has_the_largest_part_left() {
    let mut core = opened(1_000);
    applied(&mut core, free_tier("money", BudgetMeasure::Dollars, 1_000, &[]), 0);
    applied(&mut core, call(1, "k", 900), 1);
    applied(&mut core, settle(1, 900), 1);
    applied(&mut core, free_tier("requests", BudgetMeasure::Requests, 50, &[]), 1);
    let (receipt, _) = applied(&mut core, call(2, "k", 1), 2);
    let left = free_left(receipt);
    assert_eq!((left.name.as_str(), left.limit), ("requests", 50), "{left:?}");
}

#[test]
fn what_a_free_tier_paid_is_not_refunded() {
    let mut core = opened(100);
    applied(&mut core, free_tier("money", BudgetMeasure::Dollars, 30, &[]), 0);
    let (_, transactions) = applied(&mut core, call(1, "k", 50), 1);
    let JournalEvent::Held(held) = &transactions[0].event else { panic!("a hold") };
    let shares = held.funding.as_ref().unwrap().charged(nano(45));
    applied(&mut core, settle(1, 45), 2);
    let charge = RefundableCharge {
        hold: hold_id(1),
        org: org("o"),
        project: project("p"),
        charged: nano(45),
        shares,
    };
    let refund = |amount: Option<i64>| LedgerOperation::Refund {
        charge: Box::new(charge.clone()),
        amount: amount.map(nano),
        reference: "r".into(),
    };
    assert!(apply(&mut core, refund(Some(16)), 3).is_err());
    let (receipt, _) = applied(&mut core, refund(None), 3);
    let Receipt::Refunded { amount, left, .. } = receipt else { panic!("{receipt:?}") };
    assert_eq!((amount, left), (nano(15), NanoDollars::ZERO));
}

#[test]
fn an_organisation_without_lots_holds_as_before() {
    let mut core = opened(100);
    core.apply(open("rich", "q"), at(0)).unwrap();
    let terms = LotTerms {
        kind: LotKind::Paid,
        amount: nano(10),
        begins: at(0),
        ends: None,
        models: None,
        reference: "".into(),
    };
    applied(&mut core, LedgerOperation::MakeLot { org: org("rich"), terms: Box::new(terms) }, 0);
    let (receipt, transactions) = applied(&mut core, hold(1, 60), 1);
    let JournalEvent::Held(held) = &transactions[0].event else { panic!("a hold") };
    assert!(held.funding.is_none());
    assert_eq!(
        receipt,
        Receipt::Held { hold: hold_id(1), amount: nano(60), available: nano(40), free: None }
    );
}
