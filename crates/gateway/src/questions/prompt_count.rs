//! The token count of a call's prompt. The call passes the stages up to the hold, and no model is asked.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use headrace_call_api::BodySource;
use headrace_call_state::Answer;

use crate::Gateway;
use crate::entry::EnteredCall;
use crate::refusal::{panicked, refuse};
use crate::stages::decide;

/// Takes a request as far as its token counts. No hold is taken.
///
/// # Errors
/// The answer to a request that some stage rejects.
pub(crate) async fn count_prompt(
    gateway: &Arc<Gateway>,
    entered: EnteredCall,
    body: impl BodySource,
) -> Result<u64, Answer> {
    let EnteredCall { admitted, mut context, start, .. } = entered;
    let count = async {
        match decide(gateway, admitted, body, &mut context).await {
            Ok(keyed) => Ok(keyed.work.prompt_tokens()),
            Err(rejection) => Err(refuse(gateway, context, &rejection)),
        }
    };
    let counted = AssertUnwindSafe(count).catch_unwind().await;
    counted.unwrap_or_else(|_| Err(panicked(gateway, start)))
}
