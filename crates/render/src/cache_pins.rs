//! Finds which tokens of a prompt its caller wants kept in a cache: from places in the request to token counts. Must
//! not know how they are kept, nor whether they will be.

use std::sync::Arc;

use headrace_catalog::TokenBackend;
use headrace_domain::{CacheMarkAt, CachePin, Call, Conversation, MessageOrigin, Prompt, Role};
use headrace_tokenizer::Tokenizer;

/// After this many messages were not found, each searched to the end of the prompt, the search stops.
const VAIN_SEARCHES: usize = 16;

/// The prefixes of a conversation that are to be kept. `text` is what the template made of the conversation, and `ids`
/// are its tokens. Text that the template leaves out or changes has no place, so nothing is kept for it.
pub fn cache_pins(backend: &TokenBackend, call: &Call, text: &str, ids: &[u32]) -> Arc<[CachePin]> {
    let Prompt::Conversation(conversation) = &call.prompt else { return Arc::default() };
    if call.cache_marks.is_empty() {
        return Arc::default();
    }
    let places = places(conversation, text);
    let mut ends: Vec<(usize, headrace_domain::CacheLife)> = Vec::new();
    for mark in &call.cache_marks {
        if let Some(end) = end_of(mark.at, call, conversation, &places) {
            ends.push((end, mark.life));
        }
    }
    ends.sort_unstable_by_key(|(end, _)| *end);
    let mut walk = TokenWalk { tokenizer: &backend.tokenizer, ids, tokens: 0, bytes: 0 };
    ends.into_iter().map(|(end, life)| CachePin { tokens: walk.to(end), life }).collect()
}

/// The byte range of each message's text in the prompt: first byte, and first byte after it.
fn places(conversation: &Conversation, text: &str) -> Vec<Option<(usize, usize)>> {
    let (mut from, mut vain) = (0, 0);
    let place = |message: &headrace_domain::Message| {
        let content = message.content.as_deref().map(str::trim).filter(|content| !content.is_empty())?;
        let rest = text.get(from..).filter(|_| vain < VAIN_SEARCHES)?;
        let Some(at) = rest.find(content) else {
            vain += 1;
            return None;
        };
        let start = from.saturating_add(at);
        from = start.saturating_add(content.len());
        Some((start, from))
    };
    conversation.messages.iter().map(place).collect()
}

/// The first byte after a marked prefix.
fn end_of(
    at: CacheMarkAt,
    call: &Call,
    conversation: &Conversation,
    places: &[Option<(usize, usize)>],
) -> Option<usize> {
    let last = |is_meant: &dyn Fn(usize) -> bool| {
        let meant = places.iter().enumerate().filter(|(at, _)| is_meant(*at));
        meant.filter_map(|(_, place)| *place).next_back().map(|(_, end)| end)
    };
    match at {
        // Tools and instructions precede the messages.
        CacheMarkAt::Head => {
            let mut shown = conversation.messages.iter().zip(places).filter(|(m, _)| m.role != Role::System);
            shown.find_map(|(_, place)| *place).map(|(start, _)| start)
        }
        CacheMarkAt::Message(index) => {
            last(&|at| matches!(call.origin(at), MessageOrigin::Message { index: own, .. } if own == index))
        }
        CacheMarkAt::Last => last(&|_| true),
    }
}

/// Counts tokens by the bytes that they encode.
struct TokenWalk<'a> {
    tokenizer: &'a Tokenizer,
    ids: &'a [u32],
    tokens: usize,
    bytes: usize,
}

impl TokenWalk<'_> {
    /// The number of whole tokens before the byte `end`. Calls must pass ends in ascending order.
    fn to(&mut self, end: usize) -> u32 {
        while let Some(id) = self.ids.get(self.tokens) {
            let bytes = self.bytes.saturating_add(self.tokenizer.token_bytes(*id).map_or(0, <[u8]>::len));
            if bytes > end {
                break;
            }
            (self.tokens, self.bytes) = (self.tokens + 1, bytes);
        }
        u32::try_from(self.tokens).unwrap_or(u32::MAX)
    }
}
