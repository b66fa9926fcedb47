//! Claims on a key without a call: a hold of nothing, which ends when the answer is stored.

use std::sync::Arc;

use headrace_domain::{HoldId, NanoDollars};
use headrace_identity::Principal;
use headrace_ledger::{
    CommandResult, DurableFuture, IdempotencyClaim, LedgerOperation, LedgerRefusal, SettleOutcome,
    StoredAnswer,
};

use tokio::runtime::Handle;

use crate::Gateway;
use crate::key_check::KeyCheck;
use crate::settle::{self, SettleHaste};

/// A claimed key. Dropping it frees the key.
pub(crate) struct KeyClaim {
    gateway: Arc<Gateway>,
    hold: HoldId,
    is_ended: bool,
}

/// The hold of nothing that makes a claim.
pub(super) fn zero_hold(
    gateway: &Gateway,
    principal: &Principal,
    hold: HoldId,
    claim: IdempotencyClaim,
) -> LedgerOperation {
    let parts = gateway.parts();
    LedgerOperation::Hold {
        hold,
        org: principal.org.clone(),
        project: principal.project.clone(),
        amount: NanoDollars::ZERO,
        owner: parts.owner,
        expires: parts.clock.now().after(gateway.config().hold_lifetime),
        idempotency: Some(claim),
        demand: None,
    }
}

/// Decides a batch. Returns the verdict on its first operation, and the promise of what it rests on.
pub(super) async fn decide(
    gateway: &Gateway,
    principal: &Arc<Principal>,
    batch: Vec<LedgerOperation>,
) -> (Result<(), LedgerRefusal>, DurableFuture) {
    let (ledger, now) = (&gateway.parts().ledger, gateway.parts().clock.now());
    let decided = if ledger.checks_callers() {
        ledger.decide_for(Arc::new(KeyCheck::new(gateway, principal)), batch, now)
    } else {
        ledger.decide(batch, now)
    };
    let decided = decided.await;
    let first = decided.verdicts.into_iter().next().map(CommandResult::into_result);
    let none = || Err(LedgerRefusal::Inconsistent { why: "a command had no verdict" });
    (first.unwrap_or_else(none).map(drop), decided.durable)
}

impl KeyClaim {
    /// Claims a key under a new hold.
    ///
    /// # Errors
    /// The refusal, and the promise of what it rests on.
    pub(crate) async fn take(
        gateway: &Arc<Gateway>,
        principal: &Arc<Principal>,
        hold: HoldId,
        claim: IdempotencyClaim,
    ) -> Result<Self, (LedgerRefusal, DurableFuture)> {
        let batch = vec![zero_hold(gateway, principal, hold, claim)];
        // If this future is dropped before the verdict, the guard releases what was taken.
        let mut taken = Self { gateway: Arc::clone(gateway), hold, is_ended: false };
        match decide(gateway, principal, batch).await {
            (Ok(()), durable) => match durable.await {
                Ok(()) => Ok(taken),
                Err(failed) => Err((LedgerRefusal::Unavailable { why: failed.why }, DurableFuture::now())),
            },
            (Err(refusal), durable) => {
                taken.is_ended = true;
                Err((refusal, durable))
            }
        }
    }

    /// The hold of the claim.
    pub(crate) const fn hold(&self) -> HoldId {
        self.hold
    }

    /// Ends the claim: from now on repeats of the request get the answer, or the refusal that it is gone. Returns when that
    /// is on the disk.
    pub(crate) async fn complete(mut self, answer: Option<StoredAnswer>) {
        let (hold, outcome) = (self.hold, SettleOutcome::Completed);
        let settle =
            LedgerOperation::Settle { hold, lines: Vec::new(), loss: NanoDollars::ZERO, outcome, answer };
        settle::end_hold(&self.gateway, hold, settle, SettleHaste::Waits).await;
        self.is_ended = true;
    }

    /// Frees the key.
    pub(crate) async fn free(mut self) {
        settle::release_unowned(&self.gateway, self.hold).await;
        self.is_ended = true;
    }
}

impl Drop for KeyClaim {
    fn drop(&mut self) {
        // Without a runtime the process ends, and the next start frees the key.
        if !self.is_ended
            && let Ok(runtime) = Handle::try_current()
        {
            let (gateway, hold) = (Arc::clone(&self.gateway), self.hold);
            runtime.spawn(async move { settle::release_unowned(&gateway, hold).await });
        }
    }
}
