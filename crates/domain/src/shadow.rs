//! What a trace keeps about a shadow copy: the original call, and how the two answers compare. Figures and digests, no
//! word of a prompt or an answer. Must not know how a copy is made.

use serde::{Deserialize, Serialize};

use crate::{NanoDollars, RequestId};

/// The original of a shadow copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowOf {
    /// Id of the caller's call.
    pub call: RequestId,
    /// The model that answered the caller's call.
    pub model: String,
    /// The figures of the caller's call, for comparison with the copy's.
    pub went: ShadowedCall,
    /// How the answers compare. `None` if no comparison was wanted, if an answer was too long to compare, or if the
    /// copy was not answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compared: Option<ShadowComparison>,
}

/// The figures of a call that was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ShadowedCall {
    /// Nanoseconds from the complete request to its first token.
    pub first_token_ns: Option<u64>,
    /// Nanoseconds that the server took.
    pub server_ns: u64,
    /// Tokens of its answer.
    pub output_tokens: u64,
    /// The cost for the caller.
    pub cost: NanoDollars,
}

/// How two answers compare, the caller's first and the copy's second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShadowComparison {
    /// Whether the two answers are identical, including tool calls.
    pub same: bool,
    /// Length of the common beginning, in thousandths of the longer answer's characters.
    pub common_permille: u32,
    /// Whether every choice ended for the same reason.
    pub same_finish: bool,
    /// Characters of text in each answer, without reasoning.
    pub characters: [u64; 2],
    /// Tool calls in each answer.
    pub tool_calls: [u32; 2],
    /// Whether both call the same tools in the same order.
    pub same_tools: bool,
    /// Whether both also pass the same arguments, compared as JSON.
    pub same_arguments: bool,
    /// A keyed hash of each whole answer. The key prevents guessing the answer by trying texts.
    pub digests: [String; 2],
}
