//! The header `traceparent` (W3C Trace Context, level 1, <https://www.w3.org/TR/trace-context/>). Must not know who sends it.

/// The trace id (32 hexadecimal digits) and the span id (16) of a `traceparent` header. `None` if the header is malformed.
///
/// `00-TRACE-SPAN-FLAGS` in lower case, and neither id all zero. A later version may append fields.
pub fn parse_traceparent(header: &str) -> Option<(&str, &str)> {
    let mut parts = header.trim().split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let hex = |text: &str, len: usize| {
        text.len() == len && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let set = |text: &str| text.bytes().any(|b| b != b'0');
    let well_formed = hex(version, 2) && version != "ff" && hex(trace, 32) && hex(span, 16) && hex(flags, 2);
    let closed = version != "00" || parts.next().is_none();
    (well_formed && closed && set(trace) && set(span)).then_some((trace, span))
}

#[cfg(test)]
mod tests {
    use super::parse_traceparent;

    #[test]
    fn traceparent_is_taken_only_when_well_formed() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let good = format!("00-{trace}-00f067aa0ba902b7-01");
        assert_eq!(parse_traceparent(&good), Some((trace, "00f067aa0ba902b7")));
        for bad in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        ] {
            assert_eq!(parse_traceparent(bad), None, "{bad}");
        }
    }
}
