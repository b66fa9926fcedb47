//! Budgets by model and calls that go over to another model: each line of the charge counts in the budget of its own model.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]
#![allow(dead_code, reason = "the shared helpers are not all used here")]

use headrace_domain::{Code, ModelName};
use headrace_ledger::core::LedgerCore;
use headrace_ledger::verify::verify;
use headrace_ledger::{
    BudgetMeasure, BudgetRule, BudgetScope, JournalEvent, Ledger, LedgerOperation, LedgerRefusal,
    LoadedJournal, MemoryJournal, ModelDemand, SettleOutcome,
};

#[path = "support/world.rs"]
mod world;
use world::*;

/// Calls begin with `demo-1`, as [`world::call`] makes them, and go over to this model.
const OTHER: &str = "demo-2";

fn run(core: &mut LedgerCore, command: LedgerOperation, now: u64) -> Vec<JournalEvent> {
    let applied = core.apply(command.clone(), at(now));
    let applied = applied.unwrap_or_else(|refusal| panic!("{command:?}: {refusal}"));
    applied.transactions.into_iter().map(|transaction| transaction.event).collect()
}

fn refused(core: &mut LedgerCore, command: LedgerOperation, now: u64) -> LedgerRefusal {
    let before = format!("{core:?}");
    let refusal = core.apply(command.clone(), at(now)).expect_err(&format!("{command:?}"));
    let [before, after] =
        [before, format!("{core:?}")].map(|core| core.split("latest: ").next().unwrap().to_owned());
    assert_eq!(before, after, "a refusal changes nothing");
    refusal
}

fn funded(rules: &[BudgetRule]) -> LedgerCore {
    let mut core = LedgerCore::new();
    for command in [open("o", "p"), grant("o", 1_000_000)] {
        run(&mut core, command, 0);
    }
    for rule in rules {
        run(&mut core, set_rule(rule.clone()), 0);
    }
    core
}

/// Call `n` goes over to `model`, where it may cost `whole` and take as many tokens. Its hold grows by `more`.
fn go_over(n: u128, model: &str, (more, whole): (i64, i64)) -> LedgerOperation {
    let tokens = u64::try_from(whole).unwrap();
    let demand = ModelDemand { model: ModelName::new(model).unwrap(), amount: nano(whole), tokens };
    LedgerOperation::Extend { hold: hold_id(n), amount: nano(more), model: Some(Box::new(demand)) }
}

/// Settles call `n` by lines of these models and amounts.
fn settle_by(n: u128, parts: &[(&str, i64)]) -> LedgerOperation {
    let all = parts.iter().flat_map(|(model, amount)| {
        lines(*amount).into_iter().map(|mut line| {
            line.model = ModelName::new(model).unwrap();
            line
        })
    });
    LedgerOperation::Settle {
        hold: hold_id(n),
        lines: all.collect(),
        loss: nano(0),
        outcome: SettleOutcome::Completed,
        answer: None,
    }
}

/// Used and reserved, by rule and subject. Counters of nothing are left out.
fn counters(core: &LedgerCore, now: u64) -> Vec<(String, u64, u64)> {
    let reports = core.budgets(at(now));
    let all = reports.iter().flat_map(|report| {
        let name = report.rule.name.clone();
        report
            .counters
            .iter()
            .map(move |counter| (format!("{name} {}", counter.subject), counter.used, counter.reserved))
    });
    all.filter(|(_, used, reserved)| used + reserved > 0).collect()
}

fn named(all: &[(&str, u64, u64)]) -> Vec<(String, u64, u64)> {
    all.iter().map(|(name, used, reserved)| ((*name).to_owned(), *used, *reserved)).collect()
}

/// The rules, the lines of the charge, and what the rules count then.
type BudgetRow = (Vec<BudgetRule>, Vec<(&'static str, i64)>, Vec<(&'static str, u64, u64)>);

