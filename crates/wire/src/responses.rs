//! OpenAI's Responses API: requests in, answers out, whole and streamed. Knows no store, so callers pass in the history
//! of a call.
//!
//! Sources: <https://platform.openai.com/docs/api-reference/responses>, <https://www.openresponses.org/specification>.

mod answer;
mod echo;
mod gathered;
mod hosted;
mod items;
mod parts;
mod references;
mod request;
mod sealed;
mod state;
mod stream;
mod tools;
mod turn;
mod whole;

pub use references::{item_references, with_items};
pub use state::{ConversationBody, compaction, conversation_body, response_begun, response_id, with_history};
pub use turn::turn_body;

pub(crate) use request::read;
pub(crate) use stream::ResponseStream;
pub(crate) use whole::ResponseWhole;
