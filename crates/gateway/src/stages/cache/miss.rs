//! Maps a cache miss to the caller's request: from a token position to a message and its character, or to a tool, in
//! terms of the caller's dialect. Runs once per request that missed. Keeps no text.

use std::ops::Range;

use headrace_catalog::TokenBackend;
use headrace_domain::{
    CacheMiss, Call, Conversation, MessageOrigin, MissReason, Prompt, PromptItem, PromptPlace, UnixNanos,
};
use headrace_prompt::{PartRange, PromptPart, RenderOptions};
use headrace_render::shown_conversation;
use headrace_tokenizer::Tokenizer;

use crate::state::RenderedWork;

/// Bytes by which a decoded text may differ from the encoded one at its end: one broken character, replaced.
const BROKEN_TAIL_BYTES: usize = 12;
/// The longest prompt in bytes that is rendered again, which gives the exact places of messages. In longer prompts the
/// messages are searched for.
const RENDERED_AGAIN_BYTES: usize = 256 << 10;
/// Tokens before a token that are decoded together with it.
const TOKENS_LOOKED_BACK: usize = 8;
/// After this many messages were not found, each searched to the end of the prompt, the search stops.
const VAIN_SEARCHES: usize = 16;

/// The miss of prompt number `prompt` with its place, if it can be found. `now` is the time at which the prompt was
/// rendered.
pub(crate) fn located(work: &RenderedWork, prompt: usize, miss: CacheMiss, now: UnixNanos) -> CacheMiss {
    let place = match miss.reason {
        MissReason::BelowBlock | MissReason::Bypassed | MissReason::Disabled => None,
        MissReason::Evicted
        | MissReason::Expired
        | MissReason::Differs
        | MissReason::NeverSeen
        | MissReason::StateNotKept
        | MissReason::WindowFreed => place(work, prompt, &miss, now),
    };
    CacheMiss { place, other: None, ..miss }
}

fn place(work: &RenderedWork, prompt: usize, miss: &CacheMiss, now: UnixNanos) -> Option<PromptPlace> {
    let token = miss.token as usize;
    let rendered = work.rendered.tokens()?;
    let tokens = rendered.prompts.ids.get(prompt)?;
    let before = tokens.get(..token)?;
    let TokenBackend { tokenizer, template, .. } = work.model.backend.tokens()?;
    let in_common = || match (miss.other, tokens.get(token)) {
        (Some(other), Some(own)) => bytes_in_common(tokenizer, before, *own, other),
        _ => 0,
    };
    match &work.call.prompt {
        Prompt::Conversation(conversation) => {
            let text = rendered.text.as_deref()?;
            let offset = offset_of(tokenizer, before, text, false)?;
            let offset = floor_char_boundary(text, offset.saturating_add(in_common()));
            let conversation = &*shown_conversation(&work.model, conversation);
            // Rendered as in stage `render`. A template that prints the time may print another one, and then yields no
            // places.
            let options =
                RenderOptions { add_generation_prompt: true, now, reasoning: Some(&work.call.reasoning) };
            let places = match template {
                Some(template) if text.len() <= RENDERED_AGAIN_BYTES => {
                    template.places(conversation, &options, text)
                }
                _ => Vec::new(),
            };
            let found = in_conversation(conversation, places, text, offset);
            Some(in_the_callers_terms(found, &work.call, conversation.messages.len()))
        }
        // These prompts have no cached tokens here that could be missed.
        Prompt::Relayed(_) | Prompt::Encode(_) => None,
        Prompt::Raw(items) => {
            let index = count(prompt);
            let character = match items.get(prompt)? {
                PromptItem::Ids(_) => count(token),
                PromptItem::Text(text) => {
                    let offset = offset_of(tokenizer, before, text, true)?;
                    let offset = floor_char_boundary(text, offset.saturating_add(in_common()));
                    characters(text.get(..offset)?)
                }
            };
            Some(PromptPlace::Prompt { index, character })
        }
    }
}

/// The byte of `text` at which the token after `before` begins. `None` if the tokenizer does not reproduce the text, so
/// that the byte is unknown.
fn offset_of(tokenizer: &Tokenizer, before: &[u32], text: &str, skip_special: bool) -> Option<usize> {
    let decoded = tokenizer.decode(before, skip_special);
    let shared = text.bytes().zip(decoded.bytes()).take_while(|(a, b)| a == b).count();
    if shared + BROKEN_TAIL_BYTES < decoded.len() {
        return None;
    }
    Some(floor_char_boundary(text, shared))
}

/// How many leading bytes two tokens have in common after the same preceding tokens.
fn bytes_in_common(tokenizer: &Tokenizer, before: &[u32], own: u32, other: u32) -> usize {
    // The text of a token depends on at most the few tokens before it.
    let before = before.get(before.len().saturating_sub(TOKENS_LOOKED_BACK)..).unwrap_or(before);
    let with = |token: u32| {
        let mut ids = before.to_vec();
        ids.push(token);
        tokenizer.decode(&ids, false)
    };
    let shared = with(own).bytes().zip(with(other).bytes()).take_while(|(a, b)| a == b).count();
    shared.saturating_sub(tokenizer.decode(before, false).len())
}

/// The last character boundary of `text` at or before byte `at`.
fn floor_char_boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

/// The place of a byte of a rendered conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MissPosition {
    /// In a part, at this character of its text.
    In(PromptPart, u32),
    /// At the beginning or end of the list of tools.
    Tools,
    /// In the template's own words, before a message.
    Before(usize),
}

