//! The API as a browser or a program uses it, over a directory and a ledger in memory.

use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use bytes::Bytes;
use headrace_admin::{
    AdminCommand, AdminError, AdminReply, AdminService, DefaultLimits, InvoiceParty, InvoiceSettings,
    InvoiceSource, SecretText, ServerStatus, SignedAuditHead,
};
use headrace_domain::{AdminCode, ManualClock, OrgId, ProjectId, Residency, UnixNanos};
use headrace_identity::{
    Directory, HashSecret, MemoryKeyStore, OperatorRecord, OperatorScope, Operators, ProjectRecord, Role,
};
use headrace_ledger::{GrantKind, Ledger, LocalLedgerAdmin, MemoryJournal, Owner};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tower_service::Service;

use crate::connections::AdminConnection;
use crate::listener::OnConnectionLine;
use crate::seams::{
    CallRecords, CallView, Ended, FoundCall, LedgerCheck, ModelPrices, OpenHold, PlaygroundAnswer,
    PlaygroundCaller, PlaygroundEndpoint, PromptInspector, RenderAsk, ServedModel, ServerAdmin,
    SettingInForce, StoredCheckpoint, TokenizeAsk, UsageView,
};
use crate::sessions::{OperatorSessions, SESSION_LIFETIME};
use crate::who::CSRF_HEADER;
use crate::{AdminHttp, AdminParts, ConsoleAsset, ConsolePages, PeerAccess};

mod access;
mod accounts;
mod acts;
mod budgets;
mod document;
mod gateways;
mod matrix;
mod org_scope;
mod plays;
mod scim;
mod sign_in;
mod tiers;
mod watching;
mod words;

const NOW: UnixNanos = UnixNanos::new(1_790_000_000_000_000_000);
const HOST: &str = "127.0.0.1:8081";
/// The number of connections of the listener that the routes are made for.
const CONNECTIONS: usize = 256;

/// A program without models.
struct EmptyServer;

impl ServerAdmin for EmptyServer {
    fn models(&self) -> Vec<ServedModel> {
        Vec::new()
    }
    fn inspect(&self, model: &str) -> Result<Value, AdminError> {
        EchoServer::of(model, json!({ "path": "/m", "layers": 2 }))
    }
    fn checkpoints(&self) -> Vec<StoredCheckpoint> {
        let of = |name: &str| StoredCheckpoint {
            name: name.to_owned(),
            program: "Ollama",
            format: "GGUF",
            weight_bytes: 1,
            path: format!("/{name}"),
            fault: None,
        };
        ["a/one", "two:1b"].map(of).into()
    }
    fn inspect_checkpoint(&self, name: &str) -> Result<Value, AdminError> {
        match self.checkpoints().into_iter().find(|stored| stored.name == name) {
            Some(stored) => Ok(json!({ "path": stored.path })),
            None => Err(AdminError::new(AdminCode::UnknownCheckpoint, "looked everywhere", "")),
        }
    }
    fn prices(&self) -> Result<Vec<ModelPrices>, AdminError> {
        Ok(Vec::new())
    }
    fn settings(&self) -> Result<Vec<SettingInForce>, AdminError> {
        let (name, what) = ("server.listen", "Where the API listens.");
        Ok(vec![SettingInForce { name, value: None, origin: "default".to_owned(), what, live: false }])
    }
    fn verify(&self) -> Result<LedgerCheck, AdminError> {
        let (rows, transactions, snapshots) = (1, 1, 0);
        Ok(LedgerCheck { ok: true, rows, transactions, snapshots, finding_count: 0, findings: Vec::new() })
    }
    fn holds(&self) -> Vec<OpenHold> {
        Vec::new()
    }
    fn margin(&self, _: &str, _: Option<UnixNanos>, _: Option<UnixNanos>) -> Result<Value, AdminError> {
        Ok(json!([]))
    }
    fn shadow(&self, _: u32) -> Result<Value, AdminError> {
        Ok(json!([]))
    }
}

/// Echoes requests about the model `a/m`. Knows no other model.
struct EchoServer;

impl EchoServer {
    fn of(model: &str, said: Value) -> Result<Value, AdminError> {
        let unknown = || AdminError::new(AdminCode::UnknownModel, "", "");
        if model == "a/m" { Ok(said) } else { Err(unknown()) }
    }
}

