//! What one event of an upstream's answer is, for whoever passes it on. Knows no dialect.

/// What an event of an upstream's answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventFacts {
    /// A client would see something of the answer in it: text, reasoning, a tool call, an end.
    pub meaningful: bool,
    /// Generated tokens that it shows: counted where ids stand beside the text, else estimated from its bytes.
    pub tokens: u64,
    /// What it is there for.
    pub kind: EventKind,
}

/// What an event is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// A piece of the answer, or what opens or closes one.
    Content,
    /// OpenAI's chunk without choices, which exists only because usage was asked for: nothing for a caller who did not.
    UsageOnly,
    /// The end of the stream.
    End,
    /// It keeps the connection alive.
    Ping,
    /// It cannot be read, and the answer was whole before it: no part of the answer.
    Broken,
    /// None of these.
    Other,
}
