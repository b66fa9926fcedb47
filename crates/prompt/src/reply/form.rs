//! How the answers to a call are to be read: what the model writes, and what may be called. Must not know how it is done.

use std::sync::Arc;

use crate::family::ReplyStyle;
use crate::offered::OfferedTools;

/// How the answers to a call are to be read.
#[derive(Debug, Clone, Default)]
pub struct ReplyForm {
    /// How the model writes them.
    pub style: ReplyStyle,
    /// Marks that stand in the text because somebody may read them, and are left out of it where nobody does.
    pub hidden: Arc<[String]>,
    /// The prompt ends within a thought.
    pub thinking: bool,
    /// The tools that may be called. Where there are none, what looks like a call is text.
    pub offered: Arc<OfferedTools>,
}
