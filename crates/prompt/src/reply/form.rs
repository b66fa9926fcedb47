//! How to read the answers to a call: the model's style and the tools that may be called. Must not know the readers.

use std::sync::Arc;

use crate::family::ReplyStyle;
use crate::offered::OfferedTools;

/// How to read the answers to a call.
#[derive(Debug, Clone, Default)]
pub struct ReplyForm {
    /// The way in which the model writes its replies.
    pub style: ReplyStyle,
    /// Marks that decoded text contains so that the parser can read them. The parser removes those without a meaning at
    /// their position.
    pub hidden: Arc<[String]>,
    /// Whether the prompt ends inside a reasoning block.
    pub thinking: bool,
    /// The tools that may be called. If there are none, text that looks like a call is text.
    pub offered: Arc<OfferedTools>,
}
