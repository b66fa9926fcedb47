//! Requests and answers that the record policy of a project keeps. They are collected while the call runs and handed
//! over when it has ended. A call never waits for that, and never fails because of it.

use std::sync::Arc;

use bytes::Bytes;
use headrace_call_state::RecordedCopy;
use headrace_domain::{CallContent, ContentSink, Endpoint};

use crate::Gateway;
use crate::kept_request::KeptRequest;
use crate::request_context::RequestContext;
use crate::state::RenderedWork;

/// The sink, if the content of this call is recorded. That of shadow copies never is.
fn sink<'g>(gateway: &'g Gateway, context: &RequestContext) -> Option<&'g Arc<dyn ContentSink>> {
    gateway.contents().filter(|_| need_body(context))
}

/// Whether the body is recorded.
pub(super) fn need_body(context: &RequestContext) -> bool {
    context.records.level.has_content() && context.copy().is_none()
}

/// Keeps the body.
pub(super) fn on_parsed(gateway: &Gateway, context: &mut RequestContext, body: Option<&Bytes>) {
    if let (Some(sink), Some(body)) = (sink(gateway, context), body) {
        context.request = Some(Box::new(KeptRequest::of(body, sink.max_bytes())));
    }
}

/// Reserves memory for the body, and returns a buffer for the answer.
pub(super) fn on_task(
    gateway: &Gateway,
    context: &mut RequestContext,
    work: &RenderedWork,
) -> Option<RecordedCopy> {
    let request = context.request.as_ref()?;
    let sink = sink(gateway, context)?;
    let memory = &work.terms.memory;
    if memory.add(request.body.len() as u64).is_err() {
        context.request = None;
        sink.count_lost();
        return None;
    }
    Some(RecordedCopy::new(Arc::clone(memory), sink.max_bytes()))
}

/// Hands over what was collected. `sent` is the copy of the answer, and whether its end is missing.
pub(super) fn on_end(gateway: &Gateway, context: &mut RequestContext, sent: Option<(Bytes, bool)>) {
    let Some(request) = context.request.take() else { return };
    let (Some(sink), record) = (gateway.contents(), &context.record) else { return };
    let (Some(project), Some((answer, answer_cut))) = (record.project.clone(), sent) else { return };
    let KeptRequest { body, is_cut, echo: _ } = *request;
    sink.record(Box::new(CallContent {
        id: context.id,
        started: record.started,
        org: record.org.clone(),
        project,
        key: record.key.clone(),
        user: record.user.clone(),
        endpoint: record.endpoint.unwrap_or(Endpoint::ChatCompletions),
        model: record.model_served.clone(),
        stream: record.stream,
        policy: context.records,
        request: body,
        request_cut: is_cut,
        answer,
        answer_cut,
    }));
}
