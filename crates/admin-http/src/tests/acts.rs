//! Acts and queries: a route does what its command does, the audit log names the operator, and secrets are shown once.

use super::*;

async fn ok(world: &TestWorld, role: Role, method: Method, path: &str, body: Value) -> Value {
    let answer = world.by(role, method.clone(), path, body).await;
    assert!(answer.status.is_success(), "{method} {path}: {answer:?}");
    answer.body
}

#[tokio::test]
async fn organisations_projects_keys_and_money_are_administered() {
    let world = TestWorld::new();
    let (get, post, patch, put) = (Method::GET, Method::POST, Method::PATCH, Method::PUT);
    let org = json!({ "id": "acme", "limits": { "concurrency": 3 }, "regions": ["eu"] });
    let org = ok(&world, Role::Admin, post.clone(), "/orgs", org).await;
    assert_eq!((&org["limits"]["concurrency"], &org["regions"]), (&json!(3), &json!(["eu"])));
    ok(&world, Role::Admin, post.clone(), "/projects", json!({ "id": "web", "org": "acme" })).await;
    let key = json!({ "project": "web", "name": "ci", "models": ["m"], "endpoints": ["messages"],
        "expires": "2027-01-01T00:00:00Z", "regions": ["eu"] });
    let made = ok(&world, Role::Developer, post.clone(), "/keys", key).await;
    let (id, secret) = (made["key"]["id"].as_str().unwrap(), made["secret"].as_str().unwrap());
    assert!(secret.starts_with("sk-") && made["key"]["expires"] == "2027-01-01T00:00:00Z", "{made}");
    let keys = ok(&world, Role::Viewer, get.clone(), "/keys?project=web", Value::Null).await;
    assert_eq!(keys["data"].as_array().unwrap().len(), 1);
    assert!(!keys.to_string().contains(secret), "a secret is shown once");
    let change = json!({ "limits": { "requests_per_minute": 9 } });
    let changed = ok(&world, Role::Developer, patch.clone(), &format!("/keys/{id}"), change).await;
    assert_eq!((&changed["limits"]["requests_per_minute"], &changed["regions"]), (&json!(9), &json!(["eu"])));
    let widened =
        world.by(Role::Developer, patch.clone(), &format!("/keys/{id}"), json!({ "regions": ["us"] })).await;
    assert_eq!((widened.status.as_u16(), widened.code()), (422, "widens"));
    let open = ok(&world, Role::Admin, patch.clone(), "/orgs/acme", json!({ "regions": null })).await;
    assert_eq!(open["regions"], Value::Null);
    let grant = json!({ "amount": "12.50", "reference": "invoice 17" });
    let first = ok(&world, Role::Billing, post.clone(), "/projects/web/credit", grant.clone()).await;
    assert_eq!(first["balance"], json!({ "dollars": "12.50", "nano_dollars": "12500000000" }));
    let again = ok(&world, Role::Billing, post.clone(), "/projects/web/credit", grant).await;
    assert_eq!((&again["before"], &again["balance"]), (&json!(true), &first["balance"]), "once");
    let back = json!({ "amount": "2.5", "reference": "twice", "correct": true });
    let back = ok(&world, Role::Billing, post.clone(), "/projects/web/credit", back).await;
    assert_eq!(back["balance"]["dollars"], "10.00");
    let grants = ok(&world, Role::Billing, get.clone(), "/projects/web/grants?limit=1", Value::Null).await;
    assert_eq!((&grants["data"][0]["amount"]["dollars"], &grants["next"]), (&json!("-2.50"), &json!("1")));
    let budget = ok(
        &world,
        Role::Billing,
        put.clone(),
        "/projects/web/budget",
        json!({ "limit": "5", "period": "total" }),
    )
    .await;
    assert_eq!(
        (&budget["budget"]["limit"]["dollars"], &budget["budget"]["period"]),
        (&json!("5.00"), &json!("total"))
    );
    let none = ok(&world, Role::Billing, put, "/projects/web/budget", json!({ "limit": null })).await;
    assert_eq!(none["budget"], Value::Null);
    let (rotate, overlap) = (format!("/keys/{id}/rotate"), json!({ "overlap_seconds": 60 }));
    let rotated = ok(&world, Role::Developer, post.clone(), &rotate, overlap).await;
    assert!(rotated["secret"].as_str().is_some_and(|secret| secret.starts_with("sk-")));
    assert_eq!((&rotated["key"]["id"], rotated["key"]["former_until"].is_string()), (&json!(id), true));
    let revoked = ok(&world, Role::Developer, post, &format!("/keys/{id}/revoke"), Value::Null).await;
    assert_eq!(revoked["durability"], "written");
    let audit = ok(&world, Role::Admin, get, "/audit?limit=4", Value::Null).await;
    let rows = audit["data"].as_array().unwrap();
    let listed: Vec<_> =
        rows.iter().map(|row| (row["act"].as_str().unwrap(), row["actor"].as_str().unwrap())).collect();
    assert_eq!(
        listed.iter().map(|(act, _)| *act).collect::<Vec<_>>(),
        ["key.revoke", "key.rotate", "budget.set", "budget.set"]
    );
    assert_eq!(listed[0].1, world.operator(Role::Developer).actor());
    assert_eq!(listed[2].1, world.operator(Role::Billing).actor());
}

#[tokio::test]
async fn the_audit_log_is_read_page_by_page_to_its_first_row() {
    let world = TestWorld::new();
    let AdminReply::Audit(all) = world.execute(AdminCommand::ShowAudit { last: 1000, before: None }) else {
        panic!()
    };
    for limit in [1, 3, 500] {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("/audit?limit={limit}{cursor}");
            let page = ok(&world, Role::Owner, Method::GET, &path, Value::Null).await;
            seen.extend(page["data"].as_array().unwrap().iter().map(|row| row["seq"].as_u64().unwrap()));
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(seen, all.iter().rev().map(|row| row.seq).collect::<Vec<_>>(), "{limit}");
    }
}

