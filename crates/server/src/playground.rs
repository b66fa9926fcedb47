//! Local calls that operators make for a project: within its limits, on its account, under the key `playground`. Must
//! not know how an operator asks, or how often.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use headrace_admin_http::{Pieces, PlaygroundAnswer, PlaygroundCaller, PlaygroundEndpoint};
use headrace_call_api::{
    AnswerBody, AnswerFrames, CallService, CallerInfo, Question, RequestHead, RequestTarget,
};
use headrace_call_state::Answer;
use headrace_domain::{Clock, Endpoint, KeyId};
use headrace_gateway::Gateway;
use headrace_identity::{
    AddressList, Directory, EndpointAccess, ModelAccess, OperatorRecord, OrgRecord, Principal, ProjectRecord,
    RateLimits,
};

/// The key id of these calls in traces.
pub(crate) const KEY: &str = "playground";

/// Runs the playground's calls.
pub(crate) struct PlaygroundRunner {
    gateway: Weak<Gateway>,
    directory: Arc<Directory>,
    clock: Arc<dyn Clock>,
}

impl PlaygroundRunner {
    pub(crate) fn new(gateway: &Arc<Gateway>, directory: &Arc<Directory>, clock: &Arc<dyn Clock>) -> Self {
        let (directory, clock) = (Arc::clone(directory), Arc::clone(clock));
        Self { gateway: Arc::downgrade(gateway), directory, clock }
    }
}

impl PlaygroundCaller for PlaygroundRunner {
    fn ask(
        &self,
        ask: PlaygroundEndpoint,
        project: ProjectRecord,
        operator: &OperatorRecord,
        body: Bytes,
    ) -> Pin<Box<dyn Future<Output = PlaygroundAnswer> + Send>> {
        let (gateway, clock) = (self.gateway.upgrade(), Arc::clone(&self.clock));
        let principal = self.directory.org(&project.org).and_then(|org| {
            let mut principal = principal(project, &org, operator)?;
            self.directory.apply_tiers(&mut principal).ok()?;
            Some(principal)
        });
        Box::pin(async move {
            let (Some(gateway), Some(principal)) = (gateway, principal) else { return stopping() };
            let principal = Arc::new(principal);
            let target = match ask {
                PlaygroundEndpoint::Chat => RequestTarget::Call(Endpoint::ChatCompletions),
                PlaygroundEndpoint::Responses => RequestTarget::Call(Endpoint::Responses),
                PlaygroundEndpoint::Messages => RequestTarget::Call(Endpoint::Messages),
                PlaygroundEndpoint::Tokenize => RequestTarget::Question(Question::Tokenize),
            };
            let caller = CallerInfo::in_process(clock.now(), clock.monotonic_nanos());
            played(match gateway.admit_as(principal, RequestHead { target, caller }).await {
                Ok(admission) => gateway.serve(admission, body).await,
                Err(answer) => answer,
            })
        })
    }
}

/// The principal of the call: the project, named after the operator. Only the limits and tiers of project and organisation apply.
fn principal(project: ProjectRecord, org: &OrgRecord, operator: &OperatorRecord) -> Option<Principal> {
    Some(Principal {
        org: project.org,
        project: project.id,
        key: KeyId::new(KEY).ok()?,
        name: operator.name.clone(),
        user: None,
        models: ModelAccess::All,
        endpoints: EndpointAccess::All,
        regions: org.regions.clone(),
        org_regions: org.regions.clone(),
        secret_number: 0,
        limits: RateLimits::default(),
        project_limits: project.limits,
        org_limits: org.limits,
        expires: None,
        allowed_ips: AddressList::default(),
        tier: None,
        records: project.records,
    })
}

fn played(answer: Answer) -> PlaygroundAnswer {
    let Answer { status, content_type, headers, body } = answer;
    let body: Pieces = match body {
        AnswerBody::Whole(bytes) => Box::pin(futures_util::stream::iter([Ok(bytes)])),
        AnswerBody::Stream(frames) | AnswerBody::Long { body: frames, .. } => Box::pin(FrameStream(frames)),
    };
    PlaygroundAnswer { status, content_type, headers, body }
}

fn stopping() -> PlaygroundAnswer {
    let body = r#"{"error":{"code":"stopping","message":"the server is stopping"}}"#;
    let body = Box::pin(futures_util::stream::iter([Ok(Bytes::from_static(body.as_bytes()))]));
    PlaygroundAnswer { status: 503, content_type: "application/json", headers: Vec::new(), body }
}

/// The frames of an answer as a stream. Its reader takes each frame at once and therefore never counts as stalled.
struct FrameStream<F>(F);

impl<F: AnswerFrames> Stream for FrameStream<F> {
    type Item = std::io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_frame(cx).map_err(std::io::Error::other)
    }
}
