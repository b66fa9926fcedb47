//! `headrace forget` over two gateways and one PostgreSQL database: asked at one of them, it removes a user from the files
//! of both and from the database. A gateway that does not answer is named. Runs on the last version of PostgreSQL in
//! `HEADRACE_POSTGRES_BIN` that has `pg_dump`.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;
#[path = "../../postgres/tests/support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod postgres;
#[path = "forget/traffic.rs"]
mod traffic;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::{PATIENCE, Server, program, said};
use postgres::{PostgresServer, versions};
use serde_json::{Value, json};
use traffic::{CanaryTraffic, KEY, USER};

fn gateway(root: &Path, name: &str, database: &str) -> Server {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let at = format!("127.0.0.1:{port}");
    let mut command = program();
    command.env("HEADRACE_BOOTSTRAP_KEY", KEY).env("HEADRACE_STORAGE__URL", database);
    command.env("HEADRACE_GATEWAY__NAME", name).env("HEADRACE_GATEWAY__ADVERTISE", format!("http://{at}"));
    command.arg("up");
    Server::begin(command, &root.join(name), &["--admin-listen", &at, "--set", "records.level=full"], KEY)
}

fn contains(bytes: &[u8]) -> bool {
    bytes.windows(USER.len()).any(|at| at == USER.as_bytes())
}

/// The files below a directory that contain the name.
fn files_with_name(dir: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if std::fs::read(&path).is_ok_and(|bytes| contains(&bytes)) {
                found.push(path);
            }
        }
    }
    found
}

/// The tables of a dump that contain the name.
fn tables_with_name(bin: &Path, database: &str) -> Vec<String> {
    let dump = Command::new(bin.join("pg_dump")).args(["-d", database]).output().unwrap();
    assert!(dump.status.success(), "{}", said(&dump));
    let (mut table, mut found) = (String::new(), Vec::new());
    for line in String::from_utf8_lossy(&dump.stdout).lines() {
        if let Some(named) = line.strip_prefix("COPY ") {
            table = named.split(' ').next().unwrap_or_default().to_owned();
        }
        // A dump writes bytes as digits.
        let digits: String = USER.bytes().map(|byte| format!("{byte:02x}")).collect();
        if line.contains(USER) || line.contains(&digits) {
            found.push(table.clone());
        }
    }
    found.dedup();
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_is_forgotten_at_all_gateways_and_a_silent_one_is_named() {
    // npm's package has no `pg_dump`.
    let Some(bin) = versions().into_iter().rev().find(|bin| bin.join("pg_dump").exists()) else { return };
    let database = PostgresServer::start(&bin);
    let (root, url) = (tempfile::tempdir().unwrap(), database.url());
    let [a, b] = ["a", "b"].map(|name| gateway(root.path(), name, &url));
    let (of_a, of_b) = (CanaryTraffic::new(&a.url), CanaryTraffic::new(&b.url));
    of_a.run(root.path()).await;
    of_b.chat(json!({ "user": USER, "metadata": { "tag": USER } })).await;
    std::fs::remove_file(root.path().join("requests.jsonl")).unwrap();

    // Traces are stored a moment after their answers, and gateways find each other a moment after their start.
    let began = Instant::now();
    let count = |server: &Server| {
        let found = server.ok(&["requests", "--user", USER, "--json"]);
        let found: Value = serde_json::from_str(&found).unwrap();
        (found["data"].as_array().unwrap().len(), found["missing_gateways"] == json!([]))
    };
    let all = traffic::LABELLED + traffic::BATCH_LINES + 1;
    while count(&a) != (all, true) {
        assert!(began.elapsed() < PATIENCE, "{:?}", count(&a));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for gateway in ["a", "b"] {
        assert!(!files_with_name(&root.path().join(gateway)).is_empty(), "{gateway}");
    }
    let before = tables_with_name(&bin, &url);
    for table in ["answer_part", "conversation", "file_chunk", "response"] {
        assert!(before.iter().any(|name| name.contains(table)), "{table}: {before:?}");
    }

    let done = a.ok(&["forget", USER]);
    assert_eq!(files_with_name(root.path()), Vec::<PathBuf>::new(), "{done}");
    assert_eq!(tables_with_name(&bin, &url), Vec::<String>::new(), "{done}");
    let verified: Value = serde_json::from_str(&b.ok(&["ledger", "verify", "--json"])).unwrap();
    assert_eq!(verified["finding_count"], 0, "{verified}");
    a.ok(&["audit", "verify"]);

    // A gateway that does not answer is named, and the command fails.
    b.signal("KILL");
    let silent = a.command(&["forget", USER]);
    assert!(!silent.status.success() && said(&silent).contains("gateway b"), "{}", said(&silent));
}
