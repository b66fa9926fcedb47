//! The internal API on its own paths: who is admitted, and the limits that apply to every body.

use std::sync::Arc;

use bytes::Bytes;
use headrace_call_api::{
    AnswerBody, AnswerFrames, BodyRefusal, CallAnswer, InternalAnswer, InternalAnswerFuture, InternalApi,
    InternalHead, InternalRequest,
};
use headrace_domain::{KeyId, NoTrace, SystemClock};
use headrace_edge::Edge;
use tokio::sync::oneshot;

use crate::stub::{Served, Stub, assert_status, config, serve};

/// An internal API that repeats the request. The body `three` is answered in three pieces.
pub(crate) struct EchoApi(pub(crate) Arc<Stub>);

struct EchoRequest {
    stub: Arc<Stub>,
    head: String,
    payer: KeyId,
}

impl InternalApi for EchoApi {
    fn admit(&self, head: &InternalHead<'_>) -> Result<Box<dyn InternalRequest>, InternalAnswer> {
        if head.authorization != Some(b"Ticket good") {
            return Err(CallAnswer::json(401, "{}"));
        }
        let (stub, payer) = (Arc::clone(&self.0), KeyId::new("beside").unwrap());
        let parent = head.traceparent.map(|parent| format!(" below {parent}")).unwrap_or_default();
        Ok(Box::new(EchoRequest { stub, head: format!("{} {}{parent}", head.method, head.path), payer }))
    }
}

impl InternalRequest for EchoRequest {
    fn payer(&self) -> &KeyId {
        &self.payer
    }

    fn answer(self: Box<Self>, body: Bytes) -> InternalAnswerFuture {
        Box::pin(async move {
            if body.as_ref() == b"three" {
                let frames: Box<dyn AnswerFrames> = Box::new(self.stub.three());
                return CallAnswer { body: AnswerBody::Stream(frames), ..CallAnswer::json(200, "") };
            }
            CallAnswer::json(200, format!("{} {} bytes", self.head, body.len()))
        })
    }

    fn refuse(self: Box<Self>, refusal: &BodyRefusal) -> InternalAnswer {
        CallAnswer::json(413, format!("{refusal:?}"))
    }
}

async fn ask(served: &Served, head: &str, body: &str) -> String {
    let length = body.len();
    let request = format!(
        "{head} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\nauthorization: Ticket good\r\ncontent-type: application/octet-stream\r\n\r\n{body}"
    );
    served.raw(&request).await
}

#[tokio::test]
async fn the_internal_api_answers_known_servers_within_the_bounds_of_bodies() {
    let mut config = config();
    config.max_body_bytes = 10;
    let served = serve(config).await;
    for (head, body, status, says) in [
        ("POST /internal/v1/jobs", "\0\u{1}x", 200, "POST /internal/v1/jobs 3 bytes"),
        ("GET /internal/v1/worker?a=b", "", 200, "GET /internal/v1/worker?a=b 0 bytes"),
        ("POST /internal/v1/jobs", "three", 200, "data: 1"),
        ("POST /internal/v1/jobs", "more than ten bytes", 413, "TooLarge"),
        ("PUT /internal/v1/jobs", "", 200, "PUT /internal/v1/jobs 0 bytes"),
        ("POST /internal/v2/jobs", "", 404, "\"code\":\"not_found\""),
    ] {
        let answer = ask(&served, head, body).await;
        assert_status(&answer, status);
        assert!(answer.contains(says), "{answer}");
    }
    // One `traceparent` is shown to it as it came, and several are shown as none.
    for (headers, says) in [
        ("traceparent: 00-a-b-01", "jobs below 00-a-b-01 1 bytes"),
        ("traceparent: a\r\ntraceparent: b", "jobs 1 bytes"),
    ] {
        let answer =
            ask(&served, &format!("POST /internal/v1/jobs HTTP/1.1\r\n{headers}\r\nx-rest:"), "x").await;
        assert!(answer.contains(says), "{answer}");
    }
    served.stub.until_in_flight(0).await;
    // A ticket is no key for the public API, and a key is no ticket for the internal one.
    let answer = served
        .raw("GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\nauthorization: Ticket good\r\n\r\n");
    assert_status(&answer.await, 401);
}

#[tokio::test]
async fn without_an_internal_api_its_paths_are_unknown() {
    let (stop, stopped) = oneshot::channel::<()>();
    let clock = Arc::new(SystemClock::new());
    let (stub, traces) = (Stub::new(), Arc::new(NoTrace));
    let edge = Edge::bind(config(), stub, None, headrace_edge::no_metrics(), traces, clock).await.unwrap();
    let address = edge.local_addr();
    let serving = tokio::spawn(edge.serve(
        async {
            let _ = stopped.await;
        },
        std::time::Duration::ZERO,
    ));
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = "GET /internal/v1/worker HTTP/1.1\r\nhost: a\r\nconnection: close\r\nauthorization: Ticket good\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
    assert_status(&crate::stub::rest(&mut stream).await, 404);
    stop.send(()).unwrap();
    serving.await.unwrap();
}
