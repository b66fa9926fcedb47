//! Limits on bytes, time and connections.

use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use headrace_call_api::AbortReason;
use headrace_edge::EdgeConfig;

use crate::stub::{
    self, ENDLESS, NEVER, PATIENCE, SILENT, Served, assert_status, config, post, read_until, rest, serve,
    until,
};

const SHORT: Duration = Duration::from_millis(150);

#[tokio::test]
async fn a_body_over_the_limit_is_refused_before_it_is_read() {
    let mut config = config();
    config.max_body_bytes = 1_000;
    let served = serve(config).await;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer good\r\n";
    for (lines, sent) in [
        ("content-length: 1001\r\n", String::new()),
        ("content-length: 18446744073709551614\r\n", String::new()),
        ("content-length: 1001\r\nexpect: 100-continue\r\n", String::new()),
        ("content-length: 100000\r\n", "x".repeat(50_000)),
        ("transfer-encoding: chunked\r\n", format!("3e9\r\n{}\r\n", "x".repeat(1_001))),
    ] {
        let answer = served.raw(&format!("{head}{lines}\r\n{sent}")).await;
        if !lines.contains("18446744073709551614") {
            assert_status(&answer, 413);
            assert!(answer.contains("connection: close\r\n"), "{answer}");
        }
        assert!(!answer.contains("100 Continue"), "{answer}");
    }
    assert_status(&served.raw(&post("connection: close\r\n", &"1".repeat(1_000))).await, 200);
}

/// Sends a request but for its last byte, so that its body takes memory and `other` is refused. Returns its connection and the refusal.
/// A busy machine may read `other` first. Then both are sent again.
async fn half_sent(served: &Served, request: &str, other: &str, status: u16) -> (TcpStream, String) {
    let began = Instant::now();
    loop {
        let mut stream = served.connect().await;
        let _ = stream.write_all(request.get(..request.len() - 1).unwrap().as_bytes()).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let answer = served.raw(other).await;
        if !answer.starts_with("HTTP/1.1 200 ") {
            assert_status(&answer, status);
            return (stream, answer);
        }
        assert!(began.elapsed() < PATIENCE, "it is never refused");
    }
}

#[tokio::test]
async fn memory_for_bodies_is_bounded_over_all_connections() {
    let mut config = config();
    config.max_body_bytes = 100_000;
    config.memory_bytes = 250_000;
    config.memory_bytes_per_key = 140_000;
    let served = serve(config).await;
    let whole = post("connection: close\r\n", &"1".repeat(100_000));
    let other = whole.replace("Bearer good", "Bearer other");
    let (mut first, answer) = half_sent(&served, &whole, &whole, 429).await;
    assert!(answer.contains("MemoryOfKey { limit_bytes: 140000, observed_bytes: "), "{answer}");
    let (mut second, _) = half_sent(&served, &other, &other.replace("100000", "99999"), 429).await;
    drop(first.write_all(b"1").await);
    assert_status(&rest(&mut first).await, 200);
    assert_status(&served.raw(&whole).await, 200);
    second.write_all(b"1").await.unwrap();
    assert_status(&rest(&mut second).await, 200);
    assert_status(&served.raw(&other).await, 200);
}

#[tokio::test]
async fn the_memory_of_all_keys_together_is_bounded() {
    let mut config = config();
    config.max_body_bytes = 100_000;
    config.memory_bytes = 150_000;
    config.memory_bytes_per_key = 150_000;
    let served = serve(config).await;
    let whole = post("connection: close\r\n", &"1".repeat(100_000));
    let other = whole.replace("Bearer good", "Bearer other");
    let (mut first, _) = half_sent(&served, &whole, &other, 503).await;
    first.write_all(b"1").await.unwrap();
    assert_status(&rest(&mut first).await, 200);
}

#[tokio::test]
async fn who_is_not_known_is_answered_on_the_head_and_its_body_left_unread() {
    let mut config = config();
    config.max_body_bytes = 100_000;
    config.memory_bytes = 150_000;
    let served = serve(config).await;
    let unknown = post("", &"1".repeat(100_000)).replace("Bearer good", "Bearer bad");
    let head = unknown.find("\r\n\r\n").unwrap() + 4;
    for sent in [head, head + 1, unknown.len() - 1, unknown.len()] {
        let answer = served.raw(unknown.get(..sent).unwrap()).await;
        assert_status(&answer, 401);
        assert!(answer.contains("connection: close\r\n"), "{answer}");
    }
    let asks = unknown.replace("host: a\r\n", "host: a\r\nexpect: 100-continue\r\n");
    let answer = served.raw(asks.get(..asks.find("\r\n\r\n").unwrap() + 4).unwrap()).await;
    assert_status(&answer, 401);
    // Bodies that this peer left unfinished use no memory, so another caller's body still fits.
    let mut half = Vec::new();
    for _ in 0..20 {
        let mut stream = served.connect().await;
        stream.write_all(unknown.get(..unknown.len() - 1).unwrap().as_bytes()).await.unwrap();
        half.push(stream);
    }
    assert_status(&served.raw(&post("connection: close\r\n", &"1".repeat(100_000))).await, 200);
}

