//! Where the rate limits of a process come from: from time alone, as shares of several gateways, or in slices from a
//! source that several processes share. Must not know how admission is decided or how a source counts.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use headrace_domain::UnixNanos;

use crate::Scope;
use crate::share_state::ShareState;

/// A rule with a limit per minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RateRule {
    /// Requests per minute.
    Requests,
    /// Tokens per minute, input and output together.
    Tokens,
}

/// What a call asks of one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaDemand {
    /// The scope that the limit applies to.
    pub scope: Scope,
    /// The rule, which defines the unit of all amounts.
    pub rule: RateRule,
    /// The limit per minute, over all processes.
    pub limit: u64,
    /// The amount that the call lacks at this process.
    pub needed: u64,
    /// The amount that the call uses, at least `needed`. A source that has less grants what it has.
    pub wanted: u64,
}

/// A source's answer to a demand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QuotaGrant {
    /// The amount that the process may use now.
    pub granted: u64,
    /// The amount that the source has left after the grant.
    pub left: u64,
    /// The part of the limit that this process may use, per minute, while its source cannot be reached. `None` if the
    /// source answered for the whole limit.
    pub share: Option<u64>,
}

/// An amount that a process took and did not use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaReturn {
    /// The scope that the limit applies to.
    pub scope: Scope,
    /// The rule, which defines the unit of `amount`.
    pub rule: RateRule,
    /// The limit per minute, over all processes.
    pub limit: u64,
    /// The amount. Less than what was unused, if the limit has refilled some of it meanwhile.
    pub amount: u64,
}

/// A future that ends with one grant for each demand.
pub type QuotaFuture<'a> = Pin<Box<dyn Future<Output = Vec<QuotaGrant>> + Send + 'a>>;

/// Hands out the rate limits of several processes in slices. Over all processes, no more than a minute's worth may be
/// granted at once, and no more than the limit per minute after that.
///
/// A process uses each granted unit at most once. It forgets what is left of a slice five seconds after the grant.
pub trait QuotaSource: Send + Sync {
    /// Takes a slice of each limit, or of none if one of them has less than `needed`. A call waits for this, so a source
    /// behind a network answers within a deadline.
    fn lease<'a>(&'a self, demands: &'a [QuotaDemand], now: UnixNanos) -> QuotaFuture<'a>;

    /// Gives back what was not used. Returns at once. A source that cannot take it drops it.
    fn give_back(&self, returned: QuotaReturn);
}

/// The source of a process's rate limits.
#[derive(Clone)]
pub(crate) enum LimitQuota {
    /// All of each limit belongs to this process: buckets refill with time.
    Local,
    /// A part of each limit belongs to this process, and moves with demand.
    Gateways(Arc<ShareState>),
    /// Buckets refill from slices.
    Shared(Arc<dyn QuotaSource>),
}

impl fmt::Debug for LimitQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "Local",
            Self::Gateways(_) => "Gateways(..)",
            Self::Shared(_) => "Shared(..)",
        })
    }
}
