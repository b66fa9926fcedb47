//! Rules find the same matches in answers as in input, and what leaves of an answer has none.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use headrace_moderation::{Judge, RuleConfig, Rules, screen_text};
use serde_json::{Value, json};

/// The first six make most matches.
const ALPHABET: [&str; 14] = [
    "a", "b", "c", "A", "1", " ", "\n", "\u{e9}", "e\u{301}", "\u{301}", "\u{200b}", "\u{430}", "\u{441}",
    "\u{fb01}",
];

/// A text of up to 40 bytes. `state` makes it the same in every run.
fn text(state: &mut u64) -> String {
    let mut below = |most: usize| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(*state >> 33).unwrap() % most
    };
    let mut text = String::new();
    loop {
        let most = if below(3) == 0 { ALPHABET.len() } else { 6 };
        let next = ALPHABET[below(most)];
        if text.len() + next.len() > 40 {
            return text;
        }
        text.push_str(next);
    }
}

fn compiled(list: &Value) -> Rules {
    Rules::compile(&serde_json::from_value::<Vec<RuleConfig>>(list.clone()).unwrap()).unwrap()
}

#[test]
fn no_match_leaves_that_the_input_rules_would_find() {
    let words = json!({"kind": "words", "words": ["ab", "abc", "b a", "ca\u{e9}", "\u{441}ab"]});
    let lists = [
        vec![words],
        vec![json!({"kind": "regex", "pattern": "a[bc]{2}"})],
        vec![json!({"kind": "regex", "pattern": "b1|c "}), json!({"kind": "words", "words": ["aa"]})],
    ];
    let (mut state, mut found) = (3, 0);
    for list in lists {
        let named = |action: &str, applies_to: &str| -> Value {
            let rule = |(at, rule): (usize, &Value)| {
                let mut rule = rule.clone();
                rule["name"] = json!(format!("r{at}"));
                (rule["action"], rule["applies_to"]) = (json!(action), json!(applies_to));
                // A replacement that joins no match.
                if action == "redact" {
                    rule["replacement"] = json!("#");
                }
                rule
            };
            list.iter().enumerate().map(rule).collect()
        };
        let (judge, rules) = (compiled(&named("flag", "input")), compiled(&named("redact", "output")));
        let answer = rules.output().unwrap().answer.clone().unwrap();
        for _ in 0..2000 {
            let text = text(&mut state);
            let out = screen_text(&answer, &text).changed.unwrap_or_else(|| text.clone());
            found += usize::from(judge.judge(&text).rule().is_some());
            assert_eq!(judge.judge(&out).rule(), None, "{text:?} became {out:?}");
            assert_eq!(judge.judge(&text).rule().is_some(), out != text, "{text:?} became {out:?}");
        }
    }
    assert!(found > 1500, "{found}");
}
