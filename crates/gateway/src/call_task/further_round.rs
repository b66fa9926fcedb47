//! A further round of the same call: other prompts under the same hold, for the same client. Must not know why there is
//! one.

use std::sync::Arc;

use headrace_call_state::Rejection;
use headrace_engine_api::PinGuard;

use crate::Gateway;
use crate::stages::work_quote::quoted;
use crate::state::RenderedWork;

use super::CallTask;
use super::round::Round;

impl CallTask {
    /// Holds the prompts of its rounds in the caches of the engines that get them, until the call ends. Call it before
    /// the first round of a call that may have more.
    #[cfg_attr(not(test), expect(dead_code, reason = "the loop that runs tools here calls it"))]
    pub(super) fn hold_prefixes(&mut self) {
        let owner = self.context.id;
        self.context.held.get_or_insert_with(|| Box::new(PinGuard::new(owner)));
    }

    /// Takes limits and money for a further round and makes it the current one. Call it when the round before is in the
    /// call's record.
    ///
    /// # Errors
    /// A limit or the money refuses, and the error names which. The call can then only be finished.
    #[cfg_attr(not(test), expect(dead_code, reason = "the loop that runs tools here calls it"))]
    pub(super) async fn begin_round(
        &mut self,
        gateway: &Gateway,
        work: Arc<RenderedWork>,
    ) -> Result<(), Rejection> {
        let quoted = quoted(&work, self.settlement.tiers(), gateway.parts().clock.now())?;
        let (prompt, output) = (work.prompt_tokens(), work.most_output_tokens());
        let tokens = prompt.saturating_add(output);
        self.settlement.begin_round(gateway, tokens, quoted, &mut self.context).await?;
        if let Some(billed) = &mut self.context.record.billed {
            billed.held_prompt_tokens = billed.held_prompt_tokens.saturating_add(prompt);
            billed.held_output_tokens = billed.held_output_tokens.saturating_add(output);
        }
        self.round = Round::new(work, &gateway.config().wire);
        Ok(())
    }
}
