//! Shutdown: requests in flight finish, idle connections close, hanging calls are cancelled.

use std::time::Duration;

use tokio::io::AsyncWriteExt;

use crate::http2::{open, request};
use crate::stub::{HANG, NEVER, PATIENCE, SILENT, assert_status, config, post, read_until, rest, serve_for};

#[tokio::test]
async fn what_is_in_flight_finishes_and_what_is_idle_closes() {
    let served = serve_for(config(), NEVER).await;
    let mut idle = served.connect().await;
    idle.write_all(post("", "{}").as_bytes()).await.unwrap();
    read_until(&mut idle, "\r\n\r\n{}").await;
    let mut slow = served.connect().await;
    let whole = post("", "[1]");
    let (most, last) = whole.split_at(whole.len() - 1);
    slow.write_all(most.as_bytes()).await.unwrap();
    let mut fresh = served.connect().await;
    let mut http2 = open(served.connect().await).await;
    assert_eq!(request(&mut http2, "[2]").await.status(), 200);
    tokio::time::sleep(Duration::from_millis(30)).await;

    let address = served.address;
    let done = served.stop();
    assert_eq!(rest(&mut idle).await, "");
    assert_eq!(rest(&mut fresh).await, "");
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
    slow.write_all(last.as_bytes()).await.unwrap();
    let answer = rest(&mut slow).await;
    assert_status(&answer, 200);
    assert!(answer.contains("connection: close\r\n"), "{answer}");
    let report = tokio::time::timeout(PATIENCE, done).await.expect("it waits for the drain to pass").unwrap();
    assert_eq!((report.calls_cut_off, report.connections_cut_off), (0, 0));
    assert_eq!(report.connections_accepted, 4);
}

#[tokio::test]
async fn what_hangs_is_cut_off_and_told() {
    let served = serve_for(config(), Duration::from_millis(100)).await;
    let mut call = served.connect().await;
    call.write_all(post("", HANG).as_bytes()).await.unwrap();
    let mut stream = served.connect().await;
    stream.write_all(post("", SILENT).as_bytes()).await.unwrap();
    read_until(&mut stream, "data: 1").await;
    served.stub.until_in_flight(2).await;
    let done = served.stop();
    assert_status(&rest(&mut call).await, 503);
    assert!(rest(&mut stream).await.ends_with("0\r\n\r\n"));
    let report = done.await.unwrap();
    assert_eq!((report.calls_cut_off, report.connections_cut_off), (2, 0));
}
