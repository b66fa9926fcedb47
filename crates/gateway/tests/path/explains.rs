//! What callers learn about waiting and about the cache. A `timeout` reaches the engine, and its refusal comes back
//! with useful advice. A miss names the message and character, and never what other tenants asked.

use headrace_domain::{CacheMiss, Endpoint, MissReason, PromptPlace};
use headrace_engine_api::{Capabilities, Priority};
use headrace_trace::record_json;
use serde_json::{Value, json};

use crate::world::{MODEL, Script, Setup, WEIGHT, World, capabilities, chat_body, header, read};

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_becomes_the_jobs_deadline_and_its_refusal_says_when_to_come_back() {
    let world = World::new(Setup::default());
    let with = |timeout: Value| {
        let mut body = chat_body(false);
        body["timeout"] = timeout;
        body
    };
    for (timeout, deadline) in [(json!(2.5), Some(2_500_000_000)), (Value::Null, None)] {
        let answer = world.call(Endpoint::ChatCompletions, with(timeout)).await;
        assert_eq!(answer.status, 200);
        let job = world.engine.jobs.lock().unwrap().pop().unwrap();
        // The request's first byte came at nanosecond 0 of the clock.
        assert_eq!(job.start_deadline_ns, deadline);
        let keys = job.keys.expect("hashed once, in the stage `cache`");
        assert!(keys.are_of(&job.salt, &job.prompt));
    }
    for (for_good, status, retry) in [(false, 503, Some("3")), (true, 400, None)] {
        world.script(Script::TooLate { for_good });
        let answer = world.call(Endpoint::ChatCompletions, with(json!(5))).await;
        assert_eq!((answer.status, header(&answer, "retry-after")), (status, retry));
        let error: Value = serde_json::from_str(&read(answer).await).unwrap();
        let error = &error["error"];
        assert_eq!((&error["code"], &error["stage"]), (&json!("deadline_too_short"), &json!("place")));
        assert_eq!(error["param"], if for_good { json!("timeout") } else { Value::Null });
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("8.0 s of waiting, 2.0 s for the prompt"), "{message}");
    }
    world.balance_when_idle().await;
}

