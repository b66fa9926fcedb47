//! Secrets must not remain outside the program's own memory: none in its environment, no core dump, no readable file.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]
#![cfg(target_os = "linux")]

#[path = "common/server.rs"]
mod common;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use common::{Server, question};
use serde_json::json;

const KEY: &str = "sk-canary-0123456789abcdefghijklmn";
const OTHER: &str = "sk-other-canary-0123456789abcdefgh";

/// The server as a careless operator starts it: unlimited core dumps, and files that everyone may read.
fn careless(dir: &Path) -> Server {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -c unlimited 2>/dev/null; umask 0; exec \"$0\" \"$@\""]);
    command.arg(env!("CARGO_BIN_EXE_headrace")).arg("up");
    command.env("HEADRACE_BOOTSTRAP_KEY", KEY).env("HEADRACE_API_KEY", OTHER).env("KEPT", "as it was");
    command.current_dir(dir);
    Server::begin(command, &dir.join("data"), &[], KEY)
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_in_no_environment_no_core_dump_and_no_readable_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = careless(dir.path());
    let prompt = question(json!({ "messages": [{ "role": "user", "content": "canary of a prompt" }] }));
    assert_eq!(server.chat(KEY, prompt).await.0, 200, "the key was read before it was wiped");
    let proc = Path::new("/proc").join(server.pid().to_string());
    // Only root can still open the file.
    if let Ok(environment) = std::fs::read(proc.join("environ")) {
        let environment = String::from_utf8_lossy(&environment).into_owned();
        assert!(!environment.contains(KEY) && !environment.contains(OTHER), "{environment}");
        assert!(environment.contains("KEPT=as it was"), "{environment}");
    }
    let limits = std::fs::read_to_string(proc.join("limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), ["0", "0"], "{core}");
    for entry in std::fs::read_dir(&server.dir).unwrap().map(Result::unwrap) {
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", entry.path().display());
    }
    server.signal("ABRT");
    let (status, _) = server.wait();
    assert!(status.signal().is_some() && !status.core_dumped(), "{status}");
    let cores = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let cores: Vec<_> = cores.filter(|name| name.to_string_lossy().starts_with("core")).collect();
    assert!(cores.is_empty(), "{cores:?}");
}
