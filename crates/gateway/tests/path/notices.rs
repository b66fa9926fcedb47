//! Names that lead elsewhere and names that are retired. Answers say where a name led and when it ends. After that date
//! its calls are rejected, or go to its successor.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use headrace_call_state::Answer;
use headrace_catalog::{NameRules, RetirementNotice};
use headrace_domain::{Clock, Dialect, Endpoint, HttpDate, ModelName, UnixNanos};
use headrace_identity::{ExposeSecret, ModelAccess, NewKey};
use headrace_rollout::ModelRoute;
use serde_json::{Value, json};

use crate::scripted_server::{ScriptedServer, answer_of, body, offer_by, server, spent, whole};
use crate::world::{Setup, World, header, model, model_list, read};

fn name(text: &str) -> ModelName {
    ModelName::new(text).unwrap()
}

fn in_hours(world: &World, hours: i64) -> UnixNanos {
    let now = world.clock.now();
    let away = Duration::from_secs(hours.unsigned_abs() * 3600);
    if hours < 0 { UnixNanos::new(now.get() - away.as_nanos() as u64) } else { now.after(away) }
}

fn notice(retires: UnixNanos, successor: Option<&str>) -> RetirementNotice {
    RetirementNotice { retires, deprecated: None, successor: successor.map(name), link: None, moves: false }
}

