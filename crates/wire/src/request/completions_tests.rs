//! Tables of good and bad completion requests: their meaning, or the exact code and parameter of the refusal.

use headrace_domain::{Call, CompletionsExtras, DialectExtras, Endpoint, Prompt, PromptItem};
use serde_json::{Value, json};

use crate::fault::BadRequest;
use crate::limits::WireLimits;
use crate::request::parse_completions;

fn parse(more: &Value) -> Result<Call, BadRequest> {
    let mut body = json!({"model": "demo", "prompt": "hi"});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    parse_completions(body.to_string().as_bytes(), &WireLimits::default())
}

#[test]
fn prompts_of_every_shape() {
    let text = |text: &str| PromptItem::Text(text.into());
    let rows = [
        (json!("hi"), vec![text("hi")]),
        (json!(["a", "b"]), vec![text("a"), text("b")]),
        (json!([1, 2, 3]), vec![PromptItem::Ids(vec![1, 2, 3])]),
        (json!([[1], [u32::MAX, 0]]), vec![PromptItem::Ids(vec![1]), PromptItem::Ids(vec![u32::MAX, 0])]),
    ];
    for (prompt, expected) in rows {
        let call = parse(&json!({"prompt": prompt})).unwrap();
        assert_eq!(call.endpoint, Endpoint::Completions);
        assert_eq!(call.prompt, Prompt::Raw(expected));
    }
}

#[test]
fn scoring_and_log_probabilities() {
    let scored = parse(&json!({"echo": true, "max_tokens": 0, "logprobs": 2})).unwrap();
    assert!(scored.dialect.echo());
    assert_eq!(
        (scored.sampling.max_tokens, scored.sampling.logprobs, scored.sampling.prompt_logprobs),
        (Some(0), Some(2), Some(2))
    );
    let plain = parse(&json!({"logprobs": 0, "prompt_logprobs": 3})).unwrap();
    assert_eq!((plain.sampling.logprobs, plain.sampling.prompt_logprobs), (Some(0), Some(3)));
    let echoed = parse(&json!({"echo": true})).unwrap();
    assert_eq!((echoed.sampling.logprobs, echoed.sampling.prompt_logprobs), (None, None));
    let neutral = parse(&json!({"suffix": null, "best_of": 2, "n": 2, "user": "u", "tools": null})).unwrap();
    assert_eq!((neutral.sampling.n, neutral.dialect), (2, DialectExtras::None));
    let filled = parse(&json!({"suffix": "x", "parse_special": true})).unwrap();
    assert_eq!(
        filled.dialect,
        DialectExtras::completions(CompletionsExtras {
            echo: false,
            parse_special: true,
            suffix: Some("x".into())
        })
    );
    assert_eq!(parse(&json!({"suffix": ""})).unwrap().dialect.suffix(), None);
    // A gap at the beginning of a text has no text before it.
    assert!(parse(&json!({"prompt": "", "suffix": "x"})).is_ok());
}

#[test]
fn bad_parameters_are_named() {
    let many = vec!["x"; 129];
    let rows = [
        (json!({"prompt": null}), "prompt", "missing_required_parameter"),
        (json!({"prompt": 5}), "prompt", "invalid_type"),
        (json!({"prompt": []}), "prompt", "empty_array"),
        (json!({"prompt": [[]]}), "prompt[0]", "empty_array"),
        (json!({"prompt": ""}), "prompt", "empty_prompt"),
        (json!({"prompt": " \n\u{a0}"}), "prompt", "empty_prompt"),
        (json!({"prompt": "\u{200b}\u{feff}"}), "prompt", "empty_prompt"),
        (json!({"prompt": [""]}), "prompt[0]", "empty_prompt"),
        (json!({"prompt": ["a", "\u{3164}"]}), "prompt[1]", "empty_prompt"),
        (json!({"prompt": "", "suffix": " "}), "prompt", "empty_prompt"),
        (json!({"prompt": ["a", 1]}), "prompt[1]", "invalid_type"),
        (json!({"prompt": [1, "a"]}), "prompt[1]", "invalid_type"),
        (json!({"prompt": [null]}), "prompt[0]", "invalid_type"),
        (json!({"prompt": [[1], ["a"]]}), "prompt[1][0]", "invalid_type"),
        (json!({"prompt": [[1, -1]]}), "prompt[0][1]", "integer_below_min_value"),
        (json!({"prompt": [1_u64 << 32]}), "prompt[0]", "integer_above_max_value"),
        (json!({"prompt": many}), "prompt", "array_above_max_length"),
        (json!({"prompt": ["a", "b"], "n": 100}), "n", "integer_above_max_value"),
        (json!({"max_tokens": 0}), "max_tokens", "integer_below_min_value"),
        (json!({"logprobs": true}), "logprobs", "invalid_type"),
        (json!({"logprobs": 21}), "logprobs", "integer_above_max_value"),
        (json!({"logprobs": -1}), "logprobs", "integer_below_min_value"),
        (json!({"echo": true, "logprobs": 1, "prompt_logprobs": 1}), "prompt_logprobs", "invalid_value"),
        (json!({"top_logprobs": 1}), "top_logprobs", "unknown_parameter"),
        (json!({"max_completion_tokens": 1}), "max_completion_tokens", "unknown_parameter"),
        (json!({"suffix": "x", "prompt": [1]}), "suffix", "invalid_value"),
        (json!({"suffix": "x", "echo": true}), "suffix", "invalid_value"),
        (json!({"suffix": 1}), "suffix", "invalid_type"),
        (json!({"parse_special": "yes"}), "parse_special", "invalid_type"),
        (json!({"best_of": 3}), "best_of", "unsupported_parameter"),
        (json!({"messages": []}), "messages", "unknown_parameter"),
        (json!({"chat_template": "x"}), "chat_template", "unsupported_parameter"),
        (json!({"reasoning_effort": "low"}), "reasoning_effort", "unsupported_parameter"),
        (json!({"chat_template_kwargs": {}}), "chat_template_kwargs", "unsupported_parameter"),
    ];
    for (more, param, code) in rows {
        let bad = parse(&more).unwrap_err();
        assert_eq!((bad.param.as_deref(), bad.code.name()), (Some(param), code), "{more}: {bad}");
    }
}
