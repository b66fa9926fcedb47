//! Finds added tokens in text that may contain them, as the `tokenizers` library would. Must not know where trust comes
//! from.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::{AddedToken, NormalizedString, Normalizer};

use crate::error::TokenizerError;

/// All added tokens: those matched in the text as written, and those matched after normalization.
#[derive(Debug)]
pub(crate) struct AddedTokens {
    pub(crate) raw: Matcher,
    pub(crate) normalized: Matcher,
}

/// A set of added tokens in one automaton.
#[derive(Debug, Default)]
pub(crate) struct Matcher {
    automaton: Option<AhoCorasick>,
    tokens: Vec<Added>,
}

/// An added token, with its id and its matching rules.
#[derive(Debug, Clone)]
pub(crate) struct Added {
    pub(crate) id: u32,
    pub(crate) token: AddedToken,
    /// Whether its text in a prompt would be taken for structure; see [`is_markup`].
    pub(crate) markup: bool,
}

/// A match of an added token in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) id: u32,
    /// The byte range of the match, including the spaces that the token strips.
    pub(crate) span: Range<usize>,
}

/// Whether message text must never become this token. This holds for every special token, and for every other one whose
/// text contains punctuation, such as `<tool_call>`. It does not hold for the words, letters and runs of white space
/// that some vocabularies (Gemma, OLMo, DeepSeek Coder) list among their added tokens. Those carry no structure, and
/// without them ordinary text would be written differently from what the model learnt.
pub(crate) fn is_markup(token: &AddedToken) -> bool {
    let plain = |c: char| c.is_alphanumeric() || c.is_whitespace() || c == '\u{2581}';
    token.special || (token.content.chars().nth(1).is_some() && !token.content.chars().all(plain))
}

impl AddedTokens {
    /// Sorts `tokens` into the two automata. A token that is matched after normalization is normalized itself.
    pub(crate) fn new<N: Normalizer>(
        tokens: impl Iterator<Item = (u32, AddedToken)>,
        normalizer: Option<&N>,
    ) -> Result<Self, TokenizerError> {
        let mut tokens: Vec<_> = tokens.filter(|(_, token)| !token.content.is_empty()).collect();
        tokens.sort_by_key(|(id, _)| *id);
        let (mut raw, mut normalized) = (Vec::new(), Vec::new());
        for (id, token) in tokens {
            let added = Added { id, markup: is_markup(&token), token };
            if !added.token.normalized {
                raw.push((added.token.content.clone(), added));
                continue;
            }
            let mut text = NormalizedString::from(added.token.content.as_str());
            if let Some(normalizer) = normalizer {
                normalizer.normalize(&mut text).map_err(TokenizerError::load)?;
            }
            if !text.get().is_empty() {
                normalized.push((text.get().to_owned(), added));
            }
        }
        Ok(Self { raw: Matcher::new(raw)?, normalized: Matcher::new(normalized)? })
    }
}

impl Matcher {
    fn new(tokens: Vec<(String, Added)>) -> Result<Self, TokenizerError> {
        if tokens.is_empty() {
            return Ok(Self::default());
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|(text, _)| text.as_bytes()))
            .map_err(TokenizerError::load)?;
        Ok(Self { automaton: Some(automaton), tokens: tokens.into_iter().map(|(_, added)| added).collect() })
    }

    /// Whether there are no tokens to find.
    pub(crate) fn is_empty(&self) -> bool {
        self.automaton.is_none()
    }

    /// Whether every token here is markup. If so, untrusted text need not be searched.
    pub(crate) fn all_markup(&self) -> bool {
        self.tokens.iter().all(|added| added.markup)
    }

    /// The maximum number of bytes of one of these tokens, without white space beside markup. `None` if a token that is
    /// not markup includes the white space around it, which has no limit.
    pub(crate) fn most_bytes(&self) -> Option<usize> {
        let strips = |added: &Added| !added.markup && (added.token.lstrip || added.token.rstrip);
        let longest = self.tokens.iter().map(|added| added.token.content.len()).max();
        (!self.tokens.iter().any(strips)).then_some(longest.unwrap_or(0))
    }

    /// Appends to `found` the added tokens that lie completely within `window` of `text`: the leftmost first, and of
    /// those the longest. Tokens that `accept` rejects are skipped. Text outside the window counts for tokens that
    /// match only whole words, and spaces there can be stripped.
    pub(crate) fn find(
        &self,
        text: &str,
        window: Range<usize>,
        found: &mut Vec<Found>,
        accept: impl Fn(&Added, Range<usize>) -> bool,
    ) {
        let Some(automaton) = &self.automaton else { return };
        let (mut from, window_end) = (window.start, window.end);
        while let Some(piece) = text.as_bytes().get(from..window_end) {
            let Some(hit) = automaton.find(piece) else { return };
            let (start, end) = (from + hit.start(), from + hit.end());
            let Some(added) = self.tokens.get(hit.pattern().as_usize()) else { return };
            if end <= start {
                return;
            }
            if !accept(added, start..end) {
                // Another token may begin inside this one.
                from = start + text.get(start..).and_then(|t| t.chars().next()).map_or(1, char::len_utf8);
                continue;
            }
            from = end;
            if let Some(span) = span(text, &added.token, start..end) {
                let after = found.last().map_or(0, |last| last.span.end);
                found.push(Found { id: added.id, span: span.start.max(after)..span.end.max(after) });
            }
        }
    }
}

/// Returns the byte range that an added token at `core` takes. `None` if the token must be a whole word and is not.
fn span(text: &str, token: &AddedToken, core: Range<usize>) -> Option<Range<usize>> {
    let (before, after) = (text.get(..core.start)?, text.get(core.end..)?);
    if token.single_word {
        // Approximates the regex class `\w`: letters, marks, digits and connector punctuation.
        let word = |c: char| c.is_alphanumeric() || c == '_';
        if before.chars().next_back().is_some_and(word) || after.chars().next().is_some_and(word) {
            return None;
        }
    }
    let start = if token.lstrip { before.trim_end().len() } else { core.start };
    let end = if token.rstrip { core.end + (after.len() - after.trim_start().len()) } else { core.end };
    Some(start..end)
}
