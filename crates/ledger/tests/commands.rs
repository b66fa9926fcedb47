//! Tables of every command and every refusal of the core: the result, and the balances after it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]
#![allow(dead_code, reason = "the shared helpers are not all used here")]

use headrace_domain::UnixNanos;
use headrace_ledger::core::LedgerCore;
use headrace_ledger::{
    BudgetPeriod, GrantKind, HoldResolution, HoldView, LedgerOperation, LedgerRefusal, MAX_ANSWER_BYTES,
    Owner, Receipt, ReleaseReason, SettleOutcome, StoredAnswer,
};

#[path = "support/world.rs"]
mod world;
use world::*;

/// Returns a ledger with org `o`, project `p`, and this amount of money.
fn with_money(amount: i64) -> LedgerCore {
    let mut core = LedgerCore::new();
    core.apply(open("o", "p"), at(0)).unwrap();
    core.apply(grant("o", amount), at(0)).unwrap();
    core
}

/// Returns (balance, held, available) of org `o`.
fn money(core: &LedgerCore) -> (i64, i64, i64) {
    let standing = core.standing(&org("o"), &project("p"), at(0)).unwrap();
    (standing.balance.get(), standing.held.get(), standing.available.get())
}

fn run(core: &mut LedgerCore, command: LedgerOperation) -> Result<Receipt, LedgerRefusal> {
    let before = core.totals();
    let result = core.apply(command, at(0)).map(|applied| applied.receipt);
    let t = core.totals();
    let sum: i64 =
        [t.paid_in, t.promotional, t.revenue, t.loss, t.available, t.held].iter().map(|a| a.get()).sum();
    assert_eq!(sum, 0, "{t:?}");
    if result.is_err() {
        assert_eq!(t, before, "a refusal changes nothing");
    }
    result
}

#[test]
fn a_hold_is_taken_and_settled_for_what_was_used() {
    let mut core = with_money(1000);
    let held = run(&mut core, hold(1, 400)).unwrap();
    assert_eq!(held, Receipt::Held { hold: hold_id(1), amount: nano(400), available: nano(600), free: None });
    assert_eq!(money(&core), (1000, 400, 600));
    let settled = run(&mut core, settle(1, 150)).unwrap();
    let wanted = Receipt::Settled {
        hold: hold_id(1),
        charged: nano(150),
        returned: nano(250),
        loss: nano(0),
        exceeded: nano(0),
        answer_kept: false,
    };
    assert_eq!(settled, wanted);
    assert_eq!(money(&core), (850, 0, 850));
    assert_eq!(core.totals().revenue, nano(150));
    assert_eq!(core.totals().paid_in, nano(-1000));
}

#[test]
fn a_charge_never_exceeds_its_hold() {
    for (used, loss, charged, written_off, exceeded) in [
        (100, 0, 100, 0, 0),
        (130, 0, 100, 30, 30),
        (130, 5, 100, 35, 30),
        (40, 60, 40, 60, 0),
        (0, 0, 0, 0, 0),
    ] {
        let mut core = with_money(100);
        run(&mut core, hold(1, 100)).unwrap();
        let receipt = run(&mut core, settle_as(1, used, loss, SettleOutcome::Cancelled, None)).unwrap();
        let Receipt::Settled { charged: c, loss: l, exceeded: e, .. } = receipt else {
            panic!("{receipt:?}")
        };
        assert_eq!((c.get(), l.get(), e.get()), (charged, written_off, exceeded), "used {used}, loss {loss}");
        assert_eq!(money(&core).0, 100 - charged);
        assert_eq!(core.totals().loss.get(), -written_off);
        assert_eq!(core.totals().revenue.get(), charged + written_off);
    }
}

