//! The matrix of routes and kinds of credentials at the public listener: each route of the edge's table, each of its methods,
//! with each kind of credential. The routes are those of the table, so a new one needs a row here. The routes of operators are in the matrix
//! of `admin-http`.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;
#[path = "common/token_issuer.rs"]
mod token_issuer;

use std::net::TcpListener;
use std::path::Path;

use common::{PATIENCE, Server, program};
use headrace_edge::{ROUTES, RouteAccess};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use reqwest::{Client, Identity, Method};
use serde_json::{Value, json};
use token_issuer::TokenIssuer;

const KEY: &str = "sk-integration-test-0123456789abcdef";

/// The paths, and k(ey) or another credential of a caller, t(icket) of another server, or - for none.
const EXPECTED: &[(&str, char)] = &[
    ("/v1/chat/completions", 'k'),
    ("/v1/completions", 'k'),
    ("/v1/messages", 'k'),
    ("/v1/responses", 'k'),
    ("/v1/messages/count_tokens", 'k'),
    ("/tokenize", 'k'),
    ("/detokenize", 'k'),
    ("/v1/responses/{*name}", 'k'),
    ("/v1/conversations", 'k'),
    ("/v1/conversations/{*name}", 'k'),
    ("/v1/moderations", 'k'),
    ("/v1/files", 'k'),
    ("/v1/files/{*name}", 'k'),
    ("/v1/uploads", 'k'),
    ("/v1/uploads/{*name}", 'k'),
    ("/v1/batches", 'k'),
    ("/v1/batches/{*name}", 'k'),
    ("/v1/messages/batches", 'k'),
    ("/v1/messages/batches/{*name}", 'k'),
    ("/v1/embeddings", 'k'),
    ("/v1/rerank", 'k'),
    ("/v2/rerank", 'k'),
    ("/v1/score", 'k'),
    ("/v1/models", 'k'),
    ("/v1/models/{*name}", 'k'),
    ("/v1/requests/{id}", 'k'),
    ("/v1/receipts/{id}", 'k'),
    ("/", '-'),
    ("/.well-known/headrace-receipts.json", '-'),
    ("/healthz", '-'),
    ("/readyz", '-'),
    ("/internal/v1/{*name}", 't'),
];

