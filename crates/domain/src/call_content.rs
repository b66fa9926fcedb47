//! Request and answer of one call as they travelled, and the trait that receives them. They are recorded only for
//! projects whose policy says so.

use bytes::Bytes;

use crate::{EndUser, Endpoint, KeyId, OrgId, ProjectId, RecordPolicy, RequestId, UnixNanos};

/// Request and answer of a call that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallContent {
    /// The id of the request.
    pub id: RequestId,
    /// When the request's first byte arrived.
    pub started: UnixNanos,
    /// The organisation that pays.
    pub org: Option<OrgId>,
    /// The project.
    pub project: ProjectId,
    /// The key.
    pub key: Option<KeyId>,
    /// The end user that the caller named.
    pub user: Option<EndUser>,
    /// The endpoint, which determines the form of both texts.
    pub endpoint: Endpoint,
    /// The model that handled the request.
    pub model: Option<String>,
    /// Whether the answer streamed.
    pub stream: bool,
    /// The policy in force when the request arrived.
    pub policy: RecordPolicy,
    /// The request's body.
    pub request: Bytes,
    /// The body was longer than the bound, and its end is missing.
    pub request_cut: bool,
    /// What was sent of the answer.
    pub answer: Bytes,
    /// The answer was longer than the bound, and its end is missing.
    pub answer_cut: bool,
}

/// Receives requests and answers, out of band of the calls.
pub trait ContentSink: Send + Sync {
    /// Maximum bytes of a request, and of an answer, that are recorded.
    fn max_bytes(&self) -> usize;

    /// Takes the content of a call. Never blocks: what does not fit into the queue is dropped and counted.
    fn record(&self, content: Box<CallContent>);

    /// Counts a content that could not be collected, because the call's memory was used up.
    fn count_lost(&self);
}