#[test]
fn the_two_402s_are_told_apart() {
    let cases: [(i64, i64, &str); 4] =
        [(100, 101, "out"), (100, 41, "in flight"), (100, 100, "in flight"), (100, 40, "held")];
    for (balance, needed, outcome) in cases {
        let mut core = with_money(balance);
        run(&mut core, hold(1, 60)).unwrap();
        let (balance, held, needed) = (nano(balance), nano(60), nano(needed));
        let (covered, free, may_cap) = (nano(40), None, false);
        let result = run(&mut core, hold(2, needed.get()));
        match outcome {
            "out" => {
                let refusal = LedgerRefusal::OutOfMoney { balance, held, needed, covered, free, may_cap };
                assert_eq!(result, Err(refusal));
            }
            "in flight" => {
                let refusal = LedgerRefusal::HeldInFlight { balance, held, needed, covered, free, may_cap };
                assert_eq!(result, Err(refusal));
            }
            _ => assert!(result.is_ok(), "{result:?}"),
        }
    }
}

#[test]
fn abuse_11_64_parallel_calls_with_the_balance_for_one() {
    let mut core = with_money(100);
    let results: Vec<_> = (0..64).map(|n| run(&mut core, hold(n, 100))).collect();
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    let in_flight = results.iter().filter(|r| matches!(r, Err(LedgerRefusal::HeldInFlight { .. })));
    assert_eq!(in_flight.count(), 63);
    assert_eq!(money(&core), (100, 100, 0));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let invalid = |field| move |refusal: &LedgerRefusal| matches!(refusal, LedgerRefusal::Invalid { field: f, .. } if *f == field);
    let other = |check: fn(&LedgerRefusal) -> bool| check;
    let wrong_line = |price: i64| {
        let mut wrong = lines(10);
        wrong[0].amount = nano(price);
        LedgerOperation::Settle {
            hold: hold_id(1),
            lines: wrong,
            loss: nano(0),
            outcome: SettleOutcome::Completed,
            answer: None,
        }
    };
    let kind = GrantKind::Paid;
    let long = "x".repeat(257);
    let bad_expiry = match hold(9, 1) {
        LedgerOperation::Hold { hold, org, project, amount, owner, idempotency, demand, .. } => {
            LedgerOperation::Hold { hold, org, project, amount, owner, idempotency, demand, expires: at(0) }
        }
        command => command,
    };
    type Check = Box<dyn Fn(&LedgerRefusal) -> bool>;
    let table: Vec<(LedgerOperation, Check)> = vec![
        (grant("nobody", 1), Box::new(other(|r| matches!(r, LedgerRefusal::UnknownOrg { .. })))),
        (grant("o", 0), Box::new(invalid("amount"))),
        (grant("o", -1_000_000), Box::new(invalid("amount"))),
        (grant("o", i64::MIN), Box::new(invalid("amount"))),
        (grant("o", i64::MAX), Box::new(other(|r| *r == LedgerRefusal::Overflow))),
        (
            LedgerOperation::Grant { org: org("o"), amount: nano(1), kind, reference: long },
            Box::new(invalid("reference")),
        ),
        (open("other", "p"), Box::new(other(|r| matches!(r, LedgerRefusal::ProjectTaken { .. })))),
        (
            budget("other", "p", 1, BudgetPeriod::Total),
            Box::new(other(|r| matches!(r, LedgerRefusal::UnknownProject { .. }))),
        ),
        (budget("o", "p", -1, BudgetPeriod::Total), Box::new(invalid("budget"))),
        (
            hold_of("o", "q", 9, 1, None),
            Box::new(other(|r| matches!(r, LedgerRefusal::UnknownProject { .. }))),
        ),
        (
            hold_of("other", "p", 9, 1, None),
            Box::new(other(|r| matches!(r, LedgerRefusal::UnknownProject { .. }))),
        ),
        (hold(9, -1), Box::new(invalid("amount"))),
        (hold(1, 1), Box::new(other(|r| matches!(r, LedgerRefusal::DuplicateHold { .. })))),
        (hold(2, 1), Box::new(other(|r| matches!(r, LedgerRefusal::DuplicateHold { .. })))),
        (bad_expiry, Box::new(invalid("expires"))),
        (hold_of("o", "p", 9, 1, Some(("", 1))), Box::new(invalid("idempotency key"))),
        (hold_of("o", "p", 9, 1, Some((&"k".repeat(256), 1))), Box::new(invalid("idempotency key"))),
        (settle(99, 1), Box::new(other(|r| matches!(r, LedgerRefusal::UnknownHold { .. })))),
        (release(99), Box::new(other(|r| matches!(r, LedgerRefusal::UnknownHold { .. })))),
        (settle_as(1, 1, -1, SettleOutcome::Failed, None), Box::new(invalid("loss"))),
        (wrong_line(8), Box::new(invalid("lines"))),
        (wrong_line(-9), Box::new(invalid("lines"))),
    ];
    for (command, expected) in table {
        let mut core = with_money(1000);
        run(&mut core, hold(1, 100)).unwrap();
        run(&mut core, hold(2, 100)).unwrap();
        run(&mut core, release(2)).unwrap();
        let refusal = run(&mut core, command.clone()).expect_err(&format!("{command:?}"));
        assert!(expected(&refusal), "{command:?} gave {refusal:?}");
        assert!(!refusal.to_string().is_empty() && !refusal.code().name().is_empty());
    }
}

