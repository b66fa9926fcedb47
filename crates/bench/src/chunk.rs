//! The parts of a chunk or a whole answer that a measurement needs, borrowed from the event's bytes if JSON allows it.
//! Accepts what any OpenAI-compatible server sends and ignores unknown fields.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// A chunk of a stream, or a whole answer.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct AnswerChunk<'a> {
    #[serde(borrow, default)]
    choices: Option<FirstChoice<'a>>,
    #[serde(default)]
    usage: Option<UsageBody>,
    /// llama.cpp's own timings, beside the usage.
    #[serde(default)]
    timings: Option<Timings>,
    #[serde(borrow, default)]
    pub(crate) error: Option<&'a RawValue>,
}

/// The first choice of a list. Requests ask for only one.
#[derive(Debug, Default)]
struct FirstChoice<'a>(Option<ChunkChoice<'a>>);

#[derive(Debug, Default, Deserialize)]
struct ChunkChoice<'a> {
    #[serde(borrow, default, alias = "message")]
    delta: Option<ChunkDelta<'a>>,
    #[serde(borrow, default)]
    text: Option<BorrowedText<'a>>,
    #[serde(borrow, default)]
    finish_reason: Option<BorrowedText<'a>>,
}

#[derive(Debug, Default, Deserialize)]
struct ChunkDelta<'a> {
    #[serde(borrow, default)]
    content: Option<BorrowedText<'a>>,
    #[serde(borrow, default, alias = "reasoning")]
    reasoning_content: Option<BorrowedText<'a>>,
    #[serde(borrow, default)]
    refusal: Option<BorrowedText<'a>>,
    #[serde(borrow, default)]
    tool_calls: Option<&'a RawValue>,
}

/// A string, borrowed unless it contains escapes. (A `Cow` within an `Option` would never be borrowed.)
#[derive(Debug, Default, Deserialize)]
struct BorrowedText<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Debug, Default, Deserialize)]
struct UsageBody {
    #[serde(default)]
    prompt_tokens: Option<u64>,
    #[serde(default)]
    completion_tokens: Option<u64>,
    #[serde(default)]
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Debug, Default, Deserialize)]
struct PromptDetails {
    #[serde(default)]
    cached_tokens: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
struct Timings {
    #[serde(default)]
    cache_n: Option<u64>,
}

/// Token counts as the server reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServerUsage {
    pub(crate) prompt: u64,
    pub(crate) output: u64,
    /// Prompt tokens from the cache, if the server reports them.
    pub(crate) cached: Option<u64>,
}

impl<'a> AnswerChunk<'a> {
    pub(crate) fn read(data: &'a [u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(data)
    }

    fn choice(&self) -> Option<&ChunkChoice<'a>> {
        self.choices.as_ref()?.0.as_ref()
    }

    /// The text of the answer proper.
    pub(crate) fn text(&self) -> &str {
        let Some(choice) = self.choice() else { return "" };
        let content = choice.delta.as_ref().and_then(|delta| delta.content.as_ref());
        content.or(choice.text.as_ref()).map_or("", |text| text.0.as_ref())
    }

    /// Returns `true` if the chunk has any generated content. A role or a finish reason alone does not count.
    pub(crate) fn has_content(&self) -> bool {
        let full = |text: &Option<BorrowedText<'_>>| text.as_ref().is_some_and(|text| !text.0.is_empty());
        self.choice().is_some_and(|choice| {
            full(&choice.text)
                || choice.delta.as_ref().is_some_and(|delta| {
                    full(&delta.content)
                        || full(&delta.reasoning_content)
                        || full(&delta.refusal)
                        || delta.tool_calls.is_some_and(|calls| calls.get().len() > "[]".len())
                })
        })
    }

    /// Returns `true` if the chunk has a finish reason.
    pub(crate) fn is_finish(&self) -> bool {
        self.choice().is_some_and(|choice| choice.finish_reason.is_some())
    }

    pub(crate) fn usage(&self) -> Option<ServerUsage> {
        let usage = self.usage.as_ref()?;
        let reported = usage.prompt_tokens_details.as_ref().and_then(|details| details.cached_tokens);
        let cached = reported.or_else(|| self.timings.as_ref().and_then(|timings| timings.cache_n));
        Some(ServerUsage {
            prompt: usage.prompt_tokens?,
            output: usage.completion_tokens.unwrap_or(0),
            cached,
        })
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for FirstChoice<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;
        impl<'de> Visitor<'de> for Whole {
            type Value = FirstChoice<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of choices")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<FirstChoice<'de>, A::Error> {
                let first = list.next_element()?;
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(FirstChoice(first))
            }
        }
        deserializer.deserialize_seq(Whole)
    }
}

