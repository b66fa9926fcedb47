//! Calls by their ids with a second gateway, and what is noted of searches for contents.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::{GatewayPeer, GatewayPeers};

/// This gateway, and another one at an address.
struct SecondGateway(String);

impl GatewayPeers for SecondGateway {
    fn own(&self) -> GatewayPeer {
        GatewayPeer { name: "first".to_owned(), address: None }
    }
    fn others(&self) -> Result<Vec<GatewayPeer>, String> {
        Ok(vec![GatewayPeer { name: "second".to_owned(), address: Some(self.0.clone()) }])
    }
    fn ended(&self) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }
}

/// Starts a gateway that has every view of one call of another organisation: `req_shared`. Returns its address.
async fn second_gateway() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (mut read, mut piece) = (Vec::new(), [0; 4096]);
            let asked = loop {
                let count = stream.read(&mut piece).await.unwrap();
                assert!(count > 0, "the request ended early");
                read.extend_from_slice(&piece[..count]);
                let text = String::from_utf8_lossy(&read);
                let body = text.split_once("\r\n\r\n").map(|(_, body)| serde_json::from_str::<Value>(body));
                if let Some(Ok(asked)) = body {
                    break asked;
                }
            };
            let view = json!({ "id": "req_shared", "request": "a secret" });
            let found = match asked["id"].as_str() {
                Some("req_shared") => json!({ "id": "req_shared", "org": "other", "view": view }),
                _ => Value::Null,
            };
            // A question for usage has no id. It is answered by its own words.
            let text = String::from_utf8_lossy(&read);
            let body = match text.starts_with("POST /gateway/v1/usage ") {
                true => json!([asked]).to_string(),
                false => json!({ "found": found }).to_string(),
            };
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        }
    });
    address
}

#[tokio::test]
async fn a_call_of_another_organisation_that_has_the_trace_id_of_an_own_call_answers_as_missing() {
    let clock = Arc::new(ManualClock::at(NOW));
    let second = Arc::new(SecondGateway(second_gateway().await));
    let world = TestWorld::new().with_peers(PeerAccess::new(second, &[7; 32], clock).unwrap());
    let bearer = format!("Bearer {}", world.org_operator(Role::Developer));
    let headers = [("authorization", bearer.as_str())];
    for view in ["content", "receipt"] {
        let path = format!("/admin/v1/requests/req_shared/{view}");
        let answer = world.call(Method::GET, &path, &headers, Value::Null).await;
        assert_eq!(answer.status.as_u16(), 404, "{view}: {answer:?}");
        assert!(!answer.body.to_string().contains("secret"), "{view}: {answer:?}");
    }
    // The views that the own call has are its own.
    for view in ["", "/explain", "/cost"] {
        let path = format!("/admin/v1/requests/req_shared{view}");
        let answer = world.call(Method::GET, &path, &headers, Value::Null).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.body["id"]),
            (200, &json!("req_2")),
            "{view}: {answer:?}"
        );
    }
    // An operator of all organisations reads the call that has the id.
    let seen = world.by(Role::Developer, Method::GET, "/requests/req_shared/content", Value::Null).await;
    assert_eq!((seen.status.as_u16(), &seen.body["request"]), (200, &json!("a secret")), "{seen:?}");
    let rows = world.parts.directory.audit_of("content.read", Some("req_shared"), 9).unwrap();
    assert_eq!(rows.len(), 1, "{rows:?}");
}

#[tokio::test]
async fn a_search_for_contents_is_in_the_audit_log_without_its_text() {
    let world = TestWorld::new();
    for (path, rows) in [("/requests?project=p", 0), ("/requests?content=refund&project=p", 1)] {
        let found = world.by(Role::Developer, Method::GET, path, Value::Null).await;
        assert_eq!(found.status.as_u16(), 200, "{found:?}");
        let noted = world.parts.directory.audit_of("content.search", None, 9).unwrap();
        assert_eq!(noted.len(), rows, "{path}: {noted:?}");
        for row in noted {
            assert_eq!(row.entry.detail, "project p, content …");
        }
    }
    let refused = world.by(Role::Viewer, Method::GET, "/requests?content=refund", Value::Null).await;
    assert_eq!(refused.status.as_u16(), 403, "{refused:?}");
    assert_eq!(world.parts.directory.audit_of("content.search", None, 9).unwrap().len(), 1);
}

#[tokio::test]
async fn usage_is_that_of_all_gateways_and_names_those_that_are_missing() {
    let clock = || Arc::new(ManualClock::at(NOW));
    let second = Arc::new(SecondGateway(second_gateway().await));
    let world = TestWorld::new().with_peers(PeerAccess::new(second, &[7; 32], clock()).unwrap());
    let path = "/usage?by=user&from=2026-11-01T00:00:00Z";
    let usage = world.by(Role::Viewer, Method::GET, path, Value::Null).await.body;
    let asked = json!({ "by": "user", "from": "2026-11-01T00:00:00Z" });
    assert_eq!(usage["others"], json!([["second", [asked]]]), "{usage}");
    assert_eq!(usage["missing_gateways"], json!([]), "{usage}");
    // An operator of one organisation asks the others for that one alone.
    let bearer = format!("Bearer {}", world.org_operator(Role::Viewer));
    let answer = world.call(Method::GET, "/admin/v1/usage", &[("authorization", &bearer)], Value::Null).await;
    assert_eq!(answer.body["others"], json!([["second", [{ "org": "o" }]]]), "{answer:?}");
    // Nothing listens there.
    let gone = Arc::new(SecondGateway("http://127.0.0.1:1".to_owned()));
    let world = TestWorld::new().with_peers(PeerAccess::new(gone, &[7; 32], clock()).unwrap());
    let alone = world.by(Role::Viewer, Method::GET, "/usage", Value::Null).await;
    assert_eq!(alone.status.as_u16(), 200, "the own usage is shown: {alone:?}");
}

#[test]
fn a_program_beside_a_gateway_asks_each_other_gateway_once_and_never_its_own() {
    /// Three live gateways that do not answer. Two have the same name.
    struct ThreeGateways;
    impl GatewayPeers for ThreeGateways {
        fn own(&self) -> GatewayPeer {
            GatewayPeer { name: String::new(), address: None }
        }
        fn others(&self) -> Result<Vec<GatewayPeer>, String> {
            let peer = |name: &str| GatewayPeer { name: name.to_owned(), address: None };
            Ok(vec![peer("a"), peer("b"), peer("b")])
        }
        fn ended(&self) -> Result<Vec<String>, String> {
            Ok(Vec::new())
        }
    }
    let access = PeerAccess::new(Arc::new(ThreeGateways), &[7; 32], Arc::new(ManualClock::at(NOW))).unwrap();
    for (own, expected) in
        [(None, vec!["a", "b", "b"]), (Some("a"), vec!["b", "b"]), (Some("b"), vec!["a", "b"])]
    {
        let usage = access.usage_elsewhere(&[], own).unwrap();
        let missing: Vec<&str> = usage.missing.iter().map(|(gateway, _)| gateway.as_str()).collect();
        assert_eq!((missing, usage.answers.len()), (expected, 0), "{own:?}");
    }
}
