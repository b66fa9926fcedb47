//! Responses sockets: who is admitted, what a message is answered with, and how a connection ends.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use headrace_call_api::AbortReason;
use http::{HeaderValue, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::stub::{
    HANG, NEVER, PATIENCE, SILENT, Served, THREE, assert_status, config, serve, serve_for, until,
};

pub(crate) type Socket = WebSocketStream<TcpStream>;

async fn open_as(served: &Served, key: Option<&'static str>) -> Result<Socket, Error> {
    let mut request = "ws://a/v1/responses".into_client_request().unwrap();
    if let Some(key) = key {
        request.headers_mut().insert("authorization", HeaderValue::from_static(key));
    }
    client_async(request, served.connect().await).await.map(|(socket, _)| socket)
}

pub(crate) async fn open(served: &Served) -> Socket {
    open_as(served, Some("Bearer good")).await.unwrap()
}

pub(crate) async fn say(socket: &mut Socket, text: &str) {
    socket.send(Message::text(text)).await.unwrap();
}

/// Returns the next message, or the close code if the connection was closed.
pub(crate) async fn heard(socket: &mut Socket) -> Result<String, Option<CloseCode>> {
    loop {
        match tokio::time::timeout(PATIENCE, socket.next()).await.expect("nothing came") {
            Some(Ok(Message::Text(text))) => return Ok(text.to_string()),
            Some(Ok(Message::Close(frame))) => return Err(frame.map(|frame| frame.code)),
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return Err(None),
        }
    }
}

#[tokio::test]
async fn each_message_is_a_call_and_each_event_a_message() {
    let served = serve(config()).await;
    let mut socket = open(&served).await;
    assert_eq!(served.stub.attempts.load(Ordering::SeqCst), 0, "an open connection is no call");
    for turn in 1..=3 {
        say(&mut socket, THREE).await;
        for _ in 0..3 {
            assert_eq!(heard(&mut socket).await, Ok("1".to_owned()));
        }
        until(|| served.stub.in_flight.load(Ordering::SeqCst) == 0).await;
        assert_eq!(served.stub.calls.load(Ordering::SeqCst), turn);
    }
    // A whole answer is one message. Two messages at the same time are answered in sequence.
    say(&mut socket, "{\"a\": 1}").await;
    say(&mut socket, THREE).await;
    let mut received = Vec::new();
    for _ in 0..4 {
        received.push(heard(&mut socket).await.unwrap());
    }
    assert_eq!(received, ["{\"a\": 1}", "1", "1", "1"]);
    // An invalid message is answered with an error, and the connection continues.
    say(&mut socket, "no turn").await;
    assert_eq!(heard(&mut socket).await.unwrap(), r#"{"type":"error","status":400,"error":1}"#);
    say(&mut socket, "[2]").await;
    assert_eq!(heard(&mut socket).await, Ok("[2]".to_owned()));
    assert_eq!(served.stub.sessions.load(Ordering::SeqCst), 1);
    socket.close(None).await.unwrap();
    assert!(heard(&mut socket).await.is_err());
    // The session ends with the socket.
    until(|| served.stub.sessions.load(Ordering::SeqCst) == 0).await;
    // The place is available to another socket at once.
    let mut again = open(&served).await;
    say(&mut again, "[3]").await;
    assert_eq!(heard(&mut again).await, Ok("[3]".to_owned()));
}

#[tokio::test]
async fn nobody_is_let_in_without_a_good_key_and_a_proper_handshake() {
    let served = serve(config()).await;
    for key in [None, Some("Bearer bad")] {
        let Err(Error::Http(refusal)) = open_as(&served, key).await else { panic!("let in") };
        assert_eq!(refusal.status(), StatusCode::UNAUTHORIZED);
    }
    // A request that is not a handshake is a GET, which this path does not accept.
    let upgrade = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n";
    for lines in [
        String::new(),
        upgrade.to_owned(),
        format!("{upgrade}sec-websocket-key: short\r\n"),
        upgrade.replace("13", "8") + "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
        upgrade.replace("websocket\r\n", "h2c\r\n") + "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    ] {
        let request = format!(
            "GET /v1/responses HTTP/1.1\r\nhost: a\r\nauthorization: Bearer good\r\nconnection: close\r\n{lines}\r\n"
        );
        assert_status(&served.raw(&request).await, 405);
    }
    // The example of RFC 6455 §1.3.
    let mut stream = served.connect().await;
    let request = format!(
        "GET /v1/responses HTTP/1.1\r\nhost: a\r\nauthorization: Bearer good\r\n{upgrade}sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = crate::stub::read_until(&mut stream, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
}

#[tokio::test]
async fn who_goes_away_in_the_middle_lets_go_of_its_call() {
    let served = serve(config()).await;
    for body in [HANG, SILENT, "\"endless events\""] {
        let mut socket = open(&served).await;
        say(&mut socket, body).await;
        served.stub.until_in_flight(1).await;
        drop(socket);
        served.stub.until_in_flight(0).await;
        assert_eq!(*served.stub.abort_reason.lock().unwrap(), None, "the client left");
    }
}

#[tokio::test]
async fn a_reader_who_takes_nothing_is_cut_off() {
    let served =
        serve(headrace_edge::EdgeConfig { write_timeout: Duration::from_millis(200), ..config() }).await;
    let mut socket = open(&served).await;
    // The client does not read the events.
    say(&mut socket, "\"endless events\"").await;
    until(|| served.stub.calls.load(Ordering::SeqCst) == 1).await;
    served.stub.until_in_flight(0).await;
    assert_eq!(*served.stub.abort_reason.lock().unwrap(), Some(AbortReason::ReaderStalled));
}

#[tokio::test]
async fn what_is_too_long_or_no_text_ends_the_connection_and_says_why() {
    let served = serve(config()).await;
    let mut socket = open(&served).await;
    // The answer may arrive before the whole message was sent.
    let _ = socket.send(Message::text("x".repeat((4 << 20) + 1))).await;
    let told = heard(&mut socket).await;
    assert!(told.as_ref().is_ok_and(|told| told.contains("\"status\":413")), "{told:?}");
    assert_eq!(heard(&mut socket).await, Err(Some(CloseCode::Size)));
    let mut socket = open(&served).await;
    socket.send(Message::binary(vec![1, 2])).await.unwrap();
    assert_eq!(heard(&mut socket).await, Err(Some(CloseCode::Unsupported)));
    assert_eq!(served.stub.attempts.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_drain_lets_a_turn_end_and_takes_no_further_one() {
    for drain in [NEVER, Duration::from_millis(200)] {
        let served = serve_for(config(), drain).await;
        let mut idle = open(&served).await;
        say(&mut idle, "[1]").await;
        assert_eq!(heard(&mut idle).await, Ok("[1]".to_owned()));
        let mut busy = open(&served).await;
        say(&mut busy, SILENT).await;
        assert_eq!(heard(&mut busy).await, Ok("1".to_owned()));
        let stub = std::sync::Arc::clone(&served.stub);
        let done = served.stop();
        assert_eq!(heard(&mut idle).await, Err(Some(CloseCode::Away)));
        let calls_cut_off = usize::from(drain != NEVER);
        if drain == NEVER {
            // The turn runs until its client ends it.
            assert_eq!(stub.in_flight.load(Ordering::SeqCst), 1);
            drop(busy);
        } else {
            // The front cuts off what has not ended by then: its stream ends, and so does the connection.
            assert_eq!(heard(&mut busy).await, Err(Some(CloseCode::Away)));
        }
        let report = tokio::time::timeout(PATIENCE, done).await.expect("it ends").unwrap();
        assert_eq!((report.calls_cut_off, report.connections_cut_off), (calls_cut_off, 0));
    }
}

/// Opens a WebSocket of raw bytes whose handshake is complete.
async fn open_raw(served: &Served, key: &str) -> TcpStream {
    let mut stream = served.connect().await;
    let request = format!(
        "GET /v1/responses HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = crate::stub::read_until(&mut stream, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    stream
}

/// A masked frame with a mask of zeros.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![first, 0x80 | 127];
    if payload.len() < 126 {
        out[1] = 0x80 | u8::try_from(payload.len()).unwrap();
    } else {
        out.extend_from_slice(&u64::try_from(payload.len()).unwrap().to_be_bytes());
    }
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(payload);
    out
}

#[tokio::test]
async fn a_flood_of_pings_that_nobody_answers_to_is_ended() {
    let served = serve(config()).await;
    let stream = open_raw(&served, "good").await;
    let (mut reading, mut writing) = stream.into_split();
    let pings = frame(0x89, &[b'x'; 125]).repeat(1_000);
    let flood = async {
        // Until the server closes the connection: it does not read endlessly.
        while writing.write_all(&pings).await.is_ok() {}
    };
    tokio::time::timeout(PATIENCE, flood).await.expect("the server reads on");
    let mut received = Vec::new();
    // A reset discards what was not read.
    let _ = tokio::time::timeout(PATIENCE, reading.read_to_end(&mut received)).await.expect("it stays open");
    let mut again = open(&served).await;
    say(&mut again, "[1]").await;
    assert_eq!(heard(&mut again).await, Ok("[1]".to_owned()));
}

#[tokio::test]
async fn one_key_has_a_part_of_the_places_and_another_gets_one() {
    let served = serve(config()).await;
    let mut held = Vec::new();
    let refused = loop {
        match open_as(&served, Some("Bearer good")).await {
            Ok(socket) => held.push(socket),
            Err(Error::Http(refused)) => break refused,
            Err(error) => panic!("{error}"),
        }
        assert!(held.len() <= 64, "a key has a quarter of 256");
    };
    assert_eq!((held.len(), refused.status()), (64, StatusCode::SERVICE_UNAVAILABLE));
    assert_eq!(served.stub.handshakes.load(Ordering::SeqCst), 65, "the service decides on each handshake");
    assert!(open_as(&served, Some("Bearer other")).await.is_ok());
    drop(held.pop());
    // The place becomes free when the server notices that the client has left.
    let mut again = open_as(&served, Some("Bearer good")).await;
    let began = Instant::now();
    while again.is_err() {
        assert!(began.elapsed() < PATIENCE, "its place is never free");
        tokio::time::sleep(Duration::from_millis(10)).await;
        again = open_as(&served, Some("Bearer good")).await;
    }
}

#[tokio::test]
async fn half_messages_take_the_memory_of_their_key_and_of_no_other() {
    let mut config = config();
    config.max_body_bytes = 16 * 1024;
    config.memory_bytes_per_key = 150 * 1024;
    config.memory_bytes = 1024 * 1024;
    let served = serve(config).await;
    let half = frame(0x01, &[b'a'; 40 * 1024]);
    let mut held = open_raw(&served, "good").await;
    held.write_all(&half).await.unwrap();
    // A fragment costs three times its bytes. A second one does not fit, and its peer receives an error.
    let mut other = open_raw(&served, "good").await;
    let _ = other.write_all(&half).await;
    let mut told = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, other.read_to_end(&mut told)).await.expect("it stays open");
    let told = String::from_utf8_lossy(&told).into_owned();
    assert!(told.contains("\"status\":429") && told.contains("request_memory_per_key"), "{told}");
    let mut another = open_raw(&served, "other").await;
    another.write_all(&half).await.unwrap();
    let mut socket = open_as(&served, Some("Bearer other")).await.unwrap();
    say(&mut socket, "[1]").await;
    assert_eq!(heard(&mut socket).await, Ok("[1]".to_owned()));
    // The memory is released with the connection.
    drop(held);
    let began = Instant::now();
    loop {
        let mut again = open_raw(&served, "good").await;
        let _ = again.write_all(&half).await;
        let mut byte = [0; 1];
        let silent = tokio::time::timeout(Duration::from_millis(300), again.read(&mut byte)).await.is_err();
        if silent {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "it was never given back");
    }
}

#[tokio::test]
async fn a_message_without_progress_is_ended_whatever_else_comes() {
    let mut config = config();
    config.body_progress_timeout = Duration::from_millis(200);
    let served = serve(config).await;
    let mut stream = open_raw(&served, "good").await;
    stream.write_all(&frame(0x01, b"half")).await.unwrap();
    let (mut reading, mut writing) = stream.into_split();
    let pongs = tokio::spawn(async move {
        while writing.write_all(&frame(0x8a, b"")).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let mut received = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, reading.read_to_end(&mut received)).await.expect("it stays open");
    assert!(String::from_utf8_lossy(&received).contains("body_timeout"));
    pongs.abort();
}

#[tokio::test]
async fn a_revoked_key_loses_its_connections_idle_or_at_work() {
    let served = serve(config()).await;
    let mut idle = open(&served).await;
    let mut busy = open(&served).await;
    say(&mut busy, SILENT).await;
    assert_eq!(heard(&mut busy).await, Ok("1".to_owned()));
    served.stub.revoked.store(true, Ordering::SeqCst);
    for socket in [&mut idle, &mut busy] {
        let received = heard(socket).await.unwrap();
        assert!(received.contains("invalid_api_key"), "{received}");
        assert_eq!(heard(socket).await, Err(Some(CloseCode::Policy)));
    }
    served.stub.until_in_flight(0).await;
}

#[tokio::test]
async fn a_long_answer_is_one_message_whatever_it_is_cut_into() {
    let served = serve(config()).await;
    let mut socket = open(&served).await;
    let long = format!("\"{}\"", "é€😀x".repeat(100_000));
    say(&mut socket, &long).await;
    assert_eq!(heard(&mut socket).await, Ok(long));
}
