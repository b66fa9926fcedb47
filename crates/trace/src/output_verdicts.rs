//! What content rules did to an answer, as lines of a drawing. Does not know the drawing.

use headrace_domain::{OutputVerdict, TraceRecord};

use crate::units::plain;

/// A line for each rule that matched the answer.
pub(crate) fn output_verdict_lines(record: &TraceRecord) -> impl Iterator<Item = String> {
    record.output_verdicts.iter().map(|OutputVerdict { rule, action }| {
        let did = match action.as_str() {
            "block" => "ended",
            "redact" => "changed",
            _ => "flagged",
        };
        format!("{did} by the content rule {}", plain(rule))
    })
}
