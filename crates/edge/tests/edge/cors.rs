//! Requests from pages of other origins, as browsers send them by the Fetch standard.

use headrace_edge::{AllowedOrigins, EdgeConfig};

use crate::stub::{THREE, assert_status, config, post, serve};

const PAGE: &str = "https://app.example.com";

fn with(origins: &str) -> EdgeConfig {
    let mut config = config();
    config.origins = AllowedOrigins::parse(origins).unwrap();
    config
}

fn preflight(origin: &str, path: &str, more: &str) -> String {
    format!("OPTIONS {path} HTTP/1.1\r\nhost: a\r\norigin: {origin}\r\nconnection: close\r\n{more}\r\n")
}

const ASKS: &str = "access-control-request-method: POST\r\naccess-control-request-headers: authorization,content-type,x-stainless-lang\r\n";

#[tokio::test]
async fn nothing_is_allowed_unless_it_is_configured() {
    let served = serve(config()).await;
    let answer = served.raw(&preflight(PAGE, "/v1/messages", ASKS)).await;
    assert_status(&answer, 405);
    assert!(!answer.contains("access-control"), "{answer}");
    let answer = served.raw(&post(&format!("origin: {PAGE}\r\nconnection: close\r\n"), "1")).await;
    assert_status(&answer, 200);
    assert!(!answer.contains("access-control") && !answer.contains("vary"), "{answer}");
}

#[tokio::test]
async fn a_preflight_of_an_allowed_origin_is_told_what_it_may_send() {
    let served = serve(with(&format!("http://localhost:5173, {PAGE}"))).await;
    for origin in [PAGE, "http://localhost:5173"] {
        let answer = served.raw(&preflight(origin, "/v1/messages", ASKS)).await;
        assert_status(&answer, 204);
        for says in [
            format!("access-control-allow-origin: {origin}\r\n"),
            "access-control-allow-methods: POST\r\n".to_owned(),
            "access-control-allow-headers: authorization, content-type, x-stainless-lang\r\n".to_owned(),
            "access-control-max-age: 600\r\n".to_owned(),
            "vary: origin".to_owned(),
        ] {
            assert!(answer.contains(&says), "{says} in {answer}");
        }
        assert!(!answer.contains("allow-credentials"), "{answer}");
    }
    // A preflight needs no key and is not authenticated, because browsers send none with it.
    let answer =
        served.raw(&preflight(PAGE, "/v1/files/x", "access-control-request-method: DELETE\r\n")).await;
    assert_status(&answer, 204);
    assert!(answer.contains("access-control-allow-methods: GET, HEAD, POST, DELETE\r\n"), "{answer}");
}

#[tokio::test]
async fn origins_are_exact() {
    let served = serve(with(PAGE)).await;
    for origin in [
        "https://app.example.com.evil.example",
        "https://app.example.com:8443",
        "http://app.example.com",
        "https://example.com",
        "https://evil-app.example.com",
        "HTTPS://APP.EXAMPLE.COM",
        "null",
        "*",
        "",
    ] {
        let answer = served.raw(&preflight(origin, "/v1/messages", ASKS)).await;
        assert_status(&answer, 405);
        assert!(!answer.contains("access-control-allow"), "{origin}: {answer}");
        let answer = served.raw(&post(&format!("origin: {origin}\r\nconnection: close\r\n"), "1")).await;
        assert!(!answer.contains("access-control-allow"), "{origin}: {answer}");
        assert!(answer.contains("vary: origin"), "a cache must not hand it to another origin: {answer}");
    }
    for (first, second) in [("https://evil.example", PAGE), (PAGE, "https://evil.example")] {
        let twice = format!("access-control-request-method: POST\r\norigin: {second}\r\n");
        let answer = served.raw(&preflight(first, "/v1/messages", &twice)).await;
        assert!(!answer.contains("access-control-allow"), "two origins are none: {answer}");
    }
}

#[tokio::test]
async fn answers_can_be_read_by_the_page_whatever_became_of_the_call() {
    let served = serve(with(PAGE)).await;
    let allowed = format!("access-control-allow-origin: {PAGE}\r\n");
    let lines = format!("origin: {PAGE}\r\nconnection: close\r\n");
    let bad_key = format!(
        "POST /v1/messages HTTP/1.1\r\nhost: a\r\nx-api-key: bad\r\n{lines}content-length: 1\r\n\r\n1"
    );
    let nowhere = format!("GET /nowhere HTTP/1.1\r\nhost: a\r\n{lines}\r\n");
    for (request, status) in
        [(post(&lines, "1"), 200), (post(&lines, THREE), 200), (bad_key, 401), (nowhere, 404)]
    {
        let answer = served.raw(&request).await;
        assert_status(&answer, status);
        assert!(
            answer.contains(&allowed) && answer.contains("access-control-expose-headers: x-request-id"),
            "{answer}"
        );
        assert!(!answer.contains("allow-credentials"), "{answer}");
    }
}

#[tokio::test]
async fn what_is_no_preflight_is_refused_as_ever_and_names_that_are_none_are_not_told_back() {
    let served = serve(with(PAGE)).await;
    let answer = served.raw(&preflight(PAGE, "/v1/messages", "")).await;
    assert_status(&answer, 405);
    let answer = served.raw(&preflight(PAGE, "/nowhere", ASKS)).await;
    assert_status(&answer, 404);
    let odd = "access-control-request-method: POST\r\naccess-control-request-headers: a(b), <x>\r\n";
    let answer = served.raw(&preflight(PAGE, "/v1/messages", odd)).await;
    assert_status(&answer, 204);
    assert!(!answer.contains("allow-headers") && !answer.contains("<x>"), "{answer}");
}
