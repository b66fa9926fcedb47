//! Short helpers that the ledger's tests share.

use headrace_domain::{
    BudgetName, HoldId, KeyId, ModelName, NanoDollars, NanoDollarsPerMillion, OrgId, ProjectId, Rounding,
    TokenClass, UnixNanos,
};
use headrace_ledger::{
    BudgetMeasure, BudgetOrigin, BudgetPeriod, BudgetRule, BudgetScope, BudgetWindow, ChargeLine, FreeTier,
    GrantKind, HoldDemand, IdempotencyClaim, LedgerOperation, LotKind, LotTerms, Owner, ProjectBudget,
    ReleaseReason, SettleOutcome, StoredAnswer,
};

pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const DAY: u64 = 86_400 * SECOND;
/// 2026-11-20 00:00 UTC.
pub(crate) const START: u64 = 1_795_132_800 * SECOND;
pub(crate) const OWNER: Owner = Owner::new(7);

pub(crate) fn at(nanos_after_start: u64) -> UnixNanos {
    UnixNanos::new(START + nanos_after_start)
}

pub(crate) fn org(name: &str) -> OrgId {
    OrgId::new(name).unwrap()
}

pub(crate) fn project(name: &str) -> ProjectId {
    ProjectId::new(name).unwrap()
}

pub(crate) fn nano(amount: i64) -> NanoDollars {
    NanoDollars::new(amount)
}

pub(crate) fn hold_id(n: u128) -> HoldId {
    HoldId::from_bits(n)
}

pub(crate) fn open(org_name: &str, project_name: &str) -> LedgerOperation {
    LedgerOperation::OpenProject { org: org(org_name), project: project(project_name) }
}

pub(crate) fn grant(org_name: &str, amount: i64) -> LedgerOperation {
    let (kind, reference) = (GrantKind::Paid, "a test".into());
    LedgerOperation::Grant { org: org(org_name), amount: nano(amount), kind, reference }
}

pub(crate) fn budget(
    org_name: &str,
    project_name: &str,
    limit: i64,
    period: BudgetPeriod,
) -> LedgerOperation {
    let budget = Some(ProjectBudget { limit: nano(limit), period });
    LedgerOperation::SetBudget { org: org(org_name), project: project(project_name), budget }
}

/// Returns a hold of org `o`, project `p`, which expires an hour after the start.
pub(crate) fn hold(n: u128, amount: i64) -> LedgerOperation {
    hold_of("o", "p", n, amount, None)
}

pub(crate) fn hold_of(
    org_name: &str,
    project_name: &str,
    n: u128,
    amount: i64,
    key: Option<(&str, u8)>,
) -> LedgerOperation {
    LedgerOperation::Hold {
        hold: hold_id(n),
        org: org(org_name),
        project: project(project_name),
        amount: nano(amount),
        owner: OWNER,
        expires: at(3600 * SECOND),
        demand: None,
        idempotency: key.map(|(key, hash)| IdempotencyClaim { key: key.into(), request_hash: [hash; 32] }),
    }
}

/// Returns lines that sum to `amount`, at one nano-dollar per token.
pub(crate) fn lines(amount: i64) -> Vec<ChargeLine> {
    let price = NanoDollarsPerMillion::new(1_000_000).unwrap();
    let tokens = u64::try_from(amount).unwrap();
    let line = |class, tokens| ChargeLine {
        model: ModelName::new("demo-1").unwrap(),
        class,
        tokens,
        price,
        amount: price.cost(tokens, Rounding::Nearest).unwrap(),
    };
    match tokens {
        0 => vec![],
        1 => vec![line(TokenClass::Input, 1)],
        _ => vec![line(TokenClass::Input, tokens - 1), line(TokenClass::Output, 1)],
    }
}

pub(crate) fn settle(n: u128, amount: i64) -> LedgerOperation {
    settle_as(n, amount, 0, SettleOutcome::Completed, None)
}

pub(crate) fn settle_as(
    n: u128,
    amount: i64,
    loss: i64,
    outcome: SettleOutcome,
    answer: Option<&[u8]>,
) -> LedgerOperation {
    let answer = answer.map(|body| StoredAnswer {
        status: 200,
        content_type: "application/json".into(),
        body: body.into(),
    });
    LedgerOperation::Settle { hold: hold_id(n), lines: lines(amount), loss: nano(loss), outcome, answer }
}

