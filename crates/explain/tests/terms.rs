//! Terms partition a call's time, for any record. A delay is attributed to its own term, usual values come from
//! comparable calls, and older records are explained too.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]

mod support;

use headrace_domain::{
    Attempt, AttemptOutcome, CallOutcome, ConcurrentWork, EngineTrace, Stage, StageSpan, TraceRecord,
    WorkAhead,
};
use headrace_explain::{LeverName, TermName, Usual, diff, explain};
use headrace_trace::decode_record;
use proptest::prelude::*;

use support::{MS, completed, delayed, numbered, stored};

/// The sum of the terms, and the total, in microseconds.
fn sums(record: &TraceRecord) -> (f64, f64) {
    let explanation = explain(record, &Usual::unknown());
    (explanation.terms.iter().map(|term| term.us).sum(), explanation.total_us)
}

fn spans() -> impl Strategy<Value = Vec<StageSpan>> {
    let span = (0..Stage::ALL.len(), any::<u32>(), any::<u32>(), proptest::option::of(0..Stage::ALL.len()));
    let spans = prop::collection::vec(span, 0..30);
    spans.prop_map(|spans| {
        let stage = |at: usize| Stage::ALL[at];
        let made = spans.into_iter().map(|(at, start, took, inside)| StageSpan {
            stage: stage(at),
            start_ns: start.into(),
            duration_ns: took.into(),
            inside: inside.map(stage),
        });
        made.collect()
    })
}

proptest! {
    #[test]
    fn terms_sum_to_the_call_whatever_its_record_says(
        stages in spans(),
        duration_ns in prop_oneof![Just(0), any::<u32>().prop_map(u64::from), any::<u64>()],
        parts in any::<[u64; 5]>(),
        tries in prop::collection::vec((any::<u32>(), any::<u64>(), any::<bool>()), 0..6),
        first in proptest::option::of(any::<u64>()),
    ) {
        let [own_prefill_ns, own_decode_ns, others_prefill_ns, others_decode_ns, decode_prefill_ns] = parts;
        let ahead =
            WorkAhead { own_prefill_ns, own_decode_ns, others_prefill_ns, others_decode_ns, ..WorkAhead::default() };
        let beside = ConcurrentWork { decode_prefill_ns, ..ConcurrentWork::default() };
        let engine = EngineTrace { ahead: Some(ahead), beside: Some(beside), ..EngineTrace::default() };
        let attempts = tries.into_iter().map(|(start, took, fails)| Attempt {
            prompt: 0,
            worker: "w".into(),
            model: None,
            start_ns: start.into(),
            duration_ns: took,
            outcome: if fails {
                AttemptOutcome::Failed { code: "worker_lost".to_owned(), why: "gone".to_owned() }
            } else {
                AttemptOutcome::Answered
            },
            paid: None,
        });
        let record = TraceRecord {
            stages,
            duration_ns,
            first_token_ns: first,
            engine: Some(engine),
            attempts: attempts.collect(),
            ..completed()
        };
        let (sum, whole) = sums(&record);
        prop_assert!((sum - whole).abs() <= whole * 1e-9 + 0.001, "{sum} of {whole}");
        let twice = diff(&record, &completed());
        let deltas: f64 = twice.terms.iter().map(|term| term.delta_us).sum();
        let apart = twice.b_us - twice.a_us;
        prop_assert!((deltas - apart).abs() <= apart.abs() * 1e-9 + whole * 1e-9 + 0.01);
    }
}

#[test]
fn a_delay_in_a_stage_is_named_by_its_term() {
    for stage in Stage::ALL {
        let slow = delayed(stage, 4_000 * MS);
        let calls: Vec<TraceRecord> = (1..40).map(|n| numbered(completed(), n)).collect();
        let explanation = explain(&slow, &Usual::of(&calls, &slow));
        let expected = TermName::ALL.iter().find(|term| term.name() == stage.name()).unwrap();
        assert_eq!(explanation.dearest, Some(*expected), "{stage}: {}", explanation.sentence);
        let term = explanation.terms.iter().find(|term| term.name == *expected).unwrap();
        assert!(term.unusual, "{stage}: {term:?}");
        assert!(
            !explanation.unusual.is_empty() && explanation.unusual[0].contains(stage.name()),
            "{:?}",
            explanation.unusual
        );
        assert!(
            explanation.sentence.starts_with("Most of its") && explanation.sentence.ends_with('.'),
            "{}",
            explanation.sentence
        );
        let others = explanation.terms.iter().filter(|term| term.name != *expected && term.unusual).count();
        assert_eq!(others, 0, "{stage}: {:?}", explanation.unusual);
    }
}

