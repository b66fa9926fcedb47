//! Budget rules over the admin API.

use super::*;

#[tokio::test]
async fn budgets_are_set_listed_raised_and_removed() {
    let world = TestWorld::new();
    let (get, post, put, delete) = (Method::GET, Method::POST, Method::PUT, Method::DELETE);
    let rule = json!({
        "scope": "key", "window": "day", "measure": "dollars", "limit": "5.50", "zone": "Europe/Berlin", "thresholds": [80]
    });
    let set = world.by(Role::Billing, put.clone(), "/budgets/daily", rule).await;
    assert!(set.status.is_success(), "{set:?}");
    let shown = (&set.body["limit"], &set.body["hard"], &set.body["zone"], &set.body["counters"]);
    assert_eq!(shown, (&json!("5.50"), &json!(true), &json!("Europe/Berlin"), &json!([])));
    let raise = json!({ "limit": "9", "seconds": 3600 });
    let raised = world.by(Role::Billing, post.clone(), "/budgets/daily/raise", raise.clone()).await;
    assert_eq!(
        (&raised.body["limit"], &raised.body["limit_now"]),
        (&json!("5.50"), &json!("9.00")),
        "{raised:?}"
    );
    assert!(raised.body["raised_until"].is_string(), "{raised:?}");
    let rows = world.by(Role::Admin, get.clone(), "/budgets", Value::Null).await;
    assert_eq!(rows.body["data"][0]["name"], "daily", "{rows:?}");
    let alerts = world.by(Role::Admin, get.clone(), "/budget-alerts", Value::Null).await;
    assert_eq!(alerts.body, json!([]));
    for (body, field) in [
        (json!({ "scope": "key", "window": "day", "measure": "requests", "limit": "1.5" }), "limit"),
        (
            json!({ "scope": "key", "window": "day", "measure": "requests", "limit": "1", "zone": "Mars" }),
            "zone",
        ),
    ] {
        let refused = world.by(Role::Admin, put.clone(), "/budgets/bad", body).await;
        assert_eq!(refused.code(), "invalid", "{refused:?}");
        assert!(refused.body.to_string().contains(field), "{refused:?}");
    }
    let unknown = world.by(Role::Admin, post, "/budgets/none/raise", raise).await;
    assert_eq!((unknown.status.as_u16(), unknown.code()), (404, "unknown_budget"));
    let viewer = world.by(Role::Viewer, get, "/budgets", Value::Null).await;
    assert_eq!(viewer.status.as_u16(), 403);
    assert!(world.by(Role::Owner, delete.clone(), "/budgets/daily", Value::Null).await.status.is_success());
    let gone = world.by(Role::Owner, delete, "/budgets/daily", Value::Null).await;
    assert_eq!(gone.code(), "unknown_budget");
}
