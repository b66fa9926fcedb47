//! Budget rules: what counts, what is refused, how windows turn, and alerts.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]
#![allow(dead_code, reason = "the shared helpers are not all used here")]

use std::sync::Arc;

use headrace_domain::{BudgetName, Code, HolderTiers, KeyId, ModelName, TierName, UserId};
use headrace_ledger::core::LedgerCore;
use headrace_ledger::verify::verify;
use headrace_ledger::{
    BudgetMeasure, BudgetRaise, BudgetRule, BudgetScope, BudgetWindow, HoldDemand, IdempotencyClaim,
    JournalEvent, Ledger, LedgerOperation, LedgerRefusal, LoadedJournal, MemoryJournal, PlaceLimits, Receipt,
    SettleOutcome,
};

#[path = "support/world.rs"]
mod world;
use world::*;

const HOUR: u64 = 3600 * SECOND;

/// Like [`world::call`], but the hold expires after a month.
fn call(n: u128, key: &str, amount: i64) -> LedgerOperation {
    match world::call(n, key, amount) {
        LedgerOperation::Hold { hold, org, project, amount, owner, idempotency, demand, .. } => {
            let expires = at(30 * DAY);
            LedgerOperation::Hold { hold, org, project, amount, owner, expires, idempotency, demand }
        }
        other => other,
    }
}

/// Runs a command that must succeed.
fn run(core: &mut LedgerCore, command: LedgerOperation, now: u64) -> Vec<JournalEvent> {
    let applied = core.apply(command.clone(), at(now));
    let applied = applied.unwrap_or_else(|refusal| panic!("{command:?}: {refusal}"));
    applied.transactions.into_iter().map(|transaction| transaction.event).collect()
}

fn refused(core: &mut LedgerCore, command: LedgerOperation, now: u64) -> LedgerRefusal {
    let before = format!("{core:?}");
    let refusal = core.apply(command.clone(), at(now)).expect_err(&format!("{command:?}"));
    if !matches!(refusal, LedgerRefusal::Inconsistent { .. }) {
        assert_eq!(
            without_latest(&before),
            without_latest(&format!("{core:?}")),
            "a refusal changes nothing"
        );
    }
    refusal
}

/// The state without the latest time, which a refused command may move.
fn without_latest(core: &str) -> String {
    core.split("latest: ").next().unwrap().to_owned()
}

fn funded() -> LedgerCore {
    let mut core = LedgerCore::new();
    for command in [open("o", "p"), open("o", "p2"), open("other", "q"), grant("o", 1_000_000)] {
        run(&mut core, command, 0);
    }
    run(&mut core, grant("other", 1_000_000), 0);
    core
}

fn exceeded(refusal: LedgerRefusal) -> headrace_ledger::ExceededBudget {
    match refusal {
        LedgerRefusal::BudgetRuleExceeded(exceeded) => *exceeded,
        other => panic!("{other}"),
    }
}

#[test]
fn each_measure_counts_what_calls_reserve_and_then_what_they_used() {
    for (measure, limit) in
        [(BudgetMeasure::Dollars, 100), (BudgetMeasure::Tokens, 100), (BudgetMeasure::Requests, 2)]
    {
        let mut core = funded();
        let rule = BudgetRule { measure, limit, ..rule("daily", BudgetScope::Key) };
        run(&mut core, set_rule(rule), 0);
        // Each call may cost 50 and take 50 tokens.
        run(&mut core, call(1, "k", 50), 1);
        run(&mut core, call(2, "k", 50), 2);
        let refusal = exceeded(refused(&mut core, call(3, "k", 50), 3));
        assert_eq!((refusal.used, refusal.left(), &*refusal.subject), (0, 0, "k"), "{measure:?}");
        assert!(refusal.fits_later(), "the calls in flight may end and cost less");
        assert_eq!(refusal.resets, Some(at(DAY)));
        run(&mut core, call(4, "another", 50), 4);
        // A call that costs less, and one that does not run.
        run(&mut core, settle(1, 10), 5);
        run(&mut core, release(2), 6);
        let used = if measure == BudgetMeasure::Requests { 1 } else { 10 };
        let report = core.budgets(at(7)).remove(0);
        let counter = report.counters.iter().find(|counter| &*counter.subject == "k").unwrap();
        assert_eq!((counter.used, counter.reserved, counter.left), (used, 0, limit - used), "{measure:?}");
        if measure == BudgetMeasure::Requests {
            run(&mut core, call(5, "k", 50), 8);
            run(&mut core, settle(5, 50), 9);
            let refusal = exceeded(refused(&mut core, call(6, "k", 1), 10));
            assert!(!refusal.fits_later());
        } else {
            run(&mut core, call(5, "k", 90), 8);
            refused(&mut core, call(6, "k", 1), 9);
        }
        // The next day.
        run(&mut core, call(7, "k", 50), DAY);
    }
}

