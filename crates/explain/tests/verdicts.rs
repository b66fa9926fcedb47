//! Each verdict of a content rule is explained: what it decided and where, its time and its cost, what the client saw, and the
//! setting that changes it.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod support;

use headrace_domain::{
    CallOutcome, ContentPlace, ContentVerdict, Endpoint, JudgeUse, NanoDollars, Stage, TraceRecord,
    TracedRefusal,
};
use headrace_explain::{ExplainedVerdict, Usual, explain};

use support::{MS, completed, stored};

fn verdict(place: ContentPlace, kind: &str, action: &str) -> ContentVerdict {
    ContentVerdict {
        rule: "guarded".to_owned(),
        action: action.to_owned(),
        kind: Some(kind.into()),
        place: Some(place),
        dry_run: None,
    }
}

fn dry_run(place: ContentPlace, kind: &str, action: &str) -> ContentVerdict {
    ContentVerdict { dry_run: Some(action.into()), ..verdict(place, kind, "flag") }
}

fn used(place: ContentPlace) -> JudgeUse {
    JudgeUse {
        rule: "guarded".to_owned(),
        judge: "llama".to_owned(),
        place,
        waits: true,
        passes_without: false,
        questions: 3,
        unfit: 1,
        without_verdict: 0,
        took_ns: 120 * MS,
        longest_ns: 60 * MS,
        cost: Some(NanoDollars::new(210_000)),
    }
}

/// An answer that a rule ended.
fn ended(endpoint: Endpoint) -> TraceRecord {
    let outcome = CallOutcome::Completed { finish: vec!["content_filter".to_owned()] };
    TraceRecord { outcome, endpoint: Some(endpoint), ..completed() }
}

/// A request that a rule refused.
fn refused() -> TraceRecord {
    let refusal = TracedRefusal {
        stage: Stage::Moderate,
        rule: "content_policy".to_owned(),
        status: 400,
        code: "content_policy".to_owned(),
        message: "Not here.".to_owned(),
    };
    TraceRecord {
        outcome: CallOutcome::Refused(refusal),
        moderation: Some("guarded".to_owned()),
        ..completed()
    }
}

fn explained(record: &TraceRecord) -> Vec<ExplainedVerdict> {
    explain(record, &Usual::unknown()).verdicts
}

