//! The response format that a relayed body requests, as far as the gateway can check it. Refuses nothing, because the
//! receiver decides what a body means.

use headrace_domain::{Endpoint, ResponseFormat};
use memchr::memchr_iter;

use headrace_wire::WireLimits;
use headrace_wire::common::form::{anthropic_format, response_format, structured_outputs};
use headrace_wire::json::JsonReader;

use super::fields::ObjectFields;

/// Returns the JSON format that a body requests. `None` if it requests none, or in a notation that is not known.
pub fn form_asked(endpoint: Endpoint, body: &[u8], limits: &WireLimits) -> Option<ResponseFormat> {
    if !may_ask(body) {
        return None;
    }
    let field = |bytes: &'_ [u8], name: &str| {
        let field = ObjectFields::of(bytes)?.find(|field| field.key == name)?;
        Some(field.value)
    };
    let read = |bytes| JsonReader::new(bytes, limits.max_json_depth, limits.max_free_form_values).ok();
    if endpoint == Endpoint::Messages {
        let config = body.get(field(body, "output_config")?)?;
        let format = config.get(field(config, "format")?)?;
        return anthropic_format(&mut read(format)?).ok();
    }
    if let Some(outputs) = field(body, "structured_outputs") {
        return structured_outputs(&mut read(body.get(outputs)?)?, limits).ok();
    }
    let format = body.get(field(body, "response_format")?)?;
    response_format(&mut read(format)?, limits).ok().flatten()
}

/// Whether `"json_` or `"structured_outputs"` appears anywhere in a body. Every body that requests a JSON format
/// contains one of them.
fn may_ask(body: &[u8]) -> bool {
    // Both contain `_`, which few texts do. One search for it is faster than one search for each word.
    memchr_iter(b'_', body).any(|at| {
        let (before, after) = body.split_at(at);
        before.ends_with(b"\"json") || (before.ends_with(b"\"structured") && after.starts_with(b"_outputs\""))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_a_body_may_ask_for_a_form_is_seen_by_two_words() {
        for (text, asks) in [
            ("", false),
            ("_", false),
            ("json_", false),
            ("\"json_", true),
            ("__\"json\"_", false),
            ("a_b \"json_schema\"", true),
            ("\"structured_outputs\"", true),
            ("\"structured_outputs", false),
            ("structured_outputs\"", false),
            ("\"structured_outputs_\"", false),
            ("snake_case, json schema and \"structured outputs\"", false),
        ] {
            assert_eq!(may_ask(text.as_bytes()), asks, "{text}");
        }
    }

    #[test]
    fn a_form_is_found_where_its_dialect_has_it() {
        let schema = r#"{"type":"object","properties":{"z":{},"a":{}}}"#;
        let chat = format!(
            r#"{{"messages":[{{"content":"\"json_schema\""}}],"response_format":{{"type":"json_schema","json_schema":{{"name":"x","schema":{schema}}}}},"model":"m"}}"#
        );
        let claude = format!(
            r#"{{"output_config":{{"effort":"low","format":{{"type":"json_schema","schema":{schema}}}}}}}"#
        );
        let vllm = format!(r#"{{"structured_outputs":{{"json":{schema}}}}}"#);
        for (endpoint, body, found) in [
            (Endpoint::ChatCompletions, chat.as_str(), Some(schema)),
            (Endpoint::Messages, &claude, Some(schema)),
            (Endpoint::ChatCompletions, &vllm, Some(schema)),
            (Endpoint::ChatCompletions, r#"{"response_format":{"type":"json_object"}}"#, Some("")),
            (Endpoint::ChatCompletions, r#"{"response_format":{"type":"text"}}"#, None),
            (Endpoint::ChatCompletions, r#"{"response_format":{"type":"json_later"}}"#, None),
            (Endpoint::ChatCompletions, r#"{"response_format":null,"n":"json_"}"#, None),
            (Endpoint::Messages, &chat, None),
            (Endpoint::ChatCompletions, "\"json_\"", None),
        ] {
            let form = form_asked(endpoint, body.as_bytes(), &WireLimits::default());
            let schema = form.map(|form| match form {
                ResponseFormat::JsonSchema(form) => form.schema.to_string(),
                ResponseFormat::JsonObject => String::new(),
                other => panic!("{other:?}"),
            });
            assert_eq!(schema.as_deref(), found, "{body}");
        }
    }
}
