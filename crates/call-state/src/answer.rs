//! The gateway's answer types, and what the answers to all requests have in common. Long and streamed bodies come out
//! of a delivery buffer.

use std::borrow::Borrow;

use bytes::Bytes;
use headrace_call_api::MemoryReservation;
use headrace_domain::{Dialect, RequestId};

use crate::delivery::Delivery;

/// The answer to a caller.
pub type Answer = headrace_call_api::CallAnswer<Delivery>;
/// The body of an [`Answer`].
pub type AnswerBody = headrace_call_api::AnswerBody<Delivery>;

/// Bytes that an answer takes besides its body: records, ids, its head.
pub const KEPT_ANSWER_BYTES: u64 = 16 << 10;

/// The id and the dialect of a request, as its answer names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnsweredRequest {
    /// The request's id.
    pub id: RequestId,
    /// The dialect of its caller.
    pub dialect: Dialect,
}

impl AnsweredRequest {
    /// The request's id as headers: `x-request-id`, and for Anthropic's dialect also `request-id`, which its SDKs
    /// read.
    pub fn id_headers(self) -> impl Iterator<Item = (&'static str, String)> {
        let Self { id, dialect } = self;
        let own = (dialect == Dialect::Anthropic).then_some("request-id");
        ["x-request-id"].into_iter().chain(own).map(move |name| (name, id.to_string()))
    }
}

/// A body that keeps its memory reserved.
struct ReservedBody<M> {
    body: Bytes,
    _memory: M,
}

impl<M> AsRef<[u8]> for ReservedBody<M> {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// Returns the same answer, with memory that stays reserved until its body is written. Only a whole body keeps the
/// memory.
pub fn keep_memory(memory: impl Borrow<MemoryReservation> + Send + Sync + 'static, answer: Answer) -> Answer {
    let Answer { status, content_type, headers, body } = answer;
    let body = match body {
        AnswerBody::Whole(body) => {
            // This is less than was reserved for the read, so it is never refused.
            let _ = memory.borrow().resize((body.len() as u64).saturating_add(KEPT_ANSWER_BYTES));
            AnswerBody::Whole(Bytes::from_owner(ReservedBody { body, _memory: memory }))
        }
        other => other,
    };
    Answer { status, content_type, headers, body }
}
