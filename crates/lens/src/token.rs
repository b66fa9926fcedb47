//! Tokens as they are shown: id, text, place, and what kind of token it is. Must not know templates or conversations.

use headrace_tokenizer::{Tokenizer, TokenizerError};
use serde::Serialize;

/// What kind of token it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenKind {
    /// A piece of text.
    Text,
    /// A special token: it is left out of text for people.
    Special,
    /// Another token that text never becomes, such as `<tool_call>`.
    Markup,
}

impl TokenKind {
    pub(crate) fn of(tokenizer: &Tokenizer, id: u32) -> Self {
        match (tokenizer.is_control(id), tokenizer.is_markup(id)) {
            (true, _) => Self::Special,
            (false, true) => Self::Markup,
            (false, false) => Self::Text,
        }
    }
}

/// One token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SeenToken {
    /// Its id in the vocabulary.
    pub id: u32,
    /// What it stands for in the middle of a text; bytes that are no whole character are `\xNN`.
    pub piece: String,
    /// Where its bytes begin in the text, where that can be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<usize>,
    /// Where they end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<usize>,
    /// What kind of token it is.
    pub kind: TokenKind,
}

/// A text and its tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TokenList {
    /// The text.
    pub text: String,
    /// Its bytes.
    pub bytes: usize,
    /// How many tokens, those around the text included.
    pub count: usize,
    /// Each of them, in order. What the tokenizer puts around a text has no place in it.
    pub tokens: Vec<SeenToken>,
    /// The text that the ids stand for, where it is another one: the tokenizer changes texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decoded: Option<String>,
}

impl TokenList {
    /// The text that ids stand for, and each of them.
    pub fn of_ids(tokenizer: &Tokenizer, ids: &[u32]) -> Self {
        let text = tokenizer.decode(ids, false);
        let tokens = ids.iter().map(|id| seen(tokenizer, *id, None)).collect();
        Self { bytes: text.len(), text, count: ids.len(), tokens, decoded: None }
    }
}

/// The tokens of `text`. With `parse_special`, control tokens that are spelt out in it count as such; with `add_special`,
/// what the tokenizer puts around a text stands around it.
///
/// # Errors
/// [`TokenizerError`]: the text cannot be written in tokens.
pub fn token_list(
    tokenizer: &Tokenizer,
    text: &str,
    parse_special: bool,
    add_special: bool,
) -> Result<TokenList, TokenizerError> {
    let encode = |around: bool| match parse_special {
        true => tokenizer.encode(text, around),
        false => tokenizer.encode_plain(text, around),
    };
    let own = encode(false)?;
    let spans = tokenizer.spans(text, &own);
    let all = if add_special { encode(true)? } else { own.clone() };
    let before = if add_special { tokenizer.prefix().len() } else { 0 };
    let span = |at: usize| spans.as_ref()?.get(at.checked_sub(before)?).cloned();
    let tokens: Vec<SeenToken> =
        all.iter().enumerate().map(|(at, id)| seen(tokenizer, *id, span(at))).collect();
    let decoded = Some(tokenizer.decode(&own, false)).filter(|decoded| decoded != text);
    Ok(TokenList { text: text.to_owned(), bytes: text.len(), count: tokens.len(), tokens, decoded })
}

pub(crate) fn seen(tokenizer: &Tokenizer, id: u32, span: Option<std::ops::Range<usize>>) -> SeenToken {
    let piece = tokenizer.token_bytes(id).map_or_else(|| format!("<id {id}>"), escaped_bytes);
    let (start, end) = span.map(|span| (span.start, span.end)).unzip();
    SeenToken { id, piece, start, end, kind: TokenKind::of(tokenizer, id) }
}

/// Bytes as text; those that are no character are written `\xNN`.
pub(crate) fn escaped_bytes(bytes: &[u8]) -> String {
    bytes.utf8_chunks().fold(String::with_capacity(bytes.len()), |mut out, chunk| {
        out.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| out.push_str(&format!("\\x{byte:02x}")));
        out
    })
}
