//! Recognises the most common event of a stream, a piece of text and nothing else, in one pass over its bytes. All
//! other events are left to the readers of the dialects. Text cannot pose as a field, because a quote within a string
//! is escaped.

use memchr::memchr2;

/// A piece of text.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct TextGlimpse {
    pub(super) choice: u32,
    /// Bytes of the text without escapes.
    pub(super) bytes: usize,
}

/// Recognises a chunk of OpenAI's dialect with exactly one choice that contains text at most.
pub(super) fn chunk(data: &[u8]) -> Option<TextGlimpse> {
    let (mut seen, mut choices) = (TextGlimpse::default(), 0);
    let mut cursor = ByteCursor { left: data };
    cursor.members(|cursor, key| match key {
        b"choices" => {
            choices += 1;
            cursor.take(b'[')?;
            choice(cursor, &mut seen)?;
            cursor.take(b']')
        }
        b"usage" | b"error" => cursor.null(),
        b"object" => (cursor.string()?.raw != b"error").then_some(()),
        _ => cursor.skip(),
    })?;
    (choices == 1 && cursor.left.trim_ascii().is_empty()).then_some(seen)
}

fn choice(cursor: &mut ByteCursor<'_>, seen: &mut TextGlimpse) -> Option<()> {
    cursor.members(|cursor, key| match key {
        b"index" => {
            seen.choice = std::str::from_utf8(cursor.literal()?).ok()?.parse().ok()?;
            Some(())
        }
        b"delta" => cursor.members(|cursor, key| match key {
            b"content" if cursor.null().is_some() => Some(()),
            b"content" => {
                seen.bytes += cursor.string()?.length?;
                Some(())
            }
            b"role" => cursor.skip(),
            _ => cursor.null(),
        }),
        b"text" => {
            seen.bytes += cursor.string()?.length?;
            Some(())
        }
        b"finish_reason" | b"message" | b"token_ids" => cursor.null(),
        _ => cursor.skip(),
    })
}

/// Recognises an event of Anthropic's dialect with a piece of text or thinking.
pub(super) fn delta(data: &[u8]) -> Option<TextGlimpse> {
    let mut bytes = 0;
    let mut cursor = ByteCursor { left: data };
    cursor.members(|cursor, key| match key {
        b"type" => (cursor.string()?.raw == b"content_block_delta").then_some(()),
        b"index" => cursor.skip(),
        b"delta" => cursor.members(|cursor, key| match key {
            b"type" => matches!(cursor.string()?.raw, b"text_delta" | b"thinking_delta").then_some(()),
            b"text" | b"thinking" => {
                bytes += cursor.string()?.length?;
                Some(())
            }
            _ => None,
        }),
        _ => None,
    })?;
    (bytes > 0 && cursor.left.trim_ascii().is_empty()).then_some(TextGlimpse { choice: 0, bytes })
}

/// The rest of a JSON text. Every method returns `None` if the text is not as expected.
struct ByteCursor<'a> {
    left: &'a [u8],
}

/// A string as it is written.
struct QuotedBytes<'a> {
    raw: &'a [u8],
    /// Bytes of the string without escapes. `None` if a character is escaped by its number.
    length: Option<usize>,
}

impl<'a> ByteCursor<'a> {
    fn take(&mut self, byte: u8) -> Option<()> {
        self.left = self.left.trim_ascii_start().strip_prefix(&[byte])?;
        Some(())
    }

    fn null(&mut self) -> Option<()> {
        self.left = self.left.trim_ascii_start().strip_prefix(b"null")?;
        Some(())
    }

