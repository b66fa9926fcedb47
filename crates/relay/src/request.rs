//! The request side: what the gateway must know of a relayed body, and the body that it sends.
//! Must not know the answer.

mod as_chat;
#[cfg(test)]
mod as_chat_tests;
mod beginning;
#[cfg(test)]
mod blank_tests;
mod body_facts;
mod body_fields;
mod body_strings;
mod chat_parts;
#[cfg(test)]
mod client_tests;
mod edit;
#[cfg(test)]
mod edit_tests;
mod fields;
mod guard;
#[cfg(test)]
mod guard_tests;
mod look;
mod media;
mod neutral_request;
mod opening;
mod ours;
mod read_chat;
mod read_chat_messages;
mod read_messages;
mod read_messages_turns;
mod reasoning;
#[cfg(test)]
mod refusal_tests;
mod requested_format;
mod resume;
mod skim;
#[cfg(test)]
mod skim_tests;
mod texts;
#[cfg(test)]
mod texts_tests;
mod translate;
#[cfg(test)]
mod translate_tests;
mod walk;
mod write_chat;
mod write_messages;

pub use as_chat::as_chat;
pub use beginning::beginning;
pub use body_strings::{BodyString, BodyStringForm, body_strings, with_strings};
pub use edit::{BodyEdits, edited};
pub(crate) use fields::{ObjectFields, items};
pub use fields::{model_named, place_of};
pub(crate) use guard::DECIDED_HERE;
pub use guard::{ALLOWABLE, GEO, TIER, extras_of_betas};
pub use media::first_media;
pub use opening::{opening, user_named};
pub use ours::{ResponseState, response_state};
pub use reasoning::reasoning_asked;
pub use requested_format::form_asked;
pub use resume::{SoFar, can_resume, resumed};
pub use skim::{skim, skim_question};
pub use texts::texts;
pub use translate::translated;
