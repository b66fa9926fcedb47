//! Random commands, times and faults. Every invariant holds after each of them, and replaying the journal gives the
//! same ledger. A failure prints its seed and is kept under `proptest-regressions`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]
#![allow(dead_code, reason = "the shared helpers are not all used here")]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use headrace_domain::{BudgetName, ModelName, UnixNanos, UserId};
use headrace_ledger::verify::verify;
use headrace_ledger::{
    AppendFault, BudgetMeasure, BudgetPeriod, BudgetRaise, BudgetRule, BudgetScope, BudgetWindow,
    CommandResult, FreeTier, GrantKind, JournalHistory as _, Ledger, LedgerOperation, LedgerOptions,
    LedgerRefusal, LedgerTotals, LotId, LotKind, LotTerms, LowBalance, MemoryJournal, ModelDemand, Owner,
    PlaceLimits, Receipt, ReleaseReason, SettleOutcome,
};
use proptest::prelude::*;

#[path = "support/world.rs"]
mod world;
use world::*;

const HOUR: u64 = 3_600 * SECOND;
const ORGS: [&str; 2] = ["o", "other"];
/// Each project, with the org that it is opened for first.
const PROJECTS: [(&str, &str); 3] = [("p", "o"), ("p2", "o"), ("q", "other")];

#[derive(Debug, Clone)]
enum Step {
    Transact(Vec<LedgerOperation>),
    /// Refunds a part of a hold's charge, as the journal has it.
    Refund(u128, Option<i64>, u8),
    /// Moves the clock, possibly backwards.
    Clock(i64),
    Fault(AppendFault),
}

fn amount() -> impl Strategy<Value = i64> {
    prop_oneof![6 => 0i64..200, 1 => Just(i64::MAX), 1 => -5i64..5]
}

