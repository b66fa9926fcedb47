//! Stage `connect`: the request head has arrived. The edge has already checked it; the trace begins here.

use headrace_call_api::CallHead;
use headrace_domain::Stage;

use crate::request_context::RequestContext;
use crate::state::ArrivedRequest;

impl ArrivedRequest {
    pub(crate) fn new(head: CallHead, context: &mut RequestContext) -> Self {
        context.describe(head.endpoint, head.traceparent.as_deref());
        context.dialect_headers = head.dialect;
        context.record.connection = head.connection;
        context.end_stage(Stage::Connect);
        Self { credentials: head.credentials, endpoint: head.endpoint }
    }
}