#[tokio::test]
async fn operators_are_made_let_in_and_revoked_by_owners_and_signing_in_is_audited() {
    let world = TestWorld::new();
    let new = json!({ "name": "ann", "role": "billing" });
    let made = ok(&world, Role::Owner, Method::POST, "/operators", new.clone()).await;
    let (id, key) = (made["operator"]["id"].as_str().unwrap(), made["key"].as_str().unwrap());
    let twice = world.by(Role::Owner, Method::POST, "/operators", new).await;
    assert_eq!((twice.status.as_u16(), twice.code()), (409, "exists"));
    let link = ok(&world, Role::Owner, Method::POST, &format!("/operators/{id}/link"), Value::Null).await;
    let token = link["link"].as_str().unwrap().split_once("#sign-in=").unwrap().1;
    let entered = world.call(Method::POST, "/admin/v1/session", &[], json!({ "link": token })).await;
    assert_eq!(entered.body["operator"], "ann");
    let list = ok(&world, Role::Owner, Method::GET, "/operators", Value::Null).await;
    assert!(list.to_string().contains(id) && !list.to_string().contains(key), "{list}");
    let audit = ok(&world, Role::Owner, Method::GET, "/audit?limit=3", Value::Null).await;
    let acts: Vec<_> =
        audit["data"].as_array().unwrap().iter().map(|row| row["act"].as_str().unwrap()).collect();
    assert_eq!(acts, ["operator.sign_in", "operator.link", "operator.create"]);
    let owner = world.operator(Role::Owner).id.clone();
    let last = world.by(Role::Owner, Method::DELETE, &format!("/operators/{owner}"), Value::Null).await;
    assert_eq!((last.status.as_u16(), last.code()), (409, "last_owner"));
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_its_field() {
    let world = TestWorld::new();
    for (method, path, body, status, field) in [
        (Method::POST, "/orgs", json!({ "id": "a b" }), 400, "id"),
        (Method::POST, "/orgs", json!({ "id": "a", "surprise": 1 }), 400, "surprise"),
        (
            Method::POST,
            "/orgs",
            json!({ "id": "a", "limits": { "concurrency": -1 } }),
            400,
            "limits.concurrency",
        ),
        (Method::POST, "/keys", json!({ "project": "p", "name": "" }), 422, "name"),
        (
            Method::POST,
            "/keys",
            json!({ "project": "p", "name": "n", "endpoints": ["x"] }),
            400,
            "endpoints[0]",
        ),
        (
            Method::POST,
            "/keys",
            json!({ "project": "p", "name": "n", "expires": "2001-01-01T00:00:00Z" }),
            422,
            "expires",
        ),
        (Method::POST, "/projects/p/credit", json!({ "amount": "1e9" }), 400, "amount"),
        (Method::POST, "/projects/p/credit", json!({ "amount": 5 }), 400, "amount"),
        (Method::GET, "/audit?cursor=x", Value::Null, 400, "cursor"),
        (Method::POST, "/operators", json!({ "name": "n", "role": "god" }), 400, "role"),
    ] {
        let answer = world.by(Role::Owner, method, path, body.clone()).await;
        assert_eq!(answer.status.as_u16(), status, "{path} {body}: {answer:?}");
        assert_eq!(answer.body["error"]["field"], field, "{path} {body}: {answer:?}");
    }
    for path in ["/keys/none/revoke", "/upstreams/none/drain", "/routes/none/resume", "/projects/none/credit"]
    {
        let answer = world.by(Role::Owner, Method::POST, path, json!({ "amount": "1" })).await;
        assert!(matches!(answer.status.as_u16(), 404 | 503), "{path}: {answer:?}");
    }
    let long = json!({ "id": "a".repeat(70_000) });
    let answer = world.by(Role::Owner, Method::POST, "/orgs", long).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (413, "too_large"));
}

#[tokio::test]
async fn who_sees_no_money_sees_none_in_the_status() {
    let world = TestWorld::new();
    for (role, sees) in
        [(Role::Viewer, false), (Role::Developer, false), (Role::Billing, true), (Role::Owner, true)]
    {
        let status = ok(&world, role, Method::GET, "/status", Value::Null).await;
        assert_eq!(!status["totals"].is_null(), sees, "{role}");
    }
}

#[tokio::test]
async fn a_lost_ledger_gets_its_accounts_back_and_a_right_clock_stays() {
    let world = TestWorld::new();
    let opened = world.by(Role::Admin, Method::POST, "/ledger/accounts", Value::Null).await;
    assert_eq!((opened.status.as_u16(), &opened.body), (200, &json!({ "opened": 0 })), "{opened:?}");
    let set = || world.by(Role::Admin, Method::POST, "/ledger/clock", Value::Null);
    let needless = set().await;
    assert_eq!((needless.status.as_u16(), needless.code()), (422, "invalid"), "{needless:?}");
    let ahead = NOW.after(std::time::Duration::from_secs(3600));
    let grant = AdminCommand::GrantCredit {
        org: OrgId::new("o").unwrap(),
        amount: headrace_domain::NanoDollars::new(1),
        kind: GrantKind::Promotional,
        reference: "from the future".to_owned(),
    };
    world.service.execute(grant, "test", ahead).unwrap();
    let set = set().await;
    assert_eq!(set.status.as_u16(), 200, "{set:?}");
    assert!(set.body["from"].as_str() > set.body["to"].as_str(), "{set:?}");
}
