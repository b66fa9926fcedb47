//! The response format that a relayed body requests, as far as the gateway can check it. Refuses nothing, because the
//! receiver decides what a body means.

use headrace_domain::{Endpoint, RelayedBody, ResponseFormat};

use headrace_wire::WireLimits;
use headrace_wire::common::form::{anthropic_format, response_format, structured_outputs};
use headrace_wire::json::JsonReader;

use super::body_fields::fields_of;
use super::fields::ObjectFields;

/// Returns the JSON format that a body requests. `None` if it requests none, or in a notation that is not known.
pub fn form_asked(endpoint: Endpoint, relayed: &RelayedBody, limits: &WireLimits) -> Option<ResponseFormat> {
    let (body, fields) = (relayed.body.as_ref(), fields_of(relayed));
    let read = |bytes| JsonReader::new(bytes, limits.max_json_depth, limits.max_free_form_values).ok();
    if endpoint == Endpoint::Messages {
        let config = fields.output_config.of(body)?;
        let field = ObjectFields::of(config)?.find(|field| field.key == "format")?;
        return anthropic_format(&mut read(config.get(field.value)?)?).ok();
    }
    if let Some(outputs) = fields.structured_outputs.of(body) {
        return structured_outputs(&mut read(outputs)?, limits).ok();
    }
    response_format(&mut read(fields.response_format.of(body)?)?, limits).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let relayed = RelayedBody {
                body: body.to_owned().into(),
                text_bytes: 0,
                media: 0,
                prompts: 1,
                has_own_fields: false,
                concerns: Vec::new(),
                fields: None,
            };
            let form = form_asked(endpoint, &relayed, &WireLimits::default());
            let schema = form.map(|form| match form {
                ResponseFormat::JsonSchema(form) => form.schema.to_string(),
                ResponseFormat::JsonObject => String::new(),
                other => panic!("{other:?}"),
            });
            assert_eq!(schema.as_deref(), found, "{body}");
        }
    }
}