fn commands() -> impl Strategy<Value = LedgerOperation> {
    let id = 0u128..40;
    let outcome = prop_oneof![
        Just(SettleOutcome::Completed),
        Just(SettleOutcome::Cancelled),
        Just(SettleOutcome::Failed)
    ];
    let key = prop::option::of((0u8..3, 0u8..2));
    let hold = (id.clone(), 0..PROJECTS.len(), amount(), 0u128..2, 1u64..10_000, key, 0usize..20);
    let rule_shape =
        (0usize..3, 0..BudgetScope::ALL.len(), 0..BudgetWindow::ALL.len(), 0..BudgetMeasure::ALL.len());
    let rule_limits = (0u64..400, any::<bool>(), prop::bool::weighted(0.1), 0usize..3);
    prop_oneof![
        1 => (0..ORGS.len(), 0..PROJECTS.len()).prop_map(|(o, p)| open(ORGS[o], PROJECTS[p].0)),
        2 => (0..ORGS.len(), amount(), any::<bool>()).prop_map(|(o, amount, paid)| LedgerOperation::Grant {
            org: org(ORGS[o]),
            amount: nano(amount),
            kind: if paid { GrantKind::Paid } else { GrantKind::Promotional },
            reference: "r".into(),
        }),
        1 => (0..PROJECTS.len(), prop::option::of((0i64..500, any::<bool>()))).prop_map(|(p, limit)| {
            let (project_name, org_name) = PROJECTS[p];
            match limit {
                Some((limit, month)) => {
                    let period = if month { BudgetPeriod::Month } else { BudgetPeriod::Total };
                    budget(org_name, project_name, limit, period)
                }
                None => LedgerOperation::SetBudget { org: org(org_name), project: project(project_name), budget: None },
            }
        }),
        2 => (rule_shape, rule_limits).prop_map(|((name, scope, window, measure), (limit, is_hard, bound, zone))| {
            set_rule(BudgetRule {
                // A bound rule of models is for `demo-1`, where most calls begin.
                subject: bound.then(|| if scope == 4 { "demo-1".into() } else { "k0".into() }),
                window: BudgetWindow::ALL[window],
                zone: ["UTC", "Asia/Tokyo", "America/Sao_Paulo"][zone].into(),
                measure: BudgetMeasure::ALL[measure],
                limit,
                is_hard,
                thresholds: vec![50, 100],
                ..rule(["r0", "r1", "r2"][name], BudgetScope::ALL[scope])
            })
        }),
        1 => (0usize..3, prop::option::of((0u64..900, 0u64..90_000))).prop_map(|(name, raise)| {
            let name = BudgetName::new(["r0", "r1", "r2"][name]).unwrap();
            match raise {
                Some((limit, until)) => {
                    let raise = Some(BudgetRaise { limit, until: at(until * SECOND) });
                    LedgerOperation::RaiseBudget { name, raise }
                }
                None => LedgerOperation::RemoveBudgetRule { name },
            }
        }),
        8 => hold.prop_map(|(n, p, amount, owner, expires, key, stray)| {
            let (project_name, org_name) = PROJECTS[p];
            let org_name = if stray == 0 { "other" } else { org_name };
            let key = key.map(|(key, hash)| (format!("k{key}"), hash));
            let key = key.as_ref().map(|(key, hash)| (key.as_str(), *hash));
            let bare = hold_of(org_name, project_name, n, amount, key);
            // Some holds have no call, and some count among calls in flight.
            let asked = match stray {
                1..=3 => bare,
                4..=9 => changed(with_demand(bare, ["k0", "k1"][p % 2], 5), &|demand| {
                    demand.user = Some(UserId::new("u").unwrap());
                    demand.places = Some(PlaceLimits { key: Some(4), model: Some(6), ..PlaceLimits::default() });
                }),
                _ => with_demand(bare, ["k0", "k1"][p % 2], 20),
            };
            match asked {
                LedgerOperation::Hold { hold, org, project, amount, idempotency, demand, .. } => LedgerOperation::Hold {
                    hold,
                    org,
                    project,
                    amount,
                    idempotency, demand,
                    owner: Owner::new(owner),
                    expires: at(expires * SECOND),
                },
                command => command,
            }
        }),
        6 => (id.clone(), 0i64..300, 0i64..50, outcome, 0u8..4).prop_map(|(n, used, loss, outcome, answer)| {
            let mut settled = settle_as(n, used, loss, outcome, (answer % 2 == 0).then_some(b"body".as_slice()));
            if let LedgerOperation::Settle { lines, .. } = &mut settled {
                // The model that the call may have gone over to did all of the work, or the last of it.
                for line in lines.iter_mut().skip([1, 0, usize::MAX, usize::MAX][usize::from(answer)]) {
                    line.model = ModelName::new("demo-2").unwrap();
                }
            }
            settled
        }),
        2 => id.clone().prop_map(|n| LedgerOperation::Release { hold: hold_id(n), why: ReleaseReason::Failed }),
        1 => (0u128..2).prop_map(|owner| LedgerOperation::ReleaseOwners { ended: vec![Owner::new(owner)] }),
        2 => lots(),
        2 => free_tiers(),
        1 => Just(LedgerOperation::ExpireHolds),
        1 => Just(LedgerOperation::SetClock),
        4 => (id, 0i64..120, 0usize..4, 0i64..300).prop_map(|(n, more, model, most)| {
            let model = (model > 0).then(|| Box::new(ModelDemand {
                model: ModelName::new(["demo-1", "demo-1", "demo-2"][model - 1]).unwrap(),
                amount: nano(most),
                tokens: 30,
            }));
            LedgerOperation::Extend { hold: hold_id(n), amount: nano(more), model }
        }),
    ]
}

/// Makes and ends lots and contracts, pays debts, and sets policies for low balances.
fn lots() -> impl Strategy<Value = LedgerOperation> {
    let made =
        (0..ORGS.len(), 0..LotKind::ALL.len(), 1i64..200, prop::option::of(1u64..90), 0u64..30, 0u8..4);
    prop_oneof![
        5 => made.prop_map(|(o, kind, amount, ends, begins, model)| {
            let models: Option<Arc<[ModelName]>> = match model {
                0 => Some(Arc::from([ModelName::new("demo-1").unwrap()])),
                1 => Some(Arc::from([ModelName::new("other").unwrap()])),
                _ => None,
            };
            let terms = LotTerms {
                kind: LotKind::ALL[kind],
                amount: nano(amount),
                begins: at(begins * HOUR / 4),
                ends: ends.map(|ends| at(ends * HOUR)),
                models,
                reference: "r".into(),
            };
            LedgerOperation::MakeLot { org: org(ORGS[o]), terms: Box::new(terms) }
        }),
        1 => (1u64..12).prop_map(|lot| LedgerOperation::EndLot { lot: LotId::new(lot) }),
        1 => (0..ORGS.len(), 0i64..80).prop_map(|(o, amount)| LedgerOperation::PayDebt {
            org: org(ORGS[o]),
            amount: nano(amount),
            reference: "paid".into(),
        }),
        1 => (0..PROJECTS.len(), any::<bool>()).prop_map(|(p, cap)| LedgerOperation::SetLowBalance {
            org: org(PROJECTS[p].1),
            project: project(PROJECTS[p].0),
            policy: if cap { LowBalance::Cap } else { LowBalance::Refuse },
        }),
    ]
}

