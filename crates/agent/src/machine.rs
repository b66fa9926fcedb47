//! The state machine of a loop.

use std::collections::BTreeMap;
use std::fmt;

use headrace_domain::{NanoDollars, RequestId, Usage};

use crate::report::{CallKey, CallOwner, RequestedCall, RoundFinish, RoundReport, ToolReport};
use crate::rules::{FirstChoice, LoopRules};
use crate::step::{CloseReason, EndReason, LoopEnd, LoopStep, NextRound, PlannedCall, RoundChoice, ToolRun};

/// A report that the state does not allow: a driver's fault. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfTurn {
    /// What the loop waits for.
    pub waits_for: &'static str,
}

impl fmt::Display for OutOfTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the report is out of turn: the loop waits for {}", self.waits_for)
    }
}

impl std::error::Error for OutOfTurn {}

/// What the loop waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum LoopPhase {
    /// The start of the first round.
    First,
    /// The end of a round, which may be closing.
    Round {
        closing: Option<CloseReason>,
    },
    /// The results of tools. The client's calls of the same round follow.
    Tools {
        running: Vec<RunningCall>,
        client: Vec<CallKey>,
        skipped: Vec<CallKey>,
    },
    Over,
}

/// A call that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RunningCall {
    key: CallKey,
    /// The name and the arguments.
    call: (String, String),
}

/// The last result of a call, and how often in a row the call had it.
#[derive(Debug, Clone, Copy)]
struct SeenResult {
    hash: [u8; 32],
    count: u32,
}

/// The loop of one call. See the crate's documentation.
#[derive(Debug, Clone)]
pub struct AgentLoop {
    request: RequestId,
    rules: LoopRules,
    start_ns: u64,
    phase: LoopPhase,
    /// The number of the current round.
    round: u32,
    usage: Usage,
    cost: NanoDollars,
    result_bytes: u64,
    tool_calls: u32,
    seen: BTreeMap<(String, String), SeenResult>,
}

impl AgentLoop {
    /// Creates the loop of a request that starts at `now_ns`, in nanoseconds of the driver's monotonic clock.
    pub fn new(request: RequestId, rules: LoopRules, now_ns: u64) -> Self {
        Self {
            request,
            rules,
            start_ns: now_ns,
            phase: LoopPhase::First,
            round: 0,
            usage: Usage::default(),
            cost: NanoDollars::ZERO,
            result_bytes: 0,
            tool_calls: 0,
            seen: BTreeMap::new(),
        }
    }

    /// Begins the first round. It is closing if no further one is allowed.
    ///
    /// # Errors
    /// The loop has begun.
    pub fn first(&mut self) -> Result<NextRound, OutOfTurn> {
        if self.phase != LoopPhase::First {
            return Err(self.out_of_turn());
        }
        let closing = (self.rules.limits.rounds <= 1).then_some(CloseReason::Rounds);
        self.phase = LoopPhase::Round { closing };
        let choice = match (closing, self.rules.choice) {
            (Some(_), _) | (None, FirstChoice::None) => RoundChoice::None,
            (None, FirstChoice::Auto | FirstChoice::Forced) => RoundChoice::AsAsked,
        };
        Ok(NextRound { round: 0, choice, closing, ..NextRound::default() })
    }

    /// Takes what the current round came to, at `now_ns`.
    ///
    /// # Errors
    /// No round runs.
    pub fn round_ended(&mut self, report: RoundReport, now_ns: u64) -> Result<LoopStep, OutOfTurn> {
        let LoopPhase::Round { closing } = self.phase else { return Err(self.out_of_turn()) };
        self.usage = self.usage.plus(&report.usage);
        self.cost = self.cost.checked_add(report.cost).unwrap_or(NanoDollars::MAX);
        let (server, client) = self.calls_of(report.calls);
        let keys = |calls: &[RunningCall]| calls.iter().map(|call| call.key).collect::<Vec<_>>();
        let broken = match report.finish {
            RoundFinish::Stopped => None,
            RoundFinish::Length => Some(EndReason::Length),
            RoundFinish::ContentFilter => Some(EndReason::ContentFilter),
            RoundFinish::Failed => Some(EndReason::Failed),
        };
        if let Some(reason) = broken {
            return Ok(self.end(reason, keys(&server)));
        }
        if let Some(reason) = closing {
            // A grammar forbids calls in a closing round, so there are none, and none would run.
            return Ok(self.end(EndReason::Closed(reason), keys(&server)));
        }
        if server.is_empty() {
            let is_over = client.is_empty();
            let reason = if is_over { EndReason::Answered } else { EndReason::ClientCalls(client) };
            return Ok(self.end(reason, Vec::new()));
        }
        if let Some(reason) = self.bound(now_ns) {
            let skipped = keys(&server);
            return Ok(match client.is_empty() {
                true => self.next(Some(reason), skipped, Vec::new()),
                false => self.end(EndReason::ClientCalls(client), skipped),
            });
        }
        Ok(self.run(server, client))
    }

