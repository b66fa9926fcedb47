//! Answers as this gateway gives them: long ones and streams come out of a delivery buffer.

use crate::Delivery;

/// What goes back to a caller.
pub type Answer = headrace_call_api::Answer<Delivery>;
/// Its body.
pub type AnswerBody = headrace_call_api::AnswerBody<Delivery>;
