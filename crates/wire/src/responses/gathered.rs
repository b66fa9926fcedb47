//! Gathers the events of an answer into items. Knows no JSON.

use std::borrow::Cow;

use headrace_domain::ReplyEvent;

use super::answer::{AnswerItem, ItemBody, ItemStatus, ResponseAnswer};

/// The effect of an event on the items.
pub(super) struct GatheredDelta<'e> {
    /// The index of the item that the event belongs to.
    pub(super) at: usize,
    /// Whether the event is the item's first.
    pub(super) new: bool,
    /// The text that the event adds to the item.
    pub(super) delta: Cow<'e, str>,
}

impl ResponseAnswer {
    /// Adds an event. `None` if it belongs to no item.
    pub(super) fn take<'e>(&mut self, event: &'e ReplyEvent) -> Option<GatheredDelta<'e>> {
        match event {
            ReplyEvent::Text { text, logprobs, .. } => {
                let taken = self.text(
                    text,
                    |body| matches!(body, ItemBody::Message { .. }),
                    || ItemBody::Message { text: String::new(), logprobs: Vec::new() },
                )?;
                if let Some(ItemBody::Message { text: all, logprobs: scores }) = self.body(taken.at) {
                    all.push_str(text);
                    scores.extend_from_slice(logprobs);
                }
                Some(taken)
            }
            ReplyEvent::Reasoning { text, .. } => {
                let fits = |body: &ItemBody| matches!(body, ItemBody::Reasoning { foreign: None, .. });
                let taken =
                    self.text(text, fits, || ItemBody::Reasoning { text: String::new(), foreign: None })?;
                if let Some(ItemBody::Reasoning { text: all, .. }) = self.body(taken.at) {
                    all.push_str(text);
                }
                Some(taken)
            }
            // The reasoning signature of another server can only go back through that server's own dialect.
            ReplyEvent::Prompt { .. }
            | ReplyEvent::ReasoningSignature { .. }
            | ReplyEvent::Encoded { .. } => None,
            ReplyEvent::RedactedReasoning { data, .. } => {
                let foreign = Some(data.clone());
                Some(self.begin(ItemBody::Reasoning { text: String::new(), foreign }))
            }
            ReplyEvent::ToolCallStart { index, id, name, .. } => {
                let body = self.call(*index, id, name);
                Some(self.begin(body))
            }
            ReplyEvent::ToolCallArguments { index, fragment, .. } => {
                let is_it =
                    |item: &AnswerItem| matches!(&item.body, ItemBody::Call(call) if call.index == *index);
                let at = self.items.iter().rposition(is_it)?;
                let Some(ItemBody::Call(call)) = self.body(at) else { return None };
                Some(GatheredDelta { at, new: false, delta: call.push(fragment) })
            }
            ReplyEvent::Finish { reason, .. } => {
                self.reason = Some(reason.clone());
                None
            }
        }
    }

    /// Ends an item. Returns the text that was held back.
    pub(super) fn end(&mut self, at: usize, status: ItemStatus) -> String {
        let Some(item) = self.items.get_mut(at) else { return String::new() };
        item.status = status;
        match &mut item.body {
            ItemBody::Call(call) => call.finish(),
            ItemBody::Message { .. } | ItemBody::Reasoning { .. } => String::new(),
        }
    }

    /// Assigns a text to the last item if that is open and of the right kind, otherwise to a new item.
    fn text<'e>(
        &mut self,
        text: &'e str,
        fits: impl FnOnce(&ItemBody) -> bool,
        new: impl FnOnce() -> ItemBody,
    ) -> Option<GatheredDelta<'e>> {
        let last = self.items.last().filter(|item| item.status == ItemStatus::InProgress && fits(&item.body));
        match (last, self.items.len().checked_sub(1)) {
            (Some(_), Some(at)) => Some(GatheredDelta { at, new: false, delta: Cow::Borrowed(text) }),
            _ if text.is_empty() => None,
            _ => Some(GatheredDelta { delta: Cow::Borrowed(text), ..self.begin(new()) }),
        }
    }

    fn begin<'e>(&mut self, body: ItemBody) -> GatheredDelta<'e> {
        GatheredDelta { at: self.push(body), new: true, delta: Cow::Borrowed("") }
    }

    fn body(&mut self, at: usize) -> Option<&mut ItemBody> {
        self.items.get_mut(at).map(|item| &mut item.body)
    }
}
