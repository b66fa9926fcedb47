//! The compared servers: a plain relay, which forwards each body and its answer, and the governed one. The governed
//! server also checks rights and funds, bills the call and records its trace.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use headrace_call_api::{
    AbortReason, AnswerBody, AnswerFrames, BodySource, BrokenBody, CallAnswer, CallService, RequestAdmission,
    RequestHead, RequestTarget, TransportOutlet,
};
use headrace_catalog::{Backend, MessageBackend, ModelPolicy, ServedModel};
use headrace_domain::{Clock, Endpoint, KeyId, ModelName, RequestId, SystemClock};
use headrace_engine_api::{AnswerBounds, MessageRelay, RelayAnswer, RelayAsk, RelayEvent, Tenant};
use headrace_fleet::{Worker, WorkerSite};
use headrace_limits::LimitSpec;
use headrace_upstream::{RelayModel, Upstream, UpstreamKind, UpstreamSpec};

use crate::gateway_setup::{Failure, listen, open_gateway};

const MODEL: &str = "headrace-demo";

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Serves until standard input closes. The governed server then prints a summary of its calls on one line. Calls are
/// relayed to `url`.
pub(crate) fn serve(kind: &str, dir: &str, url: &str) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let Ok(runtime) = runtime else { return ExitCode::FAILURE };
    let served = runtime.block_on(async {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let upstream = Upstream::new(UpstreamSpec::new("mock", UpstreamKind::OpenAi, url))
            .map_err(|why| why.join("; "))?;
        let relay = upstream.model("mock-model", None);
        if kind == "plain" {
            let plain = Plain { key: KeyId::new("plain")?, relay, clock: Arc::clone(&clock) };
            return listen(Arc::new(plain), clock).await;
        }
        let name = ModelName::new(MODEL)?;
        let site = Arc::new(WorkerSite::new("mock"));
        let worker = Worker::relay("mock/mock-model", name.clone(), Arc::new(relay)).at(&site);
        let (gateway, tally) = open_gateway(kind, Path::new(dir), Arc::clone(&clock), served(name), worker)?;
        listen(gateway, clock).await?;
        println!("{}", tally.line());
        Ok::<_, Failure>(())
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("relay server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn served(name: ModelName) -> ServedModel {
    ServedModel {
        name,
        backend: Backend::Messages(MessageBackend::default()),
        created_unix_s: 0,
        default_max_tokens: None,
        limits: LimitSpec::UNLIMITED,
        policy: ModelPolicy::default(),
    }
}

/// Forwards bodies and answers unchanged.
struct Plain {
    key: KeyId,
    relay: RelayModel,
    clock: Arc<dyn Clock>,
}

struct AdmittedCall(KeyId, Endpoint);

impl RequestAdmission for AdmittedCall {
    fn payer(&self) -> &KeyId {
        &self.0
    }
}

/// An answer on its way back.
struct Passing {
    answer: Box<dyn RelayAnswer>,
    /// An event that arrived while earlier ones were being joined.
    next: Option<Result<Bytes, BrokenBody>>,
    over: bool,
}

/// Maximum bytes of waiting events that are sent together, as in the governed relay.
const TOGETHER: usize = 16 * 1024;

impl AnswerFrames for Passing {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenBody>>> {
        if let Some(next) = self.next.take() {
            return Poll::Ready(Some(next));
        }
        let mut pieces = BytesMut::new();
        while !self.over && pieces.len() < TOGETHER {
            match self.answer.poll_next(cx) {
                Poll::Pending if pieces.is_empty() => return Poll::Pending,
                Poll::Pending => break,
                Poll::Ready(Some(RelayEvent::Event(event))) => pieces.extend_from_slice(&event.raw),
                Poll::Ready(Some(RelayEvent::Whole(body))) => self.next = Some(Ok(body)),
                Poll::Ready(None) => self.over = true,
                Poll::Ready(Some(RelayEvent::Head(_) | RelayEvent::Failed(_))) => {
                    (self.next, self.over) = (Some(Err(BrokenBody)), true);
                }
            }
        }
        match pieces.is_empty() {
            true => Poll::Ready(self.next.take()),
            false => Poll::Ready(Some(Ok(pieces.freeze()))),
        }
    }

    fn set_outlet(&mut self, _: Arc<dyn TransportOutlet>) {}

    fn abort(&mut self, _: AbortReason) {}
}

impl CallService for Plain {
    type Stream = Passing;
    type Admission = AdmittedCall;

    fn admit(self: &Arc<Self>, head: RequestHead) -> Result<AdmittedCall, CallAnswer<Passing>> {
        match head.target {
            RequestTarget::Call(endpoint) => Ok(AdmittedCall(self.key.clone(), endpoint)),
            RequestTarget::KeyCheck => Ok(AdmittedCall(self.key.clone(), Endpoint::ChatCompletions)),
            _ => Err(failed()),
        }
    }

    async fn serve<B: BodySource>(self: &Arc<Self>, admission: AdmittedCall, body: B) -> CallAnswer<Passing> {
        let Ok(body) = body.read().await else { return failed() };
        // The minimum that a relay must know: whether a stream is requested.
        let stream = body.windows(13).any(|window| window == b"\"stream\":true");
        let ask = RelayAsk {
            request: RequestId::fresh(self.clock.now()),
            tenant: Tenant(1),
            weight: 1,
            endpoint: admission.1,
            body,
            stream,
            headers: Vec::new(),
            head_within: None,
            bounds: AnswerBounds::up_to(u64::MAX),
        };
        let mut answer = self.relay.send(ask);
        let Some(RelayEvent::Head(_)) = answer.next().await else { return failed() };
        if stream {
            let body = AnswerBody::Stream(Passing { answer, next: None, over: false });
            return CallAnswer { status: 200, content_type: "text/event-stream", headers: Vec::new(), body };
        }
        let Some(RelayEvent::Whole(whole)) = answer.next().await else { return failed() };
        CallAnswer {
            status: 200,
            content_type: "application/json",
            headers: Vec::new(),
            body: AnswerBody::Whole(whole),
        }
    }

    fn not_ready(&self, _model: Option<&str>) -> Vec<String> {
        Vec::new()
    }

    async fn drain(&self, _within: Duration) -> usize {
        0
    }
}

fn failed() -> CallAnswer<Passing> {
    CallAnswer {
        status: 502,
        content_type: "text/plain",
        headers: Vec::new(),
        body: AnswerBody::Whole(Bytes::new()),
    }
}
