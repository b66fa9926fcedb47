//! Calls that are pinned to regions. No server in another region is asked, for any configuration, failure or retry. A
//! caller that may use nothing there learns why, and what is stored in another region holds none of the caller's words.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use headrace_domain::{CallOutcome, Clock, Dialect, Endpoint, ModelName, Region, Residency};
use headrace_engine_api::RelayError;
use headrace_identity::{ExposeSecret, NewKey};
use headrace_rollout::{FallbackModels, ModelRoute, RouteArm, StickyBy};
use serde_json::{Value, json};

use crate::scripted_server::{
    ScriptedServer, answer_of, body, chunk, delta, failed, finish, head, offer, server, server_in, spent,
    status, usage, whole,
};
use crate::world::{self, Arrival, MODEL, Setup, World, model_list, read, read_to_the_end};

fn only(names: &[&str]) -> Residency {
    Residency::only(names.iter().map(|name| Region::new(name).unwrap()))
}

fn pin(world: &World, regions: Residency) {
    world.directory.set_org_regions(&world.org, regions, "test", world.clock.now()).unwrap();
}

/// A key of the organisation with a pin of its own.
fn key_within(world: &World, regions: Residency) -> String {
    let new = NewKey { regions, ..NewKey::new(world.org.clone(), world.project.clone(), "second") };
    let (_, secret) = world.directory.create_key(new, "test", world.clock.now()).unwrap();
    secret.expose_secret().to_owned()
}

async fn ask(world: &World, model: &str) -> (u16, String) {
    let mut body = body(true, &json!({"model": model}));
    // Without this field, every dialect can express the body.
    body.as_object_mut().unwrap().remove("unknown_to_us");
    let answer = world.call(Endpoint::ChatCompletions, body).await;
    let status = answer.status;
    (status, read_to_the_end(answer).await.0)
}

