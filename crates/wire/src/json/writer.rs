//! Writes JSON directly into the output bytes, without a tree or strings in between.
//! Knows no schemas.

use bytes::{BufMut, BytesMut};
use headrace_domain::TokenLogprob;
use serde::Serialize;

use crate::json::plain_run;

/// Writes text that is already JSON, or constant parts of JSON.
#[inline]
pub fn raw(out: &mut BytesMut, text: &str) {
    out.put_slice(text.as_bytes());
}

/// Writes any value that serde can write: strings, numbers, small structs.
pub fn value<T: Serialize + ?Sized>(out: &mut BytesMut, value: &T) {
    // Writing into memory cannot fail, and all values here have only string keys.
    let _ = serde_json::to_writer(out.writer(), value);
}

/// Whether a string needs no escapes.
pub(crate) fn is_plain(text: &str) -> bool {
    plain_run(text.as_bytes()) == text.len()
}

/// Writes a string like [`value`], but faster if it needs no escapes.
pub(crate) fn text(out: &mut BytesMut, text: &str) {
    if !is_plain(text) {
        return value(out, text);
    }
    out.reserve(text.len() + 2);
    out.put_u8(b'"');
    raw(out, text);
    out.put_u8(b'"');
}

/// Writes a number that nearly always has one digit.
pub(crate) fn index(out: &mut BytesMut, index: u32) {
    match u8::try_from(index) {
        Ok(digit @ 0..=9) => out.put_u8(b'0' + digit),
        _ => value(out, &index),
    }
}

/// Writes a string's escaped content without its quotes, to be joined with more content.
pub fn escaped(out: &mut BytesMut, text: &str) {
    let start = out.len();
    value(out, text);
    // Shift over the opening quote and drop the closing one.
    let end = out.len();
    out.as_mut().copy_within(start + 1..end - 1, start);
    out.truncate(end - 2);
}

/// Writes a list of numbers.
pub(crate) fn ids(out: &mut BytesMut, ids: &[u32]) {
    value(out, ids);
}

/// OpenAI's value for a log-probability that is too small for a number.
const VANISHING: f32 = -9999.0;

/// Writes a log-probability. JSON has no infinities.
pub(crate) fn logprob(out: &mut BytesMut, value: f32) {
    self::value(out, &if value.is_finite() { value } else { VANISHING });
}

/// Writes a token as text if it is whole UTF-8. Otherwise writes `lead` and then its bytes as `\xNN`.
pub(crate) fn token(out: &mut BytesMut, lead: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => value(out, text),
        Err(_) => {
            raw(out, "\"");
            raw(out, lead);
            for byte in bytes {
                raw(out, "\\\\x");
                for half in [byte >> 4, byte & 15] {
                    out.put_u8(if half < 10 { b'0' + half } else { b'a' + half - 10 });
                }
            }
            raw(out, "\"");
        }
    }
}

/// Writes items with commas between them.
pub(crate) fn list<T>(
    out: &mut BytesMut,
    items: impl IntoIterator<Item = T>,
    mut each: impl FnMut(&mut BytesMut, T),
) {
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.put_u8(b',');
        }
        each(out, item);
    }
}

/// Writes the entries of chat's `logprobs.content`.
pub(crate) fn chat_logprobs(out: &mut BytesMut, tokens: &[TokenLogprob]) {
    list(out, tokens, |out, entry| {
        chat_token(out, &entry.bytes, entry.logprob.unwrap_or(VANISHING));
        raw(out, ",\"top_logprobs\":[");
        list(out, &entry.top, |out, top| {
            chat_token(out, &top.bytes, top.logprob);
            raw(out, "}");
        });
        raw(out, "]}");
    });
}

fn chat_token(out: &mut BytesMut, bytes: &[u8], value: f32) {
    raw(out, "{\"token\":");
    token(out, "", bytes);
    raw(out, ",\"logprob\":");
    logprob(out, value);
    raw(out, ",\"bytes\":");
    self::value(out, bytes);
}

