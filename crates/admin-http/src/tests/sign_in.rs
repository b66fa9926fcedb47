//! Sign-in at an identity provider, as far as it goes without one.

use std::time::Duration;

use headrace_domain::Clock;
use headrace_identity::{OperatorScope, UserLogin, UserProfile};
use headrace_jwt::{
    ClaimCondition, CodeRequest, DocumentError, DocumentFuture, DocumentSource, FetchedDocument,
    OperatorRule, ProviderClient, ProviderUser, SignInConfig, SignInProviders,
};
use secrecy::SecretString;

use super::*;

pub(super) const ISSUER: &str = "https://login.example.com";

/// A provider that leads browsers to itself and refuses every code.
struct RefusingProvider;

impl DocumentSource for RefusingProvider {
    fn fetch<'a>(&'a self, url: &'a str) -> DocumentFuture<'a> {
        let document = json!({
            "issuer": ISSUER, "jwks_uri": format!("{ISSUER}/keys"), "token_endpoint": format!("{ISSUER}/token"),
            "authorization_endpoint": format!("{ISSUER}/authorize"),
        });
        let found = url.ends_with("/openid-configuration").then(|| document.to_string().into_bytes());
        let found = found.ok_or_else(|| DocumentError { why: "connection refused".to_owned() });
        Box::pin(async move { Ok(FetchedDocument { body: found?, fresh_for: None }) })
    }
}

impl ProviderClient for RefusingProvider {
    fn exchange<'a>(&'a self, _: &'a CodeRequest) -> DocumentFuture<'a> {
        let body = br#"{"error":"invalid_grant<script>"}"#.to_vec();
        Box::pin(async move { Ok(FetchedDocument { body, fresh_for: None }) })
    }

    fn user_info<'a>(&'a self, _: &'a str, _: &'a SecretString) -> DocumentFuture<'a> {
        unreachable!("no code is accepted")
    }
}

/// A server with an identity provider `acme`.
pub(super) fn world() -> TestWorld {
    world_with(None)
}

/// A server with an identity provider `acme`. `users_of` are the organisations that may end its sessions.
fn world_with(users_of: Option<Vec<OrgId>>) -> TestWorld {
    let world = TestWorld::new();
    let rule = OperatorRule {
        when: vec![ClaimCondition { claim: "groups".to_owned(), any_of: vec!["staff".to_owned()] }],
        role: Role::Viewer,
    };
    let config = SignInConfig {
        name: "acme".to_owned(),
        label: "Acme".to_owned(),
        issuer: ISSUER.to_owned(),
        client_id: "console".to_owned(),
        client_secret: None,
        scopes: Vec::new(),
        session: Duration::from_secs(3600),
        extra_roots_pem: None,
        rules: vec![rule],
        users_of,
    };
    let providers = SignInProviders::default();
    let clock = Arc::clone(&world.clock) as Arc<dyn Clock>;
    providers.replace(vec![(config, Arc::new(RefusingProvider))], &clock, &tokio::runtime::Handle::current());
    let sessions = world.parts.sessions.as_ref().clone().with_providers(Arc::new(providers));
    world.with_sessions(sessions)
}

/// Begins a sign-in. Returns the cookie and the `state`.
async fn begin(world: &TestWorld) -> (String, String) {
    let begun = world.call(Method::GET, "/admin/v1/sign-in/acme", &[], Value::Null).await;
    assert_eq!(begun.status, StatusCode::SEE_OTHER, "{begun:?}");
    let cookie = begun.headers[header::SET_COOKIE].to_str().unwrap();
    for part in
        ["headrace_sign_in_8081=", "HttpOnly", "SameSite=Lax", "Path=/admin/v1/sign-in", "Max-Age=600"]
    {
        assert!(cookie.contains(part), "{part} in {cookie}");
    }
    let to = begun.headers[header::LOCATION].to_str().unwrap();
    assert!(
        to.starts_with("https://login.example.com/authorize?response_type=code&client_id=console"),
        "{to}"
    );
    let back = "redirect_uri=http%3A%2F%2F127.0.0.1%3A8081%2Fadmin%2Fv1%2Fsign-in%2Facme%2Fcallback&";
    assert!(to.contains(back), "{to}");
    let state = to.split("&state=").nth(1).unwrap().split('&').next().unwrap();
    (cookie.split(';').next().unwrap().to_owned(), state.to_owned())
}

async fn come_back(world: &TestWorld, cookie: &str, query: &str) -> TestAnswer {
    let path = format!("/admin/v1/sign-in/acme/callback?{query}");
    // A browser says so if another site's page led it here.
    let headers = [("cookie", cookie), ("sec-fetch-site", "cross-site")];
    world.call(Method::GET, &path, &headers, Value::Null).await
}

