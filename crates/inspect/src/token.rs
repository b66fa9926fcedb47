//! Tokens in a form for display: id, text, position and kind. Must not know templates or conversations.

use headrace_tokenizer::{Tokenizer, TokenizerError};
use serde::Serialize;

/// The kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenKind {
    /// A piece of text.
    Text,
    /// A special token, which is left out of text for people.
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
    /// The token's id in the vocabulary.
    pub id: u32,
    /// The token's text in the middle of a text. Bytes that are not a whole character are written `\xNN`.
    pub piece: String,
    /// The byte of the text at which the token begins. `None` if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<usize>,
    /// The byte of the text at which the token ends. `None` if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<usize>,
    /// The kind of the token.
    pub kind: TokenKind,
}

/// A text and its tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TokenList {
    /// The text.
    pub text: String,
    /// The length of the text in bytes.
    pub bytes: usize,
    /// The number of tokens, including those around the text.
    pub count: usize,
    /// The tokens, in order. Tokens that the tokenizer adds around a text have no position in it.
    pub tokens: Vec<SeenToken>,
    /// The decoded text of the ids, if it differs because the tokenizer changes texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decoded: Option<String>,
}

impl TokenList {
    /// Returns the decoded text of `ids`, and each token.
    pub fn of_ids(tokenizer: &Tokenizer, ids: &[u32]) -> Self {
        let text = tokenizer.decode(ids, false);
        let tokens = ids.iter().map(|id| seen(tokenizer, *id, None)).collect();
        Self { bytes: text.len(), text, count: ids.len(), tokens, decoded: None }
    }
}

/// Returns the tokens of `text`. With `parse_special`, control tokens that are spelt out in the text become their ids.
/// With `add_special`, the tokens that the tokenizer adds around a text are included.
///
/// # Errors
/// [`TokenizerError`] if the text cannot be encoded.
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

/// Returns bytes as text. Bytes that are not part of a character are written `\xNN`.
pub(crate) fn escaped_bytes(bytes: &[u8]) -> String {
    bytes.utf8_chunks().fold(String::with_capacity(bytes.len()), |mut out, chunk| {
        out.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| out.push_str(&format!("\\x{byte:02x}")));
        out
    })
}
