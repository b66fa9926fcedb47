//! Which prefixes a call wants to be kept: as prompt tokens, at the places that it marks.

use headrace_domain::{CacheLife, Endpoint};
use serde_json::{Value, json};

use crate::world::{Setup, World, read};

fn block(text: &str, ttl: Option<&str>) -> Value {
    match ttl {
        Some(ttl) => {
            json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral", "ttl": ttl}})
        }
        None => json!({"type": "text", "text": text}),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_marked_prefix_reaches_the_engine_in_tokens() {
    let world = World::new(Setup::default());
    let turns = |first: Option<&str>, last: Option<&str>| {
        json!([
            {"role": "user", "content": [block("The first question, at some length.", first)]},
            {"role": "assistant", "content": "An answer."},
            {"role": "user", "content": [block("And a second one.", last)]},
        ])
    };
    for (system, first, last, whole, ends) in [
        (None, None, None, false, vec![]),
        (Some("1h"), None, None, false, vec![("Be brief.", "The first", CacheLife::Hour)]),
        (None, Some("5m"), None, false, vec![("at some length.", "<|im_end|>", CacheLife::Minutes)]),
        (
            Some("1h"),
            Some("1h"),
            Some("5m"),
            false,
            vec![
                ("Be brief.", "The first", CacheLife::Hour),
                ("at some length.", "<|im_end|>", CacheLife::Hour),
                ("second one.", "<|im_end|>", CacheLife::Minutes),
            ],
        ),
        (None, None, None, true, vec![("second one.", "<|im_end|>", CacheLife::Minutes)]),
    ] {
        let mut body = json!({"model": "demo", "max_tokens": 4, "messages": turns(first, last),
            "system": [block("Be brief.", system)]});
        if whole {
            body["cache_control"] = json!({"type": "ephemeral"});
        }
        let answer = world.call(Endpoint::Messages, body).await;
        let (status, text) = (answer.status, read(answer).await);
        assert_eq!(status, 200, "{text}");
        let job = world.engine.jobs.lock().unwrap().pop().unwrap();
        assert_eq!(job.pins.len(), ends.len(), "{:?}", job.pins);
        for (pin, (before, behind, life)) in job.pins.iter().zip(ends) {
            let (kept, rest) = job.prompt.split_at(pin.tokens as usize);
            let tokenizer = world.tokenizer();
            let (kept, rest) = (tokenizer.decode(kept, false), tokenizer.decode(rest, false));
            assert!(kept.contains(before), "{kept:?}");
            assert!(rest.starts_with(behind) && !rest.contains(before), "{rest:?}");
            assert_eq!(pin.life, life);
        }
    }
}
