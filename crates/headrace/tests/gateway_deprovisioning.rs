//! Who is deprovisioned at one gateway has no access at any other: two gateways on one PostgreSQL database, with calls that
//! never end by themselves. After a user is deactivated by SCIM, a key is revoked or a service account is removed, the
//! running calls end within two seconds on both, new calls are refused, and sessions end. Runs on the last version of
//! PostgreSQL that `HEADRACE_POSTGRES_BIN` names, as the step `postgres` of the test command does.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;
#[path = "../../postgres/tests/support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod postgres;
#[path = "common/token_issuer.rs"]
mod token_issuer;

use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{PATIENCE, Server, program};
use headrace_fault_server::FaultServer;
use postgres::{PostgresServer, versions};
use reqwest::Method;
use serde_json::{Value, json};
use token_issuer::TokenIssuer;
use tokio::task::JoinHandle;

const KEY: &str = "sk-integration-test-0123456789abcdef";
/// The longest time from the answer to the operator to the end of the last call.
const LONGEST: Duration = Duration::from_secs(2);

/// A gateway with an admin listener.
struct Gateway {
    server: Server,
    admin: String,
}

/// A call whose answer has begun.
struct RunningCall {
    what: String,
    rest: JoinHandle<(Instant, String)>,
}

impl Gateway {
    fn start(root: &Path, name: &str, database: &str, settings: &str) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let at = format!("127.0.0.1:{port}");
        let file = root.join(format!("{name}.toml"));
        std::fs::write(&file, settings).unwrap();
        let mut command = program();
        command.env("HEADRACE_BOOTSTRAP_KEY", KEY).env("HEADRACE_STORAGE__URL", database);
        command.arg("serve").arg("--config").arg(file);
        let server = Server::begin(command, &root.join(name), &["--admin-listen", &at], KEY);
        Self { server, admin: format!("http://{at}") }
    }

    /// Sends a request to the admin listener. Returns the status and the body.
    async fn admin(&self, method: Method, path: &str, secret: &str, body: Value) -> (u16, Value) {
        let call = reqwest::Client::new().request(method, format!("{}{path}", self.admin));
        let call = call.bearer_auth(secret).timeout(PATIENCE);
        let call = if body.is_null() { call } else { call.json(&body) };
        let answer = call.send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap_or_default())
    }

    /// Signs an operator in by key. Returns the cookie.
    async fn sign_in(&self, key: &str) -> String {
        let call = reqwest::Client::new().post(format!("{}/admin/v1/session", self.admin));
        let answer = call.json(&json!({"key": key})).timeout(PATIENCE).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        let cookie = answer.headers()["set-cookie"].to_str().unwrap();
        cookie.split(';').next().unwrap().to_owned()
    }

    /// The status of a request by a session.
    async fn session(&self, cookie: &str) -> u16 {
        let call = reqwest::Client::new().get(format!("{}/admin/v1/session", self.admin));
        call.header("cookie", cookie).timeout(PATIENCE).send().await.unwrap().status().as_u16()
    }

    /// Runs a command that must succeed, and returns the value that it prints.
    fn made(&self, args: &[&str]) -> Value {
        let printed = self.server.ok(&[args, &["--json"]].concat());
        let printed: Value = serde_json::from_str(&printed).unwrap();
        // A reply about an account has its kind beside it.
        printed["value"].get("of").unwrap_or(&printed["value"]).clone()
    }

    async fn ask(&self, credential: &str) -> reqwest::Response {
        let body =
            json!({"model": "endless", "stream": true, "messages": [{"role": "user", "content": "Hello"}]});
        let call = reqwest::Client::new().post(format!("{}/v1/chat/completions", self.server.url));
        call.bearer_auth(credential).json(&body).timeout(PATIENCE).send().await.unwrap()
    }

    /// Begins a call, as soon as this gateway knows the credential.
    async fn begin(&self, what: &str, credential: &str) -> RunningCall {
        let until = Instant::now() + PATIENCE;
        let mut answer = loop {
            let answer = self.ask(credential).await;
            if answer.status() == 200 {
                break answer;
            }
            assert!(Instant::now() < until, "{what}: {}", answer.text().await.unwrap());
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let first = answer.chunk().await.unwrap().unwrap();
        let what = format!("{what} at {}", self.server.url);
        let rest = tokio::spawn(async move {
            let mut read = first.to_vec();
            while let Ok(Some(more)) = answer.chunk().await {
                read.extend_from_slice(&more);
            }
            (Instant::now(), String::from_utf8(read).unwrap())
        });
        RunningCall { what, rest }
    }

    /// Waits until the credential is refused here. Returns the code of the refusal.
    async fn refused(&self, credential: &str, since: Instant) -> String {
        loop {
            let answer = self.ask(credential).await;
            if answer.status() != 200 {
                let body: Value = answer.json().await.unwrap();
                return body["error"]["code"].as_str().unwrap().to_owned();
            }
            assert!(since.elapsed() < LONGEST, "the credential is still accepted");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Begins a call with each credential at each gateway.
async fn begin_all(gateways: &[&Gateway], credentials: &[(&str, &str)]) -> Vec<RunningCall> {
    let mut calls = Vec::new();
    for gateway in gateways {
        for (what, credential) in credentials {
            calls.push(gateway.begin(what, credential).await);
        }
    }
    calls
}

/// Checks that all calls end in time, with an error that has this code and these words.
async fn ended(calls: Vec<RunningCall>, since: Instant, code: &str, words: &str) {
    for RunningCall { what, rest } in calls {
        let ended = tokio::time::timeout(LONGEST * 2, rest).await;
        let (at, text) = ended.unwrap_or_else(|_| panic!("{what} still runs")).unwrap();
        let took = at.saturating_duration_since(since);
        println!("{what} ended after {took:?}");
        assert!(took <= LONGEST, "{what}: {took:?}");
        assert!(text.contains(code) && text.contains(words), "{what}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deprovisioning_at_one_gateway_ends_calls_keys_tokens_and_sessions_at_all() {
    let Some(bin) = versions().pop() else { return };
    let database = PostgresServer::start(&bin);
    let (issuer, upstream) = (TokenIssuer::start().await, FaultServer::start().await.unwrap());
    let settings = format!(
        "[[upstreams]]\nname = \"u\"\nkind = \"openai\"\nurl = \"{}\"\nprice = {{ input = \"1\", output = \"2\" }}\n\
         [[models]]\nname = \"endless\"\ntargets = [\"u/stall\"]\n{}",
        upstream.url(),
        issuer.settings("")
    );
    let root = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| Gateway::start(root.path(), name, &database.url(), &settings));
    let both = [&a, &b];

    // A user by SCIM, with a key, a token, and an operator who is that user.
    let scim = a.made(&["scim", "create", "default", "--issuer", &issuer.url]);
    let scim = scim["secret"].as_str().unwrap_or_else(|| panic!("{scim}")).to_owned();
    let new = json!({"schemas": ["urn:ietf:params:scim:schemas:core:2.0:User"], "userName": "ann@example.com",
        "externalId": "ann", "active": true});
    let (status, user) = a.admin(Method::POST, "/scim/v2/Users", &scim, new).await;
    assert_eq!(status, 201, "{user}");
    let user = user["id"].as_str().unwrap();
    a.server.ok(&["users", "change", user, "--role", "developer"]);
    let secret = |made: Value| made["secret"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    let users_key = secret(a.made(&["keys", "create", "--name", "ann", "--owner", user]));
    let token = issuer.token("ann", json!({}));
    let operator = a.made(&["operators", "create", "--name", "ann", "--user", user]);
    let operator = operator["key"].as_str().unwrap().to_owned();
    // A service account with a key, and a key of its own.
    let account = a.made(&["service-accounts", "create", "ci"]);
    let account = account["id"].as_str().unwrap_or_else(|| panic!("{account}")).to_owned();
    let programs_key = secret(a.made(&["keys", "create", "--name", "ci", "--owner", &account]));
    let revoked = a.made(&["keys", "create", "--name", "leaked"]);
    let revoked_id = revoked["key"]["id"].as_str().unwrap_or_else(|| panic!("{revoked}")).to_owned();
    let revoked = secret(revoked);

    let of_user = begin_all(&both, &[("the user's key", &users_key), ("the token", &token)]).await;
    let of_program = begin_all(&both, &[("the service account's key", &programs_key)]).await;
    let of_key = begin_all(&both, &[("the key", &revoked)]).await;
    let others = begin_all(&both, &[("another key", KEY)]).await;
    // The operator has a session at the other gateway.
    let cookie = b.sign_in(&operator).await;
    assert_eq!(b.session(&cookie).await, 200);

    // SCIM deactivates the user at the first gateway.
    let patch = json!({"schemas": ["urn:ietf:params:scim:api:messages:2.0:PatchOp"],
        "Operations": [{"op": "Replace", "value": {"active": "False"}}]});
    let (status, patched) = a.admin(Method::PATCH, &format!("/scim/v2/Users/{user}"), &scim, patch).await;
    let since = Instant::now();
    assert_eq!((status, &patched["active"]), (200, &json!(false)), "{patched}");
    for gateway in both {
        assert_eq!(gateway.refused(&users_key, since).await, "invalid_api_key");
        assert_eq!(gateway.refused(&token, since).await, "user_inactive");
        let (status, body) = gateway.admin(Method::GET, "/admin/v1/keys", &operator, Value::Null).await;
        assert_eq!(status, 401, "{body}");
    }
    assert_eq!(b.session(&cookie).await, 401);
    ended(of_user, since, "user_inactive", "was deactivated while the call ran").await;

    // A key is revoked at the second gateway.
    b.server.ok(&["keys", "revoke", &revoked_id]);
    let since = Instant::now();
    for gateway in both {
        assert_eq!(gateway.refused(&revoked, since).await, "invalid_api_key");
    }
    ended(of_key, since, "invalid_api_key", "was revoked while the call ran").await;

    // A service account is removed at the second gateway.
    b.server.ok(&["service-accounts", "remove", &account]);
    let since = Instant::now();
    for gateway in both {
        assert_eq!(gateway.refused(&programs_key, since).await, "invalid_api_key");
    }
    ended(of_program, since, "user_inactive", "was deactivated while the call ran").await;

    // No one else was cut off.
    assert!(others.iter().all(|call| !call.rest.is_finished()));
    let verified: Value = serde_json::from_str(&a.server.ok(&["ledger", "verify", "--json"])).unwrap();
    assert_eq!(
        (&verified["finding_count"], &verified["totals"]["open_holds"]),
        (&json!(0), &json!(others.len())),
        "{verified}"
    );
}
