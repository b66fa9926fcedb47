//! The metadata in the answer to a call: its id, its model and its time.

use headrace_domain::{RequestId, UnixNanos};
use headrace_wire::{ReplyMeta, ShownSampling};

use crate::request_context::RequestContext;
use crate::state::RenderedWork;

/// The metadata in an answer to a call.
pub(crate) fn reply_meta(work: &RenderedWork, context: &RequestContext) -> ReplyMeta {
    meta_of(work, context.id, context.record.started)
}

pub(super) fn meta_of(work: &RenderedWork, request: RequestId, started: UnixNanos) -> ReplyMeta {
    ReplyMeta {
        request_id: request,
        created_unix_s: started.seconds(),
        model: work.model.name.to_string(),
        system_fingerprint: work.model.backend.numerics().to_owned(),
        tier: work.call.tier,
        chosen: ShownSampling { temperature: work.sampling.temperature, top_p: work.sampling.top_p },
        diagnosis: work.diagnosis.clone(),
    }
}