impl PromptInspector for EchoServer {
    fn render(&self, model: &str, ask: RenderAsk) -> Result<Value, AdminError> {
        Self::of(
            model,
            json!({ "body": ask.body, "dialect": format!("{:?}", ask.dialect), "after": ask.after }),
        )
    }
    fn tokenize(&self, model: &str, ask: TokenizeAsk) -> Result<Value, AdminError> {
        Self::of(model, json!({ "text": ask.text, "ids": ask.ids }))
    }
    fn doctor(&self, model: &str) -> Result<Value, AdminError> {
        Self::of(model, json!({ "findings": [] }))
    }
}

/// A store with three calls: `req_1` and `req_2` of the organisation `o`, and `req_other` of another one. `req_2` has no
/// content and no receipt, and a W3C trace id that is also the id of a call of another gateway: `req_shared`.
struct OneCall {
    ended: broadcast::Sender<Value>,
}

impl CallRecords for OneCall {
    fn search(
        &self,
        named: &[(&'static str, String)],
        _: Option<&str>,
        _: usize,
    ) -> Result<Value, AdminError> {
        Ok(json!({ "data": named, "next": null }))
    }
    fn call(&self, id: &str, what: CallView) -> Result<Option<FoundCall>, AdminError> {
        let (id, org) = match id {
            "req_1" => ("req_1", "o"),
            "req_2" | "req_shared" if !matches!(what, CallView::Content | CallView::Receipt) => {
                ("req_2", "o")
            }
            "req_other" => ("req_other", "other"),
            _ => return Ok(None),
        };
        let view = json!({ "id": id, "what": format!("{what:?}"), "org": org });
        Ok(Some(FoundCall { id: id.to_owned(), org: Some(org.parse().unwrap()), view }))
    }
    fn compare(&self, a: &Value, b: &Value) -> Result<Value, AdminError> {
        Ok(json!({ "a": a["id"], "b": b["id"] }))
    }
    fn usage(
        &self,
        named: &[(&'static str, String)],
        others: &[(String, Value)],
    ) -> Result<UsageView, AdminError> {
        let (read, unread): (Vec<_>, Vec<_>) =
            others.iter().cloned().partition(|(_, usage)| usage.is_array());
        let unread = unread.into_iter().map(|(gateway, _)| (gateway, "no list".to_owned())).collect();
        let usage = if others.is_empty() { json!(named) } else { json!({ "asked": named, "others": read }) };
        Ok(UsageView { usage, unread })
    }
    fn statement(&self, project: &ProjectId, month: &str) -> Result<Value, AdminError> {
        Ok(json!({ "project": project, "month": month }))
    }
    fn cache(&self, named: &[(&'static str, String)]) -> Result<Value, AdminError> {
        Ok(json!(named))
    }
    fn now(&self) -> Value {
        json!({ "in_flight": 0 })
    }
    fn history(&self) -> Value {
        json!({ "at_unix_s": [1, 6] })
    }
    fn ended(&self) -> Ended {
        let rows = self.ended.subscribe();
        Box::pin(futures_util::stream::unfold(rows, |mut rows| async move {
            Some((rows.recv().await.ok()?, rows))
        }))
    }
}

/// Answers each call with its number, in two pieces with a pause between.
#[derive(Default)]
pub(crate) struct CountingPlayground {
    pub(crate) calls: AtomicU64,
}

impl PlaygroundCaller for CountingPlayground {
    fn ask(
        &self,
        ask: PlaygroundEndpoint,
        project: ProjectRecord,
        operator: &OperatorRecord,
        _: Bytes,
    ) -> Pin<Box<dyn Future<Output = PlaygroundAnswer> + Send>> {
        let number = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let whole = format!("{} {number} as {} by {}", ask.name(), project.id, operator.name);
        Box::pin(async move {
            let pieces = futures_util::stream::unfold(0, move |at| {
                let piece = match at {
                    0 => Some(Bytes::from(whole.clone())),
                    1 => Some(Bytes::from_static(b" end")),
                    _ => None,
                };
                async move {
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                    Some((Ok(piece?), at + 1))
                }
            });
            let headers = vec![("x-request-id", format!("req_{number}"))];
            PlaygroundAnswer {
                status: 200,
                content_type: "text/event-stream",
                headers,
                body: Box::pin(pieces),
            }
        })
    }
}

/// The console's only file, at the empty path.
fn page(path: &str) -> Option<ConsoleAsset> {
    let asset = ConsoleAsset { bytes: b"<!doctype html>", mime: "text/html; charset=utf-8", etag: "\"1\"" };
    path.is_empty().then_some(asset)
}

/// The page for a missing page of the documentation.
fn no_page(path: &str) -> Option<ConsoleAsset> {
    let asset = ConsoleAsset { bytes: b"<!doctype html>no", mime: "text/html; charset=utf-8", etag: "\"2\"" };
    path.starts_with("docs/").then_some(asset)
}

/// A server with one operator of each role.
pub(crate) struct TestWorld {
    router: Router,
    parts: AdminParts,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) service: Arc<AdminService>,
    pub(crate) played: Arc<CountingPlayground>,
    pub(crate) ended: broadcast::Sender<Value>,
    operators: Vec<(OperatorRecord, SecretText)>,
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct TestAnswer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl TestAnswer {
    pub(crate) fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }
}

impl TestWorld {
    /// The same server after a restart: state in memory is lost.
    pub(crate) fn again(&self) -> Self {
        let router = AdminHttp::new(self.parts.clone()).router(CONNECTIONS);
        let (service, played) = (Arc::clone(&self.service), Arc::clone(&self.played));
        let (clock, ended) = (Arc::clone(&self.clock), self.ended.clone());
        let operators =
            self.operators.iter().map(|(of, key)| (of.clone(), SecretText::new(key.expose().to_owned())));
        Self {
            router,
            parts: self.parts.clone(),
            clock,
            service,
            played,
            ended,
            operators: operators.collect(),
        }
    }

    /// The same server with other sessions.
    pub(crate) fn with_sessions(mut self, sessions: OperatorSessions) -> Self {
        self.parts.sessions = Arc::new(sessions);
        self.router = AdminHttp::new(self.parts.clone()).router(CONNECTIONS);
        self
    }

    /// The same server with other gateways.
    pub(crate) fn with_peers(mut self, peers: PeerAccess) -> Self {
        self.parts.peers = Some(peers);
        self.router = AdminHttp::new(self.parts.clone()).router(CONNECTIONS);
        self
    }

    pub(crate) fn new() -> Self {
        let store = Arc::new(MemoryKeyStore::default());
        let secret = || HashSecret::new([7; 32]);
        let directory = Arc::new(Directory::open(Arc::clone(&store) as _, secret()).unwrap());
        let operators = Operators::open(store, &secret()).unwrap().with_users(Arc::clone(&directory));
        let operators = Arc::new(operators);
        let journal = MemoryJournal::default();
        let (ledger, _) = Ledger::open(Box::new(journal.clone()), Owner::new(1), NOW).unwrap();
        let sessions = Arc::new(OperatorSessions::new(Arc::clone(&operators)));
        let links = Arc::clone(&sessions);
        let service = AdminService::new(
            Arc::clone(&directory),
            Arc::new(LocalLedgerAdmin::new(ledger, Arc::new(journal))),
            Box::new(DefaultLimits::default),
            Box::new(ServerStatus::default),
        )
        .with_operators(operators)
        .with_invoices(InvoiceSource {
            settings: Box::new(|| InvoiceSettings {
                seller: Some(InvoiceParty { name: "Example GmbH".to_owned(), ..InvoiceParty::default() }),
                ..InvoiceSettings::default()
            }),
            ..InvoiceSource::default()
        })
        .with_audit_signer(Box::new(|at, end| SignedAuditHead {
            at,
            rows: end.rows,
            head: end.head.to_string(),
            jws: "a.b.c".to_owned(),
            keys: json!({ "keys": [] }),
        }))
        .with_links(Box::new(move |id, now| {
            let (token, expires) = links.link(id, now).ok()?;
            Some((SecretText::new(format!("http://{HOST}/#sign-in={}", token.expose())), expires))
        }));
        let clock = Arc::new(ManualClock::at(NOW));
        let service = Arc::new(service);
        let (played, ended) = (Arc::new(CountingPlayground::default()), broadcast::Sender::new(8));
        let parts = AdminParts {
            service: Arc::clone(&service),
            sessions,
            directory,
            server: Arc::new(EmptyServer),
            prompts: Arc::new(EchoServer),
            calls: Arc::new(OneCall { ended: ended.clone() }),
            peers: None,
            playground: Arc::clone(&played) as _,
            clock: Arc::clone(&clock) as _,
            pages: ConsolePages { asset: page, missing: no_page, policy: "default-src 'none'" },
            url: format!("http://{HOST}"),
            port: 8081,
        };
        let router = AdminHttp::new(parts.clone()).router(CONNECTIONS);
        let mut world = Self { router, parts, clock, service, played, ended, operators: Vec::new() };
        for role in Role::ALL {
            let create = AdminCommand::CreateOperator {
                name: role.name().to_owned(),
                role,
                scope: OperatorScope::Server,
            };
            let AdminReply::OperatorCreated { operator, key } = world.execute(create) else { panic!() };
            world.operators.push((operator, key));
        }
        let (o, p) = (OrgId::new("o").unwrap(), ProjectId::new("p").unwrap());
        world.execute(AdminCommand::CreateOrg { id: o.clone(), limits: None, regions: Residency::Anywhere });
        world.execute(AdminCommand::CreateProject { id: p, org: o, limits: None });
        world
    }

    pub(crate) fn execute(&self, command: AdminCommand) -> AdminReply {
        self.service.execute(command, "test", NOW).unwrap()
    }

    pub(crate) fn key(&self, role: Role) -> &str {
        self.operators.iter().find(|(operator, _)| operator.role == role).unwrap().1.expose()
    }

    /// Creates an operator of the organisation `o`. Returns its key.
    pub(crate) fn org_operator(&self, role: Role) -> String {
        let scope = OperatorScope::Org(OrgId::new("o").unwrap());
        let name = format!("{role} of o");
        let reply = self.execute(AdminCommand::CreateOperator { name, role, scope });
        let AdminReply::OperatorCreated { key, .. } = reply else { panic!() };
        key.expose().to_owned()
    }

    pub(crate) fn operator(&self, role: Role) -> &OperatorRecord {
        &self.operators.iter().find(|(operator, _)| operator.role == role).unwrap().0
    }

    /// Sends a request unchanged, without reading the answer.
    pub(crate) async fn open(&self, mut request: Request<Body>) -> axum::response::Response {
        request
            .extensions_mut()
            .insert(OnConnectionLine(AdminConnection::of(IpAddr::V4(Ipv4Addr::LOCALHOST))));
        self.router.clone().call(request).await.unwrap()
    }

    /// Sends a request unchanged, and reads the answer.
    pub(crate) async fn send(&self, request: Request<Body>) -> TestAnswer {
        let response = self.open(request).await;
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        TestAnswer { status: head.status, headers: head.headers, body }
    }

    /// Sends a request with `headers`, and with `body` as JSON unless it is null.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Value,
    ) -> TestAnswer {
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, HOST);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = match body {
            Value::Null => Body::empty(),
            body => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                Body::from(body.to_string())
            }
        };
        self.send(request.body(body).unwrap()).await
    }

    /// Sends a request as the operator with `role`, by key.
    pub(crate) async fn by(&self, role: Role, method: Method, path: &str, body: Value) -> TestAnswer {
        let bearer = format!("Bearer {}", self.key(role));
        self.call(method, &format!("/admin/v1{path}"), &[("authorization", &bearer)], body).await
    }

    /// Signs in by key. Returns the cookie and the CSRF token.
    pub(crate) async fn sign_in(&self, role: Role) -> (String, String) {
        self.sign_in_by(self.key(role)).await
    }

    /// Signs in with a key. Returns the cookie and the CSRF token.
    pub(crate) async fn sign_in_by(&self, key: &str) -> (String, String) {
        let key = json!({ "key": key });
        let answer = self.call(Method::POST, "/admin/v1/session", &[], key).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        let cookie = answer.headers[header::SET_COOKIE].to_str().unwrap();
        let pair = cookie.split(';').next().unwrap().to_owned();
        (pair, answer.body["csrf"].as_str().unwrap().to_owned())
    }
}

#[tokio::test]
async fn a_cookie_is_one_that_scripts_cannot_read_and_other_sites_cannot_send() {
    let world = TestWorld::new();
    let answer =
        world.call(Method::POST, "/admin/v1/session", &[], json!({ "key": world.key(Role::Viewer) })).await;
    let cookie = answer.headers[header::SET_COOKIE].to_str().unwrap();
    let max_age = format!("Max-Age={}", SESSION_LIFETIME.as_secs());
    for part in ["headrace_session_8081=", "HttpOnly", "SameSite=Strict", "Path=/", &max_age] {
        assert!(cookie.contains(part), "{part} in {cookie}");
    }
    let csrf = answer.body["csrf"].as_str().unwrap();
    assert!(!cookie.contains(csrf) && !answer.body.to_string().contains(&cookie[22..45]));
    assert_eq!(answer.headers[header::CACHE_CONTROL], "no-store");
    assert_eq!(answer.headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
    let (cookie, csrf) = world.sign_in(Role::Admin).await;
    let headers = [("cookie", cookie.as_str()), (CSRF_HEADER, csrf.as_str())];
    let made = world.call(Method::POST, "/admin/v1/orgs", &headers, json!({ "id": "new" })).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
}
