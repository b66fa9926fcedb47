//! Whether a body asks for reasoning, in any dialect that is relayed. Must not know who may ask.

use serde_json::Value;

use super::fields::{ObjectField, ObjectFields};

/// Fields whose value may ask for reasoning.
const FIELDS: [&str; 7] = [
    "reasoning_effort",
    "reasoning",
    "thinking",
    "thinking_budget",
    "output_config",
    "enable_thinking",
    "chat_template_kwargs",
];

/// Returns the first field by which a body asks for reasoning. `None` if it leaves reasoning to the model, or turns it
/// off. [`super::skim`] must have read the body.
pub fn reasoning_asked(body: &[u8]) -> Option<&'static str> {
    ObjectFields::of(body)?.find_map(|ObjectField { key, value, .. }| {
        let field = FIELDS.into_iter().find(|field| *field == key)?;
        let value: Value = serde_json::from_slice(body.get(value)?).ok()?;
        asks(field, &value).then_some(field)
    })
}

fn asks(field: &str, value: &Value) -> bool {
    let is_effort = |effort: Option<&Value>| effort.is_some_and(|word| !word.is_null() && word != "none");
    let is_on = |switch: Option<&Value>| switch.is_some_and(|switch| *switch == Value::Bool(true));
    let is_number =
        |budget: Option<&Value>| budget.and_then(Value::as_f64).is_some_and(|budget| budget != 0.0);
    match field {
        "reasoning_effort" => is_effort(Some(value)),
        "reasoning" => {
            is_effort(value.get("effort"))
                || is_on(value.get("enabled"))
                || is_number(value.get("max_tokens"))
        }
        // Anthropic's `enabled` and `adaptive`, or a switch.
        "thinking" => is_on(Some(value)) || value.get("type").is_some_and(|kind| kind != "disabled"),
        "thinking_budget" => is_number(Some(value)),
        "output_config" => is_effort(value.get("effort")),
        "enable_thinking" => is_on(Some(value)),
        _ => ["enable_thinking", "thinking"].iter().any(|name| is_on(value.get(*name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_asks_for_reasoning_by_any_of_its_fields() {
        for (body, expected) in [
            (r#"{"model": "m"}"#, None),
            (r#"{"reasoning_effort": null}"#, None),
            (r#"{"reasoning_effort": "none"}"#, None),
            (r#"{"reasoning_effort": "low"}"#, Some("reasoning_effort")),
            (r#"{"reasoning\u005feffort": "low"}"#, Some("reasoning_effort")),
            (r#"{"messages": [{"reasoning_effort": "low"}]}"#, None),
            (r#"{"reasoning": {}}"#, None),
            (r#"{"reasoning": {"summary": "auto"}}"#, None),
            (r#"{"reasoning": {"effort": "high"}}"#, Some("reasoning")),
            (r#"{"reasoning": {"enabled": true}}"#, Some("reasoning")),
            (r#"{"reasoning": {"max_tokens": 64}}"#, Some("reasoning")),
            (r#"{"thinking": {"type": "disabled"}}"#, None),
            (r#"{"thinking": {"type": "adaptive"}}"#, Some("thinking")),
            (r#"{"thinking": {"type": "enabled", "budget_tokens": 1024}}"#, Some("thinking")),
            (r#"{"thinking_budget": 0}"#, None),
            (r#"{"thinking_budget": -1}"#, Some("thinking_budget")),
            (r#"{"output_config": {"effort": "low"}}"#, Some("output_config")),
            (r#"{"output_config": {"format": {}}}"#, None),
            (r#"{"enable_thinking": false}"#, None),
            (r#"{"enable_thinking": true}"#, Some("enable_thinking")),
            (r#"{"chat_template_kwargs": {"thinking": true}}"#, Some("chat_template_kwargs")),
            (r#"{"chat_template_kwargs": {"thinking": false}}"#, None),
        ] {
            assert_eq!(reasoning_asked(body.as_bytes()), expected, "{body}");
        }
    }
}