#[test]
fn a_rule_counts_the_subjects_of_its_scope_and_no_others() {
    let by = |scope| BudgetRule { measure: BudgetMeasure::Requests, limit: 1, ..rule("one", scope) };
    let plain = |n| call(n, "k", 1);
    let of = |n: u128, change: &dyn Fn(&mut HoldDemand)| changed(call(n, "k", 1), change);
    type Change<'c> = &'c dyn Fn(&mut HoldDemand);
    let key: Change<'_> = &|demand| demand.key = KeyId::new("k2").unwrap();
    let user: Change<'_> = &|demand| demand.user = Some(UserId::new("u2").unwrap());
    let model: Change<'_> = &|demand| demand.model = ModelName::new("m2").unwrap();
    // A rule, a call that it counts, calls of the same subject, and calls of others.
    let in_p2 = |n| moved(plain(n), "o", "p2");
    let in_other = |n| moved(plain(n), "other", "q");
    let with_user = |n, name: &'static str| {
        changed(plain(n), &move |demand| demand.user = Some(UserId::new(name).unwrap()))
    };
    let table: Vec<(BudgetRule, [LedgerOperation; 3], Vec<LedgerOperation>)> = vec![
        (by(BudgetScope::Key), [plain(1), in_p2(2), of(3, model)], vec![of(4, key)]),
        (
            by(BudgetScope::User),
            [with_user(1, "u"), with_user(2, "u"), with_user(3, "u")],
            vec![plain(4), of(5, user)],
        ),
        (by(BudgetScope::Project), [plain(1), of(2, key), of(3, model)], vec![in_p2(4)]),
        (by(BudgetScope::Org), [plain(1), in_p2(2), of(3, key)], vec![in_other(4)]),
        (by(BudgetScope::Model), [plain(1), in_p2(2), of(3, key)], vec![of(4, model), in_other(5)]),
        (
            BudgetRule { subject: Some("k2".into()), ..by(BudgetScope::Key) },
            [of(1, key), of(2, key), of(3, key)],
            vec![plain(4), plain(5)],
        ),
        (
            BudgetRule { org: Some(org("other")), ..by(BudgetScope::Key) },
            [in_other(1), in_other(2), in_other(3)],
            vec![plain(4), plain(5)],
        ),
    ];
    for (rule, [first, same, again], others) in table {
        let mut core = funded();
        run(&mut core, set_rule(rule.clone()), 0);
        run(&mut core, first, 1);
        for call in [same, again] {
            assert_eq!(refused(&mut core, call, 2).code(), Code::QuotaExceeded, "{rule}");
        }
        for other in others {
            run(&mut core, other, 3);
        }
    }
}

#[test]
fn a_rule_of_a_tier_counts_the_holders_of_the_tier() {
    let gold = || TierName::new("gold").unwrap();
    let tier = |n: u128, tiers: HolderTiers| {
        changed(call(n, "k", 1), &move |demand| demand.tiers = Some(Arc::new(tiers.clone())))
    };
    let none = HolderTiers::default();
    for (scope, holder) in [
        (BudgetScope::Key, HolderTiers { key: Some(gold()), ..none.clone() }),
        (BudgetScope::Project, HolderTiers { project: Some(gold()), ..none.clone() }),
        (BudgetScope::Org, HolderTiers { org: Some(gold()), ..none.clone() }),
    ] {
        let mut core = funded();
        let requests = BudgetRule { measure: BudgetMeasure::Requests, limit: 1, ..rule("gold", scope) };
        run(&mut core, set_rule(BudgetRule { tier: Some(gold()), ..requests }), 0);
        run(&mut core, call(1, "k", 1), 1);
        run(&mut core, tier(2, none.clone()), 2);
        run(&mut core, tier(3, holder.clone()), 3);
        refused(&mut core, tier(4, holder), 4);
        run(
            &mut core,
            tier(5, HolderTiers { key: Some(TierName::new("silver").unwrap()), ..none.clone() }),
            5,
        );
    }
}

