//! The redaction of requests, and the way back for every split of an answer.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::restore::placeholder_map::each_placeholder;
use crate::{InputRedactions, PlaceholderMap, PlaceholderReader, RequestRedactor, RestoredForm};
use crate::{Judge, RuleConfig, Rules};

fn redactions(rules: &Value) -> Arc<InputRedactions> {
    let configs: Vec<RuleConfig> = serde_json::from_value(rules.clone()).unwrap();
    Arc::clone(Rules::compile(&configs).unwrap().input_redactions().unwrap())
}

fn pii() -> RequestRedactor {
    let rules = json!([{"name": "pii", "kind": "pii", "entities": ["email", "card"], "action": "redact", "restore": true},
        {"name": "ticket.no", "kind": "regex", "pattern": "T-[0-9\"\n]{4,6}", "action": "redact", "restore": true},
        {"name": "names", "kind": "words", "words": ["nightingale"], "action": "redact"}]);
    RequestRedactor::new(&redactions(&rules))
}

#[test]
fn a_value_has_one_number_and_numbers_follow_the_first_appearance() {
    let mut redactor = pii();
    let mut text = |text: &str| redactor.text(text).unwrap_or_else(|| text.to_owned());
    for (sent, seen) in [
        ("nothing in 2026", "nothing in 2026"),
        ("ann@example.com and bob@example.com", "<EMAIL_1> and <EMAIL_2>"),
        ("bob@example.com, then ann@example.com", "<EMAIL_2>, then <EMAIL_1>"),
        ("4111 1111 1111 1111 of Nightingale", "<CARD_1> of <REDACTED>"),
        ("T-1234 eve@example.com T-1234", "<TICKET_NO_1> <EMAIL_3> <TICKET_NO_1>"),
    ] {
        assert_eq!(text(sent), seen);
    }
    let map = redactor.into_map().unwrap();
    assert_eq!(map.len(), 5);
    assert!(!format!("{map:?}").contains("ann@"));
    // What is not numbered is not put back.
    let answer = "<REDACTED> has <CARD_1>";
    let restored = PlaceholderReader::whole(&map, RestoredForm::Plain, answer);
    assert_eq!(restored.as_deref(), Some("<REDACTED> has 4111 1111 1111 1111"));
    assert!(pii().into_map().is_none());
}

#[test]
fn a_placeholder_never_collides_with_text_of_the_call() {
    let mut redactor = pii();
    redactor.reserve("I write <EMAIL_1>, <<EMAIL_2>, <EMAIL_x> and <CARD_1");
    assert_eq!(redactor.text("ann@example.com").as_deref(), Some("<EMAIL_3>"));
    assert_eq!(redactor.text("4111111111111111").as_deref(), Some("<CARD_1>"));
    let map = redactor.into_map().unwrap();
    let text = "<EMAIL_1> and <EMAIL_2>";
    assert_eq!(PlaceholderReader::whole(&map, RestoredForm::Plain, text), None);
    let mut found = Vec::new();
    each_placeholder("<A_1><B_> <_2> <a_1> <A_12", &mut |placeholder| found.push(placeholder));
    assert_eq!(found, ["<A_1>", "<_2>"]);
}

#[test]
fn a_match_over_several_parts_is_replaced_in_the_first() {
    let mut redactor = pii();
    let mut parts = |parts: &[&str]| redactor.parts(parts);
    for (sent, seen) in [
        (&["to ann@exam", "ple", ".com now"][..], &["to <EMAIL_1>", "", " now"][..]),
        (&["a ", "ann@example.com", " b"], &["a ", "<EMAIL_1>", " b"]),
        (&["x bob@exam", "ple.com, ann@exam", "ple.com"], &["x <EMAIL_2>", ", <EMAIL_1>", ""]),
    ] {
        assert_eq!(parts(sent).unwrap(), seen, "{sent:?}");
    }
    assert_eq!(parts(&["a", "b"]), None);
}

