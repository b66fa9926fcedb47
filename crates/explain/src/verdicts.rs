//! What content rules decided about a call: each verdict with its place, its time, its cost, what the client saw, and the
//! setting that changes it. Must not know how rules match.

use headrace_domain::{
    CallOutcome, Code, ContentPlace, ContentVerdict, Endpoint, FinishReason, JudgeUse, ModerationOutcome,
    Stage, TraceRecord,
};
use headrace_trace::{humane_duration, plain};
use serde::Serialize;

use crate::cost::dollars;
use crate::words::count;

/// The word for a judge that found nothing.
const PASSED: &str = "passed";

/// What a content rule decided about a part of a call.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExplainedVerdict {
    /// The rule's name.
    pub rule: String,
    /// How the rule matches: `words`, `regex`, `pii`, `classifier` or `judge`. `None` in older records.
    pub kind: Option<String>,
    /// The judge that was asked, for a rule of kind `judge`.
    pub judge: Option<String>,
    /// The part of the call: `input`, `answer`, `reasoning` or `tool_calls`. `None` in older records.
    pub place: Option<&'static str>,
    /// `blocked`, `redacted`, `flagged`, `dry_run`, `no_verdict`, or `passed` for a judge that found nothing.
    pub outcome: &'static str,
    /// Microseconds of all questions to the judge together. `None` for other rules.
    pub took_us: Option<f64>,
    /// What the judge cost the operator, in nano-dollars. `None` if that is unknown.
    pub cost_nano_dollars: Option<String>,
    /// What the judge cost the operator, in dollars.
    pub cost_dollars: Option<String>,
    /// The decision, its place and its time, in words.
    pub text: String,
    /// What the client saw.
    pub client_saw: String,
    /// The setting that changes it. Empty if there is nothing to change.
    pub way_out: String,
}

/// Explains all verdicts of a call, those on the request first. A judge that found nothing comes last.
pub(crate) fn verdicts(record: &TraceRecord) -> Vec<ExplainedVerdict> {
    let verdicts = record.content_verdicts();
    let is_named = |used: &&JudgeUse| verdicts.iter().any(|verdict| is_of(used, verdict));
    let decided = verdicts.iter().map(|verdict| VerdictDecision::of(record, verdict).explained());
    let passed = record.judge_uses.iter().filter(|used| !is_named(used));
    decided.chain(passed.map(passed_by)).collect()
}

/// Whether a judge was asked for a verdict.
fn is_of(used: &JudgeUse, verdict: &ContentVerdict) -> bool {
    used.rule == verdict.rule && verdict.place.is_none_or(|place| place == used.place)
}

/// A verdict with what the record says about it.
struct VerdictDecision<'a> {
    record: &'a TraceRecord,
    verdict: &'a ContentVerdict,
    outcome: ModerationOutcome,
    used: Option<&'a JudgeUse>,
}

impl<'a> VerdictDecision<'a> {
    fn of(record: &'a TraceRecord, verdict: &'a ContentVerdict) -> Self {
        let used = record.judge_uses.iter().find(|used| is_of(used, verdict));
        Self { record, verdict, outcome: verdict.outcome(), used }
    }

    fn explained(&self) -> ExplainedVerdict {
        let Self { verdict, used, .. } = self;
        ExplainedVerdict {
            rule: plain(&verdict.rule),
            kind: verdict.kind.as_deref().map(plain),
            judge: used.map(|used| plain(&used.judge)),
            place: verdict.place.map(ContentPlace::name),
            outcome: self.outcome.name(),
            text: format!("{} {}", self.decision(), self.time()).trim_end().to_owned(),
            client_saw: self.client_saw(),
            way_out: self.way_out(),
            ..costs(*used)
        }
    }

    /// The rule, what it decided, and where.
    fn decision(&self) -> String {
        let rule = rule_words(&self.verdict.rule, self.verdict.kind.as_deref(), self.used);
        let place = self.verdict.place.map_or("the call", place_words);
        match self.outcome {
            ModerationOutcome::Blocked if self.is_input() => format!("{rule} refused {place}."),
            ModerationOutcome::Blocked => format!("{rule} ended the answer, by a match in {place}."),
            ModerationOutcome::Redacted => format!("{rule} replaced its matches in {place}."),
            ModerationOutcome::Flagged => format!("{rule} matched in {place}, and only noted it."),
            ModerationOutcome::DryRun => format!("{rule} matched in {place}, in a dry run."),
            ModerationOutcome::NoVerdict => format!("{rule} got no verdict about {place} in time."),
        }
    }