#[test]
fn a_verdict_says_what_it_decided_what_the_client_saw_and_the_way_out() {
    use ContentPlace::{Answer, Input, Reasoning, ToolCalls};
    let chat = || ended(Endpoint::ChatCompletions);
    for (record, verdict, uses, outcome, text, saw, way_out) in [
        (
            chat(),
            verdict(Answer, "words", "block"),
            None,
            "blocked",
            "The rule `guarded` (words) ended the answer, by a match in the text of the answer. Its time is a part of `postprocess`.",
            "The text before the match, and then `finish_reason` `content_filter`. What did not leave is not charged.",
            "change `words` or set `whole_word = true`",
        ),
        (
            ended(Endpoint::Messages),
            verdict(Reasoning, "classifier", "block"),
            None,
            "blocked",
            "a match in the reasoning",
            "`stop_reason` `refusal`",
            "raise `threshold` or shorten `labels`",
        ),
        (
            ended(Endpoint::Responses),
            verdict(ToolCalls, "regex", "block"),
            None,
            "blocked",
            "a match in a tool call",
            "`status` `incomplete` with the reason `content_filter`",
            "change `pattern`",
        ),
        (
            chat(),
            verdict(Answer, "judge", "block"),
            Some(used(Answer)),
            "blocked",
            "The rule `guarded` (judge `llama`) ended the answer, by a match in the text of the answer. 3 questions took \
             120 ms together, the longest 60.0 ms; the call waited. They cost the operator $0.00021.",
            "The text before the match",
            "change what `[[moderation.judges]]` `llama` asks",
        ),
        (
            chat(),
            verdict(Answer, "judge", "block"),
            Some(JudgeUse { unfit: 0, without_verdict: 1, ..used(Answer) }),
            "blocked",
            "ended the answer",
            "`content_filter`",
            "`without_verdict = \"pass\"` lets texts without a verdict pass, in `[[moderation.judges]]` with the name `llama`.",
        ),
        (
            chat(),
            verdict(Answer, "judge", "block"),
            Some(JudgeUse { waits: false, cost: None, questions: 1, ..used(Answer) }),
            "blocked",
            "1 question took 120 ms; the call did not wait.",
            "The text that had left before the verdict, and then",
            "leave the project out of `projects`",
        ),
        (
            completed(),
            verdict(Answer, "judge", "block"),
            Some(JudgeUse { waits: false, ..used(Answer) }),
            "blocked",
            "ended the answer",
            "The whole answer: the verdict came after its last text.",
            "`dry_run = true`",
        ),
        (
            completed(),
            verdict(Answer, "pii", "redact"),
            None,
            "redacted",
            "The rule `guarded` (pii) replaced its matches in the text of the answer.",
            "The answer with the matches replaced.",
            "take the kind of value out of `entities`",
        ),
        (
            completed(),
            verdict(ToolCalls, "pii", "redact"),
            None,
            "redacted",
            "in a tool call",
            "The tool call with the matches replaced.",
            "`entities`",
        ),
        (
            completed(),
            verdict(Reasoning, "words", "flag"),
            None,
            "flagged",
            "matched in the reasoning, and only noted it.",
            "the text passed unchanged",
            "set `action = \"block\"` of `[[moderation.rules]]` with the name `guarded`.",
        ),
        (
            completed(),
            dry_run(Answer, "words", "redact"),
            None,
            "dry_run",
            "matched in the text of the answer, in a dry run.",
            "Without the dry run, the match would have been replaced.",
            "remove `dry_run`",
        ),
        (
            completed(),
            dry_run(Input, "words", "block"),
            None,
            "dry_run",
            "All rules on the request together took",
            "Without the dry run, the call would have been refused.",
            "remove `dry_run`",
        ),
        (
            refused(),
            verdict(Input, "judge", "block"),
            Some(used(Input)),
            "blocked",
            "The rule `guarded` (judge `llama`) refused the request. 3 questions took 120 ms together",
            "HTTP 400 with the code `content_policy`. Nothing was charged.",
            "change what `[[moderation.judges]]` `llama` asks",
        ),
        (
            completed(),
            verdict(Input, "judge", "flag"),
            Some(JudgeUse { waits: false, ..used(Input) }),
            "flagged",
            "matched in the request, and only noted it. 3 questions took 120 ms together, the longest 60.0 ms; the call did not wait.",
            "the text passed unchanged",
            "set `action = \"block\"`, with `mode = \"sync\"`",
        ),
        (
            completed(),
            verdict(Input, "judge", "no_verdict"),
            Some(JudgeUse { passes_without: true, unfit: 0, without_verdict: 1, ..used(Input) }),
            "no_verdict",
            "got no verdict about the request in time.",
            "the text passed unchanged",
            "A higher `deadline` gives it more time",
        ),
        (
            refused(),
            verdict(Input, "judge", "no_verdict"),
            Some(JudgeUse { unfit: 0, without_verdict: 1, ..used(Input) }),
            "no_verdict",
            "got no verdict about the request in time.",
            "The text counted as unfit",
            "`without_verdict = \"pass\"`",
        ),
    ] {
        let what = format!("{verdict:?} {uses:?}");
        let (input, output) = match verdict.place {
            Some(Input) => (vec![verdict.clone()], Vec::new()),
            _ => (Vec::new(), vec![verdict.clone()]),
        };
        let record = TraceRecord {
            input_verdicts: input,
            output_verdicts: output,
            judge_uses: uses.clone().into_iter().collect(),
            ..record
        };
        let [found]: [ExplainedVerdict; 1] = explained(&record).try_into().unwrap();
        assert_eq!((found.rule.as_str(), found.outcome), ("guarded", outcome), "{what}");
        assert_eq!(found.place, verdict.place.map(ContentPlace::name), "{what}");
        assert_eq!(found.took_us, uses.as_ref().map(|_| 120_000.0), "{what}");
        let cost = uses.and_then(|used| used.cost).map(|cost| cost.get().to_string());
        assert_eq!(found.cost_nano_dollars, cost, "{what}");
        assert!(found.text.contains(text), "{what}: {}", found.text);
        assert!(found.client_saw.contains(saw), "{what}: {}", found.client_saw);
        assert!(found.way_out.contains(way_out), "{what}: {}", found.way_out);
    }
}