#[tokio::test]
async fn the_address_of_the_way_back_is_that_of_the_settings_whatever_the_host_is() {
    let world = world();
    let listed = world.call(Method::GET, "/admin/v1/sign-in", &[], Value::Null).await;
    assert_eq!(listed.body, json!({ "data": [{ "name": "acme", "label": "Acme" }] }));
    let request = Request::get("/admin/v1/sign-in/acme").header("host", "localhost:9999");
    let request = request.header("x-forwarded-host", "evil.example");
    let begun = world.send(request.body(Body::empty()).unwrap()).await;
    let to = begun.headers[header::LOCATION].to_str().unwrap();
    assert!(to.contains("redirect_uri=http%3A%2F%2F127.0.0.1%3A8081%2F") && !to.contains("evil"), "{to}");
    begin(&world).await;
}

#[tokio::test]
async fn a_callback_that_this_browser_did_not_begin_is_refused_before_the_provider_is_asked() {
    let world = world();
    let (cookie, state) = begin(&world).await;
    let (other, other_state) = begin(&world).await;
    for (cookie, query, why) in [
        ("", format!("code=c&state={state}"), "this browser has not begun"),
        ("headrace_sign_in_8081=", format!("code=c&state={state}"), "this browser has not begun"),
        (&cookie, format!("code=c&state={other_state}"), "`state`"),
        (&other, format!("code=c&state={state}"), "`state`"),
        (&cookie, "code=c".to_owned(), "`state`"),
        (&cookie, format!("state={state}"), "no `code`"),
        (&cookie, format!("code=c&state={state}&iss=https://evil.example"), "`iss`"),
        (&cookie, format!("error=access_denied&state={state}"), "access_denied"),
    ] {
        let refused = come_back(&world, cookie, &query).await;
        assert_eq!(
            (refused.status.as_u16(), refused.code()),
            (400, "sign_in_failed"),
            "{query}: {refused:?}"
        );
        assert!(refused.body["error"]["message"].as_str().unwrap().contains(why), "{why}: {refused:?}");
        assert!(!refused.headers.contains_key(header::SET_COOKIE), "no session");
    }
    let asked = come_back(&world, &cookie, &format!("code=c&state={state}&session_state=x")).await;
    let message = asked.body["error"]["message"].as_str().unwrap();
    assert!(message.contains("the provider refused the code: invalid_grantscript"), "{asked:?}");
    // Ten minutes later the beginning is too old. Until then the address has tried too often.
    let refused = come_back(&world, &cookie, &format!("code=c&state={state}")).await;
    let refused = match refused.code() {
        "too_many_attempts" => refused,
        _ => come_back(&world, &cookie, &format!("code=c&state={state}")).await,
    };
    assert_eq!((refused.status.as_u16(), refused.code()), (429, "too_many_attempts"), "{refused:?}");
    world.clock.advance(Duration::from_secs(600));
    let late = come_back(&world, &cookie, &format!("code=c&state={state}")).await;
    assert!(late.body["error"]["message"].as_str().unwrap().contains("ten minutes"), "{late:?}");
}

#[tokio::test]
async fn a_browser_gets_a_page_without_markup_of_others() {
    let world = world();
    let (cookie, state) = begin(&world).await;
    let path = format!("/admin/v1/sign-in/acme/callback?state={state}&error=%3Cscript%3E");
    let headers = [("cookie", cookie.as_str()), ("accept", "text/html,*/*")];
    let page = world.call(Method::GET, &path, &headers, Value::Null).await;
    assert_eq!(page.status, StatusCode::BAD_REQUEST);
    assert_eq!(page.headers[header::CONTENT_TYPE], "text/html; charset=utf-8");
    let text = page.body.as_str().unwrap();
    assert!(text.contains("&lt;script&gt;") && !text.contains("<script"), "{text}");
    let unknown = world.call(Method::GET, "/admin/v1/sign-in/none", &[], Value::Null).await;
    assert_eq!((unknown.status.as_u16(), unknown.code()), (404, "unknown_provider"));
}