fn asked(server: &ScriptedServer) -> usize {
    server.asked.lock().unwrap().len()
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Good answers, and failures of every kind: before any output, midway, by the caller's fault or not.
fn script(random: &mut Random) -> Vec<Option<headrace_engine_api::RelayEvent>> {
    let error = json!({"error": {"message": "no", "type": "server_error"}});
    match random.below(8) {
        0 => failed(RelayError::Connect { why: "refused".to_owned() }),
        1 => status(500, &error),
        2 => status(429, &error),
        3 => status(400, &error),
        4 => vec![head()],
        5 => vec![head(), chunk(&delta("Hi"))],
        6 => whole(&answer_of("Hi")),
        _ => vec![head(), chunk(&delta("Hi")), chunk(&finish("stop")), chunk(&usage(20, 5, 2))],
    }
}

#[tokio::test]
async fn whatever_fails_nobody_is_asked_who_is_elsewhere() {
    const PLACES: [Option<&str>; 4] = [Some("eu"), Some("us"), Some("ch"), None];
    let (mut refused, mut moved, mut turned_down, mut fell, mut chosen) = (0, 0, 0, 0, BTreeSet::new());
    for seed in 0..120 {
        let mut random = Random(seed);
        let mut servers: Vec<(Option<&str>, Arc<ScriptedServer>)> = Vec::new();
        for at in 0..1 + random.below(6) {
            let place = PLACES[random.below(4) as usize];
            let dialect = if random.below(4) == 0 { Dialect::Anthropic } else { Dialect::OpenAi };
            let scripts = (0..20).map(|_| script(&mut random)).collect();
            servers.push((place, server_in(place, &format!("s{at}"), dialect, scripts)));
        }
        let (first, second) = servers.split_at(1 + random.below(servers.len() as u64) as usize);
        let of = |servers: &[(Option<&str>, Arc<ScriptedServer>)]| -> Vec<Arc<ScriptedServer>> {
            servers.iter().map(|(_, server)| Arc::clone(server)).collect()
        };
        let (first, second) = (of(first), of(second));
        let mut models: Vec<(&str, &[Arc<ScriptedServer>])> = vec![("a", &first)];
        models.extend((!second.is_empty()).then_some(("b", &*second)));
        let arms = models.iter().map(|(name, _)| RouteArm {
            model: ModelName::new(name).unwrap(),
            weight: 1,
            canary: None,
        });
        let route =
            ModelRoute { arms: arms.collect(), sticky: StickyBy::None, seed, ..ModelRoute::default() };
        let world = World::new(Setup::default());
        // If the first model fails, is full, or accepts nothing, another one answers.
        let others: Vec<ModelName> =
            models.iter().skip(1).map(|(name, _)| ModelName::new(name).unwrap()).collect();
        let fallbacks =
            FallbackModels { failed: others.clone(), overloaded: others, ..FallbackModels::default() };
        let falls = ModelRoute { fallbacks, ..ModelRoute::to(ModelName::new("a").unwrap()) };
        let names = [("either", route), ("falls", falls)];
        let routes = names.map(|(name, route)| (ModelName::new(name).unwrap(), route));
        offer(&world, &models, BTreeMap::from(routes));
        let names: Vec<&str> = PLACES.iter().flatten().copied().filter(|_| random.below(2) == 0).collect();
        pin(&world, only(&names));
        let allowed = |place: &Option<&str>| place.is_some_and(|place| names.contains(&place));
        for _ in 0..6 {
            let name = ["a", "b", "either", "falls"][random.below(4) as usize];
            if name == "b" && second.is_empty() {
                continue;
            }
            let among = match name {
                "a" | "falls" => &servers[..first.len()],
                "b" => &servers[first.len()..],
                _ => &servers[..],
            };
            let before: usize = servers.iter().map(|(_, server)| asked(server)).sum();
            let (status, text) = ask(&world, name).await;
            let tries = servers.iter().map(|(_, server)| asked(server)).sum::<usize>() - before;
            let offered = among.iter().any(|(place, _)| allowed(place));
            assert_eq!(status == 403, !offered, "seed {seed}: {name} {names:?}: {status} {text}");
            if !offered {
                assert!(text.contains("region_not_allowed") && tries == 0, "seed {seed}: {text}");
                refused += 1;
                continue;
            }
            moved += usize::from(tries > 1);
            turned_down += usize::from(status != 200);
            let served = world.last_trace().model_served.clone();
            fell += usize::from(name == "falls" && served.as_deref() == Some("b"));
            chosen.extend(served.filter(|_| name == "either"));
        }
        for (place, server) in &servers {
            assert!(
                allowed(place) || asked(server) == 0,
                "seed {seed}: {place:?} was asked within {names:?}"
            );
        }
        for record in world.traces.0.lock().unwrap().iter() {
            for attempt in &record.attempts {
                let (place, _) =
                    servers.iter().find(|(_, told)| told.facts.upstream == attempt.worker).unwrap();
                assert!(allowed(place), "seed {seed}: {attempt:?} within {names:?}");
            }
        }
    }
    let counts = (refused, moved, turned_down, fell);
    assert!(refused > 50 && moved > 50 && turned_down > 20 && fell > 5, "{counts:?}");
    assert_eq!(chosen.len(), 2);
}

#[tokio::test]
async fn a_refusal_names_the_pin_and_where_the_model_is_offered() {
    let mut world = World::new(Setup { region: Some("us"), ..Setup::default() });
    let one = || whole(&answer_of("Hi you"));
    let servers =
        [server_in(Some("us"), "one", Dialect::OpenAi, vec![one()]), server("two", Dialect::OpenAi, vec![])];
    let near = [server_in(Some("eu"), "near", Dialect::OpenAi, vec![one(), one()])];
    let arm = |model: &str| RouteArm { model: ModelName::new(model).unwrap(), weight: 1, canary: None };
    let route = ModelRoute { arms: vec![arm("far"), arm("near")], ..ModelRoute::default() };
    let aliases = BTreeMap::from([
        (ModelName::new("moving").unwrap(), route),
        (ModelName::new("alias").unwrap(), ModelRoute::to(ModelName::new("far").unwrap())),
    ]);
    offer(&world, &[("far", &servers), ("near", &near)], aliases);
    pin(&world, only(&["eu", "ch"]));
    let (status, text) = ask(&world, "far").await;
    let json: Value = serde_json::from_str(&text).unwrap();
    let message = json["error"]["message"].as_str().unwrap();
    assert_eq!(
        (status, &json["error"]["code"], &json["error"]["param"]),
        (403, &json!("region_not_allowed"), &json!("model"))
    );
    assert!(
        message.starts_with(
            "Organisation `acme` is pinned to ch, eu, and `far` is offered in us, no region that is known."
        ),
        "{message}"
    );
    let CallOutcome::Refused(traced) = world.last_trace().outcome.clone() else { panic!() };
    assert!(traced.message.contains("pinned to ch, eu"), "{traced:?}");
    assert_eq!(spent(world.balance_when_idle().await), 0);
    // The embedded model is in the server's region.
    for (model, status) in [("alias", 403), (MODEL, 403), ("near", 200), ("moving", 200), ("nothing", 404)] {
        assert_eq!(ask(&world, model).await.0, status, "{model}");
    }
    assert_eq!(world.last_trace().model_served, None);
    let listed = |world: &World| {
        let head = world.head(model_list());
        let gateway = Arc::clone(&world.gateway);
        async move {
            let answer = world::ask(&gateway, Arrival { head, body: bytes::Bytes::new() }).await;
            let list: Value = serde_json::from_str(&read(answer).await).unwrap();
            let ids =
                list["data"].as_array().unwrap().iter().map(|card| card["id"].as_str().unwrap().to_owned());
            ids.collect::<Vec<_>>()
        }
    };
    assert_eq!(listed(&world).await, ["moving", "near"]);
    for (model, status) in [("near", 200), ("moving", 200), ("far", 403), ("nothing", 404)] {
        let shown = world.request(world::model(model), "").await;
        assert_eq!(shown.status, status, "{model}");
    }
    world.key = key_within(&world, only(&["ch"]));
    let (status, text) = ask(&world, "near").await;
    let within =
        "This key is pinned to ch, within the ch, eu of organisation `acme`, and `near` is offered in eu.";
    assert!(status == 403 && text.contains(within), "{text}");
    assert_eq!(listed(&world).await, [""; 0]);
    // The pin is removed: the next call is free to go anywhere.
    pin(&world, Residency::Anywhere);
    let (_, text) = ask(&world, "near").await;
    assert!(text.contains("This key is pinned to ch, and `near` is offered in eu."), "{text}");
    world.key = key_within(&world, Residency::Anywhere);
    assert_eq!(ask(&world, "far").await.0, 200);
}

#[tokio::test]
async fn what_is_kept_in_another_region_holds_no_words() {
    const CANARY: &str = "CANARY-of-the-call";
    let error = json!({"error": {"message": format!("cannot read: {CANARY}"), "type": "server_error"}});
    for (pinned, at, keeps) in [
        (None, Some("us"), true),
        (Some("eu"), Some("eu"), true),
        (Some("eu"), Some("us"), false),
        (Some("eu"), None, false),
    ] {
        let mut moved = 0;
        for _ in 0..12 {
            let world = World::new(Setup { region: at, ..Setup::default() });
            let broken = server_in(Some("eu"), "broken", Dialect::OpenAi, vec![status(500, &error)]);
            let good = server_in(Some("eu"), "good", Dialect::OpenAi, vec![whole(&answer_of("Hi you"))]);
            offer(&world, &[("far", &[broken, good])], BTreeMap::new());
            if let Some(pinned) = pinned {
                pin(&world, only(&[pinned]));
            }
            let (status, text) = ask(&world, "far").await;
            assert!(status == 200 && text.contains("Hi you"), "{text}");
            world.balance_when_idle().await;
            let record = world.last_trace();
            let kept = serde_json::to_string(&*record).unwrap();
            assert!(
                !kept.contains("hello out there") && !kept.contains("Hi you"),
                "no trace keeps what was said: {kept}"
            );
            if record.attempts.len() == 2 {
                moved += 1;
                assert_eq!(kept.contains(CANARY), keeps, "{pinned:?} at {at:?}: {kept}");
                assert!(kept.contains("upstream_failed"), "what it was is told all the same: {kept}");
            }
        }
        assert!(moved > 0);
    }
}

#[tokio::test]
async fn who_answers_instead_is_offered_in_the_pin() {
    let busy = || status(500, &json!({"error": {"message": "no", "type": "server_error"}}));
    let answer = || whole(&answer_of("Hi you"));
    let server = |region, name, script| server_in(Some(region), name, Dialect::OpenAi, vec![script]);
    let name = |text: &&str| ModelName::new(text).unwrap();
    for (others, answers) in [(&["far", "near"][..], true), (&["far"], false)] {
        let (first, near) = (server("eu", "a", busy()), server("eu", "c", answer()));
        let far = server("us", "b", answer());
        let world = World::new(Setup::default());
        let fallbacks =
            FallbackModels { failed: others.iter().map(name).collect(), ..FallbackModels::default() };
        let route = ModelRoute { fallbacks, ..ModelRoute::to(name(&"first")) };
        let models: [(&str, &[Arc<ScriptedServer>]); 3] =
            [("first", &[first]), ("far", std::slice::from_ref(&far)), ("near", &[near])];
        offer(&world, &models, BTreeMap::from([(name(&"moving"), route)]));
        pin(&world, only(&["eu"]));
        let (status, text) = ask(&world, "moving").await;
        let served = world.last_trace().model_served.clone();
        assert_eq!(asked(&far), 0);
        if answers {
            assert!(status == 200 && text.contains("Hi you") && served.as_deref() == Some("near"), "{text}");
        } else {
            // No other model may answer, so the first model's error remains.
            assert!(
                text.contains("upstream_failed") && served.as_deref() == Some("first"),
                "{status} {text}"
            );
        }
    }
}