#[test]
fn a_hold_is_resolved_exactly_once() {
    let settled = HoldResolution::Settled { charged: nano(40) };
    let released = HoldResolution::Released { why: ReleaseReason::Refused };
    for (first, how) in [(settle(1, 40), settled), (release(1), released)] {
        for again in [settle(1, 40), release(1)] {
            let mut core = with_money(100);
            run(&mut core, hold(1, 50)).unwrap();
            run(&mut core, first.clone()).unwrap();
            let after = money(&core);
            let refused = run(&mut core, again);
            assert_eq!(refused, Err(LedgerRefusal::AlreadyResolved { hold: hold_id(1), how }));
            assert_eq!(money(&core), after);
            assert_eq!(core.hold_view(&hold_id(1)), Some(HoldView::Resolved(how)));
        }
    }
}

#[test]
fn opening_a_project_again_changes_nothing() {
    let mut core = with_money(5);
    assert_eq!(run(&mut core, open("o", "p")), Ok(Receipt::ProjectOpened { created: false }));
    assert_eq!(run(&mut core, open("o", "p2")), Ok(Receipt::ProjectOpened { created: true }));
    assert_eq!(core.projects(), [(org("o"), project("p")), (org("o"), project("p2"))]);
    assert_eq!(money(&core), (5, 0, 5));
}

#[test]
fn promotional_money_comes_from_its_own_account() {
    let mut core = with_money(5);
    let gift = LedgerOperation::Grant {
        org: org("o"),
        amount: nano(7),
        kind: GrantKind::Promotional,
        reference: String::new(),
    };
    assert_eq!(run(&mut core, gift), Ok(Receipt::Granted { balance: nano(12) }));
    assert_eq!((core.totals().paid_in, core.totals().promotional), (nano(-5), nano(-7)));
}

#[test]
fn a_budget_counts_what_is_spent_and_held() {
    let mut core = with_money(10_000);
    run(&mut core, budget("o", "p", 100, BudgetPeriod::Total)).unwrap();
    run(&mut core, hold(1, 60)).unwrap();
    run(&mut core, settle(1, 30)).unwrap();
    run(&mut core, hold(2, 50)).unwrap();
    let refused = run(&mut core, hold(3, 21)).unwrap_err();
    let wanted = LedgerRefusal::BudgetExceeded {
        project: project("p"),
        limit: nano(100),
        spent: nano(30),
        held: nano(50),
        needed: nano(21),
        resets: None,
    };
    assert_eq!(refused, wanted);
    let standing = core.standing(&org("o"), &project("p"), at(0)).unwrap();
    assert_eq!(standing.budget_left, Some(nano(20)));
    run(&mut core, hold(4, 20)).unwrap();
    // The loss of a call does not count as spent by the project.
    run(&mut core, settle_as(4, 0, 20, SettleOutcome::Failed, None)).unwrap();
    run(&mut core, hold(5, 20)).unwrap();
    // Without the budget, only the balance counts. When the budget is set again, earlier spending counts again.
    run(&mut core, LedgerOperation::SetBudget { org: org("o"), project: project("p"), budget: None })
        .unwrap();
    run(&mut core, hold(6, 1000)).unwrap();
    run(&mut core, budget("o", "p", 1000, BudgetPeriod::Total)).unwrap();
    assert!(matches!(run(&mut core, hold(7, 1)), Err(LedgerRefusal::BudgetExceeded { .. })));
}

