//! What a loop may do. Must not know what it did.

use std::time::Duration;

use headrace_domain::NanoDollars;

/// The bounds of one loop. Reaching one leads to a closing round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopLimits {
    /// The most rounds, with the closing one. 0 counts as 1.
    pub rounds: u32,
    /// The most tool calls that run on the server. Further ones are left out.
    pub tool_calls: u32,
    /// How long the loop may take until its closing round begins.
    pub wall_time: Duration,
    /// The most bytes of all results together.
    pub result_bytes: u64,
    /// The most that the rounds may cost before the closing one. `None` for no such bound.
    pub cost: Option<NanoDollars>,
    /// The count at which the model is notified that it repeats a call with the same result. 0 for never.
    pub repeats_noted: u32,
    /// The count of such calls that leads to the closing round. 0 for never.
    pub repeats_closing: u32,
}

impl Default for LoopLimits {
    fn default() -> Self {
        Self {
            rounds: 10,
            tool_calls: 64,
            wall_time: Duration::from_secs(300),
            result_bytes: 1 << 20,
            cost: None,
            repeats_noted: 3,
            repeats_closing: 5,
        }
    }
}

/// The tool choice that the caller asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FirstChoice {
    /// The model decides, in every round.
    #[default]
    Auto,
    /// The first round must call a tool, or a named one. Later rounds are free, or the loop would never end.
    Forced,
    /// The model must not call tools.
    None,
}

/// The rules of one loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoopRules {
    /// Its bounds.
    pub limits: LoopLimits,
    /// The caller's tool choice.
    pub choice: FirstChoice,
    /// Whether a round may have at most one call (`parallel_tool_calls: false`). Further calls of a round are left out.
    pub one_call: bool,
}