    /// Takes the results of all tools of the last step, at `now_ns`.
    ///
    /// # Errors
    /// No tools run, or the results are not those of the tools that run, each once.
    pub fn tools_ended(&mut self, results: &[ToolReport], now_ns: u64) -> Result<LoopStep, OutOfTurn> {
        let LoopPhase::Tools { running, .. } = &self.phase else { return Err(self.out_of_turn()) };
        let mut ended: Vec<CallKey> = results.iter().map(|result| result.key).collect();
        ended.sort_unstable();
        if !ended.iter().eq(running.iter().map(|call| &call.key)) {
            return Err(self.out_of_turn());
        }
        let LoopPhase::Tools { running, client, skipped } =
            std::mem::replace(&mut self.phase, LoopPhase::Over)
        else {
            return Err(self.out_of_turn());
        };
        let limits = self.rules.limits;
        let (mut repeated, mut repeats_too_often) = (Vec::new(), false);
        for RunningCall { key, call } in running {
            let Some(result) = results.iter().find(|result| result.key == key) else { continue };
            self.result_bytes = self.result_bytes.saturating_add(result.bytes);
            let fresh = SeenResult { hash: result.result_hash, count: 0 };
            let seen = self.seen.entry(call).or_insert(fresh);
            if seen.hash != result.result_hash {
                *seen = fresh;
            }
            seen.count = seen.count.saturating_add(1);
            if limits.repeats_noted > 0 && seen.count >= limits.repeats_noted {
                repeated.push(key);
            }
            repeats_too_often |= limits.repeats_closing > 0 && seen.count >= limits.repeats_closing;
        }
        if !client.is_empty() {
            return Ok(self.end(EndReason::ClientCalls(client), skipped));
        }
        let repetition = repeats_too_often.then_some(CloseReason::Repetition);
        let closing = repetition.or_else(|| self.bound(now_ns));
        Ok(self.next(closing, skipped, repeated))
    }

    /// Takes that limits or money refused the round of the last step. A usual round is replaced by a closing one. If that
    /// is refused, too, the loop ends. What the step before said of skipped and repeated calls still applies.
    ///
    /// # Errors
    /// No round was to start.
    pub fn round_refused(&mut self) -> Result<LoopStep, OutOfTurn> {
        match self.phase {
            LoopPhase::Round { closing: None } => {
                self.phase = LoopPhase::Round { closing: Some(CloseReason::Refused) };
                let (round, closing) = (self.round, Some(CloseReason::Refused));
                Ok(LoopStep::Round(NextRound {
                    round,
                    choice: RoundChoice::None,
                    closing,
                    ..NextRound::default()
                }))
            }
            LoopPhase::Round { closing: Some(_) } => Ok(self.end(EndReason::Refused, Vec::new())),
            _ => Err(self.out_of_turn()),
        }
    }

    /// Ends the loop because the client went away, or the call ended for another reason. Returns the calls that run and
    /// that the driver must stop.
    pub fn cancel(&mut self) -> Vec<CallKey> {
        match std::mem::replace(&mut self.phase, LoopPhase::Over) {
            LoopPhase::Tools { running, .. } => running.into_iter().map(|call| call.key).collect(),
            LoopPhase::First | LoopPhase::Round { .. } | LoopPhase::Over => Vec::new(),
        }
    }

    /// Whether the loop is over.
    pub fn is_over(&self) -> bool {
        self.phase == LoopPhase::Over
    }

    /// What all rounds used.
    pub const fn usage(&self) -> &Usage {
        &self.usage
    }

