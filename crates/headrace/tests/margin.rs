//! What upstreams charge, through the whole program. Checks which upstream is paid for what, beside what callers are
//! charged, who may see it, and how it is summed.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{PATIENCE, Server, run, said};
use headrace_fault_server::{FaultServer, INPUT_TOKENS, OUTPUT_TOKENS, Request, event_stream};
use serde_json::{Value, json};

const KEY: &str = "sk-margin-test-0123456789abcdefghijklmno";

/// The upstream counts its prompt and breaks off before the first word.
fn counted(request: &Request) -> Option<Vec<u8>> {
    if request.json()["model"] != "counted" {
        return None;
    }
    let start = json!({"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant",
        "content": [], "model": "counted", "stop_reason": null, "stop_sequence": null,
        "usage": {"input_tokens": 9, "cache_creation_input_tokens": 4, "output_tokens": 1}}});
    Some(event_stream([start.to_string().as_str()]))
}

fn configuration(fault_server: &FaultServer) -> String {
    let url = fault_server.url();
    let upstream = |name: &str, kind: &str| {
        format!(
            "[[upstreams]]\nname = \"{name}\"\nkind = \"{kind}\"\nurl = \"{url}\"\n\
             price = {{ input = \"1\", output = \"2\" }}\n"
        )
    };
    let model = |name: &str, targets: &str| format!("[[models]]\nname = \"{name}\"\ntargets = {targets}\n");
    [
        "[server]\nmetrics_listen = \"127.0.0.1:0\"\n".to_owned(),
        upstream("near", "openai"),
        upstream("billed", "anthropic"),
        upstream("untold", "openai"),
        model("mixed", "[\"billed/counted\", \"near/good\"]"),
        model("near", "[\"near/good\"]"),
        model("untold", "[\"untold/good\"]"),
        "[[models]]\nname = \"headrace-demo\"\npath = \"builtin:demo\"\n".to_owned(),
        "[[costs]]\nupstream = \"near\"\nmodel = \"good\"\ninput = \"0.5\"\noutput = \"1\"\n".to_owned(),
        // Not in force yet.
        "[[costs]]\nupstream = \"near\"\nmodel = \"good\"\ninput = \"9\"\noutput = \"9\"\nfrom = \"2099-01-01\"\n"
            .to_owned(),
        "[[costs]]\nupstream = \"billed\"\nmodel = \"counted\"\ninput = \"3\"\ncache_write = \"4\"\noutput = \"15\"\n"
            .to_owned(),
    ]
    .concat()
}

async fn call(server: &Server, key: &str, model: &str) -> String {
    // A separate conversation, because a known one stays at its worker.
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let content = format!("Say hello, number {}.", CALLS.fetch_add(1, Ordering::Relaxed));
    let body = json!({"model": model, "max_tokens": 16, "stream": true,
        "messages": [{"role": "user", "content": content}]});
    let response = server.send(key, &body).await;
    let id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
    let (status, text) = (response.status(), response.text().await.unwrap());
    assert!(status == 200 && text.contains("[DONE]"), "{status} {text}");
    id
}

fn json_of(server: &Server, args: &[&str]) -> Value {
    serde_json::from_str(&server.ok(&[args, &["--json"]].concat())).unwrap()
}

/// The trace of a call as operators see it, once it is written.
fn trace(server: &Server, id: &str) -> Value {
    let began = Instant::now();
    loop {
        let output = server.command(&["trace", id, "--json"]);
        if output.status.success() {
            return serde_json::from_slice(&output.stdout).unwrap();
        }
        assert!(began.elapsed() < PATIENCE, "{}", said(&output));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The row of `margin` whose `by` field equals `name`.
fn row<'a>(margin: &'a Value, by: &str, name: &Value) -> &'a Value {
    let rows = margin["rows"].as_array().unwrap();
    rows.iter().find(|row| row[by] == *name).unwrap_or_else(|| panic!("no {name}: {margin}"))
}

