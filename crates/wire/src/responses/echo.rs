//! The parameters that an answer repeats. It repeats all of them, because clients look for the keys. Knows no answers.

use bytes::BytesMut;
use headrace_domain::{ResponseAsk, SamplingRequest, ServiceTier};

use crate::common::cache_options::CacheOptions;
use crate::json::writer::{raw, value};

/// The request's parameters, in the form in which the answer repeats them.
#[derive(Debug, Default)]
pub(super) struct RequestEcho {
    /// JSON, as it was sent.
    pub(super) tool_choice: Option<String>,
    /// A JSON list, without brackets.
    pub(super) tools: BytesMut,
    pub(super) instructions: Option<String>,
    pub(super) one_call: bool,
    pub(super) max_tool_calls: Option<u32>,
    /// A JSON object, as it was sent.
    pub(super) metadata: Option<String>,
    pub(super) safety_identifier: Option<String>,
    pub(super) prompt_cache_key: Option<String>,
    pub(super) cache: Option<CacheOptions>,
    pub(super) user: Option<String>,
    pub(super) effort: Option<String>,
    pub(super) summary: Option<String>,
    /// A JSON object. `None` if the format is plain text.
    pub(super) format: Option<String>,
    pub(super) top_logprobs: u32,
    pub(super) verbosity: Option<String>,
}

impl RequestEcho {
    /// Sets a `text.format` with a schema.
    pub(super) fn json_schema(
        &mut self,
        name: &str,
        description: Option<&str>,
        schema: &str,
        strict: Option<bool>,
    ) {
        let mut out = BytesMut::new();
        raw(&mut out, "{\"type\":\"json_schema\",\"name\":");
        value(&mut out, name);
        raw(&mut out, ",\"description\":");
        value(&mut out, &description);
        raw(&mut out, ",\"schema\":");
        raw(&mut out, schema);
        raw(&mut out, ",\"strict\":");
        value(&mut out, &strict.unwrap_or(false));
        raw(&mut out, "}");
        self.format = Some(text_of(out));
    }

    /// Writes the fields, each followed by a comma.
    pub(super) fn written(self, ask: &ResponseAsk, sampling: &SamplingRequest, tier: ServiceTier) -> String {
        let mut out = BytesMut::with_capacity(512 + self.tools.len());
        let out = &mut out;
        field(out, "instructions", &self.instructions);
        field(out, "max_output_tokens", &sampling.max_tokens);
        field(out, "max_tool_calls", &self.max_tool_calls);
        json(out, "metadata", self.metadata.as_deref().unwrap_or("{}"));
        field(out, "parallel_tool_calls", &!self.one_call);
        field(out, "previous_response_id", &ask.previous);
        if let Some(id) = &ask.conversation {
            raw(out, "\"conversation\":{\"id\":");
            value(out, id);
            raw(out, "},");
        }
        field(out, "prompt_cache_key", &self.prompt_cache_key);
        if let Some(CacheOptions { explicit, comparison }) = &self.cache {
            raw(out, "\"prompt_cache_options\":{\"mode\":");
            value(out, if *explicit { "explicit" } else { "implicit" });
            raw(out, ",\"ttl\":\"30m\",\"comparison_response_id\":");
            value(out, comparison);
            raw(out, "},");
        }
        raw(out, "\"reasoning\":{\"effort\":");
        value(out, &self.effort);
        raw(out, ",\"summary\":");
        value(out, &self.summary);
        raw(out, "},");
        field(out, "safety_identifier", &self.safety_identifier);
        let tier = if tier == ServiceTier::Flex { "flex" } else { "default" };
        field(out, "service_tier", tier);
        field(out, "store", &ask.store);
        field(out, "background", &ask.background);
        raw(out, "\"text\":{\"format\":");
        raw(out, self.format.as_deref().unwrap_or(r#"{"type":"text"}"#));
        raw(out, ",\"verbosity\":");
        value(out, self.verbosity.as_deref().unwrap_or("medium"));
        raw(out, "},");
        json(out, "tool_choice", self.tool_choice.as_deref().unwrap_or("\"auto\""));
        raw(out, "\"tools\":[");
        out.extend_from_slice(&self.tools);
        raw(out, "],");
        field(out, "top_logprobs", &self.top_logprobs);
        field(out, "truncation", if ask.cuts { "auto" } else { "disabled" });
        field(out, "user", &self.user);
        text_of(std::mem::take(out))
    }
}

fn field<T: serde::Serialize + ?Sized>(out: &mut BytesMut, name: &str, field: &T) {
    raw(out, "\"");
    raw(out, name);
    raw(out, "\":");
    value(out, field);
    raw(out, ",");
}

fn json(out: &mut BytesMut, name: &str, text: &str) {
    raw(out, "\"");
    raw(out, name);
    raw(out, "\":");
    raw(out, text);
    raw(out, ",");
}

/// Converts the bytes to a string. They are always UTF-8: pieces of the body, which was checked, and serde's output.
pub(super) fn text_of(out: BytesMut) -> String {
    String::from_utf8(out.to_vec()).unwrap_or_default()
}
