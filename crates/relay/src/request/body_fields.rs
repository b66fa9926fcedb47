//! The places of the top-level fields that later steps need. [`super::skim`] records them in its only pass; a body that
//! was written here is searched once. Knows the names of these fields, and no values.

use std::ops::Range;

use headrace_domain::{BodyFields, FieldSpan, RelayedBody};

use super::fields::{ObjectFields, model_in};

/// Records the place of the field `key`, if later steps need it.
pub(super) fn record(fields: &mut BodyFields, key: &str, start: usize, end: usize) {
    let span = match key {
        "model" => &mut fields.model,
        "system" => &mut fields.system,
        "tools" => &mut fields.tools,
        "messages" => &mut fields.messages,
        "prompt" => &mut fields.prompt,
        "response_format" => &mut fields.response_format,
        "output_config" => &mut fields.output_config,
        "structured_outputs" => &mut fields.structured_outputs,
        _ => return,
    };
    *span = FieldSpan::new(start, end);
}

/// Returns the places of the fields of a body.
pub(super) fn fields_of(relayed: &RelayedBody) -> BodyFields {
    relayed.fields.unwrap_or_else(|| search(&relayed.body))
}

/// Returns the place of the model's name in a body. A body whose fields are not recorded is searched up to the name.
pub(super) fn model_place(relayed: &RelayedBody) -> Option<Range<usize>> {
    let Some(fields) = &relayed.fields else { return model_in(&relayed.body) };
    let (end, name) = (fields.model.end as usize, fields.model.of(&relayed.body)?);
    Some(end.checked_sub(name.len())?..end)
}

#[cold]
fn search(body: &[u8]) -> BodyFields {
    let mut fields = BodyFields::default();
    for field in ObjectFields::of(body).into_iter().flatten() {
        record(&mut fields, &field.key, field.value.start, field.value.end);
    }
    fields
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use headrace_domain::{Endpoint, Prompt};
    use headrace_wire::WireLimits;

    use super::super::skim;
    use super::*;

    #[test]
    fn a_pass_and_a_search_find_the_same_values() {
        for (endpoint, body) in [
            (Endpoint::ChatCompletions, r#"{"model":"m","messages":[{"role":"user","content":"a"}]}"#),
            (
                Endpoint::ChatCompletions,
                r#" { "messages" : [ {"role":"user","content":"\"model\":"} ] , "tools":[],
                    "response_format" : {"type":"text"} ,"structured_outputs":null,"mod\u0065l" : "m\/1" } "#,
            ),
            (
                Endpoint::Messages,
                r#"{"system":"s","output_config":{},"max_tokens":1,"model":"m","messages":[{"role":"user","content":"a"}]}"#,
            ),
            (Endpoint::Completions, r#"{"prompt":["a", "b"],"model":"m"}"#),
        ] {
            let call = skim(endpoint, Bytes::from_static(body.as_bytes()), &WireLimits::default()).unwrap();
            let Prompt::Relayed(relayed) = &call.prompt else { panic!("a body") };
            let values = |fields: BodyFields| {
                let BodyFields { model, system, tools, messages, prompt, .. } = fields;
                let BodyFields { response_format, output_config, structured_outputs, .. } = fields;
                [model, system, tools, messages, prompt, response_format, output_config, structured_outputs]
                    .map(|span| span.of(body.as_bytes()).map(|value| std::str::from_utf8(value).unwrap()))
            };
            let recorded = values(relayed.fields.unwrap());
            assert_eq!(recorded, values(search(body.as_bytes())), "{body}");
            assert!(recorded[0].is_some_and(|model| model.starts_with("\"m")), "{body}");
        }
    }
}