    /// Visits the members of an object. `each` reads the value behind a key.
    fn members(&mut self, mut each: impl FnMut(&mut Self, &'a [u8]) -> Option<()>) -> Option<()> {
        self.take(b'{')?;
        if self.take(b'}').is_some() {
            return Some(());
        }
        loop {
            let key = self.string()?.raw;
            self.take(b':')?;
            each(self, key)?;
            if self.take(b',').is_none() {
                return self.take(b'}');
            }
        }
    }

    fn string(&mut self) -> Option<QuotedBytes<'a>> {
        self.take(b'"')?;
        let all = self.left;
        let (mut at, mut length) = (0, Some(0));
        loop {
            let run = memchr2(b'"', b'\\', all.get(at..)?)?;
            length = length.map(|length| length + run);
            at += run;
            if all.get(at) == Some(&b'"') {
                self.left = all.get(at + 1..)?;
                return Some(QuotedBytes { raw: all.get(..at)?, length });
            }
            let by_number = *all.get(at + 1)? == b'u';
            length = length.filter(|_| !by_number).map(|length| length + 1);
            at += 2;
        }
    }

    /// Reads a number or a word.
    fn literal(&mut self) -> Option<&'a [u8]> {
        let left = self.left.trim_ascii_start();
        let end =
            left.iter().position(|byte| matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t'))?;
        let (literal, rest) = left.split_at(end);
        self.left = rest;
        (!literal.is_empty()).then_some(literal)
    }

    /// Skips any value.
    fn skip(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            self.left = self.left.trim_ascii_start();
            match self.left.first()? {
                b'"' => {
                    self.string()?;
                }
                b'{' | b'[' => {
                    depth += 1;
                    self.left = self.left.get(1..)?;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.left = self.left.get(1..)?;
                }
                b',' | b':' if depth > 0 => self.left = self.left.get(1..)?,
                b',' | b':' => return None,
                _ => {
                    self.literal()?;
                }
            }
            if depth == 0 {
                return Some(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_text_and_nothing_else() {
        let seen = |choice, bytes| Some(TextGlimpse { choice, bytes });
        for (data, expected) in [
            (
                r#"{"id":"x","choices":[{"index":0,"delta":{"content":"hé"},"logprobs":null,"finish_reason":null}],"usage":null}"#,
                seen(0, 3),
            ),
            (
                r#" { "choices" : [ { "delta" : { "content" : "a\"\n\\" , "role":"assistant" } , "index" : 7 } ] } "#,
                seen(7, 4),
            ),
            (r#"{"choices":[{"delta":{}}],"x":{"usage":[1,{"a":"]"}]}}"#, seen(0, 0)),
            (r#"{"choices":[{"text":"ab","index":1,"logprobs":{"tokens":["}"]}}]}"#, seen(1, 2)),
            (r#"{"choices":[{"delta":{"content":"\"finish_reason\":\"stop\",\"usage\":{}"}}]}"#, seen(0, 33)),
            // Left to the readers of the dialects.
            (r#"{"choices":[{"delta":{"content":"\u00e9"}}]}"#, None),
            (r#"{"choices":[{"delta":{"reasoning":"a"}}]}"#, None),
            (r#"{"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}"#, None),
            (r#"{"choices":[{"delta":{"content":"a"}}],"usage":{}}"#, None),
            (r#"{"choices":[{"delta":{"content":"a"}}],"error":{}}"#, None),
            (r#"{"choices":[{"delta":{"content":"a"}},{}]}"#, None),
            (r#"{"choices":[{"delta":{"content":"a"}}],"choices":[{"delta":{"content":"a"}}]}"#, None),
            (r#"{"choices":[{"delta":{"tool_calls":[]}}]}"#, None),
            (r#"{"choices":[]}"#, None),
            (r#"{"choices":[{"delta":{"content":"a"}}]"#, None),
            (r#"{"choices":[{"delta":{"content":"a"}}]} x"#, None),
            ("[DONE]", None),
            ("", None),
        ] {
            assert_eq!(chunk(data.as_bytes()), expected, "{data}");
        }
        for (data, expected) in [
            (
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}"#,
                seen(0, 2),
            ),
            (
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hi"}}"#,
                seen(0, 2),
            ),
            (
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{"}}"#,
                None,
            ),
            (r#"{"type":"message_stop"}"#, None),
            (r#"{"type":"error","error":{}}"#, None),
        ] {
            assert_eq!(delta(data.as_bytes()), expected, "{data}");
        }
    }
}
