//! Requests through trusted proxies: the client's address, and refusals that count for the client alone.

use headrace_edge::{AddressHeader, EdgeConfig, TrustedProxies};

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