#[test]
fn all_rules_must_cover_a_hold_and_the_one_with_the_least_left_is_named() {
    let mut core = funded();
    let limit = |name, scope, window, limit| BudgetRule { window, limit, ..rule(name, scope) };
    for rule in [
        limit("key-day", BudgetScope::Key, BudgetWindow::Day, 1_000),
        limit("project-month", BudgetScope::Project, BudgetWindow::Month, 200),
        limit("org-hour", BudgetScope::Org, BudgetWindow::Hour, 400),
    ] {
        run(&mut core, set_rule(rule), 0);
    }
    run(&mut core, call(1, "k", 150), 1);
    // 50 of 200 are left in the project (25 %), 250 of 400 in the organisation (62 %).
    let refusal = exceeded(refused(&mut core, call(2, "k", 300), 2));
    assert_eq!((refusal.name.as_str(), refusal.left()), ("project-month", 50));
    // No rule counts a hold that another one refuses.
    let reserved: Vec<u64> = core
        .budgets(at(3))
        .iter()
        .flat_map(|report| &report.counters)
        .map(|counter| counter.reserved)
        .collect();
    assert_eq!(reserved, [150, 150, 150]);
    let text = refused(&mut core, call(2, "k", 300), 2).to_string();
    assert!(text.contains("budget `project-month` allows project `p` $0.0000002 a month"), "{text}");
    assert!(text.contains("It begins anew at 2026-12-01T00:00:00Z"), "{text}");
}

#[test]
fn a_soft_rule_refuses_nothing_and_raises_each_alert_once() {
    let mut core = funded();
    let soft = BudgetRule {
        limit: 100,
        is_hard: false,
        thresholds: vec![50, 100],
        ..rule("soft", BudgetScope::Project)
    };
    run(&mut core, set_rule(soft), 0);
    let alerts = |events: &[JournalEvent]| -> Vec<u16> {
        events
            .iter()
            .filter_map(|event| match event {
                JournalEvent::AlertRaised(alert) => Some(alert.percent),
                _ => None,
            })
            .collect()
    };
    let mut percents = Vec::new();
    for (n, charge) in [(1, 30), (2, 30), (3, 30), (4, 30), (5, 30)] {
        let held = run(&mut core, call(n, "k", 30), n as u64);
        assert_eq!(alerts(&held), [0_u16; 0], "a reservation is no use");
        percents.push(alerts(&run(&mut core, settle(n, charge), n as u64)));
    }
    assert_eq!(percents, [vec![], vec![50], vec![], vec![100], vec![]]);
    // The next window has alerts of its own. A call that goes over both thresholds raises both.
    run(&mut core, call(6, "k", 500), DAY);
    assert_eq!(alerts(&run(&mut core, settle(6, 500), DAY + 1)), [50, 100]);
    let kept: Vec<_> =
        core.alerts().into_iter().map(|(time, alert)| (time, alert.percent, alert.used)).collect();
    assert_eq!(kept, [(at(2), 50, 60), (at(4), 100, 120), (at(DAY + 1), 50, 500), (at(DAY + 1), 100, 500)]);
}

#[test]
fn a_call_that_ends_after_its_window_counts_in_the_window_in_which_it_began() {
    let mut core = funded();
    let rule = BudgetRule { limit: 100, thresholds: vec![80], ..rule("daily", BudgetScope::Key) };
    run(&mut core, set_rule(rule), 0);
    run(&mut core, call(1, "k", 90), DAY - 1);
    run(&mut core, call(2, "k", 100), DAY);
    let events = run(&mut core, settle(1, 90), DAY + 1);
    let JournalEvent::AlertRaised(alert) = events.last().unwrap() else { panic!("{events:?}") };
    assert_eq!((alert.window.start, alert.window.end, alert.used), (at(0), at(DAY), 90));
    let counter = core.budgets(at(DAY + 2)).remove(0).counters.remove(0);
    assert_eq!((counter.window.start, counter.used, counter.reserved), (at(DAY), 0, 100));
}

