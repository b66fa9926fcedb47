//! Tiers and addresses of keys through the whole program: calls that are refused for the model, the length, the reasoning
//! or the address, at the embedded engine and before an upstream, and after a restart.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;

use common::{Server, said};
use headrace_fault_server::FaultServer;
use serde_json::{Value, json};

const KEY: &str = "sk-tiers-test-0123456789abcdefghijklmnopq";

fn configuration(far: &FaultServer) -> String {
    format!(
        "[server]\nmetrics_listen = \"127.0.0.1:0\"\n[[models]]\nname = \"headrace-demo\"\npath = \"builtin:demo\"\n\
         [[upstreams]]\nname = \"far\"\nkind = \"openai\"\nurl = \"{}\"\nserve = false\n\
         price = {{ input = \"1\", output = \"2\" }}\n[[models]]\nname = \"far\"\ntargets = [\"far/good\"]\n\
         [[models]]\nname = \"other\"\ntargets = [\"far/good\"]\n",
        far.url()
    )
}

/// The status, the code and the message of a refusal, and the answer.
async fn ask(server: &Server, key: &str, model: &str, more: Value) -> (u16, String, String, Value) {
    let mut body = json!({"model": model, "messages": [{"role": "user", "content": "What is a KV cache?"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let (status, answer) = server.chat(key, body).await;
    let text = |at: &str| answer.pointer(at).and_then(Value::as_str).unwrap_or_default().to_owned();
    (status, text("/error/code"), text("/error/message"), answer)
}

/// The key in the list of keys.
fn listed(server: &Server, id: &str) -> Value {
    let keys: Value = serde_json::from_str(&server.ok(&["keys", "list", "--json"])).unwrap();
    let keys = keys.pointer("/value").unwrap_or(&keys).as_array().unwrap().clone();
    keys.into_iter().find(|key| key["id"] == id).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_under_a_tier_is_refused_what_the_tier_does_not_allow() {
    let far = FaultServer::start().await.unwrap();
    let root = tempfile::tempdir().unwrap();
    let mut server = Server::serve(root.path(), &configuration(&far), Some(KEY));
    let rules = ["--allow", "headrace-demo", "--allow", "far", "--max-context-tokens", "120"];
    let more = ["--max-output-tokens", "20", "--no-reasoning", "--requests-per-minute", "500"];
    let made = server.ok(&[&["tiers", "create", "basic"], &rules[..], &more[..]].concat());
    assert!(made.contains("120 tokens of context, 20 tokens of output, no reasoning"), "{made}");
    server.ok(&["tiers", "create", "wide"]);
    let created =
        server.ok(&["keys", "create", "--tier", "basic", "--owner", "ci", "--allow-ip", "127.0.0.0/8,::1"]);
    let key = created.lines().next().unwrap().to_owned();
    let id = created.split_whitespace().find(|word| word.starts_with("key_")).unwrap().to_owned();
    assert!(created.contains("owner    ci") && created.contains("from     127.0.0.0/8,::1"), "{created}");
    assert!(created.contains("tier     basic"), "{created}");

    // What the tier allows, with an answer that it bounds.
    let (status, _, _, answer) = ask(&server, &key, "headrace-demo", json!({})).await;
    let tokens = answer.pointer("/usage/completion_tokens").and_then(Value::as_u64).unwrap();
    assert!(status == 200 && (1..=20).contains(&tokens), "{answer}");
    assert_eq!(ask(&server, &key, "headrace-demo", json!({"max_tokens": 20})).await.0, 200);
    let headers =
        server.send(&key, &json!({"model": "far", "messages": [{"role": "user", "content": "Hi"}]})).await;
    assert_eq!(headers.status(), 200);
    let mut seen = far.seen().requests.into_iter().filter(|request| request.method == "POST");
    let sent: Value = serde_json::from_slice(&seen.next_back().unwrap().body).unwrap();
    let bound = sent.get("max_completion_tokens").or(sent.get("max_tokens")).and_then(Value::as_u64);
    assert_eq!(bound, Some(20), "the upstream gets the bound of the tier: {sent}");

    // What it does not allow. An upstream hears nothing of it.
    let before = far.seen().requests.len();
    let long = "word ".repeat(400);
    let long = json!([{"role": "user", "content": long}]);
    for (model, more, status, code, part) in [
        ("other", json!({}), 404, "model_not_found", "Tier `basic` of this key allows only some models."),
        ("none", json!({}), 404, "model_not_found", "Tier `basic` of this key allows only some models."),
        (
            "headrace-demo",
            json!({"max_tokens": 21}),
            403,
            "tier_length_exceeded",
            "Tier `basic` of this key allows an answer of 20",
        ),
        (
            "headrace-demo",
            json!({"messages": long}),
            403,
            "tier_length_exceeded",
            "Tier `basic` of this key allows 120 tokens",
        ),
        (
            "headrace-demo",
            json!({"reasoning_effort": "low"}),
            403,
            "reasoning_not_entitled",
            "Leave out `reasoning_effort`",
        ),
        (
            "far",
            json!({"max_tokens": 21}),
            403,
            "tier_length_exceeded",
            "Tier `basic` of this key allows an answer of 20",
        ),
        (
            "far",
            json!({"messages": long}),
            403,
            "tier_length_exceeded",
            "Tier `basic` of this key allows 120 tokens",
        ),
        (
            "far",
            json!({"reasoning_effort": "low"}),
            403,
            "reasoning_not_entitled",
            "Tier `basic` of this key does not allow reasoning",
        ),
    ] {
        let found = ask(&server, &key, model, more.clone()).await;
        assert_eq!((found.0, &*found.1), (status, code), "{model} {more}: {}", found.3);
        assert!(found.2.contains(part), "{model} {more}: {}", found.2);
    }
    assert_eq!(far.seen().requests.len(), before);
    assert_eq!(ask(&server, &key, "headrace-demo", json!({"reasoning_effort": "none"})).await.0, 200);
    for (model, more) in [("other", json!({})), ("headrace-demo", json!({"max_tokens": 40}))] {
        assert_eq!(ask(&server, KEY, model, more).await.0, 200, "another key has no tier");
    }

    // A tier of the project narrows that of the key, and a wider one of the key changes nothing.
    server.ok(&["tiers", "assign", "basic", "--project", "default"]);
    server.ok(&["tiers", "assign", "wide", "--key", &id]);
    let (status, code, message, _) = ask(&server, &key, "headrace-demo", json!({"max_tokens": 21})).await;
    assert!(status == 403 && code == "tier_length_exceeded" && message.contains("`basic`"), "{message}");
    assert_eq!(ask(&server, KEY, "other", json!({})).await.0, 404, "every key of the project");
    let refused = server.command(&["tiers", "remove", "basic"]);
    assert!(
        !refused.status.success() && said(&refused).contains("assigned to project `default`"),
        "{}",
        said(&refused)
    );
    server.ok(&["tiers", "unassign", "--project", "default"]);
    server.ok(&["tiers", "remove", "basic"]);
    assert_eq!(ask(&server, &key, "headrace-demo", json!({"max_tokens": 21})).await.0, 200);
    server.ok(&["tiers", "change", "wide", "--max-output-tokens", "7"]);
    assert_eq!(ask(&server, &key, "headrace-demo", json!({"max_tokens": 8})).await.1, "tier_length_exceeded");

    // Another address, for calls and for look-ups.
    server.ok(&["keys", "change", &id, "--allow-ip", "10.0.0.0/8", "--owner", "ci-2"]);
    let (status, code, message, _) = ask(&server, &key, "headrace-demo", json!({})).await;
    assert_eq!((status, &*code), (403, "address_not_allowed"));
    assert!(message.contains("127.0.0.1") && message.contains("`allowed_ips`"), "{message}");
    key.clone_into(&mut server.key);
    assert_eq!(server.get("/v1/models").await.0, 403);
    server.ok(&["keys", "change", &id, "--any-ip"]);
    assert_eq!(server.get("/v1/models").await.0, 200);
    server.ok(&["keys", "change", &id, "--allow-ip", "10.0.0.0/8"]);

    // All of it holds after a restart.
    server.stop();
    let mut server = Server::serve(root.path(), &configuration(&far), None);
    assert_eq!(ask(&server, &key, "headrace-demo", json!({})).await.1, "address_not_allowed");
    let row = listed(&server, &id);
    assert_eq!(
        (&row["owner"], &row["tier"], &row["allowed_ips"]),
        (&json!("ci-2"), &json!("wide"), &json!(["10.0.0.0/8"]))
    );
    assert!(row["last_used"].is_string(), "{row}");
    server.ok(&["keys", "change", &id, "--any-ip", "--no-owner"]);
    assert_eq!(ask(&server, &key, "headrace-demo", json!({"max_tokens": 8})).await.1, "tier_length_exceeded");
    assert!(listed(&server, &id)["owner"].is_null());
    let audit = server.ok(&["audit"]);
    for act in ["tier.create", "tier.change", "tier.remove", "project.tier", "key.tier", "key.change"] {
        assert!(audit.contains(act), "{act}: {audit}");
    }
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_of_a_tier_pay_its_prices_and_have_its_budgets() {
    let root = tempfile::tempdir().unwrap();
    let price = |more: &str, input: &str| {
        format!("[[prices]]\nmodel = \"headrace-demo\"\ninput = \"{input}\"\noutput = \"0\"\n{more}\n")
    };
    let text = format!(
        "[[models]]\nname = \"headrace-demo\"\npath = \"builtin:demo\"\n{}{}[[budgets]]\nname = \"free-calls\"\neach = \"key\"\n\
         tier = \"free\"\nmeasure = \"requests\"\nper = \"day\"\nlimit = 1\n",
        price("", "1000"),
        price("holder_tier = \"free\"", "10"),
    );
    let mut server = Server::serve(root.path(), &text, Some(KEY));
    server.ok(&["tiers", "create", "free"]);
    let created = server.ok(&["keys", "create", "--tier", "free"]);
    let free = created.lines().next().unwrap().to_owned();
    let cost = |trace: &str| {
        let trace: Value = serde_json::from_str(trace).unwrap();
        (trace.pointer("/cost/charged_nano_dollars").cloned(), trace["cost"]["holder_tier"].clone())
    };
    assert_eq!(ask(&server, KEY, "headrace-demo", json!({})).await.0, 200);
    let (usual, no_tier) = cost(&server.ok(&["trace", "--last", "--json"]));
    assert_eq!(ask(&server, &free, "headrace-demo", json!({})).await.0, 200);
    let (reduced, tier) = cost(&server.ok(&["trace", "--last", "--json"]));
    assert_eq!((no_tier, tier), (Value::Null, json!("free")));
    assert_ne!(usual, reduced);
    let shown = server.ok(&["trace", "--last"]);
    assert!(shown.contains("prices of tier free"), "{shown}");
    let (status, code, message, _) = ask(&server, &free, "headrace-demo", json!({})).await;
    assert!(status == 429 && code == "quota_exceeded" && message.contains("`free-calls`"), "{message}");
    assert_eq!(ask(&server, KEY, "headrace-demo", json!({})).await.0, 200, "another key has no tier");
    server.stop();
}
