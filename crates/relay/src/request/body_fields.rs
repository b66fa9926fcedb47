//! The names of the top-level fields that some step knows, and their places. [`super::skim`] records places in its only
//! pass; a body that was written here is searched once. Knows no values.

use std::ops::Range;

use headrace_domain::{BodyFields, FieldSpan, RelayedBody};

use super::fields::{ObjectFields, model_in};

/// A top-level field of any dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyField {
    Model,
    Messages,
    Stream,
    MaxTokens,
    Temperature,
    System,
    Tools,
    StreamOptions,
    TopP,
    MaxCompletionTokens,
    ToolChoice,
    ResponseFormat,
    Metadata,
    User,
    Seed,
    N,
    Input,
    Text,
    MaxOutputTokens,
    Prompt,
    OutputConfig,
    StructuredOutputs,
    ServiceTier,
    SafetyIdentifier,
    PromptCacheKey,
    TopK,
    MinP,
    Functions,
    ChatTemplateKwargs,
    Headrace,
    Timeout,
    CacheSalt,
    ExtraKey,
    BestOf,
    Echo,
    /// Any other field. Its reader decides by the name.
    Other,
}

impl BodyField {
    /// Returns the field of a name. The names of usual calls come first, because they are compared in this order.
    #[inline]
    pub(super) fn named(key: &str) -> Self {
        match key {
            "model" => Self::Model,
            "messages" => Self::Messages,
            "stream" => Self::Stream,
            "max_tokens" => Self::MaxTokens,
            "temperature" => Self::Temperature,
            "system" => Self::System,
            "tools" => Self::Tools,
            "stream_options" => Self::StreamOptions,
            "top_p" => Self::TopP,
            "max_completion_tokens" => Self::MaxCompletionTokens,
            "tool_choice" => Self::ToolChoice,
            "response_format" => Self::ResponseFormat,
            "metadata" => Self::Metadata,
            "user" => Self::User,
            "seed" => Self::Seed,
            "n" => Self::N,
            "input" => Self::Input,
            "text" => Self::Text,
            "max_output_tokens" => Self::MaxOutputTokens,
            "prompt" => Self::Prompt,
            "output_config" => Self::OutputConfig,
            "structured_outputs" => Self::StructuredOutputs,
            "service_tier" => Self::ServiceTier,
            "safety_identifier" => Self::SafetyIdentifier,
            "prompt_cache_key" => Self::PromptCacheKey,
            "top_k" => Self::TopK,
            "min_p" => Self::MinP,
            "functions" => Self::Functions,
            "chat_template_kwargs" => Self::ChatTemplateKwargs,
            "headrace" => Self::Headrace,
            "timeout" => Self::Timeout,
            "cache_salt" => Self::CacheSalt,
            "extra_key" => Self::ExtraKey,
            "best_of" => Self::BestOf,
            "echo" => Self::Echo,
            _ => Self::Other,
        }
    }

    /// Whether the field is left out of the body that is sent. The gateway reads its own additions to the dialects, and
    /// no other server knows them. If salts of cached prefixes (vLLM, SGLang) were passed on unchanged, two tenants with
    /// the same salt would share prefixes.
    pub(super) const fn is_left_out(self) -> bool {
        matches!(self, Self::Headrace | Self::Timeout | Self::CacheSalt | Self::ExtraKey)
    }

    /// Whether a call with this field still has a plain text answer whose continuation depends only on the turns and the
    /// text so far. `false` for stop strings, because one may begin before an interruption and end after it.
    const fn is_plain(self) -> bool {
        matches!(
            self,
            Self::Headrace
                | Self::MaxCompletionTokens
                | Self::MaxTokens
                | Self::Messages
                | Self::Metadata
                | Self::MinP
                | Self::Model
                | Self::PromptCacheKey
                | Self::SafetyIdentifier
                | Self::Seed
                | Self::ServiceTier
                | Self::Stream
                | Self::StreamOptions
                | Self::System
                | Self::Temperature
                | Self::Timeout
                | Self::TopK
                | Self::TopP
                | Self::User
        )
    }
}

/// The facts about the fields of a body before its first field is read.
pub(super) fn no_fields() -> BodyFields {
    BodyFields { only_plain: true, ..BodyFields::default() }
}

/// Records the place of a field if later steps need it.
pub(super) fn record(fields: &mut BodyFields, field: BodyField, start: usize, end: usize) {
    fields.only_plain &= field.is_plain();
    let span = match field {
        BodyField::Model => &mut fields.model,
        BodyField::System => &mut fields.system,
        BodyField::Tools => &mut fields.tools,
        BodyField::Messages => &mut fields.messages,
        BodyField::Prompt => &mut fields.prompt,
        BodyField::ResponseFormat => &mut fields.response_format,
        BodyField::OutputConfig => &mut fields.output_config,
        BodyField::StructuredOutputs => &mut fields.structured_outputs,
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
    place(fields.model, &relayed.body)
}

/// Returns the range of a value in a body, without white space before it.
pub(super) fn place(span: FieldSpan, body: &[u8]) -> Option<Range<usize>> {
    let (end, value) = (span.end as usize, span.of(body)?);
    Some(end.checked_sub(value.len())?..end)
}

#[cold]
fn search(body: &[u8]) -> BodyFields {
    let Some(object) = ObjectFields::of(body) else { return BodyFields::default() };
    let mut fields = no_fields();
    for field in object {
        record(&mut fields, BodyField::named(&field.key), field.value.start, field.value.end);
    }
    fields
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use headrace_domain::{Endpoint, Prompt};
    use headrace_wire::WireLimits;

    use super::super::{guard, skim};
    use super::*;

    #[test]
    fn plain_fields_are_those_that_leave_an_answer_plain() {
        let plain = [
            "headrace",
            "max_completion_tokens",
            "max_tokens",
            "messages",
            "metadata",
            "min_p",
            "model",
            "prompt_cache_key",
            "safety_identifier",
            "seed",
            "service_tier",
            "stream",
            "stream_options",
            "system",
            "temperature",
            "timeout",
            "top_k",
            "top_p",
            "user",
        ];
        for key in guard::TOP.iter().chain(&["extra_key", "tools", "something_new", "Model", ""]) {
            assert_eq!(BodyField::named(key).is_plain(), plain.contains(key), "{key}");
        }
        let known = |key: &&str| BodyField::named(key) != BodyField::Other;
        assert!(plain.iter().all(known));
        for none in ["[]", "", "7"] {
            assert!(!search(none.as_bytes()).only_plain, "{none}");
        }
        assert!(search(b"{}").only_plain);
    }

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
            assert_eq!(relayed.fields.unwrap().only_plain, search(body.as_bytes()).only_plain, "{body}");
            let recorded = values(relayed.fields.unwrap());
            assert_eq!(recorded, values(search(body.as_bytes())), "{body}");
            assert!(recorded[0].is_some_and(|model| model.starts_with("\"m")), "{body}");
        }
    }
}
