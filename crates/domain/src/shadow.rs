//! What a trace keeps of a shadow copy: whose copy it is, and how the two answers compare. Figures and digests; no word of a
//! prompt or an answer. Must not know how a copy is made.

use serde::{Deserialize, Serialize};

use crate::{NanoDollars, RequestId};

/// Whose copy a call is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowOf {
    /// The call that a caller made.
    pub call: RequestId,
    /// The model that answered it.
    pub model: String,
    /// How that call went: what its copy is measured against.
    pub went: ShadowedCall,
    /// How the answers compare; `None`: they were not to be compared, one was too long for that, or the copy was not answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compared: Option<Compared>,
}

/// The figures of a call that was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ShadowedCall {
    /// Nanoseconds from when the request was whole to its first token.
    pub first_token_ns: Option<u64>,
    /// Nanoseconds that it took the server.
    pub server_ns: u64,
    /// Tokens of its answer.
    pub output_tokens: u64,
    /// What it cost its caller.
    pub cost: NanoDollars,
}

/// How two answers compare, the caller's first and the copy's second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compared {
    /// Everything that they say is the same, tool calls included.
    pub same: bool,
    /// Thousandths of the longer one's characters that both begin with.
    pub common_permille: u32,
    /// Every choice ended for the same reason.
    pub same_finish: bool,
    /// Characters of text, thoughts left out.
    pub characters: [u64; 2],
    /// Calls of tools.
    pub tool_calls: [u32; 2],
    /// The same tools in the same order.
    pub same_tools: bool,
    /// The same tools with the same arguments, as JSON.
    pub same_arguments: bool,
    /// Of all that they say: a keyed hash, so that nobody can try out what it stands for.
    pub digests: [String; 2],
}