    fn time(&self) -> String {
        if let Some(used) = self.used {
            return question_words(used);
        }
        match self.record.span(Stage::Moderate).filter(|_| self.is_input()) {
            Some(span) => {
                format!("All rules on the request together took {}.", humane_duration(span.duration_ns))
            }
            None if self.is_input() => String::new(),
            None => "Its time is a part of `postprocess`.".to_owned(),
        }
    }

    fn is_input(&self) -> bool {
        self.verdict.place == Some(ContentPlace::Input)
    }

    fn client_saw(&self) -> String {
        match self.outcome {
            ModerationOutcome::Blocked if self.is_input() => self.refused_words(),
            ModerationOutcome::Blocked => self.ended_words(),
            ModerationOutcome::Redacted => match self.verdict.place {
                Some(ContentPlace::ToolCalls) => "The tool call with the matches replaced.".to_owned(),
                Some(ContentPlace::Reasoning) => "The reasoning with the matches replaced.".to_owned(),
                _ => "The answer with the matches replaced.".to_owned(),
            },
            ModerationOutcome::Flagged => "Nothing of it: the text passed unchanged.".to_owned(),
            ModerationOutcome::DryRun => {
                let would = match self.verdict.dry_run.as_deref() {
                    Some("block") if self.is_input() => "the call would have been refused",
                    Some("block") => "the answer would have ended before the match",
                    Some("redact") => "the match would have been replaced",
                    _ => "the match would only have been noted",
                };
                format!("Nothing of it: the text passed unchanged. Without the dry run, {would}.")
            }
            ModerationOutcome::NoVerdict => match self.used {
                Some(used) if used.waits && !used.passes_without => {
                    "The text counted as unfit, as a text without a verdict does.".to_owned()
                }
                _ => "Nothing of it: the text passed unchanged.".to_owned(),
            },
        }
    }

    /// What the client of a refused request saw.
    fn refused_words(&self) -> String {
        match &self.record.outcome {
            CallOutcome::Refused(refusal) if refusal.code == Code::ContentPolicy.name() => {
                format!(
                    "HTTP {} with the code `{}`. Nothing was charged.",
                    refusal.status,
                    plain(&refusal.code)
                )
            }
            _ => "Nothing of it: the call had begun.".to_owned(),
        }
    }

    /// What the client of an answer that a rule ended saw.
    fn ended_words(&self) -> String {
        let is_ended = match &self.record.outcome {
            CallOutcome::Completed { finish } => {
                finish.iter().any(|name| name == FinishReason::ContentFilter.name())
            }
            CallOutcome::Cancelled { .. } => {
                return "The text before the match. The client left before the end of the answer.".to_owned();
            }
            CallOutcome::Failed { .. } | CallOutcome::Refused(_) => {
                return "The text before the match, and then the error that ended the call.".to_owned();
            }
        };
        if !is_ended {
            return "The whole answer: the verdict came after its last text.".to_owned();
        }
        let end = match self.record.endpoint {
            Some(Endpoint::Messages) => "`stop_reason` `refusal`",
            Some(Endpoint::Responses) => "`status` `incomplete` with the reason `content_filter`",
            _ => "`finish_reason` `content_filter`",
        };
        let withheld = match self.used {
            Some(JudgeUse { waits: false, .. }) => "The text that had left before the verdict",
            _ => "The text before the match",
        };
        format!("{withheld}, and then {end}. What did not leave is not charged.")
    }

