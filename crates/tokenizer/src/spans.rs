//! Maps each token of an encoded text to its bytes in the text. Serves tools that display tokens; encoding does not use
//! it. Must not know the tools.

use std::ops::Range;

use crate::tokenizer::Tokenizer;

impl Tokenizer {
    /// Returns the byte range of `text` for each of `ids`. The ids must be the encoding of `text` without special
    /// tokens around it. Together the ranges cover the whole text, in order. A range may begin or end inside a
    /// character. It may be empty: a space that the vocabulary adds before a text has no bytes in the text.
    ///
    /// Returns `None` if the ranges cannot be determined. This happens if the tokenizer changes texts before it splits
    /// them and the library, which knows the offsets, gives other ids.
    pub fn spans(&self, text: &str, ids: &[u32]) -> Option<Vec<Range<usize>>> {
        self.spans_by_bytes(text, ids).or_else(|| self.spans_by_library(text, ids))
    }

    /// Aligns the tokens' own bytes with the text.
    fn spans_by_bytes(&self, text: &str, ids: &[u32]) -> Option<Vec<Range<usize>>> {
        let (mut spans, mut at, mut fresh) = (Vec::with_capacity(ids.len()), 0, true);
        for id in ids {
            let (own, rest) = (self.token_bytes(*id)?, text.as_bytes().get(at..)?);
            let start = at;
            at = at.checked_add(self.length_at(*id, own, rest, fresh)?)?;
            spans.push(start..at);
            fresh = self.is_markup(*id);
        }
        let left = text.get(at..)?;
        // White space after the last token may belong to that token.
        if !left.trim().is_empty() {
            return None;
        }
        if let Some(last) = spans.last_mut() {
            last.end = text.len();
        }
        (spans.is_empty() == text.is_empty()).then_some(spans)
    }

    /// Returns the number of bytes at the start of `rest` that belong to a token.
    fn length_at(&self, id: u32, own: &[u8], rest: &[u8], fresh: bool) -> Option<usize> {
        if rest.starts_with(own) {
            return Some(own.len());
        }
        // The start of a text, and text after markup, may be encoded as if a space came before it.
        if let Some((b' ', behind)) = own.split_first().filter(|_| fresh)
            && rest.starts_with(behind)
        {
            return Some(behind.len());
        }
        let white = rest.len().saturating_sub(rest.trim_ascii_start().len());
        // An added token may include the white space around it.
        let stripped = rest.get(white..).filter(|rest| self.is_markup(id) && rest.starts_with(own));
        stripped.and_then(|_| white.checked_add(own.len()))
    }

    /// Uses the library's offsets. Returns `None` if the library gives other ids.
    fn spans_by_library(&self, text: &str, ids: &[u32]) -> Option<Vec<Range<usize>>> {
        let encoding = self.inner.encode(text, false).ok()?;
        if encoding.get_ids() != ids {
            return None;
        }
        // The gap between two tokens belongs to the first of them, so that no byte is left out.
        let starts: Vec<usize> = encoding.get_offsets().iter().map(|(start, _)| *start).collect();
        let ends = starts.iter().skip(1).copied().chain([text.len()]);
        let first = std::iter::once(0).chain(starts.iter().skip(1).copied());
        Some(first.zip(ends).map(|(start, end)| start..end.max(start)).collect())
    }
}

#[cfg(test)]
mod tests {
    use headrace_checkpoint::TokenizerConfig;

    use super::*;

    fn tokenizers() -> Vec<(&'static str, Tokenizer)> {
        [
            ("qwen", &include_bytes!("../tests/data/bytebpe-qwen/tokenizer.json")[..]),
            ("llama3", &include_bytes!("../tests/data/bytebpe-llama3/tokenizer.json")[..]),
            ("gemma", &include_bytes!("../tests/data/spbpe-gemma/tokenizer.json")[..]),
            ("llama2", &include_bytes!("../tests/data/spbpe-llama2/tokenizer.json")[..]),
            ("xlmr", &include_bytes!("../tests/data/unigram-xlmr/tokenizer.json")[..]),
            ("bert", &include_bytes!("../tests/data/wordpiece-uncased/tokenizer.json")[..]),
        ]
        .map(|(name, json)| (name, Tokenizer::new(json, &TokenizerConfig::default()).unwrap()))
        .into()
    }

    #[test]
    fn spans_cover_the_text_and_agree_with_the_librarys_offsets() {
        let texts =
            ["Hello there", "a  b\n\nc", "naïve café, 你好 🙂!", " leading", "", "Straße 42", "x", "tail  "];
        for (name, tokenizer) in tokenizers() {
            for text in texts {
                let ids = tokenizer.encode(text, false).unwrap();
                let Some(spans) = tokenizer.spans(text, &ids) else { panic!("{name} {text:?}: no spans") };
                assert_eq!(spans.len(), ids.len(), "{name} {text:?}");
                let end = spans.iter().fold(0, |at, span| {
                    assert_eq!(span.start, at, "{name} {text:?}: {spans:?}");
                    span.end
                });
                assert!(ids.is_empty() || end == text.len(), "{name} {text:?}: {spans:?}");
                // Tokens of whole characters must have the ranges that the library reports.
                let theirs = tokenizer.inner.encode(text, false).unwrap();
                for (ours, theirs) in spans.iter().zip(theirs.get_offsets()) {
                    let whole = text.get(ours.clone()).filter(|piece| piece.trim() == *piece);
                    if let Some(piece) = whole.filter(|piece| !piece.is_empty()) {
                        let said = text.get(theirs.0..theirs.1).map(str::trim);
                        assert_eq!(Some(piece), said, "{name} {text:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_a_message_spells_stands_where_it_is_spelt() {
        let (_, qwen) = tokenizers().remove(0);
        let text = "a<|im_end|>b";
        let ids = qwen.encode_plain(text, false).unwrap();
        assert!(ids.len() > 3 && !ids.iter().any(|id| qwen.is_markup(*id)));
        assert_eq!(qwen.spans(text, &ids).unwrap().last().unwrap().end, text.len());
        let marked = qwen.encode(text, false).unwrap();
        assert_eq!(qwen.spans(text, &marked).unwrap(), [0..1, 1..11, 11..12]);
        assert_eq!(qwen.spans("something else", &marked), None);
    }
}
