//! [`PromptReport`]: exactly what a model sees of a conversation, and which parts of it come from the caller. Must not
//! know prices or the drawing.

use std::fmt;
use std::ops::Range;

use headrace_domain::{BLOCK_TOKENS, Conversation, ToolChoice};
use headrace_prompt::{PartRange, PromptPart, RenderOptions, RenderedPrompt, TemplateError};
use headrace_tokenizer::TokenizerError;
use serde::Serialize;

use crate::token::{SeenToken, TokenKind, seen};
use crate::words::Words;

/// The maximum number of spelt control tokens that are listed.
const SPELLED_KEPT: usize = 32;

/// The reason why there is no prompt to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptReportError {
    /// The model has no chat template.
    NoTemplate,
    /// The template rejected the conversation.
    Template(TemplateError),
    /// The prompt cannot be encoded as tokens.
    Tokenizer(TokenizerError),
    /// Tools are offered, but the template does not show them.
    ToolsNotShown,
}

impl fmt::Display for PromptReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTemplate => f.write_str("the model has no chat template: it knows raw prompts alone"),
            Self::Template(error) => error.fmt(f),
            Self::Tokenizer(error) => error.fmt(f),
            Self::ToolsNotShown => {
                f.write_str("the chat template shows a model no tools: it would never learn of them, so such a call is refused")
            }
        }
    }
}

impl std::error::Error for PromptReportError {}

/// A prompt as the model sees it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PromptReport {
    /// The prompt's text.
    pub text: String,
    /// The number of tokens.
    pub count: usize,
    /// The tokens, in order.
    pub tokens: Vec<SeenToken>,
    /// The parts that come from the caller, in the order of the text. Parts that the template changes or leaves out are
    /// missing.
    pub parts: Vec<SeenPart>,
    /// The number of tokens of the template itself: roles, marks, line breaks, and its text about tools.
    pub template_tokens: usize,
    /// The number of special and other markup tokens.
    pub special_tokens: usize,
    /// The number of tokens in a block of the prefix cache.
    pub block_tokens: usize,
    /// The maximum number of tokens of this prompt that a cache can provide: whole blocks before the last token.
    pub cacheable_tokens: usize,
    /// The number of leading tokens shared with the prompt that it was compared with. `None` without a comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub common_tokens: Option<usize>,
    /// The part of `common_tokens` that a cache with the other prompt provides: whole blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<usize>,
    /// Control tokens that the caller's own words spell. They stay text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spelled: Vec<Spelled>,
    /// Whether tokens and parts could be located in the text.
    pub placed: bool,
}

/// A part of a prompt that comes from the caller. All indices count from 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SeenPart {
    /// `message`, `reasoning`, `call` or `tool`.
    pub what: &'static str,
    /// Index of the message or of the tool.
    pub index: usize,
    /// Index of the call within the message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<usize>,
    /// The role of the message, or the tool's name.
    pub whose: String,
    /// The first byte of the part in the text.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
    /// Index of the first token.
    pub first_token: usize,
    /// The number of tokens that begin in the part.
    pub tokens: usize,
}

/// A control token that the caller's words spell. It stays text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Spelled {
    /// The token's text.
    pub text: String,
    /// The byte at which it begins in the prompt.
    pub start: usize,
}