#[test]
fn a_monthly_budget_begins_anew_in_utc() {
    let mut core = with_money(10_000);
    // December begins eleven days after 20 November.
    let (november, december) = (at(11 * DAY - 1), at(11 * DAY));
    let hold_at = |n: u128, amount| match hold(n, amount) {
        LedgerOperation::Hold { hold, org, project, amount, owner, idempotency, demand, .. } => {
            let expires = at(20 * DAY);
            LedgerOperation::Hold { hold, org, project, amount, owner, idempotency, demand, expires }
        }
        command => command,
    };
    run(&mut core, budget("o", "p", 100, BudgetPeriod::Month)).unwrap();
    core.apply(hold_at(1, 90), november).unwrap();
    core.apply(settle(1, 90), november).unwrap();
    match core.apply(hold_at(2, 11), november) {
        Err(LedgerRefusal::BudgetExceeded { spent, resets, .. }) => {
            assert_eq!((spent, resets), (nano(90), Some(december)));
        }
        other => panic!("{other:?}"),
    }
    // A hold across midnight counts against the month in which it is settled.
    core.apply(hold_at(3, 10), november).unwrap();
    assert_eq!(core.standing(&org("o"), &project("p"), december).unwrap().budget_left, Some(nano(90)));
    core.apply(settle(3, 10), december).unwrap();
    assert_eq!(core.standing(&org("o"), &project("p"), december).unwrap().budget_left, Some(nano(90)));
    core.apply(hold_at(4, 90), december).unwrap();
    assert!(core.apply(hold_at(5, 1), december).is_err());
}

#[test]
fn orphans_and_expired_holds_are_released_and_nothing_charged() {
    let mut core = with_money(1000);
    for n in 1..=3 {
        run(&mut core, hold(n, 100)).unwrap();
    }
    let foreign = match hold(4, 100) {
        LedgerOperation::Hold { hold, org, project, amount, idempotency, demand, .. } => {
            let (owner, expires) = (Owner::new(8), at(10 * SECOND));
            LedgerOperation::Hold { hold, org, project, amount, idempotency, demand, owner, expires }
        }
        command => command,
    };
    run(&mut core, foreign).unwrap();
    assert_eq!(money(&core), (1000, 400, 600));
    let nothing = Receipt::ReleasedMany { holds: vec![], returned: nano(0) };
    let early = core.apply(LedgerOperation::ExpireHolds, at(10 * SECOND - 1)).unwrap();
    assert_eq!((early.receipt, early.transactions.len()), (nothing, 0));
    let expired = core.apply(LedgerOperation::ExpireHolds, at(10 * SECOND)).unwrap();
    assert_eq!(expired.receipt, Receipt::ReleasedMany { holds: vec![hold_id(4)], returned: nano(100) });
    let orphans = run(&mut core, LedgerOperation::ReleaseOwners { ended: vec![OWNER] }).unwrap();
    let holds = vec![hold_id(1), hold_id(2), hold_id(3)];
    assert_eq!(orphans, Receipt::ReleasedMany { holds, returned: nano(300) });
    assert_eq!(money(&core), (1000, 0, 1000));
    let how = HoldResolution::Released { why: ReleaseReason::Orphaned };
    assert_eq!(run(&mut core, settle(1, 1)), Err(LedgerRefusal::AlreadyResolved { hold: hold_id(1), how }));
}

#[test]
fn only_the_holds_of_named_owners_are_released() {
    let mut core = with_money(1000);
    for (n, of) in [(1, 21), (2, 22), (3, 23), (4, 21)] {
        let LedgerOperation::Hold { hold, org, project, amount, expires, idempotency, demand, .. } =
            hold(n, 10)
        else {
            panic!("it is no hold")
        };
        let owner = Owner::new(of);
        run(
            &mut core,
            LedgerOperation::Hold { hold, org, project, amount, owner, expires, idempotency, demand },
        )
        .unwrap();
    }
    assert_eq!(core.owners(), [21, 22, 23].map(Owner::new));
    for (ended, released, left) in [
        (vec![], vec![], 3),
        (vec![99], vec![], 3),
        (vec![22], vec![2], 2),
        (vec![23, 21, 23], vec![1, 3, 4], 0),
    ] {
        let command = LedgerOperation::ReleaseOwners { ended: ended.into_iter().map(Owner::new).collect() };
        let Receipt::ReleasedMany { holds, .. } = run(&mut core, command).unwrap() else { panic!() };
        assert_eq!(holds, released.into_iter().map(hold_id).collect::<Vec<_>>());
        assert_eq!(core.owners().len(), left);
    }
    assert_eq!(money(&core), (1000, 0, 1000));
}

