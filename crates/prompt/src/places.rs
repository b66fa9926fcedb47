//! Locates the caller's own words in a rendered prompt: texts of messages, tools and tool calls. Must not know tokens
//! or the callers of this module.

use std::collections::HashSet;
use std::ops::Range;

use headrace_domain::{Conversation, ToolChoice};
use serde::de::IgnoredAny;

use crate::options::RenderOptions;
use crate::part::PromptPart;
use crate::template::ChatTemplate;
use crate::values::MarkedTexts;

/// The position of a part in a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartRange {
    /// The part.
    pub part: PromptPart,
    /// Its byte range in the prompt.
    pub range: Range<usize>,
}

/// The maximum number of braces before a marked text that are tried as the beginning of its object.
const BRACES_TRIED: usize = 16;

impl ChatTemplate {
    /// Returns the positions of the conversation's parts in `text`, in the order of the text and each part once. `text`
    /// must be the result of [`ChatTemplate::render`] with the same options. White space around a message's text may be
    /// missing from its range. Parts without text are left out. So are parts that cannot be found because the template
    /// omits or changes them or an earlier part.
    ///
    /// Renders the conversation once more, and in rare cases twice, with marks around each text. A tool is marked at
    /// its name and description, and a call at its name. If the template writes a JSON object around the marked texts,
    /// the range covers the whole object.
    pub fn places(
        &self,
        conversation: &Conversation,
        options: &RenderOptions<'_>,
        text: &str,
    ) -> Vec<PartRange> {
        let shows_tools = !conversation.tools.is_empty() && conversation.tool_choice != ToolChoice::None;
        let named = shows_tools || conversation.messages.iter().any(|message| !message.tool_calls.is_empty());
        let (places, whole) = self.marked_places(conversation, options, text, MarkedTexts::Each);
        // A template that compares names behaves differently if they carry marks.
        let places = match named && !whole {
            true => self.marked_places(conversation, options, text, MarkedTexts::Texts).0,
            false => places,
        };
        with_objects(places, text)
    }

    /// Returns the positions that can be determined, and whether these are all.
    fn marked_places(
        &self,
        conversation: &Conversation,
        options: &RenderOptions<'_>,
        text: &str,
        marks: MarkedTexts,
    ) -> (Vec<PartRange>, bool) {
        let mut places: Vec<PartRange> = Vec::new();
        let Ok((rendered, masker)) = self.render_marked(conversation, options, marks) else {
            return (places, false);
        };
        let Some((found, last)) = masker.between_marks(&rendered) else { return (places, false) };
        let (mut at, mut seen) = (0, HashSet::new());
        for (index, marked) in found.iter().enumerate() {
            let behind =
                found.get(index.saturating_add(1)).map_or(last.as_str(), |next| next.before.as_str());
            let rest = text.get(at..).unwrap_or("").strip_prefix(marked.before.as_str());
            let shown = rest.and_then(|rest| {
                // Text between marks is not trimmed.
                let whole = marked.text.as_str();
                let ways = [whole, whole.trim(), whole.trim_start(), whole.trim_end()];
                ways.into_iter()
                    .find(|way| rest.strip_prefix(way).is_some_and(|rest| rest.starts_with(behind)))
            });
            let (Some(shown), Some(part)) = (shown, PromptPart::of_tag(&marked.tag)) else {
                return (places, false);
            };
            let start = at.saturating_add(marked.before.len());
            at = start.saturating_add(shown.len());
            match places.last_mut() {
                // A tool has two texts.
                Some(last) if last.part == part && part.is_object() => last.range.end = at,
                // A template may show a part twice.
                _ if seen.insert(part) => places.push(PartRange { part, range: start..at }),
                _ => {}
            }
        }
        (places, true)
    }
}

/// Extends the ranges of tools and calls to their whole objects. Only names and descriptions are marked.
fn with_objects(mut places: Vec<PartRange>, text: &str) -> Vec<PartRange> {
    let mut from = 0;
    for at in 0..places.len() {
        let until = places.get(at.saturating_add(1)).map_or(text.len(), |next| next.range.start);
        if let Some(place) = places.get_mut(at) {
            if place.part.is_object()
                && let Some(object) = object_around(text, &place.range, from, until)
            {
                place.range = object;
            }
            from = place.range.end;
        }
    }
    places
}

/// Returns the largest JSON object that begins at `from` or later, contains `marked` and ends by `until`.
fn object_around(text: &str, marked: &Range<usize>, from: usize, until: usize) -> Option<Range<usize>> {
    let before = text.get(from..marked.start)?;
    let braces: Vec<usize> =
        before.rmatch_indices('{').take(BRACES_TRIED).map(|(at, _)| from.saturating_add(at)).collect();
    braces.into_iter().rev().find_map(|start| {
        let mut values = serde_json::Deserializer::from_str(text.get(start..)?).into_iter::<IgnoredAny>();
        values.next()?.ok()?;
        let end = start.saturating_add(values.byte_offset());
        (end >= marked.end && end <= until).then_some(start..end)
    })
}
