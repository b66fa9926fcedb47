//! What can be wrong with an upstream's answer: each fault has a name. Some end the answer, some are put up with and told.

use std::fmt;

use headrace_domain::Dialect;
use serde::de::{Deserialize, IgnoredAny};
use serde_json::error::Category;

use crate::relay::failure::{self, FailureClass, MOST_ERROR_BYTES};

use super::lenient;

/// A fault of an upstream's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyFault {
    /// Which.
    pub kind: FaultKind,
    /// What exactly, for traces and operators. Holds nothing of the answer's text.
    pub message: String,
}

impl ReplyFault {
    pub(super) fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

impl fmt::Display for ReplyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.message)
    }
}

impl std::error::Error for ReplyFault {}

/// Which fault. Those up to [`Self::TooMuchHeld`] end the answer; the others are noted and the answer goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// An error where an answer should be, under a status that told of none.
    ErrorInside(FailureClass),
    /// A finish reason says that the upstream gave up.
    GaveUp,
    /// The transport ended before any finish reason.
    BrokeOff,
    /// The stream says that it is over, and nothing of an answer came.
    NoFinishReason,
    /// A body or stream in which nothing is.
    Empty,
    /// A page of HTML.
    Html,
    /// No JSON.
    NotJson,
    /// JSON of another shape than the dialect's.
    Misshapen,
    /// A tool call whose name never came.
    CallWithoutName,
    /// Arguments of a tool call that never began.
    UnknownCall,
    /// Calls are so entangled that too many bytes would have to be kept to put them in order.
    TooMuchHeld,

    /// The end is missing; all finish reasons are here.
    MissingEnd,
    /// Something came after the end; it was left out.
    AfterEnd,
    /// A whole body where a stream was asked for, or the other way round.
    OtherDelivery,
    /// An event that the dialect has not, or had not when this was written; it was left out.
    UnknownEvent,
    /// Something of an answer that was not asked for; it was left out.
    ChoiceOutOfRange,
    /// Something of an answer that had ended; it was left out.
    AfterFinish,
    /// A second finish reason; the first counts.
    FinishTwice,
    /// A finish reason that is not known; its note says what it was taken for.
    UnknownFinishReason,
    /// A choice without a finish reason, whole or up to the stream's own end; it was taken for the model's own end.
    MissingFinishReason,
    /// Fewer answers than were asked for.
    FewerChoices,
    /// Blocks or calls whose pieces or numbers are out of order; they were put in order.
    OutOfOrder,
    /// A tool call without an id, or with another call's; it was given one.
    CallIdMade,
    /// More arguments of a tool call than one JSON value; they were left out.
    ExtraArguments,
    /// A part of the answer for which the caller's dialect has no place; it was left out.
    NotCarried,
    /// A count of tokens fell; the former one counts.
    UsageFell,
    /// Counts of tokens that cannot be; they were left out.
    UsageAbsurd,
    /// Usage without the prompt's or the answer's tokens; it was left out.
    UsageIncomplete,
}