#[test]
fn a_hold_is_extended_as_far_as_money_and_budget_go() {
    let mut core = with_money(1000);
    run(&mut core, budget("o", "p", 700, BudgetPeriod::Total)).unwrap();
    run(&mut core, hold(1, 100)).unwrap();
    let extend = |core: &mut LedgerCore, amount| {
        run(core, LedgerOperation::Extend { hold: hold_id(1), amount: nano(amount), model: None })
    };
    let more = extend(&mut core, 400).unwrap();
    assert_eq!(more, Receipt::Extended { hold: hold_id(1), amount: nano(500), available: nano(500) });
    for (amount, refused) in [(0, "amount"), (-1, "amount"), (201, "BudgetExceeded"), (501, "HeldInFlight")] {
        let why = format!("{:?}", extend(&mut core, amount).unwrap_err());
        assert!(why.contains(refused), "{amount}: {why}");
        assert_eq!(money(&core), (1000, 500, 500), "it stays as it was");
    }
    // It is a single hold: it is settled once, for up to its total amount.
    run(&mut core, settle(1, 450)).unwrap();
    assert_eq!(money(&core), (550, 0, 550));
    assert!(matches!(extend(&mut core, 1), Err(LedgerRefusal::AlreadyResolved { .. })));
}

#[test]
fn a_hold_whose_owner_is_at_work_does_not_expire() {
    let mut core = with_money(1000);
    run(&mut core, hold(1, 100)).unwrap();
    let expired =
        |core: &mut LedgerCore, now| match core.apply(LedgerOperation::ExpireHolds, at(now)).unwrap().receipt
        {
            Receipt::ReleasedMany { holds, .. } => holds.len(),
            other => panic!("{other:?}"),
        };
    core.keep(hold_id(1), at(400 * DAY), std::time::Duration::from_secs(60));
    assert_eq!(expired(&mut core, 400 * DAY + 59 * SECOND), 0);
    assert_eq!(expired(&mut core, 400 * DAY + 60 * SECOND), 1, "only while it says so");
    assert_eq!(money(&core), (1000, 0, 1000));
}

/// Returns the same hold with another expiry.
fn until(command: LedgerOperation, expires: UnixNanos) -> LedgerOperation {
    match command {
        LedgerOperation::Hold { hold, org, project, amount, owner, idempotency, demand, .. } => {
            LedgerOperation::Hold { hold, org, project, amount, owner, idempotency, demand, expires }
        }
        command => command,
    }
}

#[test]
fn a_ledger_that_ran_on_a_clock_that_was_ahead_is_set_back() {
    let mut core = with_money(1000);
    run(&mut core, budget("o", "p", 500, BudgetPeriod::Month)).unwrap();
    // The ledger ran in a later year: one call was paid there, and one with a key is still running.
    let ahead = 400 * DAY;
    let running = hold_of("o", "p", 2, 100, Some(("key", 3)));
    for command in [hold(1, 300), settle(1, 300), running] {
        core.apply(until(command, at(ahead + 60 * SECOND)), at(ahead)).unwrap();
    }

    let refused = core.apply(LedgerOperation::SetClock, at(ahead));
    assert!(matches!(refused, Err(LedgerRefusal::Invalid { field: "clock", .. })), "{refused:?}");
    let set = core.apply(LedgerOperation::SetClock, at(DAY)).unwrap();
    assert_eq!(set.receipt, Receipt::ClockSet { from: at(ahead), to: at(DAY) });

    // Money spent in the future month counts in the current one, so no budget is spent twice.
    let left = |core: &LedgerCore| core.standing(&org("o"), &project("p"), at(DAY)).unwrap().budget.unwrap();
    assert_eq!((left(&core).spent, left(&core).held), (nano(300), nano(100)));
    assert!(matches!(
        core.apply(until(hold(3, 101), at(2 * DAY)), at(DAY)),
        Err(LedgerRefusal::BudgetExceeded { .. })
    ));
    // The budget turns over with the real month: START is 20 November.
    let december = core.standing(&org("o"), &project("p"), at(12 * DAY)).unwrap().budget.unwrap();
    assert_eq!(december.spent, nano(0));

    // The hold keeps its intended lifetime, and its key stays taken until a day after its end.
    assert_eq!(core.apply(LedgerOperation::ExpireHolds, at(DAY + 59 * SECOND)).unwrap().transactions, []);
    core.apply(settle_as(2, 10, 0, SettleOutcome::Completed, None), at(DAY + 59 * SECOND)).unwrap();
    let again = until(hold_of("o", "p", 4, 10, Some(("key", 3))), at(3 * DAY));
    let taken = core.apply(again.clone(), at(DAY + 60 * SECOND));
    assert!(matches!(taken, Err(LedgerRefusal::IdempotencyReplay { .. })), "{taken:?}");
    core.apply(again, at(2 * DAY + 60 * SECOND)).unwrap();
}

