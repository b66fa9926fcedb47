//! The request to say in an answer why a cached prefix was missed. Knows no dialect.

/// A request to say in the answer why a cached prefix was missed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CacheComparison {
    /// Id of the earlier answer that the diagnosis compares with. `None` for the first call of a conversation.
    pub previous_answer: Option<String>,
}
