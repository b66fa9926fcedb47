//! The verdicts of content rules in a trace record, of any version of the record.

use crate::{CallOutcome, Code, ContentPlace, ContentVerdict, TraceRecord};

impl TraceRecord {
    /// The content rules that matched the call: those of the request first. A record of a version without verdicts on
    /// requests names one rule.
    pub fn content_verdicts(&self) -> Vec<ContentVerdict> {
        let mut verdicts = self.input_verdicts.clone();
        if let Some(rule) = self.moderation.as_ref().filter(|_| verdicts.is_empty()) {
            let is_blocked = matches!(&self.outcome,
                CallOutcome::Refused(refusal) if refusal.code == Code::ContentPolicy.name());
            let action = if is_blocked { "block" } else { "flag" };
            verdicts.push(ContentVerdict {
                rule: rule.clone(),
                action: action.to_owned(),
                kind: None,
                place: Some(ContentPlace::Input),
                dry_run: None,
            });
        }
        verdicts.extend(self.output_verdicts.iter().cloned());
        verdicts
    }
}
