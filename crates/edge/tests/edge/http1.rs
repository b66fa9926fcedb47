//! Correct use of HTTP/1.1.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;

use crate::stub::{BIG, HANG, PANIC, SILENT, THREE, assert_status, config, post, read_until, rest, serve};

#[tokio::test]
async fn requests_on_one_connection_are_answered_in_order() {
    let served = serve(config()).await;
    let all: String = (0..3).map(|i| post("", &i.to_string())).collect();
    let answer = served.raw(&format!("{all}{}", post("connection: close\r\n", "3"))).await;
    let bodies: Vec<_> = answer.split("HTTP/1.1 200 OK").skip(1).map(|one| one.chars().last()).collect();
    assert_eq!(bodies, [Some('0'), Some('1'), Some('2'), Some('3')], "{answer}");
}

#[tokio::test]
async fn bodies_come_whole_or_in_chunks_and_go_likewise() {
    let served = serve(config()).await;
    let chunked = "POST /v1/messages HTTP/1.1\r\nhost: a\r\nx-api-key: good\r\nconnection: close\r\n\
                   transfer-encoding: chunked\r\n\r\n3\r\n[1,\r\n2;x=y\r\n2]\r\n0\r\nt: 1\r\n\r\n";
    let answer = served.raw(chunked).await;
    assert_status(&answer, 200);
    assert!(answer.ends_with("\r\n\r\n[1,2]"), "{answer}");

    let answer = served.raw(&post("connection: close\r\n", THREE)).await;
    assert_status(&answer, 200);
    for says in ["transfer-encoding: chunked", "content-type: text/event-stream", "cache-control: no-cache"] {
        assert!(answer.contains(says), "{answer}");
    }
    assert_eq!(answer.matches("data: 1\n\n").count(), 3, "{answer}");
    assert!(answer.ends_with("0\r\n\r\n"), "{answer}");

    let answer = served.raw(&post("connection: close\r\n", BIG)).await;
    assert_status(&answer, 200);
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(body.len(), 3 << 20);
    assert!(body.bytes().all(|byte| byte == b'y'));
}

#[tokio::test]
async fn a_connection_that_rests_hears_its_peer_again_and_ends_when_it_should() {
    let mut config = config();
    config.header_timeout = Duration::from_secs(2);
    config.idle_timeout = Duration::from_secs(5);
    let served = serve(config).await;
    let mut stream = served.connect().await;
    // Longer than the time after which an idle connection's buffers are freed.
    let a_while = || tokio::time::sleep(Duration::from_millis(900));
    for body in ["1", "2"] {
        stream.write_all(post("", body).as_bytes()).await.unwrap();
        read_until(&mut stream, &format!("\r\n\r\n{body}")).await;
        a_while().await;
    }
    let request = post("", "3");
    let (first, rest_of_it) = request.split_at(3);
    stream.write_all(first.as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    stream.write_all(rest_of_it.as_bytes()).await.unwrap();
    read_until(&mut stream, "\r\n\r\n3").await;
    let answered = Instant::now();
    assert_eq!(rest(&mut stream).await, "", "it says nothing more");
    let kept = answered.elapsed();
    assert!(kept >= Duration::from_millis(4_900), "{kept:?}");

    // A head that begins after an idle phase must be complete in time like any other.
    let mut stream = served.connect().await;
    stream.write_all(post("", "4").as_bytes()).await.unwrap();
    read_until(&mut stream, "\r\n\r\n4").await;
    a_while().await;
    stream.write_all(b"POST /v1/mess").await.unwrap();
    assert_status(&rest(&mut stream).await, 408);
}

#[tokio::test]
async fn a_client_that_asks_first_is_told_to_go_on() {
    let served = serve(config()).await;
    let mut stream = served.connect().await;
    let request = post("expect: 100-continue\r\nconnection: close\r\n", "{}");
    let (head, body) = request.split_at(request.len() - 2);
    stream.write_all(head.as_bytes()).await.unwrap();
    read_until(&mut stream, "HTTP/1.1 100 Continue\r\n\r\n").await;
    stream.write_all(body.as_bytes()).await.unwrap();
    assert_status(&rest(&mut stream).await, 200);
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_call_and_its_stream_along() {
    let served = serve(config()).await;
    for body in [HANG, SILENT] {
        let mut stream = served.connect().await;
        stream.write_all(post("", body).as_bytes()).await.unwrap();
        served.stub.until_in_flight(1).await;
        if body == SILENT {
            read_until(&mut stream, "data: 1").await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(served.stub.in_flight.load(Ordering::SeqCst), 1, "{body}");
        drop(stream);
        served.stub.until_in_flight(0).await;
    }
}

#[tokio::test]
async fn a_panic_ends_one_connection_only() {
    let served = serve(config()).await;
    assert_eq!(served.raw(&post("", PANIC)).await, "");
    served.stub.until_in_flight(0).await;
    assert_status(&served.raw(&post("connection: close\r\n", "{}")).await, 200);
}

#[tokio::test]
async fn a_credential_that_needs_io_is_awaited_before_the_request_is_admitted() {
    let served = serve(config()).await;
    let request =
        "GET /v1/models HTTP/1.1\r\nhost: a\r\nauthorization: Bearer late\r\nconnection: close\r\n\r\n";
    let mut stream = served.connect().await;
    stream.write_all(request.as_bytes()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    // Others do not wait for it.
    assert_status(&served.raw(&post("connection: close\r\n", "1")).await, 200);
    served.stub.late_is_known.send_replace(true);
    assert_status(&rest(&mut stream).await, 200);
    assert_status(&served.raw(request).await, 200);
}
