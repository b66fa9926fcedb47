//! Headers of calls, reuse of connections, and the effect of a call's end on its connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use headrace_domain::Endpoint;
use headrace_engine_api::{MessageRelay as _, RelayError, RelayEvent, RelayWait};
use headrace_fault_server::{Fault, FaultServer};
use headrace_upstream::{Upstream, UpstreamKind, UseHttp2};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

use crate::calls::{KEY, all, ask, chat, failure, send, spec};
use crate::tls::answering;

const SOON: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_call_says_who_it_is_in_its_dialect() {
    let fault_server = FaultServer::start().await.unwrap();
    let mut with_headers = spec(&format!("{}/v1/", fault_server.url()), UpstreamKind::Anthropic);
    with_headers.headers = vec![("anthropic-beta".into(), "ours".into()), ("x-team".into(), "blue".into())];
    for (spec, endpoint, path, expected) in [
        (
            spec(&fault_server.url(), UpstreamKind::Vllm),
            Endpoint::ChatCompletions,
            "/v1/chat/completions",
            vec![("authorization", format!("Bearer {KEY}"))],
        ),
        (
            spec(&fault_server.url(), UpstreamKind::Headrace),
            Endpoint::Completions,
            "/v1/completions",
            vec![("authorization", format!("Bearer {KEY}"))],
        ),
        (
            with_headers,
            Endpoint::Messages,
            "/v1/messages",
            vec![
                ("x-api-key", KEY.into()),
                ("anthropic-version", "2023-06-01".into()),
                ("anthropic-beta", "ours".into()),
                ("x-team", "blue".into()),
            ],
        ),
    ] {
        let upstream = Upstream::new(spec).unwrap();
        let mut call = ask(endpoint, "good", true);
        call.headers = vec![("anthropic-beta", "theirs".into())];
        let body = call.body.clone();
        all(&upstream, call).await;
        let seen = fault_server.seen();
        let request = seen.requests.last().unwrap();
        assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", path));
        assert_eq!(request.body, body, "bytes pass untouched");
        for (name, value) in expected {
            assert_eq!(request.header(name), Some(value.as_str()), "{name}");
        }
        for (name, value) in [
            ("content-type", "application/json"),
            ("accept", "text/event-stream, application/json"),
            ("accept-encoding", "identity"),
            ("user-agent", concat!("headrace/", env!("CARGO_PKG_VERSION"))),
            ("x-request-id", "req_00000000000000000000000000000007"),
        ] {
            assert_eq!(request.header(name), Some(value), "{name}");
        }
        assert!(request.headers.contains(&("anthropic-beta".into(), "theirs".into())), "{request:?}");
        let keys = request.headers.iter().filter(|(_, value)| value.contains(KEY)).count();
        assert_eq!(keys, 1, "the key goes out once: {request:?}");
    }
}

/// Only kinds that count the tokens of a message are asked to, at the endpoint for that and in Anthropic's dialect.
#[tokio::test]
async fn tokens_of_a_message_are_asked_for_where_they_are_told() {
    for kind in UpstreamKind::ALL {
        let fault_server = FaultServer::start_with(|_| {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 18";
            Some(format!("{head}\r\n\r\n{{\"input_tokens\":5}}").into_bytes())
        });
        let fault_server = fault_server.await.unwrap();
        let model = Upstream::new(spec(&fault_server.url(), kind)).unwrap().model("any", None);
        let mut call = ask(Endpoint::Messages, "m", false);
        call.headers = vec![("anthropic-beta", "theirs".into())];
        let body = call.body.clone();
        let Some(mut answer) = model.count(call) else {
            assert!(!matches!(kind, UpstreamKind::Anthropic | UpstreamKind::Headrace), "{kind}");
            assert!(fault_server.seen().requests.is_empty());
            continue;
        };
        assert!(matches!(answer.next().await, Some(RelayEvent::Head(_))));
        assert_eq!(answer.next().await, Some(RelayEvent::Whole(Bytes::from_static(b"{\"input_tokens\":5}"))));
        let seen = fault_server.seen();
        let request = seen.requests.last().unwrap();
        assert_eq!((request.path.as_str(), &request.body[..]), ("/v1/messages/count_tokens", &body[..]));
        for (name, value) in [("anthropic-version", "2023-06-01"), ("anthropic-beta", "theirs")] {
            assert_eq!(request.header(name), Some(value), "{kind}: {name}");
        }
        let keys = request.headers.iter().filter(|(_, value)| value.contains(KEY)).count();
        assert_eq!(keys, 1, "{kind}");
    }
}

