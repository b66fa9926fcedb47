//! The ids that link a client's and a server's view of a call, in W3C Trace Context format
//! (<https://www.w3.org/TR/trace-context/#traceparent-header>). Must not know how they are used.

/// The trace of one call, shared by all its attempts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TraceContext {
    trace_id: String,
}

impl TraceContext {
    /// Creates a trace with a new id. `None` without randomness; then the call is only in the server's own trace.
    pub(crate) fn new() -> Option<Self> {
        let trace_id = random_hex::<16>()?;
        Some(Self { trace_id })
    }

    /// The trace id as 32 hex digits.
    pub(crate) fn trace_id(&self) -> &str {
        &self.trace_id
    }

    /// The `traceparent` header of one attempt, with its own span id and the `sampled` flag. `None` without randomness.
    pub(crate) fn header(&self) -> Option<String> {
        Some(format!("00-{}-{}-01", self.trace_id, random_hex::<8>()?))
    }
}

/// `BYTES` random bytes in hex. `None` without randomness, or if all bytes are zero, which is not a valid id.
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
