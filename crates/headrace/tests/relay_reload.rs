//! Reloads of servers, targets and routes while calls run. Calls in flight end where they began, and new calls follow
//! the new configuration. A server's state survives while its settings stay the same.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;

use std::path::Path;

use common::{Server, said};
use headrace_fault_server::FaultServer;
use serde_json::{Value, json};

const KEY: &str = "sk-relay-reload-test-0123456789abcdefghi";

/// A configuration of up to two servers, a model with these targets, another model at the second server, and a route.
fn configuration(servers: &[(&str, String)], targets: &str, route: &str) -> String {
    let mut text = "[server]\nmetrics_listen = \"127.0.0.1:0\"\n[reload]\nwatch = \"0s\"\n".to_owned();
    for (name, url) in servers {
        text += &format!(
            "[[upstreams]]\nname = \"{name}\"\nkind = \"openai\"\nurl = \"{url}\"\nprice = {{ input = \"1\", output = \"2\" }}\n"
        );
    }
    text + &format!("[[models]]\nname = \"moving\"\ntargets = [{targets}]\n")
        + "[[models]]\nname = \"staying\"\ntargets = [\"second/good\"]\n"
        + &format!("[[routes]]\nname = \"routed\"\nto = [{route}]\nsticky = \"none\"\n")
}

fn reload(server: &Server, root: &Path, text: &str) {
    std::fs::write(root.join("headrace.toml"), text).unwrap();
    let output = server.command(&["reload"]);
    assert!(output.status.success(), "{}", said(&output));
}

fn question(model: &str, stream: bool) -> Value {
    json!({"model": model, "stream": stream, "max_tokens": 16, "messages": [{"role": "user", "content": "Hello"}]})
}

/// The server that answers for a model now.
async fn answered_by(server: &Server, model: &str) -> String {
    let response = server.send(KEY, &question(model, false)).await;
    assert_eq!(response.status().as_u16(), 200, "{model}");
    response.headers()["x-headrace-upstream"].to_str().unwrap().to_owned()
}

fn chats(fault_server: &FaultServer) -> usize {
    fault_server.seen().requests.iter().filter(|request| request.method == "POST").count()
}

/// Number of calls sent to a server since it was configured. `None` if it is not configured.
async fn calls(server: &Server, name: &str) -> Option<u64> {
    let at = server.welcome.split_whitespace().find(|word| word.ends_with("/metrics")).unwrap();
    let page = reqwest::get(at).await.unwrap().text().await.unwrap();
    let begins = format!("headrace_upstream_calls_total{{upstream=\"{name}\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&begins)?.parse().ok())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_under_way_end_where_they_began_and_new_ones_follow_the_configuration() {
    let (first, second) = (FaultServer::start().await.unwrap(), FaultServer::start().await.unwrap());
    let both = [("first", first.url()), ("second", second.url())];
    let root = tempfile::tempdir().unwrap();
    let before = configuration(&both, "\"first/slow\"", "\"moving\"");
    let mut server = Server::serve(root.path(), &before, Some(KEY));
    assert_eq!(answered_by(&server, "routed").await, "first");
    assert_eq!(answered_by(&server, "staying").await, "second");

    let mut direct = server.send(KEY, &question("moving", true)).await;
    let mut routed = server.send(KEY, &question("routed", true)).await;
    assert!(direct.chunk().await.unwrap().is_some() && routed.chunk().await.unwrap().is_some());
    assert_eq!((chats(&first), calls(&server, "second").await), (3, Some(1)));

    // The first server goes, the model moves to the second, and the route leads to another model.
    reload(&server, root.path(), &configuration(&both[1..], "\"second/slow\"", "\"staying\""));
    assert_eq!(answered_by(&server, "moving").await, "second");
    assert_eq!(answered_by(&server, "routed").await, "second");
    for under_way in [direct, routed] {
        assert_eq!(under_way.headers()["x-headrace-upstream"], "first");
        let rest = under_way.text().await.unwrap();
        assert!(
            rest.contains("\"finish_reason\":\"stop\"") && rest.trim_end().ends_with("data: [DONE]"),
            "{rest}"
        );
    }
    assert_eq!(first.seen().broken_off, 0, "nothing was cut off");
    assert_eq!(chats(&first), 3, "who is gone gets nothing more");
    assert_eq!(calls(&server, "first").await, None);
    assert_eq!(calls(&server, "second").await, Some(3), "what is known of a server stays");

    // A reload with a bad route is refused as a whole, so nothing has moved.
    std::fs::write(
        root.path().join("headrace.toml"),
        configuration(&both[1..], "\"second/slow\"", "\"nobody\""),
    )
    .unwrap();
    let output = server.command(&["reload"]);
    assert!(!output.status.success() && said(&output).contains("nobody"), "{}", said(&output));
    assert_eq!(answered_by(&server, "routed").await, "second");

    // It returns as a new server.
    reload(&server, root.path(), &before);
    assert_eq!(answered_by(&server, "routed").await, "first");
    assert_eq!(calls(&server, "first").await, Some(1));
    server.stop();
}
