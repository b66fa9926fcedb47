//! Writes the `logprobs` of completions: parallel lists, with each token's place in the text, in characters.
//! A place depends only on the tokens, never on how they were split into events.

use bytes::BytesMut;
use headrace_domain::TokenLogprob;

use crate::json::writer::{list, logprob, raw, token, value};

/// The prefix for the bytes of a token that is not whole UTF-8.
const BYTES: &str = "bytes:";

/// Tracks the place at which the next token of a choice begins.
#[derive(Debug, Default, Clone)]
pub(super) struct TextOffsets {
    /// Number of characters that have begun so far.
    begun: usize,
}

impl TextOffsets {
    /// Returns the places of an echoed prompt's tokens in `text`. The generated tokens follow at its end. Tokens that
    /// do not appear in the text, such as one that begins every sequence, take the place of the next token.
    pub(super) fn echoed(&mut self, text: &str, tokens: &[TokenLogprob]) -> Vec<usize> {
        let mut rest = text.as_bytes();
        let mut places = Vec::with_capacity(tokens.len());
        for token in tokens {
            match rest.strip_prefix(token.bytes.as_slice()) {
                Some(after) => {
                    places.push(self.next(&token.bytes));
                    rest = after;
                }
                None => places.push(self.begun),
            }
        }
        self.begun = text.chars().count();
        places
    }

    /// Returns the places of generated tokens.
    pub(super) fn generated(&mut self, tokens: &[TokenLogprob]) -> Vec<usize> {
        tokens.iter().map(|token| self.next(&token.bytes)).collect()
    }

    /// Returns the place of a token: the place of its first character, which an earlier token may have begun.
    fn next(&mut self, bytes: &[u8]) -> usize {
        let continues = |byte: &u8| byte & 0xC0 == 0x80;
        let place = self.begun - usize::from(self.begun > 0 && bytes.first().is_some_and(continues));
        self.begun += bytes.iter().filter(|byte| !continues(byte)).count();
        place
    }
}

/// Writes `{"tokens":[…],"token_logprobs":[…],"top_logprobs":[…],"text_offset":[…]}`
/// for the tokens of an echoed prompt and the generated tokens.
pub(super) fn write(out: &mut BytesMut, tokens: [&[TokenLogprob]; 2], offsets: &[usize]) {
    let tokens = || tokens.into_iter().flatten();
    raw(out, "{\"tokens\":[");
    list(out, tokens(), |out, entry| token(out, BYTES, &entry.bytes));
    raw(out, "],\"token_logprobs\":[");
    list(out, tokens(), |out, entry| match entry.logprob {
        Some(own) => logprob(out, own),
        None => raw(out, "null"),
    });
    raw(out, "],\"top_logprobs\":[");
    list(out, tokens(), write_top);
    raw(out, "],\"text_offset\":");
    value(out, offsets);
    raw(out, "}");
}

/// Writes the alternatives and the token itself, by text. If two ids have the same text, only the likelier one is
/// written, because a key has one value.
fn write_top(out: &mut BytesMut, entry: &TokenLogprob) {
    let Some(own) = entry.logprob else { return raw(out, "null") };
    let all = || entry.top.iter().map(|top| (&top.bytes, top.logprob)).chain([(&entry.bytes, own)]);
    raw(out, "{");
    let firsts =
        all().enumerate().filter(|(index, (bytes, _))| !all().take(*index).any(|(b, _)| b == *bytes));
    list(out, firsts, |out, (_, (bytes, value))| {
        token(out, BYTES, bytes);
        raw(out, ":");
        logprob(out, value);
    });
    raw(out, "}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(parts: &[&[u8]]) -> Vec<TokenLogprob> {
        parts
            .iter()
            .map(|bytes| TokenLogprob { id: 0, bytes: bytes.to_vec(), logprob: Some(-1.0), top: vec![] })
            .collect()
    }

    #[test]
    fn places_count_characters_also_over_an_echo() {
        let mut offsets = TextOffsets::default();
        let prompt = tokens(&[b"<s>", b"h\xc3", b"\xa9", b"", b"llo"]);
        assert_eq!(offsets.echoed("héllo", &prompt), [0, 0, 1, 2, 2]);
        assert_eq!(offsets.generated(&tokens(&[b"!", b"\xf0\x9f", b"\x98\x80x"])), [5, 6, 6]);
        assert_eq!(offsets.generated(&tokens(&[b"y"])), [8]);
        assert_eq!(TextOffsets::default().generated(&tokens(&[b"\x80", b"a"])), [0, 0]);
    }
}
