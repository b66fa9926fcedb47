//! Redaction of what callers send, and the way back: each match in a call becomes a placeholder, and an answer gets the
//! values for its placeholders. The values are in the memory of one call alone. Must not know dialects.

mod checks;
mod input_redactions;
pub(crate) mod placeholder_map;
mod placeholder_reader;
mod request_redactor;

pub(crate) use checks::check_input_redaction;
pub use input_redactions::InputRedactions;
pub use placeholder_map::PlaceholderMap;
pub use placeholder_reader::{PlaceholderReader, RestoredForm};
pub use request_redactor::RequestRedactor;
