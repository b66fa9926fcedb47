//! A scripted OpenAI-compatible server: answers with a given number of words and pace, stalls, refusals, and a record
//! of the requests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    dead_code,
    reason = "helpers of tests, not all of which each test file uses"
)]

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// How the server answers.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    /// Delay before the first token, and between two tokens.
    pub(crate) first: Duration,
    pub(crate) gap: Duration,
    /// Words per event. Each word is a token.
    pub(crate) per_event: usize,
    /// Maximum tokens of an answer, even if the request asks for more.
    pub(crate) most: u64,
    pub(crate) usage: bool,
    /// Whether the server has `/tokenize`.
    pub(crate) tokenize: bool,
    /// Every n-th call is refused.
    pub(crate) refuse_every: Option<u64>,
    /// A call, counted from 1, and how long the server waits before its first token.
    pub(crate) stall: Option<(u64, Duration)>,
    /// No answer has a first token before this number of calls was in flight at once.
    pub(crate) gather: usize,
    /// The number of calls that are answered. Later ones have no first token and no end.
    pub(crate) most_answers: u64,
    /// Streams break off after their first token.
    pub(crate) break_off: bool,
    pub(crate) context_window: u64,
    /// Number of requests that a connection answers before the server closes it on the next one.
    pub(crate) requests_per_connection: u64,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(2),
            gap: Duration::ZERO,
            per_event: 1,
            most: u64::MAX,
            usage: true,
            tokenize: false,
            refuse_every: None,
            stall: None,
            gather: 0,
            most_answers: u64::MAX,
            break_off: false,
            context_window: 100_000,
            requests_per_connection: u64::MAX,
        }
    }
}

/// Tokens that a template adds to each message.
const OVERHEAD: u64 = 5;

/// A running server.
pub(crate) struct Server {
    pub(crate) url: String,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    bodies: Mutex<Vec<Value>>,
    calls: AtomicU64,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
}

type Body = BoxBody<Bytes, Infallible>;

impl Server {
    pub(crate) async fn start(script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Seen::default());
        let (script, kept) = (Arc::new(script), seen.clone());
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let (script, seen) = (script.clone(), seen.clone());
                tokio::spawn(async move {
                    let requests = Arc::new(AtomicU64::new(0));
                    let serve = service_fn(move |request| {
                        let (script, seen) = (script.clone(), seen.clone());
                        let request_number = requests.fetch_add(1, Ordering::SeqCst);
                        async move {
                            if request_number >= script.requests_per_connection {
                                return Err("enough");
                            }
                            Ok(answer(request, &script, &seen).await)
                        }
                    });
                    // A client that disconnects is not an error of the server.
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), serve)
                        .await;
                });
            }
        });
        Self { url, seen: kept }
    }

    /// The bodies of the calls, without calibration calls.
    pub(crate) fn bodies(&self) -> Vec<Value> {
        let all = self.seen.bodies.lock().unwrap();
        all.iter().filter(|body| !is_probe(body)).cloned().collect()
    }

    pub(crate) fn most_in_flight(&self) -> usize {
        self.seen.most_in_flight.load(Ordering::SeqCst)
    }
}

fn is_probe(body: &Value) -> bool {
    body["max_tokens"] == 1 && body["stream"] == false
}

async fn answer(request: Request<Incoming>, script: &Script, seen: &Arc<Seen>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    match path.as_str() {
        "/v1/models" => {
            let model = json!({"id": "scripted", "object": "model", "max_model_len": script.context_window});
            whole(200, &json!({"object": "list", "data": [model]}))
        }
        "/tokenize" if script.tokenize => {
            let body: Value = serde_json::from_slice(&body).unwrap();
            let count = body["prompt"].as_str().unwrap().split_whitespace().count();
            whole(200, &json!({"tokens": vec![1; count]}))
        }
        "/v1/chat/completions" | "/v1/completions" => {
            let body: Value = serde_json::from_slice(&body).unwrap();
            complete(&path, body, script, seen).await
        }
        _ => whole(404, &json!({"error": {"message": "no such path", "code": "not_found"}})),
    }
}

