//! Where the messages' texts stand in a prompt that was rendered from them.
//! Must not know tokens, or why somebody asks.

use std::ops::Range;

use headrace_domain::Conversation;

use crate::template::{ChatTemplate, RenderOptions};
use crate::values::Marks;

impl ChatTemplate {
    /// Where each message's text stands in `text`, which [`ChatTemplate::render`] made of the conversation with these options:
    /// a range of bytes, which may lack white space around the message's own text. `None` for a message without text, and
    /// for those that cannot be told, because the template leaves them out or changes them, or one before them.
    ///
    /// Renders once more, with a mark before and behind each text.
    pub fn places(
        &self,
        conversation: &Conversation,
        options: &RenderOptions,
        text: &str,
    ) -> Vec<Option<Range<usize>>> {
        let mut places = vec![None; conversation.messages.len()];
        let Ok((rendered, masker)) = self.render_marked(conversation, options, Marks::Each) else {
            return places;
        };
        let Some((found, last)) = masker.between_marks(&rendered) else { return places };
        let (mut at, mut next) = (0, 0);
        for (index, (before, marked)) in found.iter().enumerate() {
            let behind = found.get(index.saturating_add(1)).map_or(last.as_str(), |(before, _)| before);
            let rest = text.get(at..).unwrap_or("").strip_prefix(before.as_str());
            let shown = rest.and_then(|rest| {
                // Between marks nothing is trimmed.
                let ways = [marked.as_str(), marked.trim(), marked.trim_start(), marked.trim_end()];
                ways.into_iter()
                    .find(|way| rest.strip_prefix(way).is_some_and(|rest| rest.starts_with(behind)))
            });
            let Some(shown) = shown else { break };
            let start = at.saturating_add(before.len());
            at = start.saturating_add(shown.len());
            let is_it = |message: &usize| {
                let content =
                    conversation.messages.get(*message).and_then(|message| message.content.as_ref());
                content == Some(marked) && places.get(*message) == Some(&None)
            };
            // Mostly the next one; templates may move some, or show one twice.
            let count = places.len();
            if let Some(message) = (next..count).chain(0..next).find(is_it) {
                next = message.saturating_add(1);
                if let Some(place) = places.get_mut(message) {
                    *place = Some(start..at);
                }
            }
        }
        places
    }
}
