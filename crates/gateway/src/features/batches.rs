//! Requests of batches: answered whole and in the foreground, in the batch tier, and paid for once.

use std::sync::Arc;

use headrace_call_state::{Rejection, delivery::DeliveredCopy};
use headrace_domain::{Call, Code, ServiceTier};
use headrace_ledger::{IdempotencyClaim, LedgerRefusal};

use crate::request_context::RequestContext;
use crate::state::RenderedWork;

/// The longest answer to a batch request, in bytes.
const MOST_LINE_ANSWER_BYTES: usize = 64 << 20;

/// Requires that a batch request is answered whole and in the foreground, and puts it in the batch tier.
pub(super) fn on_parsed(context: &RequestContext, call: &mut Call) -> Result<(), Rejection> {
    if context.batch.is_none() {
        return Ok(());
    }
    let never = |param: &str| {
        let message = format!("`{param}`: a request of a batch is answered whole, and waited for.");
        Err(Rejection::new(Code::UnsupportedValue, message).with_param(param))
    };
    if call.stream {
        return never("stream");
    }
    if call.dialect.response().is_some_and(|ask| ask.background) {
        return never("background");
    }
    call.tier = ServiceTier::Batch;
    Ok(())
}

/// The claim under which the ledger recognizes a batch request.
pub(super) fn claim(context: &RequestContext) -> Option<IdempotencyClaim> {
    context.batch.as_ref().map(|line| line.claim())
}

/// Records that an earlier attempt of a batch request was paid for.
pub(super) fn on_hold_refused(context: &RequestContext, refusal: &LedgerRefusal) {
    if let (LedgerRefusal::IdempotencyReplay { hold, .. }, Some(line)) = (refusal, &context.batch) {
        line.was_paid(*hold);
    }
}

/// A copy of the answer to a batch request, which is stored when it is complete.
pub(super) fn on_task(context: &RequestContext, work: &RenderedWork) -> Option<DeliveredCopy> {
    context.batch.as_ref().map(|_| DeliveredCopy::new(Arc::clone(&work.terms.memory), MOST_LINE_ANSWER_BYTES))
}
