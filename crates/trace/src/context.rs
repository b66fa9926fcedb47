//! Where a call stands in a distributed trace (W3C Trace Context, level 1, <https://www.w3.org/TR/trace-context/>): the ids by which
//! a client's spans and ours join. Must not know who keeps traces.

use headrace_domain::{RequestId, TraceRecord};

/// Attempts are numbered from here on, stages from 0.
const FIRST_ATTEMPT: u64 = 1 << 32;

/// A span within a trace, as `traceparent` names it. Neither id is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// The trace.
    pub trace: u128,
    /// The span.
    pub span: u64,
}

impl TraceContext {
    /// The span of this server for a call: in its caller's trace, or in one of its own that has the request's bits. The span's id
    /// is the half of those that is random, in either case.
    pub fn of_request(request: RequestId, trace_id: Option<&str>) -> Self {
        let bits = request.bits();
        let theirs =
            trace_id.and_then(|text| u128::from_str_radix(text, 16).ok()).filter(|trace| *trace != 0);
        #[allow(clippy::cast_possible_truncation, reason = "the lower half is meant")]
        let span = bits as u64;
        Self { trace: theirs.unwrap_or(bits).max(1), span: span.max(1) }
    }

    /// The span of this server for a call that is over.
    pub fn of(record: &TraceRecord) -> Self {
        Self::of_request(record.request_id, record.trace_id.as_deref())
    }

    /// The span of a stage of this call, by its place among them.
    #[must_use]
    pub fn stage(self, at: usize) -> Self {
        self.below(u64::try_from(at).unwrap_or(u64::MAX))
    }

    /// The span of an attempt of this call, by its place among them: whoever is asked works below it.
    #[must_use]
    pub fn attempt(self, at: usize) -> Self {
        self.below(FIRST_ATTEMPT.saturating_add(u64::try_from(at).unwrap_or(u64::MAX)))
    }

    /// As the header of that name has it, with the mark that whoever sent it keeps its spans.
    pub fn traceparent(self) -> String {
        format!("00-{:032x}-{:016x}-01", self.trace, self.span)
    }

    /// A span below this one, by its number: the same one whenever it is asked for.
    fn below(self, number: u64) -> Self {
        // SplitMix64's finalizer, a bijection: spans of one call differ.
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
