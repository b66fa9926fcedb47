//! Refunds, lots, contracts, free tiers and low balances: each act once, also after a crash, and audited.

use headrace_domain::{ModelName, NanoDollarsPerMillion, Rounding, TokenClass};
use headrace_ledger::{
    BudgetMeasure, BudgetOrigin, BudgetRule, BudgetScope, BudgetWindow, ChargeLine, FreeTier,
    LedgerOperation, LotKind, LowBalance, SettleOutcome,
};

use super::*;
use crate::lot_act::{LotAct, LotReply, NewLot};
use crate::service::money::MoneyAct;

fn new_lot(kind: LotKind, amount: i64, reference: &str) -> NewLot {
    let (begins, ends, models) = (None, None, None);
    NewLot { kind, amount: NanoDollars::new(amount), begins, ends, models, reference: reference.to_owned() }
}

fn lots(service: &AdminService, act: LotAct) -> Result<LotReply, AdminError> {
    match run(service, AdminCommand::Lots { act })? {
        AdminReply::Lots(reply) => Ok(reply),
        other => panic!("{other:?}"),
    }
}

fn make(service: &AdminService, lot: NewLot) -> Result<LotReply, AdminError> {
    lots(service, LotAct::Make { org: org("o"), lot })
}

/// Charges a call, and returns its hold.
fn charged(service: &AdminService, number: u64, amount: i64) -> headrace_domain::HoldId {
    let millis = NOW.get() / 1_000_000;
    let hold = headrace_domain::HoldId::from_bits((u128::from(millis) << 80) | u128::from(number));
    let price = NanoDollarsPerMillion::new(1_000_000).unwrap();
    let tokens = u64::try_from(amount).unwrap();
    let line = ChargeLine {
        model: ModelName::new("m").unwrap(),
        class: TokenClass::Input,
        tokens,
        price,
        amount: price.cost(tokens, Rounding::Nearest).unwrap(),
    };
    let taken = LedgerOperation::Hold {
        hold,
        org: org("o"),
        project: project("p"),
        amount: NanoDollars::new(amount + 10),
        owner: Owner::new(1),
        expires: NOW.after(std::time::Duration::from_secs(60)),
        idempotency: None,
        demand: None,
    };
    let (loss, outcome, answer) = (NanoDollars::ZERO, SettleOutcome::Completed, None);
    let settled = LedgerOperation::Settle { hold, lines: vec![line], loss, outcome, answer };
    let done = service.ledger.transact(vec![taken, settled], NOW);
    assert!(done.verdicts.iter().all(headrace_ledger::CommandResult::is_done), "{:?}", done.verdicts);
    done.durable.wait().unwrap();
    hold
}

