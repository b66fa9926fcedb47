//! The matrix of routes, roles and kinds of credentials at the admin listener: each route of the admin API, of SCIM and of
//! other gateways, with each kind of credential. The routes are those of the routers, so a new one needs a row. The listener
//! asks for no client certificates.

use std::collections::BTreeMap;
use std::time::Duration;

use headrace_domain::Clock as _;
use headrace_jwt::ProviderUser;

use super::document::{EXPECTED, walked};
use super::*;
use crate::routes::gateways::PATHS;
use crate::scim;

/// The paths of SCIM with their methods, independent of the service.
const SCIM: &[&str] = &[
    "DELETE /Groups/{id}",
    "DELETE /Users/{id}",
    "GET /Groups",
    "GET /Groups/{id}",
    "GET /ResourceTypes",
    "GET /ResourceTypes/{id}",
    "GET /Schemas",
    "GET /Schemas/{id}",
    "GET /ServiceProviderConfig",
    "GET /Users",
    "GET /Users/{id}",
    "PATCH /Groups/{id}",
    "PATCH /Users/{id}",
    "POST /.search",
    "POST /Groups",
    "POST /Groups/.search",
    "POST /Users",
    "POST /Users/.search",
    "PUT /Groups/{id}",
    "PUT /Users/{id}",
];

/// What a client shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShownCredential {
    Nothing,
    /// The key of an operator of the server, or of the organisation `o`.
    OperatorKey(Role, bool),
    /// A session that such a key has opened.
    OperatorSession(Role, bool),
    /// A session of a user whom an identity provider signed in.
    ProviderSession(Role),
    /// The cookie of a session that does not exist.
    UnknownSession,
    ApiKey,
    Token,
    ScimCredential,
    /// A bearer credential of no kind.
    Unknown,
    /// `Authorization` with another scheme than `Bearer`.
    OtherScheme,
}

use ShownCredential::{
    ApiKey, Nothing, OperatorKey, OperatorSession, OtherScheme, ProviderSession, ScimCredential, Token,
    Unknown, UnknownSession,
};

impl ShownCredential {
    fn all() -> Vec<Self> {
        let places = Role::ALL.into_iter().flat_map(|role| [(role, false), (role, true)]);
        let operators =
            places.flat_map(|(role, within)| [OperatorKey(role, within), OperatorSession(role, within)]);
        let users = Role::ALL.map(ProviderSession);
        let others = [Nothing, UnknownSession, ApiKey, Token, ScimCredential, Unknown, OtherScheme];
        operators.chain(users).chain(others).collect()
    }

    /// The letter of an operator in a row of the table.
    fn letter(self) -> Option<char> {
        let (role, within) = match self {
            OperatorKey(role, within) | OperatorSession(role, within) => (role, within),
            ProviderSession(role) => (role, false),
            _ => return None,
        };
        let letter = role.name().chars().next()?;
        Some(if within { letter.to_ascii_uppercase() } else { letter })
    }

    /// The words in which a refusal names the kind.
    const fn kind(self) -> &'static str {
        match self {
            ApiKey => "an API key (`sk-…`)",
            Token => "a JWT",
            ScimCredential => "a SCIM credential (`hrscim-…`)",
            OperatorKey(..) => "an operator's key (`hrop-…`)",
            Unknown => "of no kind",
            _ => "",
        }
    }

    /// Makes a valid credential of this kind, and returns the headers that show it.
    async fn headers(self, world: &TestWorld) -> Vec<(&'static str, String)> {
        let bearer = |secret: &str| vec![("authorization", format!("Bearer {secret}"))];
        let key = |role, within| match within {
            false => world.key(role).to_owned(),
            true => world.org_operator(role),
        };
        match self {
            Nothing => Vec::new(),
            OperatorKey(role, within) => bearer(&key(role, within)),
            OperatorSession(role, within) => {
                let (cookie, csrf) = world.sign_in_by(&key(role, within)).await;
                vec![("cookie", cookie), (CSRF_HEADER, csrf)]
            }
            ProviderSession(role) => {
                let sessions = &world.parts.sessions;
                let rules = sessions.providers().named("acme").unwrap().rules();
                let [provider, issuer, subject, name] =
                    ["acme", sign_in::ISSUER, "ann", "ann"].map(str::to_owned);
                let user = ProviderUser { provider, issuer, subject, name, role, rules };
                let operator = crate::provider_operator::record(&user).unwrap();
                let hour = Duration::from_secs(3600);
                let (token, found) =
                    sessions.begin_for_user((&operator, user), hour, world.clock.now()).unwrap();
                let cookie = format!("headrace_session_8081={}", token.expose());
                vec![("cookie", cookie), (CSRF_HEADER, found.csrf.expose().to_owned())]
            }
            UnknownSession => vec![("cookie", format!("headrace_session_8081={}", "0".repeat(64)))],
            ApiKey => {
                let made = json!({ "project": "p", "name": "k" });
                let made = world.by(Role::Owner, Method::POST, "/keys", made).await;
                bearer(made.body["secret"].as_str().unwrap())
            }
            Token => bearer("eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJhbm4ifQ.c2ln"),
            ScimCredential => {
                let made = world.by(Role::Owner, Method::POST, "/scim", json!({ "org": "o" })).await;
                bearer(made.body["secret"].as_str().unwrap())
            }
            Unknown => bearer("0123456789abcdef"),
            OtherScheme => vec![("authorization", "Basic YW5uOnBhc3N3b3Jk".to_owned())],
        }
    }
}

