//! Chat templates, rendered as Hugging Face renders them and with message text kept apart from the template's own;
//! and parsing the reply back into text and tool calls, one state machine per family of models.
//! Must not know HTTP, keys, engines or what a token costs.

mod environment;
mod error;
mod hermes;
mod json;
mod mask;
mod offered;
mod places;
mod reply;
mod shown;
mod source;
mod strings;
mod template;
mod values;

pub use error::TemplateError;
pub use offered::{CallFault, OfferedTools};
pub use places::{Part, Place};
pub use reply::{CallIds, ReplyFamily, ReplyParser};
pub use template::{ChatTemplate, RenderOptions, Rendered, SpecialTokenTexts, TemplateLimits};
pub use values::texts_of;
