//! Tables of tool arguments and what leaves of them. Must not know calls.

use crate::{Action, AppliesTo, JudgeMode, JudgesByName, OutputRules, RuleConfig, RuleKind};

use super::*;

fn rules(action: Action) -> Arc<TextRules> {
    let config = |name: &str, kind, words: &[&str], pattern: Option<&str>| RuleConfig {
        name: name.to_owned(),
        kind,
        words: words.iter().map(|&word| word.to_owned()).collect(),
        whole_word: false,
        pattern: pattern.map(str::to_owned),
        window: None,
        entities: Vec::new(),
        labels: Vec::new(),
        threshold: None,
        judge: None,
        mode: JudgeMode::Sync,
        action,
        replacement: Some("\"*\"".to_owned()).filter(|_| action == Action::Redact),
        applies_to: AppliesTo::OUTPUT,
        projects: Vec::new(),
        dry_run: false,
        restore: false,
        message: None,
    };
    let configs = [
        config("w", RuleKind::Words, &["secret", "a\"b"], None),
        config("r", RuleKind::Regex, &[], Some("[0-9]{8}")),
    ];
    let mut errors = Vec::new();
    let rules = OutputRules::compile(&configs, &JudgesByName::new(), &mut errors).unwrap();
    assert_eq!(errors, []);
    rules.tool_calls.unwrap()
}

#[test]
fn replaced_arguments_stay_json() {
    let rules = rules(Action::Redact);
    for (arguments, expected) in [
        (r#"{"a": "no match", "b": [1, true, null]}"#, None),
        (r#"{"a": "my secret.", "b": 1}"#, Some(r#"{"a": "my \"*\".", "b": 1}"#)),
        // As the tool reads it, not as it is written.
        (r#"{"a": "\u0073ecret"}"#, Some(r#"{"a": "\"*\""}"#)),
        (r#"{"a": "x a\"b y"}"#, Some(r#"{"a": "x \"*\" y"}"#)),
        (r#"{"secret": 12345678}"#, Some(r#"{"\"*\"": "\"*\""}"#)),
        (r#"{"a": "sec", "b": "ret"}"#, None),
        (r#"["\\", "secret"]"#, Some(r#"["\\", "\"*\""]"#)),
        // Broken off.
        (r#"{"a": "my secret"#, Some(r#"{"a": "my \"*\""#)),
        (r#"{"a": "my \u0073ecret \u00"#, Some(r#"{"a": "my \"*\" \\u00"#)),
        // No JSON.
        ("say secret", Some("say \"*\"")),
    ] {
        let screened = screen_arguments(&rules, arguments);
        assert_eq!(screened.changed.as_deref(), expected, "{arguments}");
        let text = screened.changed.as_deref().unwrap_or(arguments);
        if serde_json::from_str::<serde_json::Value>(arguments).is_ok() {
            serde_json::from_str::<serde_json::Value>(text).unwrap();
        }
    }
}

#[test]
fn blocked_arguments_name_the_rule() {
    let rules = rules(Action::Block);
    assert_eq!(screen_arguments(&rules, r#"{"a": "\u0073ecret"}"#).blocked_by, Some(0));
    assert_eq!(screen_arguments(&rules, r#"{"a": {"b": -12345678}}"#).blocked_by, Some(1));
    assert_eq!(screen_arguments(&rules, r#"{"a": 1234567}"#), ScreenedText::default());
}
