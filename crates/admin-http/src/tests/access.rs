//! Access: sessions, links, keys, other sites' pages, other host names, guesses.

use super::*;

/// Checks that a request with these headers is refused with `status` and `code`, and changes nothing.
async fn refused(world: &TestWorld, headers: &[(&str, &str)], status: u16, code: &str) {
    let answer = world.call(Method::POST, "/admin/v1/orgs", headers, json!({ "id": "never" })).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (status, code), "{headers:?}: {answer:?}");
    let doc = answer.body["error"]["doc"].as_str().unwrap();
    assert!(doc.ends_with(&format!("/docs/admin-errors/{code}.md")), "{doc}");
    let AdminReply::Orgs(orgs) = world.execute(AdminCommand::ListOrgs) else { panic!() };
    assert!(orgs.iter().all(|org| org.id.as_str() != "never"), "{headers:?}");
}

#[tokio::test]
async fn an_act_that_another_page_could_have_sent_does_not_happen() {
    let world = TestWorld::new();
    let (cookie, csrf) = world.sign_in(Role::Owner).await;
    let cookie = ("cookie", cookie.as_str());
    let token = (CSRF_HEADER, csrf.as_str());
    refused(&world, &[], 401, "not_signed_in").await;
    refused(&world, &[("cookie", "headrace_session_8081=00")], 401, "not_signed_in").await;
    refused(&world, &[cookie], 403, "csrf").await;
    refused(&world, &[cookie, (CSRF_HEADER, "")], 403, "csrf").await;
    refused(&world, &[cookie, (CSRF_HEADER, &csrf[1..])], 403, "csrf").await;
    let (_, another) = world.sign_in(Role::Owner).await;
    refused(&world, &[cookie, (CSRF_HEADER, &another)], 403, "csrf").await;
    refused(&world, &[cookie, token, ("origin", "http://evil.example")], 403, "origin").await;
    refused(&world, &[cookie, token, ("origin", "http://127.0.0.1:3000")], 403, "origin").await;
    refused(&world, &[cookie, token, ("origin", "null")], 403, "origin").await;
    refused(&world, &[cookie, token, ("sec-fetch-site", "cross-site")], 403, "origin").await;
    refused(&world, &[cookie, token, ("sec-fetch-site", "same-site")], 403, "origin").await;
    let own = [cookie, token, ("origin", "http://127.0.0.1:8081"), ("sec-fetch-site", "same-origin")];
    let made = world.call(Method::POST, "/admin/v1/orgs", &own, json!({ "id": "mine" })).await;
    assert_eq!(made.status, StatusCode::CREATED, "{made:?}");
}

#[tokio::test]
async fn a_form_cannot_be_a_body() {
    let world = TestWorld::new();
    let key = format!("Bearer {}", world.key(Role::Owner));
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""] {
        let request = Request::post("/admin/v1/orgs").header("host", HOST).header("authorization", &key);
        let request = request.header("content-type", kind).body(Body::from(r#"{"id":"x"}"#)).unwrap();
        let answer = world.send(request).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (400, "invalid"), "{kind}");
    }
}

#[tokio::test]
async fn a_name_that_somebody_else_may_have_pointed_here_is_not_answered() {
    let world = TestWorld::new();
    for (path, host) in [
        ("/admin/v1/status", "rebound.example"),
        ("/", "rebound.example:8081"),
        ("/admin/v1/openapi.json", "127.0.0.1.example"),
    ] {
        let key = format!("Bearer {}", world.key(Role::Owner));
        let request = Request::get(path).header("host", host).header("authorization", key);
        let answer = world.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (421, "host"), "{host}{path}");
    }
    let answer = world.send(Request::get("/").body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status.as_u16(), 421, "no host at all");
}

#[tokio::test]
async fn a_link_signs_in_once() {
    let world = TestWorld::new();
    let id = world.operator(Role::Viewer).id.clone();
    let AdminReply::SignInLink { link, .. } = world.execute(AdminCommand::LinkOperator { id }) else {
        panic!()
    };
    let token = link.expose().split_once("#sign-in=").unwrap().1;
    let enter = || world.call(Method::POST, "/admin/v1/session", &[], json!({ "link": token }));
    let first = enter().await;
    assert_eq!((first.status.as_u16(), &first.body["role"]), (200, &json!("viewer")), "{first:?}");
    assert_eq!(first.body["operator"], "viewer");
    let may: Vec<_> =
        first.body["may"].as_array().unwrap().iter().map(|route| route.as_str().unwrap()).collect();
    assert!(may.contains(&"GET /status") && !may.contains(&"POST /orgs"), "{may:?}");
    let again = enter().await;
    assert_eq!((again.status.as_u16(), again.code()), (401, "bad_credential"));
    let cross = [("sec-fetch-site", "cross-site")];
    let other = world.call(Method::POST, "/admin/v1/session", &cross, json!({ "link": "x" })).await;
    assert_eq!(
        (other.status.as_u16(), other.code()),
        (403, "origin"),
        "nor does another page sign anybody in"
    );
}

