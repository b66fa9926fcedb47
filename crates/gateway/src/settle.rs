//! Stage `settle`: what a request took is paid or given back, exactly once, however the request ended.

use std::sync::Arc;
use std::time::Duration;

use headrace_call_state::Rejection;
use headrace_catalog::ServedModel;
use headrace_domain::{HoldId, HolderTiers, NanoDollars, Stage, TokenClass, UnixNanos, Usage};
use headrace_ledger::prices::{CallPrices, Quote};
use headrace_ledger::{
    ChargeLine, CommandResult, DurableFuture, HoldResolution, JournalFailed, LedgerOperation, LedgerRefusal,
    ModelDemand, PendingBatch, Receipt, ReleaseReason, SettleOutcome,
};
use headrace_limits::{Lease, Scope};

use crate::Gateway;
use crate::request_context::RequestContext;

mod round_bill;
mod rounds;

pub(crate) use round_bill::delivered_usage;
use round_bill::{EndedRound, RoundBill};

/// The pause between two tries to write a settlement that the disk refused.
const RETRY_EVERY: Duration = Duration::from_millis(500);
/// How long a refused settlement is retried after the time for a shutdown is over. Before that it is retried without
/// limit. A hold that remains open is released at the next start, and nothing is charged.
const LAST_TRIES: Duration = Duration::from_secs(10);

/// What a request has taken: a lease of its limits and a hold on money. It stays in one place from the hold to the end
/// of the task. Every step on it can be repeated, so a panic in a step does not lose it.
pub(crate) struct CallSettlement {
    hold: HoldId,
    lease: Option<Lease>,
    quote: Quote,
    /// The tiers of the caller, which may have prices of their own.
    tiers: Option<Arc<HolderTiers>>,
    /// When they were taken, in nanoseconds of the clock's monotonic time.
    pub(crate) taken_ns: u64,
    /// Resolves when the hold is on the disk. No byte of a successful answer leaves before.
    pub(crate) durable: DurableFuture,
    sent: Option<PendingSettlement>,
    /// Whether budgets by model, token and request count the call.
    is_budgeted: bool,
    /// The rounds before the current one. Empty for a call of one round.
    ended: Vec<EndedRound>,
}

/// Proof that the end of the hold is decided. Required to tell the client how its call ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SettledProof(());

/// How urgently the end of a hold must reach the disk.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SettleHaste {
    /// The call waits for it.
    Waits,
    /// It is only observed.
    Watches,
}

/// What is to be paid.
pub(crate) struct CallBill {
    /// The usage that the customer is charged for.
    pub(crate) charged: Usage,
    /// The usage beyond that. Its list price goes to the loss account.
    pub(crate) lost: Usage,
    pub(crate) outcome: SettleOutcome,
}

impl CallBill {
    /// The same usage as a loss: nothing of it is charged.
    pub(crate) fn into_loss(self) -> Self {
        let Self { charged, lost, outcome } = self;
        Self { charged: Usage::default(), lost: charged.plus(&lost), outcome }
    }
}

impl CallSettlement {
    pub(crate) fn new(
        hold: HoldId,
        lease: Lease,
        (quote, tiers): (Quote, Option<Arc<HolderTiers>>),
        taken_ns: u64,
        mut durable: DurableFuture,
    ) -> Self {
        // The call has nothing to send yet, so the hold may be written together with other entries.
        durable.at_leisure();
        let (sent, ended) = (None, Vec::new());
        Self { hold, lease: Some(lease), quote, tiers, taken_ns, durable, sent, is_budgeted: true, ended }
    }

    /// Sets whether budgets by model, token and request count the call. They do by default.
    pub(crate) fn budgeted(self, is_budgeted: bool) -> Self {
        Self { is_budgeted, ..self }
    }

