//! Stage `hold`: limits and money, all or nothing. The hold covers the dearest outcome: every prompt token in its dearest class,
//! every choice at its full length.

use std::time::Duration;

use headrace_domain::{Code, Stage};
use headrace_ledger::{Command, LedgerRefusal, Verdict};
use headrace_limits::Scope;

use crate::Gateway;
use crate::dossier::Dossier;
use crate::pump::settle::Settlement;
use crate::rates::rate_headers;
use crate::refused::Why;
use crate::state::{Funded, Rendered, caller_scopes};

impl Rendered {
    /// The books may take their time, and a hold that nobody waits for would stay: only a task that nobody drops calls this.
    pub(crate) async fn hold(mut self, gateway: &Gateway, dossier: &mut Dossier) -> Result<Funded, Why> {
        let parts = gateway.parts();
        let model = &self.work.model;
        let now = parts.clock.now();
        let prices = self.work.catalog.prices();
        let quote = prices.quote(&model.name, now).ok_or_else(|| unpriced(model.name.as_str()))?;
        let (prompt_tokens, output_tokens) = (self.work.prompt_tokens(), self.work.most_output_tokens());
        // Whoever answers in messages says in which class of service it did.
        let tier = self.work.messages.is_none().then(|| self.work.call.tier.into());
        let amount =
            quote.hold_for(tier, prompt_tokens, output_tokens).map_err(|_| LedgerRefusal::Overflow)?;

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
            owner: parts.owner,
            expires: now.after(gateway.config().hold_lifetime),
            idempotency: None,
        };
        let headers = rate_headers(&parts.limits.standing(&scopes, now));
        let mut transacted = parts.books.decide(vec![command], now).await;
        if let Some(Err(refusal)) = transacted.verdicts.pop().map(Verdict::into_result) {
            self.principal.lease.release(now);
            return Err(refusal.into());
        }
        dossier.record.held = amount;
        dossier.mark(Stage::Hold);
        let settlement = Settlement::new(hold, self.principal.lease, quote, taken_ns, transacted.durable);
        Ok(Funded { work: self.work, settlement, headers })
    }
}

fn unpriced(model: &str) -> Why {
    Why::new(
        Code::ModelUnpriced,
        format!("The model `{model}` has no price today, and nothing is free by accident. Set one under [[prices]]."),
    )
    .retry_after(Duration::from_secs(60))
}