#[test]
fn each_line_counts_in_the_budget_of_its_own_model() {
    let by_model = || rule("each", BudgetScope::Model);
    let only =
        |name, model: &str| BudgetRule { subject: Some(model.into()), ..rule(name, BudgetScope::Model) };
    let of = |rule: BudgetRule, measure| BudgetRule { measure, ..rule };
    let (tokens, requests) = (BudgetMeasure::Tokens, BudgetMeasure::Requests);
    // The hold of 100 grows to 150.
    let table: Vec<BudgetRow> = vec![
        (vec![by_model()], vec![(OTHER, 120)], vec![("each o/demo-2", 120, 0)]),
        (
            vec![by_model()],
            vec![("demo-1", 30), (OTHER, 90)],
            vec![("each o/demo-1", 30, 0), ("each o/demo-2", 90, 0)],
        ),
        (vec![only("first", "demo-1")], vec![(OTHER, 120)], vec![]),
        (vec![only("first", "demo-1")], vec![("demo-1", 20), (OTHER, 90)], vec![("first o/demo-1", 20, 0)]),
        (vec![only("second", OTHER)], vec![(OTHER, 120)], vec![("second o/demo-2", 120, 0)]),
        (
            vec![of(by_model(), tokens)],
            vec![("demo-1", 7), (OTHER, 8)],
            vec![("each o/demo-1", 7, 0), ("each o/demo-2", 8, 0)],
        ),
        (vec![of(by_model(), requests)], vec![(OTHER, 8)], vec![("each o/demo-2", 1, 0)]),
        (vec![of(by_model(), requests)], vec![], vec![("each o/demo-2", 1, 0)]),
        // The lines exceed the hold: what is charged is that of the first lines.
        (
            vec![by_model()],
            vec![("demo-1", 100), (OTHER, 90)],
            vec![("each o/demo-1", 100, 0), ("each o/demo-2", 50, 0)],
        ),
        // Rules of another scope count the whole call.
        (
            vec![rule("whole", BudgetScope::Project)],
            vec![("demo-1", 30), (OTHER, 90)],
            vec![("whole p", 120, 0)],
        ),
        // A token rule reserves what the other model may take.
        (
            vec![of(rule("whole", BudgetScope::Project), tokens)],
            vec![(OTHER, 150)],
            vec![("whole p", 150, 0)],
        ),
    ];
    for (rules, parts, expected) in table {
        let mut core = funded(&rules);
        run(&mut core, call(1, "k", 100), 1);
        run(&mut core, go_over(1, OTHER, (50, 150)), 2);
        run(&mut core, settle_by(1, &parts), 3);
        assert_eq!(counters(&core, 4), named(&expected), "{rules:?} {parts:?}");
    }
}

#[test]
fn a_call_that_stays_counts_as_a_whole_in_the_model_that_was_asked() {
    // So do rows of older programs, in which a call went over without a reservation.
    let mut core = funded(&[rule("each", BudgetScope::Model)]);
    run(&mut core, call(1, "k", 100), 1);
    run(&mut core, settle_by(1, &[(OTHER, 80)]), 2);
    assert_eq!(counters(&core, 3), named(&[("each o/demo-1", 80, 0)]));
}

#[test]
fn a_full_budget_of_the_other_model_refuses_and_both_are_held_meanwhile() {
    let mut core = funded(&[BudgetRule { limit: 200, ..rule("each", BudgetScope::Model) }]);
    let other =
        |n, amount| changed(call(n, "k", amount), &|demand| demand.model = ModelName::new(OTHER).unwrap());
    run(&mut core, other(9, 150), 1);
    run(&mut core, call(1, "k", 100), 1);
    // 50 are left there. The hold is large enough, but the budget of the other model is not.
    for whole in [51, 60, 201] {
        match refused(&mut core, go_over(1, OTHER, (0, whole)), 2) {
            LedgerRefusal::BudgetRuleExceeded(exceeded) => {
                assert_eq!((&*exceeded.subject, exceeded.left()), ("o/demo-2", 50));
            }
            other => panic!("{other}"),
        }
    }
    run(&mut core, go_over(1, OTHER, (0, 50)), 3);
    assert_eq!(counters(&core, 4), named(&[("each o/demo-1", 0, 100), ("each o/demo-2", 0, 200)]));
    assert_eq!(refused(&mut core, other(3, 1), 4).code(), Code::BudgetRuleExceeded);
    // Asking again for the same model reserves nothing twice.
    assert_eq!(run(&mut core, go_over(1, OTHER, (0, 50)), 5), []);
    // Both come back when the call ends without a charge.
    run(&mut core, release(1), 6);
    assert_eq!(counters(&core, 7), named(&[("each o/demo-2", 0, 150)]));
}