    /// Replaces the prices and limits of a model that failed by those of another one, whose round may take `tokens` tokens
    /// and cost `amount`. The hold grows if that and the cost of ended rounds are more, and the budgets of the other
    /// model reserve the round.
    ///
    /// # Errors
    /// Money, budgets or limits refuse. The hold and its prices are then unchanged.
    pub(crate) async fn go_over(
        &mut self,
        gateway: &Gateway,
        (failed, next): (&ServedModel, &ServedModel),
        tokens: u64,
        (quote, amount): (Quote, NanoDollars),
        context: &mut RequestContext,
    ) -> Result<(), Rejection> {
        let parts = gateway.parts();
        let now = parts.clock.now();
        let scope = Scope::Model(next.name.clone());
        if let Some(lease) = &mut self.lease {
            let scopes = [(scope.clone(), next.limits)];
            if let Some(fetch) = lease.fetch_quota(&scopes, lease.tokens(), now) {
                fetch.await;
            }
            let entered = lease.enter(&scopes, now);
            entered.map_err(|refusal| {
                Rejection::limited(refusal, &parts.limits.standing(&scopes, now), context.dialect, now)
            })?;
        }
        let demand = || Box::new(ModelDemand { model: next.name.clone(), amount, tokens });
        let model = self.is_budgeted.then(demand);
        if let Err(refusal) = self.cover(gateway, amount, model, context).await {
            self.leave(&scope, now);
            return Err(refusal);
        }
        self.quote = quote;
        self.leave(&Scope::Model(failed.name.clone()), now);
        context.end_stage(Stage::Hold);
        Ok(())
    }

    /// Lets the hold grow until it covers the ended rounds and a current round that may cost `amount`. `model` is the other
    /// model that the call goes over to, whose budgets reserve the round.
    ///
    /// # Errors
    /// Money or budgets refuse. The hold is then unchanged.
    async fn cover(
        &mut self,
        gateway: &Gateway,
        amount: NanoDollars,
        model: Option<Box<ModelDemand>>,
        context: &mut RequestContext,
    ) -> Result<(), Rejection> {
        let needed = round_bill::cost_of(&self.ended).and_then(|spent| spent.checked_add(amount));
        let needed = needed.map_err(|_| LedgerRefusal::Overflow)?;
        let more =
            needed.checked_sub(context.record.held).unwrap_or(NanoDollars::ZERO).max(NanoDollars::ZERO);
        if more > NanoDollars::ZERO || model.is_some() {
            let parts = gateway.parts();
            let extend = LedgerOperation::Extend { hold: self.hold, amount: more, model };
            let mut transacted = parts.ledger.decide(vec![extend], parts.clock.now()).await;
            if let Some(Err(refusal)) = transacted.verdicts.pop().map(CommandResult::into_result) {
                return Err(refusal.into());
            }
            // Entries that were written before it reach the disk with it, so it covers the hold as well.
            self.durable = transacted.durable;
            self.durable.at_leisure();
            context.record.held = context.record.held.max(needed);
        }
        Ok(())
    }

    /// Waits until the hold is on the disk.
    pub(crate) async fn held(&mut self) -> Result<(), JournalFailed> {
        self.durable.hurry();
        (&mut self.durable).await
    }

    /// Returns the limits of a model that does not serve the call.
    fn leave(&mut self, scope: &Scope, now: UnixNanos) {
        if let Some(lease) = &mut self.lease {
            lease.leave(scope, now);
        }
    }

    /// The tiers of the caller.
    pub(crate) fn tiers(&self) -> Option<&HolderTiers> {
        self.tiers.as_deref()
    }

    /// The prices that apply.
    pub(crate) const fn quote(&self) -> &Quote {
        &self.quote
    }

    /// The id of the hold.
    pub(crate) const fn hold(&self) -> HoldId {
        self.hold
    }

    /// The price of a usage, which is never more than the hold. Each round has the prices of its own prompt's length.
    pub(crate) fn price(&self, usage: &Usage, context: &RequestContext) -> NanoDollars {
        let bill = CallBill { charged: *usage, lost: Usage::default(), outcome: SettleOutcome::Completed };
        let parts = self.by_round(&bill, context.record.price_tier);
        let cost = NanoDollars::checked_sum(
            parts.map(|part| part.prices.cost(&part.charged).unwrap_or(NanoDollars::MAX)),
        );
        cost.unwrap_or(NanoDollars::MAX).min(context.record.held)
    }

    /// How the hold had ended before the call did, which means that the call was not paid for. `None` if it had not.
    pub(crate) fn unpaid(&self) -> Option<String> {
        self.sent.as_ref().and_then(PendingSettlement::unpaid)
    }

    /// A [`SettledProof`] if the end of the hold is decided.
    pub(crate) fn settled(&self) -> Option<SettledProof> {
        self.sent.as_ref().is_some_and(PendingSettlement::is_decided).then_some(SettledProof(()))
    }