/// The caller's version of the API replaces ours and is sent once.
#[tokio::test]
async fn a_callers_header_replaces_our_default() {
    let fault_server = FaultServer::start().await.unwrap();
    let upstream = Upstream::new(spec(&fault_server.url(), UpstreamKind::Anthropic)).unwrap();
    let mut call = ask(Endpoint::Messages, "good", false);
    call.headers = vec![("anthropic-version", "2099-01-01".into())];
    all(&upstream, call).await;
    let seen = fault_server.seen();
    let versions: Vec<_> =
        seen.requests[0].headers.iter().filter(|(name, _)| name == "anthropic-version").collect();
    assert_eq!(versions, [&("anthropic-version".to_owned(), "2099-01-01".to_owned())]);
    let mut call = ask(Endpoint::Messages, "good", false);
    call.headers = vec![("anthropic-beta", "no\nheader".into())];
    let error = failure(&upstream, call).await;
    assert!(error.to_string().contains("the header `anthropic-beta` of the call cannot be sent"), "{error}");
}

#[tokio::test]
async fn dropping_an_answer_closes_its_connection() {
    let fault_server = FaultServer::start().await.unwrap();
    let upstream = Upstream::new(spec(&fault_server.url(), UpstreamKind::Vllm)).unwrap();
    // Before the head, within a whole answer, within a stream that has stalled, and within one that continues.
    for (count, (model, stream, events)) in
        (1..).zip([("no_head", true, 0), ("stall", false, 1), ("stall", true, 3), ("slow", true, 3)])
    {
        let mut answer = send(&upstream, chat(model, stream));
        for _ in 0..events {
            assert!(!matches!(answer.next().await, None | Some(RelayEvent::Failed(_))));
        }
        while fault_server.seen().requests.len() < count {
            drop(tokio::time::timeout(Duration::from_millis(50), answer.next()).await);
        }
        assert_eq!(upstream.figures().in_flight, 1);
        drop(answer);
        assert!(fault_server.saw_broken_off(count, SOON).await, "{model} {stream}");
        let figures = upstream.figures();
        assert_eq!((figures.in_flight, figures.given_up), (0, count as u64));
    }
    assert_eq!(upstream.figures().failures.iter().sum::<u64>(), 0);
}

