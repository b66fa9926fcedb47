//! What an engine computed ahead of a call and in the same steps, the state of the call's connection, and the prices of
//! its bill: facts that explain its duration and cost. Must not know who computes or explains them.

use serde::{Deserialize, Serialize};

use crate::{NanoDollars, NanoDollarsPerMillion, TierName, TokenClass, UnixNanos};

/// Work that was ahead of a call when an engine accepted it, and what was computed until the call's own turn.
///
/// If one step both computes prompts and generates tokens, its time is split in the ratio of their recent costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WorkAhead {
    /// Sequences of all callers that were being computed when the call arrived.
    pub running: u32,
    /// Sequences of the call's own organisation that were running or waiting when the call arrived.
    pub own: u32,
    /// Nanoseconds of the call's wait spent on prompts of its own organisation.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub own_prefill_ns: u64,
    /// Nanoseconds of the call's wait spent on answers of its own organisation.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub own_decode_ns: u64,
    /// Nanoseconds of the call's wait spent on prompts of other organisations.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub others_prefill_ns: u64,
    /// Nanoseconds of the call's wait spent on answers of other organisations.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub others_decode_ns: u64,
    /// Prompt tokens of all callers that were computed during the wait.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prefill_tokens: u64,
}

/// Work of other calls in the same engine steps as this call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ConcurrentWork {
    /// Prompt tokens of other calls that were computed while this call's prompt was computed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prefill_tokens: u64,
    /// Prompt tokens of other calls that were computed while this call generated.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub decode_prefill_tokens: u64,
    /// Nanoseconds of this call's decode that `decode_prefill_tokens` took.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub decode_prefill_ns: u64,
}

/// State of the connection that a call arrived on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ConnectionTrace {
    /// Number of earlier requests on the connection.
    pub requests_before: u64,
    /// Nanoseconds from the connection's start to the end of the call's head. For the first request this is mostly the
    /// TLS handshake and the transfer of the head, which a connection that is kept open does not pay again. Not part of
    /// the call's own time.
    pub open_ns: u64,
}

/// The prices of a call's hold and charge.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BilledPrices {
    /// When the prices were looked up. The prices of that day (UTC) apply.
    pub at: UnixNanos,
    /// The tier of the caller whose prices apply. `None` if those of all callers do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder_tier: Option<TierName>,
    /// Prompt tokens in the hold, at the highest price of their classes.
    pub held_prompt_tokens: u64,
    /// Generated tokens in the hold, of all answers together.
    pub held_output_tokens: u64,
    /// Price of a computed prompt token and of one read from the cache, even if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_prices: Option<[NanoDollarsPerMillion; 2]>,
    /// Usage by class. Each line is rounded once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<BilledLine>,
}

/// One line of a call's bill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BilledLine {
    /// The class of tokens.
    pub class: TokenClass,
    /// Number of tokens charged.
    pub tokens: u64,
    /// Number of further tokens that were used but not charged. They went to the loss account.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost_tokens: u64,
    /// The price that applied.
    pub price: NanoDollarsPerMillion,
    /// The class's usual price, if another price applied: that of a service tier, or that for long prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usual_price: Option<NanoDollarsPerMillion>,
    /// The amount charged for this line.
    pub amount: NanoDollars,
}

impl WorkAhead {
    /// Scales the durations down to a wait of `queue_ns`, if they exceed it. A step that was running when the call
    /// arrived then counts only with its remaining part.
    #[must_use]
    pub fn within(self, queue_ns: u64) -> Self {
        let parts = [self.own_prefill_ns, self.own_decode_ns, self.others_prefill_ns, self.others_decode_ns];
        let sum: u128 = parts.iter().map(|part| u128::from(*part)).sum();
        if sum <= u128::from(queue_ns) {
            return self;
        }
        let part = |nanos: u64| {
            u64::try_from(u128::from(nanos) * u128::from(queue_ns) / sum.max(1)).unwrap_or(queue_ns)
        };
        let [own_prefill_ns, own_decode_ns, others_prefill_ns, others_decode_ns] = parts.map(part);
        Self { own_prefill_ns, own_decode_ns, others_prefill_ns, others_decode_ns, ..self }
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_ahead_is_never_more_than_the_wait() {
        let ahead =
            WorkAhead { own_decode_ns: 300, others_prefill_ns: 100, running: 2, ..WorkAhead::default() };
        assert_eq!(ahead.within(400), ahead);
        let cut = WorkAhead { own_decode_ns: 150, others_prefill_ns: 50, ..ahead };
        assert_eq!(ahead.within(200), cut);
        assert_eq!(ahead.within(0), WorkAhead { running: 2, ..WorkAhead::default() });
        let most = WorkAhead { own_decode_ns: u64::MAX, others_decode_ns: u64::MAX, ..WorkAhead::default() };
        assert_eq!(most.within(10).others_decode_ns, 5);
    }
}