#[test]
fn an_extension_is_covered_too_and_counts_in_the_window_in_which_it_is_made() {
    let mut core = funded();
    run(&mut core, set_rule(BudgetRule { limit: 100, ..rule("daily", BudgetScope::Key) }), 0);
    let extend = |amount| LedgerOperation::Extend { hold: hold_id(1), amount: nano(amount), model: None };
    run(&mut core, call(1, "k", 60), 1);
    assert_eq!(exceeded(refused(&mut core, extend(41), 2)).needed, 41);
    run(&mut core, extend(40), 3);
    run(&mut core, extend(70), DAY + 1);
    // 100 in the first window, then 20 in the second.
    run(&mut core, settle(1, 120), DAY + 2);
    let counter = core.budgets(at(DAY + 3)).remove(0).counters.remove(0);
    assert_eq!((counter.used, counter.reserved), (20, 0));
}

#[test]
fn a_call_that_costs_nothing_passes_a_spent_budget_and_its_extension_does_not() {
    let mut core = funded();
    run(&mut core, set_rule(BudgetRule { limit: 100, ..rule("daily", BudgetScope::Key) }), 0);
    run(&mut core, call(1, "k", 100), 1);
    run(&mut core, set_rule(BudgetRule { limit: 50, ..rule("daily", BudgetScope::Key) }), 2);
    run(&mut core, call(2, "k", 0), 3);
    let extend = LedgerOperation::Extend { hold: hold_id(2), amount: nano(1), model: None };
    assert_eq!(exceeded(refused(&mut core, extend, 4)).needed, 1);
}

#[test]
fn a_raise_counts_until_its_time_and_never_lowers_the_limit() {
    let mut core = funded();
    run(&mut core, set_rule(BudgetRule { limit: 100, ..rule("daily", BudgetScope::Key) }), 0);
    let name = || BudgetName::new("daily").unwrap();
    let raise = |limit, until| LedgerOperation::RaiseBudget {
        name: name(),
        raise: Some(BudgetRaise { limit, until: at(until) }),
    };
    assert_eq!(refused(&mut core, raise(200, 5), 5).code(), Code::Invalid);
    run(&mut core, raise(200, HOUR), 1);
    run(&mut core, call(1, "k", 200), HOUR - 1);
    assert_eq!(core.budgets(at(HOUR - 1))[0].limit, 200);
    run(&mut core, settle(1, 150), HOUR - 1);
    refused(&mut core, call(2, "k", 1), HOUR);
    run(&mut core, raise(10, 3 * HOUR), 2 * HOUR);
    assert_eq!(core.budgets(at(2 * HOUR))[0].limit, 100);
    run(&mut core, raise(300, 3 * HOUR), 2 * HOUR);
    run(&mut core, LedgerOperation::RaiseBudget { name: name(), raise: None }, 2 * HOUR);
    refused(&mut core, call(3, "k", 1), 2 * HOUR);
    let missing = BudgetName::new("missing").unwrap();
    let refusal =
        refused(&mut core, LedgerOperation::RaiseBudget { name: missing.clone(), raise: None }, 2 * HOUR);
    assert_eq!(refusal, LedgerRefusal::UnknownBudgetRule { name: missing });
}

#[test]
fn a_changed_limit_keeps_the_counter_and_a_changed_meaning_does_not() {
    let mut core = funded();
    let daily = |limit| BudgetRule { limit, ..rule("daily", BudgetScope::Key) };
    run(&mut core, set_rule(daily(100)), 0);
    assert_eq!(run(&mut core, set_rule(daily(100)), 1), [], "nothing changes");
    run(&mut core, call(1, "k", 80), 2);
    run(&mut core, set_rule(daily(50)), 3);
    refused(&mut core, call(2, "k", 1), 4);
    run(&mut core, set_rule(daily(90)), 5);
    run(&mut core, call(3, "k", 10), 6);
    run(&mut core, set_rule(BudgetRule { window: BudgetWindow::Week, ..daily(90) }), 7);
    run(&mut core, call(4, "k", 90), 8);
    // The ends of older holds do not reach the new counter.
    for n in [1, 3] {
        run(&mut core, settle(n, 10), 9);
    }
    let counter = core.budgets(at(10)).remove(0).counters.remove(0);
    assert_eq!((counter.used, counter.reserved), (0, 90));
    run(&mut core, LedgerOperation::RemoveBudgetRule { name: BudgetName::new("daily").unwrap() }, 11);
    run(&mut core, call(5, "k", 500), 12);
    run(&mut core, settle(4, 10), 13);
    assert_eq!(core.budgets(at(14)), []);
}