/// Readers stop at the dialect's last event. The end of the transfer follows later.
#[tokio::test]
async fn a_stream_that_is_read_to_its_last_event_leaves_its_connection_to_the_next_call() {
    let fault_server = FaultServer::start().await.unwrap();
    for (kind, endpoint) in
        [(UpstreamKind::OpenAi, Endpoint::ChatCompletions), (UpstreamKind::Anthropic, Endpoint::Messages)]
    {
        let upstream = Upstream::new(spec(&fault_server.url(), kind)).unwrap();
        let before = fault_server.seen().connections;
        for _ in 0..20 {
            let mut answer = send(&upstream, ask(endpoint, "good", true));
            loop {
                match answer.next().await.unwrap() {
                    RelayEvent::Event(event) if event.data == "[DONE]" || event.name == "message_stop" => {
                        break;
                    }
                    RelayEvent::Failed(error) => panic!("{error}"),
                    _ => {}
                }
            }
            drop(answer);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(fault_server.seen().connections - before, 1);
        assert_eq!(upstream.figures().given_up, 0);
    }
}

/// The timeout applies to the server, not to the reader.
#[tokio::test]
async fn a_slow_reader_is_no_stall() {
    let fault_server = FaultServer::start().await.unwrap();
    let mut spec = spec(&fault_server.url(), UpstreamKind::Vllm);
    spec.timeouts.idle = Duration::from_secs(1);
    let upstream = Upstream::new(spec).unwrap();
    let mut answer = send(&upstream, chat("slow", true));
    let mut events = 0;
    while let Some(event) = answer.next().await {
        assert!(!matches!(event, RelayEvent::Failed(_)), "{event:?}");
        events += 1;
        if events == 2 {
            // Like a reader that also waits for something else: it polls once, in vain, and not again for a while.
            drop(tokio::time::timeout(Duration::from_millis(1), answer.next()).await);
            tokio::time::sleep(Duration::from_millis(2_200)).await;
        }
    }
    assert!(events > 5);
}

/// A transfer hands over one chunk at a time. The reader must not be woken for each of the chunks that are already
/// there.
#[tokio::test]
async fn what_was_sent_together_comes_together() {
    const EVENTS: usize = 64;
    let event = "data: {\"choices\":[]}\n\n";
    let chunk = format!("{:x}\r\n{event}\r\n", event.len());
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let port = answering(format!("{head}{}0\r\n\r\n", chunk.repeat(EVENTS))).await;
    let upstream = Upstream::new(spec(&format!("http://127.0.0.1:{port}"), UpstreamKind::Vllm)).unwrap();
    let mut answer = send(&upstream, chat("any", true));
    assert!(matches!(answer.next().await, Some(RelayEvent::Head(_))));
    let (mut events, mut waits) = (0, 0);
    loop {
        let ready = answer.next().now_or_never();
        waits += usize::from(ready.is_none());
        match if ready.is_some() { ready.flatten() } else { answer.next().await } {
            Some(RelayEvent::Event(_)) => events += 1,
            None => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(events, EVENTS);
    assert!(waits <= 4, "{waits} waits for what came in one write");
}

#[tokio::test]
async fn a_caller_in_a_hurry_waits_no_longer_than_it_says() {
    let fault_server = FaultServer::start().await.unwrap();
    let upstream = Upstream::new(spec(&fault_server.url(), UpstreamKind::Vllm)).unwrap();
    let mut call = chat("no_head", true);
    let after = Duration::from_millis(60);
    call.head_within = Some(after);
    assert_eq!(failure(&upstream, call).await, RelayError::Timeout { what: RelayWait::Head, after });
    assert!(fault_server.saw_broken_off(1, SOON).await);
}

#[tokio::test]
async fn nobody_there_is_told_in_words_without_the_key() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let upstream = Upstream::new(spec(&format!("http://{free}"), UpstreamKind::Vllm)).unwrap();
    let error = failure(&upstream, chat("good", true)).await;
    assert_eq!(error, RelayError::Connect { why: format!("connection refused at {free}") });
    let unknown = Upstream::new(spec("http://nowhere.invalid:81", UpstreamKind::Vllm)).unwrap();
    let error = failure(&unknown, chat("good", true)).await;
    assert!(error.to_string().contains("the name of nowhere.invalid:81 cannot be resolved"), "{error}");
    let figures = unknown.figures();
    assert_eq!((figures.failures[0], figures.last_contact_age), (1, None));
    assert_eq!(figures.last_error.as_deref(), Some(error.to_string().as_str()));
}

/// A server counts as down from the first refused connection, for a call or a question, until bytes arrive from it.
#[tokio::test]
async fn a_server_that_is_not_reached_is_down_until_it_is_heard() {
    let fault_server = FaultServer::start().await.unwrap();
    let upstream = Upstream::new(spec(&fault_server.url(), UpstreamKind::Vllm)).unwrap();
    assert_eq!(upstream.figures().down, None, "nothing is known of it");
    all(&upstream, chat("good", false)).await;
    assert_eq!(upstream.figures().down, None);
    for by_a_call in [true, false] {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let upstream = Upstream::new(spec(&format!("http://{free}"), UpstreamKind::Vllm)).unwrap();
        if by_a_call {
            failure(&upstream, chat("good", true)).await;
        } else {
            upstream.probe().await.unwrap_err();
        }
        let figures = upstream.figures();
        assert_eq!(figures.down, Some(format!("no connection: connection refused at {free}")));
        assert_eq!(figures.failures[0], u64::from(by_a_call), "a question is no call");
        // An error status shows that the server is reachable.
        let listener = TcpListener::bind(free).await.unwrap();
        let answers = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut seen = [0; 4096];
            let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut seen).await;
            let answer = b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await.unwrap();
        });
        failure(&upstream, chat("good", false)).await;
        answers.await.unwrap();
        assert_eq!(upstream.figures().down, None);
    }
    // A late answer means that the server is slow, not down.
    let mut call = chat("no_head", true);
    call.head_within = Some(Duration::from_millis(20));
    failure(&upstream, call).await;
    assert_eq!(upstream.figures().down, None);
}

