//! Stage `connect`: the request head has arrived. The edge has already checked it; the trace begins here.

use headrace_call_api::CallerInfo;
use headrace_domain::{Endpoint, Stage};

use crate::idempotent_request::IdempotentRequest;
use crate::request_context::RequestContext;
use crate::state::ArrivedRequest;

impl ArrivedRequest {
    pub(crate) fn new(endpoint: Endpoint, caller: CallerInfo, context: &mut RequestContext) -> Self {
        context.describe(endpoint, caller.traceparent.as_deref());
        context.dialect_headers = caller.dialect_headers;
        context.idempotency = caller.idempotency.map(|header| Box::new(IdempotentRequest::new(*header)));
        context.record.connection = caller.connection;
        context.end_stage(Stage::Connect);
        Self { credentials: caller.credentials, peer: caller.peer, endpoint }
    }
}