impl FaultKind {
    /// The name in traces and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ErrorInside(_) => "error_inside",
            Self::GaveUp => "gave_up",
            Self::BrokeOff => "broke_off",
            Self::NoFinishReason => "no_finish_reason",
            Self::Empty => "empty",
            Self::Html => "html",
            Self::NotJson => "not_json",
            Self::Misshapen => "misshapen",
            Self::CallWithoutName => "call_without_name",
            Self::UnknownCall => "unknown_call",
            Self::TooMuchHeld => "too_much_held",
            Self::MissingEnd => "missing_end",
            Self::AfterEnd => "after_end",
            Self::OtherDelivery => "other_delivery",
            Self::UnknownEvent => "unknown_event",
            Self::ChoiceOutOfRange => "choice_out_of_range",
            Self::AfterFinish => "after_finish",
            Self::FinishTwice => "finish_twice",
            Self::UnknownFinishReason => "unknown_finish_reason",
            Self::MissingFinishReason => "missing_finish_reason",
            Self::FewerChoices => "fewer_choices",
            Self::OutOfOrder => "out_of_order",
            Self::CallIdMade => "call_id_made",
            Self::ExtraArguments => "extra_arguments",
            Self::NotCarried => "not_carried",
            Self::UsageFell => "usage_fell",
            Self::UsageAbsurd => "usage_absurd",
            Self::UsageIncomplete => "usage_incomplete",
        }
    }

    /// What kind of failure that is, where it ends the answer; `None`: it is put up with.
    pub const fn failure(self) -> Option<FailureClass> {
        match self {
            Self::ErrorInside(class) => Some(class),
            Self::GaveUp
            | Self::BrokeOff
            | Self::NoFinishReason
            | Self::Empty
            | Self::Html
            | Self::NotJson
            | Self::Misshapen
            | Self::CallWithoutName
            | Self::UnknownCall
            | Self::TooMuchHeld => Some(FailureClass::ServerError),
            _ => None,
        }
    }
}

/// Faults that were put up with: the first of each kind, so that no answer makes many.
#[derive(Debug, Default)]
pub(super) struct Notes(Vec<ReplyFault>);

impl Notes {
    pub(super) fn add(&mut self, kind: FaultKind, message: impl FnOnce() -> String) {
        if !self.0.iter().any(|note| note.kind == kind) {
            self.0.push(ReplyFault::new(kind, message()));
        }
    }

    pub(super) fn all(&self) -> &[ReplyFault] {
        &self.0
    }
}

/// Reads a JSON object. serde's own words may quote the answer; ours do not.
pub(super) fn object<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, ReplyFault> {
    // To serde a list would do as well.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(no_object(bytes));
    }
    lenient::text_begins();
    // All of it at once is checked faster than each of its strings.
    let read = match std::str::from_utf8(bytes) {
        Ok(text) => serde_json::from_str(text),
        Err(_) => serde_json::from_slice(bytes),
    };
    read.map_err(|error| {
        if lenient::has_too_many_items() {
            let message = format!("its lists have more than {} items", lenient::MOST_ITEMS);
            return ReplyFault::new(FaultKind::TooMuchHeld, message);
        }
        let (kind, what) = match error.classify() {
            Category::Data => (FaultKind::Misshapen, "a field is of another type than the dialect's"),
            Category::Eof => (FaultKind::NotJson, "its JSON breaks off"),
            Category::Syntax | Category::Io => (FaultKind::NotJson, "its JSON is broken"),
        };
        let (line, column) = (error.line(), error.column());
        ReplyFault::new(kind, format!("{what} at line {line} column {column} of {} bytes", bytes.len()))
    })
}

fn no_object(bytes: &[u8]) -> ReplyFault {
    match bytes.trim_ascii_start().first() {
        None => ReplyFault::new(FaultKind::Empty, "there is nothing in it"),
        Some(b'<') => ReplyFault::new(FaultKind::Html, "it is a page of HTML or XML"),
        Some(_) if serde_json::from_slice::<IgnoredAny>(bytes).is_ok() => {
            ReplyFault::new(FaultKind::Misshapen, "its JSON is no object")
        }
        Some(_) => ReplyFault::new(FaultKind::NotJson, format!("{} bytes that are no JSON", bytes.len())),
    }
}

/// The fault of an error that stands where an answer should.
pub(super) fn error_inside(dialect: Dialect, data: &[u8]) -> ReplyFault {
    let failed =
        match serde_json::from_slice(data.get(..data.len().min(MOST_ERROR_BYTES)).unwrap_or_default()) {
            Ok(value) => failure::inside(dialect, &value),
            Err(_) => failure::failure(dialect, 0, data),
        };
    let message = match failed.code {
        Some(code) => format!("{code}: {}", failed.message),
        None => failed.message,
    };
    ReplyFault::new(FaultKind::ErrorInside(failed.class), message)
}