/// The proxy receives the absolute URL, and no request bypasses it.
#[tokio::test]
async fn calls_go_through_the_proxy() {
    let proxy = FaultServer::start().await.unwrap();
    let mut spec = spec("http://nowhere.invalid:81/api", UpstreamKind::Vllm);
    spec.proxy = Some(proxy.url().into());
    let upstream = Upstream::new(spec).unwrap();
    let events = all(&upstream, chat("good", false)).await;
    assert!(matches!(events.last(), Some(RelayEvent::Whole(_))), "{events:?}");
    assert_eq!(proxy.seen().requests[0].path, "http://nowhere.invalid:81/api/v1/chat/completions");
}

/// Starts an HTTP/2 server that streams an event every 20 ms and counts cancelled streams.
async fn http2_server(given_up: Arc<AtomicUsize>, connections: Arc<AtomicUsize>) -> String {
    struct Guard(Arc<AtomicUsize>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = move |request: http::Request<Incoming>| {
        let given_up = Arc::clone(&given_up);
        async move {
            request.into_body().collect().await.unwrap();
            let (events, stream) = tokio::sync::mpsc::channel::<Bytes>(1);
            tokio::spawn(async move {
                for number in 0.. {
                    let event = Bytes::from(format!("data: {{\"n\":{number}}}\n\n"));
                    if events.send(event).await.is_err() {
                        return drop(Guard(given_up));
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
            let frames = futures_util::stream::unfold(stream, |mut stream| async move {
                let bytes = stream.recv().await?;
                Some((Ok::<_, std::convert::Infallible>(Frame::data(bytes)), stream))
            });
            let response = http::Response::builder().header("content-type", "text/event-stream");
            Ok::<_, std::convert::Infallible>(response.body(StreamBody::new(frames)).unwrap())
        }
    };
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            connections.fetch_add(1, Ordering::SeqCst);
            let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service_fn(answer.clone()));
            tokio::spawn(serving);
        }
    });
    url
}

#[tokio::test]
async fn over_http2_dropping_an_answer_resets_its_stream_and_no_other() {
    let (given_up, connections) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let url = http2_server(Arc::clone(&given_up), Arc::clone(&connections)).await;
    let mut spec = spec(&url, UpstreamKind::Vllm);
    spec.http2.when = UseHttp2::Always;
    // The ping is also the limit for its answer: a busy machine may well be late by 100 ms.
    spec.http2.ping = Some(Duration::from_secs(5));
    let upstream = Upstream::new(spec).unwrap();
    let mut staying = send(&upstream, chat("m", true));
    let mut leaving = send(&upstream, chat("m", true));
    for answer in [&mut staying, &mut leaving] {
        for _ in 0..3 {
            assert!(!matches!(answer.next().await, None | Some(RelayEvent::Failed(_))));
        }
    }
    drop(leaving);
    let reset = async {
        while given_up.load(Ordering::SeqCst) == 0 {
            assert!(matches!(staying.next().await, Some(RelayEvent::Event(_))));
        }
    };
    tokio::time::timeout(SOON, reset).await.unwrap();
    assert!(matches!(staying.next().await, Some(RelayEvent::Event(_))));
    assert_eq!((given_up.load(Ordering::SeqCst), connections.load(Ordering::SeqCst)), (1, 1));
}

/// A server with one fault for every answer, chosen by the path of its address.
#[tokio::test]
async fn a_path_may_choose_the_fault_as_well() {
    let fault_server = FaultServer::start().await.unwrap();
    let upstream = Upstream::new(spec(&fault_server.url_of(Fault::ServerError), UpstreamKind::Vllm)).unwrap();
    let error = failure(&upstream, chat("good", true)).await;
    assert!(matches!(error, RelayError::Status { status: 500, .. }), "{error}");
    assert_eq!(fault_server.seen().requests[0].path, "/v1/chat/completions");
}