/// The keys of a prompt are those of the engine that computes it, which keeps long contexts of LongRoPE models apart.
#[tokio::test(flavor = "multi_thread")]
async fn keys_of_long_contexts_are_those_that_the_engine_uses() {
    // An engine whose model has one set of frequencies, or that is too old to report two, has one salt.
    for short_context in [None, Some(100)] {
        let capabilities = Capabilities { short_context, ..capabilities() };
        let world = World::new(Setup { capabilities: capabilities.clone(), ..Setup::default() });
        let with = |max_tokens: usize| {
            let mut body = chat_body(false);
            body["max_tokens"] = json!(max_tokens);
            body
        };
        let job = async |max_tokens: usize| {
            let answer = world.call(Endpoint::ChatCompletions, with(max_tokens)).await;
            assert_eq!(answer.status, 200);
            world.engine.jobs.lock().unwrap().pop().unwrap()
        };
        let prompt_tokens = job(1).await.prompt.len();
        assert!(prompt_tokens < 90, "{prompt_tokens}");
        for (max_tokens, is_long) in [(100 - prompt_tokens, false), (101 - prompt_tokens, true)] {
            let job = job(max_tokens).await;
            let expected = match short_context {
                Some(_) if is_long => job.salt.variant("long context"),
                _ => job.salt,
            };
            let keys = job.keys.expect("hashed once, in the stage `cache`");
            assert!(keys.are_of(&expected, &job.prompt), "{short_context:?}, {max_tokens} new tokens");
        }
        world.balance_when_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flex_call_runs_when_nothing_else_waits_with_the_weight_of_its_organisation() {
    let world = World::new(Setup::default());
    for (tier, priority, said) in [
        (Value::Null, Priority::Normal, Value::Null),
        (json!("default"), Priority::Normal, Value::Null),
        (json!("flex"), Priority::Idle, json!("flex")),
    ] {
        let mut body = chat_body(false);
        body["service_tier"] = tier;
        let answer = world.call(Endpoint::ChatCompletions, body).await;
        let answer: Value = serde_json::from_str(&read(answer).await).unwrap();
        assert_eq!(answer["service_tier"], said, "{answer}");
        let job = world.engine.jobs.lock().unwrap().pop().unwrap();
        assert_eq!((job.priority, job.weight), (priority, WEIGHT));
    }
    world.balance_when_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_miss_names_the_message_and_character_and_never_what_others_asked() {
    let world = World::new(Setup::default());
    let words = "the quick brown fox jumps over the lazy dog and runs";
    let body = json!({
        "model": MODEL, "max_tokens": 4, "headrace": {"explain": true},
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": words},
        ],
    });
    world.call(Endpoint::ChatCompletions, body.clone()).await;
    // Its trace must be written before that of the next call.
    world.balance_when_idle().await;
    let tokens = world.engine.jobs.lock().unwrap().pop().unwrap().prompt.len() as u32;
    let mut places = Vec::new();
    for token in 0..tokens {
        for elsewhere in [false, true] {
            let miss = CacheMiss { reason: MissReason::Differs, token, elsewhere, place: None, other: None };
            *world.engine.miss.lock().unwrap() = Some(miss);
            let answer = read(world.call(Endpoint::ChatCompletions, body.clone()).await).await;
            assert!(!answer.contains("elsewhere") && !answer.contains("another"), "{answer}");
            let answer: Value = serde_json::from_str(&answer).unwrap();
            let told = &answer["headrace"]["engine"];
            assert_eq!((&told["prompt_blocks"], &told["cached_blocks"]), (&json!(9), &json!(4)));
            let told = &told["cache_miss"];
            assert_eq!((&told["reason"], &told["token"]), (&json!("differs"), &json!(token)));
            world.balance_when_idle().await;
            let trace = record_json(&world.last_trace());
            for field in ["id", "model", "usage", "engine"] {
                assert_eq!(answer["headrace"][field], trace[field], "{field}");
            }
            for (name, amount) in answer["headrace"]["cost"].as_object().unwrap() {
                assert_eq!(*amount, trace["cost"][name], "{name}");
            }
            let kept = world.last_trace().engine.as_ref().unwrap().miss.unwrap();
            assert_eq!((kept.elsewhere, kept.token), (elsewhere, token));
            assert_eq!(told["place"], serde_json::to_value(kept.place).unwrap());
            places.push(kept.place.expect("this tokenizer gives its text back"));
        }
    }
    // From the template into the first message, out of it, into the second and out again, with ascending characters.
    assert!(matches!(places.first(), Some(PromptPlace::Template { before_message: 0 })), "{places:?}");
    assert!(matches!(places.last(), Some(PromptPlace::Template { before_message: 2 })), "{places:?}");
    let of = |message: u32| -> Vec<u32> {
        let at = places.iter().filter_map(|place| match place {
            PromptPlace::Message { index, character, block: None } if *index == message => Some(*character),
            _ => None,
        });
        at.collect()
    };
    for (message, text) in [(0, "Be kind."), (1, words)] {
        let characters = of(message);
        assert!(characters.is_sorted() && characters.first() == Some(&0), "{characters:?}");
        assert!(characters.iter().all(|&at| (at as usize) < text.len()), "{characters:?}");
        assert!(characters.len() >= 4, "{characters:?}");
    }
}

/// On the event loop, and off it as for long prompts.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_says_what_the_template_says_is_told_from_it() {
    for render_inline_bytes in [32 << 10, 0] {
        check_a_word_of_the_template(World::new(Setup { render_inline_bytes, ..Setup::default() })).await;
    }
}

async fn check_a_word_of_the_template(world: World) {
    let body = json!({"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "user"}]});
    read(world.call(Endpoint::ChatCompletions, body.clone()).await).await;
    // A call's trace is written after its last byte: the first call's trace must not come last.
    world.balance_when_idle().await;
    let tokens = world.engine.jobs.lock().unwrap().pop().unwrap().prompt.len() as u32;
    let mut found = Vec::new();
    for token in 0..tokens {
        let miss =
            CacheMiss { reason: MissReason::Differs, token, elsewhere: false, place: None, other: None };
        *world.engine.miss.lock().unwrap() = Some(miss);
        read(world.call(Endpoint::ChatCompletions, body.clone()).await).await;
        world.balance_when_idle().await;
        found.push(world.last_trace().engine.as_ref().unwrap().miss.unwrap().place.unwrap());
    }
    let template = |before_message| PromptPlace::Template { before_message };
    let (first, last) = (found.iter().position(|place| *place != template(0)), found.last());
    // After the begin mark and the role, which is the same word.
    assert!(first.is_some_and(|at| at >= 3), "{found:?}");
    assert_eq!(
        found.get(first.unwrap()),
        Some(&PromptPlace::Message { index: 0, block: None, character: 0 })
    );
    assert_eq!(last, Some(&template(1)));
}
