//! The loop of a call that runs tools on the server, as a state machine: what a round came to goes in, and what to do next
//! comes out. It does no I/O, and time is an argument. It knows neither prompts nor models, how a tool runs, or how money
//! is held.
//!
//! A driver asks [`AgentLoop::first`] for the first round and reports each round ([`AgentLoop::round_ended`]) and the
//! results of its tools ([`AgentLoop::tools_ended`]). Each report returns one [`LoopStep`]: run these tools, start another
//! round, or end. If limits or money refuse a round, the driver reports that, too ([`AgentLoop::round_refused`]).
//!
//! A bound that is reached leads to a *closing* round, in which the model must not call tools. It answers with what it
//! knows. If even that is refused, the answer is incomplete.

mod machine;
mod report;
mod rules;
mod step;

pub use machine::{AgentLoop, OutOfTurn};
pub use report::{CallKey, CallOwner, RequestedCall, RoundFinish, RoundReport, ToolReport};
pub use rules::{FirstChoice, LoopLimits, LoopRules};
pub use step::{CloseReason, EndReason, LoopEnd, LoopStep, NextRound, PlannedCall, RoundChoice, ToolRun};
