//! Names that lead to several models. Each call goes to one of them, its conversation stays there, it is authorized by
//! the name that it asked for, and the answer names the model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use headrace_domain::{Clock, Dialect, Endpoint, ModelName};
use headrace_identity::{ExposeSecret, ModelAccess, NewKey};
use headrace_rollout::{ModelRoute, RouteArm, StickyBy};
use serde_json::{Value, json};

use crate::scripted_server::{ScriptedServer, answer_of, body, offer, server, spent, whole};
use crate::world::{MODEL, Setup, World, chat_body, header, read};

pub(crate) fn name(text: &str) -> ModelName {
    ModelName::new(text).unwrap()
}

fn route(weights: &[(&str, u32)], sticky: StickyBy) -> BTreeMap<ModelName, ModelRoute> {
    let arms = weights
        .iter()
        .map(|&(model, weight)| RouteArm { model: name(model), weight, canary: None })
        .collect();
    BTreeMap::from([(name("moving"), ModelRoute { arms, sticky, ..ModelRoute::default() })])
}

fn servers(calls: usize) -> (Arc<ScriptedServer>, Arc<ScriptedServer>) {
    let scripts = || (0..calls).map(|_| whole(&answer_of("Hi you"))).collect();
    (server("one", Dialect::OpenAi, scripts()), server("two", Dialect::OpenAi, scripts()))
}

pub(crate) async fn ask(world: &World, more: &Value) -> (u16, Option<String>, Value) {
    let mut body = body(false, &json!({"model": "moving"}));
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    let answer = world.call(Endpoint::ChatCompletions, body).await;
    let (status, model) = (answer.status, header(&answer, "x-headrace-model").map(str::to_owned));
    (status, model, serde_json::from_str(&read(answer).await).unwrap())
}

#[tokio::test]
async fn a_call_goes_to_one_of_its_models_and_says_to_which() {
    let (one, two) = servers(60);
    let world = World::new(Setup::default());
    let models: [(&str, &[Arc<ScriptedServer>]); 2] =
        [("a-1", std::slice::from_ref(&one)), ("a-2", std::slice::from_ref(&two))];
    offer(&world, &models, route(&[("a-1", 3), ("a-2", 1)], StickyBy::None));
    let mut cost = 0;
    for _ in 0..40 {
        let (status, model, _) = ask(&world, &json!({})).await;
        let record = world.last_trace();
        assert_eq!((status, record.model_asked.as_deref()), (200, Some("moving")));
        assert_eq!(model, record.model_served);
        // Each at its own price.
        cost += if record.model_served.as_deref() == Some("a-2") { 2 * 28_000 } else { 28_000 };
        assert_eq!(spent(world.balance_when_idle().await), cost);
    }
    let asked = |of: &ScriptedServer| of.asked.lock().unwrap().len();
    assert_eq!(asked(&one) + asked(&two), 40);
    assert!(asked(&one) > asked(&two) && asked(&two) > 0, "{} and {}", asked(&one), asked(&two));
}

#[tokio::test]
async fn turns_of_a_conversation_stay_with_their_model() {
    let (one, two) = servers(100);
    let world = World::new(Setup::default());
    let models: [(&str, &[Arc<ScriptedServer>]); 2] = [("a-1", &[one]), ("a-2", &[two])];
    offer(&world, &models, route(&[("a-1", 1), ("a-2", 1)], StickyBy::Conversation));
    let mut seen = BTreeSet::new();
    for talk in 0..12 {
        let mut messages = vec![json!({"role": "user", "content": format!("talk {talk}")})];
        let (_, first, _) = ask(&world, &json!({"messages": messages})).await;
        messages.extend([
            json!({"role": "assistant", "content": "Hi"}),
            json!({"role": "user", "content": "more"}),
        ]);
        let (_, second, _) = ask(&world, &json!({"messages": messages})).await;
        assert_eq!(first, second);
        seen.insert(first);
    }
    assert_eq!(seen.len(), 2, "all went one way");
}