async fn complete(path: &str, body: Value, script: &Script, seen: &Arc<Seen>) -> Response<Body> {
    let probe = is_probe(&body);
    let chat = path.ends_with("/chat/completions");
    let words = |text: &Value| text.as_str().unwrap_or_default().split_whitespace().count() as u64;
    let prompt = match body["messages"].as_array() {
        Some(messages) => messages.iter().map(|message| words(&message["content"]) + OVERHEAD).sum(),
        None => words(&body["prompt"]),
    };
    let output = body["max_tokens"].as_u64().unwrap_or(16).min(script.most);
    let streamed = body["stream"] == true;
    seen.bodies.lock().unwrap().push(body);
    if prompt + output > script.context_window {
        let message = format!("{prompt} and {output} tokens are too many");
        return whole(400, &json!({"error": {"message": message, "code": "context_length_exceeded"}}));
    }
    let details = json!({"cached_tokens": prompt / 2});
    let usage =
        json!({"prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": details});
    if !streamed || probe {
        let mut answer =
            json!({"choices": [{"message": {"content": "word"}, "text": "word", "finish_reason": "stop"}]});
        if script.usage {
            answer["usage"] = usage;
        }
        return whole(200, &answer);
    }
    let call = seen.calls.fetch_add(1, Ordering::SeqCst) + 1;
    if script.refuse_every.is_some_and(|every| call.is_multiple_of(every)) {
        return whole(429, &json!({"error": {"message": "slow down", "code": "rate_limit_exceeded"}}));
    }
    let usage = script.usage.then_some(usage);
    stream(chat, call, output, usage, script.clone(), seen.clone())
}

/// A task writes the stream, so the body only passes bytes on.
fn stream(
    chat: bool,
    call: u64,
    output: u64,
    usage: Option<Value>,
    script: Script,
    seen: Arc<Seen>,
) -> Response<Body> {
    let (send, receive) = tokio::sync::mpsc::unbounded_channel::<Bytes>();
    let flying = seen.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
    seen.most_in_flight.fetch_max(flying, Ordering::SeqCst);
    tokio::spawn(async move {
        let _ = write(chat, call, output, usage, &script, &seen, &send).await;
        seen.in_flight.fetch_sub(1, Ordering::SeqCst);
    });
    let frames = futures_util::stream::unfold(receive, |mut receive| async {
        let bytes = receive.recv().await?;
        Some((Ok::<_, Infallible>(Frame::data(bytes)), receive))
    });
    Response::builder()
        .header("content-type", "text/event-stream")
        .body(BodyExt::boxed(StreamBody::new(frames)))
        .unwrap()
}

async fn write(
    chat: bool,
    call: u64,
    output: u64,
    usage: Option<Value>,
    script: &Script,
    seen: &Seen,
    send: &tokio::sync::mpsc::UnboundedSender<Bytes>,
) -> Result<(), ()> {
    let event = |choices: Value, usage: Option<&Value>| {
        let chunk = json!({"id": "x", "choices": choices, "usage": usage});
        send.send(Bytes::from(format!("data: {chunk}\n\n"))).map_err(drop)
    };
    if chat {
        event(
            json!([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": null}]),
            None,
        )?;
    }
    if call > script.most_answers {
        send.closed().await;
        return Ok(());
    }
    while seen.most_in_flight.load(Ordering::SeqCst) < script.gather {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let stall = script.stall.filter(|(at, _)| *at == call).map_or(Duration::ZERO, |(_, long)| long);
    tokio::time::sleep(script.first + stall).await;
    let mut left = output;
    while left > 0 {
        let now = left.min(script.per_event as u64);
        let text = "word ".repeat(now as usize);
        event(
            match chat {
                true => json!([{"index": 0, "delta": {"content": text}, "finish_reason": null}]),
                false => json!([{"index": 0, "text": text, "finish_reason": null}]),
            },
            None,
        )?;
        if script.break_off {
            return Ok(());
        }
        left -= now;
        if !script.gap.is_zero() {
            tokio::time::sleep(script.gap).await;
        }
    }
    event(json!([{"index": 0, "delta": {}, "text": "", "finish_reason": "length"}]), None)?;
    if let Some(usage) = &usage {
        event(json!([]), Some(usage))?;
    }
    send.send(Bytes::from_static(b"data: [DONE]\n\n")).map_err(drop)
}

fn whole(status: u16, body: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(body.to_string())).boxed();
    Response::builder().status(status).header("content-type", "application/json").body(body).unwrap()
}
