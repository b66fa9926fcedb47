//! Data residency through the whole program: regions of upstreams and of the server, and organisations and keys that
//! are pinned to them. Covers refusals, model lists and reloads.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;

use std::path::Path;

use common::{Server, question, said};
use headrace_fault_server::FaultServer;
use serde_json::{Value, json};

const KEY: &str = "sk-regions-test-0123456789abcdefghijklmn";

/// Two upstreams, one in `eu` and one with the region line `there`, that answer for one model. Each also has a model of
/// its own.
fn configuration(eu: &FaultServer, other: &FaultServer, there: &str) -> String {
    let upstream = |name: &str, url: String, region: &str| {
        format!(
            "[[upstreams]]\nname = \"{name}\"\nkind = \"openai\"\nurl = \"{url}\"\n{region}\
             price = {{ input = \"1\", output = \"2\" }}\n[[models]]\nname = \"{name}\"\ntargets = [\"{name}/good\"]\n"
        )
    };
    [
        "[server]\nregion = \"us\"\nmetrics_listen = \"127.0.0.1:0\"\n[reload]\nwatch = \"0s\"\n".to_owned(),
        "[[models]]\nname = \"headrace-demo\"\npath = \"builtin:demo\"\n".to_owned(),
        "[[models]]\nname = \"both\"\ntargets = [\"near/good\", \"other/good\"]\n".to_owned(),
        upstream("near", eu.url(), "region = \"eu\"\n"),
        upstream("other", other.url(), there),
    ]
    .concat()
}

/// The status, and the code and message of a refusal, empty for an answer.
async fn ask(server: &Server, key: &str, model: &str) -> (u16, String, String) {
    let body =
        json!({"model": model, "max_tokens": 16, "messages": [{"role": "user", "content": "Say hello."}]});
    let (status, told) = server.chat(key, body).await;
    let text = |at: &str| told.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
    (status, text("/error/code"), text("/error/message"))
}

async fn listed(server: &mut Server, key: &str) -> Vec<String> {
    key.clone_into(&mut server.key);
    let (_, text) = server.get("/v1/models").await;
    let list: Value = serde_json::from_str(&text).unwrap();
    list["data"].as_array().unwrap().iter().map(|card| card["id"].as_str().unwrap().to_owned()).collect()
}

fn chats(fault_server: &FaultServer) -> usize {
    fault_server.seen().requests.iter().filter(|request| request.method == "POST").count()
}