#[tokio::test]
async fn a_name_may_lead_to_models_that_are_spoken_to_otherwise() {
    let (one, _) = servers(100);
    let world = World::new(Setup::default());
    offer(&world, &[("a-1", &[one])], route(&[("a-1", 1), (MODEL, 1)], StickyBy::None));
    let mut seen = BTreeSet::new();
    for _ in 0..24 {
        let answer = world.call(Endpoint::ChatCompletions, {
            let mut body = body(false, &json!({"model": "moving"}));
            body.as_object_mut().unwrap().remove("unknown_to_us");
            body
        });
        let answer = answer.await;
        let model = header(&answer, "x-headrace-model").unwrap().to_owned();
        let json: Value = serde_json::from_str(&read(answer).await).unwrap();
        // A passed-on answer has the server's own name. An answer written here names the version that answered.
        assert_eq!(json["model"], if model == MODEL { MODEL } else { "their-model-2026" });
        seen.insert(model);
    }
    assert_eq!(seen.len(), 2, "{seen:?}");
}

#[tokio::test]
async fn who_may_use_a_name_may_use_what_it_leads_to_and_nobody_else() {
    let (one, two) = servers(10);
    let mut world = World::new(Setup::default());
    let models: [(&str, &[Arc<ScriptedServer>]); 2] =
        [("a-1", std::slice::from_ref(&one)), ("a-2", std::slice::from_ref(&two))];
    offer(&world, &models, route(&[("a-1", 1), ("a-2", 1)], StickyBy::None));
    world.key = key_for(&world, "moving");
    assert_eq!(ask(&world, &json!({})).await.0, 200);
    for direct in ["a-1", "a-2"] {
        assert_eq!(ask(&world, &json!({"model": direct})).await.0, 404, "{direct}");
    }
    world.key = key_for(&world, "a-1");
    let (status, _, told) = ask(&world, &json!({})).await;
    let text = told.to_string();
    assert_eq!(status, 404);
    assert!(text.contains("`moving` does not exist here") && !text.contains("a-1"), "{text}");
}

/// The name that was probably meant is suggested if the key may use it. Other names are answered as if they did not
/// exist.
#[tokio::test]
async fn a_near_name_is_told_to_a_key_that_may_use_it() {
    let (one, two) = (server("one", Dialect::OpenAi, Vec::new()), server("two", Dialect::OpenAi, Vec::new()));
    let mut world = World::new(Setup::default());
    let models: [(&str, &[Arc<ScriptedServer>]); 2] =
        [("kettle-1.gguf", std::slice::from_ref(&one)), ("secret-model", std::slice::from_ref(&two))];
    offer(&world, &models, route(&[("kettle-1.gguf", 1), ("secret-model", 1)], StickyBy::None));
    world.key = key_for(&world, "kettle-1.gguf");
    for (asked, meant) in [
        ("kettle-1", Some("kettle-1.gguf")),
        ("Ketle-1.gguf", Some("kettle-1.gguf")),
        ("gpu/kettle-1", Some("kettle-1.gguf")),
        ("secret-modl", None),
        ("secret-model", None),
        ("another", None),
    ] {
        let mut body = chat_body(false);
        body["model"] = asked.into();
        let answer = world.call(Endpoint::ChatCompletions, body).await;
        assert_eq!(answer.status, 404, "{asked}");
        let json: serde_json::Value = serde_json::from_str(&read(answer).await).unwrap();
        let text = json["error"]["message"].as_str().unwrap().to_owned();
        match meant {
            Some(meant) => assert!(text.ends_with(&format!(" Did you mean `{meant}`?")), "{text}"),
            None => assert!(!text.contains("Did you mean"), "{text}"),
        }
    }
}

/// A key that may ask for this name only.
fn key_for(world: &World, model: &str) -> String {
    let models = ModelAccess::Only(BTreeSet::from([name(model)]));
    let new = NewKey { models, ..NewKey::new(world.org.clone(), world.project.clone(), "second") };
    let (_, secret) = world.directory.create_key(new, "test", world.clock.now()).unwrap();
    secret.expose_secret().to_owned()
}