#[test]
fn a_call_goes_over_twice_and_an_extension_counts_in_the_newest_model() {
    let mut core = funded(&[rule("each", BudgetScope::Model)]);
    run(&mut core, call(1, "k", 100), 1);
    run(&mut core, go_over(1, OTHER, (0, 80)), 2);
    run(&mut core, go_over(1, "demo-3", (20, 120)), 3);
    let longer = LedgerOperation::Extend { hold: hold_id(1), amount: nano(30), model: None };
    run(&mut core, longer, 4);
    let held = [("each o/demo-1", 0, 100), ("each o/demo-2", 0, 80), ("each o/demo-3", 0, 150)];
    assert_eq!(counters(&core, 5), named(&held));
    run(&mut core, settle_by(1, &[("demo-3", 140)]), 6);
    assert_eq!(counters(&core, 7), named(&[("each o/demo-3", 140, 0)]));
}

#[test]
fn a_move_without_budgets_by_model_writes_nothing() {
    for rules in [vec![], vec![rule("whole", BudgetScope::Project)]] {
        let mut core = funded(&rules);
        run(&mut core, call(1, "k", 100), 1);
        assert_eq!(run(&mut core, go_over(1, OTHER, (0, 60)), 2), []);
        assert_eq!(run(&mut core, go_over(1, OTHER, (5, 105)), 3).len(), 1);
    }
}

#[test]
fn alerts_are_those_of_the_model_that_did_the_work() {
    let soft =
        BudgetRule { limit: 100, is_hard: false, thresholds: vec![50], ..rule("each", BudgetScope::Model) };
    let mut core = funded(&[soft]);
    run(&mut core, call(1, "k", 90), 1);
    run(&mut core, go_over(1, OTHER, (0, 90)), 2);
    let events = run(&mut core, settle_by(1, &[(OTHER, 80)]), 3);
    let raised: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            JournalEvent::AlertRaised(alert) => Some((&*alert.subject, alert.used)),
            _ => None,
        })
        .collect();
    assert_eq!(raised, [("o/demo-2", 80)]);
}

/// The journal alone gives the same counters, and other code finds no fault in it.
#[test]
fn moves_survive_a_restart_and_are_verified() {
    let journal = MemoryJournal::new();
    let (ledger, _) = Ledger::open(Box::new(journal.clone()), OWNER, at(0)).unwrap();
    let only = BudgetRule { subject: Some("demo-1".into()), ..rule("only", BudgetScope::Model) };
    let batch = vec![
        open("o", "p"),
        grant("o", 1_000_000),
        set_rule(rule("each", BudgetScope::Model)),
        set_rule(BudgetRule { thresholds: vec![1], ..only }),
        call(1, "k", 100),
        go_over(1, OTHER, (0, 90)),
        call(2, "k", 100),
        go_over(2, OTHER, (10, 110)),
        settle_by(2, &[("demo-1", 40), (OTHER, 60)]),
        call(3, "k", 50),
    ];
    let done = ledger.transact(batch, at(1));
    done.verdicts.into_iter().for_each(|verdict| drop(verdict.into_result().unwrap()));
    done.durable.wait().unwrap();
    let budgets = ledger.budgets(at(2));
    ledger.close().unwrap();
    let contents = journal.contents();
    assert!(verify(&contents).ok(), "{}", verify(&contents));
    for snapshots in [contents.snapshots.clone(), Vec::new()] {
        let contents = LoadedJournal { snapshots, rows: contents.rows.clone() };
        let (again, _) = Ledger::open(Box::new(MemoryJournal::with(contents)), OWNER, at(2)).unwrap();
        assert_eq!(again.budgets(at(2)), budgets);
        let done = again.transact(vec![settle_by(1, &[(OTHER, 70)])], at(3));
        done.verdicts.into_iter().for_each(|verdict| drop(verdict.into_result().unwrap()));
        let used: Vec<_> = again
            .budgets(at(3))
            .iter()
            .flat_map(|report| &report.counters)
            .map(|counter| (counter.subject.to_string(), counter.used))
            .collect();
        let [one, other] = ["o/demo-1", "o/demo-2"].map(str::to_owned);
        assert_eq!(used, [(one.clone(), 40), (other, 130), (one, 40)]);
    }
}