/// Number of calls, amount charged and amount paid.
fn known(row: &Value) -> [u64; 3] {
    ["calls", "charged_nano_dollars", "paid_nano_dollars"].map(|field| row[field].as_u64().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_paid_stands_beside_what_is_charged() {
    let fault_server = FaultServer::start_with(counted).await.unwrap();
    let root = tempfile::tempdir().unwrap();
    let mut server = Server::serve(root.path(), &configuration(&fault_server), Some(KEY));
    KEY.clone_into(&mut server.key);
    server.ok(&["orgs", "create", "acme"]);
    server.ok(&["projects", "create", "acme-web", "--org", "acme"]);
    server.ok(&["credit", "grant", "5", "--org", "acme"]);
    let acme = server.ok(&["keys", "create", "--project", "acme-web"]);
    let acme = acme.lines().next().unwrap().to_owned();

    let answer = u64::from(INPUT_TOKENS) * 1_000 + u64::from(OUTPUT_TOKENS) * 2_000;
    let cost = u64::from(INPUT_TOKENS) * 500 + u64::from(OUTPUT_TOKENS) * 1_000;
    // Nine computed tokens, four written to the cache, one generated.
    let billed = 9 * 3_000 + 4 * 4_000 + 15_000;
    let (mut near, mut broke) = (0, 0);
    while broke == 0 {
        assert!(near < 50, "the one that breaks is never asked first");
        let id = call(&server, KEY, "mixed").await;
        near += 1;
        let last = trace(&server, &id);
        assert_eq!(last["cost"]["charged_nano_dollars"], answer, "{last}");
        let tries: Vec<_> = last["attempts"].as_array().unwrap().iter().collect();
        let paid: Vec<_> = tries.iter().map(|tried| tried["paid_nano_dollars"].as_u64()).collect();
        match paid.as_slice() {
            [Some(one)] => assert_eq!(*one, cost, "{last}"),
            [Some(lost), Some(one)] => {
                assert_eq!((*lost, *one), (billed, cost), "{last}");
                assert_eq!(last["cost"]["paid_nano_dollars"], billed + cost);
                broke += 1;
                let drawn = server.ok(&["trace", &id]);
                assert!(drawn.contains("paid") && drawn.contains("to others"), "{drawn}");
                // Only operators see what is paid.
                let (_, own) = server.get(&format!("/v1/requests/{id}")).await;
                assert!(own.contains("charged_nano_dollars") && !own.contains("paid"), "{own}");
            }
            other => panic!("{other:?}: {last}"),
        }
    }
    trace(&server, &call(&server, &acme, "near").await);
    for model in ["untold", "untold", "headrace-demo"] {
        let id = call(&server, &acme, model).await;
        assert!(trace(&server, &id)["cost"].get("paid_nano_dollars").is_none(), "nobody knows");
    }

    let margin = json_of(&server, &["margin", "--by", "upstream"]);
    assert_eq!(
        known(row(&margin, "upstream", &json!("near"))),
        [near + 1, (near + 1) * answer, (near + 1) * cost]
    );
    assert_eq!(known(row(&margin, "upstream", &json!("billed"))), [0, 0, broke * billed]);
    let untold = &row(&margin, "upstream", &json!("untold"))["cost_unknown"];
    assert_eq!(known(untold), [2, 2 * answer, 0]);
    assert_eq!(row(&margin, "upstream", &Value::Null)["cost_unknown"]["calls"], 1, "the demo model is ours");
    let total = ((near + 1) * answer) as i64 - ((near + 1) * cost + broke * billed) as i64;
    assert_eq!(margin["total"]["margin_nano_dollars"].as_i64().unwrap(), total);

    let by = json_of(&server, &["margin", "--by", "org,model", "--since", "1h"]);
    assert_eq!(known(row(&by, "org", &json!("default")))[0], near);
    let models: Vec<_> = by["rows"].as_array().unwrap().iter().map(|row| row["model"].clone()).collect();
    assert_eq!(models, ["headrace-demo", "near", "untold", "mixed"]);
    assert_eq!(by["total"], margin["total"]);
    let before = json_of(&server, &["margin", "--until", "2020-01-01"]);
    assert_eq!(before["rows"], json!([]));
    let table = server.ok(&["margin"]);
    assert!(table.contains("day") && table.contains("(here)") && table.contains("acme"), "{table}");
    for bad in [["--by", "colour"], ["--since", "yesterday"]] {
        let output = run(&["margin", bad[0], bad[1]]);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    }
    server.stop();
    // The same without a server.
    assert_eq!(json_of(&server, &["margin", "--by", "upstream"]), margin);
}
