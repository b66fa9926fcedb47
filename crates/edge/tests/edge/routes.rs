//! The route table, requested without a credential, and paths outside the table.

use headrace_domain::Dialect::{Anthropic, OpenAi};
use headrace_domain::{CallOutcome, Code, Endpoint, is_partition};
use headrace_edge::{ROUTES, RouteAccess};
use tokio::io::AsyncWriteExt;

use crate::stub::{Served, assert_status, config, post, rest, serve};

async fn ask(served: &Served, method: &str, path: &str, lines: &str) -> String {
    let request = format!("{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{lines}\r\n");
    served.raw(&request).await
}

#[tokio::test]
async fn every_route_is_denied_unless_it_is_public() {
    let served = serve(config()).await;
    let public: Vec<_> =
        ROUTES.iter().filter(|route| route.access == RouteAccess::Public).map(|r| r.path).collect();
    assert_eq!(public, ["/", "/.well-known/headrace-receipts.json", "/healthz", "/readyz"]);
    for route in ROUTES {
        let path = route.path.replace("{*name}", "a/b").replace("{id}", "req_1");
        for method in route.methods.split(", ") {
            let status = if route.access == RouteAccess::Public { 200 } else { 401 };
            for lines in ["", "anthropic-version: 2023-06-01\r\n", "authorization: Bearer bad\r\n"] {
                assert_status(&ask(&served, method, &path, lines).await, status);
            }
        }
    }
}

#[tokio::test]
async fn a_second_credential_is_no_credential() {
    let served = serve(config()).await;
    for (lines, status) in [
        ("authorization: Bearer good\r\n", 200),
        ("x-api-key: good\r\n", 200),
        ("authorization: Bearer good\r\nauthorization: Bearer good\r\n", 401),
        ("authorization: Bearer bad\r\nauthorization: Bearer good\r\n", 401),
        ("x-api-key: good\r\nx-api-key: bad\r\n", 401),
        ("authorization: Bearer good\r\nx-api-key: other\r\n", 401),
    ] {
        assert_status(&ask(&served, "GET", "/v1/models", lines).await, status);
    }
}

#[tokio::test]
async fn unknown_paths_and_methods_are_refused_in_the_callers_dialect() {
    let served = serve(config()).await;
    let anthropic = "anthropic-version: 2023-06-01\r\n";
    for (method, path, lines, dialect, endpoint, code) in [
        ("GET", "/nothing", "", OpenAi, None, Code::NotFound),
        ("GET", "/nothing", anthropic, Anthropic, None, Code::NotFound),
        ("POST", "/v1/messages/nothing", "", Anthropic, None, Code::NotFound),
        ("GET", "/metrics", "", OpenAi, None, Code::NotFound),
        ("GET", "/v1/models/%zz", "authorization: Bearer good\r\n", OpenAi, None, Code::NotFound),
        ("GET", "/v1/messages", "", Anthropic, Some(Endpoint::Messages), Code::MethodNotAllowed),
        (
            "DELETE",
            "/v1/chat/completions",
            anthropic,
            OpenAi,
            Some(Endpoint::ChatCompletions),
            Code::MethodNotAllowed,
        ),
        ("POST", "/v1/models", anthropic, Anthropic, None, Code::MethodNotAllowed),
        ("OPTIONS", "/healthz", "", OpenAi, None, Code::MethodNotAllowed),
    ] {
        let answer = ask(&served, method, path, lines).await;
        assert_status(&answer, code.status());
        let what = format!("{method} {path}: {answer}");
        assert!(answer.contains(&format!("\"code\":\"{}\"", code.name())), "{what}");
        let body = answer.split("\r\n\r\n").nth(1).unwrap();
        assert_eq!(body.starts_with("{\"type\":\"error\",\"error\":"), dialect == Anthropic, "{what}");
        assert_eq!(body.starts_with("{\"error\":"), dialect == OpenAi, "{what}");
        assert_eq!(answer.contains("allow: "), code == Code::MethodNotAllowed, "{what}");
        // The trace has the id of the answer, and nothing that the caller wrote.
        let traces = std::mem::take(&mut *served.stub.refusals.lock().unwrap());
        let [trace] = traces.as_slice() else { panic!("{traces:?}") };
        assert!(answer.contains(&format!("x-request-id: {}\r\n", trace.request_id)), "{what}");
        assert_eq!(answer.contains("\r\nrequest-id: "), dialect == Anthropic, "{what}");
        let CallOutcome::Refused(refused) = &trace.outcome else { panic!("{trace:?}") };
        assert_eq!((refused.code.as_str(), refused.status), (code.name(), code.status()), "{what}");
        assert_eq!((trace.endpoint, refused.message.contains(path)), (endpoint, false), "{what}");
        assert!(is_partition(&trace.stages, trace.duration_ns) && !trace.stages.is_empty(), "{what}");
    }
    let answer = ask(&served, "GET", "/v1/completions", "").await;
    assert!(answer.contains("allow: POST\r\n"), "{answer}");
}