/// The code and the message of an error body or event.
pub(crate) fn error_facts(body: &[u8]) -> (Option<String>, String) {
    let Ok(value) = serde_json::from_slice::<Value>(body) else {
        return (None, shortened(String::from_utf8_lossy(body).trim()));
    };
    let detail = value.get("error").unwrap_or(&value);
    let word = |name: &str| match detail.get(name) {
        Some(Value::String(text)) if !text.is_empty() => Some(text.clone()),
        _ => None,
    };
    let message = word("message").or_else(|| detail.as_str().map(str::to_owned));
    (word("code").or_else(|| word("type")), shortened(&message.unwrap_or_else(|| detail.to_string())))
}

/// Shortens a message to 400 characters.
fn shortened(text: &str) -> String {
    const MOST_CHARS: usize = 400;
    match text.char_indices().nth(MOST_CHARS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_several_servers() {
        let rows = [
            // Event, text, has content, has finish reason.
            (
                r#"{"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}"#,
                "",
                false,
                false,
            ),
            (r#"{"choices":[{"index":0,"delta":{"content":"Hi"}}]}"#, "Hi", true, false),
            (r#"{"choices":[{"index":0,"delta":{"content":"a\nb\u00e9"}}]}"#, "a\nbé", true, false),
            (r#"{"choices":[{"delta":{"content":null,"reasoning_content":"hm"}}]}"#, "", true, false),
            (r#"{"choices":[{"delta":{"reasoning":"hm"}}]}"#, "", true, false),
            (
                r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}"#,
                "",
                true,
                false,
            ),
            (r#"{"choices":[{"delta":{"tool_calls":[]},"finish_reason":"tool_calls"}]}"#, "", false, true),
            (r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#, "", false, true),
            (
                r#"{"choices":[{"text":" one","index":0,"logprobs":null,"finish_reason":null}]}"#,
                " one",
                true,
                false,
            ),
            (
                r#"{"choices":[{"message":{"role":"assistant","content":"all"},"finish_reason":"stop"}]}"#,
                "all",
                true,
                true,
            ),
            (r#"{"choices":[],"usage":{"prompt_tokens":1}}"#, "", false, false),
            (r#"{"choices":null}"#, "", false, false),
        ];
        for (event, text, content, finish) in rows {
            let chunk = AnswerChunk::read(event.as_bytes()).unwrap();
            assert_eq!(
                (chunk.text(), chunk.has_content(), chunk.is_finish()),
                (text, content, finish),
                "{event}"
            );
        }
        assert!(AnswerChunk::read(b"{\"choices\":3}").is_err());
    }

    #[test]
    fn usage_with_and_without_the_cached_part() {
        let usage = |event: &str| AnswerChunk::read(event.as_bytes()).unwrap().usage();
        let known = |prompt, output, cached| Some(ServerUsage { prompt, output, cached });
        for (event, expected) in [
            (r#"{"usage":null}"#, None),
            (r#"{"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}}"#, known(9, 3, None)),
            (
                r#"{"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4,"audio":0}}}"#,
                known(9, 3, Some(4)),
            ),
            (
                r#"{"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":null}}"#,
                known(9, 3, None),
            ),
            (r#"{"usage":{"prompt_tokens":9},"timings":{"cache_n":5,"prompt_n":4}}"#, known(9, 0, Some(5))),
        ] {
            assert_eq!(usage(event), expected, "{event}");
        }
    }

    #[test]
    fn texts_are_borrowed() {
        let data = br#"{"choices":[{"delta":{"content":"plain"}}]}"#;
        let chunk = AnswerChunk::read(data).unwrap();
        let text = chunk.choice().unwrap().delta.as_ref().unwrap().content.as_ref().unwrap();
        assert!(matches!(text.0, Cow::Borrowed("plain")));
    }

    #[test]
    fn errors_of_several_servers() {
        let long = "x".repeat(500);
        let code = |code: &str| Some(code.to_owned());
        for (body, expected) in [
            (
                r#"{"error":{"message":"Slow down","type":"requests","code":"rate_limit_exceeded"}}"#,
                (code("rate_limit_exceeded"), "Slow down"),
            ),
            (
                r#"{"error":{"code":400,"message":"Bad","type":"invalid_request_error"}}"#,
                (code("invalid_request_error"), "Bad"),
            ),
            (
                r#"{"object":"error","message":"No","type":"NotFoundError","code":404}"#,
                (code("NotFoundError"), "No"),
            ),
            (r#"{"error":"model is loading"}"#, (None, "model is loading")),
            ("<html>502</html>", (None, "<html>502</html>")),
            ("", (None, "")),
        ] {
            let (code, message) = error_facts(body.as_bytes());
            assert_eq!((code, message.as_str()), expected, "{body}");
        }
        assert_eq!(error_facts(long.as_bytes()).1.chars().count(), 401);
    }
}
