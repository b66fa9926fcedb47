//! Facts about one event of an upstream's answer, for code that passes the event on. Knows no dialect.

/// Facts about an event of an upstream's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventFacts {
    /// The event contains a visible part of the answer: text, reasoning, a tool call or an end.
    pub meaningful: bool,
    /// Generated tokens in the event. Counted if ids accompany the text, otherwise estimated from its bytes.
    pub tokens: u64,
    /// The purpose of the event.
    pub kind: EventKind,
}

/// The purpose of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// A piece of the answer, or the start or end of one.
    Content,
    /// OpenAI's chunk without choices, which only reports usage. A caller that did not request usage does not get it.
    UsageOnly,
    /// The end of the stream.
    End,
    /// A keep-alive.
    Ping,
    /// An unreadable event after a complete answer. It is not part of the answer.
    Broken,
    /// Any other event.
    Other,
}
