//! What joins a call's two halves: the ids that a client sends along, by W3C's Trace Context
//! (<https://www.w3.org/TR/trace-context/#traceparent-header>). Must not know what is done with them.

/// A call: the same trace through all of its tries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TraceContext {
    trace_id: String,
}

impl TraceContext {
    /// A new one; `None` without randomness, and then the call is in nobody's trace but the server's.
    pub(crate) fn new() -> Option<Self> {
        let trace_id = random_hex::<16>()?;
        Some(Self { trace_id })
    }

    /// 32 hex digits.
    pub(crate) fn trace_id(&self) -> &str {
        &self.trace_id
    }

    /// The header of one try, which is a span of its own; it is sampled.
    pub(crate) fn header(&self) -> Option<String> {
        Some(format!("00-{}-{}-01", self.trace_id, random_hex::<8>()?))
    }
}

/// So many random bytes, which are not all zero: that would be no id.
pub(crate) fn random_hex<const BYTES: usize>() -> Option<String> {
    let mut bytes = [0_u8; BYTES];
    getrandom::fill(&mut bytes).ok()?;
    if bytes == [0; BYTES] {
        return None;
    }
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_try_is_a_span_of_the_same_trace() {
        let call = TraceContext::new().unwrap();
        let (one, two) = (call.header().unwrap(), call.header().unwrap());
        assert_ne!(one, two);
        for header in [one, two] {
            let parts: Vec<_> = header.split('-').collect();
            assert_eq!((parts[0], parts[1], parts[3]), ("00", call.trace_id(), "01"));
            assert_eq!((parts[1].len(), parts[2].len()), (32, 16));
            assert!(header.chars().all(|c| c == '-' || c.is_ascii_digit() || ('a'..='f').contains(&c)));
        }
    }
}
