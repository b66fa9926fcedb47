//! Readers for the text between the marks of a call, character by character: one for each notation. Must not know marks
//! or the use of a call.

use std::sync::Arc;

use crate::family::{CallLayout, ObjectLayout};
use crate::offered::OfferedTools;

use super::gemma::GemmaCall;
use super::named::NamedCall;
use super::nested::NestedCall;
use super::object::ObjectCall;
use super::piece::CallDraft;
use super::pythonic::PythonicCall;
use super::step::CallStep;
use super::tagged::TaggedCall;

/// The reader of a call.
#[derive(Debug)]
pub(super) enum CallReader {
    Object(ObjectCall),
    Named(NamedCall),
    Tagged(Box<TaggedCall>),
    Nested(Box<NestedCall>),
    Pythonic(PythonicCall),
    Gemma(GemmaCall),
}

impl CallReader {
    /// Creates a reader for the notation `body` after the mark `open`. `end` is a mark that also ends a call whose own
    /// end is missing.
    pub(super) fn new(
        body: &CallLayout,
        open: &str,
        end: Option<&'static str>,
        offered: &Arc<OfferedTools>,
    ) -> Self {
        match body {
            CallLayout::Object(layout) if open.ends_with('[') => Self::Object(ObjectCall::listed(*layout)),
            CallLayout::Object(layout) => Self::Object(ObjectCall::new(*layout, end.is_some())),
            CallLayout::Named(named) => Self::Named(NamedCall::new(named, end)),
            CallLayout::Tagged(tagged) => Self::Tagged(Box::new(TaggedCall::new(*tagged, end, offered))),
            CallLayout::Nested(nested) => Self::Nested(Box::new(NestedCall::new(*nested, offered))),
            CallLayout::Pythonic => Self::Pythonic(PythonicCall::new(offered)),
            CallLayout::Lines => Self::Pythonic(PythonicCall::lines(end.unwrap_or(""), offered)),
            CallLayout::Gemma { quote } => Self::Gemma(GemmaCall::new(quote, offered)),
        }
    }

    /// Creates a reader for a further object in a list, or between the marks of a call.
    pub(super) fn next_object(body: &CallLayout, marked: bool) -> Self {
        let layout = if let CallLayout::Object(layout) = body { *layout } else { ObjectLayout::PLAIN };
        Self::Object(ObjectCall::new(ObjectLayout { array: false, ..layout }, marked))
    }

    pub(super) fn step(&mut self, c: char, draft: &mut CallDraft) -> CallStep {
        match self {
            Self::Object(object) => object.step(c, draft),
            Self::Named(named) => named.step(c, draft),
            Self::Tagged(tagged) => tagged.step(c, draft),
            Self::Nested(nested) => nested.step(c, draft),
            Self::Pythonic(pythonic) => pythonic.step(c, draft),
            Self::Gemma(gemma) => gemma.step(c, draft),
        }
    }

    /// Ends the input because the model stopped by itself. Completes a call that lacks only its end, or returns calls
    /// that lack only theirs.
    pub(super) fn stop(&mut self, draft: &mut CallDraft) -> CallStep {
        match self {
            Self::Tagged(tagged) => tagged.stop(draft),
            Self::Pythonic(pythonic) => return pythonic.stop(),
            _ => {}
        }
        CallStep::More
    }

    /// Returns the characters that were read after the end of a complete call.
    pub(super) fn tail(&mut self) -> String {
        match self {
            Self::Object(object) => object.tail(),
            _ => String::new(),
        }
    }

    /// Whether the call is in a list of objects.
    pub(super) fn in_list(&self) -> bool {
        match self {
            Self::Object(object) => object.in_list(),
            Self::Named(named) => named.in_list(),
            _ => false,
        }
    }
}
