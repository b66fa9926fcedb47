//! The protocol between a gateway and an engine on another host: tickets, jobs and events as bytes, a worker's
//! description of itself, and the worker's endpoint. Must not know an HTTP library, callers' keys, money or how an
//! engine computes.

mod about;
mod ask;
mod audit;
mod endpoint;
mod frame;
mod framing;
mod job_record;
mod limits;
mod offer;
mod refusal;
mod report;
mod stream;
mod ticket;
mod words;

pub use about::{AboutModel, WorkerInfo};
pub use ask::{AskFault, ExpectedModel, HeldTo, JobRequest};
pub use audit::{FrameMeaning, JobAudit, WorkerFault};
pub use endpoint::WorkerEndpoint;
pub use frame::{ChoiceEnd, JobFailure, WorkerFrame};
pub use framing::{FrameFault, FrameReader, put_frame};
pub use limits::{
    ALIVE_PERIOD, LEAST_SECRET_BYTES, MAX_ABOUT_BYTES, MAX_REFUSAL_BYTES, MAX_WORDS_BYTES, PROTOCOL, SILENCE,
};
pub use offer::{Compile, OfferedModel};
pub use refusal::JobRefusal;
pub use report::{ReportExtras, WorkerReport};
pub use ticket::{ProcessId, SecretFault, TICKET_SCHEME, TicketFault, TicketVerifier, WorkerSecret};
pub use words::{PackedAssets, WordsFault};

/// The path for jobs.
pub const JOBS_PATH: &str = "/internal/v1/jobs";
/// The path of a worker's description of itself.
pub const ABOUT_PATH: &str = "/internal/v1/worker";
/// The path of a model's tokenizer assets, before their digest.
pub const WORDS_PATH: &str = "/internal/v1/words/";
/// The content type of jobs and events.
pub const CONTENT_TYPE: &str = "application/vnd.headrace.worker";
