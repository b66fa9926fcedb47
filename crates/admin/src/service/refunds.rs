//! Refunds of charges. The charge is looked up in the journal, and the ledger decides once per reference.

use headrace_domain::{AdminCode, HoldId, NanoDollars, UnixNanos};
use headrace_ledger::{LedgerOperation, Receipt, RefundableCharge};

use super::money::MoneyAct;
use super::{AdminService, unexpected};
use crate::command::AdminReply;
use crate::error::AdminError;
use crate::refund_view::RefundView;

impl AdminService {
    /// Refunds a part of a call's charge, or all of it. If the same refund was made before, returns that one.
    pub(super) fn refund(
        &self,
        hold: HoldId,
        amount: Option<NanoDollars>,
        reference: String,
        actor: &str,
        now: UnixNanos,
    ) -> Result<AdminReply, AdminError> {
        if reference.trim().is_empty() {
            return Err(AdminError::new(
                AdminCode::Invalid,
                "a refund needs a reference",
                "--reference TEXT",
            ));
        }
        let charge = self.charge_of(hold)?;
        let _one_at_a_time = self.money.lock();
        let _in_all_processes = self.directory.lock_acts()?;
        self.finish_announced(now)?;
        let receipt = if self.ledger.refund_by_reference(&charge.org, &reference).is_some() {
            // The ledger changes nothing: it returns the refund, or refuses another one under the same reference.
            let charge = Box::new(charge.clone());
            self.transact(LedgerOperation::Refund { charge, amount, reference: reference.clone() }, now)?
        } else {
            let act = MoneyAct::Refund { charge: charge.clone(), amount, reference: reference.clone() };
            self.announce_and_do(&act, actor, now)?
        };
        let Receipt::Refunded { amount, left, before, .. } = receipt else {
            return Err(unexpected(&receipt));
        };
        let balance = self.balance(&charge.org, now)?;
        let RefundableCharge { hold, org, project, charged, .. } = charge;
        Ok(AdminReply::Refunded(RefundView {
            hold,
            org,
            project,
            charged,
            amount,
            left,
            reference,
            balance,
            before,
        }))
    }

    fn charge_of(&self, hold: HoldId) -> Result<RefundableCharge, AdminError> {
        let found = self.ledger.history().charge_of(hold).map_err(|error| {
            AdminError::new(AdminCode::LedgerUnavailable, error.to_string(), "see that its file can be read")
        })?;
        found.ok_or_else(|| {
            AdminError::new(
                AdminCode::UnknownCharge,
                format!("the ledger has no charge of {hold}: no such call ended, or nothing was charged"),
                "headrace requests lists calls with their charges",
            )
        })
    }
}