#[tokio::test]
async fn encodings_and_media_other_than_plain_json_are_refused() {
    let served = serve(config()).await;
    for (lines, status) in [
        ("content-encoding: gzip\r\n", 415),
        ("content-encoding: identity, gzip, gzip\r\n", 415),
        ("content-encoding: identity\r\n", 200),
        ("content-type: application/x-www-form-urlencoded\r\n", 415),
        ("content-type: application/json; charset=utf-8\r\n", 200),
    ] {
        assert_status(&served.raw(&post(&format!("{lines}connection: close\r\n"), "{}")).await, status);
    }
}

#[tokio::test]
async fn slow_headers_get_408_and_the_connection_closes() {
    let mut config = config();
    config.header_timeout = SHORT;
    let served = serve(config).await;
    for part in ["P", "POST /v1/comp", "GET /v1/models HTTP/1.1\r\nhost: a\r\n"] {
        let mut stream = served.connect().await;
        let started = Instant::now();
        stream.write_all(part.as_bytes()).await.unwrap();
        let answer = rest(&mut stream).await;
        assert!(started.elapsed() >= SHORT, "{:?}", started.elapsed());
        // A single `P` may still be the start of HTTP/2.
        if part.len() > 1 {
            assert_status(&answer, 408);
            assert!(answer.contains("connection: close\r\n"), "{answer}");
        }
    }
    // Sending byte by byte does not extend the limit.
    let mut stream = served.connect().await;
    let started = Instant::now();
    for byte in "GET /v1/models HTTP/1.1\r\nx: ".bytes().chain(std::iter::repeat(b'y')) {
        if stream.write_all(&[byte]).await.is_err() {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "still open");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    rest(&mut stream).await;
    // The head of a second request on a live connection has the same limit.
    let served = serve(EdgeConfig { header_timeout: Duration::from_secs(1), ..stub::config() }).await;
    let mut stream = served.connect().await;
    stream.write_all(post("", "{}").as_bytes()).await.unwrap();
    read_until(&mut stream, "\r\n\r\n{}").await;
    stream.write_all(b"GET /v1/mod").await.unwrap();
    assert_status(&rest(&mut stream).await, 408);
}

#[tokio::test]
async fn silent_and_idle_connections_are_closed() {
    let mut config = config();
    config.header_timeout = SHORT;
    let served = serve(config.clone()).await;
    let started = Instant::now();
    assert_eq!(rest(&mut served.connect().await).await, "");
    assert!(started.elapsed() >= SHORT, "{:?}", started.elapsed());
    // A connection that is idle after a call has the other timeout.
    config.header_timeout = NEVER;
    config.idle_timeout = SHORT * 3;
    let served = serve(config).await;
    let started = Instant::now();
    assert_status(&served.raw(&post("", "{}")).await, 200);
    assert!(started.elapsed() >= SHORT * 3, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_connection_that_was_only_refused_is_not_kept_as_long_as_one_with_a_good_key() {
    let mut config = config();
    config.header_timeout = SHORT;
    let served = serve(config.clone()).await;
    let bad = post("", "{}").replace("Bearer good", "Bearer bad");
    let nowhere = "GET /nowhere HTTP/1.1\r\nhost: a\r\n\r\n";
    for refused in [bad.replace("content-length: 2\r\n", "").replace("{}", "").as_str(), nowhere] {
        let started = Instant::now();
        served.raw(refused).await;
        assert!(started.elapsed() >= SHORT, "{:?}", started.elapsed());
    }
    config.header_timeout = Duration::from_secs(1);
    let served = serve(config).await;
    let mut known = served.connect().await;
    known.write_all(nowhere.as_bytes()).await.unwrap();
    read_until(&mut known, "}").await;
    known.write_all(post("", "{}").as_bytes()).await.unwrap();
    read_until(&mut known, "\r\n\r\n{}").await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    known.write_all(post("connection: close\r\n", "{}").as_bytes()).await.unwrap();
    assert_status(&rest(&mut known).await, 200);
}

#[tokio::test]
async fn a_slow_body_gets_408_and_the_connection_closes() {
    let mut config = config();
    config.body_progress_timeout = SHORT;
    config.body_total_timeout = SHORT * 3;
    let served = serve(config).await;
    let started = Instant::now();
    let answer = served.raw(post("", "{234567890").get(..91).unwrap()).await;
    assert_status(&answer, 408);
    assert!(answer.contains("connection: close\r\n"), "{answer}");
    assert!(started.elapsed() >= SHORT);

    // Sending byte by byte ends at the limit for the whole body.
    let mut stream = served.connect().await;
    let started = Instant::now();
    stream
        .write_all(post("", "").replace("content-length: 0", "content-length: 10000").as_bytes())
        .await
        .unwrap();
    while started.elapsed() < SHORT * 4 && stream.write_all(b"1").await.is_ok() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_status(&rest(&mut stream).await, 408);
}

#[tokio::test]
async fn a_reader_that_stops_reading_is_cut_off() {
    let mut config = config();
    config.write_timeout = SHORT;
    config.header_timeout = SHORT;
    let served = serve(config).await;
    let mut stream = served.connect().await;
    stream.write_all(post("", ENDLESS).as_bytes()).await.unwrap();
    until(|| served.stub.calls.load(std::sync::atomic::Ordering::SeqCst) == 1).await;
    served.stub.until_in_flight(0).await;
    assert_eq!(
        *served.stub.abort_reason.lock().unwrap(),
        Some(AbortReason::ReaderStalled),
        "it has not gone away"
    );
    drop(stream);
}

#[tokio::test]
async fn a_front_can_see_for_how_long_a_reader_has_taken_nothing() {
    let served = serve(config()).await;
    let started = Instant::now();
    let mut stream = served.connect().await;
    stream.write_all(post("", ENDLESS).as_bytes()).await.unwrap();
    until(|| served.stub.outlet.lock().unwrap().is_some()).await;
    let outlet = served.stub.outlet.lock().unwrap().clone().unwrap();
    until(|| outlet.blocked_for() >= SHORT).await;
    let blocked = outlet.blocked_for();
    assert!(blocked <= started.elapsed(), "{blocked:?}");
    // A few bytes read do not make the kernel accept more, but all waiting bytes do.
    let mut taken = vec![0; 16 << 20];
    let began = Instant::now();
    while outlet.blocked_for() >= SHORT {
        assert!(began.elapsed() < PATIENCE, "{:?}", outlet.blocked_for());
        tokio::io::AsyncReadExt::read_exact(&mut stream, &mut taken).await.unwrap();
    }
    drop(stream);
    served.stub.until_in_flight(0).await;
}

#[tokio::test]
async fn a_reader_that_goes_away_is_not_said_to_have_stalled() {
    let served = serve(config()).await;
    let mut stream = served.connect().await;
    stream.write_all(post("", ENDLESS).as_bytes()).await.unwrap();
    served.stub.until_in_flight(1).await;
    drop(stream);
    served.stub.until_in_flight(0).await;
    assert_eq!(*served.stub.abort_reason.lock().unwrap(), None);
}

#[tokio::test]
async fn connections_over_the_limit_get_503_and_places_come_back() {
    let mut config = config();
    config.max_connections = 2;
    let served = serve(config).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = served.connect().await;
        stream.write_all(post("", SILENT).as_bytes()).await.unwrap();
        read_until(&mut stream, "data: 1").await;
        held.push(stream);
    }
    let answer = served.raw(&post("", "{}")).await;
    assert_status(&answer, 503);
    assert!(
        answer.contains("\"code\":\"too_many_connections\"") && answer.contains("connection: close\r\n"),
        "{answer}"
    );
    drop(held.pop());
    let address = served.address;
    let began = Instant::now();
    while !served.raw(&post("connection: close\r\n", "{}")).await.starts_with("HTTP/1.1 200 ") {
        assert!(began.elapsed() < PATIENCE, "the place never comes back");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let report = served.stop();
    until(|| report.is_finished()).await;
    assert!(report.await.unwrap().connections_refused >= 1);
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn headers_over_the_limit_get_431() {
    let served = serve(config()).await;
    for length in [17_000, 200_000] {
        let request = format!("GET /v1/models HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "y".repeat(length));
        let answer = served.raw(&request).await;
        assert_status(&answer, 431);
        assert!(answer.contains("may have 16384 bytes") && answer.contains("than 100 headers"), "{answer}");
    }
    let many: String = (0..200).map(|i| format!("x{i}: y\r\n")).collect();
    let answer = served.raw(&format!("GET /v1/models HTTP/1.1\r\n{many}\r\n")).await;
    assert_status(&answer, 431);
    assert!(answer.contains("\"code\":\"head_too_large\""), "{answer}");
}

#[tokio::test]
async fn when_all_places_are_taken_the_longest_idle_gives_way_and_no_call_in_flight() {
    let mut config = config();
    config.max_connections = 4;
    config.max_connections_per_peer = 4;
    let served = serve(config).await;
    let mut busy = served.connect().await;
    busy.write_all(post("", SILENT).as_bytes()).await.unwrap();
    read_until(&mut busy, "data: 1").await;
    let mut idle = Vec::new();
    for _ in 0..3 {
        let mut stream = served.connect().await;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        read_until(&mut stream, "alive").await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        idle.push(stream);
    }
    for _ in 0..20 {
        assert_status(&served.raw(&post("connection: close\r\n", "{}")).await, 200);
    }
    assert_eq!(rest(idle.first_mut().unwrap()).await, "", "it was idle longest");
    assert_eq!(served.stub.in_flight.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_new_connection_that_gives_way_is_answered_if_its_request_is_here() {
    let mut config = config();
    config.max_connections = 1;
    config.max_connections_per_peer = 1;
    let served = serve(config).await;
    // All requests are in the kernel before the server's tasks, which share this thread, see a connection.
    let connect = |_| {
        let mut stream = std::net::TcpStream::connect(served.address).unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        std::io::Write::write_all(&mut stream, request).unwrap();
        stream.set_nonblocking(true).unwrap();
        tokio::net::TcpStream::from_std(stream).unwrap()
    };
    let mut streams: Vec<_> = (0..6).map(connect).collect();
    for stream in &mut streams {
        assert_status(&rest(stream).await, 200);
    }
}

#[tokio::test]
async fn a_peer_that_is_refused_too_often_is_cut_short_and_good_keys_of_its_address_are_not() {
    let mut config = config();
    config.max_refusals_per_peer = 5;
    let served = serve(config).await;
    let bad = post("", "{}").replace("Bearer good", "Bearer bad");
    for _ in 0..3 {
        assert_status(&served.raw(&bad).await, 401);
    }
    assert_status(&served.raw("GET /nowhere HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await, 404);
    for _ in 0..2 {
        assert_status(&served.raw(&bad).await, 401);
    }
    for bad in [
        bad.as_str(),
        "GET /nowhere HTTP/1.1\r\nhost: a\r\n\r\n",
        "PUT /v1/models HTTP/1.1\r\nhost: a\r\n\r\n",
    ] {
        let answer = served.raw(bad).await;
        assert_status(&answer, 429);
        for part in ["too_many_refusals", "connection: close\r\n", "retry-after: 60\r\n"] {
            assert!(answer.contains(part), "{part}: {answer}");
        }
    }
    assert_status(&served.raw(&post("connection: close\r\n", "{}")).await, 200);
    assert_status(&served.raw("GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await, 200);
}

#[tokio::test]
async fn a_body_in_crumbs_is_refused_and_one_in_pieces_is_not() {
    let served = serve(config()).await;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer good\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    let chunked = |pieces: usize, bytes: usize| {
        let piece = format!("{bytes:x}\r\n{}\r\n", "1".repeat(bytes));
        format!("{head}{}0\r\n\r\n", piece.repeat(pieces))
    };
    for (pieces, bytes, status) in [(4_000, 1, 200), (5_000, 1, 400), (5_000, 300, 200), (100_000, 16, 400)] {
        let mut stream = served.connect().await;
        let request = chunked(pieces, bytes);
        let (mut from, mut to) = stream.split();
        let sent = async {
            // The server may have answered and closed before everything was sent.
            let _ = to.write_all(request.as_bytes()).await;
        };
        let mut answer = Vec::new();
        let read = tokio::io::AsyncReadExt::read_to_end(&mut from, &mut answer);
        let (_, _) = tokio::join!(sent, read);
        assert_status(&String::from_utf8_lossy(&answer), status);
    }
}

#[tokio::test]
async fn strangers_who_read_nothing_leave_health_to_operators() {
    let mut config = config();
    config.metrics_listen = Some(([127, 0, 0, 1], 0).into());
    let served = serve(config).await;
    let metrics = served.metrics.unwrap();
    let pages = "GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n".repeat(2_000);
    let mut strangers = Vec::new();
    for _ in 0..40 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4 * 1024).unwrap();
        let mut stranger = socket.connect(metrics).await.unwrap();
        // The server stops reading when its answers are not read.
        let _ = tokio::time::timeout(Duration::from_millis(50), stranger.write_all(pages.as_bytes())).await;
        strangers.push(stranger);
    }
    for _ in 0..3 {
        let mut operator = tokio::net::TcpStream::connect(metrics).await.unwrap();
        operator.write_all(b"GET /readyz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
        assert_status(&rest(&mut operator).await, 200);
    }
    drop(strangers);
}
