//! The faults of an upstream's answer, each with a name. Some end the answer. Others are tolerated and noted.

use std::fmt;

use headrace_domain::Dialect;
use serde::de::{Deserialize, IgnoredAny};
use serde_json::error::Category;

use crate::failure;
use crate::failure::{FailureClass, MOST_ERROR_BYTES};

use super::lenient;

/// A fault of an upstream's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyFault {
    /// The kind of the fault.
    pub kind: FaultKind,
    /// Details for traces and operators. Contains no text of the answer.
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

/// The kind of a fault. Kinds up to [`Self::TooMuchHeld`] end the answer. The others are noted, and the answer
/// continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// An error in place of an answer, under a status that reported none.
    ErrorInside(FailureClass),
    /// A finish reason says that the upstream gave up.
    GaveUp,
    /// The transport ended before any finish reason.
    BrokeOff,
    /// The stream marked its end, but no choice had ended.
    NoFinishReason,
    /// An empty body or stream.
    Empty,
    /// A page of HTML.
    Html,
    /// Not JSON.
    NotJson,
    /// JSON of another shape than the dialect's.
    Misshapen,
    /// A tool call whose name never came.
    CallWithoutName,
    /// Arguments of a tool call that never began.
    UnknownCall,
    /// The reader would have to keep more than a limit allows: waiting pieces of tool calls, names, a signature, or
    /// list items.
    TooMuchHeld,

    /// The end marker is missing, but all finish reasons came.
    MissingEnd,
    /// Data after the end. It was left out.
    AfterEnd,
    /// A whole body in place of a requested stream, or a stream in place of a body.
    OtherDelivery,
    /// An event that the dialect does not have, or did not have when this code was written. It was left out.
    UnknownEvent,
    /// A part of a choice that was not requested. It was left out.
    ChoiceOutOfRange,
    /// A part of a choice that had ended. It was left out.
    AfterFinish,
    /// A second finish reason. The first one counts.
    FinishTwice,
    /// An unknown finish reason. The nearest known one counts, or `length` if none is near.
    UnknownFinishReason,
    /// A choice without a finish reason, in a whole body or at the end marker of a stream. It counts as the model's own
    /// stop.
    MissingFinishReason,
    /// Fewer choices than requested.
    FewerChoices,
    /// Blocks or calls whose pieces or indexes are out of order. They were put in order.
    OutOfOrder,
    /// A tool call without an id, or with the id of another call. It received a generated id.
    CallIdMade,
    /// More arguments of a tool call than one JSON value. They were left out.
    ExtraArguments,
    /// A part of the answer that the caller's dialect cannot carry. It was left out.
    NotCarried,
    /// A token count that fell. The earlier value counts.
    UsageFell,
    /// Impossible token counts. They were left out.
    UsageAbsurd,
    /// Usage without the prompt's or the answer's tokens. Its valid counts are still used.
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

    /// The class of the failure if the fault ends the answer. `None` if the fault is tolerated.
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

/// Tolerated faults. Keeps only the first of each kind, so that an answer cannot add many.
#[derive(Debug, Default)]
pub(super) struct FaultNotes(Vec<ReplyFault>);

impl FaultNotes {
    pub(super) fn add(&mut self, kind: FaultKind, message: impl FnOnce() -> String) {
        if !self.0.iter().any(|note| note.kind == kind) {
            self.0.push(ReplyFault::new(kind, message()));
        }
    }

    pub(super) fn all(&self) -> &[ReplyFault] {
        &self.0
    }
}

/// Parses a JSON object. Error messages never quote the answer, which serde's own messages may do.
pub(super) fn object<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, ReplyFault> {
    // serde would accept a list as well.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(no_object(bytes));
    }
    lenient::text_begins();
    // One UTF-8 check of the whole text is faster than a check of each string.
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

/// Returns the fault for an error in place of an answer.
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