fn reload(server: &Server, root: &Path, text: &str) {
    std::fs::write(root.join("headrace.toml"), text).unwrap();
    server.ok(&["reload"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pinned_calls_stay_where_they_may_be() {
    let (eu, other) = (FaultServer::start().await.unwrap(), FaultServer::start().await.unwrap());
    let root = tempfile::tempdir().unwrap();
    let text = |there: &str| configuration(&eu, &other, there);
    let mut server = Server::serve(root.path(), &text(""), Some(KEY));
    server.ok(&["orgs", "create", "acme", "--regions", "eu,ch"]);
    server.ok(&["projects", "create", "acme-web", "--org", "acme"]);
    server.ok(&["credit", "grant", "5", "--org", "acme"]);
    let create = |server: &Server, more: &[&str]| {
        let made = server.ok(&[&["keys", "create", "--project", "acme-web"], more].concat());
        made.lines().next().unwrap().to_owned()
    };
    let (acme, narrow) = (create(&server, &[]), create(&server, &["--regions", "ch"]));
    let wide = server.command(&["keys", "create", "--project", "acme-web", "--regions", "eu,us"]);
    assert!(!wide.status.success() && said(&wide).contains("pinned to ch, eu"), "{}", said(&wide));

    for _ in 0..20 {
        assert_eq!(ask(&server, &acme, "both").await.0, 200);
    }
    assert_eq!((chats(&eu), chats(&other)), (20, 0), "who says no region gets nothing");
    let (status, code, message) = ask(&server, &acme, "other").await;
    assert_eq!((status, &*code), (403, "region_not_allowed"));
    assert!(
        message.contains("Organisation `acme` is pinned to ch, eu")
            && message.contains("no region that is known")
    );
    let (_, code, message) = ask(&server, &acme, "headrace-demo").await;
    assert!(code == "region_not_allowed" && message.contains("offered in us."), "{message}");
    let (_, code, message) = ask(&server, &narrow, "near").await;
    assert!(code == "region_not_allowed" && message.contains("This key is pinned to ch"), "{message}");
    for model in ["near", "other", "both", "headrace-demo"] {
        assert_eq!(ask(&server, KEY, model).await.0, 200, "{model}: nobody else is pinned");
    }
    assert_eq!(listed(&mut server, &acme).await, ["both", "near"]);
    assert_eq!(listed(&mut server, &narrow).await, [""; 0]);
    assert_eq!(listed(&mut server, KEY).await.len(), 4);

    // The other upstream gets a region, then another one. New calls follow, and nothing restarts.
    reload(&server, root.path(), &text("region = \"ch\"\n"));
    assert_eq!((ask(&server, &narrow, "both").await.0, ask(&server, &acme, "other").await.0), (200, 200));
    assert!(server.ok(&["upstreams"]).contains("ch"));
    let before = chats(&other);
    reload(&server, root.path(), &text("region = \"us\"\n"));
    assert_eq!(ask(&server, &acme, "other").await.1, "region_not_allowed");
    assert_eq!(ask(&server, &narrow, "both").await.1, "region_not_allowed");
    assert_eq!(chats(&other), before);
    std::fs::write(root.path().join("headrace.toml"), text("").replace("\"us\"", "\"eu\"")).unwrap();
    let moved = server.command(&["reload"]);
    assert!(said(&moved).contains("server.region needs a restart"), "{}", said(&moved));

    // A changed pin applies from the next call on, and survives a restart.
    server.ok(&["orgs", "regions", "acme", "--regions", "us"]);
    assert_eq!(ask(&server, &acme, "headrace-demo").await.0, 200);
    assert_eq!(ask(&server, &acme, "near").await.1, "region_not_allowed");
    let output = server.ok(&["orgs", "regions", "acme", "--regions", "eu"]);
    assert!(output.contains("warning  key key_"), "{output}");
    assert!(server.ok(&["keys", "list"]).contains("ch") && server.ok(&["orgs", "list"]).contains("eu"));
    server.stop();
    let mut server = Server::serve(root.path(), &text(""), None);
    assert_eq!(ask(&server, &acme, "near").await.0, 200);
    assert_eq!(ask(&server, &acme, "headrace-demo").await.1, "region_not_allowed");
    assert!(server.ok(&["audit"]).contains("org.regions"));
    server.ok(&["orgs", "regions", "acme", "--anywhere"]);
    assert_eq!(ask(&server, &acme, "headrace-demo").await.0, 200);
    assert_eq!(ask(&server, &narrow, "headrace-demo").await.1, "region_not_allowed");
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_keeps_its_region_and_its_receipt_when_the_server_gets_another_region() {
    let root = tempfile::tempdir().unwrap();
    let serve = |region: &str, bootstrap: Option<&str>| {
        let text = format!(
            "[server]\nregion = \"{region}\"\n[[models]]\nname = \"headrace-demo\"\npath = \"builtin:demo\"\n"
        );
        let mut server = Server::serve(root.path(), &text, bootstrap);
        KEY.clone_into(&mut server.key);
        server
    };
    let mut server = serve("us", Some(KEY));
    let answer = server.send(KEY, &question(json!({ "max_tokens": 1 }))).await;
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    assert!(answer.text().await.unwrap().contains("chat.completion"));
    let (trace, receipt) = (format!("/v1/requests/{id}"), format!("/v1/receipts/{id}"));
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let (status, first) = server.get(&receipt).await;
    assert_eq!((status, &json(&first)["content"]["region"]), (200, &json!("us")), "{first}");
    assert_eq!(json(&server.get(&trace).await.1)["region"], "us");
    server.stop();
    let server = serve("eu", None);
    assert_eq!(json(&server.get(&trace).await.1)["region"], "us");
    assert_eq!(server.get(&receipt).await, (200, first.clone()));
    assert_eq!(json(&server.ok(&["receipt", &id])), json(&first), "the command makes the same");
}