    /// Ends the hold without a charge and gives every limit back.
    pub(crate) async fn release(&mut self, gateway: &Gateway, why: ReleaseReason) -> SettledProof {
        let hold = self.hold;
        self.send(gateway, LedgerOperation::Release { hold, why }).await;
        if let Some(lease) = self.lease.take() {
            lease.release(gateway.parts().clock.now());
        }
        SettledProof(())
    }

    /// Charges the bill, with lines for each round, gives the unused part of the limits back and writes both into the context.
    pub(crate) async fn settle(
        &mut self,
        gateway: &Gateway,
        bill: &CallBill,
        context: &mut RequestContext,
    ) -> SettledProof {
        context.is_in(Stage::Settle);
        let used = bill.charged.plus(&bill.lost);
        let tier = context.record.price_tier;
        let (mut lines, mut loss, mut all) = (Vec::new(), NanoDollars::ZERO, NanoDollars::ZERO);
        let mut kept_lines = Vec::new();
        for RoundBill { prices, usual, charged, lost } in self.by_round(bill, tier) {
            let cost = |usage: &Usage| prices.cost(usage).unwrap_or(NanoDollars::MAX);
            let sum = |one: NanoDollars, more| one.checked_add(more).unwrap_or(NanoDollars::MAX);
            (loss, all) = (sum(loss, cost(&lost)), sum(all, cost(&charged.plus(&lost))));
            append(&mut lines, charge_lines(&prices, &charged, self.hold));
            if context.record.billed.is_some() {
                append(&mut kept_lines, round_bill::billed_lines(&prices, &usual, &charged, &lost));
            }
            if let Some(billed) = &mut context.record.billed {
                billed.prompt_prices =
                    Some([TokenClass::Input, TokenClass::CachedInput].map(|class| prices.price(class)));
            }
        }
        let expected = NanoDollars::checked_sum(lines.iter().map(|line| line.amount));
        let expected = expected.unwrap_or(NanoDollars::MAX).min(context.record.held);
        if let Some(billed) = &mut context.record.billed {
            billed.lines = kept_lines;
        }
        let hold = self.hold;
        let answer = context.take_answer();
        self.send(gateway, LedgerOperation::Settle { hold, lines, loss, outcome: bill.outcome, answer })
            .await;
        context.record.usage = used;
        // If the ledger cannot take the settlement now, it takes it later with the amounts computed here.
        (context.record.cost, context.record.loss) =
            match self.sent.as_ref().and_then(PendingSettlement::verdict) {
                Some(Ok(Receipt::Settled { charged, loss, .. })) => (*charged, *loss),
                Some(Err(LedgerRefusal::Unavailable { .. } | LedgerRefusal::Busy { .. })) => (expected, loss),
                Some(Err(LedgerRefusal::AlreadyResolved {
                    how: HoldResolution::Settled { charged },
                    ..
                })) => (*charged, loss),
                _ => (NanoDollars::ZERO, all),
            };
        if let Some(lease) = self.lease.take() {
            lease.settle(context.record.usage.total(), gateway.parts().clock.now());
        }
        if context.needs_durable_charge() {
            self.written(gateway, SettleHaste::Waits).await;
        }
        SettledProof(())
    }

    /// Waits until the end of the hold is on the disk, and sends it again as long as the disk refuses it.
    pub(crate) async fn written(&mut self, gateway: &Gateway, haste: SettleHaste) {
        let hold = self.hold;
        let Some(sent) = &mut self.sent else { return };
        write(gateway, hold, sent, haste).await;
        if let Some(why) = sent.unpaid() {
            tracing::error!(%hold, why, "a call was answered and not paid for");
        }
    }

    /// Sends the end of the hold unless one was sent, and waits until it is decided.
    async fn send(&mut self, gateway: &Gateway, command: LedgerOperation) {
        self.sent.get_or_insert_with(|| PendingSettlement::send(gateway, command)).decided().await;
    }
}

/// The charge for a usage. If its price overflows, no hold can have covered it: nothing is charged, and the log says
/// so.
fn charge_lines(prices: &CallPrices<'_>, usage: &Usage, hold: HoldId) -> Vec<ChargeLine> {
    prices.lines(usage).unwrap_or_else(|error| {
        tracing::error!(%hold, %error, "a settlement's lines do not fit; nothing is charged");
        Vec::new()
    })
}

/// Appends `more` to `all`, without a copy if there is nothing before it.
fn append<T>(all: &mut Vec<T>, more: Vec<T>) {
    if all.is_empty() { *all = more } else { all.extend(more) }
}

