//! A server with few file descriptors: unknown clients fill at most their share, and callers, operators and health
//! checks are still answered.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]
#![cfg(target_os = "linux")]

#[path = "common/server.rs"]
mod common;

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use common::{Server, question};
use serde_json::json;

const KEY: &str = "sk-integration-test-0123456789abcdef";

/// `headrace up` after these `ulimit` commands.
fn limited(dir: &Path, limits: &str, more: &[&str]) -> Server {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limits}; exec \"$0\" \"$@\"")]);
    command.arg(env!("CARGO_BIN_EXE_headrace")).arg("up").env("HEADRACE_BOOTSTRAP_KEY", KEY);
    Server::begin(command, dir, more, KEY)
}

/// The soft limit on open files, and the hard limit.
fn limits_of(server: &Server) -> (String, String) {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let mut words = line.split_whitespace().skip(3);
    (words.next().unwrap().to_owned(), words.next().unwrap().to_owned())
}

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_soft_limit_is_raised_to_the_hard_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = limited(dir.path(), "ulimit -Sn 300", &[]);
    let (soft, hard) = limits_of(&server);
    assert_eq!(soft, hard);
    server.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_do_not_close_a_server_of_few_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let metrics = free();
    let at = metrics.to_string();
    let server = limited(dir.path(), "ulimit -n 256", &["--metrics-listen", &at]);
    let strangers: Vec<TcpStream> = (0..1_000)
        .map(|_| {
            let mut stream = TcpStream::connect(server.address()).unwrap();
            // The server may have closed the oldest connections to make room.
            let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n");
            stream
        })
        .collect();
    let (status, body) = server.chat(KEY, question(json!({ "max_tokens": 1 }))).await;
    assert_eq!(status, 200, "{body}");
    let client = reqwest::Client::new();
    for page in ["readyz", "metrics"] {
        let answer = client.get(format!("http://{metrics}/{page}")).timeout(common::PATIENCE).send().await;
        let answer = answer.unwrap();
        assert_eq!(answer.status().as_u16(), 200, "{page}");
        if page == "metrics" {
            let text = answer.text().await.unwrap();
            assert!(text.contains("process_max_fds 256"), "{text}");
            let open = text.lines().find_map(|line| line.strip_prefix("process_open_fds ")).unwrap();
            let open: f64 = open.parse().unwrap();
            assert!((10.0..=256.0).contains(&open), "{open}");
        }
    }
    server.ok(&["keys", "create", "--name", "made"]);
    drop(strangers);
}
