//! A publisher of cache events like that of vLLM and SGLang, over ZeroMQ's protocol. Its events are numbered, and it
//! replays earlier ones on request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use headrace_upstream::CacheFeed;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio::task::JoinSet;

/// The publisher. Dropping it closes all its connections.
pub(crate) struct Publisher {
    pub(crate) events: String,
    replay: String,
    pub(crate) kept: Arc<Mutex<Vec<(u64, Bytes)>>>,
    /// First numbers of the replays that were requested.
    pub(crate) asked: Arc<Mutex<Vec<u64>>>,
    hearers: Arc<AtomicUsize>,
    publish: broadcast::Sender<Vec<Vec<u8>>>,
    _serving: JoinSet<()>,
}

impl Publisher {
    pub(crate) async fn start() -> Self {
        Self::at("tcp://127.0.0.1:0").await
    }

    pub(crate) async fn at(address: &str) -> Self {
        let events = TcpListener::bind(address.trim_start_matches("tcp://")).await.unwrap();
        let replay = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = |listener: &TcpListener| format!("tcp://{}", listener.local_addr().unwrap());
        let (publish, _) = broadcast::channel(64);
        let mut publisher = Self {
            events: place(&events),
            replay: place(&replay),
            kept: Arc::default(),
            asked: Arc::default(),
            hearers: Arc::default(),
            publish,
            _serving: JoinSet::new(),
        };
        let (source, hearers) = (publisher.publish.clone(), Arc::clone(&publisher.hearers));
        publisher._serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = events.accept().await {
                connections.spawn(published(stream, source.subscribe(), Arc::clone(&hearers)));
            }
        });
        let (kept, asked) = (Arc::clone(&publisher.kept), Arc::clone(&publisher.asked));
        publisher._serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = replay.accept().await {
                connections.spawn(told_again(stream, Arc::clone(&kept), Arc::clone(&asked)));
            }
        });
        publisher
    }

    /// Publishes events and keeps them for replays.
    pub(crate) fn tell(&self, number: u64, events: &Value) {
        self.miss(number, events);
        let payload = self.kept.lock().last().unwrap().1.clone();
        self.send(&[b"kv@w1@m", &number.to_be_bytes(), &payload]);
    }

    /// Keeps events for replays without publishing them.
    pub(crate) fn miss(&self, number: u64, events: &Value) {
        let payload = rmp_serde::to_vec(&json!([1.0, events, 0])).unwrap();
        self.kept.lock().push((number, payload.into()));
    }

    pub(crate) fn send(&self, frames: &[&[u8]]) {
        self.publish.send(frames.iter().map(|frame| frame.to_vec()).collect()).unwrap();
    }

    /// Returns the number of subscriptions so far.
    pub(crate) fn hearers(&self) -> usize {
        self.hearers.load(Ordering::Relaxed)
    }

    pub(crate) fn feed(&self, with_replay: bool) -> CacheFeed {
        CacheFeed { events: self.events.clone(), replay: with_replay.then(|| self.replay.clone()) }
    }
}

async fn published(
    mut stream: TcpStream,
    mut source: broadcast::Receiver<Vec<Vec<u8>>>,
    hearers: Arc<AtomicUsize>,
) {
    open(&mut stream, b"PUB").await;
    assert_eq!(frame(&mut stream).await.unwrap(), [1], "all topics are asked for");
    hearers.fetch_add(1, Ordering::Relaxed);
    while let Ok(frames) = source.recv().await {
        if stream.write_all(&message(&frames)).await.is_err() {
            return;
        }
    }
}

async fn told_again(mut stream: TcpStream, kept: Arc<Mutex<Vec<(u64, Bytes)>>>, asked: Arc<Mutex<Vec<u64>>>) {
    open(&mut stream, b"ROUTER").await;
    while let (Some(empty), Some(start)) = (frame(&mut stream).await, frame(&mut stream).await) {
        assert!(empty.is_empty(), "an empty frame stands before the number");
        let start = u64::from_be_bytes(start[..].try_into().unwrap());
        asked.lock().push(start);
        let kept = kept.lock().clone();
        let answers = kept.into_iter().filter(|(number, _)| *number >= start);
        for (number, payload) in answers.chain([(u64::MAX, Bytes::new())]) {
            let frames = [Vec::new(), number.to_be_bytes().to_vec(), payload.to_vec()];
            stream.write_all(&message(&frames)).await.unwrap();
        }
    }
}

async fn open(stream: &mut TcpStream, kind: &[u8]) {
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xff, 0x7f, 3, 1);
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting).await.unwrap();
    stream.read_exact(&mut greeting).await.unwrap();
    let ready = [b"\x05READY\x0bSocket-Type\0\0\0", &[kind.len() as u8][..], kind].concat();
    stream.write_all(&[&[4, ready.len() as u8], ready.as_slice()].concat()).await.unwrap();
    assert!(frame(stream).await.unwrap().starts_with(b"\x05READY"));
}

/// Returns the body of the next short frame, or `None` if the connection has ended.
async fn frame(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).await.ok()?;
    let mut body = vec![0; usize::from(head[1])];
    stream.read_exact(&mut body).await.ok()?;
    Some(body)
}

fn message(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (at, frame) in frames.iter().enumerate() {
        let more = u8::from(at + 1 < frames.len());
        match u8::try_from(frame.len()) {
            Ok(length) => bytes.extend([more, length]),
            Err(_) => {
                bytes.push(more | 2);
                bytes.extend((frame.len() as u64).to_be_bytes());
            }
        }
        bytes.extend(frame);
    }
    bytes
}
