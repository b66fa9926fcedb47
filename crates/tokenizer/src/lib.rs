//! Text to token ids and back: encoding that keeps message text apart from control tokens, incremental decoding across
//! UTF-8 boundaries, and the stop-string matcher. Must not know chat templates, models or callers.

mod added;
mod bounds;
mod bpe;
mod decoder;
mod direct;
mod encode;
mod error;
mod pieces;
mod spans;
mod stop;
mod tokenizer;
mod vocabulary;
mod wordpiece;

pub use bounds::Bounds;
pub use decoder::TextDecoder;
pub use encode::Segment;
pub use error::TokenizerError;
pub use stop::{StopMatcher, StopStep};
pub use tokenizer::Tokenizer;
