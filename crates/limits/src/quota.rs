//! Where the rate limits of a process come from: from time alone, as shares of several gateways, or in slices from a
//! source that several processes share. Must not know how admission is decided or how a source counts.

use std::fmt;
use std::sync::Arc;

use headrace_domain::UnixNanos;

use crate::Scope;
use crate::bucket::TokenBucket;
use crate::share_state::ShareState;

/// A rule with a limit per minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RateRule {
    /// Requests per minute.
    Requests,
    /// Tokens per minute, input and output together.
    Tokens,
}

/// A request for a slice of a limit.
#[derive(Debug, Clone, Copy)]
pub struct QuotaRequest<'a> {
    /// The scope that the limit applies to.
    pub scope: &'a Scope,
    /// The rule, which defines the unit of all amounts.
    pub rule: RateRule,
    /// The limit per minute, over all processes.
    pub limit: u64,
    /// The amount that a call lacks now. At least one.
    pub wanted: u64,
    /// The time of the call.
    pub now: UnixNanos,
}

/// Hands out the rate limits of several processes in slices. Over all processes, no more than a minute's worth may be
/// granted at once, and no more than the limit per minute after that.
///
/// A process uses each granted unit at most once. It asks only if its slice is too small for a call, and it forgets the
/// rest of a slice a few seconds after the last grant.
pub trait QuotaSource: Send + Sync {
    /// Takes a slice from the limit and returns its size. The caller can use it at once. A slice below `wanted` refuses
    /// the call. A larger one spares further requests.
    ///
    /// Admission waits for this, so it must return at once. A source behind a network grants what it fetched before, and
    /// fetches more meanwhile.
    fn lease(&self, request: QuotaRequest<'_>) -> u64;
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

/// Leases what a bucket lacks for a cost.
pub(crate) fn fill(
    source: &dyn QuotaSource,
    bucket: &mut TokenBucket,
    (scope, rule, limit): (&Scope, RateRule, u64),
    cost: u64,
    now: UnixNanos,
) {
    bucket.advance(limit, now);
    let wanted = bucket.lacks(limit, cost, now);
    // A cost above the limit never fits, so its units would be lost.
    if wanted > 0 && cost <= limit {
        let granted = source.lease(QuotaRequest { scope, rule, limit, wanted, now });
        bucket.add_slice(granted, now);
    }
}
