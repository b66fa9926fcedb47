//! Tests the client against a server that plays a script, byte for byte: streams in pieces, errors, silence, broken
//! ends.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use headrace_client::{
    ChatEvent, ChatMessage, ChatRequest, Client, ClientConfig, ClientError, HeadraceOptions, RetryPolicy,
    StreamOptions, Timing,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const CHUNKED: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nx-request-id: req_7\r\n\
                       transfer-encoding: chunked\r\n\r\n";

/// One step of the server on one connection.
enum Step {
    /// Writes raw bytes.
    Write(String),
    /// Writes one chunk of a chunked body.
    Chunk(&'static str),
    /// Ends a chunked body.
    EndBody,
    Pause(u64),
    /// Waits until the client disconnects, and records that it did.
    AwaitHangUp,
}

use Step::{AwaitHangUp, Chunk, EndBody, Pause, Write};

#[derive(Default)]
struct Seen {
    requests: Mutex<Vec<String>>,
    hang_ups: Mutex<u32>,
}

/// Serves one script per connection, then stops accepting.
async fn serve(scripts: Vec<Vec<Step>>) -> (Client, Arc<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Seen::default());
    let server = seen.clone();
    tokio::spawn(async move {
        for script in scripts {
            let (stream, _) = listener.accept().await.unwrap();
            play(stream, script, &server).await;
        }
    });
    let retry = RetryPolicy {
        max_retries: 2,
        first_backoff: Duration::from_millis(20),
        max_backoff: Duration::from_millis(40),
        max_retry_after: Duration::from_secs(2),
    };
    let key = Some("sk-test".into());
    let idle_timeout = Duration::from_millis(600);
    let client = Client::new(ClientConfig { key, retry, idle_timeout, ..ClientConfig::new(url) }).unwrap();
    (client, seen)
}

async fn play(mut stream: TcpStream, script: Vec<Step>, seen: &Seen) {
    let request = read_request(&mut stream).await;
    seen.requests.lock().unwrap().push(request);
    for step in script {
        match step {
            Write(text) => stream.write_all(text.as_bytes()).await.unwrap(),
            Chunk(text) => {
                stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await.unwrap();
            }
            EndBody => stream.write_all(b"0\r\n\r\n").await.unwrap(),
            Pause(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
            AwaitHangUp => {
                let left = stream.read(&mut [0; 64]).await;
                if matches!(left, Ok(0) | Err(_)) {
                    *seen.hang_ups.lock().unwrap() += 1;
                }
            }
        }
    }
}

async fn read_request(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let read = stream.read(&mut piece).await.unwrap();
        bytes.extend_from_slice(&piece[..read]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length =
            head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        if body.len() >= length.unwrap_or(0) {
            return text;
        }
    }
}

fn whole(status: &str, headers: &str, body: &str) -> Vec<Step> {
    let length = body.len();
    vec![Write(format!(
        "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n{body}"
    ))]
}

fn request() -> ChatRequest {
    ChatRequest {
        model: "m".into(),
        messages: vec![ChatMessage::new("user", "hi")],
        stream_options: Some(StreamOptions { include_usage: true }),
        headrace: Some(HeadraceOptions { explain: true }),
        ..ChatRequest::default()
    }
}

const HELLO: &str =
    "data: {\"id\":\"c\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hello\"}}]}\n\n";
const STOP: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1},\"headrace\":{\"cost\":{\"charged_nano_dollars\":8}}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn good() -> Vec<Step> {
    vec![Write(CHUNKED.into()), Chunk(HELLO), Chunk(STOP), Chunk(USAGE), Chunk(DONE), EndBody]
}

