//! Turns over a WebSocket: who is let in, what a turn is told, and how such a connection ends.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use headrace_call_api::GiveUp;
use http::{HeaderValue, StatusCode};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::stub::{HANG, SILENT, Served, THREE, assert_status, config, serve, serve_for, until};

type Socket = WebSocketStream<TcpStream>;

const SOON: Duration = Duration::from_secs(5);

async fn open_as(served: &Served, key: Option<&'static str>) -> Result<Socket, Error> {
    let mut request = "ws://a/v1/responses".into_client_request().unwrap();
    if let Some(key) = key {
        request.headers_mut().insert("authorization", HeaderValue::from_static(key));
    }
    client_async(request, served.connect().await).await.map(|(socket, _)| socket)
}

async fn open(served: &Served) -> Socket {
    open_as(served, Some("Bearer good")).await.unwrap()
}

async fn say(socket: &mut Socket, text: &str) {
    socket.send(Message::text(text)).await.unwrap();
}

/// The next message; how the connection was closed, where it was.
async fn heard(socket: &mut Socket) -> Result<String, Option<CloseCode>> {
    loop {
        match tokio::time::timeout(SOON, socket.next()).await.expect("nothing came") {
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
    assert_eq!(served.stub.asked.load(Ordering::SeqCst), 0, "an open connection is no call");
    for turn in 1..=3 {
        say(&mut socket, THREE).await;
        for _ in 0..3 {
            assert_eq!(heard(&mut socket).await, Ok("1".to_owned()));
        }
        until(|| served.stub.in_flight.load(Ordering::SeqCst) == 0).await;
        assert_eq!(served.stub.calls.load(Ordering::SeqCst), turn);
    }
    // What is answered whole is one message; two at once run one after the other.
    say(&mut socket, "{\"a\": 1}").await;
    say(&mut socket, THREE).await;
    let mut told = Vec::new();
    for _ in 0..4 {
        told.push(heard(&mut socket).await.unwrap());
    }
    assert_eq!(told, ["{\"a\": 1}", "1", "1", "1"]);
    // A message that is no turn is told so, and the connection goes on.
    say(&mut socket, "no turn").await;
    assert_eq!(heard(&mut socket).await.unwrap(), r#"{"type":"error","status":400,"error":1}"#);
    say(&mut socket, "[2]").await;
    assert_eq!(heard(&mut socket).await, Ok("[2]".to_owned()));
    socket.close(None).await.unwrap();
    assert!(heard(&mut socket).await.is_err());
    // The place is another's at once.
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
    // What is no handshake is a GET, which this path does not take.
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
        assert_eq!(*served.stub.given_up.lock().unwrap(), None, "the client left");
    }
}

#[tokio::test]
async fn a_reader_who_takes_nothing_is_cut_off() {
    let served =
        serve(headrace_edge::EdgeConfig { write_timeout: Duration::from_millis(200), ..config() }).await;
    let mut socket = open(&served).await;
    // Events that nobody takes.
    say(&mut socket, "\"endless events\"").await;
    served.stub.until_in_flight(1).await;
    served.stub.until_in_flight(0).await;
    assert_eq!(*served.stub.given_up.lock().unwrap(), Some(GiveUp::ReaderStalled));
}

#[tokio::test]
async fn what_is_too_long_or_no_text_ends_the_connection_and_says_why() {
    let served = serve(config()).await;
    let mut socket = open(&served).await;
    // It may be told before all of it was sent.
    let _ = socket.send(Message::text("x".repeat((4 << 20) + 1))).await;
    let told = heard(&mut socket).await;
    assert!(told.as_ref().is_ok_and(|told| told.contains("\"status\":413")), "{told:?}");
    assert_eq!(heard(&mut socket).await, Err(Some(CloseCode::Size)));
    let mut socket = open(&served).await;
    socket.send(Message::binary(vec![1, 2])).await.unwrap();
    assert_eq!(heard(&mut socket).await, Err(Some(CloseCode::Unsupported)));
    assert_eq!(served.stub.asked.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_drain_lets_a_turn_end_and_takes_no_further_one() {
    let served = serve_for(config(), Duration::from_secs(2)).await;
    let mut idle = open(&served).await;
    say(&mut idle, "[1]").await;
    assert_eq!(heard(&mut idle).await, Ok("[1]".to_owned()));
    let mut busy = open(&served).await;
    say(&mut busy, SILENT).await;
    assert_eq!(heard(&mut busy).await, Ok("1".to_owned()));
    let stub = std::sync::Arc::clone(&served.stub);
    let done = served.stop();
    assert_eq!(heard(&mut idle).await, Err(Some(CloseCode::Away)));
    stub.until_in_flight(1).await;
    // The front cuts off what has not ended by then: its stream ends, and so does the connection.
    assert_eq!(heard(&mut busy).await, Err(Some(CloseCode::Away)));
    let report = done.await.unwrap();
    assert_eq!((report.calls_cut_off, report.connections_cut_off), (1, 0));
}
