//! What content rules decided about a call, as lines of a drawing and as JSON. Does not know the drawing.

use headrace_domain::{ContentPlace, ContentVerdict, JudgeUse, ModerationOutcome, TraceRecord};
use serde_json::{Value, json};

use crate::units::{bare_dollars, counted, humane_duration, micros, plain};

/// A line for each rule that matched the answer.
pub(crate) fn output_verdict_lines(record: &TraceRecord) -> impl Iterator<Item = String> {
    record.output_verdicts.iter().map(|verdict| {
        let did = match verdict.outcome() {
            ModerationOutcome::Blocked => "ended",
            ModerationOutcome::Redacted => "changed",
            ModerationOutcome::Flagged | ModerationOutcome::DryRun => "flagged",
            ModerationOutcome::NoVerdict => "not judged",
        };
        let place = match verdict.place {
            None | Some(ContentPlace::Answer) => "",
            Some(ContentPlace::Reasoning) => ", in its reasoning",
            Some(ContentPlace::ToolCalls) => ", in a tool call",
            Some(ContentPlace::Input) => ", in the request",
        };
        let dry_run = if verdict.dry_run.is_some() { " (dry run)" } else { "" };
        format!("{did} by the content rule {}{place}{dry_run}", plain(&verdict.rule))
    })
}

/// A line for each rule that asked a judge about a part of the call.
pub(crate) fn judge_lines(record: &TraceRecord) -> impl Iterator<Item = String> {
    record.judge_uses.iter().map(|used| {
        let JudgeUse { rule, judge, place, questions, took_ns, .. } = used;
        let asked = counted((*questions).into(), "question");
        let unfit = (used.unfit > 0).then(|| format!(", {} unfit", used.unfit));
        let missing =
            (used.without_verdict > 0).then(|| format!(", {} without a verdict", used.without_verdict));
        let more: String = unfit.into_iter().chain(missing).collect();
        let wait = if used.waits { "" } else { ", beside the call" };
        format!(
            "{} for the content rule {}: {asked} about the {}, {}{wait}{more}",
            plain(judge),
            plain(rule),
            place.name().replace('_', " "),
            humane_duration(*took_ns),
        )
    })
}

/// A verdict as JSON. Fields that are not known are left out.
pub(crate) fn verdict_json(verdict: &ContentVerdict) -> Value {
    let ContentVerdict { rule, action, kind, place, dry_run } = verdict;
    let mut json = json!({ "rule": rule, "action": action });
    if let Some(kind) = kind {
        json["kind"] = kind.as_ref().into();
    }
    if let Some(place) = place {
        json["place"] = place.name().into();
    }
    if let Some(action) = dry_run {
        json["dry_run"] = action.as_ref().into();
    }
    json
}

/// What a judge was asked, as JSON.
pub(crate) fn judge_use_json(used: &JudgeUse) -> Value {
    let mut json = json!({
        "rule": used.rule,
        "judge": used.judge,
        "place": used.place.name(),
        "waits": used.waits,
        "without_verdict_passes": used.passes_without,
        "questions": used.questions,
        "unfit": used.unfit,
        "without_verdict": used.without_verdict,
        "took_us": micros(used.took_ns),
        "longest_us": micros(used.longest_ns),
    });
    if let Some(cost) = used.cost {
        json["cost_nano_dollars"] = cost.get().into();
        json["cost_dollars"] = bare_dollars(cost).into();
    }
    json
}

#[cfg(test)]
mod tests {
    use headrace_domain::{CallOutcome, NanoDollars, RequestId, UnixNanos};

    use super::*;
    use crate::{CallRow, operator_json, record_json};

    fn verdict(
        rule: &str,
        action: &str,
        place: Option<ContentPlace>,
        dry_run: Option<&str>,
    ) -> ContentVerdict {
        let kind = place.map(|_| "words".into());
        let (rule, action) = (rule.to_owned(), action.to_owned());
        ContentVerdict { rule, action, kind, place, dry_run: dry_run.map(Into::into) }
    }

    fn record() -> TraceRecord {
        let outcome = CallOutcome::Completed { finish: vec!["stop".to_owned()] };
        let used = JudgeUse {
            rule: "guarded".to_owned(),
            judge: "llama".to_owned(),
            place: ContentPlace::ToolCalls,
            waits: false,
            passes_without: true,
            questions: 2,
            unfit: 1,
            without_verdict: 1,
            took_ns: 30_000_000,
            longest_ns: 20_000_000,
            cost: Some(NanoDollars::new(1_500)),
        };
        TraceRecord {
            input_verdicts: vec![verdict("in", "flag", Some(ContentPlace::Input), None)],
            output_verdicts: vec![
                verdict("a", "block", Some(ContentPlace::Answer), None),
                verdict("b", "redact", Some(ContentPlace::ToolCalls), None),
                verdict("c", "flag", Some(ContentPlace::Reasoning), Some("block")),
                verdict("d", "no_verdict", Some(ContentPlace::Answer), None),
                verdict("old", "redact", None, None),
            ],
            judge_uses: vec![used],
            ..TraceRecord::new(RequestId::from_bits(1), UnixNanos::new(1), outcome)
        }
    }

    #[test]
    fn a_line_says_what_a_rule_did_and_where() {
        let lines: Vec<String> = output_verdict_lines(&record()).collect();
        let expected = [
            "ended by the content rule a",
            "changed by the content rule b, in a tool call",
            "flagged by the content rule c, in its reasoning (dry run)",
            "not judged by the content rule d",
            "changed by the content rule old",
        ];
        assert_eq!(lines, expected);
        let lines: Vec<String> = judge_lines(&record()).collect();
        let expected = "llama for the content rule guarded: 2 questions about the tool calls, 30.0 ms, beside the call, 1 unfit, \
                        1 without a verdict";
        assert_eq!(lines, [expected]);
    }

    #[test]
    fn json_names_verdicts_by_side_and_judges_to_operators_alone() {
        let own = record_json(&record());
        let expected = json!([{ "rule": "in", "action": "flag", "kind": "words", "place": "input" }]);
        assert_eq!(own["input_moderation"], expected);
        let expected = json!({ "rule": "c", "action": "flag", "kind": "words", "place": "reasoning", "dry_run": "block" });
        assert_eq!(own["output_moderation"][2], expected);
        assert_eq!(own["output_moderation"][4], json!({ "rule": "old", "action": "redact" }));
        assert!(own.get("judges").is_none(), "the operator pays for judges");
        let judge = &operator_json(&record())["judges"][0];
        assert_eq!(judge["cost_dollars"], "0.0000015");
        assert_eq!((&judge["took_us"], &judge["longest_us"]), (&json!(30_000.0), &json!(20_000.0)));
        let row = CallRow::of(&record()).json();
        assert_eq!(row["verdicts"].as_array().map(Vec::len), Some(6));
        assert_eq!(row["verdicts"][0]["place"], "input");
        let clean = TraceRecord {
            input_verdicts: Vec::new(),
            output_verdicts: Vec::new(),
            judge_uses: Vec::new(),
            ..record()
        };
        assert!(CallRow::of(&clean).json().get("verdicts").is_none());
        assert!(operator_json(&clean).get("judges").is_none());
    }
}