#[tokio::test]
async fn a_stream_in_odd_pieces_is_one_answer() {
    let (first, second) = HELLO.split_at(41);
    let script = vec![
        Write(CHUNKED.into()),
        Chunk(": keep-alive\n\n"),
        Chunk(first),
        Pause(30),
        Chunk(second),
        Chunk(STOP),
        Chunk(USAGE),
        Chunk(DONE),
        EndBody,
    ];
    let (client, seen) = serve(vec![script]).await;
    let mut stream = client.chat(&request()).await.unwrap();
    let mut events = Vec::new();
    while let Some(event) = stream.next().await.unwrap() {
        events.push(event);
    }
    assert_eq!(events, [ChatEvent::Text("hello".into()), ChatEvent::Finish("stop".into())]);
    let answer = stream.into_answer();
    assert_eq!((answer.text.as_str(), answer.request_id.as_deref()), ("hello", Some("req_7")));
    assert_eq!(answer.usage.unwrap().prompt_tokens, 5);
    assert_eq!(answer.explain.unwrap().cost.unwrap().get(), 8);
    let first_token = answer.timing.first_token.unwrap();
    assert!(
        first_token >= Duration::from_millis(30) && first_token <= answer.timing.total,
        "{:?}",
        answer.timing
    );
    let requests = seen.requests.lock().unwrap();
    assert!(requests[0].starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{}", requests[0]);
    assert!(
        requests[0].contains("authorization: Bearer sk-test\r\n") && requests[0].contains("\"stream\":true")
    );
}

#[tokio::test]
async fn failures_before_the_first_byte_are_tried_again() {
    let busy = r#"{"error":{"message":"full","type":"overloaded_error","code":"queue_full"}}"#;
    let scripts = vec![whole("503 Busy", "retry-after: 1\r\n", busy), vec![], good()];
    let (client, seen) = serve(scripts).await;
    let started = Instant::now();
    let answer = client.chat(&request()).await.unwrap().finish().await.unwrap();
    assert_eq!((answer.text.as_str(), answer.timing.retries), ("hello", 2));
    assert!(started.elapsed() >= Duration::from_secs(1), "Retry-After was not honoured");
    assert!(
        answer.timing.total < Duration::from_secs(1),
        "waiting for a try is no part of the answer's time"
    );
    assert_eq!(seen.requests.lock().unwrap().len(), 3);
}

#[tokio::test]
async fn errors_keep_what_the_server_said_and_are_not_tried_again() {
    let body = r#"{"error":{"message":"no such model; GET /v1/models lists them","type":"invalid_request_error","param":"model","code":"model_not_found","stage":"authorize","request_id":"req_9","doc_url":"https://d"}}"#;
    let (client, seen) = serve(vec![whole("404 Not Found", "x-request-id: req_9\r\n", body), good()]).await;
    let Err(ClientError::Api(error)) = client.chat(&request()).await else { panic!("an error was expected") };
    assert_eq!(error.status, Some(404));
    assert_eq!((error.code.as_str(), error.param.as_deref()), ("model_not_found", Some("model")));
    assert_eq!((error.request_id.as_deref(), error.stage.as_deref()), (Some("req_9"), Some("authorize")));
    assert_eq!(seen.requests.lock().unwrap().len(), 1);
    // Too long to wait for, so the call fails at once with an error that contains the wait.
    let (client, _) = serve(vec![whole("429 Slow", "Retry-After: 3600\r\n", "{}")]).await;
    let Err(ClientError::Api(error)) = client.chat(&request()).await else { panic!("an error was expected") };
    assert_eq!(error.retry_after, Some(Duration::from_secs(3600)));
}

#[tokio::test]
async fn nothing_is_tried_again_after_the_first_byte() {
    let failed =
        "data: {\"error\":{\"message\":\"boom\",\"type\":\"server_error\",\"code\":\"engine_failed\"}}\n\n";
    let rows: Vec<(Vec<Step>, &str)> = vec![
        (
            vec![Write(CHUNKED.into()), Chunk(HELLO), Chunk(failed), EndBody],
            "server_error (engine_failed): boom [req_7]",
        ),
        (vec![Write(CHUNKED.into()), Chunk(HELLO), EndBody], "the answer was cut off before its end [req_7]"),
        (vec![Write(CHUNKED.into()), Chunk(HELLO)], "the answer was cut off before its end: "),
        (vec![Write(CHUNKED.into()), Chunk(HELLO), Pause(2_000)], "the answer was cut off before its end: "),
        (
            vec![Write(CHUNKED.into()), Chunk("data: {oops\n\n"), EndBody],
            "the server's answer cannot be read: a chunk",
        ),
    ];
    for (script, expected) in rows {
        let (client, seen) = serve(vec![script, good()]).await;
        let mut stream = client.chat(&request()).await.unwrap();
        let error = loop {
            match stream.next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("`{expected}` was expected"),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().starts_with(expected), "{error}");
        assert_eq!(stream.next().await.unwrap(), None, "an error is told once");
        assert_eq!(seen.requests.lock().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_stream_without_its_last_mark_is_whole_if_it_finished() {
    let (client, _) = serve(vec![vec![Write(CHUNKED.into()), Chunk(HELLO), Chunk(STOP), EndBody]]).await;
    assert_eq!(client.chat(&request()).await.unwrap().finish().await.unwrap().text, "hello");
}

#[tokio::test]
async fn dropping_an_answer_hangs_up_early_and_late() {
    let silent = vec![AwaitHangUp];
    let midway = vec![Write(CHUNKED.into()), Chunk(HELLO), AwaitHangUp];
    let (client, seen) = serve(vec![silent, midway, good()]).await;
    let asked = async {
        while seen.requests.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let first = request();
    tokio::select! {
        _ = client.chat(&first) => panic!("the server is silent"),
        () = asked => {}
    }
    let mut stream = client.chat(&request()).await.unwrap();
    assert_eq!(stream.next().await.unwrap(), Some(ChatEvent::Text("hello".into())));
    let partial = stream.into_answer();
    assert_eq!((partial.text.as_str(), partial.finish_reason), ("hello", None));
    // The next call succeeds, so both connections were closed.
    let answer = client.chat(&request()).await.unwrap().finish().await.unwrap();
    assert_eq!(answer.text, "hello");
    assert_eq!(*seen.hang_ups.lock().unwrap(), 2);
}

#[tokio::test]
async fn silence_and_strange_answers_are_errors() {
    let (client, seen) = serve(vec![vec![Pause(2_000)], good()]).await;
    assert!(matches!(client.chat(&request()).await, Err(ClientError::Timeout(_))));
    assert_eq!(seen.requests.lock().unwrap().len(), 1, "a silent server may still be at work");
    let (client, _) = serve(vec![whole("200 OK", "content-type: text/html\r\n", "<html>")]).await;
    assert!(matches!(client.chat(&request()).await, Err(ClientError::Protocol(_))));
    let (client, _) = serve(vec![whole("302 Found", "location: http://elsewhere.invalid/\r\n", "")]).await;
    let Err(ClientError::Api(error)) = client.chat(&request()).await else {
        panic!("no redirect is followed")
    };
    assert_eq!(error.status, Some(302));
    // No server listens, so each attempt fails at once.
    let retry = RetryPolicy::none();
    let nobody = Client::new(ClientConfig { retry, ..ClientConfig::new("http://127.0.0.1:9") }).unwrap();
    let Err(ClientError::Connection(what)) = nobody.chat(&request()).await else { panic!("nobody listens") };
    assert!(what.starts_with("cannot connect to http://127.0.0.1:9: "), "{what}");
}

#[tokio::test]
async fn models_and_traces() {
    let models = r#"{"object":"list","data":[{"id":"a","max_model_len":2048,"context_window":2048},{"odd":1},{"id":"b","max_model_len":7},{"id":"c"}]}"#;
    let (client, seen) =
        serve(vec![whole("200 OK", "", models), whole("200 OK", "", r#"{"id":"req_1"}"#)]).await;
    let listed = client.models().await.unwrap();
    let listed: Vec<_> = listed.iter().map(|model| (model.id.as_str(), model.context_window)).collect();
    assert_eq!(listed, [("a", Some(2048)), ("b", Some(7)), ("c", None)]);
    assert_eq!(client.request_trace("req_1").await.unwrap()["id"], "req_1");
    for hostile in ["", "../models", "a/b", "a?b", "é"] {
        assert!(matches!(client.request_trace(hostile).await, Err(ClientError::Config(_))), "{hostile}");
    }
    assert!(seen.requests.lock().unwrap()[1].starts_with("GET /v1/requests/req_1 HTTP/1.1\r\n"));
}

#[tokio::test]
async fn connections_are_used_again_also_after_a_stream() {
    let list = "HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{\"data\":[]}";
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client =
        Client::new(ClientConfig::new(format!("http://{}", listener.local_addr().unwrap()))).unwrap();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        for _ in 0..3 {
            read_request(&mut stream).await;
            stream.write_all(list.as_bytes()).await.unwrap();
            read_request(&mut stream).await;
            for piece in [CHUNKED, &format!("{:x}\r\n{STOP}{DONE}\r\n", STOP.len() + DONE.len()), "0\r\n\r\n"]
            {
                stream.write_all(piece.as_bytes()).await.unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    });
    for _ in 0..3 {
        assert_eq!(client.models().await.unwrap(), []);
        client.chat(&request()).await.unwrap().finish().await.unwrap();
    }
    server.await.unwrap();
}

/// A server that answers twice over one connection, the second time after a delay.
async fn serve_twice_over_one_connection() -> (Client, Arc<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Seen::default());
    let server = seen.clone();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        for wait_ms in [0, 80] {
            let request = read_request(&mut stream).await;
            server.requests.lock().unwrap().push(request);
            tokio::time::sleep(Duration::from_millis(wait_ms)).await;
            let whole = format!(
                "{CHUNKED}{:x}\r\n{HELLO}\r\n{:x}\r\n{STOP}{DONE}\r\n0\r\n\r\n",
                HELLO.len(),
                STOP.len() + DONE.len()
            );
            stream.write_all(whole.as_bytes()).await.unwrap();
        }
    });
    (Client::new(ClientConfig::new(url)).unwrap(), seen)
}

#[tokio::test]
async fn each_step_on_the_way_is_timed_and_a_warm_connection_costs_nothing() {
    let (client, seen) = serve_twice_over_one_connection().await;
    let first = client.chat(&request()).await.unwrap().finish().await.unwrap();
    let second = client.chat(&request()).await.unwrap().finish().await.unwrap();
    let connect = first.timing.connect.unwrap();
    assert!(connect.tcp > Duration::ZERO && connect.dns.is_none() && connect.tls.is_none(), "{connect:?}");
    assert_eq!(second.timing.connect, None, "it stood");
    for answer in [&first, &second] {
        let Timing { sent, headers, first_token, last_token, total, .. } = answer.timing;
        let (sent, first_token) = (sent.unwrap(), first_token.unwrap());
        assert!(sent <= headers && headers <= first_token && first_token <= total, "{:?}", answer.timing);
        assert_eq!((answer.arrivals.as_slice(), last_token), ([first_token].as_slice(), Some(first_token)));
    }
    assert!(first.timing.sent.unwrap() >= connect.tcp, "nothing is sent before there is a connection");
    let waited = second.timing.headers - second.timing.sent.unwrap();
    assert!(waited >= Duration::from_millis(80), "waiting for the server is not sending: {waited:?}");
    let requests = seen.requests.lock().unwrap();
    for (request, answer) in requests.iter().zip([&first, &second]) {
        let trace_id = answer.trace_id.as_deref().unwrap();
        assert!(request.contains(&format!("traceparent: 00-{trace_id}-")), "{request}");
        assert!(request.contains("content-length: "), "{request}");
    }
    assert_ne!(first.trace_id, second.trace_id);
}

#[tokio::test]
async fn tries_of_one_call_are_spans_of_one_trace() {
    let busy = whole("503 Service Unavailable", "", "{}");
    let (client, seen) = serve(vec![busy, good()]).await;
    let answer = client.chat(&request()).await.unwrap().finish().await.unwrap();
    let requests = seen.requests.lock().unwrap();
    let header = |request: &String| {
        request.lines().find_map(|line| line.strip_prefix("traceparent: ").map(str::to_owned)).unwrap()
    };
    let (one, two) = (header(&requests[0]), header(&requests[1]));
    assert!(
        [&one, &two].iter().all(|header| header.contains(answer.trace_id.as_deref().unwrap())),
        "{one} {two}"
    );
    assert_ne!(one, two, "each try is a span of its own");
}

/// A blank message is not sent, so it costs nothing.
#[tokio::test]
async fn a_message_that_says_nothing_is_not_sent() {
    let (client, seen) = serve(vec![]).await;
    for blank in ["", " \n", "\u{200b}\u{feff}"] {
        let messages = vec![ChatMessage::new("user", "hi"), ChatMessage::new("user", blank)];
        let request = ChatRequest { model: "m".into(), messages, ..ChatRequest::default() };
        let Err(error) = client.chat(&request).await else { panic!("{blank:?} was sent") };
        assert!(matches!(error, ClientError::Request(_)), "{error:?}");
        assert!(error.to_string().starts_with("`messages[1].content` is empty"), "{error}");
    }
    let none = ChatRequest { model: "m".into(), ..ChatRequest::default() };
    assert!(matches!(client.chat(&none).await, Err(ClientError::Request(_))));
    assert!(seen.requests.lock().unwrap().is_empty());
}