/// An organisation's administrator deactivates a record with the issuer and subject of the server's operator.
#[tokio::test]
async fn an_organisation_with_own_operators_ends_no_session_of_the_server_unless_it_is_named() {
    let org = || OrgId::new("o").unwrap();
    for (users_of, has_own, expected) in [
        (None, false, 401),
        (None, true, 200),
        (Some(vec![org()]), true, 401),
        (Some(vec![OrgId::new("staff").unwrap()]), false, 200),
        (Some(Vec::new()), false, 200),
    ] {
        let world = world_with(users_of.clone());
        let (sessions, directory) = (&world.parts.sessions, &world.parts.directory);
        if has_own {
            let operators = sessions.operators();
            let scope = OperatorScope::Org(org());
            let (own, _) = operators.create_within("own", Role::Admin, scope, "test", NOW).unwrap();
            operators.revoke(&own.id, "test", NOW).unwrap();
        }
        let [provider, issuer, subject, name] = ["acme", ISSUER, "root", "root"].map(str::to_owned);
        let rules = sessions.providers().named("acme").unwrap().rules();
        let user = ProviderUser { provider, issuer, subject, name, role: Role::Viewer, rules };
        let operator = crate::provider_operator::record(&user).unwrap();
        let hour = Duration::from_secs(3600);
        let token = sessions.begin_for_user((&operator, user), hour, world.clock.now()).unwrap().0;
        let login = Some(UserLogin { issuer: ISSUER.to_owned(), subject: "root".to_owned() });
        let record = UserProfile { login, ..UserProfile::new("root") };
        let record = directory.create_user(org(), record, "test", NOW).unwrap();
        directory.set_account_active(&record.id, false, "test", NOW).unwrap();
        let cookie = format!("headrace_session_8081={}", token.expose());
        let answer = world.call(Method::GET, "/admin/v1/session", &[("cookie", &cookie)], Value::Null).await;
        assert_eq!(answer.status.as_u16(), expected, "{users_of:?}, own operators: {has_own}");
    }
}

#[tokio::test]
async fn a_session_of_a_user_ends_with_its_rules_its_time_and_by_sign_out() {
    let world = world();
    let sessions = &world.parts.sessions;
    let provider = sessions.providers().named("acme").unwrap();
    let [provider_name, issuer, subject, name] = ["acme", ISSUER, "ann", "ann"].map(str::to_owned);
    let (role, rules) = (Role::Viewer, provider.rules());
    let user = ProviderUser { provider: provider_name, issuer, subject, name, role, rules };
    let operator = crate::provider_operator::record(&user).unwrap();
    let hour = Duration::from_secs(3600);
    let begin = || sessions.begin_for_user((&operator, user.clone()), hour, world.clock.now()).unwrap().0;
    let status = async |token: &SecretText| {
        let cookie = format!("headrace_session_8081={}", token.expose());
        let answer = world.call(Method::GET, "/admin/v1/session", &[("cookie", &cookie)], Value::Null).await;
        (answer.status.as_u16(), answer.body["operator"].clone())
    };
    let (first, second) = (begin(), begin());
    assert_eq!(status(&first).await, (200, json!("ann (acme)")));
    sessions.end(second.expose());
    assert_eq!(status(&second).await.0, 401);
    // A record of the user in an organisation decides, too, while none of its records is active.
    let profile = |issuer: &str, name: &str| {
        let login = Some(UserLogin { issuer: issuer.to_owned(), subject: "ann".to_owned() });
        UserProfile { login, ..UserProfile::new(name) }
    };
    let (directory, o) = (&world.parts.directory, || OrgId::new("o").unwrap());
    let other = directory.create_user(o(), profile("https://other", "other"), "test", NOW).unwrap();
    directory.set_account_active(&other.id, false, "test", NOW).unwrap();
    assert_eq!(status(&begin()).await.0, 200, "a user of another issuer is another user");
    let ann = directory.create_user(o(), profile(ISSUER, "ann"), "test", NOW).unwrap();
    let third = begin();
    assert_eq!(status(&third).await.0, 200);
    directory.set_account_active(&ann.id, false, "test", NOW).unwrap();
    assert_eq!((status(&third).await.0, status(&begin()).await.0), (401, 401), "the user was deactivated");
    directory.remove_account(&ann.id, "test", NOW).unwrap();
    assert_eq!(status(&begin()).await.0, 401, "a removal is no way around");
    let again = directory.create_user(o(), profile(ISSUER, "ann"), "test", NOW).unwrap();
    assert_eq!(status(&begin()).await.0, 200, "{again:?}");
    let first = begin();
    world.clock.advance(hour - Duration::from_secs(1));
    assert_eq!(status(&first).await.0, 200);
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(status(&first).await.0, 401, "its time is over");
    let third = begin();
    assert_eq!(status(&third).await.0, 200);
    let clock = Arc::clone(&world.clock) as Arc<dyn Clock>;
    sessions.providers().replace(Vec::new(), &clock, &tokio::runtime::Handle::current());
    assert_eq!(status(&third).await.0, 401, "the provider was taken away");
}
