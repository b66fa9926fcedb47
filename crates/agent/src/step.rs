//! What a driver is to do next. Must not know why the machine decides so.

use crate::report::CallKey;

/// The next step of a loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoopStep {
    /// Run these tools beside each other, then report all of their results.
    Run(ToolRun),
    /// Start another round.
    Round(NextRound),
    /// The loop is over.
    End(LoopEnd),
}

/// Tools to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolRun {
    /// The calls, in the order in which the model made them. At least one.
    pub calls: Vec<PlannedCall>,
    /// Bytes that all of their results together may have. Longer results are cut.
    pub bytes_left: u64,
    /// When they must be over, in nanoseconds of the driver's monotonic clock.
    pub deadline_ns: u64,
}

/// A call to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedCall {
    /// Its key, which no other step has.
    pub key: CallKey,
    /// The name of the tool.
    pub name: String,
    /// The arguments.
    pub arguments: String,
}

/// A round to start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NextRound {
    /// Its number, from 0 on.
    pub round: u32,
    /// What the model may call in it.
    pub choice: RoundChoice,
    /// Why it is the last one. `None` for a usual round.
    pub closing: Option<CloseReason>,
    /// Calls of the round before that do not run. Each of them needs a result that says so.
    pub skipped: Vec<CallKey>,
    /// Calls that repeated an earlier one with the same result. Their results should tell the model.
    pub repeated: Vec<CallKey>,
}

/// What a model may call in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RoundChoice {
    /// What the caller asked for. Only the first round has this.
    AsAsked,
    /// Any tool, or none.
    #[default]
    Auto,
    /// Nothing: a grammar forbids calls.
    None,
}

/// Why a loop closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// The most rounds.
    Rounds,
    /// The most tool calls.
    ToolCalls,
    /// The wall time.
    WallTime,
    /// The bytes of results.
    ResultBytes,
    /// The cost of the rounds.
    Cost,
    /// The same call with the same result, again and again.
    Repetition,
    /// Limits or money refused a usual round.
    Refused,
}

impl CloseReason {
    /// Returns the name for traces and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rounds => "rounds",
            Self::ToolCalls => "tool_calls",
            Self::WallTime => "wall_time",
            Self::ResultBytes => "result_bytes",
            Self::Cost => "cost",
            Self::Repetition => "repetition",
            Self::Refused => "refused",
        }
    }
}

/// The end of a loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopEnd {
    /// Why it ended.
    pub reason: EndReason,
    /// Calls of the server in the last round that do not run. Each of them needs a result that says so if the answer has
    /// it.
    pub skipped: Vec<CallKey>,
}

/// Why a loop ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndReason {
    /// The model answered without calls.
    Answered,
    /// The closing round answered.
    Closed(CloseReason),
    /// The answer ends with these calls, which the client runs.
    ClientCalls(Vec<CallKey>),
    /// The bound of tokens ended a round.
    Length,
    /// A content rule ended a round.
    ContentFilter,
    /// A round failed.
    Failed,
    /// Not even the closing round was allowed. The answer is incomplete.
    Refused,
}
