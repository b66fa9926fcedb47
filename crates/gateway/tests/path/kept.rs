//! Earlier answers whose text encodes to other ids than were generated. The next prompt continues from the generated
//! ids, only for the same tenant, and the trace says so.

use headrace_call_api::{Question, RequestTarget};
use headrace_catalog::{ModelPolicy, PastAnswers};
use headrace_domain::{Endpoint, KeptAnswers};
use serde_json::{Value, json};

use crate::world::{MODEL, Script, Setup, World, read};

const ANSWER: &str = "caches keep things";

/// The answer with one token per character, and the token that ends it.
fn spelt(world: &World) -> &'static [(u32, &'static str)] {
    let tokenizer = world.tokenizer();
    let characters = ANSWER.char_indices().map(|(at, c)| {
        let text = &ANSWER[at..at + c.len_utf8()];
        let ids = tokenizer.encode_plain(text, false).unwrap();
        assert_eq!(ids.len(), 1);
        (ids[0], text)
    });
    let end = (tokenizer.id_of("<|im_end|>").unwrap(), "");
    Vec::leak(characters.chain([end]).collect())
}

fn world(policy: ModelPolicy) -> (World, &'static [(u32, &'static str)]) {
    let world = World::new(Setup { policy, ..Setup::default() });
    let spelt = spelt(&world);
    world.script(Script::Spell(spelt));
    (world, spelt)
}

fn first() -> Value {
    json!({"model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": "What do caches do?"}]})
}

fn second(answer: &str, more: &Value) -> Value {
    let mut body = first();
    let turns = [json!({"role": "assistant", "content": answer}), json!({"role": "user", "content": "Why?"})];
    body["messages"].as_array_mut().unwrap().extend(turns);
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

async fn call(world: &World, endpoint: Endpoint, body: Value) -> Value {
    let answer = world.call(endpoint, body).await;
    assert_eq!(answer.status, 200);
    let answer = serde_json::from_str(&read(answer).await).unwrap();
    world.balance_when_idle().await;
    answer
}

fn last_prompt(world: &World) -> Vec<u32> {
    world.engine.jobs.lock().unwrap().last().unwrap().prompt.to_vec()
}

/// The second turn's prompt in a world that generated no first answer.
async fn as_text() -> Vec<u32> {
    let (world, _) = world(ModelPolicy::default());
    call(&world, Endpoint::ChatCompletions, second(ANSWER, &json!({}))).await;
    assert_eq!(world.last_trace().kept_answers, None);
    last_prompt(&world)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_goes_on_with_an_answer_as_it_was_generated() {
    let fresh = as_text().await;
    for endpoint in [Endpoint::ChatCompletions, Endpoint::Messages] {
        let (world, spelt) = world(ModelPolicy::default());
        call(&world, endpoint, first()).await;
        let mut computed = last_prompt(&world);
        computed.extend(spelt.iter().map(|(id, _)| id));
        call(&world, endpoint, second(ANSWER, &json!({}))).await;
        let prompt = last_prompt(&world);
        assert!(prompt.starts_with(&computed) && !fresh.starts_with(&computed));
        let tokenizer = world.tokenizer();
        assert_eq!(tokenizer.decode(&prompt, false), tokenizer.decode(&fresh, false), "it says the same");
        let Some(KeptAnswers { answers: 1, tokens }) = world.last_trace().kept_answers else {
            panic!("it says so")
        };
        assert!(tokens as usize >= spelt.len());
        let explained = second(ANSWER, &json!({"headrace": {"explain": true}}));
        let told = call(&world, endpoint, explained).await;
        let (answers, of) = (&told["headrace"]["kept_answers"]["answers"], &told["headrace"]["request_id"]);
        assert_eq!(answers, &json!(1), "{told} {of}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_goes_on_with_what_the_one_before_it_generated() {
    let (world, spelt) = world(ModelPolicy::default());
    let body = json!({"model": MODEL, "input": "What do caches do?"});
    let told = call(&world, Endpoint::Responses, body).await;
    let mut computed = last_prompt(&world);
    computed.extend(spelt.iter().map(|(id, _)| id));
    let further = json!({"model": MODEL, "input": "Why?", "previous_response_id": told["id"]});
    call(&world, Endpoint::Responses, further).await;
    assert!(last_prompt(&world).starts_with(&computed));
    assert_eq!(world.last_trace().kept_answers.unwrap().answers, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_text_another_tenant_a_seed_or_the_operator_keep_the_text_as_it_is() {
    let fresh = as_text().await;
    let (world, _) = world(ModelPolicy::default());
    call(&world, Endpoint::ChatCompletions, first()).await;
    for more in [json!({"seed": 7}), json!({"cache_salt": "of another"})] {
        call(&world, Endpoint::ChatCompletions, second(ANSWER, &more)).await;
        assert_eq!((last_prompt(&world), world.last_trace().kept_answers), (fresh.clone(), None), "{more}");
    }
    for other in ["other words", "Caches keep things"] {
        call(&world, Endpoint::ChatCompletions, second(other, &json!({}))).await;
        assert_eq!(world.last_trace().kept_answers, None, "{other}");
    }
    let (world, _) = self::world(ModelPolicy { past_answers: PastAnswers::AsText, ..ModelPolicy::default() });
    call(&world, Endpoint::ChatCompletions, first()).await;
    call(&world, Endpoint::ChatCompletions, second(ANSWER, &json!({}))).await;
    assert_eq!((last_prompt(&world), world.last_trace().kept_answers), (fresh, None));
}

/// The counted tokens are those that are charged.
#[tokio::test(flavor = "multi_thread")]
async fn a_count_knows_former_answers_too() {
    let (world, _) = world(ModelPolicy::default());
    call(&world, Endpoint::Messages, first()).await;
    let body = second(ANSWER, &json!({}));
    let mut counted = body.clone();
    counted.as_object_mut().unwrap().remove("max_tokens");
    let told = world.request(RequestTarget::Question(Question::CountTokens), counted.to_string()).await;
    let told: Value = serde_json::from_str(&read(told).await).unwrap();
    call(&world, Endpoint::Messages, body).await;
    assert_eq!(told, json!({"input_tokens": last_prompt(&world).len()}));
}
