//! Anthropic's dialect: messages in, answers out, and batches of messages.

mod batches;
pub(crate) mod messages;
mod stream;
mod whole;

pub use batches::message_batch;
pub use messages::TOOL_ERROR;

pub(crate) use stream::AnthropicStream;
pub(crate) use whole::AnthropicWhole;
