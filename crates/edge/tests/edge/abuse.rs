//! Requests that state their end in two ways, and other input that is not HTTP.

use std::sync::atomic::Ordering;

use crate::stub::{assert_status, config, post, serve, status_lines};

#[tokio::test]
async fn an_ambiguous_length_is_400_and_the_connection_closes() {
    let served = serve(config()).await;
    let good = "authorization: Bearer good\r\nhost: a\r\n";
    let second = "GET /v1/models HTTP/1.1\r\nhost: smuggled\r\n\r\n";
    for (version, lines, body) in [
        ("1.1", "content-length: 5\r\ntransfer-encoding: chunked\r\n", "0\r\n\r\n"),
        ("1.1", "transfer-encoding: chunked\r\ncontent-length: 5\r\n", "0\r\n\r\n"),
        ("1.1", "content-length: 2\r\ncontent-length: 2\r\n", "{}"),
        ("1.1", "content-length: 2\r\ncontent-length: 3\r\n", "{}"),
        ("1.1", "content-length: 2, 2\r\n", "{}"),
        ("1.1", "transfer-encoding: chunked, chunked\r\n", "0\r\n\r\n"),
        ("1.1", "transfer-encoding: identity, chunked\r\n", "0\r\n\r\n"),
        ("1.1", "content-length: -2\r\n", "{}"),
        ("1.1", "content-length: +2\r\n", "{}"),
        ("1.1", "transfer-encoding: gzip, chunked\r\ncontent-length: 2\r\n", "0\r\n\r\n"),
        ("1.1", "transfer-encoding: chunked, gzip\r\n", "0\r\n\r\n"),
        ("1.1", "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", "0\r\n\r\n"),
        ("1.1", "transfer-encoding : chunked\r\n", "0\r\n\r\n"),
        ("1.0", "transfer-encoding: chunked\r\n", "0\r\n\r\n"),
    ] {
        let request = format!("POST /v1/completions HTTP/{version}\r\n{good}{lines}\r\n{body}{second}");
        let answer = served.raw(&request).await;
        assert!(answer.contains(" 400 Bad Request\r\n"), "{lines:?}: {answer:?}");
        assert_eq!(status_lines(&answer).count(), 1, "{lines:?}: {answer:?}");
    }
    assert_eq!(served.stub.calls.load(Ordering::SeqCst), 0);

    // Also after good requests, for any content of their bodies.
    let first = post("", "content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n");
    let bad = format!(
        "POST /v1/completions HTTP/1.1\r\n{good}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let answer = served.raw(&format!("{first}{bad}0\r\n\r\n{second}")).await;
    assert_status(&answer, 200);
    assert_eq!(answer.matches(" 400 Bad Request\r\n").count(), 1, "{answer:?}");
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 2, "{answer:?}");
}

#[tokio::test]
async fn an_upgrade_is_not_taken_and_nothing_that_follows_it_is_read() {
    let served = serve(config()).await;
    let upgrade = post("connection: upgrade\r\nupgrade: websocket\r\n", "1");
    let answer = served.raw(&upgrade).await;
    assert_status(&answer, 200);
    assert!(answer.contains("connection: close\r\n"), "{answer}");
    let answer = served.raw(&format!("{upgrade}{}", post("connection: close\r\n", "2"))).await;
    assert_status(&answer, 400);
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    let answer = served.raw("CONNECT a:1 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert_status(&answer, 404);
}

#[tokio::test]
async fn a_request_names_one_host() {
    let served = serve(config()).await;
    for (version, hosts, status) in [
        ("1.1", "host: a\r\n", 200),
        ("1.1", "", 400),
        ("1.1", "host: a\r\nhost: b\r\n", 400),
        ("1.0", "", 200),
        ("1.0", "host: a\r\nhost: a\r\n", 400),
    ] {
        let head = format!("GET /healthz HTTP/{version}\r\n{hosts}connection: close\r\n\r\n");
        let answer = served.raw(&head).await;
        assert!(answer.contains(&format!(" {status} ")), "{version} {hosts:?}: {answer}");
    }
    let pipelined = "GET /healthz HTTP/1.1\r\n\r\nGET /healthz HTTP/1.1\r\nhost: a\r\n\r\n";
    assert_eq!(served.raw(pipelined).await.matches("HTTP/1.1 ").count(), 1);
}

#[tokio::test]
async fn noise_is_400_or_nothing() {
    let served = serve(config()).await;
    for noise in [
        "\0\0\0\0",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "\u{16}\u{3}\u{1}\0\u{5}hello\n",
        "GET / HTTP/1.1\r\n: x\r\n\r\n",
    ] {
        let answer = served.raw(noise).await;
        assert!(answer.is_empty() || answer.contains(" 400 "), "{noise:?}: {answer:?}");
    }
    assert_eq!(served.stub.calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_head_that_is_none_is_refused_in_our_words_wherever_it_stands() {
    let served = serve(config()).await;
    let (host, good) = ("host: a\r\n", "authorization: Bearer good\r\n");
    let long = format!("GET / HTTP/1.1\r\n{host}x: {}\r\n\r\n", "y".repeat(17_000));
    for (head, status, says) in [
        ("\0\0\0\0", 400, "an HTTP/1.1 request: invalid HTTP method parsed. "),
        ("GET /a b HTTP/1.1\r\n\r\n", 400, "an HTTP/1.1 request: invalid HTTP version parsed. "),
        ("GET / HTTP/9.9\r\n\r\n", 400, "an HTTP/1.1 request: invalid HTTP version parsed. "),
        (
            "GET / HTTP/1.1\r\nhost: a\r\n: x\r\n\r\n",
            400,
            "an HTTP/1.1 request: invalid HTTP header parsed. ",
        ),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n",
            400,
            "\"code\":\"ambiguous_length\"",
        ),
        (&long, 431, "may have 16384 bytes (`server.max_header`), over HTTP/1.1 in no more than 100 headers"),
    ] {
        let first = post("", "{}");
        let asks = format!(
            "POST /v1/completions HTTP/1.1\r\n{host}{good}expect: 100-continue\r\ncontent-length: 2\r\n\r\n{{}}"
        );
        for (before, answers) in [("", 0), (&first, 1), (&format!("{first}{asks}"), 2)] {
            let answer = served.raw(&format!("{before}{head}")).await;
            let last = status_lines(&answer).last().map(|at| &answer[at..]).unwrap_or_default();
            assert_status(last, status);
            for part in
                ["connection: close\r\n", "content-type: application/json\r\n", "x-request-id: ", says]
            {
                assert!(last.contains(part), "{part} is missing after {answers} answers: {answer:?}");
            }
            assert_eq!(answer.matches(" 200 OK\r\n").count(), answers, "{answer:?}");
            assert_eq!(answer.matches(&format!(" {status} ")).count(), 1, "{answer:?}");
        }
    }
}
