//! The request's side: what must be known of a body that is sent on, and the body that is sent.
//! Must not know what comes back.

mod edit;
#[cfg(test)]
mod edit_tests;
mod fields;
mod look;
mod skim;
mod texts;
mod translate;

pub use edit::{Edits, edited};
pub use fields::model_named;
pub use skim::skim;
pub use texts::texts;
pub use translate::translated;
