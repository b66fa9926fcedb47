//! Chat templates, rendered as Hugging Face renders them and with message text kept apart from the template's own;
//! and parsing the reply back into text and tool calls, one state machine per family of models.
//! Must not know HTTP, keys, engines or what a token costs.

mod bounds;
#[allow(dead_code, reason = "values are read by the parsers that follow")]
mod coerce;
mod environment;
mod error;
#[allow(dead_code, reason = "rows are read by the parsers that follow")]
mod family;
mod filters;
mod grammar;
mod hermes;
mod json;
mod mask;
mod offered;
mod part;
mod percent;
mod places;
#[allow(dead_code, reason = "literals are read by the parsers that follow")]
mod python;
mod rendered;
mod reply;
mod shown;
mod source;
mod strings;
mod template;
mod values;
mod wrap;

pub use bounds::TemplateLimits;
pub use error::TemplateError;
pub use family::ReplyFamily;
pub use offered::{CallFault, OfferedTools};
pub use part::Part;
pub use places::Place;
pub use rendered::Rendered;
pub use reply::{CallIds, ReplyParser};
pub use template::{ChatTemplate, RenderOptions, SpecialTokenTexts};
pub use values::texts_of;
