//! OpenAI's Responses API: requests in, answers out, whole and streamed. Knows no store: what an answer goes on from is given to it.
//!
//! Sources: <https://platform.openai.com/docs/api-reference/responses>, <https://www.openresponses.org/specification>.

mod answer;
mod echo;
mod gathered;
mod items;
mod parts;
mod request;
mod sealed;
mod stream;
mod tools;
mod whole;

pub(crate) use request::read;
pub(crate) use stream::ResponseStream;
pub(crate) use whole::ResponseWhole;
