//! The client: pooled connections, retries before the first byte, streamed answers, conversations and timing. Speaks
//! OpenAI's chat dialect with Headrace's additions, also to other servers. Knows no terminal and no server crate.

mod answer;
mod batches;
pub mod chat_bodies;
mod client;
mod connect;
mod conversation;
mod error;
mod explain;
mod form;
mod plain;
mod probe;
mod retry;
mod sent;
mod stream;
mod tls;
mod traced;

pub use answer::{Answer, AssembledToolCall, ChatEvent, MAX_ARRIVALS, Timing};
pub use batches::{Batch, BatchCounts, BatchFault, BatchPage, FileContent, NewBatch};
pub use chat_bodies::{
    ChatMessage, ChatRequest, FunctionBody, HeadraceOptions, StreamOptions, ToolCallBody, ToolCallDelta,
    UsageBody,
};
pub use client::{Client, ClientConfig, ModelInfo, trusted};
pub use connect::ConnectTimes;
pub use conversation::ConversationLog;
pub use error::{ApiError, ClientError, causes};
pub use explain::{Explain, StageTime};
pub use headrace_wire::sse::SseReader;
pub use probe::Probe;
pub use retry::RetryPolicy;
pub use stream::ChatStream;
pub use tls::count_authorities;