    /// What all rounds cost.
    pub const fn cost(&self) -> NanoDollars {
        self.cost
    }

    /// The number of calls that ran on the server, or run now.
    pub const fn tool_calls(&self) -> u32 {
        self.tool_calls
    }

    /// The server's calls and the client's calls of a round. Of several calls only the first counts if the caller wants
    /// one at a time.
    fn calls_of(&self, calls: Vec<RequestedCall>) -> (Vec<RunningCall>, Vec<CallKey>) {
        let most = if self.rules.one_call { 1 } else { usize::MAX };
        let (mut server, mut client) = (Vec::new(), Vec::new());
        for (index, RequestedCall { owner, name, arguments }) in (0_u32..).zip(calls.into_iter().take(most)) {
            let key = CallKey { request: self.request, round: self.round, index };
            match owner {
                CallOwner::Server => server.push(RunningCall { key, call: (name, arguments) }),
                CallOwner::Client => client.push(key),
            }
        }
        (server, client)
    }

    /// Runs as many of the server's calls as are allowed. At least one is.
    fn run(&mut self, mut server: Vec<RunningCall>, client: Vec<CallKey>) -> LoopStep {
        let limits = self.rules.limits;
        let room = limits.tool_calls.saturating_sub(self.tool_calls);
        let beyond = server.split_off(server.len().min(room as usize));
        let skipped: Vec<CallKey> = beyond.into_iter().map(|call| call.key).collect();
        self.tool_calls = self.tool_calls.saturating_add(u32::try_from(server.len()).unwrap_or(u32::MAX));
        let planned = |RunningCall { key, call: (name, arguments) }: &RunningCall| PlannedCall {
            key: *key,
            name: name.clone(),
            arguments: arguments.clone(),
        };
        let run = ToolRun {
            calls: server.iter().map(planned).collect(),
            bytes_left: limits.result_bytes.saturating_sub(self.result_bytes),
            deadline_ns: self.deadline_ns(),
        };
        self.phase = LoopPhase::Tools { running: server, client, skipped };
        LoopStep::Run(run)
    }

    /// Starts the next round. It is closing if it is the last one that is allowed.
    fn next(
        &mut self,
        closing: Option<CloseReason>,
        skipped: Vec<CallKey>,
        repeated: Vec<CallKey>,
    ) -> LoopStep {
        self.round = self.round.saturating_add(1);
        let is_last = self.round.saturating_add(1) >= self.rules.limits.rounds;
        let closing = closing.or(is_last.then_some(CloseReason::Rounds));
        self.phase = LoopPhase::Round { closing };
        let choice = match closing {
            None if self.rules.choice != FirstChoice::None => RoundChoice::Auto,
            _ => RoundChoice::None,
        };
        LoopStep::Round(NextRound { round: self.round, choice, closing, skipped, repeated })
    }

    fn end(&mut self, reason: EndReason, skipped: Vec<CallKey>) -> LoopStep {
        self.phase = LoopPhase::Over;
        LoopStep::End(LoopEnd { reason, skipped })
    }

    /// The bound that is reached at `now_ns`, if any.
    fn bound(&self, now_ns: u64) -> Option<CloseReason> {
        let limits = &self.rules.limits;
        if now_ns >= self.deadline_ns() {
            return Some(CloseReason::WallTime);
        }
        if limits.cost.is_some_and(|most| self.cost >= most) {
            return Some(CloseReason::Cost);
        }
        if self.result_bytes >= limits.result_bytes {
            return Some(CloseReason::ResultBytes);
        }
        (self.tool_calls >= limits.tool_calls).then_some(CloseReason::ToolCalls)
    }

    fn deadline_ns(&self) -> u64 {
        let wall_ns = u64::try_from(self.rules.limits.wall_time.as_nanos()).unwrap_or(u64::MAX);
        self.start_ns.saturating_add(wall_ns)
    }

    const fn out_of_turn(&self) -> OutOfTurn {
        let waits_for = match self.phase {
            LoopPhase::First => "its first round",
            LoopPhase::Round { .. } => "the end of a round",
            LoopPhase::Tools { .. } => "the results of all tools that run, each once",
            LoopPhase::Over => "nothing: it is over",
        };
        OutOfTurn { waits_for }
    }
}