/// Returns what a model sees of a conversation, exactly as it would be served. `before` is the prompt of another
/// conversation, which a cache is assumed to hold.
///
/// # Errors
/// [`PromptReportError`] if the call would be refused.
pub fn prompt_report(
    words: &Words,
    conversation: &Conversation,
    options: &RenderOptions<'_>,
    before: Option<&PromptReport>,
) -> Result<PromptReport, PromptReportError> {
    let template = words.template.as_ref().ok_or(PromptReportError::NoTemplate)?;
    let offers = !conversation.tools.is_empty() && conversation.tool_choice != ToolChoice::None;
    if offers && !template.shows_tools() {
        return Err(PromptReportError::ToolsNotShown);
    }
    let rendered = match conversation.continues {
        true => template.render_to_continue(conversation, options),
        false => template.render(conversation, options),
    };
    let rendered = rendered.map_err(PromptReportError::Template)?;
    let ids =
        words.tokenizer.encode_segments(&rendered.segments(), false).map_err(PromptReportError::Tokenizer)?;
    let spans = words.tokenizer.spans(rendered.text(), &ids);
    let tokens: Vec<SeenToken> = ids
        .iter()
        .enumerate()
        .map(|(at, id)| seen(&words.tokenizer, *id, spans.as_ref().and_then(|spans| spans.get(at).cloned())))
        .collect();
    let places = template.places(conversation, options, rendered.text());
    let parts = match spans.is_some() {
        true => places.iter().map(|place| part(place, conversation, &tokens)).collect(),
        false => Vec::new(),
    };
    let own: usize = parts.iter().map(|part: &SeenPart| part.tokens).sum();
    let common = before.map(|before| common(&before.tokens, &tokens));
    let cacheable = whole_blocks(tokens.len().saturating_sub(1));
    Ok(PromptReport {
        count: tokens.len(),
        template_tokens: tokens.len().saturating_sub(own),
        special_tokens: tokens.iter().filter(|token| token.kind != TokenKind::Text).count(),
        block_tokens: BLOCK_TOKENS,
        cacheable_tokens: cacheable,
        common_tokens: common,
        cached_tokens: common.map(|common| whole_blocks(common).min(cacheable)),
        spelled: spelled(words, &rendered, &tokens),
        placed: spans.is_some(),
        text: rendered.into_text(),
        tokens,
        parts,
    })
}

const fn whole_blocks(tokens: usize) -> usize {
    tokens / BLOCK_TOKENS * BLOCK_TOKENS
}

fn common(before: &[SeenToken], tokens: &[SeenToken]) -> usize {
    before.iter().zip(tokens).take_while(|(left, right)| left.id == right.id).count()
}

fn part(place: &PartRange, conversation: &Conversation, tokens: &[SeenToken]) -> SeenPart {
    let Range { start, end } = place.range;
    let begins = |token: &SeenToken| token.start.unwrap_or(0);
    let first_token = tokens.partition_point(|token| begins(token) < start);
    let last = tokens.partition_point(|token| begins(token) < end);
    let role = |at: usize| conversation.messages.get(at).map_or("", |message| message.role.name()).to_owned();
    let (what, index, call, whose) = match place.part {
        PromptPart::Message(at) => ("message", at, None, role(at)),
        PromptPart::Reasoning(at) => ("reasoning", at, None, role(at)),
        PromptPart::Call { message, call } => ("call", message, Some(call), role(message)),
        PromptPart::Tool(at) => {
            ("tool", at, None, conversation.tools.get(at).map(|tool| tool.name.clone()).unwrap_or_default())
        }
    };
    let tokens = last.saturating_sub(first_token);
    SeenPart { what, index, call, whose, start, end, first_token, tokens }
}

/// Returns the control tokens whose text occurs in the prompt as ordinary text.
fn spelled(words: &Words, rendered: &RenderedPrompt, tokens: &[SeenToken]) -> Vec<Spelled> {
    let mut found = Vec::new();
    for markup in words.tokenizer.markup_texts() {
        for (start, _) in rendered.text().match_indices(markup.as_str()) {
            let at = tokens.partition_point(|token| token.start.is_some_and(|begins| begins < start));
            // A token that includes the white space before it begins earlier.
            let near = tokens.get(at.saturating_sub(1)..=at).unwrap_or_default();
            let covers = |token: &SeenToken| {
                token.start.is_some_and(|begins| begins <= start) && token.end.is_some_and(|end| end > start)
            };
            let is_text =
                near.iter().filter(|token| covers(token)).all(|token| token.kind == TokenKind::Text);
            if is_text && near.iter().any(covers) && found.len() < SPELLED_KEPT {
                found.push(Spelled { text: markup.clone(), start });
            }
        }
    }
    found.sort_by_key(|spelled| spelled.start);
    found
}
