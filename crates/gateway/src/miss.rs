//! Where a cache miss stands in what the caller sent: from the position of a token to a message and a character of it.
//! Done once per request that missed, after its answer. Keeps no text.

use std::ops::Range;

use headrace_domain::{CacheMiss, Conversation, MissReason, Prompt, PromptItem, PromptPlace, UnixNanos};
use headrace_prompt::RenderOptions;
use headrace_tokenizer::Tokenizer;

use crate::state::Work;

/// A tail of undecoded bytes (one broken character, replaced) by which a decoded text may differ from what was encoded.
const BROKEN_TAIL_BYTES: usize = 12;
/// The longest prompt that is rendered once more, which says exactly where messages stand; in others they are looked for.
const RENDERED_AGAIN_BYTES: usize = 256 << 10;
/// How many messages are looked for in vain, each to the end of the prompt, before no more are.
const VAIN_SEARCHES: usize = 16;

/// The miss of prompt number `prompt` with its place, where it can be told. `now`: when the prompt was rendered.
pub(crate) fn located(work: &Work, prompt: usize, miss: CacheMiss, now: UnixNanos) -> CacheMiss {
    let place = match miss.reason {
        MissReason::BelowBlock | MissReason::Bypassed | MissReason::Disabled => None,
        MissReason::Evicted | MissReason::Expired | MissReason::Differs | MissReason::NeverSeen => {
            place(work, prompt, miss.token as usize, now)
        }
    };
    CacheMiss { place, ..miss }
}

fn place(work: &Work, prompt: usize, token: usize, now: UnixNanos) -> Option<PromptPlace> {
    let before = work.prompts.get(prompt)?.get(..token)?;
    match &work.call.prompt {
        Prompt::Conversation(conversation) => {
            let text = work.text.as_deref()?;
            let offset = offset_of(&work.model.tokenizer, before, text, false)?;
            // As the stage `render` did; a template that tells the time may tell another one, and then has no places.
            let options = RenderOptions { add_generation_prompt: true, now };
            let places = match &work.model.template {
                Some(template) if text.len() <= RENDERED_AGAIN_BYTES => {
                    template.places(conversation, &options, text)
                }
                _ => Vec::new(),
            };
            Some(in_conversation(conversation, &places, text, offset))
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

/// Which message's text holds the byte `offset` of a rendered conversation, by the places of the messages' texts. One without a
/// place, where a template changes its text, is looked for behind the one before it.
fn in_conversation(
    conversation: &Conversation,
    places: &[Option<Range<usize>>],
    text: &str,
    offset: usize,
) -> PromptPlace {
    let (mut cursor, mut vain) = (0, 0);
    for (index, message) in conversation.messages.iter().enumerate() {
        let Some(content) = message.content.as_deref().filter(|content| !content.trim().is_empty()) else {
            continue;
        };
        let place = match places.get(index).cloned().flatten() {
            None if vain < VAIN_SEARCHES => search(content, text, cursor),
            place => place.filter(|place| place.start >= cursor),
        };
        let Some(Range { start, end }) = place else {
            vain += 1;
            continue;
        };
        if offset < start {
            return PromptPlace::Template { before_message: count(index) };
        }
        if offset < end {
            // A template may have trimmed the text.
            let cut = content.find(text.get(start..end).unwrap_or("")).unwrap_or(0);
            let cut = characters(content.get(..cut).unwrap_or(""));
            let character = cut.saturating_add(characters(text.get(start..offset).unwrap_or("")));
            return PromptPlace::Message { index: count(index), character };
        }
        cursor = end;
    }
    PromptPlace::Template { before_message: count(conversation.messages.len()) }
}

/// The first place of a message's text, or of it trimmed, from byte `from` on.
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
mod tests {
    use super::*;
    use headrace_domain::{Message, Role, ToolChoice};

    fn conversation(texts: &[(Role, &str)]) -> Conversation {
        let messages = texts.iter().map(|(role, text)| Message::text(*role, *text)).collect();
        Conversation { messages, tools: Vec::new(), tool_choice: ToolChoice::Auto }
    }

    fn in_message(index: u32, character: u32) -> PromptPlace {
        PromptPlace::Message { index, character }
    }

    fn before(before_message: u32) -> PromptPlace {
        PromptPlace::Template { before_message }
    }

    #[test]
    fn a_byte_of_a_rendered_conversation_is_found_in_its_message() {
        use Role::{Assistant, System, User};
        let texts = [(System, "  be kind "), (User, "héllo there"), (Assistant, "hi"), (User, "héllo again")];
        let text = "<s>be kind</s><u>héllo there</u><a>hi</a><u>héllo again</u><a>";
        let at = |needle: &str| text.find(needle).unwrap();
        let places = ["be kind", "héllo there", "hi", "héllo again"].map(|shown| {
            let start = at(&format!(">{shown}<")) + 1;
            Some(start..start + shown.len())
        });
        for (offset, expected) in [
            (0, before(0)),
            (at("be kind"), in_message(0, 2)),
            (at("kind"), in_message(0, 5)),
            (at("</s>"), before(1)),
            (at("there"), in_message(1, 6)),
            (at("hi</a>"), in_message(2, 0)),
            (at("again"), in_message(3, 6)),
            (text.len() - 1, before(4)),
        ] {
            for places in [&[][..], &places[..2], &places] {
                let found = in_conversation(&conversation(&texts), places, text, offset);
                assert_eq!(found, expected, "byte {offset}, {places:?}");
            }
        }
    }

    #[test]
    fn words_of_the_template_are_not_taken_for_messages_with_places() {
        let text = "<user>user</user>";
        let user = conversation(&[(Role::User, "user")]);
        assert_eq!(in_conversation(&user, &[Some(6..10)], text, 4), before(0));
        assert_eq!(in_conversation(&user, &[Some(6..10)], text, 7), in_message(0, 1));
        // One that a template trims on the right only.
        let trimmed = conversation(&[(Role::User, " a ")]);
        assert_eq!(in_conversation(&trimmed, &[Some(1..3)], "< a>", 2), in_message(0, 1));
    }

    #[test]
    fn messages_that_are_not_there_are_not_looked_for_without_end() {
        let mut texts = vec![(Role::User, "x"); VAIN_SEARCHES];
        texts.push((Role::User, "there"));
        assert_eq!(in_conversation(&conversation(&texts), &[], "<there>", 2), before(17));
        assert_eq!(in_conversation(&conversation(&texts[1..]), &[], "<there>", 2), in_message(15, 1));
    }
}