#[test]
fn a_clock_that_is_set_back_gives_no_budget_twice() {
    let mut core = funded();
    run(&mut core, set_rule(BudgetRule { limit: 100, ..rule("daily", BudgetScope::Key) }), 0);
    run(&mut core, call(1, "k", 60), 10 * DAY);
    run(&mut core, call(2, "k", 20), 10 * DAY);
    run(&mut core, settle(1, 60), 10 * DAY);
    run(&mut core, LedgerOperation::SetClock, HOUR);
    refused(&mut core, call(3, "k", 21), 2 * HOUR);
    run(&mut core, call(3, "k", 20), 2 * HOUR);
    run(&mut core, settle(2, 20), 3 * HOUR);
    let counter = core.budgets(at(3 * HOUR)).remove(0).counters.remove(0);
    assert_eq!((counter.used, counter.reserved, counter.window.end), (80, 20, at(DAY)));
    // The day ends as any other.
    run(&mut core, call(4, "k", 100), DAY);
}

#[test]
fn a_rule_with_a_fault_is_refused_by_its_field() {
    let daily = || rule("daily", BudgetScope::Key);
    let tier = TierName::new("gold").unwrap();
    for (rule, field) in [
        (BudgetRule { zone: "Mars/Olympus".into(), ..daily() }, "zone"),
        (BudgetRule { thresholds: vec![0], ..daily() }, "thresholds"),
        (BudgetRule { thresholds: vec![80, 50], ..daily() }, "thresholds"),
        (BudgetRule { thresholds: vec![1_001], ..daily() }, "thresholds"),
        (BudgetRule { thresholds: (1..=17).collect(), ..daily() }, "thresholds"),
        (BudgetRule { limit: u64::MAX, ..daily() }, "limit"),
        (BudgetRule { subject: Some("a b".into()), ..daily() }, "subject"),
        (BudgetRule { tier: Some(tier), scope: BudgetScope::Model, ..daily() }, "tier"),
    ] {
        match refused(&mut funded(), set_rule(rule), 1) {
            LedgerRefusal::Invalid { field: found, .. } => assert_eq!(found, field),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn calls_in_flight_are_counted_for_each_limit_and_freed_by_every_end() {
    let mut core = funded();
    let limited =
        |n: u128, limits: PlaceLimits| changed(call(n, "k", 1), &move |demand| demand.places = Some(limits));
    let none = PlaceLimits::default();
    for (kind, limits) in [
        ("key", PlaceLimits { key: Some(2), ..none }),
        ("project", PlaceLimits { project: Some(2), ..none }),
        ("org", PlaceLimits { org: Some(2), ..none }),
        ("model", PlaceLimits { model: Some(2), ..none }),
    ] {
        let first = core.totals().holds * 10;
        let n = |n: u64| u128::from(first + n);
        run(&mut core, limited(n(1), limits), 1);
        run(&mut core, limited(n(2), limits), 2);
        match refused(&mut core, limited(n(3), limits), 3) {
            LedgerRefusal::PlacesTaken { kind: found, limit, .. } => assert_eq!((found, limit), (kind, 2)),
            other => panic!("{other}"),
        }
        run(&mut core, settle(n(1), 1), 4);
        run(&mut core, limited(n(3), limits), 5);
        run(&mut core, release(n(2)), 6);
        run(&mut core, limited(n(4), limits), 7);
        refused(&mut core, limited(n(5), limits), 8);
        for n in [n(3), n(4)] {
            run(&mut core, settle_as(n, 1, 0, SettleOutcome::Failed, None), 9);
        }
    }
    assert_eq!(core.totals().open_holds, 0);
}

/// A journal is read back from its rows alone and from its snapshot, and both say the same.
#[test]
fn counters_and_alerts_survive_a_restart_with_and_without_a_snapshot() {
    let journal = MemoryJournal::new();
    let (ledger, _) = Ledger::open(Box::new(journal.clone()), OWNER, at(0)).unwrap();
    let soft =
        BudgetRule { limit: 100, is_hard: false, thresholds: vec![50], ..rule("soft", BudgetScope::Org) };
    let hard = BudgetRule { limit: 200, ..rule("hard", BudgetScope::Key) };
    let setup = vec![open("o", "p"), grant("o", 10_000), set_rule(soft), set_rule(hard)];
    let batches = [
        (0, setup),
        (1, vec![call(1, "k", 60), settle(1, 60)]),
        (2, vec![call(2, "k", 50)]),
        (DAY, vec![call(3, "k", 70)]),
    ];
    for (time, batch) in batches {
        let done = ledger.transact(batch, at(time));
        assert!(done.verdicts.iter().all(headrace_ledger::CommandResult::is_done), "{:?}", done.verdicts);
        done.durable.wait().unwrap();
    }
    let (budgets, alerts) = (ledger.budgets(at(DAY)), ledger.alerts());
    assert_eq!(alerts.len(), 1);
    ledger.close().unwrap();
    let contents = journal.contents();
    assert!(verify(&contents).ok(), "{}", verify(&contents));
    let formats: Vec<u32> = contents.snapshots.iter().map(|snapshot| snapshot.format_version).collect();
    assert_eq!(formats, [2]);
    for snapshots in [contents.snapshots.clone(), Vec::new()] {
        let contents = LoadedJournal { snapshots, rows: contents.rows.clone() };
        let (again, _) = Ledger::open(Box::new(MemoryJournal::with(contents)), OWNER, at(DAY)).unwrap();
        assert_eq!(again.budgets(at(DAY)), budgets);
        assert_eq!(again.alerts(), alerts);
        let refused = again.transact(vec![call(4, "k", 131)], at(DAY)).verdicts.remove(0).into_result();
        assert_eq!(exceeded(refused.unwrap_err()).left(), 130);
        let settled = again.transact(vec![settle(2, 50)], at(DAY)).verdicts.remove(0).into_result();
        assert!(matches!(settled, Ok(Receipt::Settled { .. })));
    }
}

#[test]
fn a_ledger_without_rules_writes_the_formats_that_it_always_wrote() {
    let journal = MemoryJournal::new();
    let (ledger, _) = Ledger::open(Box::new(journal.clone()), OWNER, at(0)).unwrap();
    let batch = vec![open("o", "p"), grant("o", 100), call(1, "k", 60), settle(1, 60), call(2, "k", 1)];
    ledger.transact(batch, at(1)).durable.wait().unwrap();
    ledger.close().unwrap();
    let contents = journal.contents();
    assert_eq!((contents.rows[0].format_version, contents.snapshots[0].format_version), (1, 1));
}

#[test]
fn a_settled_call_is_counted_by_its_outcome() {
    let requests = BudgetRule { measure: BudgetMeasure::Requests, limit: 10, ..rule("r", BudgetScope::Key) };
    for (outcome, charge, counted) in [
        (SettleOutcome::Completed, 0, 1),
        (SettleOutcome::Cancelled, 0, 1),
        (SettleOutcome::Failed, 0, 0),
        (SettleOutcome::Failed, 5, 1),
    ] {
        let mut core = funded();
        run(&mut core, set_rule(requests.clone()), 0);
        run(&mut core, call(1, "k", 10), 1);
        run(&mut core, settle_as(1, charge, 0, outcome, None), 2);
        let counter = core.budgets(at(3)).remove(0).counters.remove(0);
        assert_eq!((counter.used, counter.reserved), (counted, 0), "{outcome:?} {charge}");
    }
}

#[test]
fn a_failed_call_counts_unless_it_frees_a_key() {
    for (measure, counted) in
        [(BudgetMeasure::Requests, 1), (BudgetMeasure::Tokens, 5), (BudgetMeasure::Dollars, 5)]
    {
        for (claims, counted) in [(false, counted), (true, 0)] {
            let mut core = funded();
            run(&mut core, set_rule(BudgetRule { measure, limit: 100, ..rule("r", BudgetScope::Key) }), 0);
            let mut held = call(1, "k", 10);
            if let (LedgerOperation::Hold { idempotency, .. }, true) = (&mut held, claims) {
                *idempotency = Some(IdempotencyClaim { key: "once".into(), request_hash: [1; 32] });
            }
            run(&mut core, held, 1);
            run(&mut core, settle_as(1, 5, 0, SettleOutcome::Failed, None), 2);
            let counter = core.budgets(at(3)).remove(0).counters.remove(0);
            assert_eq!((counter.used, counter.reserved), (counted, 0), "{measure:?} {claims}");
        }
    }
}

#[test]
fn expired_holds_give_their_reservations_back() {
    let mut core = funded();
    run(&mut core, set_rule(BudgetRule { limit: 100, ..rule("daily", BudgetScope::Key) }), 0);
    run(&mut core, world::call(1, "k", 100), 1);
    refused(&mut core, call(2, "k", 1), 2);
    run(&mut core, LedgerOperation::ExpireHolds, 2 * HOUR);
    run(&mut core, call(2, "k", 100), 2 * HOUR + 1);
}
