//! What a call of the Responses API says beside what every call says: what its answer repeats, what is kept of it, what it goes on
//! from. Knows no store and no JSON but what is repeated word for word.

/// See the top of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResponseAsk {
    /// Fields that the answer repeats, as JSON without braces, each with a comma behind it: `"instructions":null,`…
    pub echo: String,
    /// The input as it was sent: a JSON string or a list of items. Kept only where something may be stored.
    pub input: String,
    /// Whether the answer is to be stored.
    pub store: bool,
    /// Whether it is worked on while nobody waits for it.
    pub background: bool,
    /// The response that this one goes on from.
    pub previous: Option<String>,
    /// The conversation that it belongs to.
    pub conversation: Option<String>,
    /// Whether the oldest turns are left out where a conversation does not fit (`truncation: "auto"`).
    pub cuts: bool,
    /// Whether thoughts come sealed as well, to be given back in the next turn by a caller for whom nothing is stored.
    pub sealed_reasoning: bool,
    /// Whether thoughts are shown as a summary (`reasoning.summary`).
    pub reasoning_summary: bool,
    /// What kinds of tools were left out, as nobody here runs them.
    pub skipped_tools: Vec<String>,
}
