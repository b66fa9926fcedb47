//! Stages `cache` and `hold`: the estimate of what is cached, then limits and money, all or nothing.
//! The hold covers the dearest outcome: every prompt token uncached, every choice at its full length.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use headrace_domain::{Code, PrefixKeys, Stage};
use headrace_ledger::{Command, LedgerRefusal, Verdict};
use headrace_limits::{RateStanding, Scope};

use crate::Gateway;
use crate::dossier::Dossier;
use crate::refused::Why;
use crate::settle::Settlement;
use crate::state::{Held, Rendered, caller_scopes};

impl Rendered {
    pub(crate) fn hold(mut self, gateway: &Gateway, dossier: &mut Dossier) -> Result<Held, Why> {
        let parts = gateway.parts();
        let model = &self.work.model;
        let now = parts.clock.now();
        // Hashed once: the keys travel on with the request, to placement and into the engine.
        self.work.keys = self.work.prompts.iter().map(|ids| PrefixKeys::of(&self.work.salt, ids)).collect();
        let cached: usize =
            self.work.keys.iter().map(|keys| parts.fleet.cached_prefix(&model.name, keys)).sum();
        tracing::trace!(request = %dossier.id, cached, "cached prefix estimated");
        dossier.mark(Stage::Cache);

        let quote = parts.prices.quote(&model.name, now).ok_or_else(|| unpriced(model.name.as_str()))?;
        let (prompt_tokens, output_tokens) = (self.work.prompt_tokens(), self.work.most_output_tokens());
        let amount = quote.hold_for(prompt_tokens, output_tokens).map_err(|_| LedgerRefusal::Overflow)?;

        // Limits first: the lease that was taken at the door gets its tokens; a refusal by the ledger returns them.
        let [key, project, org] = caller_scopes(&self.principal);
        let scopes = [key, project, org, (Scope::Model(model.name.clone()), model.limits)];
        let tokens = prompt_tokens.saturating_add(output_tokens);
        let (_, model_scope) = scopes.split_at(3);
        if let Err(refusal) = self.principal.lease.take(model_scope, tokens, now) {
            return Err(Why::limited(refusal, &parts.limits.standing(&scopes, now)));
        }
        let (hold, taken_ns) = (dossier.id.hold(), parts.clock.monotonic_nanos());
        let command = Command::Hold {
            hold,
            org: self.principal.org.clone(),
            project: self.principal.project.clone(),
            amount,
            owner: gateway.config().owner,
            expires: now.after(gateway.config().hold_lifetime),
            idempotency: None,
        };
        let headers = rate_headers(&parts.limits.standing(&scopes, now));
        // From here to the task that settles the hold nothing may fail, or the money would stay held.
        let mut transacted = parts.ledger.transact(vec![command], now);
        if let Some(Err(refusal)) = transacted.verdicts.pop().map(Verdict::into_result) {
            self.principal.lease.release(now);
            return Err(refusal.into());
        }
        dossier.record.held = amount;
        // A clock that panics here must not cost more than this span.
        let _ = catch_unwind(AssertUnwindSafe(|| dossier.mark(Stage::Hold)));
        let settlement = Settlement::new(hold, self.principal.lease, quote, taken_ns, transacted.durable);
        Ok(Held { work: self.work, settlement, headers })
    }
}

fn unpriced(model: &str) -> Why {
    Why::new(
        Code::ModelUnpriced,
        format!("The model `{model}` has no price today, and nothing is free by accident. Set one under [[prices]]."),
    )
    .retry_after(Duration::from_secs(60))
}

/// OpenAI's rate-limit headers for the tightest scope; absent where nothing is limited.
pub(crate) fn rate_headers(standing: &RateStanding) -> Vec<(&'static str, String)> {
    let mut headers = Vec::with_capacity(6);
    let seconds = |wait: Duration| format!("{}s", wait.as_secs_f64().ceil());
    if let (Some(limit), Some(left)) = (standing.limit_requests, standing.remaining_requests) {
        headers.push(("x-ratelimit-limit-requests", limit.to_string()));
        headers.push(("x-ratelimit-remaining-requests", left.to_string()));
        headers.push(("x-ratelimit-reset-requests", seconds(standing.reset_requests)));
    }
    if let (Some(limit), Some(left)) = (standing.limit_tokens, standing.remaining_tokens) {
        headers.push(("x-ratelimit-limit-tokens", limit.to_string()));
        headers.push(("x-ratelimit-remaining-tokens", left.to_string()));
        headers.push(("x-ratelimit-reset-tokens", seconds(standing.reset_tokens)));
    }
    headers
}
