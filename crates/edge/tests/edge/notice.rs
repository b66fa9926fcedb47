//! The notice period before a shutdown: readiness is denied, calls are accepted, clients leave.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use headrace_edge::EdgeConfig;
use http_body_util::BodyExt;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::http2::{call, open, request};
use crate::stub::{Served, assert_status, config, post, read_until, rest, serve, serve_for};
use crate::websocket;

/// Waits until `so` returns `true`, for as long as a busy machine may take.
async fn until(so: impl Fn() -> bool) {
    let waiting = async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("it never came to be");
}

const GET_READY: &str = "GET /readyz HTTP/1.1\r\nhost: a\r\n\r\n";

/// Returns the answer to one readiness check on its own connection, or `None` if the connection failed.
async fn readiness(at: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(at).await.ok()?;
    stream.write_all(GET_READY.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n").as_bytes()).await.ok()?;
    Some(rest(&mut stream).await)
}

/// Waits until readiness is denied at an address.
async fn until_not_ready(at: SocketAddr) {
    let asking = async {
        while !readiness(at).await.expect("it takes connections").starts_with("HTTP/1.1 503 ") {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asking).await.expect("it stays ready");
}

async fn with_operations() -> Served {
    serve_for(
        EdgeConfig { metrics_listen: Some(([127, 0, 0, 1], 0).into()), ..config() },
        Duration::from_secs(2),
    )
    .await
}

#[tokio::test]
async fn a_server_that_stops_soon_denies_readiness_takes_calls_and_has_http1_clients_leave() {
    let served = with_operations().await;
    let (address, operations) = (served.address, served.metrics.unwrap());
    assert!(readiness(address).await.unwrap().starts_with("HTTP/1.1 200 "));
    assert!(readiness(operations).await.unwrap().starts_with("HTTP/1.1 200 "));
    let mut idle = served.connect().await;
    idle.write_all(post("", "{}").as_bytes()).await.unwrap();
    assert!(!read_until(&mut idle, "\r\n\r\n{}").await.contains("connection: close"));
    // The connection is idle, and the library's buffers were freed.
    tokio::time::sleep(Duration::from_millis(700)).await;
    let mut silent = served.connect().await;
    let mut half = served.connect().await;
    let whole = post("", "[1]");
    let (most, last) = whole.split_at(whole.len() - 1);
    half.write_all(most.as_bytes()).await.unwrap();
    served.stub.until_in_flight(1).await;

    let (stop, done) = served.announce_end();
    until_not_ready(address).await;
    let why = readiness(operations).await.unwrap();
    assert!(why.starts_with("HTTP/1.1 503 ") && why.contains("the server stops soon"), "{why}");
    half.write_all(last.as_bytes()).await.unwrap();
    let mut fresh = TcpStream::connect(address).await.unwrap();
    for (which, stream) in [("idle", &mut idle), ("silent", &mut silent), ("fresh", &mut fresh)] {
        stream.write_all(post("", "{}").as_bytes()).await.unwrap();
        let answer = rest(stream).await;
        assert_status(&answer, 200);
        assert!(answer.contains("connection: close\r\n"), "{which}: {answer}");
    }
    let answer = rest(&mut half).await;
    assert_status(&answer, 200);
    assert!(answer.contains("connection: close\r\n"), "{answer}");

    stop.send(()).unwrap();
    done.await.unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn an_http2_client_gets_goaway_and_loses_no_stream() {
    let served = with_operations().await;
    let address = served.address;
    let mut used = open(served.connect().await).await;
    assert_eq!(request(&mut used, "[1]").await.status(), 200);
    let hanging = used.send_request(call("[2]"));
    let mut unused = open(served.connect().await).await;
    // By now the server has detected HTTP/2.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let (stop, done) = served.announce_end();
    // Sent at the same time as the announcement.
    let racing = used.send_request(call("[3]"));
    for answer in [hanging.await, racing.await] {
        let answer = answer.unwrap();
        assert_eq!(answer.status(), 200);
        answer.into_body().collect().await.unwrap();
    }
    until_not_ready(address).await;
    until_closed(&used).await;
    // A client without a request yet is not sent away before its first one. Otherwise it would have been by now.
    tokio::time::sleep(Duration::from_millis(200)).await;
    for sender in [&mut unused, &mut open(TcpStream::connect(address).await.unwrap()).await] {
        assert!(!sender.is_closed());
        let answer = request(sender, "[4]").await;
        assert_eq!(answer.status(), 200);
        answer.into_body().collect().await.unwrap();
        until_closed(sender).await;
    }
    stop.send(()).unwrap();
    let report = done.await.unwrap();
    assert_eq!((report.calls_cut_off, report.connections_cut_off), (0, 0));
}

async fn until_closed<B>(sender: &hyper::client::conn::http2::SendRequest<B>) {
    until(|| sender.is_closed()).await;
}

#[tokio::test]
async fn a_websocket_closes_after_its_next_turn() {
    let served = with_operations().await;
    let address = served.address;
    let mut socket = websocket::open(&served).await;
    let (stop, done) = served.announce_end();
    until_not_ready(address).await;
    websocket::say(&mut socket, "[1]").await;
    assert_eq!(websocket::heard(&mut socket).await, Ok("[1]".to_owned()));
    assert_eq!(websocket::heard(&mut socket).await, Err(Some(CloseCode::Away)));
    stop.send(()).unwrap();
    done.await.unwrap();
}

/// The relevant part of a load balancer: it checks the readiness of several servers repeatedly, and sends calls to
/// ready ones over persistent connections.
struct Balancer {
    servers: Vec<Backend>,
    next: AtomicUsize,
    calls: AtomicUsize,
    failed: AtomicUsize,
    ends: AtomicBool,
}

struct Backend {
    address: SocketAddr,
    ready: AtomicBool,
    /// Number of calls that are currently sent there.
    in_flight: AtomicUsize,
}

impl Balancer {
    async fn check_forever(&self, backend: usize) {
        let backend = &self.servers[backend];
        while !self.ends.load(Ordering::SeqCst) {
            let is_ready =
                readiness(backend.address).await.is_some_and(|answer| answer.starts_with("HTTP/1.1 200 "));
            backend.ready.store(is_ready, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn call_forever(&self) {
        let mut kept = HashMap::new();
        while !self.ends.load(Ordering::SeqCst) {
            let at = self.next.fetch_add(1, Ordering::SeqCst) % self.servers.len();
            let backend = &self.servers[at];
            backend.in_flight.fetch_add(1, Ordering::SeqCst);
            if backend.ready.load(Ordering::SeqCst) {
                if !self.call(backend, kept.entry(at).or_insert(None)).await {
                    self.failed.fetch_add(1, Ordering::SeqCst);
                }
                self.calls.fetch_add(1, Ordering::SeqCst);
            } else {
                kept.remove(&at);
            }
            backend.in_flight.fetch_sub(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
        }
    }

    async fn call(&self, backend: &Backend, kept: &mut Option<TcpStream>) -> bool {
        let mut stream = match kept.take() {
            Some(stream) => stream,
            None => match TcpStream::connect(backend.address).await {
                Ok(stream) => stream,
                Err(_) => return false,
            },
        };
        let asked = async {
            stream.write_all(post("", "[1]").as_bytes()).await.ok()?;
            crate::stub::try_read_until(&mut stream, "\r\n\r\n[1]").await
        };
        let Some(answer) = asked.await else { return false };
        if !answer.contains("connection: close\r\n") {
            *kept = Some(stream);
        }
        answer.starts_with("HTTP/1.1 200 ")
    }

    async fn until_more_calls(&self, more: usize) {
        let before = self.calls.load(Ordering::SeqCst);
        until(|| self.calls.load(Ordering::SeqCst) >= before + more).await;
    }
}

#[tokio::test]
async fn servers_that_restart_in_turn_behind_a_balancer_lose_no_call() {
    let mut served = Vec::new();
    for _ in 0..3 {
        served.push(Some(serve(config()).await));
    }
    let backend = |served: &Option<Served>| Backend {
        address: served.as_ref().unwrap().address,
        ready: AtomicBool::new(false),
        in_flight: AtomicUsize::new(0),
    };
    let balancer = Arc::new(Balancer {
        servers: served.iter().map(backend).collect(),
        next: AtomicUsize::new(0),
        calls: AtomicUsize::new(0),
        failed: AtomicUsize::new(0),
        ends: AtomicBool::new(false),
    });
    let mut tasks = Vec::new();
    for at in 0..served.len() {
        let balancer = Arc::clone(&balancer);
        tasks.push(tokio::spawn(async move { balancer.check_forever(at).await }));
    }
    for _ in 0..4 {
        let balancer = Arc::clone(&balancer);
        tasks.push(tokio::spawn(async move { balancer.call_forever().await }));
    }
    for at in [0, 1, 2, 0] {
        let Backend { address, ready, in_flight } = &balancer.servers[at];
        until(|| balancer.servers.iter().all(|server| server.ready.load(Ordering::SeqCst))).await;
        balancer.until_more_calls(50).await;
        let (stop, done) = served[at].take().unwrap().announce_end();
        until(|| !ready.load(Ordering::SeqCst)).await;
        until(|| in_flight.load(Ordering::SeqCst) == 0).await;
        stop.send(()).unwrap();
        done.await.unwrap();
        balancer.until_more_calls(50).await;
        served[at] = Some(serve(EdgeConfig { listen: *address, ..config() }).await);
    }
    balancer.until_more_calls(50).await;
    balancer.ends.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    let (calls, failed) = (balancer.calls.load(Ordering::SeqCst), balancer.failed.load(Ordering::SeqCst));
    assert_eq!(failed, 0, "of {calls} calls");
}
