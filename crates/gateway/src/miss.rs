//! Where a cache miss stands in what the caller sent: from the position of a token to a message and a character of it.
//! Done once per request that missed, after its answer. Keeps no text.

use headrace_domain::{CacheMiss, Conversation, MissReason, Prompt, PromptItem, PromptPlace};
use headrace_tokenizer::Tokenizer;

use crate::state::Work;

/// A tail of undecoded bytes (one broken character, replaced) by which a decoded text may differ from what was encoded.
const BROKEN_TAIL_BYTES: usize = 12;

/// The miss of prompt number `prompt` with its place, where it can be told.
pub(crate) fn located(work: &Work, prompt: usize, miss: CacheMiss) -> CacheMiss {
    let place = match miss.reason {
        MissReason::BelowBlock | MissReason::Bypassed | MissReason::Disabled => None,
        MissReason::Evicted | MissReason::Expired | MissReason::Differs | MissReason::NeverSeen => {
            place(work, prompt, miss.token as usize)
        }
    };
    CacheMiss { place, ..miss }
}

fn place(work: &Work, prompt: usize, token: usize) -> Option<PromptPlace> {
    let before = work.prompts.get(prompt)?.get(..token)?;
    match &work.call.prompt {
        Prompt::Conversation(conversation) => {
            let text = work.text.as_deref()?;
            let offset = offset_of(&work.model.tokenizer, before, text, false)?;
            Some(in_conversation(conversation, text, offset))
        }
        Prompt::Raw(items) => {
            let index = count(prompt);
            let character = match items.get(prompt)? {
                PromptItem::Ids(_) => count(token),
                PromptItem::Text(text) => {
                    let offset = offset_of(&work.model.tokenizer, before, text, true)?;
                    characters(text.get(..offset)?)
                }
            };
            Some(PromptPlace::Prompt { index, character })
        }
    }
}

/// The byte of `text` at which the token after `before` begins. `None`: the tokenizer does not give the text back, so
/// that nothing can be said.
fn offset_of(tokenizer: &Tokenizer, before: &[u32], text: &str, skip_special: bool) -> Option<usize> {
    let decoded = tokenizer.decode(before, skip_special);
    let shared = text.bytes().zip(decoded.bytes()).take_while(|(a, b)| a == b).count();
    if shared + BROKEN_TAIL_BYTES < decoded.len() {
        return None;
    }
    (0..=shared).rev().find(|&at| text.is_char_boundary(at))
}

/// Which message's text holds the byte `offset` of a rendered conversation. Messages are found in their order; templates
/// may trim them.
fn in_conversation(conversation: &Conversation, text: &str, offset: usize) -> PromptPlace {
    let mut cursor = 0;
    for (index, message) in conversation.messages.iter().enumerate() {
        let Some(content) = message.content.as_deref().filter(|content| !content.trim().is_empty()) else {
            continue;
        };
        let (rest, trimmed) = (text.get(cursor..).unwrap_or(""), content.trim());
        let whole = rest.find(content).map(|at| (at, content));
        let Some((at, shown)) = whole.or_else(|| rest.find(trimmed).map(|at| (at, trimmed))) else {
            continue;
        };
        let (start, end) = (cursor + at, cursor + at + shown.len());
        if offset < start {
            return PromptPlace::Template { before_message: count(index) };
        }
        if offset < end {
            let cut =
                if shown.len() == content.len() { 0 } else { content.len() - content.trim_start().len() };
            let cut = characters(content.get(..cut).unwrap_or(""));
            let character = cut.saturating_add(characters(text.get(start..offset).unwrap_or("")));
            return PromptPlace::Message { index: count(index), character };
        }
        cursor = end;
    }
    PromptPlace::Template { before_message: count(conversation.messages.len()) }
}

fn characters(text: &str) -> u32 {
    count(text.chars().count())
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headrace_domain::{Message, Role, ToolChoice};

    #[test]
    fn a_byte_of_a_rendered_conversation_is_found_in_its_message() {
        let conversation = Conversation {
            messages: vec![
                Message::text(Role::System, "  be kind "),
                Message::text(Role::User, "héllo there"),
                Message::text(Role::Assistant, "hi"),
                Message::text(Role::User, "héllo again"),
            ],
            tools: Vec::new(),
            tool_choice: ToolChoice::Auto,
        };
        let text = "<s>be kind</s><u>héllo there</u><a>hi</a><u>héllo again</u><a>";
        let at = |needle: &str| text.find(needle).unwrap();
        let in_message = |index, character| PromptPlace::Message { index, character };
        for (offset, expected) in [
            (0, PromptPlace::Template { before_message: 0 }),
            (at("be kind"), in_message(0, 2)),
            (at("kind"), in_message(0, 5)),
            (at("</s>"), PromptPlace::Template { before_message: 1 }),
            (at("there"), in_message(1, 6)),
            (at("hi</a>"), in_message(2, 0)),
            (at("again"), in_message(3, 6)),
            (text.len() - 1, PromptPlace::Template { before_message: 4 }),
        ] {
            assert_eq!(in_conversation(&conversation, text, offset), expected, "byte {offset}");
        }
    }
}
