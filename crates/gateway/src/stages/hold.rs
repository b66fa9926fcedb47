//! Stage `hold`: takes limits and money, all or nothing. The hold covers the most expensive outcome: every prompt token
//! in its most expensive class, every choice at full length.

use std::sync::Arc;
use std::time::Duration;

use headrace_call_state::{Rejection, rate_headers};
use headrace_domain::{Code, HolderTiers, NanoDollars, ServiceTier, Stage, UnixNanos};
use headrace_ledger::prices::Quote;
use headrace_ledger::{CommandResult, HoldDemand, LedgerOperation, LedgerRefusal, PlaceLimits};
use headrace_limits::Scope;

use crate::features::HoldTerms;
use crate::key_check::KeyCheck;
use crate::request_context::RequestContext;
use crate::settle::CallSettlement;
use crate::state::{FundedCall, KeyedCall, RenderedWork, caller_scopes};
use crate::{Gateway, features};

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
        let command = LedgerOperation::Hold {
            hold,
            org: self.principal.org.clone(),
            project: self.principal.project.clone(),
            amount,
            owner: parts.owner,
            expires: now.after(gateway.config().hold_lifetime),
            idempotency: claim,
            demand: takes_limits.then(|| self.demand(tokens, parts.ledger.counts_places())),
        };
        let mut headers = rate_headers(&self.principal.lease.standing(now), context.dialect, now);
        headers.extend(self.work.name_headers(context));
        let deciding = if parts.ledger.checks_callers() {
            let caller = KeyCheck::new(gateway, &self.principal.principal);
            parts.ledger.decide_for(Arc::new(caller), vec![command], now)
        } else {
            parts.ledger.decide(vec![command], now)
        };
        let mut transacted = deciding.await;
        if let Some(Err(refusal)) = transacted.verdicts.pop().map(CommandResult::into_result) {
            self.principal.lease.release(now);
            return Err(features::on_hold_refused(context, refusal, (now, transacted.durable)).await);
        }
        context.record.held = amount;
        context.record.billed = Some(Box::new(self.work.held_for(&quote, now)));
        context.end_stage(Stage::Hold);
        let settlement =
            CallSettlement::new(hold, self.principal.lease, (quote, tiers), taken_ns, transacted.durable);
        Ok(FundedCall { work: self.work, settlement, headers })
    }
}

impl KeyedCall {
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

/// The prices of the work's model for a caller with these tiers, and the most that the work can cost.
pub(crate) fn quoted(
    work: &RenderedWork,
    tiers: Option<&HolderTiers>,
    now: UnixNanos,
) -> Result<(Quote, NanoDollars), Rejection> {
    let name = &work.model.name;
    let quote =
        work.terms.catalog.prices().quote_for(name, tiers, now).ok_or_else(|| unpriced(name.as_str()))?;
    // A relay upstream reports its own service tier. The batch tier is decided here, whichever upstream answers.
    let messages = work.rendered.messages();
    let is_known = messages.is_none() || work.call.tier == ServiceTier::Batch;
    let tier = is_known.then(|| work.call.tier.into());
    let searches = messages.map_or(0, |messages| messages.most_searches);
    let amount = quote.hold_for(tier, work.prompt_tokens(), work.most_output_tokens());
    let amount = amount.and_then(|amount| match searches {
        0 => Ok(amount),
        searches => amount.checked_add(quote.hold_for_searches(searches)?),
    });
    Ok((quote, amount.map_err(|_| LedgerRefusal::Overflow)?))
}

fn unpriced(model: &str) -> Rejection {
    Rejection::new(
        Code::ModelUnpriced,
        format!("The model `{model}` has no price today, and nothing is free by accident. Set one under [[prices]]."),
    )
    .retry_after(Duration::from_secs(60))
}