/// Ends a hold without a charge if it is unknown whether it was taken.
pub(crate) async fn release_unowned(gateway: &Gateway, hold: HoldId) {
    let mut release =
        PendingSettlement::send(gateway, LedgerOperation::Release { hold, why: ReleaseReason::Failed });
    write(gateway, hold, &mut release, SettleHaste::Watches).await;
}

/// Ends a hold that no call has, and returns when that is on the disk or cannot be written any more.
pub(crate) async fn end_hold(gateway: &Gateway, hold: HoldId, command: LedgerOperation, haste: SettleHaste) {
    let mut end = PendingSettlement::send(gateway, command);
    write(gateway, hold, &mut end, haste).await;
}

/// Waits until the end of a hold is on the disk, and sends it again as long as the disk refuses it.
async fn write(gateway: &Gateway, hold: HoldId, sent: &mut PendingSettlement, haste: SettleHaste) {
    let tries = async {
        while !sent.is_written(haste).await {
            tokio::time::sleep(RETRY_EVERY).await;
            *sent = PendingSettlement::send(gateway, sent.command.clone());
        }
    };
    let over = async {
        gateway.cut_off().cancelled().await;
        tokio::time::sleep(LAST_TRIES).await;
    };
    tokio::select! {
        biased;
        () = tries => {}
        () = over => tracing::error!(%hold, "a settlement could not be written before the end"),
    }
}

/// A settlement on its way to the ledger, and from there to the disk.
struct PendingSettlement {
    command: LedgerOperation,
    progress: SettleProgress,
}

enum SettleProgress {
    Deciding(PendingBatch),
    Decided { verdict: Result<Receipt, LedgerRefusal>, durable: DurableFuture },
}

impl PendingSettlement {
    fn send(gateway: &Gateway, command: LedgerOperation) -> Self {
        let now = gateway.parts().clock.now();
        let deciding = gateway.parts().ledger.decide(vec![command.clone()], now);
        Self { command, progress: SettleProgress::Deciding(deciding) }
    }

    /// Waits for the verdict.
    async fn decided(&mut self) {
        if let SettleProgress::Deciding(deciding) = &mut self.progress {
            let mut transacted = deciding.await;
            let verdict = transacted.verdicts.pop().map_or_else(
                || Err(LedgerRefusal::Inconsistent { why: "a command had no verdict" }),
                CommandResult::into_result,
            );
            self.progress = SettleProgress::Decided { verdict, durable: transacted.durable };
        }
    }

    fn is_decided(&self) -> bool {
        self.verdict().is_some()
    }

    /// The verdict. `None` until it is decided.
    fn verdict(&self) -> Option<&Result<Receipt, LedgerRefusal>> {
        match &self.progress {
            SettleProgress::Deciding(_) => None,
            SettleProgress::Decided { verdict, .. } => Some(verdict),
        }
    }

    /// Waits until it is on the disk. Returns `false` if it must be sent again.
    async fn is_written(&mut self, haste: SettleHaste) -> bool {
        self.decided().await;
        let SettleProgress::Decided { verdict, durable } = &mut self.progress else { return false };
        if matches!(haste, SettleHaste::Watches) {
            durable.at_leisure();
        }
        match verdict {
            Ok(_) => durable.await.is_ok(),
            // An earlier try reached the disk, the hold never did, or it ended otherwise: nothing is left to do.
            Err(LedgerRefusal::AlreadyResolved { .. } | LedgerRefusal::UnknownHold { .. }) => true,
            Err(LedgerRefusal::Unavailable { .. } | LedgerRefusal::Busy { .. }) => false,
            // The ledger will never take it, but the hold must end nevertheless.
            Err(refusal) => {
                tracing::error!(%refusal, "the ledger refused a settlement; its hold is released, not charged");
                if let LedgerOperation::Settle { hold, .. } = self.command {
                    self.command = LedgerOperation::Release { hold, why: ReleaseReason::Failed };
                    return false;
                }
                true
            }
        }
    }

    /// How the hold had ended, if neither this settlement nor an earlier try to write it ended it. The call was then
    /// not paid for.
    fn unpaid(&self) -> Option<String> {
        let LedgerOperation::Settle { .. } = self.command else { return None };
        match self.verdict() {
            Some(Err(
                refusal @ (LedgerRefusal::AlreadyResolved { how: HoldResolution::Released { .. }, .. }
                | LedgerRefusal::UnknownHold { .. }),
            )) => Some(format!("the call was not charged: {refusal}")),
            _ => None,
        }
    }
}
