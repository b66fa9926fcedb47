//! Splits any text by its own first byte and compares what leaves with what leaves of the whole text. The rules are of
//! every kind. Tool arguments that are JSON must stay JSON.
//! Run it in `crates/moderation` with `RUSTC_BOOTSTRAP=1 cargo fuzz run output -- -max_len=512`.
#![no_main]

use std::sync::{Arc, OnceLock};

use headrace_moderation::{Judge, OutputFilter, OutputRules, Rules, screen_arguments};
use libfuzzer_sys::fuzz_target;

const RULES: &str = r#"[
    {"name": "w", "kind": "words", "words": ["ab", "b a", "caf\u00e9", "\u043f\u043e\u0441\u0442"], "action": "redact", "applies_to": "output"},
    {"name": "alone", "kind": "words", "words": ["cat"], "whole_word": true, "action": "redact", "applies_to": "output"},
    {"name": "block", "kind": "words", "words": ["stop here"], "action": "block", "applies_to": "output"},
    {"name": "r", "kind": "regex", "pattern": "\\b[0-9]{3,5}\\b|x.*y", "window": 9, "action": "redact", "applies_to": "output"},
    {"name": "pii", "kind": "pii", "action": "redact", "applies_to": "output"}
]"#;

fn rules() -> &'static Arc<OutputRules> {
    static COMPILED: OnceLock<Rules> = OnceLock::new();
    let compiled = COMPILED.get_or_init(|| Rules::compile(&serde_json::from_str::<Vec<_>>(RULES).unwrap()).unwrap());
    compiled.output().unwrap()
}

fuzz_target!(|bytes: &[u8]| {
    let Some((seed, text)) = bytes.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let answer = rules().answer.as_ref().unwrap();
    let (mut whole, mut expected) = (OutputFilter::new(answer), String::new());
    whole.push(text, &mut expected);
    whole.finish(&mut expected);
    let (mut split, mut out) = (OutputFilter::new(answer), String::new());
    let mut state = u32::from(*seed) + 1;
    let mut from = 0;
    for (at, _) in text.char_indices() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if state >> 30 == 0 {
            split.push(&text[from..at], &mut out);
            from = at;
        }
    }
    split.push(&text[from..], &mut out);
    split.finish(&mut out);
    assert_eq!((&out, split.blocked_by()), (&expected, whole.blocked_by()));
    let screened = screen_arguments(rules().tool_calls.as_ref().unwrap(), text);
    if let Some(changed) = screened.changed.filter(|_| screened.blocked_by.is_none())
        && text.trim_start().starts_with(['{', '['])
        && serde_json::from_str::<serde_json::Value>(text).is_ok()
    {
        serde_json::from_str::<serde_json::Value>(&changed).unwrap();
    }
});
