//! What stored resources need of the gateway that runs calls.

use std::sync::Arc;

use bytes::Bytes;
use headrace_call_api::{BodySource, CallerInfo};
use headrace_call_state::{Answer, Rejection};
use headrace_domain::{Endpoint, HoldId};
use headrace_identity::Principal;
use headrace_moderation::Judge;

use crate::batch_line::BatchLine;

/// Runs the calls of batches, compactions and counts.
pub trait CallRunner: Send + Sync + 'static {
    /// An admitted call whose body has not been read yet.
    type Entered: Send;

    /// Admits a call of a known principal. `line` is the batch request that the call runs, if it runs one.
    ///
    /// # Errors
    /// The answer to a caller that is not admitted.
    fn enter(
        &self,
        principal: Arc<Principal>,
        endpoint: Endpoint,
        caller: CallerInfo,
        line: Option<BatchLine>,
    ) -> impl Future<Output = Result<Self::Entered, Answer>> + Send;

    /// Runs an admitted call to the head of its answer.
    fn run(self: &Arc<Self>, call: Self::Entered, body: Bytes) -> impl Future<Output = Answer> + Send;

    /// Counts the prompt tokens of an admitted call. No model is asked.
    ///
    /// # Errors
    /// The answer to a call that is rejected.
    fn count<B: BodySource>(
        self: &Arc<Self>,
        call: Self::Entered,
        body: B,
    ) -> impl Future<Output = Result<u64, Answer>> + Send;

    /// Rejects a caller whose organisation could not pay for any call.
    ///
    /// # Errors
    /// The organisation has no funds.
    fn check_funds(&self, principal: &Principal) -> Result<(), Rejection>;

    /// The content rules, if there are any.
    fn judge(&self) -> Option<Arc<dyn Judge>>;

    /// Ends a hold without a charge.
    fn release(&self, hold: HoldId) -> impl Future<Output = ()> + Send;
}
