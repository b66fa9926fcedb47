//! What a prompt shares with earlier calls: prefixes to keep, and earlier answers as they were generated.

use std::sync::Arc;

use headrace_call_state::{GeneratedIdCache, TokenizerMemory};
use headrace_catalog::{PastAnswers, ServedModel};
use headrace_domain::{CacheLife, CacheSalt, Call, Endpoint, KeptAnswers, Prompt, UnixNanos};
use headrace_prompt::RenderOptions;
use headrace_render::{ReusedHistory, cache_pins, encode_conversation, reuse_past_answers};
use serde_json::{Value, json};

use crate::models::{call, chat, demo, memory, tokens, with};

const NOW: UnixNanos = UnixNanos::new(1);

fn encoded(model: &ServedModel, call: &Call) -> (Vec<u32>, String) {
    let Prompt::Conversation(conversation) = &call.prompt else { panic!("a conversation") };
    let options = RenderOptions { add_generation_prompt: true, now: NOW, reasoning: None };
    let memory = memory();
    encode_conversation(model, tokens(model), conversation, &options, TokenizerMemory(&memory)).unwrap()
}

/// The text before each kept prefix's end, and how long it is kept.
fn kept(body: Value) -> Vec<(String, CacheLife)> {
    let model = demo();
    let call = call(Endpoint::Messages, body);
    let (ids, text) = encoded(&model, &call);
    let pins = cache_pins(tokens(&model), &call, &text, &ids);
    let kept = |tokens_kept: u32| tokens(&model).tokenizer.decode(&ids[..tokens_kept as usize], false);
    pins.iter().map(|pin| (kept(pin.tokens), pin.life)).collect()
}

#[test]
fn a_marked_prefix_is_kept_to_the_end_of_its_text() {
    let block = |text: &str, mark: Value| match mark {
        Value::Null => json!({"type": "text", "text": text}),
        mark => json!({"type": "text", "text": text, "cache_control": mark}),
    };
    let (none, minutes) = (Value::Null, json!({"type": "ephemeral"}));
    let hour = json!({"type": "ephemeral", "ttl": "1h"});
    let body = |system: &Value, first: &Value, more: Value| {
        let body = json!({"system": [block("Be brief.", system.clone())], "messages": [
            {"role": "user", "content": [block("A first question.", first.clone())]},
            {"role": "assistant", "content": "An answer."},
            {"role": "user", "content": [block("A second one.", Value::Null)]},
        ]});
        with(body, more)
    };
    let head = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n";
    let first = format!("{head}A first question.");
    let rest = "<|im_end|>\n<|im_start|>assistant\nAn answer.<|im_end|>\n<|im_start|>user\nA second one.";
    for (body, expected) in [
        (body(&none, &none, json!({})), vec![]),
        (body(&hour, &none, json!({})), vec![(head.to_owned(), CacheLife::Hour)]),
        (body(&none, &minutes, json!({})), vec![(first.clone(), CacheLife::Minutes)]),
        (
            body(&hour, &minutes, json!({})),
            vec![(head.to_owned(), CacheLife::Hour), (first.clone(), CacheLife::Minutes)],
        ),
        (
            body(&none, &none, json!({"cache_control": {"type": "ephemeral"}})),
            vec![(format!("{first}{rest}"), CacheLife::Minutes)],
        ),
    ] {
        assert_eq!(kept(body.clone()), expected, "{body}");
    }
}

#[test]
fn text_that_is_not_in_the_prompt_keeps_nothing() {
    let model = demo();
    let marked = call(
        Endpoint::Messages,
        json!({"messages": [{"role": "user", "content": [
            {"type": "text", "text": "here", "cache_control": {"type": "ephemeral"}}]}]}),
    );
    let (ids, _) = encoded(&model, &marked);
    assert!(cache_pins(tokens(&model), &marked, "another text", &ids).is_empty());
    let raw = call(Endpoint::Completions, json!({"prompt": "here"}));
    assert!(cache_pins(tokens(&model), &raw, "here", &ids).is_empty());
}

#[test]
fn an_earlier_answer_is_reused_as_it_was_generated() {
    let model = demo();
    let tokenizer = &tokens(&model).tokenizer;
    let answer = "caches keep things";
    let mut generated: Vec<u32> =
        answer.chars().flat_map(|c| tokenizer.encode_plain(&c.to_string(), false).unwrap()).collect();
    generated.push(tokenizer.id_of("<|im_end|>").unwrap());
    let second = |more: Value| {
        chat(with(
            json!({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": answer},
                {"role": "user", "content": "Why?"}]}),
            more,
        ))
    };
    let salt = |tenant: &str| CacheSalt::derive(&[1; 32], tenant, "m", None);
    let cache = Arc::new(GeneratedIdCache::default());
    let reused = |model: &ServedModel, call: &Call, tenant: &str| {
        let (ids, text) = encoded(model, call);
        let salt = salt(tenant);
        let reused =
            reuse_past_answers(model, tokens(model), call, (&cache, &salt), (ids.clone(), Some(&text)), NOW);
        (ids, reused)
    };
    let (first, ReusedHistory { ids, kept_answers, recorder }) = reused(&model, &chat(json!({})), "a");
    assert_eq!((&ids, &kept_answers), (&first, &None));
    recorder.unwrap().keep(&generated, NOW);

    let (fresh, history) = reused(&model, &second(json!({})), "a");
    let computed: Vec<u32> = first.iter().chain(&generated).copied().collect();
    assert!(history.ids.starts_with(&computed) && !fresh.starts_with(&computed));
    assert_eq!(tokenizer.decode(&history.ids, false), tokenizer.decode(&fresh, false));
    let Some(KeptAnswers { answers: 1, tokens }) = history.kept_answers else {
        panic!("{:?}", history.kept_answers)
    };
    assert!(tokens as usize >= generated.len() && history.recorder.is_some());

    // Another tenant, a seed and the operator keep the text as it is.
    let (ids, other) = reused(&model, &second(json!({})), "b");
    assert_eq!((other.ids, other.kept_answers), (ids, None));
    let mut as_text = demo();
    as_text.policy.past_answers = PastAnswers::AsText;
    for (model, call) in [(&model, second(json!({"seed": 7}))), (&as_text, second(json!({})))] {
        let (ids, history) = reused(model, &call, "a");
        assert!(history.recorder.is_none());
        assert_eq!((history.ids, history.kept_answers), (ids, None));
    }
}