    /// The setting that changes the decision.
    fn way_out(&self) -> String {
        let rule = format!("`[[moderation.rules]]` with the name `{}`", plain(&self.verdict.rule));
        if self.outcome == ModerationOutcome::NoVerdict || self.is_without_verdict() {
            return self.used.map(deadline_words).unwrap_or_default();
        }
        match self.outcome {
            ModerationOutcome::DryRun => format!("To apply the rule, remove `dry_run` of {rule}."),
            ModerationOutcome::Flagged => {
                let mode = match self.used {
                    Some(JudgeUse { waits: false, .. }) => ", with `mode = \"sync\"`",
                    _ => "",
                };
                format!("To stop such texts, set `action = \"block\"`{mode} of {rule}.")
            }
            _ => {
                let narrow = match (self.verdict.kind.as_deref(), self.used) {
                    (Some("words"), _) => "change `words` or set `whole_word = true`".to_owned(),
                    (Some("regex"), _) => "change `pattern`".to_owned(),
                    (Some("pii"), _) => "take the kind of value out of `entities`".to_owned(),
                    (Some("classifier"), _) => "raise `threshold` or shorten `labels`".to_owned(),
                    (_, Some(used)) => format!(
                        "change what `[[moderation.judges]]` `{}` asks (`categories`, `threshold` or `question`)",
                        plain(&used.judge)
                    ),
                    _ => "change what it matches".to_owned(),
                };
                format!(
                    "If the text should pass: {narrow}, leave the project out of `projects`, or only note matches with \
                     `dry_run = true`, in {rule}."
                )
            }
        }
    }

    /// Whether a text counted as unfit because its judge gave no verdict.
    fn is_without_verdict(&self) -> bool {
        self.used.is_some_and(|used| used.unfit == 0 && used.without_verdict > 0)
    }
}

/// A judge that found nothing.
fn passed_by(used: &JudgeUse) -> ExplainedVerdict {
    let rule = rule_words(&used.rule, Some("judge"), Some(used));
    let text = format!("{rule} found nothing in {}. {}", place_words(used.place), question_words(used));
    ExplainedVerdict {
        rule: plain(&used.rule),
        kind: Some("judge".to_owned()),
        judge: Some(plain(&used.judge)),
        place: Some(used.place.name()),
        outcome: PASSED,
        text,
        client_saw: "Nothing of it: the text passed unchanged.".to_owned(),
        ..costs(Some(used))
    }
}

/// A verdict with only a time and a cost.
fn costs(used: Option<&JudgeUse>) -> ExplainedVerdict {
    let cost = used.and_then(|used| used.cost);
    ExplainedVerdict {
        rule: String::new(),
        kind: None,
        judge: None,
        place: None,
        outcome: PASSED,
        took_us: used.map(|used| used.took_ns as f64 / 1e3),
        cost_nano_dollars: cost.map(|cost| cost.get().to_string()),
        cost_dollars: cost.map(dollars),
        text: String::new(),
        client_saw: String::new(),
        way_out: String::new(),
    }
}

const fn place_words(place: ContentPlace) -> &'static str {
    match place {
        ContentPlace::Input => "the request",
        ContentPlace::Answer => "the text of the answer",
        ContentPlace::Reasoning => "the reasoning",
        ContentPlace::ToolCalls => "a tool call",
    }
}

/// The rule with its kind, such as "The rule `threats` (judge `guard`)".
fn rule_words(rule: &str, kind: Option<&str>, used: Option<&JudgeUse>) -> String {
    let kind = match (kind, used) {
        (_, Some(used)) => format!(" (judge `{}`)", plain(&used.judge)),
        (Some(kind), None) => format!(" ({})", plain(kind)),
        (None, None) => String::new(),
    };
    format!("The rule `{}`{kind}", plain(rule))
}

/// How long the questions took, whether the call waited, and what they cost.
fn question_words(used: &JudgeUse) -> String {
    let JudgeUse { questions, took_ns, longest_ns, waits, cost, .. } = used;
    let longest = match questions {
        0 | 1 => String::new(),
        _ => format!(" together, the longest {}", humane_duration(*longest_ns)),
    };
    let waited = if *waits { "the call waited" } else { "the call did not wait" };
    let cost = cost.map(|cost| format!(" They cost the operator ${}.", dollars(cost))).unwrap_or_default();
    format!(
        "{} took {}{longest}; {waited}.{cost}",
        count((*questions).into(), "question"),
        humane_duration(*took_ns)
    )
}

fn deadline_words(used: &JudgeUse) -> String {
    let judge = format!("`[[moderation.judges]]` with the name `{}`", plain(&used.judge));
    match used.waits && !used.passes_without {
        true => format!(
            "Check the judge's server. A higher `deadline` gives it more time, and `without_verdict = \"pass\"` lets \
             texts without a verdict pass, in {judge}."
        ),
        false => format!("Check the judge's server. A higher `deadline` gives it more time, in {judge}."),
    }
}
