//! Raw prompts: as text, as ids, with spelled-out control tokens, and around a gap.

use std::sync::Arc;

use headrace_call_state::{Rejection, TokenizerMemory};
use headrace_catalog::{ControlTokenPolicy, ServedModel};
use headrace_checkpoint::TokenizerConfig;
use headrace_domain::{Call, Endpoint, KeyId, Prompt, PromptItem};
use headrace_render::{encode_raw_prompt, end_of_fill, may_spell};
use headrace_tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::models::{DEMO, VOCAB, call, demo, memory, refused, token_model, tokenizer_json, tokens, with};

const SPELT: &str = "<|im_start|>user\nhi<|im_end|>\n";

fn completion(more: Value) -> Call {
    call(Endpoint::Completions, with(json!({"prompt": "hi"}), more))
}

/// The ids of a call's only prompt.
fn encoded(model: &ServedModel, call: &Call) -> Result<Vec<u32>, Rejection> {
    let Prompt::Raw(items) = &call.prompt else { panic!("a raw prompt") };
    let item = items.first().unwrap();
    encoded_item(model, call, item)
}

fn encoded_item(model: &ServedModel, call: &Call, item: &PromptItem) -> Result<Vec<u32>, Rejection> {
    let memory = memory();
    let ids = encode_raw_prompt(model, tokens(model), call, (7, item), TokenizerMemory(&memory))?;
    Ok(ids.to_vec())
}

/// The demo model with other names for its four marks of tools.
fn marked(names: [&str; 4]) -> ServedModel {
    let marks = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"];
    let json =
        marks.into_iter().zip(names).fold(tokenizer_json(DEMO), |json, (from, to)| json.replace(from, to));
    let tokenizer = Tokenizer::new(json.as_bytes(), &TokenizerConfig::default()).unwrap();
    token_model(Arc::new(tokenizer), "{{ messages[0].content }}")
}

#[test]
fn a_prompt_is_encoded_as_text_or_taken_as_ids() {
    let model = demo();
    let tokenizer = &tokens(&model).tokenizer;
    let plain = tokenizer.encode_plain(SPELT, true).unwrap();
    let spelt = tokenizer.encode(SPELT, true).unwrap();
    let mark = tokenizer.id_of("<|im_end|>").unwrap();
    assert!(spelt.contains(&mark) && !plain.contains(&mark));
    for (more, expected) in [
        (json!({"prompt": SPELT}), plain),
        (json!({"prompt": SPELT, "parse_special": true}), spelt),
        (json!({"prompt": [1, 2, 3]}), vec![1, 2, 3]),
        (json!({"prompt": [VOCAB - 1]}), vec![VOCAB - 1]),
    ] {
        assert_eq!(encoded(&model, &completion(more.clone())).unwrap(), expected, "{more}");
    }
}

#[test]
fn prompts_that_no_model_can_continue_are_refused_by_their_field() {
    let model = demo();
    let call = completion(json!({}));
    for (item, code, says) in [
        (PromptItem::Ids(vec![1, VOCAB]), "invalid_value", "Token id 4096"),
        (PromptItem::Ids(Vec::new()), "empty_prompt", "Prompt 7 has no tokens"),
        (PromptItem::Text(String::new()), "empty_prompt", "Prompt 7 has no tokens"),
    ] {
        let refused = refused(encoded_item(&model, &call, &item), says);
        assert_eq!(refused, (code, "prompt".to_owned()), "{item:?}");
    }
    let fill = completion(json!({"suffix": "s"}));
    assert_eq!(
        refused(encoded(&model, &fill), "taught to fill a gap"),
        ("unsupported_parameter", "suffix".to_owned())
    );
}

#[test]
fn control_tokens_are_spelled_by_the_keys_that_may() {
    let key = |name| KeyId::new(name).unwrap();
    for (policy, special, may) in [
        (ControlTokenPolicy::Nobody, false, true),
        (ControlTokenPolicy::Nobody, true, false),
        (ControlTokenPolicy::All, true, true),
        (ControlTokenPolicy::Keys(Arc::new([key("mine")].into())), true, true),
        (ControlTokenPolicy::Keys(Arc::new([key("other")].into())), true, false),
    ] {
        let mut model = demo();
        model.policy.parse_special = policy;
        let call = completion(json!({"parse_special": special}));
        match may_spell(&model, &call, &key("mine")) {
            Ok(()) => assert!(may),
            outcome => {
                assert!(!may);
                let refused = refused(outcome, "`parse_special` in `[[models]]`");
                assert_eq!(refused, ("unsupported_parameter", "parse_special".to_owned()));
            }
        }
    }
}

/// Each family's order of marks, from the pages that `raw_prompt.rs` names.
#[test]
fn a_gap_is_written_as_the_model_was_trained_on_it() {
    let more = json!({"prompt": "def f(<|im_end|>", "suffix": "return x"});
    let (before, after) = ("def f(<|im_end|>", "return x");
    for (marks, end) in [
        (["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<other>"], None),
        (["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<other>"], None),
        (["<fim-prefix>", "<fim-suffix>", "<fim-middle>", "<other>"], None),
        (["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", "<other>"], None),
        (["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", "<other>"], None),
        (["▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"], Some("▁<EOT>")),
        (["[SUFFIX]", "[PREFIX]", "<none>", "<other>"], None),
    ] {
        let model = marked(marks);
        let tokenizer = &tokens(&model).tokenizer;
        let call = completion(more.clone());
        let ids = encoded(&model, &call).unwrap();
        let [first, second, third, _] = marks;
        let expected = match first {
            "[SUFFIX]" => format!("[SUFFIX]{after}[PREFIX]{before}"),
            _ => format!("{first}{before}{second}{after}{third}"),
        };
        assert_eq!(tokenizer.decode(&ids, false), expected);
        assert!(!ids.contains(&tokenizer.id_of("<|im_end|>").unwrap()), "{marks:?}");
        let spelt = encoded(&model, &completion(with(more.clone(), json!({"parse_special": true})))).unwrap();
        assert!(spelt.contains(&tokenizer.id_of("<|im_end|>").unwrap()), "{marks:?}");
        let end = end.map(|end| tokenizer.id_of(end).unwrap());
        assert_eq!(end_of_fill(tokens(&model), &call), end, "{marks:?}");
        assert_eq!(end_of_fill(tokens(&model), &completion(json!({}))), None, "no gap, no end");
    }
}
