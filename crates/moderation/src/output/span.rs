//! A match of a rule in a text. Must not know how it was found.

use crate::pii::PiiEntity;

/// The bytes of a text that a rule matched. Ordered by place, and then by the rule's position in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MatchSpan {
    /// Offset of the first byte.
    pub(crate) start: usize,
    /// The index of the rule.
    pub(crate) rule: usize,
    /// Offset after the last byte.
    pub(crate) end: usize,
    /// What was recognised, for rules of kind `pii`.
    pub(crate) entity: Option<PiiEntity>,
}
