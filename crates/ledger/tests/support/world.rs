//! Short helpers that the ledger's tests share.

use headrace_domain::{
    HoldId, ModelName, NanoDollars, NanoDollarsPerMillion, OrgId, ProjectId, Rounding, TokenClass, UnixNanos,
};
use headrace_ledger::{
    BudgetPeriod, ChargeLine, GrantKind, IdempotencyClaim, LedgerOperation, Owner, ProjectBudget,
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
