//! Why a call may not run now: the scope, the rule, the numbers and the time to try again. Knows no status code; the
//! edge maps a refusal to one.

use std::fmt;
use std::time::Duration;

use headrace_domain::Code;

use crate::Scope;

/// The limit that refused the call. If several refused, the one that takes longest to pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitRefusal {
    /// The scope that the limit applies to.
    pub scope: Scope,
    /// `requests_per_minute`, `tokens_per_minute` or `concurrency`.
    pub rule: Code,
    /// The limit, in the rule's unit.
    pub limit: u64,
    /// The part of the limit that this gateway may use now. `None` if it has the whole limit for itself.
    pub share: Option<u64>,
    /// The amount used now of the share, or else of the limit, rounded up. Exceeds `limit` if a call used more than it held.
    pub used: u64,
    /// The amount that the call asked for.
    pub requested: u64,
    /// Time after which the same call would pass if no other call came, at least one second. One second for
    /// concurrency, which frees up when other calls end. `None` if the call can never fit.
    pub retry_after: Option<Duration>,
}

impl fmt::Display for LimitRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scope, rule, limit, share, used, requested, .. } = self;
        match self.retry_after {
            Some(wait) => {
                match share {
                    Some(share) => write!(
                        f,
                        "{rule} of {scope}: {used} used of {share}, this gateway's share of {limit}, {requested} asked for"
                    )?,
                    None => write!(f, "{rule} of {scope}: {used} of {limit} used, {requested} asked for")?,
                }
                write!(f, "; try again in {} s", wait.as_nanos().div_ceil(1_000_000_000))
            }
            None => write!(
                f,
                "{rule} of {scope} is {limit}, and this call asks for {requested}: it can never fit; \
                 ask for less or have the limit raised"
            ),
        }
    }
}

impl std::error::Error for LimitRefusal {}