#[tokio::test]
async fn a_session_ends_when_it_is_over_signed_out_of_or_its_operator_is_revoked() {
    let world = TestWorld::new();
    let status = |cookie: String| {
        let world = &world;
        async move {
            let answer =
                world.call(Method::GET, "/admin/v1/session", &[("cookie", &cookie)], Value::Null).await;
            answer.status.as_u16()
        }
    };
    let (out, csrf) = world.sign_in(Role::Viewer).await;
    assert_eq!(status(out.clone()).await, 200);
    let headers = [("cookie", out.as_str()), (CSRF_HEADER, csrf.as_str())];
    let ended = world.call(Method::DELETE, "/admin/v1/session", &headers, Value::Null).await;
    assert_eq!(ended.status.as_u16(), 204, "{ended:?}");
    assert!(ended.headers[header::SET_COOKIE].to_str().unwrap().contains("Max-Age=0"));
    assert_eq!(status(out).await, 401, "signed out");
    let (revoked, _) = world.sign_in(Role::Viewer).await;
    let id = world.operator(Role::Viewer).id.clone();
    let gone = world.by(Role::Owner, Method::DELETE, &format!("/operators/{id}"), Value::Null).await;
    assert_eq!(gone.status.as_u16(), 204, "{gone:?}");
    assert_eq!(status(revoked).await, 401, "revoked");
    let by_key = world.by(Role::Viewer, Method::GET, "/status", Value::Null).await;
    assert_eq!((by_key.status.as_u16(), by_key.code()), (401, "bad_credential"), "the key too");
    let (over, _) = world.sign_in(Role::Billing).await;
    world.clock.advance(SESSION_LIFETIME);
    assert_eq!(status(over).await, 401, "over");
}

#[tokio::test]
async fn guesses_are_slowed_down_and_those_signed_in_are_not() {
    let world = TestWorld::new();
    let (cookie, _) = world.sign_in(Role::Viewer).await;
    assert_eq!(world.by(Role::Owner, Method::GET, "/status", Value::Null).await.status.as_u16(), 200);
    let guess =
        |n: u32| world.call(Method::POST, "/admin/v1/session", &[], json!({ "key": format!("hrop-{n}") }));
    for n in 0..10 {
        assert_eq!(guess(n).await.status.as_u16(), 401, "{n}");
    }
    let slowed = guess(10).await;
    assert_eq!((slowed.status.as_u16(), slowed.code()), (429, "too_many_attempts"));
    let wait: u64 = slowed.headers[header::RETRY_AFTER].to_str().unwrap().parse().unwrap();
    let bearer = [("authorization", "Bearer hrop-11")];
    let guessed = world.call(Method::GET, "/admin/v1/status", &bearer, Value::Null).await;
    assert_eq!(guessed.status.as_u16(), 429, "a key in the header is a guess like any other");
    let by_bearer = world.by(Role::Owner, Method::GET, "/status", Value::Null).await;
    assert_eq!(
        by_bearer.status.as_u16(),
        200,
        "an operator whose key was good before does not wait for those who guess"
    );
    let unseen = world.by(Role::Admin, Method::GET, "/status", Value::Null).await;
    assert_eq!(unseen.status.as_u16(), 429, "a right guess is of no more use than a wrong one");
    world.sign_in(Role::Owner).await;
    let answer = world.call(Method::GET, "/admin/v1/status", &[("cookie", &cookie)], Value::Null).await;
    assert_eq!(answer.status.as_u16(), 200);
    world.clock.advance(std::time::Duration::from_secs(wait));
    let told = guess(12).await;
    assert_eq!((told.status.as_u16(), told.code()), (401, "bad_credential"), "as it was told");
    world.clock.advance(std::time::Duration::from_secs(60));
    let unseen = world.by(Role::Admin, Method::GET, "/status", Value::Null).await;
    assert_eq!(unseen.status.as_u16(), 200);
}

#[tokio::test]
async fn a_page_that_there_is_not_is_said_in_its_own_words() {
    let world = TestWorld::new();
    for (path, body) in [("/docs/nothing", "<!doctype html>no"), ("/nothing", "")] {
        let answer = world.call(Method::GET, path, &[], Value::Null).await;
        assert_eq!(answer.status.as_u16(), 404, "{path}");
        match body {
            "" => assert_eq!(answer.code(), "not_found"),
            body => {
                assert_eq!(answer.body, body);
                assert_eq!(answer.headers[header::CONTENT_TYPE], "text/html; charset=utf-8");
                assert_eq!(answer.headers[header::CONTENT_SECURITY_POLICY], "default-src 'none'");
            }
        }
    }
}
