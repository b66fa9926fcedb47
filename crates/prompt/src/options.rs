//! Options for rendering a conversation. Must not know templates.

use headrace_domain::{ReasoningOptions, UnixNanos};

/// Options for one rendering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenderOptions<'w> {
    /// Whether to end the prompt with the beginning of an assistant's message.
    pub add_generation_prompt: bool,
    /// The time that `strftime_now` shows, as UTC.
    pub now: UnixNanos,
    /// The requested amount of reasoning. It has an effect only if the template has switches for it.
    pub reasoning: Option<&'w ReasoningOptions>,
}
