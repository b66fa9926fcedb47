//! The bounds of numbers in error messages are bounds that are accepted. Knows no other rule.

use headrace_domain::Endpoint;
use serde_json::{Value, json};

use crate::limits::WireLimits;
use crate::request::parse;

/// A bound in an error message must be accepted, so that a client that follows the message does not get another one.
#[test]
fn every_bound_that_is_told_of_a_number_is_taken() {
    let message = json!([{"role": "user", "content": "u"}]);
    let chat = json!({"model": "m", "messages": message});
    let completion = json!({"model": "m", "prompt": "x"});
    let anthropic = json!({"model": "m", "max_tokens": 9, "messages": message});
    let response = json!({"model": "m", "input": "x"});
    let shared = &["top_k", "top_p", "temperature", "timeout"][..];
    let openai = &["min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "min_tokens"][..];
    let chats = &["n", "max_tokens", "max_completion_tokens", "prompt_logprobs", "thinking_token_budget"][..];
    let raw = &["n", "max_tokens", "logprobs", "prompt_logprobs"][..];
    let rows = [
        (Endpoint::ChatCompletions, chat, [shared, openai, chats].concat()),
        (Endpoint::Completions, completion, [shared, openai, raw].concat()),
        (Endpoint::Messages, anthropic, [shared, &["max_tokens"]].concat()),
        (
            Endpoint::Responses,
            response,
            [shared, openai, &["max_output_tokens", "top_logprobs", "max_tool_calls"]].concat(),
        ),
    ];
    let number_behind = |message: &str, words: &str| -> Option<f64> {
        let rest = message.split_once(words)?.1;
        let end = rest.find(|c: char| c != '-' && c != '.' && !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].trim_end_matches('.').parse().ok()
    };
    let mut seen = 0;
    for (endpoint, body, names) in rows {
        let read = |name: &str, value: &Value| {
            let mut body = body.clone();
            body[name] = value.clone();
            parse(endpoint, body.to_string().as_bytes(), &WireLimits::default())
        };
        for name in names {
            // A whole number must not have an exponent, so it is sent without one.
            let whole =
                |number: f64| if number.fract() == 0.0 { json!(number as i64) } else { json!(number) };
            let (low, high) =
                (read(name, &json!(-160)).unwrap_err(), read(name, &json!(9_999_999_999_u64)).unwrap_err());
            assert_eq!(low.param.as_deref(), Some(name), "{low}");
            for told in [&low.message, &high.message] {
                if let Some(least) = number_behind(told, "at least ") {
                    let taken = read(name, &whole(least));
                    assert!(taken.is_ok(), "{endpoint:?} {name}: {told} — {}", taken.unwrap_err());
                    assert!(read(name, &whole(least - 1.0)).is_err(), "{endpoint:?} {name}: {told}");
                    seen += 1;
                }
                let most =
                    number_behind(told, "at most ").unwrap_or_else(|| panic!("{endpoint:?} {name}: {told}"));
                let taken = read(name, &whole(most));
                // `min_tokens` can reach its bound, because no body with it sets `max_tokens`.
                assert!(taken.is_ok(), "{endpoint:?} {name}: {told} — {}", taken.unwrap_err());
                assert!(read(name, &whole(most + 1.0)).is_err(), "{endpoint:?} {name}: {told}");
                seen += 1;
            }
        }
    }
    assert!(seen > 100, "{seen}");
    // 0 tokens are accepted only with `echo`, which scores a prompt.
    let scores = json!({"model": "m", "prompt": "x", "echo": true, "max_tokens": 0});
    parse(Endpoint::Completions, scores.to_string().as_bytes(), &WireLimits::default()).unwrap();
}