#[test]
fn a_wait_is_told_by_what_was_ahead() {
    let mut engine = completed().engine.unwrap();
    engine.queue_ns = 900 * MS;
    engine.queue_depth = 3;
    let of = |ahead: WorkAhead| {
        let engine = EngineTrace { ahead: Some(ahead), ..engine.clone() };
        TraceRecord { engine: Some(engine), ..delayed(Stage::Queue, 4_000 * MS) }
    };
    for (ahead, name, words) in [
        (
            WorkAhead { own_decode_ns: 3_000 * MS, own: 3, ..WorkAhead::default() },
            "queue_own",
            "same organisation",
        ),
        (
            WorkAhead { own_prefill_ns: 3_000 * MS, own: 1, ..WorkAhead::default() },
            "queue_own_prompts",
            "prompts of the same",
        ),
        (
            WorkAhead { others_decode_ns: 3_000 * MS, running: 4, ..WorkAhead::default() },
            "queue_others",
            "7 answers of others",
        ),
        (
            WorkAhead { others_prefill_ns: 3_000 * MS, prefill_tokens: 9_000, ..WorkAhead::default() },
            "queue_others_prompts",
            "9,000 prompt tokens",
        ),
    ] {
        let explanation = explain(&of(ahead), &Usual::unknown());
        assert_eq!(explanation.dearest.unwrap().name(), name, "{}", explanation.sentence);
        assert!(explanation.sentence.contains(words), "{}", explanation.sentence);
        let (sum, whole) = sums(&of(ahead));
        assert!((sum - whole).abs() < 0.01);
    }
    // Missing data is reported as missing, and never invented.
    let old = TraceRecord {
        engine: Some(EngineTrace { ahead: None, ..engine }),
        ..delayed(Stage::Queue, 4_000 * MS)
    };
    let explanation = explain(&old, &Usual::unknown());
    assert!(
        explanation.sentence.contains("3 calls waited already; the record does not say whose"),
        "{}",
        explanation.sentence
    );
    assert!(explanation.notes.iter().any(|note| note.contains("older version")), "{:?}", explanation.notes);
}

#[test]
fn prompts_of_others_in_the_middle_of_an_answer_are_told() {
    let mut record = delayed(Stage::Decode, 4_000 * MS);
    let beside = ConcurrentWork {
        decode_prefill_ns: 3_500 * MS,
        decode_prefill_tokens: 6_000,
        ..ConcurrentWork::default()
    };
    record.engine.as_mut().unwrap().beside = Some(beside);
    let explanation = explain(&record, &Usual::unknown());
    assert_eq!(explanation.dearest, Some(TermName::DecodeBehindPrompts));
    assert!(explanation.sentence.contains("6,000 prompt tokens of others"), "{}", explanation.sentence);
}

#[test]
fn tries_in_vain_are_told_apart_from_the_one_that_answered() {
    let mut record = delayed(Stage::Prefill, 3_000 * MS);
    let start = record.span(Stage::Prefill).unwrap().start_ns;
    let attempt = |start_ns, duration_ns, outcome, worker: &str| Attempt {
        prompt: 0,
        worker: worker.into(),
        model: None,
        start_ns,
        duration_ns,
        outcome,
        paid: None,
    };
    let lost = AttemptOutcome::Failed { code: "worker_lost".to_owned(), why: "gone".to_owned() };
    record.attempts = vec![
        attempt(start, 2_500 * MS, lost, "gpu1/qwen"),
        attempt(start + 2_500 * MS, 2_000 * MS, AttemptOutcome::Answered, "gpu2/qwen"),
    ];
    let explanation = explain(&record, &Usual::unknown());
    assert_eq!(explanation.dearest, Some(TermName::Retries), "{}", explanation.sentence);
    assert!(
        explanation.sentence.contains("1 try came to nothing: `gpu1/qwen` (worker_lost)"),
        "{}",
        explanation.sentence
    );
    let retries = explanation.terms.iter().find(|term| term.name == TermName::Retries).unwrap();
    assert!((retries.us - 2_500_000.0).abs() < 1.0, "{retries:?}");
    assert!(
        explanation.levers.iter().any(|lever| lever.name.name() == "fewer-retries"),
        "{:?}",
        explanation.levers
    );
}

