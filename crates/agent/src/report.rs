//! What a round came to, and what tools returned. Must not know what follows from it.

use headrace_domain::{NanoDollars, RequestId, Usage};

/// The key of a call of a tool. A driver starts each key at most once, also after retries, losses and races.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallKey {
    /// The request.
    pub request: RequestId,
    /// The number of the round, from 0 on.
    pub round: u32,
    /// The index of the call among those of its round.
    pub index: u32,
}

/// Who runs a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallOwner {
    /// This server.
    Server,
    /// The client, which gets the call as the end of the answer.
    Client,
}

/// A call that the model made in a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedCall {
    /// Who runs it.
    pub owner: CallOwner,
    /// The name of the tool, as the model calls it.
    pub name: String,
    /// The arguments as canonical JSON, so that equal arguments are equal texts.
    pub arguments: String,
}

/// How a round ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RoundFinish {
    /// The model ended it, with or without calls.
    Stopped,
    /// The bound of tokens. Calls may be cut off, so none of them runs.
    Length,
    /// A content rule cut it off. None of its calls runs.
    ContentFilter,
    /// It failed, and nothing replaced it.
    Failed,
}

/// What a round came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoundReport {
    /// How it ended.
    pub finish: RoundFinish,
    /// The calls of the model, in order.
    pub calls: Vec<RequestedCall>,
    /// What it used.
    pub usage: Usage,
    /// What it cost.
    pub cost: NanoDollars,
}

/// What a tool returned. A tool that failed, or whose fate is unknown, has a result that says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolReport {
    /// The call.
    pub key: CallKey,
    /// Bytes of its result, as the model reads it.
    pub bytes: u64,
    /// A hash of the result. Equal results have equal hashes.
    pub result_hash: [u8; 32],
}