/// Finds the part that holds the byte `offset` of a rendered conversation, by the places of its parts. A message
/// without a place, because a template changes its text, is searched for after the previous one.
fn in_conversation(
    conversation: &Conversation,
    places: Vec<PartRange>,
    text: &str,
    offset: usize,
) -> MissPosition {
    let places = with_messages_looked_for(conversation, places, text);
    let next = places.iter().position(|place| offset < place.range.end);
    let last = next.map_or(places.len(), |next| next).checked_sub(1).and_then(|last| places.get(last));
    let next = next.and_then(|next| places.get(next));
    match (last, next) {
        (_, Some(place)) if place.range.start <= offset => {
            MissPosition::In(place.part, character_of(conversation, place, text, offset))
        }
        // The text between two tools leads to the second one.
        (
            Some(PartRange { part: PromptPart::Tool(_), .. }),
            Some(PartRange { part: part @ PromptPart::Tool(_), .. }),
        ) => MissPosition::In(*part, 0),
        (_, Some(PartRange { part: PromptPart::Tool(_), .. })) => MissPosition::Tools,
        // After the last tool and before any other words: the most similar prompt has one more tool.
        (Some(PartRange { part: PromptPart::Tool(_), range }), _)
            if !says_something(text.get(range.end..offset)) =>
        {
            MissPosition::Tools
        }
        (_, None) => MissPosition::Before(conversation.messages.len()),
        (_, Some(place)) => MissPosition::Before(match place.part {
            PromptPart::Message(message)
            | PromptPart::Reasoning(message)
            | PromptPart::Call { message, .. } => message,
            PromptPart::Tool(_) => 0,
        }),
    }
}

fn says_something(text: Option<&str>) -> bool {
    text.is_some_and(|text| text.chars().any(char::is_alphanumeric))
}

/// The places in the order of the text, including those found for messages that had none.
fn with_messages_looked_for(
    conversation: &Conversation,
    mut places: Vec<PartRange>,
    text: &str,
) -> Vec<PartRange> {
    let mut ends: Vec<Option<usize>> = vec![None; conversation.messages.len()];
    for place in &places {
        if let PromptPart::Message(message) = place.part
            && let Some(end) = ends.get_mut(message)
        {
            *end = Some(place.range.end);
        }
    }
    let (mut cursor, mut vain) = (0, 0);
    for (at, (message, ends)) in conversation.messages.iter().zip(ends).enumerate() {
        let Some(content) = message.content.as_deref().filter(|content| !content.trim().is_empty()) else {
            continue;
        };
        match ends {
            Some(end) => cursor = cursor.max(end),
            None if vain >= VAIN_SEARCHES => {}
            None => match search(content, text, cursor) {
                Some(range) => {
                    cursor = range.end;
                    places.push(PartRange { part: PromptPart::Message(at), range });
                }
                None => vain += 1,
            },
        }
    }
    places.sort_by_key(|place| place.range.start);
    places
}

/// The character of a part's own text at a byte of the prompt. A template may have trimmed that text.
fn character_of(conversation: &Conversation, place: &PartRange, text: &str, offset: usize) -> u32 {
    let message = |at: usize| conversation.messages.get(at);
    let whole = match place.part {
        PromptPart::Message(at) => message(at).and_then(|message| message.content.as_deref()),
        PromptPart::Reasoning(at) => message(at).and_then(|message| message.reasoning.as_deref()),
        PromptPart::Call { .. } | PromptPart::Tool(_) => return 0,
    };
    let shown = text.get(place.range.clone()).unwrap_or("");
    let cut = whole.and_then(|whole| whole.get(..whole.find(shown)?)).unwrap_or("");
    characters(cut).saturating_add(characters(text.get(place.range.start..offset).unwrap_or("")))
}

/// A place as the caller would name it. `messages` is the length of the conversation.
fn in_the_callers_terms(found: MissPosition, call: &Call, messages: usize) -> PromptPlace {
    // Only the template's first words precede `system`.
    let index_of = |at: usize| match call.origin(at) {
        MessageOrigin::System => 0,
        MessageOrigin::Message { index, .. } => index,
    };
    match found {
        MissPosition::In(PromptPart::Message(at), character) => match call.origin(at) {
            MessageOrigin::System => PromptPlace::System { character },
            MessageOrigin::Message { index, block } => PromptPlace::Message { index, block, character },
        },
        MissPosition::In(PromptPart::Reasoning(at), character) => {
            PromptPlace::Reasoning { index: index_of(at), character }
        }
        MissPosition::In(PromptPart::Call { message, call }, _) => {
            PromptPlace::ToolCall { index: index_of(message), call: count(call) }
        }
        MissPosition::In(PromptPart::Tool(at), _) => PromptPlace::Tool { index: count(at) },
        MissPosition::Tools => PromptPlace::Tools,
        MissPosition::Before(at) if at < messages => PromptPlace::Template { before_message: index_of(at) },
        MissPosition::Before(_) => {
            let all = messages.checked_sub(1).map_or(0, |last| index_of(last).saturating_add(1));
            PromptPlace::Template { before_message: all }
        }
    }
}

/// The first occurrence of a message's text, or of the trimmed text, from byte `from` on.
fn search(content: &str, text: &str, from: usize) -> Option<Range<usize>> {
    let rest = text.get(from..)?;
    let (at, shown) = [content, content.trim()].into_iter().find_map(|way| Some((rest.find(way)?, way)))?;
    let start = from.saturating_add(at);
    Some(start..start.saturating_add(shown.len()))
}

fn characters(text: &str) -> u32 {
    count(text.chars().count())
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
