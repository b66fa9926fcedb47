//! Tests that the spans partition the call for any marks and any engine reports.

use super::*;
use proptest::prelude::*;

fn describe(line: &Timeline) -> String {
    let one = |span: &StageSpan| match span.inside {
        None => format!("{} {}+{}", span.stage, span.start_ns, span.duration_ns),
        Some(inside) => format!("({} in {inside} {})", span.stage, span.duration_ns),
    };
    line.spans().iter().map(one).collect::<Vec<_>>().join(", ")
}

fn run(submitted_ns: u64, queue_ns: u64, prefill_ns: u64, decode_ns: u64) -> EngineRun {
    EngineRun { submitted_ns, queue_ns, prefill_ns, decode_ns, paused_ns: 0 }
}

fn placed_at(ns: u64) -> Timeline {
    let mut line = Timeline::new();
    line.mark(Stage::Place, ns);
    line
}

fn paused(pauses: &[(u64, u64)]) -> ReaderPauses {
    let mut out = ReaderPauses::default();
    for (from, to) in pauses {
        out.set(true, *from);
        out.set(true, from + 1);
        out.set(false, *to);
    }
    out
}

#[test]
fn the_engines_times_are_laid_between_what_the_task_saw() {
    // Columns: runs, when the task saw the first token, when it took the last event, pauses, expected spans.
    type Row<'a> = (&'a [EngineRun], Option<u64>, u64, &'a [(u64, u64)], &'a str);
    const RUN: EngineRun =
        EngineRun { submitted_ns: 100, queue_ns: 10, prefill_ns: 20, decode_ns: 30, paused_ns: 0 };
    let rows: &[Row<'_>] = &[
        (&[RUN], Some(135), 165, &[], "queue 100+10, prefill 110+20, decode 130+30, handover 160+5"),
        // The task saw the first token earlier than the engine's sum allows: the task's observation wins.
        (&[RUN], Some(120), 165, &[], "queue 100+10, prefill 110+10, decode 120+40, handover 160+5"),
        // The engine reports more time than the call lasted.
        (&[RUN], Some(112), 140, &[], "queue 100+10, prefill 110+2, decode 112+28"),
        // The call waited in the queue until it was cancelled.
        (&[run(100, 60, 0, 0)], None, 165, &[], "queue 100+60, handover 160+5"),
        // The call was cancelled before its first token.
        (&[run(100, 10, 50, 0)], None, 160, &[], "queue 100+10, prefill 110+50"),
        // The answer has one token.
        (
            &[run(100, 10, 50, 0)],
            Some(161),
            165,
            &[],
            "queue 100+10, prefill 110+50, decode 160+0, handover 160+5",
        ),
        // The engine died without a report.
        (&[], None, 165, &[], "handover 100+65"),
        // Two prompts: from the first that began to the last that ended.
        (
            &[RUN, run(105, 1, 100, 40)],
            Some(140),
            250,
            &[],
            "queue 100+6, prefill 106+24, decode 130+116, handover 246+4",
        ),
        // The reader paused during decode and after its end.
        (
            &[RUN],
            Some(135),
            400,
            &[(140, 150), (155, 175), (200, 390)],
            "queue 100+10, prefill 110+20, decode 130+30, (reader in decode 15), reader 160+205, handover 365+35",
        ),
        // The engine paused for the reader, and the task waited for the reader longer than that.
        (
            &[EngineRun { paused_ns: 8, ..RUN }],
            Some(135),
            170,
            &[(140, 152)],
            "queue 100+10, prefill 110+20, decode 130+22, (reader in decode 4), reader 152+8, handover 160+10",
        ),
    ];
    for (runs, first_token_ns, until_ns, pauses, expected) in rows {
        let mut line = placed_at(100);
        let (first_token_ns, until_ns) = (*first_token_ns, *until_ns);
        line.engine(runs.iter().copied(), &EngineSeen { first_token_ns, until_ns, pauses: &paused(pauses) });
        assert_eq!(describe(&line), format!("place 0+100, {expected}"));
        assert!(is_partition(line.spans(), until_ns));
    }
}

#[test]
fn shares_fit_into_their_span_and_say_what_does_not() {
    let mut line = placed_at(10);
    line.mark(Stage::Decode, 110);
    assert_eq!(line.share(Stage::Postprocess, Stage::Decode, 70), 0);
    assert_eq!(line.share(Stage::Deliver, Stage::Decode, 70), 40);
    assert_eq!(line.share(Stage::Deliver, Stage::Handover, 40), 40, "there is none");
    line.mark(Stage::Settle, 115);
    line.mark(Stage::Settle, 112);
    line.mark(Stage::Settle, 120);
    assert_eq!(
        describe(&line),
        "place 0+10, decode 10+100, (postprocess in decode 70), (deliver in decode 30), settle 110+10"
    );
}

