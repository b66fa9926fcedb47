//! Stage `hold`: takes limits and money, all or nothing. The hold covers the most expensive outcome: every prompt token
//! in its most expensive class, every choice at full length.

use std::sync::Arc;

use headrace_call_state::{Rejection, rate_headers};
use headrace_domain::rfc3339::Rfc3339;
use headrace_domain::{HoldId, Stage, UnixNanos};
use headrace_ledger::{
    BatchResult, CommandResult, DurableFuture, FreeLeft, HoldDemand, LedgerOperation, LedgerRefusal,
    PendingBatch, PlaceLimits, Receipt,
};
use headrace_limits::Scope;

use crate::features::HoldTerms;
use crate::key_check::KeyCheck;
use crate::request_context::RequestContext;
use crate::settle::CallSettlement;
use crate::stages::funds_cap::{CAPPED_HEADER, covered};
use crate::stages::work_quote::quoted;
use crate::state::{FundedCall, KeyedCall, caller_scopes};
use crate::{Gateway, features};

/// How often a call is cut, if other calls take the money meanwhile.
const CUTS: usize = 3;

impl KeyedCall {
    /// Only a task that is never dropped may call this. The ledger may take its time, and a hold granted to a dropped
    /// future would never be released.
    pub(crate) async fn hold(
        mut self,
        gateway: &Gateway,
        context: &mut RequestContext,
    ) -> Result<FundedCall, Rejection> {
        let parts = gateway.parts();
        let model = &self.work.model;
        let now = parts.clock.now();
        self.principal.check_key(&parts.directory, now)?;
        let tiers = self.principal.principal.tier.as_ref().map(|tier| Arc::clone(&tier.holders));
        let (quote, most) = quoted(&self.work, tiers.as_deref(), now)?;
        let HoldTerms { amount, takes_limits, claim } = features::on_hold(context, most, now).await?;

        // Limits first: the lease from the admission check receives the call's tokens. If the ledger then refuses, they
        // are returned.
        let tokens = self.work.prompt_tokens().saturating_add(self.work.most_output_tokens());
        let model_scope = (Scope::Model(model.name.clone()), model.limits);
        if takes_limits
            && let Some(fetch) =
                self.principal.lease.fetch_quota(std::slice::from_ref(&model_scope), tokens, now)
        {
            fetch.await;
        }
        if takes_limits
            && let Err(refusal) = self.principal.lease.take(std::slice::from_ref(&model_scope), tokens, now)
        {
            let [key, project, org] = caller_scopes(&self.principal);
            let scopes = [key, project, org, model_scope];
            return Err(Rejection::limited(
                refusal,
                &parts.limits.standing(&scopes, now),
                context.dialect,
                now,
            ));
        }
        let (hold, taken_ns) = (context.id.hold(), parts.clock.monotonic_nanos());
        let terms = HoldTerms { amount, takes_limits, claim };
        let mut headers = rate_headers(&self.principal.lease.standing(now), context.dialect, now);
        headers.extend(self.work.name_headers(context));
        let mut decided = verdict_of(self.ask(gateway, hold, &terms, now).await);
        let mut amount = amount;
        for _ in 0..CUTS {
            let Err(refusal) = &decided.0 else { break };
            let Some(covered) = covered(refusal).filter(|_| takes_limits) else { break };
            let Some(tokens) = self.cap(covered, tiers.as_deref(), now) else { break };
            amount = quoted(&self.work, tiers.as_deref(), now)?.1;
            let terms = HoldTerms { amount, takes_limits, claim: terms.claim.clone() };
            decided = verdict_of(self.ask(gateway, hold, &terms, now).await);
            headers.retain(|(name, _)| *name != CAPPED_HEADER);
            headers.push((CAPPED_HEADER, tokens.to_string()));
        }
        let (verdict, durable) = decided;
        match verdict {
            Err(refusal) => {
                self.principal.lease.release(now);
                return Err(features::on_hold_refused(context, refusal, (now, durable)).await);
            }
            Ok(Receipt::Held { free: Some(free), .. }) => headers.extend(free_headers(&free)),
            Ok(_) => {}
        }
        context.record.held = amount;
        context.record.billed = Some(Box::new(self.work.held_for(&quote, now)));
        context.end_stage(Stage::Hold);
        let settlement = CallSettlement::new(hold, self.principal.lease, (quote, tiers), taken_ns, durable)
            .budgeted(takes_limits);
        Ok(FundedCall { work: self.work, settlement, headers })
    }
}

impl KeyedCall {
    /// Asks the ledger for the call's hold at `now`.
    fn ask(&self, gateway: &Gateway, hold: HoldId, terms: &HoldTerms, now: UnixNanos) -> PendingBatch {
        let parts = gateway.parts();
        let HoldTerms { amount, takes_limits, claim } = terms;
        let tokens = self.work.prompt_tokens().saturating_add(self.work.most_output_tokens());
        let command = LedgerOperation::Hold {
            hold,
            org: self.principal.org.clone(),
            project: self.principal.project.clone(),
            amount: *amount,
            owner: parts.owner,
            expires: now.after(gateway.config().hold_lifetime),
            idempotency: claim.clone(),
            demand: takes_limits.then(|| self.demand(tokens, parts.ledger.counts_places())),
        };
        if parts.ledger.checks_callers() {
            let caller = KeyCheck::new(gateway, &self.principal.principal);
            parts.ledger.decide_for(Arc::new(caller), vec![command], now)
        } else {
            parts.ledger.decide(vec![command], now)
        }
    }

    /// What the call asks of budget rules. `counts_places`: the ledger counts calls in flight over several gateways.
    fn demand(&self, tokens: u64, counts_places: bool) -> HoldDemand {
        let (principal, model) = (&self.principal.principal, &self.work.model);
        let places = counts_places.then(|| PlaceLimits {
            key: principal.limits.concurrency,
            project: principal.project_limits.concurrency,
            org: principal.org_limits.concurrency,
            model: model.limits.concurrency,
        });
        HoldDemand {
            key: principal.key.clone(),
            user: principal.user.as_ref().map(|_| principal.key.clone().into()),
            model: model.name.clone(),
            tokens,
            tiers: principal.tier.as_ref().map(|tier| Arc::clone(&tier.holders)),
            places,
        }
    }
}

/// The verdict on a hold, and the promise of what it rests on.
fn verdict_of(mut transacted: BatchResult) -> (Result<Receipt, LedgerRefusal>, DurableFuture) {
    let none = || Err(LedgerRefusal::Inconsistent { why: "a command had no verdict" });
    let verdict = transacted.verdicts.pop().map_or_else(none, CommandResult::into_result);
    (verdict, transacted.durable)
}

/// The headers that say what is left of a free tier: the amount, its unit, and the end of the window.
fn free_headers(free: &FreeLeft) -> impl Iterator<Item = (&'static str, String)> {
    let FreeLeft { measure, left, resets, .. } = free;
    let resets = resets.map(|at| ("x-headrace-free-resets", Rfc3339(at).to_string()));
    [("x-headrace-free-left", measure.text(*left)), ("x-headrace-free-unit", measure.name().to_owned())]
        .into_iter()
        .chain(resets)
}
