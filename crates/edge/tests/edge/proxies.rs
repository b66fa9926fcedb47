//! Requests through trusted proxies: the client's address, and refusals that count for the client alone.

use headrace_edge::{AddressHeader, EdgeConfig, TrustedProxies};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::stub::{Served, config, serve};

fn behind(networks: &str) -> EdgeConfig {
    let trusted_proxies = TrustedProxies::parse(networks, AddressHeader::XForwardedFor).unwrap();
    EdgeConfig { trusted_proxies, ..config() }
}

/// Sends a call on a connection of its own. Returns the status.
async fn call(served: &Served, key: &str, forwarded: &str) -> u16 {
    let body = "\"whole\"";
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n{forwarded}\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let answer = served.raw(&request).await;
    answer.get(9..12).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer}"))
}

fn peer(served: &Served) -> String {
    served.stub.peer.lock().unwrap().unwrap().ip().to_string()
}

#[tokio::test]
async fn the_client_is_named_by_trusted_proxies_alone() {
    for (networks, forwarded, expected) in [
        ("127.0.0.0/8", "x-forwarded-for: 203.0.113.7\r\n", "203.0.113.7"),
        ("127.0.0.0/8", "x-forwarded-for: 198.51.100.1, 203.0.113.7\r\n", "203.0.113.7"),
        ("127.0.0.0/8", "x-forwarded-for: 198.51.100.1\r\nX-Forwarded-For: 203.0.113.7\r\n", "203.0.113.7"),
        ("127.0.0.0/8", "forwarded: for=203.0.113.7\r\n", "127.0.0.1"),
        ("127.0.0.0/8", "x-forwarded-for: nonsense\r\n", "127.0.0.1"),
        ("127.0.0.0/8", "", "127.0.0.1"),
        ("10.0.0.0/8", "x-forwarded-for: 203.0.113.7\r\n", "127.0.0.1"),
        ("", "x-forwarded-for: 203.0.113.7\r\n", "127.0.0.1"),
    ] {
        let served = serve(behind(networks)).await;
        assert_eq!(call(&served, "good", forwarded).await, 200, "{networks} {forwarded}");
        assert_eq!(peer(&served), expected, "{networks} {forwarded}");
    }
}

#[tokio::test]
async fn refusals_of_one_client_behind_a_proxy_do_not_count_for_another() {
    let served = serve(EdgeConfig { max_refusals_per_peer: 4, ..behind("127.0.0.1") }).await;
    let (bad, fine) = ("x-forwarded-for: 203.0.113.7\r\n", "x-forwarded-for: 203.0.113.8\r\n");
    let mut statuses = Vec::new();
    for _ in 0..8 {
        statuses.push(call(&served, "wrong", bad).await);
    }
    assert_eq!((statuses[0], statuses[7]), (401, 429), "{statuses:?}");
    assert_eq!(call(&served, "wrong", fine).await, 401, "another client has its own allowance");
    assert_eq!(call(&served, "good", bad).await, 200, "a valid key is always served");
    // What a client claims left of its address is no way out.
    let forged = "x-forwarded-for: 198.51.100.9, 203.0.113.7\r\n";
    assert_eq!(call(&served, "wrong", forged).await, 429);
}

/// A PROXY header of version 2 that names an IPv4 client.
fn proxy_header(client: [u8; 4]) -> Vec<u8> {
    let start = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c";
    [&start[..], &client, &[10, 0, 0, 1], &51_000_u16.to_be_bytes(), &443_u16.to_be_bytes()].concat()
}

fn with_proxy_protocol(networks: &str) -> EdgeConfig {
    EdgeConfig { proxy_protocol: true, ..behind(networks) }
}

/// Sends a header and a call on a connection of its own. Returns the status, or `None` if the connection was closed without an
/// answer.
async fn call_after(served: &Served, start: &[u8], key: &str, forwarded: &str) -> Option<u16> {
    let body = "\"whole\"";
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n{forwarded}\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut stream = served.connect().await;
    let _ = stream.write_all(&[start, request.as_bytes()].concat()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    answer.get(9..12).map(|status| status.parse().unwrap_or_else(|_| panic!("{answer}")))
}

#[tokio::test]
async fn a_proxy_header_names_the_client_of_a_connection() {
    let served = serve(with_proxy_protocol("127.0.0.0/8")).await;
    let header = proxy_header([203, 0, 113, 7]);
    assert_eq!(call_after(&served, &header, "good", "").await, Some(200));
    assert_eq!(peer(&served), "203.0.113.7");
    // A header of HTTP from that client decides nothing, because the client is no trusted proxy.
    let forged = "x-forwarded-for: 198.51.100.1\r\n";
    assert_eq!(call_after(&served, &header, "good", forged).await, Some(200));
    assert_eq!(peer(&served), "203.0.113.7");
    // A chain: the client of the PROXY header is a trusted proxy that speaks HTTP.
    assert_eq!(call_after(&served, &proxy_header([127, 0, 0, 9]), "good", forged).await, Some(200));
    assert_eq!(peer(&served), "198.51.100.1");
    // A health check of the proxy itself.
    assert_eq!(call_after(&served, b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00", "good", "").await, Some(200));
    assert_eq!(peer(&served), "127.0.0.1");
}

#[tokio::test]
async fn a_connection_without_a_valid_proxy_header_or_of_another_sender_is_closed() {
    let header = proxy_header([203, 0, 113, 7]);
    let served = serve(with_proxy_protocol("127.0.0.0/8")).await;
    for start in [&b""[..], b"PROXY TCP4 203.0.113.7 10.0.0.1 1 2\r\n", &header[1..]] {
        assert_eq!(call_after(&served, start, "good", "").await, None, "{start:?}");
    }
    let stranger = serve(with_proxy_protocol("10.0.0.0/8")).await;
    assert_eq!(call_after(&stranger, &header, "good", "").await, None);
    // Without the setting, the header is no request.
    let off = serve(behind("127.0.0.0/8")).await;
    assert_eq!(call_after(&off, &header, "good", "").await, Some(400));
    // A setting that lets no sender in is refused.
    let wrong = EdgeConfig { proxy_protocol: true, ..config() };
    assert!(wrong.check().unwrap_err().to_string().contains("trusted_proxies"));
}

#[tokio::test]
async fn refusals_of_one_client_of_a_proxy_protocol_do_not_count_for_another() {
    let served = serve(EdgeConfig { max_refusals_per_peer: 4, ..with_proxy_protocol("127.0.0.1") }).await;
    let (bad, fine) = (proxy_header([203, 0, 113, 7]), proxy_header([203, 0, 113, 8]));
    let mut statuses = Vec::new();
    for _ in 0..8 {
        statuses.push(call_after(&served, &bad, "wrong", "").await);
    }
    assert_eq!((statuses[0], statuses[7]), (Some(401), Some(429)), "{statuses:?}");
    assert_eq!(
        call_after(&served, &fine, "wrong", "").await,
        Some(401),
        "another client has its own allowance"
    );
}