#[test]
fn spans_that_contradict_each_other_are_brought_into_order() {
    let span = |stage, start_ns, duration_ns| StageSpan { stage, start_ns, duration_ns, inside: None };
    let spans = [
        span(Stage::Connect, 0, 10),
        span(Stage::Place, 12, 8),
        span(Stage::Queue, 20, 5),
        span(Stage::Decode, 25, 900),
        span(Stage::Postprocess, 30, 7),
        span(Stage::Settle, 90, 20),
    ];
    let line = Timeline::from_overlapping(&spans, 100);
    assert_eq!(
        describe(&line),
        "connect 0+10, handover 10+2, place 12+8, queue 20+5, decode 25+65, (postprocess in decode 7), settle 90+10"
    );
    assert!(!is_partition(&spans, 100) && is_partition(line.spans(), 100));
    for broken in [
        vec![span(Stage::Connect, 0, 10)],
        vec![span(Stage::Connect, 1, 99)],
        vec![span(Stage::Connect, 0, 60), span(Stage::Place, 50, 50)],
        vec![
            span(Stage::Connect, 0, 100),
            StageSpan { inside: Some(Stage::Place), ..span(Stage::Deliver, 0, 1) },
        ],
        vec![
            span(Stage::Decode, 0, 100),
            StageSpan { inside: Some(Stage::Decode), ..span(Stage::Deliver, 0, 60) },
            StageSpan { inside: Some(Stage::Decode), ..span(Stage::Postprocess, 0, 60) },
        ],
    ] {
        assert!(!is_partition(&broken, 100), "{broken:?}");
    }
}

#[test]
fn of_many_pauses_the_nearest_are_joined() {
    let mut pauses = ReaderPauses::default();
    for at in 0..1_000_u64 {
        pauses.set(true, at * 100);
        pauses.set(false, at * 100 + 90);
    }
    assert_eq!(pauses.kept.len(), PAUSES_KEPT);
    let all = pauses.within(0, u64::MAX);
    assert!((90_000..100_000).contains(&all), "{all}");
    pauses.set(true, 200_000);
    assert!(pauses.is_paused());
    assert_eq!(pauses.within(200_000, 200_007), 7);
}

fn any_run() -> impl Strategy<Value = EngineRun> {
    let time = || prop_oneof![0..3_000_u64, any::<u64>()];
    let run = |(a, b, c, d, paused_ns)| EngineRun { paused_ns, ..run(a, b, c, d) };
    (time(), time(), time(), time(), time()).prop_map(run)
}

fn any_stage() -> impl Strategy<Value = Stage> {
    proptest::sample::select(Stage::ALL.to_vec())
}

proptest! {
    /// Covers clocks that stop or go back, engines that report more time than passed, jobs that never began, and pauses
    /// in any order.
    #[test]
    fn whatever_the_marks_and_the_engine_say_the_spans_partition_the_call(
        before in proptest::collection::vec((any_stage(), 0..2_000_u64), 0..12),
        runs in proptest::collection::vec(any_run(), 0..4),
        first_token_ns in proptest::option::of(prop_oneof![0..4_000_u64, any::<u64>()]),
        until_ns in 0..4_000_u64,
        pauses in proptest::collection::vec((any::<bool>(), 0..5_000_u64), 0..40),
        shares in proptest::collection::vec((any_stage(), any_stage(), any::<u64>()), 0..6),
        after in proptest::collection::vec((any_stage(), 0..6_000_u64), 0..4),
    ) {
        let mut line = Timeline::new();
        for (stage, now) in &before {
            line.mark(*stage, *now);
        }
        let placed = line.end_ns();
        let mut paused = ReaderPauses::default();
        for (on, now) in pauses {
            paused.set(on, now);
        }
        line.engine(runs.iter().copied(), &EngineSeen { first_token_ns, until_ns, pauses: &paused });
        prop_assert_eq!(line.end_ns(), placed.max(until_ns));
        if let Some(seen) = first_token_ns {
            // No token can be seen before the prompt was computed.
            let prefilled = line.spans().iter().rfind(|span| span.stage == Stage::Prefill).map(|s| s.start_ns + s.duration_ns);
            let ours = runs.is_empty() || before.iter().any(|(stage, _)| *stage == Stage::Prefill);
            prop_assert!(ours || prefilled.is_some_and(|end| end <= seen.max(placed)));
        }
        for (stage, inside, duration) in shares {
            prop_assert!(line.share(stage, inside, duration) <= duration);
        }
        for (stage, now) in after {
            line.mark(stage, now);
        }
        prop_assert!(is_partition(line.spans(), line.end_ns()), "{}", describe(&line));
    }

    #[test]
    fn any_list_of_spans_becomes_a_partition(
        spans in proptest::collection::vec((any_stage(), any::<u64>(), any::<u64>(), proptest::option::of(any_stage())), 0..20),
        duration in any::<u64>(),
    ) {
        let spans: Vec<StageSpan> = spans
            .into_iter()
            .map(|(stage, start_ns, duration_ns, inside)| StageSpan { stage, start_ns, duration_ns, inside })
            .collect();
        prop_assert!(is_partition(Timeline::from_overlapping(&spans, duration).spans(), duration));
    }
}
