//! The gateway's answer types. Long and streamed bodies come out of a delivery buffer.

use crate::Delivery;

/// The answer to a caller.
pub type Answer = headrace_call_api::Answer<Delivery>;
/// The body of an [`Answer`].
pub type AnswerBody = headrace_call_api::AnswerBody<Delivery>;
