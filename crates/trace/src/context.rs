//! A call's place in a distributed trace (W3C Trace Context, level 1, <https://www.w3.org/TR/trace-context/>): the ids
//! that link a client's spans with this server's spans. Must not know who keeps traces.

use headrace_domain::{RequestId, TraceRecord};

/// Number of the first attempt's span. Stages are numbered from 0.
const FIRST_ATTEMPT: u64 = 1 << 32;

/// A span within a trace, as in a `traceparent` header. Neither id is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// The trace id.
    pub trace: u128,
    /// The span id.
    pub span: u64,
}

impl TraceContext {
    /// The server's span for a call. It belongs to the caller's trace, or, without one, to a new trace whose id is the
    /// request id. In both cases the span id is the random half of the request id.
    pub fn of_request(request: RequestId, trace_id: Option<&str>) -> Self {
        let bits = request.bits();
        let theirs =
            trace_id.and_then(|text| u128::from_str_radix(text, 16).ok()).filter(|trace| *trace != 0);
        #[allow(clippy::cast_possible_truncation, reason = "the lower half is meant")]
        let span = bits as u64;
        Self { trace: theirs.unwrap_or(bits).max(1), span: span.max(1) }
    }

    /// The server's span for a finished call.
    pub fn of(record: &TraceRecord) -> Self {
        Self::of_request(record.request_id, record.trace_id.as_deref())
    }

    /// The span of a stage, by the stage's index in the call.
    #[must_use]
    pub fn stage(self, at: usize) -> Self {
        self.below(u64::try_from(at).unwrap_or(u64::MAX))
    }

    /// The span of an attempt, by the attempt's index in the call. The worker's spans are its children.
    #[must_use]
    pub fn attempt(self, at: usize) -> Self {
        self.below(FIRST_ATTEMPT.saturating_add(u64::try_from(at).unwrap_or(u64::MAX)))
    }

    /// The value of the `traceparent` header. Its `sampled` flag is set.
    pub fn traceparent(self) -> String {
        format!("00-{:032x}-{:016x}-01", self.trace, self.span)
    }

    /// A child span with this number. The same number always gives the same span.
    fn below(self, number: u64) -> Self {
        // SplitMix64's finalizer is a bijection, so the spans of one call differ.
        let mut bits = self.span ^ number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self { span: (bits ^ (bits >> 31)).max(1), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_one_span_in_whoevers_trace_it_is() {
        let request = RequestId::from_bits(0x0192_0000_0000_7000_8000_0000_0000_0007);
        let own = TraceContext::of_request(request, None);
        assert_eq!((own.trace, own.span), (request.bits(), 0x8000_0000_0000_0007));
        let theirs = TraceContext::of_request(request, Some("4bf92f3577b34da6a3ce929d0e0e4736"));
        assert_eq!((theirs.trace, theirs.span), (0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, own.span));
        let below: std::collections::HashSet<u64> = (0..1000).map(|number| own.below(number).span).collect();
        assert!(below.len() == 1000 && !below.contains(&own.span));
        assert_eq!(own.stage(3), own.below(3));
        assert!((0..1000).all(|at| !below.contains(&own.attempt(at).span)));
        let (parent, span) = (theirs.attempt(2).traceparent(), theirs.attempt(2).span);
        assert_eq!(parent, format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{span:016x}-01"));
    }
}
