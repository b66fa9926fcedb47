//! Removes from an answer what it reveals about the server's cache, for callers who share that cache with other
//! tenants. All other bytes stay as they came. Must not know who shares a cache.

use bytes::{BufMut, Bytes, BytesMut};
use headrace_domain::{Dialect, TokenClass, Usage};
use serde_json::{Map, Value};

use crate::request::{ObjectFields, items};

/// Fields of an answer with times and cache figures of the whole server.
const TIMES: &[&str] =
    &["__verbose", "diagnostics", "meta_info", "metrics", "prompt_progress", "sglext", "timings", "x_groq"];
/// Usage counts that reveal nothing about a cache. All other counts are left out.
const COUNTS: &[&str] = &[
    "completion_tokens",
    "completion_tokens_details",
    "inference_geo",
    "input_tokens",
    "output_tokens",
    "output_tokens_details",
    "prompt_tokens",
    "reasoning_tokens",
    "server_tool_use",
    "service_tier",
    "total_tokens",
];
/// The same for the details of a prompt.
const OF_PROMPT: &[&str] = &["audio_tokens", "image_tokens", "text_tokens", "video_tokens"];

/// Returns the class for cache tokens in an answer to `body`. It depends on what the body requests, never on what the
/// cache contained: cache writes if an Anthropic body requests them, otherwise computed input.
pub fn concealed_class(dialect: Dialect, body: &[u8]) -> TokenClass {
    let has = |word: &[u8]| memchr::memmem::find(body, word).is_some();
    match dialect {
        Dialect::Anthropic if has(b"cache_control") && has(b"\"1h\"") => TokenClass::CacheWrite1h,
        Dialect::Anthropic if has(b"cache_control") => TokenClass::CacheWrite,
        Dialect::Anthropic | Dialect::OpenAi => TokenClass::Input,
    }
}

/// Returns the usage with all cache tokens counted as `class`.
pub fn concealed_usage(usage: Usage, class: TokenClass) -> Usage {
    let cached = usage.cached_input.saturating_add(usage.cache_writes());
    let none = Usage { cached_input: 0, cache_write: 0, cache_write_1h: 0, ..usage };
    match class {
        TokenClass::CacheWrite => Usage { cache_write: cached, ..none },
        TokenClass::CacheWrite1h => Usage { cache_write_1h: cached, ..none },
        _ => Usage { input: usage.input.saturating_add(cached), ..none },
    }
}

/// Returns a whole answer, or the data of an event, without its cache figures. `None` if it has none.
pub fn concealed(json: &[u8], dialect: Dialect, class: TokenClass) -> Option<Bytes> {
    let mut cuts = Vec::new();
    object(json, 0, dialect, class, &mut cuts);
    if cuts.is_empty() {
        return None;
    }
    cuts.sort_unstable_by_key(|(start, _, _)| *start);
    let mut out = BytesMut::with_capacity(json.len() + 64);
    let mut at = 0;
    for (start, end, text) in cuts {
        out.put_slice(json.get(at..start)?);
        out.put_slice(text.as_bytes());
        at = end;
    }
    out.put_slice(json.get(at..)?);
    Some(out.freeze())
}

/// Collects the edits for an object that begins at `base`: ranges and their replacements.
fn object(
    bytes: &[u8],
    base: usize,
    dialect: Dialect,
    class: TokenClass,
    cuts: &mut Vec<(usize, usize, String)>,
) {
    for field in ObjectFields::of(bytes).into_iter().flatten() {
        let Some(value) = bytes.get(field.value.clone()).filter(|value| *value != b"null") else { continue };
        let (start, end) = (base + field.value.start, base + field.value.end);
        match field.key.as_ref() {
            "usage" => cuts.push((start, end, usage(value, dialect, class))),
            // Anthropic's first event, and events of the Responses API.
            "message" | "response" => object(value, start, dialect, class, cuts),
            // Some servers report the usage with each choice.
            "choices" => {
                for item in items(value) {
                    let offset = item.as_ptr().addr().saturating_sub(value.as_ptr().addr());
                    object(item, start + offset, dialect, class, cuts);
                }
            }
            key if TIMES.contains(&key) => cuts.push((start, end, "null".to_owned())),
            _ => {}
        }
    }
}