/// What a client shows, and what follows at a route that needs a key.
struct ShownCredential {
    kind: &'static str,
    /// Its connection, which may have a certificate.
    client: Client,
    headers: Vec<(&'static str, String)>,
    /// The status and words of the refusal. `None` if the credential is good.
    refused: Option<(u16, &'static str)>,
}

/// The PEM of certificates and keys: the server's, and those of an authority's clients.
struct MadeCertificates {
    folder: tempfile::TempDir,
}

impl MadeCertificates {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        std::fs::write(folder.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        let issuer = Issuer::new(params, key);
        for (name, uri) in
            [("server", None), ("known", Some("spiffe://acme/ci")), ("plain", Some("spiffe://acme/x"))]
        {
            let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            if let Some(uri) = uri {
                params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
            }
            let key = KeyPair::generate().unwrap();
            let made = params.signed_by(&key, &issuer).unwrap();
            std::fs::write(folder.path().join(format!("{name}.pem")), made.pem()).unwrap();
            std::fs::write(folder.path().join(format!("{name}.key")), key.serialize_pem()).unwrap();
        }
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A client with this certificate, or with none.
    fn client(&self, name: Option<&str>) -> Client {
        let builder = Client::builder().no_proxy().tls_danger_accept_invalid_certs(true).timeout(PATIENCE);
        let Some(name) = name else { return builder.build().unwrap() };
        let read = |ending: &str| std::fs::read(self.path().join(format!("{name}.{ending}"))).unwrap();
        let identity = Identity::from_pem(&[read("key"), read("pem")].concat()).unwrap();
        builder.identity(identity).build().unwrap()
    }
}

fn settings(made: &MadeCertificates, issuer: &TokenIssuer) -> String {
    let at = |name: &str| made.path().join(name).display().to_string();
    format!(
        "[server]\ntls_cert = \"{}\"\ntls_key = \"{}\"\nclient_ca = \"{}\"\nmax_refusals_per_peer = 100000\n\
         [[models]]\nname = \"headrace-demo\"\npath = \"builtin:demo\"\n\
         [[identity.certificates]]\nnames = [\"spiffe://acme/ci\"]\nservice_account = \"ci\"\norg = \"default\"\n{}",
        at("server.pem"),
        at("server.key"),
        at("ca.pem"),
        issuer.settings("")
    )
}

/// Makes a valid credential of each kind.
fn credentials(server: &Server, made: &MadeCertificates, issuer: &TokenIssuer) -> Vec<ShownCredential> {
    let secret = |args: &[&str], field: &str| {
        let printed: Value = serde_json::from_str(&server.ok(&[args, &["--json"]].concat())).unwrap();
        let value = printed["value"].get("of").unwrap_or(&printed["value"]).clone();
        value[field].as_str().unwrap_or_else(|| panic!("{printed}")).to_owned()
    };
    let operator = secret(&["operators", "create", "--name", "ann", "--role", "owner"], "key");
    let scim = secret(&["scim", "create", "default"], "secret");
    let token = issuer.token("ann", json!({}));
    let bearer = |secret: &str| vec![("authorization", format!("Bearer {secret}"))];
    let (plain, known, other) = (made.client(None), made.client(Some("known")), made.client(Some("plain")));
    let row = |kind, client: &Client, headers, refused| ShownCredential {
        kind,
        client: client.clone(),
        headers,
        refused,
    };
    vec![
        row("API key", &plain, bearer(KEY), None),
        row("API key in x-api-key", &plain, vec![("x-api-key", KEY.to_owned())], None),
        row("JWT", &plain, bearer(&token), None),
        row("certificate of a service account", &known, Vec::new(), None),
        row("certificate without a rule, with a key", &other, bearer(KEY), None),
        row("none", &plain, Vec::new(), Some((401, "No API key was given"))),
        row(
            "session",
            &plain,
            vec![("cookie", "headrace_session_8081=00".to_owned())],
            Some((401, "No API key was given")),
        ),
        row(
            "unknown API key",
            &plain,
            bearer("sk-unknown-0123456789abcdefgh"),
            Some((401, "The API key is not valid")),
        ),
        row("operator's key", &plain, bearer(&operator), Some((401, "an operator's key"))),
        row("SCIM credential", &plain, bearer(&scim), Some((401, "a SCIM credential"))),
        row(
            "unknown kind",
            &plain,
            bearer("0123456789abcdef"),
            Some((401, "of no kind that this server knows")),
        ),
        row(
            "other scheme",
            &plain,
            vec![("authorization", "Basic YW5uOngK".to_owned())],
            Some((401, "The API key is not valid")),
        ),
        row(
            "JWT of another issuer",
            &plain,
            bearer("eyJhbGciOiJFZERTQSJ9.eyJpc3MiOiJ4In0.c2ln"),
            Some((401, "`iss`")),
        ),
        row("certificate without a rule", &other, Vec::new(), Some((403, "none of its URI and DNS names"))),
        row("certificate and key", &known, bearer(KEY), Some((401, "Send one of them"))),
        row("certificate and unbound JWT", &known, bearer(&token), Some((401, "Send one of them"))),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_route_takes_the_credentials_of_callers_alone_and_names_the_others() {
    let paths: Vec<&str> = ROUTES.iter().map(|route| route.path).collect();
    assert_eq!(paths, EXPECTED.iter().map(|(path, _)| *path).collect::<Vec<_>>());
    let (root, made, issuer) =
        (tempfile::tempdir().unwrap(), MadeCertificates::new(), TokenIssuer::start().await);
    let file = root.path().join("headrace.toml");
    std::fs::write(&file, settings(&made, &issuer)).unwrap();
    let mut command = program();
    command.env("HEADRACE_BOOTSTRAP_KEY", KEY).arg("serve").arg("--config").arg(file);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let admin = format!("127.0.0.1:{port}");
    let server = Server::begin(command, &root.path().join("data"), &["--admin-listen", &admin], KEY);
    server.ok(&["service-accounts", "create", "ci"]);
    let url = format!("https://{}", server.address());
    let shown = credentials(&server, &made, &issuer);
    let mut asked = 0;
    for (route, (_, access)) in ROUTES.iter().zip(EXPECTED) {
        let expected = match route.access {
            RouteAccess::Key => 'k',
            RouteAccess::Ticket => 't',
            RouteAccess::Public => '-',
        };
        assert_eq!(expected, *access, "{}", route.path);
        let path = route.path.replace("{*name}", "none").replace("{id}", "req_none");
        for method in route.methods.split(", ") {
            for ShownCredential { kind, client, headers, refused } in &shown {
                let method: Method = method.parse().unwrap();
                let mut call = client.request(method.clone(), format!("{url}{path}"));
                for (name, value) in headers {
                    call = call.header(*name, value);
                }
                if method == Method::POST {
                    call = call.json(&json!({}));
                }
                let answer = call.send().await.unwrap();
                let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
                let attempt = format!("{method} {path} with {kind}: {status} {text}");
                asked += 1;
                match (access, refused) {
                    ('-', _) => assert_eq!(status, 200, "{attempt}"),
                    ('t', _) => assert!(matches!(status, 401 | 404 | 405), "{attempt}"),
                    (_, None) => assert!(status != 401 && status < 500, "{attempt}"),
                    (_, Some((expected, words))) => {
                        assert_eq!(status, *expected, "{attempt}");
                        assert!(method == Method::HEAD || text.contains(words), "{attempt}");
                    }
                }
            }
        }
    }
    println!("{asked} requests");
}
