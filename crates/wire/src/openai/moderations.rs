//! `POST /v1/moderations`: reads the texts, and writes the result of a verdict. Knows no rules, and judges nothing.
//!
//! Source: <https://platform.openai.com/docs/api-reference/moderations>.

use headrace_domain::Code;
use serde_json::{Map, Value, json};

use crate::common::blank;
use crate::fault::{BadRequest, FieldFault, Read};
use crate::json::{JsonReader, ValueKind};
use crate::limits::WireLimits;

/// The name of this server's moderation.
pub const MODERATION_MODEL: &str = "headrace-rules";
/// Names that clients ask for by default. They are accepted, and mean [`MODERATION_MODEL`].
const USUAL_MODELS: [&str; 4] = [
    "omni-moderation-latest",
    "omni-moderation-2024-09-26",
    "text-moderation-latest",
    "text-moderation-stable",
];
/// The most texts of one request.
const MAX_TEXTS: usize = 1_000;
/// OpenAI's categories.
const CATEGORIES: [&str; 13] = [
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
];

/// Reads the texts to judge. Each is judged by itself.
///
/// # Errors
/// [`BadRequest`] names the first invalid field. Parts that are not text are refused.
pub fn moderation_texts(body: &[u8], limits: &WireLimits) -> Result<Vec<String>, BadRequest> {
    let mut reader = JsonReader::new(body, limits.max_json_depth, limits.max_free_form_values)?;
    Ok(read(&mut reader)?)
}

fn read(r: &mut JsonReader<'_>) -> Read<Vec<String>> {
    let mut texts = None;
    r.object(|r, key| {
        match key.as_ref() {
            "input" => texts = Some(input(r)?),
            "model" => {
                let name = r.string()?;
                if name != MODERATION_MODEL && !USUAL_MODELS.contains(&name.as_ref()) {
                    let message = format!("it must be `{MODERATION_MODEL}`, or left out");
                    return Err(FieldFault::new(Code::ModelNotFound, message));
                }
            }
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    r.end()?;
    texts.ok_or_else(|| FieldFault::missing("input"))
}

fn input(r: &mut JsonReader<'_>) -> Read<Vec<String>> {
    if r.kind()? == ValueKind::String {
        return Ok(vec![blank::visible(r.string()?)?.into_owned()]);
    }
    let mut texts = Vec::new();
    r.array(MAX_TEXTS, |r, _| {
        texts.push(if r.kind()? == ValueKind::Object {
            part(r)?
        } else {
            blank::visible(r.string()?)?.into_owned()
        });
        Ok(())
    })?;
    if texts.is_empty() {
        Err(FieldFault::new(Code::InvalidValue, "there must be one text at least"))
    } else {
        Ok(texts)
    }
}

fn part(r: &mut JsonReader<'_>) -> Read<String> {
    let (mut text, mut is_text) = (None, false);
    r.object(|r, key| {
        match key.as_ref() {
            "type" => match r.string()?.as_ref() {
                "text" => is_text = true,
                _ => return Err(FieldFault::new(Code::UnsupportedValue, "texts alone are judged here")),
            },
            "text" => text = Some(blank::visible(r.string()?)?.into_owned()),
            "image_url" => {
                return Err(FieldFault::new(Code::UnsupportedValue, "texts alone are judged here"));
            }
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    if !is_text {
        return Err(FieldFault::missing("type"));
    }
    text.ok_or_else(|| FieldFault::missing("text"))
}

/// Returns the result for one text. `matched` is the rule that matched, if any, and whether the rule blocks a call. A
/// rule sets the category that has its name, with `.` for `/`. A rule matches or does not, so scores are 1 or 0.
pub fn moderation_result(matched: Option<(&str, bool)>) -> Value {
    let is_of = |category: &str| matched.is_some_and(|(rule, _)| rule.replace('.', "/") == category);
    let told = |value: fn(bool) -> Value| -> Map<String, Value> {
        CATEGORIES.iter().map(|category| ((*category).to_owned(), value(is_of(category)))).collect()
    };
    json!({
        "flagged": matched.is_some(),
        "categories": told(|is| json!(is)),
        "category_scores": told(|is| json!(if is { 1.0 } else { 0.0 })),
        "category_applied_input_types": told(|_| json!(["text"])),
        "rule": matched.map(|(rule, _)| rule),
        "blocked": matched.is_some_and(|(_, blocks)| blocks),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_in_every_form_and_nothing_else_is() {
        let read = |body: Value| moderation_texts(body.to_string().as_bytes(), &WireLimits::default());
        assert_eq!(read(json!({"input": "a", "model": "omni-moderation-latest"})).unwrap(), ["a"]);
        assert_eq!(read(json!({"input": ["a", {"type": "text", "text": "b"}]})).unwrap(), ["a", "b"]);
        for (body, param) in [
            (json!({}), "input"),
            (json!({"input": []}), "input"),
            (json!({"input": 1}), "input"),
            (json!({"input": "a", "model": "gpt"}), "model"),
            (json!({"input": "a", "more": 1}), "more"),
            (json!({"input": [{"type": "image_url", "image_url": {"url": "x"}}]}), "input[0].type"),
            (json!({"input": [{"type": "text"}]}), "input[0].text"),
            (json!({"input": ""}), "input"),
            (json!({"input": ["a", "\u{200b} "]}), "input[1]"),
            (json!({"input": [{"type": "text", "text": "\n"}]}), "input[0].text"),
        ] {
            assert_eq!(read(body.clone()).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }

    #[test]
    fn a_rule_sets_the_category_of_its_name_and_no_other() {
        let result = moderation_result(Some(("self-harm.intent", true)));
        assert_eq!(
            (&result["flagged"], &result["blocked"], &result["rule"]),
            (&json!(true), &json!(true), &json!("self-harm.intent"))
        );
        let set: Vec<_> =
            CATEGORIES.iter().filter(|category| result["categories"][**category] == json!(true)).collect();
        assert_eq!(set, [&"self-harm/intent"]);
        assert_eq!(result["category_scores"]["self-harm/intent"], 1.0);
        let result = moderation_result(Some(("our-words", false)));
        assert_eq!(
            (&result["flagged"], &result["blocked"], &result["categories"]["hate"]),
            (&json!(true), &json!(false), &json!(false))
        );
        assert_eq!(moderation_result(None)["flagged"], false);
    }
}
