//! OpenAI's options for cached prompts: the lifetime of marked prefixes, and the answer that the prompt is compared
//! with. Knows no cache.
//!
//! Source: the types of OpenAI's SDK (`PromptCacheOptions`, `prompt_cache_breakpoint`), <https://developers.openai.com/api/docs/guides/prompt-caching>.

use headrace_domain::{CacheLife, CacheMark, CacheMarkAt, Code};

use crate::common::params::label;
use crate::fault::{FieldFault, Read};
use crate::json::JsonReader;
use crate::limits::WireLimits;

/// The most marks of a request that count. If there are more, only the last ones count.
const MOST_MARKS: usize = 4;
/// The lifetime of marked prefixes. Requests ask for half an hour, and the next longer lifetime is an hour.
const LIFE: CacheLife = CacheLife::Hour;

/// The value of `prompt_cache_options`.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct CacheOptions {
    /// Only marked prefixes are kept.
    pub(crate) explicit: bool,
    /// The id of the answer to compare the prompt with.
    pub(crate) comparison: Option<String>,
}

/// Reads the options. `compares` says whether the endpoint can compare prompts.
pub(crate) fn read(r: &mut JsonReader<'_>, limits: &WireLimits, compares: bool) -> Read<CacheOptions> {
    let mut options = CacheOptions::default();
    r.object(|r, key| {
        match key.as_ref() {
            "mode" => {
                let mode = r.optional(|r| match r.string()?.as_ref() {
                    "implicit" => Ok(false),
                    "explicit" => Ok(true),
                    _ => Err(FieldFault::new(Code::InvalidValue, "it must be `implicit` or `explicit`")),
                })?;
                options.explicit = mode.unwrap_or(false);
            }
            "ttl" => {
                r.optional(|r| match r.string()?.as_ref() {
                    "30m" => Ok(()),
                    "12h" => {
                        let message = "what is marked is kept for an hour after its last use; send `30m`, or leave it out";
                        Err(FieldFault::new(Code::UnsupportedValue, message))
                    }
                    _ => Err(FieldFault::new(Code::InvalidValue, "it must be `30m`")),
                })?;
            }
            "comparison_response_id" if compares => {
                options.comparison = r.optional(|r| label(r, limits))?;
            }
            "prewarm" if compares => {
                if r.optional(crate::json::JsonReader::bool)? == Some(true) {
                    let message = "it is not supported: a first call computes the prompt; leave it out";
                    return Err(FieldFault::new(Code::UnsupportedParameter, message));
                }
            }
            _ => return Err(FieldFault::unknown()),
        }
        Ok(())
    })?;
    Ok(options)
}

/// Reads `prompt_cache_breakpoint` of a part: `{"mode": "explicit"}`. Returns whether the part is marked.
pub(crate) fn read_breakpoint(r: &mut JsonReader<'_>) -> Read<bool> {
    let marked = r.optional(|r| {
        let mut mode = None;
        r.object(|r, key| {
            match key.as_ref() {
                "mode" => mode = Some(r.string()?),
                _ => return Err(FieldFault::unknown()),
            }
            Ok(())
        })?;
        match mode.as_deref() {
            Some("explicit") => Ok(true),
            Some(_) => Err(FieldFault::at("mode", Code::InvalidValue, "it must be `explicit`")),
            None => Err(FieldFault::missing("mode")),
        }
    })?;
    Ok(marked.unwrap_or(false))
}

/// Returns the marks behind these messages, which are given by their indexes in the request.
pub(crate) fn marks(messages: &[u32]) -> Vec<CacheMark> {
    let last = messages.get(messages.len().saturating_sub(MOST_MARKS)..).unwrap_or(messages);
    last.iter().map(|index| CacheMark { at: CacheMarkAt::Message(*index), life: LIFE }).collect()
}

#[cfg(test)]
mod tests {
    use headrace_domain::{Call, Endpoint};
    use serde_json::{Value, json};

    use super::*;
    use crate::fault::BadRequest;
    use crate::request::parse;