#[test]
fn ledger_time_never_runs_backwards() {
    let mut core = with_money(1000);
    let later = core.apply(hold(1, 10), at(500 * SECOND)).unwrap();
    assert_eq!(later.transactions[0].time, at(500 * SECOND));
    // The clock was set back by 200 s. The ledger stays at 500 s, and the hold keeps its intended lifetime.
    let set_back = until(hold(2, 10), at(360 * SECOND));
    let earlier = core.apply(set_back, at(300 * SECOND)).unwrap();
    assert_eq!(earlier.transactions[0].time, at(500 * SECOND));
    match core.hold_view(&hold_id(2)) {
        Some(HoldView::Open(held)) => assert_eq!(held.expires, at(560 * SECOND)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_idempotency_key_runs_once() {
    let mut core = with_money(1000);
    let keyed = |n, hash| hold_of("o", "p", n, 100, Some(("key", hash)));
    run(&mut core, keyed(1, 1)).unwrap();
    assert_eq!(run(&mut core, keyed(2, 1)), Err(LedgerRefusal::IdempotencyInFlight { hold: hold_id(1) }));
    assert_eq!(run(&mut core, keyed(2, 9)), Err(LedgerRefusal::IdempotencyMismatch { hold: hold_id(1) }));
    run(&mut core, settle_as(1, 60, 0, SettleOutcome::Completed, Some(b"{\"a\":1}"))).unwrap();
    // The replay check comes before the balance check.
    run(&mut core, hold(3, 940)).unwrap();
    match run(&mut core, keyed(2, 1)) {
        Err(LedgerRefusal::IdempotencyReplay { hold, answer: Some(answer) }) => {
            assert_eq!(
                (hold, answer.status, answer.content_type.as_str()),
                (hold_id(1), 200, "application/json")
            );
            assert_eq!(&*answer.body, b"{\"a\":1}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(run(&mut core, keyed(2, 9)), Err(LedgerRefusal::IdempotencyMismatch { hold: hold_id(1) }));
    // A key with the same name in another project is a different key.
    run(&mut core, release(3)).unwrap();
    run(&mut core, open("o", "p2")).unwrap();
    run(&mut core, hold_of("o", "p2", 4, 100, Some(("key", 1)))).unwrap();
}

#[test]
fn a_key_is_free_again_unless_its_call_was_charged() {
    use SettleOutcome::{Cancelled, Completed, Failed};
    // How the call ended, whether the key is free then, and the charge.
    let table = [
        (release(1), true, 0),
        (LedgerOperation::ReleaseOwners { ended: vec![OWNER] }, true, 0),
        (settle_as(1, 0, 10, Failed, None), true, 0),
        (settle_as(1, 30, 10, Failed, None), true, 0),
        (settle_as(1, 0, 0, Cancelled, None), true, 0),
        (settle_as(1, 30, 0, Cancelled, Some(b"kept by nobody")), false, 30),
        (settle_as(1, 30, 0, Completed, None), false, 30),
        (settle_as(1, 0, 0, Completed, Some(b"a free model's")), false, 0),
    ];
    for (end, free, charged) in table {
        let mut core = with_money(1000);
        run(&mut core, hold_of("o", "p", 1, 100, Some(("key", 1)))).unwrap();
        run(&mut core, end.clone()).unwrap();
        assert_eq!(money(&core).0, 1000 - charged, "{end:?}");
        let again = run(&mut core, hold_of("o", "p", 2, 100, Some(("key", 1))));
        assert_eq!(again.is_ok(), free, "{end:?} then {again:?}");
        let other_hash = hold_of("o", "p", 3, 100, Some(("key", 2)));
        assert!(matches!(run(&mut core, other_hash), Err(LedgerRefusal::IdempotencyMismatch { .. })));
    }
}

#[test]
fn a_key_is_kept_for_24_hours() {
    let mut core = with_money(1000);
    let keyed = |n| match hold_of("o", "p", n, 100, Some(("key", 1))) {
        LedgerOperation::Hold { hold, org, project, amount, owner, idempotency, demand, .. } => {
            LedgerOperation::Hold {
                hold,
                org,
                project,
                amount,
                owner,
                idempotency,
                demand,
                expires: at(9 * DAY),
            }
        }
        command => command,
    };
    run(&mut core, keyed(1)).unwrap();
    core.apply(settle_as(1, 10, 0, SettleOutcome::Completed, Some(b"x")), at(SECOND)).unwrap();
    let early = core.apply(keyed(2), at(DAY + SECOND - 1));
    assert!(matches!(early, Err(LedgerRefusal::IdempotencyReplay { .. })), "{early:?}");
    core.apply(keyed(3), at(DAY + SECOND)).unwrap();
}

#[test]
fn an_answer_too_long_is_not_kept_but_its_key_is() {
    for (length, kept) in [(MAX_ANSWER_BYTES, true), (MAX_ANSWER_BYTES + 1, false)] {
        let mut core = with_money(1000);
        run(&mut core, hold_of("o", "p", 1, 100, Some(("key", 1)))).unwrap();
        let body = vec![b'x'; length];
        let answer = Some(StoredAnswer { status: 200, content_type: "text/plain".into(), body: body.into() });
        let (lines, outcome) = (lines(10), SettleOutcome::Completed);
        let settled = run(
            &mut core,
            LedgerOperation::Settle { hold: hold_id(1), lines, loss: nano(0), outcome, answer },
        );
        assert!(
            matches!(settled, Ok(Receipt::Settled { answer_kept, .. }) if answer_kept == kept),
            "{settled:?}"
        );
        let again = run(&mut core, hold_of("o", "p", 2, 100, Some(("key", 1))));
        match again {
            Err(LedgerRefusal::IdempotencyReplay { answer, .. }) => assert_eq!(answer.is_some(), kept),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn old_answers_make_room_and_their_keys_stay() {
    let mut core = with_money(1000);
    let body = vec![b'x'; MAX_ANSWER_BYTES];
    for n in 0..66u128 {
        run(&mut core, hold_of("o", "p", n, 1, Some((&format!("key-{n}"), 1)))).unwrap();
        run(&mut core, settle_as(n, 1, 0, SettleOutcome::Completed, Some(&body))).unwrap();
    }
    for (n, kept) in [(0, false), (65, true)] {
        match run(&mut core, hold_of("o", "p", 100, 1, Some((&format!("key-{n}"), 1)))) {
            Err(LedgerRefusal::IdempotencyReplay { answer, .. }) => assert_eq!(answer.is_some(), kept, "{n}"),
            other => panic!("{other:?}"),
        }
    }
    // All keys are forgotten when their time is over, and no entry is left behind.
    core.apply(LedgerOperation::ExpireHolds, at(2 * DAY)).unwrap();
    let fresh = match hold_of("o", "p", 100, 1, Some(("key-65", 9))) {
        LedgerOperation::Hold { hold, org, project, amount, owner, idempotency, demand, .. } => {
            LedgerOperation::Hold {
                hold,
                org,
                project,
                amount,
                owner,
                idempotency,
                demand,
                expires: at(3 * DAY),
            }
        }
        command => command,
    };
    core.apply(fresh, at(2 * DAY)).unwrap();
}
