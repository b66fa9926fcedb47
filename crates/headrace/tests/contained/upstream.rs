//! A scripted upstream. The name of the model decides how it answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

const MIB: usize = 1 << 20;
/// Size to which a whole answer, or an event of a stream, grows.
pub(crate) const GROWS_TO: usize = 32 * MIB;
/// Size to which a stream grows. Far exceeds what socket buffers hold.
pub(crate) const STREAMS_TO: usize = 48 * MIB;
/// Size to which the list of models grows.
const LISTS_TO: usize = 64 * MIB;

/// The model whose answer, or stream event, grows.
pub(crate) const GROW: &str = "grow";
/// The model whose stream does not end.
pub(crate) const ENDLESS: &str = "endless";
/// The model that gives no answer, on an open connection.
pub(crate) const SILENT: &str = "silent";
/// The model with a short answer.
pub(crate) const GOOD: &str = "good";

/// What the server observed.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Lists of models that were sent, in full or until they were refused.
    pub(crate) lists: AtomicUsize,
    /// Streams that the other side cut off.
    pub(crate) cut: AtomicUsize,
    /// Streams that the other side read to the end.
    pub(crate) taken: AtomicUsize,
    /// Whether lists of models are large.
    pub(crate) lists_much: AtomicBool,
}

/// A running server. It ends when it is dropped.
pub(crate) struct Upstream {
    address: SocketAddr,
    pub(crate) seen: Arc<Seen>,
    serving: AbortHandle,
}

impl Upstream {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, seen) = (listener.local_addr().unwrap(), Arc::new(Seen::default()));
        let shared = Arc::clone(&seen);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer_all(stream, Arc::clone(&shared)));
            }
        });
        Self { address, seen, serving: serving.abort_handle() }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Answers the requests of a connection until either side closes it.
async fn answer_all(mut stream: TcpStream, seen: Arc<Seen>) -> std::io::Result<()> {
    let mut read = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = read.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut read).await? == 0 {
                return Ok(());
            }
        };
        let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length = length.map_or(0, |length| length.trim().parse().unwrap());
        while read.len() < end + length {
            if stream.read_buf(&mut read).await? == 0 {
                return Ok(());
            }
        }
        let body: Value = serde_json::from_slice(&read[end..end + length]).unwrap_or_default();
        read.drain(..end + length);
        if head.starts_with("get /v1/models") {
            list(&mut stream, &seen).await?;
            continue;
        }
        match body["model"].as_str() {
            Some(GROW) => return grow(&mut stream, body["stream"] == true).await,
            Some(SILENT) => return stream.read(&mut [0]).await.map(drop),
            Some(ENDLESS) => return endless(&mut stream, &seen).await,
            _ => whole(&mut stream, &good(), "200 OK").await?,
        }
    }
}

fn good() -> String {
    json!({"id": "c", "object": "chat.completion", "created": 1, "model": GOOD,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}})
    .to_string()
}

async fn whole(stream: &mut TcpStream, body: &str, status: &str) -> std::io::Result<()> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(head.as_bytes()).await
}

/// Sends a short list of models, or a long one.
async fn list(stream: &mut TcpStream, seen: &Seen) -> std::io::Result<()> {
    let much = seen.lists_much.load(Ordering::Relaxed);
    let mut body = r#"{"object":"list","data":["#.to_owned();
    for name in [GROW, ENDLESS, SILENT, GOOD] {
        body += &format!(r#"{{"id":"{name}","object":"model"}},"#);
    }
    for at in 0_u32.. {
        if !much || body.len() >= LISTS_TO {
            break;
        }
        body += &format!(r#"{{"id":"model-{at}","object":"model"}},"#);
    }
    body.pop();
    body += "]}";
    let sent = whole(stream, &body, "200 OK").await;
    if much {
        seen.lists.fetch_add(1, Ordering::Relaxed);
    }
    sent
}

/// Sends one message, or one event, that grows and never ends.
async fn grow(stream: &mut TcpStream, streamed: bool) -> std::io::Result<()> {
    let (kind, begin) = match streamed {
        true => ("text/event-stream", r#"data: {"choices":[{"index":0,"delta":{"content":""#),
        false => ("application/json", r#"{"choices":[{"message":{"content":""#),
    };
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    chunk(stream, begin.as_bytes()).await?;
    let piece = vec![b'a'; MIB];
    for _ in 0..GROWS_TO / MIB {
        chunk(stream, &piece).await?;
    }
    // The other side decides when to close.
    stream.read(&mut [0]).await.map(drop)
}

/// Sends the events of a stream that never ends.
async fn endless(stream: &mut TcpStream, seen: &Seen) -> std::io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    let event = json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": ENDLESS,
        "choices": [{"index": 0, "delta": {"content": "a word or two"}, "finish_reason": null}]});
    let events = format!("data: {event}\n\n").repeat(300);
    let mut sent = 0;
    while sent < STREAMS_TO {
        if let Err(error) = chunk(stream, events.as_bytes()).await {
            seen.cut.fetch_add(1, Ordering::Relaxed);
            return Err(error);
        }
        sent += events.len();
    }
    seen.taken.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

async fn chunk(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(format!("{:x}\r\n", bytes.len()).as_bytes()).await?;
    stream.write_all(bytes).await?;
    stream.write_all(b"\r\n").await
}
