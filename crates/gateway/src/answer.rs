//! The gateway's answer types. Long and streamed bodies come out of a delivery buffer.

use crate::Delivery;

/// The answer to a caller.
pub type Answer = headrace_call_api::CallAnswer<Delivery>;
/// The body of an [`CallAnswer`].
pub type AnswerBody = headrace_call_api::AnswerBody<Delivery>;