pub(crate) fn release(n: u128) -> LedgerOperation {
    LedgerOperation::Release { hold: hold_id(n), why: ReleaseReason::Refused }
}

/// Returns a hard rule of a thousand nano-dollars a day, UTC.
pub(crate) fn rule(name: &str, scope: BudgetScope) -> BudgetRule {
    BudgetRule {
        name: BudgetName::new(name).unwrap(),
        scope,
        org: None,
        subject: None,
        tier: None,
        window: BudgetWindow::Day,
        zone: "UTC".into(),
        measure: BudgetMeasure::Dollars,
        limit: 1_000,
        is_hard: true,
        thresholds: Vec::new(),
        origin: BudgetOrigin::Operator,
    }
}

pub(crate) fn set_rule(rule: BudgetRule) -> LedgerOperation {
    LedgerOperation::SetBudgetRule { rule: Box::new(rule) }
}

/// Returns a hold of a call of `key` that may cost `amount` and take as many tokens.
pub(crate) fn call(n: u128, key: &str, amount: i64) -> LedgerOperation {
    let tokens = u64::try_from(amount).unwrap_or(0);
    with_demand(hold(n, amount), key, tokens)
}

/// Returns the hold with a demand of `key` for the demo model.
pub(crate) fn with_demand(operation: LedgerOperation, key: &str, tokens: u64) -> LedgerOperation {
    let demand = HoldDemand {
        key: KeyId::new(key).unwrap(),
        user: None,
        model: ModelName::new("demo-1").unwrap(),
        tokens,
        tiers: None,
        places: None,
    };
    match operation {
        LedgerOperation::Hold { hold, org, project, amount, owner, expires, idempotency, .. } => {
            let demand = Some(demand);
            LedgerOperation::Hold { hold, org, project, amount, owner, expires, idempotency, demand }
        }
        other => other,
    }
}

/// Returns the hold with another demand.
pub(crate) fn changed(operation: LedgerOperation, change: &dyn Fn(&mut HoldDemand)) -> LedgerOperation {
    match operation {
        LedgerOperation::Hold { hold, org, project, amount, owner, expires, idempotency, mut demand } => {
            change(demand.as_mut().unwrap());
            LedgerOperation::Hold { hold, org, project, amount, owner, expires, idempotency, demand }
        }
        other => other,
    }
}

/// Returns the hold as one of another project.
pub(crate) fn moved(operation: LedgerOperation, org_name: &str, project_name: &str) -> LedgerOperation {
    match operation {
        LedgerOperation::Hold { hold, amount, owner, expires, idempotency, demand, .. } => {
            let (org, project) = (org(org_name), project(project_name));
            LedgerOperation::Hold { hold, org, project, amount, owner, expires, idempotency, demand }
        }
        other => other,
    }
}

/// Returns a free tier of each key, by the day and UTC.
pub(crate) fn free_tier(name: &str, measure: BudgetMeasure, limit: u64) -> LedgerOperation {
    let rule = BudgetRule { measure, limit, ..rule(name, BudgetScope::Key) };
    LedgerOperation::SetFreeTier { tier: Box::new(FreeTier { rule, models: None }) }
}

/// Returns lots of org `o` that end soon and late, a contract, and free tiers of dollars and tokens.
pub(crate) fn lots_and_free_tiers() -> Vec<LedgerOperation> {
    let lot = |kind, amount, ends: Option<u64>| {
        let ends = ends.map(|seconds| at(seconds * SECOND));
        let (amount, begins, reference) = (nano(amount), at(0), "a test".into());
        let terms = LotTerms { kind, amount, begins, ends, models: None, reference };
        LedgerOperation::MakeLot { org: org("o"), terms: Box::new(terms) }
    };
    vec![
        lot(LotKind::Promotional, 400, Some(10)),
        lot(LotKind::Paid, 300, Some(60)),
        lot(LotKind::Contract, 500, None),
        free_tier("money", BudgetMeasure::Dollars, 90),
        free_tier("tokens", BudgetMeasure::Tokens, 200),
    ]
}