    fn chat(options: &Value) -> Result<Call, BadRequest> {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "u"}], "prompt_cache_options": options});
        parse(Endpoint::ChatCompletions, body.to_string().as_bytes(), &WireLimits::default())
    }

    fn response(options: &Value) -> Result<Call, BadRequest> {
        let body = json!({"model": "m", "input": "u", "prompt_cache_options": options});
        parse(Endpoint::Responses, body.to_string().as_bytes(), &WireLimits::default())
    }

    #[test]
    fn what_is_not_known_is_refused_by_its_name() {
        for good in [json!(null), json!({}), json!({"mode": "implicit", "ttl": "30m"}), json!({"mode": null})]
        {
            assert!(chat(&good).is_ok() && response(&good).is_ok(), "{good}");
        }
        for (bad, param) in [
            (json!({"mode": "none"}), "prompt_cache_options.mode"),
            (json!({"ttl": "12h"}), "prompt_cache_options.ttl"),
            (json!({"ttl": "5m"}), "prompt_cache_options.ttl"),
            (json!({"other": 1}), "prompt_cache_options.other"),
            (json!("explicit"), "prompt_cache_options"),
        ] {
            for told in [chat(&bad), response(&bad)] {
                assert_eq!(told.unwrap_err().param.as_deref(), Some(param), "{bad}");
            }
        }
        let prewarm = response(&json!({"prewarm": true})).unwrap_err();
        assert_eq!(prewarm.param.as_deref(), Some("prompt_cache_options.prewarm"));
        assert!(response(&json!({"prewarm": false})).is_ok());
        let id = json!({"comparison_response_id": "resp_1"});
        let named = response(&id).unwrap();
        assert_eq!(named.dialect.comparison().unwrap().previous_answer.as_deref(), Some("resp_1"));
        assert_eq!(
            chat(&id).unwrap_err().param.as_deref(),
            Some("prompt_cache_options.comparison_response_id")
        );
        assert!(response(&json!(null)).unwrap().dialect.comparison().is_none());
    }

    #[test]
    fn the_last_four_marks_count_for_an_hour() {
        let mark = json!({"mode": "explicit"});
        let turn = |at: usize| match at % 2 {
            0 => {
                json!({"role": "user", "content": [{"type": "text", "text": "u", "prompt_cache_breakpoint": mark}]})
            }
            _ => json!({"role": "assistant", "content": "a"}),
        };
        let body = json!({"model": "m", "messages": (0..11).map(turn).collect::<Vec<_>>()});
        let call =
            parse(Endpoint::ChatCompletions, body.to_string().as_bytes(), &WireLimits::default()).unwrap();
        let marks: Vec<_> = call.cache_marks.iter().map(|mark| (mark.at, mark.life)).collect();
        assert_eq!(marks, [4, 6, 8, 10].map(|at| (CacheMarkAt::Message(at), CacheLife::Hour)));
        let input = json!([
            {"role": "developer", "content": [{"type": "input_text", "text": "s", "prompt_cache_breakpoint": mark}]},
            {"role": "user", "content": [{"type": "input_text", "text": "u", "prompt_cache_breakpoint": null}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c",
                "output": [{"type": "input_text", "text": "o", "prompt_cache_breakpoint": mark}]},
        ]);
        let body = json!({"model": "m", "input": input});
        let call = parse(Endpoint::Responses, body.to_string().as_bytes(), &WireLimits::default()).unwrap();
        let marks: Vec<_> = call.cache_marks.iter().map(|mark| mark.at).collect();
        assert_eq!(marks, [CacheMarkAt::Message(0), CacheMarkAt::Message(3)]);
        for (bad, param) in
            [(json!({}), "mode"), (json!({"mode": "implicit"}), "mode"), (json!({"x": 1}), "x")]
        {
            let content = json!([{"type": "text", "text": "u", "prompt_cache_breakpoint": bad}]);
            let body = json!({"model": "m", "messages": [{"role": "user", "content": content}]});
            let told = parse(Endpoint::ChatCompletions, body.to_string().as_bytes(), &WireLimits::default());
            let expected = format!("messages[0].content[0].prompt_cache_breakpoint.{param}");
            assert_eq!(told.unwrap_err().param, Some(expected));
        }
    }
}
