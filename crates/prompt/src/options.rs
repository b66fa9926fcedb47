//! How a conversation is to be rendered.
//! Must not know templates.

use headrace_domain::{ReasoningWish, UnixNanos};

/// How to render.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenderOptions<'w> {
    /// End with the beginning of an assistant's message.
    pub add_generation_prompt: bool,
    /// What `strftime_now` shows, as UTC.
    pub now: UnixNanos,
    /// How much the model is to think, as far as the template has switches for that.
    pub reasoning: Option<&'w ReasoningWish>,
}
