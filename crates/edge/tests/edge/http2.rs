//! HTTP/2 with prior knowledge, on plain TCP.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::stub::{BIG, ENDLESS, HANG, NEVER, PATIENCE, SILENT, Served, THREE, config, serve, until};

/// Opens an HTTP/2 connection over `io`.
pub(crate) async fn open(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> SendRequest<Full<Bytes>> {
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(io)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// A call with a good key.
pub(crate) fn call(body: &str) -> Request<Full<Bytes>> {
    Request::post("http://a/v1/chat/completions")
        .header("authorization", "Bearer good")
        .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))
        .unwrap()
}

/// Sends a call and waits for the head of the answer.
pub(crate) async fn request(sender: &mut SendRequest<Full<Bytes>>, body: &str) -> Response<Incoming> {
    sender.send_request(call(body)).await.unwrap()
}

#[tokio::test]
async fn many_calls_share_a_connection() {
    let served = serve(config()).await;
    let mut sender = open(served.connect().await).await;
    let hanging = tokio::spawn(sender.send_request(call(HANG)));
    let answers = (0..50).map(|i| sender.send_request(call(&i.to_string())));
    for (i, answer) in answers.collect::<Vec<_>>().into_iter().enumerate() {
        let body = answer.await.unwrap().into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, i.to_string());
    }
    let three = request(&mut sender, THREE).await.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(three, "data: 1\n\ndata: 1\n\ndata: 1\n\n");
    let big = request(&mut sender, BIG).await.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(big.len(), 3 << 20);
    served.stub.until_in_flight(1).await;
    hanging.abort();
    served.stub.until_in_flight(0).await;
}

#[tokio::test]
async fn a_stream_that_is_reset_is_dropped_and_so_are_all_when_the_client_leaves() {
    let served = serve(config()).await;
    let mut sender = open(served.connect().await).await;
    let first = request(&mut sender, SILENT).await;
    let second = request(&mut sender, ENDLESS).await;
    served.stub.until_in_flight(2).await;
    drop(first);
    served.stub.until_in_flight(1).await;
    drop(second);
    drop(sender);
    served.stub.until_in_flight(0).await;
}

#[tokio::test]
async fn limits_hold_here_too() {
    let mut config = config();
    config.max_body_bytes = 1_000;
    let served = serve(config).await;
    let mut sender = open(served.connect().await).await;
    assert_eq!(request(&mut sender, &"1".repeat(1_001)).await.status(), 413);
    for (bytes, told) in [(17_000, true), (34_000, false)] {
        let mut large = call("{}");
        large.headers_mut().insert("x", "y".repeat(bytes).parse().unwrap());
        match sender.send_request(large).await {
            Ok(refused) => {
                assert_eq!(refused.status(), 431);
                let body = refused.into_body().collect().await.unwrap().to_bytes();
                assert_eq!(String::from_utf8_lossy(&body).contains("\"code\":\"head_too_large\""), told);
            }
            Err(_) => assert!(!told, "the library's own client does not even send it"),
        }
    }
    assert_eq!(request(&mut sender, "{}").await.status(), 200);
    assert_eq!(served.stub.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_connection_without_a_request_is_closed() {
    let mut config = config();
    // A connection is looked at when it has had the time for a head.
    config.header_timeout = Duration::from_secs(2);
    config.idle_timeout = Duration::from_millis(200);
    let served = serve(config.clone()).await;
    let mut sender = open(served.connect().await).await;
    assert_eq!(request(&mut sender, "{}").await.status(), 200);
    until(|| sender.is_closed()).await;

    // An HTTP/2 preface followed by silence, or by half a HEADERS frame.
    config.header_timeout = Duration::from_millis(100);
    config.idle_timeout = NEVER;
    let served = serve(config).await;
    for more in [&b""[..], &[0, 0, 9, 1, 0, 0, 0, 0, 1, 0x82]] {
        let mut stream = served.connect().await;
        let preface = &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"[..];
        stream.write_all(&[preface, more].concat()).await.unwrap();
        let mut all = Vec::new();
        let closed = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut all)).await;
        assert!(closed.is_ok(), "still open");
    }
}

/// Maximum number of streams of a connection.
const MANY: usize = 100;
/// Maximum number of unanswered streams of a peer without a valid key. `REFUSALS` is the number of refusals that it
/// receives.
const FEW: usize = 4;
const REFUSALS: usize = 16;

/// Builds `calls` calls without a key and without an end. The peer accepts `window` bytes of each answer.
fn strangers(calls: usize, window: u32) -> Vec<u8> {
    let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x04".to_vec();
    out.extend_from_slice(&window.to_be_bytes());
    for i in 0..u32::try_from(calls).unwrap() {
        // HEADERS without END_STREAM: `:method: POST`, `:scheme: http`, `:path: /v1/completions`.
        out.extend_from_slice(&[0, 0, 19, 1, 4]);
        out.extend_from_slice(&(2 * i + 1).to_be_bytes());
        out.extend_from_slice(b"\x83\x86\x04\x0f/v1/completions");
    }
    out
}