#[test]
fn what_is_usual_comes_from_comparable_calls() {
    let record = delayed(Stage::Render, 50 * MS);
    // Calls of another model, and failed ones, do not count.
    let other = TraceRecord { model_served: Some("other".to_owned()), ..delayed(Stage::Render, 900 * MS) };
    let broken = TraceRecord {
        outcome: CallOutcome::Cancelled { why: "gone".to_owned() },
        ..delayed(Stage::Render, 900 * MS)
    };
    let mut calls: Vec<TraceRecord> = (1..20).map(|n| numbered(completed(), n)).collect();
    calls.extend((20..60).map(|n| numbered(other.clone(), n)));
    calls.extend((60..99).map(|n| numbered(broken.clone(), n)));
    let explanation = explain(&record, &Usual::of(&calls, &record));
    assert_eq!(explanation.compared.calls, 19, "{:?}", explanation.compared);
    let term = explanation.terms.iter().find(|term| term.name == TermName::Render).unwrap();
    let usual = completed().span(Stage::Render).unwrap().duration_ns as f64 / 1e3;
    assert!((term.usual_us.unwrap() - usual).abs() < 1.0 && term.unusual, "{term:?}");
    // A longer prompt may take longer: usual values are scaled to this call's size.
    let mut twice = numbered(completed(), 100);
    twice.usage.input *= 2;
    let explanation = explain(&twice, &Usual::of(&calls, &twice));
    let prefill = explanation.terms.iter().find(|term| term.name == TermName::Prefill).unwrap();
    assert!((prefill.usual_us.unwrap() / prefill.us - 2.0).abs() < 0.01, "{prefill:?}");
    // Too few calls are not called usual.
    let few = explain(&record, &Usual::of(&calls[..2], &record));
    assert!(few.compared.calls == 0 && few.terms.iter().all(|term| term.usual_us.is_none()));
}

