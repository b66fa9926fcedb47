//! Tests of `headrace bench` from outside, against the real server, as a user would run it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "common/server.rs"]
mod server;

use serde_json::Value;
use server::{Server, run, said};

#[test]
fn a_server_is_measured_and_its_trace_played_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::up(dir.path(), &[]);
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (json, trace) = (at("out.json"), at("trace.jsonl"));
    let target = ["bench", "--url", &server.url, "--key", &server.key, "--ignore-eos", "--timeout", "60s"];
    let load = ["--users", "2", "--requests", "8", "--warmup", "2", "--output-tokens", "8"];
    let sinks = ["--slo", "e2e=1m", "--json", &json, "--record", &trace];
    let output = run(&[&target[..], &load, &sinks].concat());
    let text = said(&output);
    assert!(output.status.success(), "{text}");
    for part in
        ["headrace-demo at http://", "8 ok", "TTFT", "per token (TPOT)", "100.0 % of 8 within e2e=60s"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains('\x1b') && !text.contains(&server.key), "{text}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!((&report["calls"]["ok"], &report["tokens"]["output"]), (&8.into(), &64.into()));
    assert!(!report.to_string().contains(&server.key));

    let again = ["--replay", &trace, "--replay-speed", "4", "--json", "-"];
    let output = run(&[&target[..], &again].concat());
    assert!(output.status.success(), "{}", said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["calls"]["ok"], &report["tokens"]["output"]), (&10.into(), &80.into()));
    assert!(String::from_utf8_lossy(&output.stderr).contains("replay of 10 calls"));
}

#[test]
fn what_cannot_be_measured_is_said_with_the_way_out() {
    for (args, code, parts) in [
        (vec!["--url", "http://127.0.0.1:1"], 1, ["cannot connect", "headrace up"]),
        (
            vec!["--rate", "0", "--max-in-flight", "0"],
            2,
            ["--rate: it must be above 0", "--max-in-flight: it must"],
        ),
        (vec!["--rate", "1", "--users", "2"], 2, ["--users", "cannot be used with"]),
        (vec!["--json", "/nowhere/at/all"], 2, ["--json: cannot write", "No such file"]),
    ] {
        let output = run(&[&["bench"], args.as_slice()].concat());
        let text = said(&output);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(parts.iter().all(|part| text.contains(part)), "{parts:?}: {text}");
    }
}