#[tokio::test]
async fn who_shows_a_good_key_has_all_the_streams() {
    let served = serve(config()).await;
    let mut known = open(served.connect().await).await;
    let calls: Vec<_> = (0..MANY).map(|_| tokio::spawn(known.send_request(call(HANG)))).collect();
    served.stub.until_in_flight(MANY).await;
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    served.stub.until_in_flight(0).await;

    // Earlier requests with a bad key, and later refusals, do not affect a valid one.
    let mut bad = call("{}");
    bad.headers_mut().insert("authorization", http::HeaderValue::from_static("Bearer bad"));
    for _ in 0..2 * REFUSALS {
        assert_eq!(known.send_request(bad.clone()).await.unwrap().status(), 401);
    }
    let mut other = open(served.connect().await).await;
    for _ in 1..REFUSALS {
        assert_eq!(other.send_request(bad.clone()).await.unwrap().status(), 401);
    }
    for mut sender in [known, other] {
        let calls: Vec<_> = (0..MANY).map(|_| tokio::spawn(sender.send_request(call(HANG)))).collect();
        served.stub.until_in_flight(MANY).await;
        calls.iter().for_each(tokio::task::JoinHandle::abort);
        served.stub.until_in_flight(0).await;
    }
}

#[tokio::test]
async fn who_does_not_is_answered_in_turn_and_not_for_long() {
    let asked = |served: &Served| served.stub.attempts.load(Ordering::SeqCst);
    // A few are all answered.
    let served = serve(config()).await;
    let mut stream = served.connect().await;
    stream.write_all(&strangers(REFUSALS - 1, 1 << 16)).await.unwrap();
    until(|| asked(&served) == REFUSALS - 1).await;
    // Their connection ends by the timeout, that of many after some refusals.
    for (calls, header_timeout, told) in
        [(REFUSALS - 1, Duration::from_millis(300), 0..REFUSALS), (MANY, NEVER, REFUSALS..REFUSALS + FEW)]
    {
        let served = serve(headrace_edge::EdgeConfig { header_timeout, ..config() }).await;
        let mut stream = served.connect().await;
        stream.write_all(&strangers(calls, 1 << 16)).await.unwrap();
        let mut all = Vec::new();
        let closed = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut all)).await;
        assert!(closed.is_ok(), "still open");
        assert!(told.contains(&asked(&served)), "{} of {calls}", asked(&served));
    }
}

#[tokio::test]
async fn who_reads_no_answers_is_not_asked_for_more_and_not_kept_for_long() {
    let asked = |served: &Served| served.stub.attempts.load(Ordering::SeqCst);
    let served = serve(config()).await;
    let mut stream = served.connect().await;
    stream.write_all(&strangers(MANY, 0)).await.unwrap();
    until(|| asked(&served) == FEW).await;
    // As long as another connection, with the same few calls, needs to end by the header timeout.
    let mut config = config();
    config.header_timeout = Duration::from_millis(300);
    let other = serve(config).await;
    let mut stream = other.connect().await;
    stream.write_all(&strangers(MANY, 0)).await.unwrap();
    let mut all = Vec::new();
    let closed = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut all)).await;
    assert!(closed.is_ok(), "still open, long before the idle timeout");
    assert!(asked(&other) <= FEW, "{}", asked(&other));
    assert_eq!(asked(&served), FEW);
}

#[tokio::test]
async fn rapid_resets_end_the_connection() {
    let served = serve(config()).await;
    let mut stream = served.connect().await;
    let mut flood = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    for i in 0..2_000_u32 {
        let id = (2 * i + 1).to_be_bytes();
        // HEADERS with `:method: GET`, `:scheme: http`, `:path: /`, then RST_STREAM.
        flood.extend_from_slice(&[0, 0, 3, 1, 5]);
        flood.extend_from_slice(&id);
        flood.extend_from_slice(&[0x82, 0x86, 0x84, 0, 0, 4, 3, 0]);
        flood.extend_from_slice(&id);
        flood.extend_from_slice(&8_u32.to_be_bytes());
    }
    let _ = stream.write_all(&flood).await;
    let mut all = Vec::new();
    let closed = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut all)).await;
    assert!(closed.is_ok(), "still open");
    // GOAWAY has type 7. Its payload ends with the error code, and ENHANCE_YOUR_CALM is 11.
    let mut frames = all.as_slice();
    let mut codes = Vec::new();
    while let Some((head, rest)) = frames.split_at_checked(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some((payload, rest)) = rest.split_at_checked(length) else { break };
        if head[3] == 7 {
            codes.push(payload[7]);
        }
        frames = rest;
    }
    assert!(closed.is_ok_and(|read| read.is_err()) || codes.contains(&11), "{codes:?}");
    assert_eq!(served.stub.calls.load(Ordering::SeqCst), 0);
}