/// A world with notices and the models `a-1`, `a-2` and `a-3`. The first is also called `chat`.
fn world(notices: impl Fn(&World) -> Vec<(&'static str, RetirementNotice)>, show_aliases: bool) -> World {
    let world = World::new(Setup::default());
    let servers = ["one", "two", "three"]
        .map(|name| server(name, Dialect::OpenAi, (0..9).map(|_| whole(&answer_of("Hi you"))).collect()));
    let [one, two, three] = &servers;
    let models: [(&str, &[Arc<ScriptedServer>]); 3] = [
        ("a-1", std::slice::from_ref(one)),
        ("a-2", std::slice::from_ref(two)),
        ("a-3", std::slice::from_ref(three)),
    ];
    let notices = notices(&world).into_iter().map(|(of, notice)| (name(of), notice)).collect();
    let aliases = BTreeMap::from([(name("chat"), ModelRoute::to(name("a-1")))]);
    offer_by(&world, &models, aliases, NameRules { notices, show_aliases, ..NameRules::default() });
    world
}

async fn ask(world: &World, model: &str) -> Answer {
    world.call(Endpoint::ChatCompletions, body(false, &json!({"model": model}))).await
}

async fn list(world: &World) -> Vec<Value> {
    let answer = world.request(model_list(), "").await;
    let json: Value = serde_json::from_str(&read(answer).await).unwrap();
    json["data"].as_array().unwrap().clone()
}

#[tokio::test]
async fn an_answer_says_where_a_further_name_led_unless_that_is_switched_off() {
    let told = world(|_| Vec::new(), true);
    assert_eq!(header(&ask(&told, "chat").await, "x-headrace-alias"), Some("chat -> a-1"));
    assert_eq!(header(&ask(&told, "a-1").await, "x-headrace-alias"), None, "it is pinned");
    let silent = world(|_| Vec::new(), false);
    let answer = ask(&silent, "chat").await;
    assert_eq!(
        (header(&answer, "x-headrace-alias"), header(&answer, "x-headrace-model")),
        (None, Some("a-1"))
    );
    assert!(header(&answer, "sunset").is_none() && header(&answer, "deprecation").is_none());
}

#[tokio::test]
async fn a_name_that_ends_says_so_in_every_answer_and_in_the_list() {
    let of = |world: &World| {
        let whole = RetirementNotice {
            deprecated: Some(in_hours(world, -2)),
            link: Some("https://example.com/ends?x=1".to_owned()),
            ..notice(in_hours(world, 48), Some("a-2"))
        };
        vec![("a-1", whole), ("a-3", notice(in_hours(world, 1), None))]
    };
    let world = world(of, true);
    let ([_, (_, bare)], [(_, whole), _]) =
        (<[_; 2]>::try_from(of(&world)).unwrap(), <[_; 2]>::try_from(of(&world)).unwrap());
    let near = |header: Option<&str>, at: UnixNanos| {
        let dates = [0, 1, 2, 3]
            .map(|seconds| HttpDate(UnixNanos::new(at.get() - seconds * 1_000_000_000)).to_string());
        dates.iter().any(|date| header == Some(date))
    };
    // By the model's own name, and by one that leads to it.
    for asked in ["a-1", "chat"] {
        let answer = ask(&world, asked).await;
        assert_eq!(answer.status, 200);
        assert!(near(header(&answer, "sunset"), whole.retires), "{:?}", answer.headers);
        let since: u64 = header(&answer, "deprecation").unwrap().strip_prefix('@').unwrap().parse().unwrap();
        assert!(since.abs_diff(whole.deprecated.unwrap().seconds()) < 4);
        assert_eq!(
            header(&answer, "link"),
            Some(
                "</v1/models/a-2>; rel=\"successor-version\", <https://example.com/ends?x=1>; rel=\"deprecation\"; type=\"text/html\""
            )
        );
    }
    let answer = ask(&world, "a-3").await;
    let since: u64 = header(&answer, "deprecation").unwrap().strip_prefix('@').unwrap().parse().unwrap();
    assert!(since.abs_diff(bare.retires.seconds()) < 4 && header(&answer, "link").is_none());
    assert!(header(&ask(&world, "a-2").await, "sunset").is_none());

    let cards = list(&world).await;
    let card = |id: &str| cards.iter().find(|card| card["id"] == id).unwrap();
    for ends in ["a-1", "chat"] {
        assert_eq!(card(ends)["deprecation_replacement_model"], "a-2");
        assert!(card(ends)["deprecation"].as_str().unwrap().ends_with('Z'));
    }
    assert!(card("a-2").get("deprecation").is_none());
}

#[tokio::test]
async fn a_name_that_has_ended_is_refused_by_what_comes_after_it() {
    let mut world = world(|world| vec![("a-1", notice(in_hours(world, -1), Some("a-2")))], true);
    for asked in ["a-1", "chat"] {
        let answer = ask(&world, asked).await;
        assert_eq!(answer.status, 404, "{asked}");
        let json: Value = serde_json::from_str(&read(answer).await).unwrap();
        assert_eq!(
            (&json["error"]["code"], &json["error"]["param"]),
            (&json!("model_not_found"), &json!("model"))
        );
        let message = json["error"]["message"].as_str().unwrap();
        assert!(
            message.starts_with("The model `a-1` has been retired on ") && message.contains("Use `a-2`."),
            "{message}"
        );
    }
    assert_eq!(spent(world.balance_when_idle().await), 0);
    let ids: Vec<_> = list(&world).await.iter().map(|card| card["id"].clone()).collect();
    assert!(
        !ids.contains(&json!("a-1")) && !ids.contains(&json!("chat")) && ids.contains(&json!("a-2")),
        "{ids:?}"
    );
    assert_eq!(world.request(model("a-1"), "").await.status, 404);
    assert_eq!(world.request(model("a-2"), "").await.status, 200);

    // A caller that may not use the name does not learn that it existed.
    let models = ModelAccess::Only(BTreeSet::from([name("a-2")]));
    let new = NewKey { models, ..NewKey::new(world.org.clone(), world.project.clone(), "second") };
    let (_, secret) = world.directory.create_key(new, "test", world.clock.now()).unwrap();
    world.key = secret.expose_secret().to_owned();
    let text = read(ask(&world, "a-1").await).await;
    assert!(text.contains("`a-1` does not exist here") && !text.contains("retired"), "{text}");
}

#[tokio::test]
async fn calls_move_on_to_what_comes_after_a_name_and_after_that() {
    let moves = |notice: RetirementNotice| RetirementNotice { moves: true, ..notice };
    let of = |world: &World| {
        vec![
            ("a-1", moves(notice(in_hours(world, -2), Some("a-2")))),
            ("a-2", moves(notice(in_hours(world, -1), Some("a-3")))),
            // Its date is still to come.
            ("a-3", moves(notice(in_hours(world, 1), Some("a-1")))),
        ]
    };
    let world = world(of, true);
    for asked in ["a-1", "chat", "a-2"] {
        let answer = ask(&world, asked).await;
        assert_eq!((answer.status, header(&answer, "x-headrace-model")), (200, Some("a-3")), "{asked}");
        assert!(header(&answer, "sunset").is_some());
    }
    assert_eq!(header(&ask(&world, "a-3").await, "x-headrace-model"), None);
    assert_eq!(list(&world).await.len(), 5, "all can be asked for");
}

#[test]
fn an_end_needs_a_name_that_is_served_and_a_successor_that_is() {
    let offered = |of: &'static str, notice: fn(UnixNanos) -> RetirementNotice| {
        std::panic::catch_unwind(|| world(|world| vec![(of, notice(in_hours(world, 1)))], true)).is_ok()
    };
    assert!(offered("a-1", |at| notice(at, Some("chat"))) && offered("chat", |at| notice(at, None)));
    assert!(!offered("nobody", |at| notice(at, None)) && !offered("a-1", |at| notice(at, Some("nobody"))));
    assert!(!offered("a-1", |at| notice(at, Some("a-1"))));
    assert!(!offered("a-1", |at| RetirementNotice { moves: true, ..notice(at, None) }));
}
