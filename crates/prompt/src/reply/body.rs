//! What stands between the marks of a call, read character by character: one reader for each way of writing it.
//! Must not know marks, or what becomes of a call.

use std::sync::Arc;

use crate::family::Body;
use crate::offered::OfferedTools;

use super::gemma::Gemma;
use super::named::NamedCall;
use super::object::Object;
use super::piece::Draft;
use super::pythonic::Pythonic;
use super::tagged::TaggedCall;

/// The most bytes of a name and what stands around it.
pub(super) const MOST_HEAD_BYTES: usize = 512;

/// What a character is to the call being read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A part of it.
    More,
    /// A part of it, and the last one.
    Whole,
    /// None of it: the call was whole some characters ago, which are these.
    Before(String),
    /// The last one of a list of calls.
    All(Vec<Draft>),
    /// None of it, and it is no call.
    Off,
}

/// A reader.
#[derive(Debug)]
pub(super) enum Reader {
    Object(Object),
    Named(NamedCall),
    Tagged(Box<TaggedCall>),
    Pythonic(Pythonic),
    Gemma(Gemma),
}

impl Reader {
    /// A reader of what `body` says. `end`: a mark that also ends a call whose own is missing.
    pub(super) fn new(body: &Body, end: Option<&'static str>, offered: &Arc<OfferedTools>) -> Self {
        match body {
            Body::Object { array, .. } => Self::Object(Object::new(*array)),
            Body::Named(named) => Self::Named(NamedCall::new(named, end)),
            Body::Tagged(tagged) => Self::Tagged(Box::new(TaggedCall::new(*tagged, end, offered))),
            Body::Pythonic => Self::Pythonic(Pythonic::new(offered)),
            Body::Gemma { quote } => Self::Gemma(Gemma::new(quote, offered)),
        }
    }

    /// A reader of a further object in a list.
    pub(super) fn next_object() -> Self {
        Self::Object(Object::new(false))
    }

    pub(super) fn step(&mut self, c: char, draft: &mut Draft) -> Step {
        match self {
            Self::Object(object) => object.step(c, draft),
            Self::Named(named) => named.step(c, draft),
            Self::Tagged(tagged) => tagged.step(c, draft),
            Self::Pythonic(pythonic) => pythonic.step(c, draft),
            Self::Gemma(gemma) => gemma.step(c, draft),
        }
    }

    /// Nothing more comes, as the model has stopped by itself. Completes what only lacks its end.
    pub(super) fn stop(&mut self, draft: &mut Draft) {
        if let Self::Tagged(tagged) = self {
            tagged.stop(draft);
        }
    }

    /// What was read behind a call that is whole.
    pub(super) fn tail(&mut self) -> String {
        match self {
            Self::Object(object) => object.tail(),
            _ => String::new(),
        }
    }

    /// Whether it is in a list of objects.
    pub(super) fn in_list(&self) -> bool {
        match self {
            Self::Object(object) => object.in_list(),
            Self::Named(named) => named.in_list(),
            _ => false,
        }
    }
}