#[tokio::test]
async fn paths_reach_what_they_name() {
    let served = serve(config()).await;
    for (path, lines, says) in [
        ("/v1/models", "", "\"models OpenAi 0\""),
        ("/v1/models?limit=5&beta=true", "anthropic-version: 2023-06-01\r\n", "\"models Anthropic 2\""),
        ("/", "", "alive"),
        ("/v1/models/a/b?x=y", "", "\"model a/b OpenAi\""),
        ("/v1/models/a%2Fb", "", "\"model a/b OpenAi\""),
        ("/v1/requests/req_7", "", "\"request req_7\""),
        ("/healthz", "", "alive"),
        ("/readyz", "", "ready"),
    ] {
        let lines = format!("authorization: Bearer good\r\n{lines}");
        let answer = ask(&served, "GET", path, &lines).await;
        assert_status(&answer, 200);
        assert!(answer.ends_with(says) || answer.contains(says), "{path}: {answer}");
        let head = ask(&served, "HEAD", path, &lines).await;
        assert_status(&head, 200);
        assert!(head.ends_with("\r\n\r\n") && head.contains("content-length: "), "{path}: {head}");
    }
}

#[tokio::test]
async fn questions_reach_the_service_with_their_bodies() {
    let served = serve(config()).await;
    for (path, says) in [
        ("/v1/messages/count_tokens?beta=true", "CountTokens {\"a\":1}"),
        ("/tokenize", "Tokenize {\"a\":1}"),
        ("/detokenize", "Detokenize {\"a\":1}"),
    ] {
        let lines = "content-type: application/json\r\ncontent-length: 7\r\n";
        let request = |key: &str| {
            format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{key}{lines}\r\n{{\"a\":1}}")
        };
        let mut stream = served.connect().await;
        stream.write_all(request("authorization: Bearer good\r\n").as_bytes()).await.unwrap();
        let answer = rest(&mut stream).await;
        assert_status(&answer, 200);
        assert!(answer.ends_with(says), "{path}: {answer}");
        let mut stream = served.connect().await;
        stream.write_all(request("").as_bytes()).await.unwrap();
        assert_status(&rest(&mut stream).await, 401);
        assert_status(&ask(&served, "GET", path, "").await, 405);
    }
}

#[tokio::test]
async fn operators_have_a_listener_of_their_own() {
    let mut config = config();
    config.metrics_listen = Some(([127, 0, 0, 1], 0).into());
    let mut served = serve(config).await;
    served.address = served.metrics.unwrap();
    let answer = ask(&served, "GET", "/metrics", "").await;
    assert_status(&answer, 200);
    for says in [
        "text/plain; version=0.0.4",
        "headrace_test 1\n",
        "headrace_edge_requests_total 0\n",
        "asked for None\n",
    ] {
        assert!(answer.contains(says), "{answer}");
    }
    for (method, path, status) in [
        ("GET", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("GET", "/v1/models", 404),
        ("POST", "/metrics", 405),
    ] {
        assert_status(&ask(&served, method, path, "").await, status);
    }
}

#[tokio::test]
async fn the_service_learns_where_a_call_comes_from() {
    let served = serve(config()).await;
    let mut stream = served.connect().await;
    stream.write_all(post("connection: close\r\n", "{}").as_bytes()).await.unwrap();
    assert_status(&rest(&mut stream).await, 200);
    assert_eq!(*served.stub.peer.lock().unwrap(), Some(stream.local_addr().unwrap()));
}

#[tokio::test]
async fn operations_on_stored_objects_have_a_method_path_and_query() {
    let served = serve(config()).await;
    let key = "authorization: Bearer good\r\n";
    for (method, path, expected) in [
        (
            "GET",
            "/v1/responses/resp_1?limit=2&after=a%20b",
            r#"Get responses/resp_1 [("limit", "2"), ("after", "a b")]"#,
        ),
        ("DELETE", "/v1/conversations/conv_1/items/i", "Delete conversations/conv_1/items/i []"),
    ] {
        let answer = ask(&served, method, path, key).await;
        assert_status(&answer, 200);
        assert!(answer.contains(expected), "{answer}");
    }
    let body = format!("{key}content-type: application/json\r\ncontent-length: 2\r\n");
    let request =
        format!("POST /v1/conversations HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{body}\r\n{{}}");
    let answer = served.raw(&request).await;
    assert!(answer.contains("Post conversations [] {}"), "{answer}");
    assert_status(&ask(&served, "GET", "/v1/responses/resp_1?a=%zz", key).await, 404);
    // The path of calls accepts only calls.
    assert_status(&ask(&served, "GET", "/v1/responses", key).await, 405);
}