fn usage(bytes: &[u8], dialect: Dialect, class: TokenClass) -> String {
    let Ok(Value::Object(told)) = serde_json::from_slice::<Value>(bytes) else { return "null".to_owned() };
    let count = |key: &str| told.get(key).and_then(Value::as_u64).unwrap_or(0);
    let mut kept = Map::new();
    for (key, value) in &told {
        match (key.as_str(), value) {
            (known, _) if COUNTS.contains(&known) => drop(kept.insert(key.clone(), value.clone())),
            ("prompt_tokens_details" | "input_tokens_details", Value::Object(details)) => {
                let mut shown: Map<String, Value> = details
                    .iter()
                    .filter(|(key, _)| OF_PROMPT.contains(&key.as_str()))
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect();
                for key in ["cached_tokens", "cache_write_tokens"]
                    .into_iter()
                    .filter(|key| details.contains_key(*key))
                {
                    shown.insert(key.to_owned(), 0.into());
                }
                kept.insert(key.clone(), Value::Object(shown));
            }
            _ => {}
        }
    }
    if dialect == Dialect::Anthropic && told.contains_key("input_tokens") {
        let cached = count("cache_read_input_tokens").saturating_add(count("cache_creation_input_tokens"));
        let (mut written, mut hour) = (cached, 0);
        match class {
            TokenClass::CacheWrite => {}
            TokenClass::CacheWrite1h => hour = cached,
            _ => {
                kept.insert("input_tokens".to_owned(), count("input_tokens").saturating_add(cached).into());
                written = 0;
            }
        }
        if told.contains_key("cache_read_input_tokens") {
            kept.insert("cache_read_input_tokens".to_owned(), 0.into());
        }
        if told.contains_key("cache_creation_input_tokens") || written > 0 {
            kept.insert("cache_creation_input_tokens".to_owned(), written.into());
        }
        if told.contains_key("cache_creation") {
            let split = serde_json::json!({
                "ephemeral_5m_input_tokens": written - hour, "ephemeral_1h_input_tokens": hour});
            kept.insert("cache_creation".to_owned(), split);
        }
    }
    Value::Object(kept).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(json: &str, dialect: Dialect, class: TokenClass) -> String {
        concealed(json.as_bytes(), dialect, class)
            .map_or_else(|| json.to_owned(), |bytes| String::from_utf8(bytes.to_vec()).unwrap())
    }

    /// A hit and a miss of the same call must look alike, byte for byte.
    #[test]
    fn a_hit_looks_like_a_miss() {
        let openai = |cached: u64| {
            json!({"id": "c", "choices": [{"index": 0, "delta": {}, "usage": {"prompt_tokens": 20, "cached_tokens": cached}}],
                "timings": {"cache_n": cached, "prompt_ms": cached},
                "usage": {"prompt_tokens": 20, "completion_tokens": 2, "total_tokens": 22, "cost": 0.1 + cached as f64,
                    "prompt_cache_hit_tokens": cached, "cached_tokens": cached, "prompt_time": cached,
                    "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0}}})
            .to_string()
        };
        let responses = |cached: u64| {
            json!({"type": "response.completed", "response": {"id": "r", "usage": {"input_tokens": 20,
                "input_tokens_details": {"cached_tokens": cached}, "output_tokens": 2, "total_tokens": 22}}})
            .to_string()
        };
        for of in [openai as fn(u64) -> String, responses] {
            let [hit, miss] = [16, 0].map(|cached| shown(&of(cached), Dialect::OpenAi, TokenClass::Input));
            assert_eq!(hit, miss);
            assert!(!hit.contains("16") && hit.contains("\"cached_tokens\":0"), "{hit}");
        }
        let anthropic = |read: u64, written: u64, input: u64| {
            let usage = json!({"input_tokens": input, "cache_read_input_tokens": read, "cache_creation_input_tokens": written,
                "cache_creation": {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": 0}, "output_tokens": 2});
            [
                json!({"type": "message_start", "message": {"id": "m", "usage": usage}}),
                json!({"usage": usage}),
            ]
            .map(|event| event.to_string())
            .join("\n")
        };
        for class in [TokenClass::Input, TokenClass::CacheWrite, TokenClass::CacheWrite1h] {
            let of = |text: String| -> Vec<String> {
                text.lines().map(|line| shown(line, Dialect::Anthropic, class)).collect()
            };
            assert_eq!(of(anthropic(16, 0, 4)), of(anthropic(0, 16, 4)), "{class}");
            assert_eq!(of(anthropic(6, 10, 4)), of(anthropic(0, 16, 4)), "{class}");
        }
    }

    #[test]
    fn what_says_nothing_of_a_cache_stays_byte_for_byte() {
        for json in [
            r#"{"id" : "c", "choices":[{"delta":{"content":"\"usage\":{\"cached_tokens\":5}"}}] , "usage":null}"#,
            r#"{"content":[{"type":"tool_use","input":{"usage":{"cached_tokens":5}}}]}"#,
            "[DONE]",
            "",
        ] {
            assert_eq!(concealed(json.as_bytes(), Dialect::OpenAi, TokenClass::Input), None, "{json}");
        }
        let around = r#"{"a" : 1.50, "usage":{"prompt_tokens":7,"cached_tokens":3} ,"z":"é\u00e9"}"#;
        let expected = r#"{"a" : 1.50, "usage":{"prompt_tokens":7} ,"z":"é\u00e9"}"#;
        assert_eq!(shown(around, Dialect::OpenAi, TokenClass::Input), expected);
    }

    #[test]
    fn a_bill_goes_by_the_body_and_not_by_the_cache() {
        let class = |dialect, body: &str| concealed_class(dialect, body.as_bytes());
        assert_eq!(class(Dialect::OpenAi, "{\"cache_control\":1}"), TokenClass::Input);
        assert_eq!(class(Dialect::Anthropic, "{}"), TokenClass::Input);
        assert_eq!(class(Dialect::Anthropic, "{\"cache_control\":{}}"), TokenClass::CacheWrite);
        assert_eq!(
            class(Dialect::Anthropic, "{\"cache_control\":{\"ttl\":\"1h\"}}"),
            TokenClass::CacheWrite1h
        );
        let hit = Usage { input: 4, cached_input: 16, output: 2, ..Usage::default() };
        let miss = Usage { input: 4, cache_write: 16, output: 2, ..Usage::default() };
        for class in [TokenClass::Input, TokenClass::CacheWrite, TokenClass::CacheWrite1h] {
            assert_eq!(concealed_usage(hit, class), concealed_usage(miss, class));
            assert_eq!(concealed_usage(hit, class).prompt_tokens(), 20);
        }
    }
}