#[test]
fn arguments_are_redacted_as_the_tool_reads_them() {
    let mut redactor = pii();
    for (sent, seen) in [
        (r#"{"to": "ann\u0040example.com", "n": 1}"#, Some(r#"{"to": "<EMAIL_1>", "n": 1}"#)),
        (r#"{"card": 4111111111111111}"#, Some(r#"{"card": "<CARD_1>"}"#)),
        (r#"{"ann@example.com": "a"}"#, Some(r#"{"<EMAIL_1>": "a"}"#)),
        ("mail ann@example.com", Some("mail <EMAIL_1>")),
        (r#"{"n": 1}"#, None),
    ] {
        assert_eq!(redactor.arguments(sent).as_deref(), seen, "{sent}");
    }
}

#[test]
fn rules_that_cannot_put_back_are_refused() {
    let rule = json!({"name": "r", "kind": "pii", "action": "redact", "restore": true});
    for (changed, why) in [
        (json!({"action": "block"}), "`restore` belongs to rules with `action = \"redact\"`"),
        (json!({"applies_to": "output"}), "`restore` puts back what was redacted in the input"),
        (json!({"dry_run": true}), "`restore` changes calls"),
        (json!({"replacement": "x"}), "`replacement` does not fit to `restore`"),
        (json!({"restore": false, "replacement": "<EMAIL_1>"}), "`replacement` looks like a placeholder"),
        (json!({"kind": "judge", "judge": "j", "mode": "async"}), "`action` `redact` would replace"),
        (json!({"kind": "regex", "pattern": "a+"}), "`window` is missing"),
    ] {
        let mut rule = rule.clone();
        rule.as_object_mut().unwrap().extend(changed.as_object().unwrap().clone());
        let configs: Vec<RuleConfig> = serde_json::from_value(json!([rule])).unwrap();
        let judges = crate::JudgesByName::new();
        let error = Rules::compile_with(&configs, &judges).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let both = json!([{"name": "r", "kind": "pii", "action": "redact", "restore": true,
        "applies_to": ["input", "output"]}]);
    redactions(&both);
}

/// The map of `<EMAIL_1>` and `<EMAIL_12>` to values that JSON must escape.
fn map() -> Arc<PlaceholderMap> {
    let entry = |placeholder: &str, value: &str| (placeholder.to_owned(), value.to_owned());
    Arc::new(PlaceholderMap::new(vec![entry("<EMAIL_1>", "a\"\\b\né@x"), entry("<EMAIL_12>", "c")]))
}

/// The answer in pieces. Checks what is held back.
fn streamed(map: &Arc<PlaceholderMap>, form: RestoredForm, pieces: &[&str]) -> String {
    let (mut reader, mut out) = (PlaceholderReader::new(Arc::clone(map), form), String::new());
    let mut came = String::new();
    for piece in pieces {
        reader.push(piece, &mut out);
        came.push_str(piece);
        let held = came.get(reader.decided()..).unwrap();
        assert_eq!(held, longest_start(form, &came), "of {came:?}");
    }
    reader.finish(&mut out);
    out
}

/// The longest end of a text that a placeholder may begin with, found by brute force.
fn longest_start(form: RestoredForm, text: &str) -> &str {
    if form == RestoredForm::Plain {
        let is_start = |end: &&str| ["<EMAIL_1>", "<EMAIL_12>"].iter().any(|all| all.starts_with(end));
        let is_whole = |end: &&str| ["<EMAIL_1>", "<EMAIL_12>"].contains(end);
        let ends = text.char_indices().map(|(at, _)| text.get(at..).unwrap());
        return ends.filter(|end| !is_whole(end)).find(is_start).unwrap_or_default();
    }
    // Each character of a placeholder as itself or as an escape.
    fn may_begin(text: &str, placeholder: &str, is_first: bool) -> bool {
        let Some(c) = placeholder.chars().next() else { return false };
        if text.is_empty() {
            return !is_first;
        }
        let escape = format!("\\u{:04x}", u32::from(c));
        if escape.get(..text.len()).is_some_and(|start| start.eq_ignore_ascii_case(text)) && text.len() < 6 {
            return true;
        }
        let after = match text.strip_prefix(c) {
            Some(after) => Some(after),
            None => {
                text.get(..6).filter(|start| start.eq_ignore_ascii_case(&escape)).and_then(|_| text.get(6..))
            }
        };
        after.is_some_and(|after| may_begin(after, placeholder.get(1..).unwrap(), false))
    }
    let is_start = |end: &&str| ["<EMAIL_1>", "<EMAIL_12>"].iter().any(|all| may_begin(end, all, true));
    // An escape that began before belongs to that one.
    let is_unit = |at: usize| {
        let slashes = text.get(..at).unwrap().chars().rev().take_while(|c| *c == '\\').count();
        slashes % 2 == 0
    };
    let ends = text.char_indices().filter(|(at, _)| is_unit(*at)).map(|(at, _)| text.get(at..).unwrap());
    ends.into_iter().find(is_start).unwrap_or_default()
}

/// Texts of at most 12 bytes and what a client gets.
const SHORT: [(RestoredForm, &str, &str); 12] = [
    (RestoredForm::Plain, "<EMAIL_1>", "a\"\\b\né@x"),
    (RestoredForm::Plain, "é<EMAIL_12>", "éc"),
    (RestoredForm::Plain, "<EMAIL_9>", "<EMAIL_9>"),
    (RestoredForm::Plain, "<<EMAIL_1>>", "<a\"\\b\né@x>"),
    (RestoredForm::Plain, "<EM<EMAIL_1", "<EM<EMAIL_1"),
    (RestoredForm::Plain, "a < b<c> <", "a < b<c> <"),
    (RestoredForm::Json, "\"<EMAIL_1>\"", "\"a\\\"\\\\b\\né@x\""),
    (RestoredForm::Json, "\\\\<EMAIL_1>", "\\\\a\\\"\\\\b\\né@x"),
    (RestoredForm::Json, "<EM\\u003E\\n", "<EM\\u003E\\n"),
    (RestoredForm::Json, "<EM\\u003\\u\\", "<EM\\u003\\u\\"),
    (RestoredForm::Json, "\\u00e9<\\u0", "\\u00e9<\\u0"),
    (RestoredForm::Arguments, " [<EMAIL_1>", " [a\\\"\\\\b\\né@x"),
];

#[test]
fn every_split_of_a_short_text_gives_the_whole_one() {
    let map = map();
    for (form, text, expected) in SHORT {
        let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).skip(1).collect();
        assert!(text.len() <= 12, "{text}");
        for cuts in 0_u32..1 << starts.len() {
            let mut pieces = Vec::new();
            let mut from = 0;
            for (bit, at) in starts.iter().enumerate() {
                if cuts >> bit & 1 == 1 {
                    pieces.push(text.get(from..*at).unwrap());
                    from = *at;
                }
            }
            pieces.push(text.get(from..).unwrap());
            let form = if form == RestoredForm::Arguments { RestoredForm::Json } else { form };
            assert_eq!(streamed(&map, form, &pieces), expected, "{pieces:?}");
        }
    }
}

#[test]
fn placeholders_with_escapes_are_put_back_in_json_alone() {
    let map = map();
    for (form, text, expected) in [
        (RestoredForm::Json, r#"{"a":"\u003cEMAIL_12\u003E"}"#, Some(r#"{"a":"c"}"#)),
        (RestoredForm::Json, r#"{"a":"\u003C\u0045MAIL\u005f12>"}"#, Some(r#"{"a":"c"}"#)),
        (RestoredForm::Json, r#"{"a":"\\u003cEMAIL_12\u003e"}"#, None),
        (RestoredForm::Json, r#"{"a":"<EMAIL\u003cEMAIL_12>"}"#, Some(r#"{"a":"<EMAILc"}"#)),
        (RestoredForm::Plain, r"\u003cEMAIL_12\u003e", None),
        (RestoredForm::Arguments, "say <EMAIL_1>", Some("say a\"\\b\né@x")),
        (RestoredForm::Arguments, "{\"a\":\"<EMAIL_1>\"}", Some("{\"a\":\"a\\\"\\\\b\\né@x\"}")),
    ] {
        assert_eq!(PlaceholderReader::whole(&map, form, text).as_deref(), expected, "{text}");
        if form == RestoredForm::Json {
            serde_json::from_str::<Value>(expected.unwrap_or(text)).unwrap();
        }
    }
}

/// Pieces of texts in which placeholders begin, break off and end.
const PARTS: [&str; 16] = [
    "<",
    ">",
    "<EMAIL_1>",
    "<EMAIL_12>",
    "<EMAIL_2>",
    "<EMAIL_1",
    "EMAIL",
    "_1>",
    "2>",
    "é",
    "\\u003c",
    "\\u003C",
    "\\u00",
    "\\",
    "\"",
    "\\u0045",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn streams_equal_whole_answers(
        parts in proptest::collection::vec(0_usize..PARTS.len(), 1..24),
        cuts in proptest::collection::vec(any::<bool>(), 0..256),
        is_json in any::<bool>(),
    ) {
        let map = map();
        let form = if is_json { RestoredForm::Json } else { RestoredForm::Plain };
        let text: String = parts.iter().map(|part| PARTS[*part]).collect();
        let mut pieces = Vec::new();
        let mut from = 0;
        for ((at, _), is_cut) in text.char_indices().skip(1).zip(&cuts) {
            if *is_cut {
                pieces.push(text.get(from..at).unwrap());
                from = at;
            }
        }
        pieces.push(text.get(from..).unwrap());
        let whole = PlaceholderReader::whole(&map, form, &text).unwrap_or_else(|| text.clone());
        prop_assert_eq!(streamed(&map, form, &pieces), whole.clone());
        if !is_json {
            let expected = text.replace("<EMAIL_1>", "a\"\\b\né@x").replace("<EMAIL_12>", "c");
            prop_assert_eq!(whole, expected);
        }
    }

    #[test]
    fn what_was_redacted_comes_back(words in proptest::collection::vec(0_usize..8, 0..20)) {
        let known = ["ann@example.com", "bob@example.com", "4111 1111 1111 1111", "T-1\"\n2", "and", "<EMAIL_1>", ",", "<CARD_2>"];
        let text: Vec<&str> = words.iter().map(|word| known[*word]).collect();
        let text = text.join(" ");
        let mut redactor = pii();
        redactor.reserve(&text);
        let seen = redactor.text(&text).unwrap_or_else(|| text.clone());
        prop_assert!(!seen.contains('@') && !seen.contains("4111") && !seen.contains("T-1"));
        let back = redactor.into_map().and_then(|map| PlaceholderReader::whole(&map, RestoredForm::Plain, &seen));
        prop_assert_eq!(back.unwrap_or(seen), text);
    }
}
