//! Stage `settle`: what a request took is paid or given back, exactly once, whatever happened to it.

use std::time::Duration;

use headrace_domain::{HoldId, NanoDollars, Stage, Usage};
use headrace_ledger::prices::Quote;
use headrace_ledger::{
    ChargeLine, Command, Durable, LedgerRefusal, Receipt, ReleaseReason, SettleOutcome, Verdict,
};
use headrace_limits::Lease;

use crate::Gateway;
use crate::dossier::Dossier;

/// Between two tries to write a settlement that the disk refused.
const RETRY_EVERY: Duration = Duration::from_millis(500);
/// Tries before it is left to the hold's expiry (nothing is charged then).
const RETRIES: u32 = 120;

/// What a request has taken: a lease of its limits and a hold on money.
pub(crate) struct Settlement {
    hold: HoldId,
    lease: Option<Lease>,
    quote: Quote,
    /// When they were taken, in nanoseconds of the clock's monotonic time.
    pub(crate) taken_ns: u64,
    /// Resolves when the hold is on the disk. No byte of a success leaves before.
    pub(crate) durable: Durable,
}

/// What is to be paid.
pub(crate) struct Bill {
    /// What the customer is charged for.
    pub(crate) charged: Usage,
    /// What was used beyond that: its list price goes to the loss account.
    pub(crate) lost: Usage,
    pub(crate) outcome: SettleOutcome,
}

impl Settlement {
    pub(crate) fn new(hold: HoldId, lease: Lease, quote: Quote, taken_ns: u64, durable: Durable) -> Self {
        Self { hold, lease: Some(lease), quote, taken_ns, durable }
    }

    /// Ends the hold without a charge and gives every limit back.
    pub(crate) fn release(mut self, gateway: &Gateway, why: ReleaseReason) -> Pending {
        let now = gateway.parts().clock.now();
        if let Some(lease) = self.lease.take() {
            lease.release(now);
        }
        Pending::send(gateway, Command::Release { hold: self.hold, why })
    }

    /// The hold never reached the disk, so there is nothing to end: only the limits are given back.
    pub(crate) fn abandon(mut self, gateway: &Gateway) {
        if let Some(lease) = self.lease.take() {
            lease.release(gateway.parts().clock.now());
        }
    }

    /// Charges the bill, gives the unused part of limits back and writes both into the dossier.
    pub(crate) fn settle(mut self, gateway: &Gateway, bill: &Bill, dossier: &mut Dossier) -> Pending {
        let started = dossier.elapsed_ns();
        if let Some(lease) = self.lease.take() {
            let used = bill.charged.plus(&bill.lost).total();
            lease.settle(used, gateway.parts().clock.now());
        }
        let lines = self.lines(&bill.charged);
        let loss = self.quote.cost(&bill.lost).unwrap_or(NanoDollars::MAX);
        let command = Command::Settle { hold: self.hold, lines, loss, outcome: bill.outcome, answer: None };
        let pending = Pending::send(gateway, command);
        if let Some(Receipt::Settled { charged, loss, .. }) = &pending.receipt {
            dossier.record.cost = *charged;
            dossier.record.loss = *loss;
        }
        dossier.record.usage = bill.charged.plus(&bill.lost);
        let duration = dossier.elapsed_ns().saturating_sub(started);
        dossier.add(Stage::Settle, started, duration);
        pending
    }

    /// A usage that overflows its price cannot have been held for: nothing is charged then, and the log says so.
    fn lines(&self, usage: &Usage) -> Vec<ChargeLine> {
        self.quote.lines(usage, self.quote.model()).unwrap_or_else(|error| {
            tracing::error!(hold = %self.hold, %error, "a settlement's lines do not fit; nothing is charged");
            Vec::new()
        })
    }
}

/// A settlement that is decided in memory and on its way to the disk.
pub(crate) struct Pending {
    command: Command,
    receipt: Option<Receipt>,
    durable: Durable,
}

impl Pending {
    fn send(gateway: &Gateway, command: Command) -> Self {
        let ledger = &gateway.parts().ledger;
        let mut transacted = ledger.transact(vec![command.clone()], gateway.parts().clock.now());
        let receipt = match transacted.verdicts.pop().map(Verdict::into_result) {
            Some(Ok(receipt)) => Some(receipt),
            Some(Err(refusal)) => {
                tracing::warn!(%refusal, "a settlement was refused; it is tried again");
                None
            }
            None => None,
        };
        Self { command, receipt, durable: transacted.durable }
    }

    /// Waits for the disk, and sends the settlement again while the disk refuses it. `AlreadyResolved` means that an
    /// earlier try reached it.
    pub(crate) async fn written(mut self, gateway: &Gateway) {
        for _ in 0..RETRIES {
            if self.receipt.is_some() && (&mut self.durable).await.is_ok() {
                return;
            }
            tokio::time::sleep(RETRY_EVERY).await;
            let ledger = &gateway.parts().ledger;
            let mut again = ledger.transact(vec![self.command.clone()], gateway.parts().clock.now());
            self.durable = again.durable;
            match again.verdicts.pop().map(Verdict::into_result) {
                Some(Ok(receipt)) => self.receipt = Some(receipt),
                Some(Err(LedgerRefusal::AlreadyResolved { .. } | LedgerRefusal::UnknownHold { .. })) => {
                    return;
                }
                _ => self.receipt = None,
            }
        }
        tracing::error!("a settlement could not be written; its hold will expire uncharged");
    }
}