#[test]
fn stored_records_of_every_version_are_explained() {
    for (name, text) in stored() {
        let record = decode_record(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let explanation = explain(&record, &Usual::unknown());
        let sum: f64 = explanation.terms.iter().map(|term| term.us).sum();
        assert!(
            (sum - explanation.total_us).abs() <= explanation.total_us * 0.01 + 0.001,
            "{name}: {sum} of {}",
            explanation.total_us
        );
        let page = explanation.text(80);
        assert!(page.lines().all(|line| headrace_trace::cells(line) <= 80), "{name}:\n{page}");
        assert!(page.contains(&explanation.id) && !explanation.sentence.is_empty(), "{name}:\n{page}");
        serde_json::to_string(&explanation).unwrap();
    }
}

#[test]
fn rounds_are_listed_if_there_were_several() {
    let of = |name: &str| {
        let (_, text) = stored().into_iter().find(|(of, _)| *of == name).unwrap();
        explain(&decode_record(text).unwrap(), &Usual::unknown())
    };
    let (several, one) = (of("fell-back"), of("moved-on"));
    assert_eq!(several.rounds.len(), 2, "{:?}", several.rounds);
    let page = several.text(100);
    assert!(page.contains("rounds\n  1: large at vllm/large failed (answer_off_form)"), "{page}");
    assert!(one.rounds.is_empty() && !one.text(100).contains("rounds"));
}

#[test]
fn a_refusal_is_told_with_its_rule_and_its_way_out() {
    let (_, text) = stored().into_iter().find(|(name, _)| *name == "refused").unwrap();
    let record = decode_record(text).unwrap();
    let explanation = explain(&record, &Usual::unknown());
    let refusal = explanation.refusal.as_ref().unwrap();
    assert!(explanation.sentence.starts_with("It was refused in `"), "{}", explanation.sentence);
    assert!(!refusal.meaning.is_empty() && refusal.doc.starts_with("docs/errors/"), "{refusal:?}");
    assert!(explanation.text(100).contains("what it means: "), "{}", explanation.text(100));
}

fn tried(worker: &str, outcome: AttemptOutcome) -> Attempt {
    let (start_ns, duration_ns) = (2 * MS, 3 * MS);
    Attempt { prompt: 0, worker: worker.into(), model: None, start_ns, duration_ns, outcome, paid: None }
}

/// The fault of an upstream is named, in the sentence and in the table of attempts.
#[test]
fn a_failure_of_an_upstream_is_named() {
    let failed =
        |code: &str, why: &str| AttemptOutcome::Failed { code: code.to_owned(), why: why.to_owned() };
    for (outcome, words) in [
        (
            failed("upstream_unreachable", "no connection: connection refused at 10.0.0.7:8000"),
            "`far` refused the connection at 10.0.0.7:8000.",
        ),
        (
            failed("upstream_unreachable", "no connection: the name of gpu cannot be resolved"),
            "`far` was not reached: the name of gpu cannot be resolved.",
        ),
        (failed("upstream_failed", "status 500: the kettle broke"), "`far` answered 500: the kettle broke."),
        (
            failed("upstream_refused", "status 400"),
            "`far` answered 400 (the upstream's text may repeat the call's text and is not stored)",
        ),
        (failed("upstream_timeout", "no head within 60 s"), "`far` failed (`upstream_timeout`): no head"),
        (
            AttemptOutcome::Refused {
                code: "upstream_overloaded".to_owned(),
                why: "status 429: slow down".to_owned(),
            },
            "`far` answered 429: slow down.",
        ),
    ] {
        let record = TraceRecord {
            upstream: Some("far".into()),
            attempts: vec![tried("gpu1/m", failed("worker_lost", "gone")), tried("far/m", outcome)],
            outcome: CallOutcome::Failed {
                stage: Stage::Upstream,
                message: "The upstream failed.".to_owned(),
            },
            ..delayed(Stage::Upstream, 4_000 * MS)
        };
        let explanation = explain(&record, &Usual::unknown());
        assert!(explanation.sentence.contains(words), "{}", explanation.sentence);
        assert!(
            explanation.sentence.contains("Its caller received: The upstream failed."),
            "{}",
            explanation.sentence
        );
        assert!(!explanation.text(100).contains("tell its queue"), "{}", explanation.text(100));
        let page = explanation.text(100);
        assert!(page.contains("who was asked") && page.contains("gpu1/m"), "{page}");
        assert_eq!(explanation.attempts.len(), 2);
    }
    // A single attempt that answered needs no table.
    let record = TraceRecord {
        attempts: vec![tried("far/m", AttemptOutcome::Answered)],
        ..delayed(Stage::Upstream, 4_000 * MS)
    };
    assert!(!explain(&record, &Usual::unknown()).text(100).contains("who was asked"));
}

/// The sentence gives the family's figure, even if a single other term is larger than each part of the family.
#[test]
fn the_largest_part_is_the_largest() {
    let mut record = delayed(Stage::Queue, 3_370 * MS);
    let engine = record.engine.as_mut().unwrap();
    engine.ahead = Some(WorkAhead { own_decode_ns: 2_990 * MS, own: 3, ..WorkAhead::default() });
    let explanation = explain(&record, &Usual::unknown());
    let queue: f64 = explanation
        .terms
        .iter()
        .filter(|term| term.name.name().starts_with("queue"))
        .map(|term| term.us)
        .sum();
    let decode = explanation.terms.iter().find(|term| term.name == TermName::Decode).unwrap().us;
    assert!(queue > decode, "{queue} {decode}");
    let figure = headrace_trace::humane_duration((queue * 1e3) as u64);
    assert!(
        explanation.sentence.contains(&format!("waiting for its turn ({figure}")),
        "{}",
        explanation.sentence
    );
    assert!(
        explanation.sentence.contains("most of that waiting behind calls of the same organisation (2.99 s)"),
        "{}",
        explanation.sentence
    );
}

/// A refused call did not get as far as answered ones, so nothing in it is unusual.
#[test]
fn a_refused_call_is_compared_with_none() {
    let (_, text) = stored().into_iter().find(|(name, _)| *name == "refused").unwrap();
    let mut refused = decode_record(text).unwrap();
    let calls: Vec<TraceRecord> = (1..40).map(|n| numbered(completed(), n)).collect();
    for span in &mut refused.stages {
        span.duration_ns *= 1_000;
    }
    refused.duration_ns *= 1_000;
    refused.model_served = completed().model_served;
    (refused.endpoint, refused.stream) = (completed().endpoint, completed().stream);
    let explanation = explain(&refused, &Usual::of(&calls, &refused));
    assert_eq!(explanation.unusual, Vec::<String>::new());
    assert!(
        explanation.terms.iter().all(|term| term.usual_us.is_none() && !term.unusual),
        "{:?}",
        explanation.terms
    );
    assert!(explanation.compared.what.contains("refused"), "{:?}", explanation.compared);
    // A failed call is compared only in its waits.
    let failed = TraceRecord {
        outcome: CallOutcome::Failed { stage: Stage::Upstream, message: "It broke.".to_owned() },
        ..delayed(Stage::Render, 4_000 * MS)
    };
    assert_eq!(explain(&failed, &Usual::of(&calls, &failed)).unusual, Vec::<String>::new());
}

#[test]
fn compiling_a_form_is_a_term_of_its_own() {
    let mut record = delayed(Stage::Render, 4_000 * MS);
    record.form_ns = 3_900 * MS;
    let explanation = explain(&record, &Usual::unknown());
    assert_eq!(explanation.dearest, Some(TermName::Form), "{}", explanation.sentence);
    assert!(explanation.sentence.contains("compiling the form of the answer"), "{}", explanation.sentence);
    assert!(!explanation.sentence.contains("tokenized"), "{}", explanation.sentence);
    let (sum, whole) = sums(&record);
    assert!((sum - whole).abs() < 0.01);
    // Time beyond the stage's own is not attributed to the form.
    record.form_ns = u64::MAX;
    let (sum, whole) = sums(&record);
    assert!((sum - whole).abs() < 0.01);
}

/// A model that is served under two names is one model, so the other name is no lever.
#[test]
fn two_names_of_one_model_are_one() {
    let of = |n: u64, model: &str, worker: &str, decode: u64| {
        let mut record = numbered(delayed(Stage::Decode, decode * MS), n);
        record.model_served = Some(model.to_owned());
        record.attempts = vec![tried(worker, AttemptOutcome::Answered)];
        record
    };
    let slow = of(1, "alias", "far/m", 9_000);
    let mut calls: Vec<TraceRecord> = (2..12).map(|n| of(n, "far/m", "far/m", 1_000)).collect();
    let lever = |calls: &[TraceRecord]| {
        let explanation = explain(&slow, &Usual::of(calls, &slow));
        explanation.levers.into_iter().find(|lever| lever.name == LeverName::SmallerModel)
    };
    assert_eq!(lever(&calls), None);
    calls.extend((12..22).map(|n| of(n, "small", "gpu/small", 2_000)));
    let found = lever(&calls).unwrap();
    assert!(found.text.contains("`small`"), "{found:?}");
}

#[test]
fn hostile_names_do_not_reach_the_terminal() {
    let record = TraceRecord {
        model_served: Some("m\u{1b}[2J".to_owned()),
        upstream: Some("u\u{1b}]0;x".into()),
        outcome: CallOutcome::Cancelled { why: "\u{202e}gone\u{7}".to_owned() },
        ..delayed(Stage::Upstream, 4_000 * MS)
    };
    let calls: Vec<TraceRecord> = (1..9).map(|n| numbered(record.clone(), n)).collect();
    let text = explain(&record, &Usual::of(&calls, &record)).text(100);
    assert!(!text.chars().any(|c| c.is_control() && c != '\n') && !text.contains('\u{202e}'), "{text:?}");
}

#[test]
fn the_page_lists_every_term_and_lever() {
    let page = include_str!("../../../docs/why.md");
    for term in TermName::ALL {
        assert_eq!(page.matches(&format!("\n| `{}` |", term.name())).count(), 1, "{}", term.name());
    }
    for lever in LeverName::ALL {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{lever}` |"))).unwrap();
        assert_eq!(row.ends_with("| yes |"), lever.can_be_tried(), "{row}");
    }
}
