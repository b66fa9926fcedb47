//! Text to token ids and back: encoding that keeps message text apart from control tokens, decoding piece by
//! piece across UTF-8 boundaries, and the stop-string matcher.
//! Must not know chat templates, models, or who asked.

mod added;
mod bpe;
mod decoder;
mod direct;
mod encode;
mod error;
mod spans;
mod stop;
mod tokenizer;
mod vocabulary;

pub use decoder::TextDecoder;
pub use encode::Segment;
pub use error::TokenizerError;
pub use stop::{StopMatcher, StopStep};
pub use tokenizer::Tokenizer;
