//! Recognisers against Presidio's: `data/presidio_oracle.json` holds what Presidio 2.2 finds in a table of texts, and
//! `data/make_presidio_oracle.py` makes it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use headrace_moderation::{Judge, RuleConfig, Rules, screen_text};
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
struct OracleRow {
    entity: String,
    text: String,
    /// What Presidio finds, in order.
    found: Vec<String>,
}

/// Texts on which the recognisers differ, and why.
const DIFFERENT: [(&str, &str); 4] = [
    ("AAAAAA00B11C333N", "its check letter is wrong: Presidio reports it with a low score"),
    ("RSSMRA85T10A562T", "its check letter is wrong: Presidio reports it with a low score"),
    ("(425-882-8080)", "the first parenthesis is no part of the number"),
    ("(+1 425-882-8080)", "the first parenthesis is no part of the number"),
];

fn rules_for(entity: &str) -> Rules {
    let rule = json!([{"name": "pii", "kind": "pii", "entities": [entity], "action": "redact", "replacement": "\u{1}",
        "applies_to": "output"}]);
    let configs: Vec<RuleConfig> = serde_json::from_value(rule).unwrap();
    Rules::compile(&configs).unwrap()
}

#[test]
fn recognisers_find_what_presidio_finds() {
    let rows: Vec<OracleRow> = serde_json::from_str(include_str!("data/presidio_oracle.json")).unwrap();
    assert!(rows.len() > 300, "{}", rows.len());
    let mut rules = BTreeMap::new();
    let mut wrong = Vec::new();
    for OracleRow { entity, text, found } in &rows {
        let rules = rules.entry(entity.as_str()).or_insert_with(|| rules_for(entity));
        let is_different = DIFFERENT.iter().any(|(value, _)| text.contains(value));
        let (mut expected, mut from) = (String::new(), 0);
        for value in found {
            let at = from + text[from..].find(value.as_str()).unwrap();
            expected.push_str(&text[from..at]);
            expected.push('\u{1}');
            from = at + value.len();
        }
        expected.push_str(&text[from..]);
        let answer = rules.output().unwrap().answer.clone().unwrap();
        let out = screen_text(&answer, text).changed.unwrap_or_else(|| text.clone());
        if is_different {
            assert_ne!(out, expected, "{text:?} is no exception any more");
        } else if out != expected {
            wrong.push(format!("{entity} {text:?}: {out:?}, Presidio: {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}
