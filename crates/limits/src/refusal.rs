//! Why a call may not run now: the scope, the rule, the numbers and when to try again.
//! Knows no status code; the edge turns this into one.

use std::fmt;
use std::time::Duration;

use headrace_domain::Code;

use crate::Scope;

/// The limit that refused. Of several, the one that takes longest to pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitRefusal {
    /// Whose limit it is.
    pub scope: Scope,
    /// `requests_per_minute`, `tokens_per_minute` or `concurrency`.
    pub rule: Code,
    /// The limit, in the rule's unit.
    pub limit: u64,
    /// What is used of it now, rounded up; more than the limit after more was used than held.
    pub used: u64,
    /// What was asked for.
    pub requested: u64,
    /// When the same call would be let through if nothing else came: at least a second. For concurrency,
    /// which ends when other calls do, a second. `None` if it can never fit.
    pub retry_after: Option<Duration>,
}

impl fmt::Display for LimitRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scope, rule, limit, used, requested, .. } = self;
        match self.retry_after {
            Some(wait) => write!(
                f,
                "{rule} of {scope}: {used} of {limit} used, {requested} asked for; try again in {} s",
                wait.as_nanos().div_ceil(1_000_000_000)
            ),
            None => write!(
                f,
                "{rule} of {scope} is {limit}, and this call asks for {requested}: it can never fit; \
                 ask for less or have the limit raised"
            ),
        }
    }
}

impl std::error::Error for LimitRefusal {}