fn free_tiers() -> impl Strategy<Value = LedgerOperation> {
    let shape = (
        0usize..2,
        0usize..4,
        0..BudgetWindow::ALL.len(),
        0..BudgetMeasure::ALL.len(),
        0u64..60,
        any::<bool>(),
    );
    prop_oneof![
        4 => shape.prop_map(|(name, scope, window, measure, limit, is_of_model)| {
            let rule = BudgetRule {
                window: BudgetWindow::ALL[window],
                zone: "Asia/Tokyo".into(),
                measure: BudgetMeasure::ALL[measure],
                limit,
                ..rule(["f0", "f1"][name], BudgetScope::ALL[scope])
            };
            let models = is_of_model.then(|| Arc::from([ModelName::new("demo-1").unwrap()]));
            LedgerOperation::SetFreeTier { tier: Box::new(FreeTier { rule, models }) }
        }),
        1 => (0usize..2).prop_map(|name| LedgerOperation::RemoveFreeTier {
            name: BudgetName::new(["f0", "f1"][name]).unwrap(),
        }),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let day = i64::try_from(DAY).unwrap();
    let step = prop_oneof![
        12 => prop::collection::vec(commands(), 1..4).prop_map(Step::Transact),
        2 => (0u128..40, prop::option::of(0i64..60), 0u8..6).prop_map(|(n, amount, r)| Step::Refund(n, amount, r)),
        2 => (-day / 100..day / 50).prop_map(Step::Clock),
        1 => (0..3 * day).prop_map(Step::Clock),
        1 => prop_oneof![Just(AppendFault::NotWritten), Just(AppendFault::Written)].prop_map(Step::Fault),
    ];
    prop::collection::vec(step, 1..80)
}

fn sum(t: &LedgerTotals) -> i128 {
    [
        t.paid_in,
        t.promotional,
        t.revenue,
        t.loss,
        t.refunded,
        t.expired,
        t.receivable,
        t.in_lots,
        t.available,
        t.held,
    ]
    .iter()
    .map(|a| i128::from(a.get()))
    .sum()
}

fn until_up(ledger: &Ledger) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while ledger.health().down.is_some() {
        assert!(Instant::now() < deadline, "it never recovered");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The charge of every hold, taken from the receipts.
type Charges = HashMap<u128, i64>;

fn note(charges: &mut Charges, verdicts: Vec<CommandResult>) -> Result<(), TestCaseError> {
    for verdict in verdicts {
        match verdict {
            CommandResult::Done(Receipt::Settled { hold, charged, returned, loss, exceeded, .. }) => {
                prop_assert!(charged >= nano(0) && returned >= nano(0) && loss >= exceeded);
                prop_assert!(charges.insert(hold.bits(), charged.get()).is_none(), "{hold} is charged twice");
            }
            CommandResult::Refused(LedgerRefusal::Inconsistent { why }) => prop_assert!(false, "{why}"),
            _ => {}
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn every_invariant_holds_after_any_commands_and_faults(steps in steps()) {
        let journal = MemoryJournal::new();
        let options = LedgerOptions { retry: Duration::from_micros(100), snapshot_rows: 7, ..LedgerOptions::default() };
        let open_at = |journal: &MemoryJournal, now| {
            Ledger::open_with(Box::new(journal.clone()), Owner::new(0), now, options).unwrap()
        };
        let mut now = START;
        // The latest time at which anything was asked. A refusal leaves no row, and moves the live ledger's time.
        let mut latest = now;
        let (ledger, _) = open_at(&journal, UnixNanos::new(now));
        for (project_name, org_name) in PROJECTS {
            let opened = ledger.transact(vec![open(org_name, project_name), grant(org_name, 300)], UnixNanos::new(now));
            opened.durable.wait().unwrap();
        }
        let mut charges = Charges::new();
        let mut uncertain = false;
        // A free tier whose amount shrinks, or whose windows are merged by a clock that is set back, may be exceeded.
        let mut was_changed = false;
        for step in steps {
            match step {
                Step::Clock(by) => now = now.saturating_add_signed(by),
                Step::Fault(fault) => journal.fail_append(1, fault),
                Step::Refund(n, amount, reference) => {
                    latest = latest.max(now);
                    let Some(charge) = journal.charge_of(hold_id(n)).unwrap() else { continue };
                    let (charge, amount) = (Box::new(charge), amount.map(nano));
                    let refund = LedgerOperation::Refund { charge, amount, reference: format!("r{reference}") };
                    let done = ledger.transact(vec![refund], UnixNanos::new(now));
                    if done.durable.wait().is_ok() {
                        note(&mut charges, done.verdicts)?;
                    } else {
                        uncertain = true;
                        until_up(&ledger);
                    }
                }
                Step::Transact(batch) => {
                    was_changed |= batch.iter().any(|operation| {
                        matches!(operation, LedgerOperation::SetFreeTier { .. } | LedgerOperation::SetClock)
                    }) && !ledger.free_tiers(UnixNanos::new(latest)).is_empty();
                    let expires_holds = batch.last() == Some(&LedgerOperation::ExpireHolds);
                    latest = latest.max(now);
                    let done = ledger.transact(batch, UnixNanos::new(now));
                    if done.durable.wait().is_ok() {
                        note(&mut charges, done.verdicts)?;
                        let time = ledger.time().max(UnixNanos::new(now));
                        let is_due = |hold: &headrace_ledger::HoldTaken| hold.expires <= time;
                        prop_assert!(!expires_holds || !ledger.open_holds().iter().any(is_due));
                    } else {
                        // The batch may or may not be written. The receipts are void, and the journal decides.
                        uncertain = true;
                        until_up(&ledger);
                    }
                }
            }
            let totals = ledger.totals();
            prop_assert_eq!(sum(&totals), 0);
            prop_assert!(totals.available >= nano(0) && totals.held >= nano(0) && totals.in_lots >= nano(0));
            prop_assert!(totals.receivable <= nano(0) && totals.refunded <= nano(0) && totals.expired >= nano(0));
            for of in ledger.lots(None, UnixNanos::new(latest)) {
                prop_assert!((nano(0)..=of.lot.terms.amount).contains(&of.left), "{:?}", of);
            }
            for tier in ledger.free_tiers(UnixNanos::new(latest)) {
                for counter in tier.counters {
                    let taken = counter.used + counter.reserved;
                    prop_assert!(taken <= tier.tier.rule.limit || was_changed, "{:?}", tier.tier);
                }
            }
            for (org, project) in ledger.projects() {
                let standing = ledger.standing(&org, &project).unwrap();
                prop_assert!(standing.available >= nano(0) && standing.held >= nano(0));
            }
        }
        let (live, holds) = (ledger.totals(), ledger.open_holds());
        let read_at = UnixNanos::new(latest).max(ledger.time());
        let (budgets, alerts) = (ledger.budgets(read_at), ledger.alerts());
        let (lots, free_tiers) = (ledger.lots(None, read_at), ledger.free_tiers(read_at));
        ledger.close().unwrap();

        let report = verify(&journal.contents());
        prop_assert!(report.ok(), "{}", report);
        prop_assert_eq!(report.totals, live, "adding up the journal's entries gives the live ledger");
        if !uncertain {
            let charged: i64 = charges.values().sum();
            prop_assert_eq!(live.revenue.get() + live.loss.get(), charged);
        }
        // The ledger is the same when it is loaded from the snapshot and from the first row.
        let mut without = journal.contents();
        without.snapshots.clear();
        for contents in [journal.contents(), without] {
            let copy = MemoryJournal::with(contents);
            let (again, opened) = open_at(&copy, UnixNanos::new(START));
            if opened.orphans.is_empty() {
                prop_assert_eq!(&again.budgets(read_at), &budgets);
                prop_assert_eq!(&again.free_tiers(read_at), &free_tiers);
                prop_assert_eq!(&again.lots(None, read_at), &lots);
            }
            prop_assert_eq!(&again.alerts(), &alerts);
            let orphans: Vec<_> = holds.iter().filter(|h| h.owner != Owner::new(0)).map(|h| h.hold).collect();
            prop_assert_eq!(&opened.orphans, &orphans);
            prop_assert_eq!(again.open_holds().len(), holds.len() - orphans.len());
            let (was, is) = (live, again.totals());
            prop_assert_eq!((was.revenue, was.loss, was.paid_in), (is.revenue, is.loss, is.paid_in));
            let own = |t: &LedgerTotals| {
                let all = [t.available, t.held, t.in_lots, t.expired, t.receivable, t.promotional];
                all.iter().map(|amount| amount.get()).sum::<i64>()
            };
            prop_assert_eq!(own(&was), own(&is));
            again.close().unwrap();
            prop_assert!(verify(&copy.contents()).ok());
        }
    }
}