/// What a route must answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpectedAnswer {
    /// Neither 401 nor 403.
    LetIn,
    /// 403, because the role does not suffice.
    Role,
    /// 401 with this code in the admin API.
    Refused(&'static str),
}

/// The answer of a route of the admin API with this row of the table.
fn of_admin_api(row: &str, shown: ShownCredential) -> ExpectedAnswer {
    match (shown, shown.letter()) {
        _ if row.contains('-') => ExpectedAnswer::LetIn,
        (_, Some(letter)) if row.contains(letter) => ExpectedAnswer::LetIn,
        (_, Some(_)) => ExpectedAnswer::Role,
        (Nothing | UnknownSession, None) => ExpectedAnswer::Refused("not_signed_in"),
        (_, None) => ExpectedAnswer::Refused("bad_credential"),
    }
}

/// A server, and a client that shows one kind of credential.
struct MatrixClient {
    world: TestWorld,
    shown: ShownCredential,
    headers: Vec<(&'static str, String)>,
}

impl MatrixClient {
    async fn new(shown: ShownCredential) -> Self {
        let world = sign_in::world();
        let headers = shown.headers(&world).await;
        Self { world, shown, headers }
    }

    /// Calls a route, and checks the answer.
    async fn check(&mut self, (root, method): (&str, &str), path: &str, expected: ExpectedAnswer) {
        let Self { world, shown, headers } = self;
        let is_refused = matches!(expected, ExpectedAnswer::Refused(_));
        check_answer(world, headers, (root, method), path, *shown, expected).await;
        if is_refused {
            // Wrong credentials are counted, and further ones wait.
            world.clock.advance(Duration::from_secs(120));
        } else if *shown == Nothing || (method, path) == ("DELETE", "/session") {
            *self = Self::new(*shown).await;
        }
    }
}

async fn check_answer(
    world: &TestWorld,
    headers: &[(&'static str, String)],
    (root, method): (&str, &str),
    path: &str,
    shown: ShownCredential,
    expected: ExpectedAnswer,
) {
    let method: Method = method.parse().unwrap();
    let path = format!("{root}{}", path.replace("{id}", "none").replace("{name}", "none"));
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let attempt = format!("{method} {path} with {shown:?}");
    if path.ends_with("/v1/events") && expected == ExpectedAnswer::LetIn {
        let mut request = Request::get(&path).header("host", HOST);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let answer = world.open(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status().as_u16(), 200, "a stream of events does not end: {attempt}");
        return;
    }
    let body = if method == Method::GET { Value::Null } else { json!({}) };
    let answer = world.call(method.clone(), &path, &headers, body).await;
    let status = answer.status.as_u16();
    assert_ne!(status, 500, "{attempt}: {answer:?}");
    match expected {
        ExpectedAnswer::LetIn => assert!(!matches!(status, 401 | 403), "{attempt}: {answer:?}"),
        ExpectedAnswer::Role => assert_eq!((status, answer.code()), (403, "role"), "{attempt}: {answer:?}"),
        ExpectedAnswer::Refused(code) => {
            assert_eq!((status, answer.code()), (401, code), "{attempt}: {answer:?}");
            let said = answer.body["error"]["message"].as_str().or(answer.body["detail"].as_str());
            let said = said.unwrap_or_default();
            if !root.is_empty() {
                assert!(said.contains(shown.kind()), "{attempt}: {answer:?}");
            }
        }
    }
    if method == Method::GET && root == "/admin/v1" && shown == Nothing {
        let head = world.call(Method::HEAD, &path, &headers, Value::Null).await;
        assert_eq!(head.status, answer.status, "HEAD {path}");
    }
}

#[tokio::test]
async fn each_route_of_the_admin_api_admits_the_roles_of_its_row_and_names_other_credentials() {
    let expected: BTreeMap<_, _> = EXPECTED.iter().copied().collect();
    let routes = walked();
    assert_eq!(routes, expected.keys().map(|route| (*route).to_owned()).collect::<Vec<_>>());
    for shown in ShownCredential::all() {
        let mut client = MatrixClient::new(shown).await;
        for route in &routes {
            let (method, path) = route.split_once(' ').unwrap();
            let answer = of_admin_api(expected[route.as_str()], shown);
            client.check(("/admin/v1", method), path, answer).await;
        }
    }
}

#[tokio::test]
async fn each_path_of_scim_takes_scim_credentials_alone() {
    let routes = scim::routes::ROUTES.iter();
    let mut routes: Vec<String> = routes
        .flat_map(|route| route.methods.iter().map(|method| format!("{method} {}", route.path)))
        .collect();
    routes.sort();
    assert_eq!(routes, SCIM);
    for shown in ShownCredential::all() {
        let mut client = MatrixClient::new(shown).await;
        let answer = match shown {
            ScimCredential => ExpectedAnswer::LetIn,
            _ => ExpectedAnswer::Refused(""),
        };
        for route in &routes {
            let (method, path) = route.split_once(' ').unwrap();
            client.check((scim::ROOT, method), path, answer).await;
        }
    }
}

#[tokio::test]
async fn paths_of_other_gateways_take_no_credential_of_a_client() {
    for shown in ShownCredential::all() {
        let mut client = MatrixClient::new(shown).await;
        for path in PATHS {
            client.check(("", "POST"), path, ExpectedAnswer::Refused("bad_credential")).await;
        }
    }
}
