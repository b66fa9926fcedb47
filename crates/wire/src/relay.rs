//! Calls that are sent on to servers of others, and what comes back: read, edited, put into another dialect.
//! Pure, as all of this room; knows no upstream, no model and no connection.

mod events;
mod request;

pub use events::{EventSplitter, SplitEvent};
pub use request::{Edits, edited, model_named, skim, texts, translated};
