//! Decides one batch within a turn, with the core that every ledger has. Knows no journal.

use headrace_domain::UnixNanos;

use crate::command::{LedgerOperation, Owner, Receipt};
use crate::record::{BUDGET_FORMAT, LOT_FORMAT};
use crate::refusal::LedgerRefusal;
use crate::transaction::Transaction;
use crate::verdict::CommandResult;

use super::shared::{QueuedBatch, TurnState};

/// Decides one batch at the journal's time. `format` is the newest format that rows may have.
pub(super) fn decide_batch(
    inner: &mut TurnState,
    owner: Owner,
    time: UnixNanos,
    batch: &QueuedBatch,
    format: u32,
    transactions: &mut Vec<Transaction>,
) -> Vec<CommandResult> {
    let mut verdicts = Vec::with_capacity(batch.operations.len());
    for operation in &batch.operations {
        let verdict = match operation {
            LedgerOperation::ExpireHolds => {
                let expired = inner.core.expire_own(owner, time, transactions);
                if let Receipt::ReleasedMany { holds, .. } = &expired {
                    inner.health.expired += holds.len() as u64;
                }
                Ok(expired)
            }
            LedgerOperation::SetBudgetRule { .. } if format < BUDGET_FORMAT => {
                Err(LedgerRefusal::OlderGateway { format: BUDGET_FORMAT, known: format })
            }
            LedgerOperation::Refund { .. }
            | LedgerOperation::MakeLot { .. }
            | LedgerOperation::SetLowBalance { .. }
            | LedgerOperation::SetFreeTier { .. }
                if format < LOT_FORMAT =>
            {
                Err(LedgerRefusal::OlderGateway { format: LOT_FORMAT, known: format })
            }
            operation => {
                let operation = translated(operation.clone(), owner, (time, batch.asked), format);
                inner.core.apply_to(operation, time, transactions)
            }
        };
        verdicts.push(verdict.map_or_else(CommandResult::Refused, CommandResult::Done));
    }
    verdicts
}

/// Translates an operation from the caller's clock to the journal's, and to the name under which this gateway holds.
fn translated(
    operation: LedgerOperation,
    owner: Owner,
    (time, asked): (UnixNanos, UnixNanos),
    format: u32,
) -> LedgerOperation {
    match operation {
        LedgerOperation::Hold { hold, org, project, amount, owner: _, expires, idempotency, mut demand } => {
            let expires = time.after(expires.since(asked));
            if format < BUDGET_FORMAT
                && let Some(demand) = &mut demand
            {
                // A gateway that cannot read such rows is live. Each gateway counts its own calls in flight meanwhile.
                demand.places = None;
            }
            LedgerOperation::Hold { hold, org, project, amount, owner, expires, idempotency, demand }
        }
        other => other,
    }
}
