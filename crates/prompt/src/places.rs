//! Where the caller's own words stand in a prompt that was rendered from them: texts of messages, tools, calls of tools.
//! Must not know tokens, or why somebody asks.

use std::collections::HashSet;
use std::ops::Range;

use headrace_domain::{Conversation, ToolChoice};
use serde::de::IgnoredAny;

use crate::options::RenderOptions;
use crate::part::Part;
use crate::template::ChatTemplate;
use crate::values::Marks;

/// Where a part stands in a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// What stands there.
    pub part: Part,
    /// In which bytes.
    pub range: Range<usize>,
}

/// The most braces before a marked text that are tried as the beginning of its object.
const BRACES_TRIED: usize = 16;

impl ChatTemplate {
    /// Where the parts of a conversation stand in `text`, which [`ChatTemplate::render`] made of it with these options: in the
    /// order of the text, each once. White space around a message's text may be missing from its range. Parts without
    /// text are left out, and so are those that cannot be found because the template omits or changes them, or one before them.
    ///
    /// Renders once more (in rare cases twice), with marks around each text. A tool is marked at its name and description, a call
    /// at its name; they reach as far as the JSON object around these, where the template writes one.
    pub fn places(&self, conversation: &Conversation, options: &RenderOptions<'_>, text: &str) -> Vec<Place> {
        let shows_tools = !conversation.tools.is_empty() && conversation.tool_choice != ToolChoice::None;
        let named = shows_tools || conversation.messages.iter().any(|message| !message.tool_calls.is_empty());
        let (places, whole) = self.marked_places(conversation, options, text, Marks::Each);
        // A template that looks at names does something else where they carry marks.
        let places = match named && !whole {
            true => self.marked_places(conversation, options, text, Marks::Texts).0,
            false => places,
        };
        with_objects(places, text)
    }

    /// The places as far as they can be told, and whether that is all of them.
    fn marked_places(
        &self,
        conversation: &Conversation,
        options: &RenderOptions<'_>,
        text: &str,
        marks: Marks,
    ) -> (Vec<Place>, bool) {
        let mut places: Vec<Place> = Vec::new();
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
                // Between marks nothing is trimmed.
                let whole = marked.text.as_str();
                let ways = [whole, whole.trim(), whole.trim_start(), whole.trim_end()];
                ways.into_iter()
                    .find(|way| rest.strip_prefix(way).is_some_and(|rest| rest.starts_with(behind)))
            });
            let (Some(shown), Some(part)) = (shown, Part::of_tag(&marked.tag)) else {
                return (places, false);
            };
            let start = at.saturating_add(marked.before.len());
            at = start.saturating_add(shown.len());
            match places.last_mut() {
                // A tool has two texts.
                Some(last) if last.part == part && part.is_object() => last.range.end = at,
                // A template may show one twice.
                _ if seen.insert(part) => places.push(Place { part, range: start..at }),
                _ => {}
            }
        }
        (places, true)
    }
}

/// Extends the places of tools and calls, where only names and descriptions are marked, to their whole objects.
fn with_objects(mut places: Vec<Place>, text: &str) -> Vec<Place> {
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

/// The largest JSON object that begins at `from` or later, holds `marked` and ends by `until`.
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