fn acts(service: &AdminService) -> Vec<String> {
    match run(service, AdminCommand::ShowAudit { last: 100, before: None }).unwrap() {
        AdminReply::Audit(rows) => rows.into_iter().map(|row| row.act).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lot_is_made_once_per_reference_and_a_payment_is_recorded_once() {
    let service = with_project();
    let LotReply::Made { lot, before: false } =
        make(&service, new_lot(LotKind::Contract, 1_000, "contract-7")).unwrap()
    else {
        panic!("a new lot")
    };
    let LotReply::Made { lot: again, before: true } =
        make(&service, new_lot(LotKind::Contract, 1_000, "contract-7")).unwrap()
    else {
        panic!("the same lot")
    };
    assert_eq!(again, lot);
    let other = make(&service, new_lot(LotKind::Contract, 2_000, "contract-7")).unwrap_err();
    assert_eq!(other.code.name(), "reference_used", "{other}");
    charged(&service, 1, 300);
    let pay = |amount| LotAct::Pay {
        org: org("o"),
        amount: NanoDollars::new(amount),
        reference: "invoice".to_owned(),
    };
    let paid = |reply| match reply {
        LotReply::Paid { owed, before, .. } => (owed.get(), before),
        other => panic!("{other:?}"),
    };
    assert_eq!(lots(&service, pay(301)).unwrap_err().code.name(), "invalid");
    assert_eq!(paid(lots(&service, pay(200)).unwrap()), (100, false));
    assert_eq!(paid(lots(&service, pay(200)).unwrap()), (100, true));
    assert_eq!(lots(&service, pay(50)).unwrap_err().code.name(), "reference_used");
    assert_eq!(lots(&service, pay(301)).unwrap_err().code.name(), "reference_used", "it was refused before");
    let ended = lots(&service, LotAct::End { lot: lot.lot.id }).unwrap();
    assert_eq!(ended, LotReply::Ended { lot: lot.lot.id, left: NanoDollars::new(900) });
    assert!(service.ledger.verify().unwrap().ok());
}

#[test]
fn announced_acts_are_finished_once_after_a_crash() {
    let service = with_project();
    make(&service, new_lot(LotKind::Paid, 1_000, "")).unwrap();
    let hold = charged(&service, 1, 300);
    let charge = service.ledger.history().charge_of(hold).unwrap().unwrap();
    let terms = service.ledger.lots(None, NOW)[0].lot.terms.clone();
    let after = service.ledger.health().sequence;
    let announced = [
        MoneyAct::Lot { org: org("o"), terms: Box::new(terms), after },
        MoneyAct::Refund { charge, amount: None, reference: "ticket".to_owned() },
        MoneyAct::LowBalance { org: org("o"), project: project("p"), policy: LowBalance::Cap },
    ];
    for act in &announced {
        let entry = headrace_identity::AuditEntry {
            at: NOW,
            actor: "tester".to_owned(),
            act: "announced".to_owned(),
            subject: String::new(),
            detail: String::new(),
        };
        service.directory.announce(&entry, &serde_json::to_string(act).unwrap()).unwrap();
    }
    for _ in 0..2 {
        service.reconcile(NOW).unwrap();
        assert_eq!(service.ledger.lots(None, NOW).len(), 2);
        assert_eq!(service.ledger.totals().refunded, NanoDollars::new(-300));
        let standing = service.ledger.standing_at(&org("o"), &project("p"), NOW).unwrap();
        assert_eq!(standing.low_balance, LowBalance::Cap);
    }
    assert!(service.ledger.verify().unwrap().ok());
}

#[test]
fn a_charge_is_refunded_by_the_id_of_its_call_and_the_audit_log_names_it_once() {
    let service = with_project();
    make(&service, new_lot(LotKind::Paid, 1_000, "")).unwrap();
    let hold = charged(&service, 1, 300);
    let refund = |amount: Option<i64>, reference: &str| {
        let (amount, reference) = (amount.map(NanoDollars::new), reference.to_owned());
        run(&service, AdminCommand::Refund { hold, amount, reference })
    };
    let view = |reply| match reply {
        AdminReply::Refunded(view) => (view.amount.get(), view.left.get(), view.before),
        other => panic!("{other:?}"),
    };
    assert_eq!(view(refund(Some(100), "a").unwrap()), (100, 200, false));
    assert_eq!(view(refund(Some(100), "a").unwrap()), (100, 200, true));
    assert_eq!(refund(Some(50), "a").unwrap_err().code.name(), "reference_used");
    assert_eq!(refund(Some(201), "b").unwrap_err().code.name(), "refund_exceeds_charge");
    assert_eq!(view(refund(None, "b").unwrap()), (200, 0, false));
    assert_eq!(refund(None, " ").unwrap_err().code.name(), "invalid");
    let unknown = headrace_domain::HoldId::from_bits(7);
    let command = AdminCommand::Refund { hold: unknown, amount: None, reference: "c".to_owned() };
    assert_eq!(run(&service, command).unwrap_err().code.name(), "unknown_charge");
    let refunds = acts(&service).iter().filter(|act| *act == "charge.refund").count();
    assert_eq!(refunds, 3, "two refunds, and one that was refused");
}

#[test]
fn free_tiers_of_the_settings_are_taken_over_and_removed() {
    let service = with_project();
    let tier = |name: &str, limit| FreeTier {
        rule: BudgetRule {
            name: headrace_domain::BudgetName::new(name).unwrap(),
            scope: BudgetScope::Org,
            org: None,
            subject: None,
            tier: None,
            window: BudgetWindow::Day,
            zone: "UTC".into(),
            measure: BudgetMeasure::Requests,
            limit,
            is_hard: true,
            thresholds: Vec::new(),
            origin: BudgetOrigin::Settings,
        },
        models: None,
    };
    lots(&service, LotAct::SetFree { tier: tier("of-operators", 1) }).unwrap();
    assert_eq!(service.take_over_free_tiers(&[tier("a", 1), tier("b", 1)], NOW).unwrap(), 2);
    assert_eq!(service.take_over_free_tiers(&[tier("a", 1), tier("b", 1)], NOW).unwrap(), 0);
    assert_eq!(service.take_over_free_tiers(&[tier("a", 2)], NOW).unwrap(), 2);
    let LotReply::FreeTiers(all) = lots(&service, LotAct::ListFree).unwrap() else { panic!("free tiers") };
    let names: Vec<_> = all.iter().map(|view| (view.tier.rule.name.as_str(), view.tier.rule.limit)).collect();
    assert_eq!(names, [("a", 2), ("of-operators", 1)]);
    let text = serde_json::to_string(&all).unwrap();
    assert_eq!(serde_json::from_str::<Vec<crate::FreeTierView>>(&text).unwrap(), all, "as it is sent");
    let standing = service.ledger.standing_at(&org("o"), &project("p"), NOW).unwrap();
    assert!(standing.may_be_free);
}
