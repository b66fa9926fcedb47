//! Stage `settle`: what a request took is paid or given back, exactly once, whatever happened to it.

use std::time::Duration;

use headrace_domain::{HoldId, NanoDollars, Usage};
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

/// What a request has taken: a lease of its limits and a hold on money. It is kept in one place from the hold to the
/// end of the task, and every step on it can be taken again: a panic in one does not lose it.
pub(crate) struct Settlement {
    hold: HoldId,
    lease: Option<Lease>,
    quote: Quote,
    /// When they were taken, in nanoseconds of the clock's monotonic time.
    pub(crate) taken_ns: u64,
    /// Resolves when the hold is on the disk. No byte of a success leaves before.
    pub(crate) durable: Durable,
    sent: Option<Pending>,
}

/// The hold's end is decided. Whoever tells the client how its call ended must show one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settled(());

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
        Self { hold, lease: Some(lease), quote, taken_ns, durable, sent: None }
    }

    /// Whether the hold's end is decided.
    pub(crate) fn settled(&self) -> Option<Settled> {
        self.sent.is_some().then_some(Settled(()))
    }

    /// Ends the hold without a charge and gives every limit back.
    pub(crate) fn release(&mut self, gateway: &Gateway, why: ReleaseReason) -> Settled {
        let hold = self.hold;
        self.send(gateway, Command::Release { hold, why });
        if let Some(lease) = self.lease.take() {
            lease.release(gateway.parts().clock.now());
        }
        Settled(())
    }

    /// Charges the bill, gives the unused part of limits back and writes both into the dossier.
    pub(crate) fn settle(&mut self, gateway: &Gateway, bill: &Bill, dossier: &mut Dossier) -> Settled {
        let lines = self.lines(&bill.charged);
        let loss = self.quote.cost(&bill.lost).unwrap_or(NanoDollars::MAX);
        let hold = self.hold;
        self.send(gateway, Command::Settle { hold, lines, loss, outcome: bill.outcome, answer: None });
        dossier.record.usage = bill.charged.plus(&bill.lost);
        if let Some(Receipt::Settled { charged, loss, .. }) =
            self.sent.as_ref().and_then(|sent| sent.receipt.as_ref())
        {
            dossier.record.cost = *charged;
            dossier.record.loss = *loss;
        }
        if let Some(lease) = self.lease.take() {
            lease.settle(dossier.record.usage.total(), gateway.parts().clock.now());
        }
        Settled(())
    }

    /// Waits until the end of the hold is on the disk.
    pub(crate) async fn written(&mut self, gateway: &Gateway) {
        if let Some(sent) = &mut self.sent {
            sent.written(gateway).await;
        }
    }

    fn send(&mut self, gateway: &Gateway, command: Command) {
        if self.sent.is_none() {
            self.sent = Some(Pending::send(gateway, command));
        }
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
struct Pending {
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
    async fn written(&mut self, gateway: &Gateway) {
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