/// Writes vLLM's `prompt_logprobs`. Each prompt token becomes an object from token ids to log-probability, rank (if
/// known) and text. A token that nothing predicts becomes null: the first one.
pub(crate) fn prompt_logprobs(out: &mut BytesMut, tokens: &[TokenLogprob]) {
    raw(out, "[");
    list(out, tokens, |out, entry| {
        let Some(own) = entry.logprob else { return raw(out, "null") };
        raw(out, "{");
        let ranked = entry.top.iter().position(|top| top.id == entry.id);
        if ranked.is_none() {
            prompt_entry(out, entry.id, own, None, &entry.bytes);
            if !entry.top.is_empty() {
                raw(out, ",");
            }
        }
        list(out, entry.top.iter().enumerate(), |out, (index, top)| {
            prompt_entry(out, top.id, top.logprob, Some(index + 1), &top.bytes);
        });
        raw(out, "}");
    });
    raw(out, "]");
}

fn prompt_entry(out: &mut BytesMut, id: u32, own: f32, rank: Option<usize>, bytes: &[u8]) {
    raw(out, "\"");
    value(out, &id);
    raw(out, "\":{\"logprob\":");
    logprob(out, own);
    raw(out, ",\"rank\":");
    value(out, &rank);
    raw(out, ",\"decoded_token\":");
    token(out, "", bytes);
    raw(out, "}");
}

#[cfg(test)]
mod tests {
    use headrace_domain::TopLogprob;

    use super::*;

    fn written(write: impl FnOnce(&mut BytesMut)) -> String {
        let mut out = BytesMut::new();
        write(&mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn the_short_ways_write_what_the_long_one_writes() {
        let special = (0..=0x2029).filter_map(char::from_u32).map(String::from);
        let words = ["", "a", "seven bytes and more", "été \u{1f600}"].map(str::to_owned);
        for part in special.chain(words) {
            for text in [part.clone(), format!("{part}more than eight"), format!("more than eight{part}")] {
                assert_eq!(
                    written(|out| self::text(out, &text)),
                    written(|out| value(out, &text)),
                    "{text:?}"
                );
            }
        }
        for number in (0..300).chain([u32::MAX]) {
            assert_eq!(written(|out| index(out, number)), written(|out| value(out, &number)));
        }
    }

    #[test]
    fn golden() {
        assert_eq!(written(|out| escaped(out, "a\"\n\u{1}é")), "a\\\"\\n\\u0001é");
        assert_eq!(written(|out| escaped(out, "")), "");
        assert_eq!(written(|out| token(out, "bytes:", &[0xf0, 0x9f])), r#""bytes:\\xf0\\x9f""#);
        assert_eq!(written(|out| token(out, "bytes:", "é\"".as_bytes())), "\"é\\\"\"");
        assert_eq!(written(|out| logprob(out, f32::NEG_INFINITY)), "-9999.0");
        let top = |id, bytes: &[u8], logprob| TopLogprob { id, bytes: bytes.to_vec(), logprob };
        let first = TokenLogprob { id: 1, bytes: b"<s>".to_vec(), logprob: None, top: vec![] };
        let second = TokenLogprob {
            id: 7,
            bytes: b"b".to_vec(),
            logprob: Some(-2.5),
            top: vec![top(3, b"a", -0.5), top(7, b"b", -2.5)],
        };
        let third =
            TokenLogprob { id: 9, bytes: b"c".to_vec(), logprob: Some(-1.0), top: vec![top(3, b"a", 0.0)] };
        assert_eq!(
            written(|out| prompt_logprobs(out, &[first, second.clone(), third])),
            concat!(
                r#"[null,{"3":{"logprob":-0.5,"rank":1,"decoded_token":"a"},"7":{"logprob":-2.5,"rank":2,"decoded_token":"b"}},"#,
                r#"{"9":{"logprob":-1.0,"rank":null,"decoded_token":"c"},"3":{"logprob":0.0,"rank":1,"decoded_token":"a"}}]"#
            )
        );
        assert_eq!(
            written(|out| chat_logprobs(out, &[second])),
            concat!(
                r#"{"token":"b","logprob":-2.5,"bytes":[98],"top_logprobs":[{"token":"a","logprob":-0.5,"bytes":[97]},"#,
                r#"{"token":"b","logprob":-2.5,"bytes":[98]}]}"#
            )
        );
    }
}
