//! What an engine computed ahead of a call and beside it, how the call's connection stood, and at which prices it was billed: facts
//! that say why it took as long and cost as much as it did. Must not know who computes them, or who explains them.

use serde::{Deserialize, Serialize};

use crate::{NanoDollars, NanoDollarsPerMillion, TokenClass, UnixNanos};

/// What stood before a call when an engine took it in, and what was computed until its own turn came.
///
/// Where one step computes prompts and generates as well, its time is shared out by what either costs there lately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ahead {
    /// Sequences that were being computed when it arrived, whoever's.
    pub running: u32,
    /// Of those that were computed or waited then, the ones of the call's own organisation.
    pub own: u32,
    /// Nanoseconds of its wait in which prompts of its own organisation were computed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub own_prefill_ns: u64,
    /// Nanoseconds of its wait in which answers of its own organisation were generated.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub own_decode_ns: u64,
    /// Nanoseconds of its wait in which prompts of others were computed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub others_prefill_ns: u64,
    /// Nanoseconds of its wait in which answers of others were generated.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub others_decode_ns: u64,
    /// Prompt tokens that were computed meanwhile, whoever's.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prefill_tokens: u64,
}

/// What an engine computed beside a call, in the very steps that the call was in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Beside {
    /// Prompt tokens of others that were computed while its own prompt was.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prefill_tokens: u64,
    /// Prompt tokens of others that were computed while it generated.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub decode_prefill_tokens: u64,
    /// Nanoseconds that these took of its decode.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub decode_prefill_ns: u64,
}

/// How the connection stood that a call came on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ConnectionTrace {
    /// Requests that had come on it before.
    pub requests_before: u64,
    /// Nanoseconds from when it was taken to when the call's head was whole. Of the first request on it that is the TLS handshake
    /// and the way of the head: most of it a connection that is kept open does not pay again. No part of the call's own time.
    pub open_ns: u64,
}

/// At which prices a call was held for and charged.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Billed {
    /// When its prices were looked up: those of that day (UTC) apply to it.
    pub at: UnixNanos,
    /// Prompt tokens that were held for, at the dearest price of their classes.
    pub held_prompt_tokens: u64,
    /// Generated tokens that were held for, of all answers.
    pub held_output_tokens: u64,
    /// What a prompt token cost that is computed, and one that is read from the cache, whether there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_prices: Option<[NanoDollarsPerMillion; 2]>,
    /// What was used, class by class; each line rounded once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<BilledLine>,
}

/// A line of a call's bill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BilledLine {
    /// Which class of tokens.
    pub class: TokenClass,
    /// How many were charged.
    pub tokens: u64,
    /// How many more were used and not charged: they went to the loss account.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost_tokens: u64,
    /// The price that applied.
    pub price: NanoDollarsPerMillion,
    /// What the class's usual price was, where another applied: of a class of service, or for long prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usual_price: Option<NanoDollarsPerMillion>,
    /// What was charged for it.
    pub amount: NanoDollars,
}

impl Ahead {
    /// The same, of a wait of `queue_ns`: a step that was under way when the call arrived counts with what of it was left.
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
        let ahead = Ahead { own_decode_ns: 300, others_prefill_ns: 100, running: 2, ..Ahead::default() };
        assert_eq!(ahead.within(400), ahead);
        let cut = Ahead { own_decode_ns: 150, others_prefill_ns: 50, ..ahead };
        assert_eq!(ahead.within(200), cut);
        assert_eq!(ahead.within(0), Ahead { running: 2, ..Ahead::default() });
        let most = Ahead { own_decode_ns: u64::MAX, others_decode_ns: u64::MAX, ..Ahead::default() };
        assert_eq!(most.within(10).others_decode_ns, 5);
    }
}
