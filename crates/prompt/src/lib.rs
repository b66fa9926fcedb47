//! Chat templates, rendered as Hugging Face renders them, with message text kept apart from the template's own text.
//! Also parses replies back into text and tool calls, with one state machine per family of models. Must not know HTTP,
//! keys, engines or token prices.

mod bounds;
mod builtins;
mod coerce;
mod environment;
mod error;
mod family;
mod fields;
mod filters;
mod grammar;
mod json;
mod marks;
mod mask;
mod offered;
mod options;
mod outline;
mod part;
mod percent;
mod places;
mod pretty;
mod python;
mod rendered;
mod reply;
mod shown;
mod simple;
mod source;
mod strings;
mod template;
mod thought;
mod values;
mod wrap;

pub use bounds::TemplateLimits;
pub use error::TemplateError;
pub use family::{ReplyFamily, ReplyStyle};
pub use grammar::{TEXT_GRAMMAR, TEXT_PATTERN};
pub use offered::{CallFault, OfferedTools};
pub use options::RenderOptions;
pub use part::PromptPart;
pub use places::PartRange;
pub use rendered::RenderedPrompt;
pub use reply::{CallIds, ReplyForm, ReplyParser};
pub use template::{ChatTemplate, SpecialTokenTexts, TemplateSwitches};
pub use thought::{ReasoningMarks, ThoughtBounds};
pub use values::{texts_beside_contents, texts_of};