#[test]
fn a_judge_that_found_nothing_is_named_with_its_time() {
    let uses = vec![
        JudgeUse { unfit: 0, ..used(ContentPlace::Input) },
        JudgeUse { unfit: 0, questions: 1, cost: None, ..used(ContentPlace::Answer) },
    ];
    let record = TraceRecord { judge_uses: uses, ..completed() };
    let found = explained(&record);
    let places: Vec<_> = found.iter().map(|verdict| (verdict.outcome, verdict.place.unwrap())).collect();
    assert_eq!(places, [("passed", "input"), ("passed", "answer")]);
    assert_eq!(found[0].cost_dollars.as_deref(), Some("0.00021"));
    assert!(found[1].text.ends_with("1 question took 120 ms; the call waited."), "{}", found[1].text);
}

#[test]
fn verdicts_of_older_versions_are_explained_as_far_as_they_are_known() {
    let old = ContentVerdict { kind: None, place: None, ..verdict(ContentPlace::Answer, "", "redact") };
    let record = TraceRecord { output_verdicts: vec![old], ..completed() };
    let [found]: [ExplainedVerdict; 1] = explained(&record).try_into().unwrap();
    assert_eq!((found.outcome, found.place, found.kind), ("redacted", None, None));
    assert!(found.text.starts_with("The rule `guarded` replaced its matches in the call."), "{}", found.text);
    // An older record has the name of the rule on the request alone.
    let [found]: [ExplainedVerdict; 1] = explained(&refused()).try_into().unwrap();
    assert_eq!((found.outcome, found.place), ("blocked", Some("input")));
    for (name, text) in stored() {
        let record = headrace_trace::decode_record(text).unwrap();
        let verdicts = usize::from(record.moderation.is_some()) + record.output_verdicts.len();
        assert_eq!(explained(&record).len(), verdicts, "{name}");
    }
}

#[test]
fn the_text_lists_the_verdicts_before_the_terms() {
    let record = TraceRecord {
        output_verdicts: vec![
            ContentVerdict {
                rule: "second\u{1b}[31m".to_owned(),
                ..dry_run(ContentPlace::Answer, "words", "block")
            },
            verdict(ContentPlace::Answer, "judge", "block"),
        ],
        judge_uses: vec![used(ContentPlace::Answer)],
        ..ended(Endpoint::ChatCompletions)
    };
    let text = explain(&record, &Usual::unknown()).text(100);
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
    assert!(at("content rules\n") < at("where the time went"), "{text}");
    let part = &text[at("content rules\n")..at("where the time went")];
    let expected = "\
content rules
  dry run: The rule `second\u{fffd}[31m` (words) matched in the text of the answer, in a dry run. Its
    time is a part of `postprocess`.
    the client saw: Nothing of it: the text passed unchanged. Without the dry run, the answer would
    have ended before the match.
    what to do: To apply the rule, remove `dry_run` of `[[moderation.rules]]` with the name
    `second\u{fffd}[31m`.
  blocked: The rule `guarded` (judge `llama`) ended the answer, by a match in the text of the
    answer. 3 questions took 120 ms together, the longest 60.0 ms; the call waited. They cost the
    operator $0.00021.
    the client saw: The text before the match, and then `finish_reason` `content_filter`. What did
    not leave is not charged.
    what to do: If the text should pass: change what `[[moderation.judges]]` `llama` asks
    (`categories`, `threshold` or `question`), leave the project out of `projects`, or only note
    matches with `dry_run = true`, in `[[moderation.rules]]` with the name `guarded`.

";
    assert_eq!(part, expected, "{part}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}
