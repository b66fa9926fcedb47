//! JSON that is read from untrusted text and written without a tree. Knows no dialect.

pub mod canonical;
pub(crate) mod node;
pub mod object;
mod reader;
pub mod writer;

pub use reader::{JsonReader, ValueKind, plain_run};
