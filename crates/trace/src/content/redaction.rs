//! Replaces personal data in recorded requests and answers. Must not know how personal data is recognised.

use serde_json::Value;

use super::stored::AnswerPart;

/// Replaces personal data in a text.
pub trait ContentRedactor: Send + Sync {
    /// The text with personal data replaced. `None` if there is none in it.
    fn redact(&self, text: &str) -> Option<String>;
}

/// Redacts a request's body. Returns an empty text if the body is no whole JSON: data could hide in its escapes.
pub(crate) fn redact_request(redactor: &dyn ContentRedactor, body: &[u8]) -> String {
    let Ok(mut value) = serde_json::from_slice::<Value>(body) else { return String::new() };
    redact_value(redactor, &mut value);
    value.to_string()
}

/// Redacts the parts of an answer. A model can write personal data as the name of a tool, too.
pub(crate) fn redact_parts(redactor: &dyn ContentRedactor, parts: &mut [AnswerPart]) {
    for AnswerPart { choice: _, kind: _, name, text } in parts {
        redact_text(redactor, text);
        if let Some(name) = name {
            redact_text(redactor, name);
        }
    }
}

fn redact_value(redactor: &dyn ContentRedactor, value: &mut Value) {
    match value {
        Value::String(text) => redact_text(redactor, text),
        Value::Array(items) => items.iter_mut().for_each(|item| redact_value(redactor, item)),
        Value::Object(fields) => {
            let found: Vec<_> =
                fields.keys().filter_map(|name| Some((name.clone(), redactor.redact(name)?))).collect();
            for (name, redacted) in found {
                if let Some(field) = fields.remove(&name) {
                    fields.insert(redacted, field);
                }
            }
            fields.values_mut().for_each(|field| redact_value(redactor, field));
        }
        // Card numbers and the like may be sent as numbers.
        Value::Number(number) => {
            if let Some(redacted) = redactor.redact(&number.to_string()) {
                *value = Value::String(redacted);
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

/// Redacts a text. A text that is JSON, such as the arguments of a tool call, is redacted value by value.
fn redact_text(redactor: &dyn ContentRedactor, text: &mut String) {
    if text.trim_start().starts_with(['{', '['])
        && let Ok(mut value) = serde_json::from_str::<Value>(text)
    {
        redact_value(redactor, &mut value);
        *text = value.to_string();
        return;
    }
    if let Some(redacted) = redactor.redact(text) {
        *text = redacted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replaces `secret`.
    struct ReplacingRedactor;

    impl ContentRedactor for ReplacingRedactor {
        fn redact(&self, text: &str) -> Option<String> {
            text.contains("secret").then(|| text.replace("secret", "<X>"))
        }
    }

    #[test]
    fn every_text_of_a_request_is_redacted() {
        let body = r#"{"secret":"a","messages":[{"content":"s\u0065cret"},{"content":[{"text":"a secret"}]},
            {"tool_calls":[{"function":{"arguments":"{\"a\":\"secr\\u0065t\"}"}}]}],"n":1}"#;
        let redacted = redact_request(&ReplacingRedactor, body.as_bytes());
        assert!(!redacted.contains("secret") && !redacted.contains("secr\\"), "{redacted}");
        assert_eq!(redacted.matches("<X>").count(), 4, "{redacted}");
        assert_eq!(redact_request(&ReplacingRedactor, br#"{"messages":[{"content":"s\u0065cret"#), "");
    }
}
