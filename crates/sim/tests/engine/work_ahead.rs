//! Reports the work that ran ahead of a job and beside it, in virtual time: by tenant, and by prompts and answers.

use headrace_domain::{
    CallOutcome, EngineRun, EngineSeen, ReaderPauses, RequestId, Sampling, Timeline, TraceRecord, WorkAhead,
};
use headrace_engine_api::{Job, JobReport, Tenant};
use headrace_explain::{Usual, explain};
use headrace_scheduler::SchedulerConfig;

use crate::cold_speeds::slow;
use crate::support::{Bench, Reader, greedy, job, roomy};

/// Milliseconds of a step, of a prompt token, and of a generating sequence.
const COSTS: [u64; 3] = [1, 2, 20];
const MS: u64 = 1_000_000;

fn of(tenant: u64, first_id: u32, prompt: usize, sampling: Sampling) -> Job {
    let ids: Vec<u32> = (0..prompt as u32).map(|i| 1 + (first_id + i * 7) % 60).collect();
    Job { tenant: Tenant(tenant), ..job(&ids, sampling) }
}

fn one_at_a_time() -> Bench {
    slow(COSTS, SchedulerConfig { max_running: 1, ..roomy() })
}

fn ahead(reader: &mut Reader) -> (WorkAhead, u64) {
    reader.pump();
    let engine = &reader.report.as_ref().expect("it ended").engine;
    (engine.ahead.expect("it began"), engine.queue_ns)
}

fn sum(ahead: &WorkAhead) -> u64 {
    ahead.own_prefill_ns + ahead.own_decode_ns + ahead.others_prefill_ns + ahead.others_decode_ns
}

#[test]
fn a_wait_behind_an_answer_is_told_by_whose_it_was() {
    for (first, second) in [(1, 2), (2, 2)] {
        let mut bench = one_at_a_time();
        let _first = bench.submit(of(first, 3, 20, greedy(30)));
        // Computes the first job's prompt before the second job arrives.
        bench.step();
        let mut waiting = bench.submit(of(second, 40, 20, greedy(2)));
        bench.run();
        let (reported, queue_ns) = ahead(&mut waiting);
        let (own, others) = (reported.own_decode_ns, reported.others_decode_ns);
        let (whose, not) = if first == second { (own, others) } else { (others, own) };
        assert_eq!((reported.running, reported.own), (1, u32::from(first == second)), "{reported:?}");
        assert_eq!((not, reported.own_prefill_ns + reported.others_prefill_ns), (0, 0), "{reported:?}");
        // 29 tokens were left, at one step and one sequence each. Half a millisecond passes between steps.
        assert!(whose.abs_diff(29 * 21 * MS) <= 2 * 21 * MS, "{reported:?}");
        assert!(
            sum(&reported) <= queue_ns && sum(&reported) >= queue_ns * 9 / 10,
            "{reported:?} of {queue_ns}"
        );
    }
}

#[test]
fn a_wait_behind_a_prompt_is_told_as_such() {
    let mut bench = one_at_a_time();
    let _first = bench.submit(of(1, 3, 400, greedy(1)));
    let mut waiting = bench.submit(of(2, 40, 20, greedy(2)));
    bench.run();
    let (reported, queue_ns) = ahead(&mut waiting);
    assert_eq!((reported.running, reported.own, reported.prefill_tokens), (0, 0, 400), "{reported:?}");
    assert!(reported.others_prefill_ns >= 800 * MS && reported.others_decode_ns == 0, "{reported:?}");
    assert!(sum(&reported) <= queue_ns && sum(&reported) >= queue_ns * 9 / 10, "{reported:?} of {queue_ns}");
    // A job that waits for no other reports none.
    let mut alone = bench.submit(of(2, 9, 20, greedy(2)));
    bench.run();
    let (reported, _) = ahead(&mut alone);
    assert_eq!(reported, WorkAhead::default());
}

#[test]
fn a_prompt_in_the_middle_of_an_answer_is_told() {
    let mut bench = slow(COSTS, roomy());
    let mut answer = bench.submit(of(1, 3, 20, greedy(40)));
    for _ in 0..10 {
        bench.step();
    }
    let mut prompt = bench.submit(of(2, 40, 300, greedy(3)));
    bench.run();
    answer.pump();
    prompt.pump();
    let reported = answer.report.unwrap().engine.beside.unwrap();
    assert_eq!((reported.prefill_tokens, reported.decode_prefill_tokens), (0, 300), "{reported:?}");
    // 300 prompt tokens take 600 ms. The share of the steps that is attributed to them is close to that.
    assert!((450 * MS..=800 * MS).contains(&reported.decode_prefill_ns), "{reported:?}");
    // The other job computed its prompt beside an answer, which is not a prompt.
    let reported = prompt.report.unwrap().engine.beside.unwrap();
    assert_eq!(
        (reported.prefill_tokens, reported.decode_prefill_tokens, reported.decode_prefill_ns),
        (0, 0, 0),
        "{reported:?}"
    );
}

#[test]
fn two_prompts_computed_together_are_told_of_each_other() {
    let mut bench = slow(COSTS, roomy());
    let mut first = bench.submit(of(1, 3, 200, greedy(2)));
    let mut second = bench.submit(of(2, 40, 200, greedy(2)));
    bench.run();
    first.pump();
    second.pump();
    let both = [first, second].map(|reader| reader.report.unwrap().engine.beside.unwrap());
    // Tenants take turns by chunk, so at least one prompt ran beside most of the other one.
    let most = both.iter().map(|beside| beside.prefill_tokens).max().unwrap();
    assert!((100..=200).contains(&most), "{both:?}");
}

/// A trace record of a call that consists of this job alone.
fn record_of(report: &JobReport) -> TraceRecord {
    let text = include_str!("../../../trace/tests/data/completed.json");
    let base = headrace_trace::decode_record(text.trim_end()).unwrap();
    let engine = report.engine.clone();
    let run = EngineRun {
        submitted_ns: 0,
        queue_ns: engine.queue_ns,
        prefill_ns: engine.prefill_ns,
        decode_ns: engine.decode_ns,
        paused_ns: engine.paused_ns,
    };
    let (first, until) = (run.queue_ns + run.prefill_ns, run.queue_ns + run.prefill_ns + run.decode_ns);
    let mut line = Timeline::new();
    let seen = EngineSeen { first_token_ns: Some(first), until_ns: until, pauses: &ReaderPauses::default() };
    line.engine([run].into_iter(), &seen);
    TraceRecord {
        request_id: RequestId::from_bits(1),
        duration_ns: until,
        first_token_ns: Some(first),
        stages: line.into_spans(),
        usage: report.usage,
        engine: Some(engine),
        attempts: Vec::new(),
        outcome: CallOutcome::Completed { finish: vec!["stop".to_owned()] },
        ..base
    }
}

/// The dearest term of a call that has another job ahead of it or beside it. `before` is that job: its tenant, whether
/// it has begun when the call arrives, and the lengths of its prompt and answer.
fn named(
    costs: [u64; 3],
    places: usize,
    before: Option<(u64, bool, usize, u32)>,
    own: (usize, u32),
) -> &'static str {
    let mut bench = slow(costs, SchedulerConfig { max_running: places, ..roomy() });
    let first = before.map(|(tenant, begun, prompt, answer)| {
        let reader = bench.submit(of(tenant, 3, prompt, greedy(answer)));
        if begun {
            (0..prompt.div_ceil(128) + 1).for_each(|_| _ = bench.step());
        }
        reader
    });
    let mut call = bench.submit(of(2, 40, own.0, greedy(own.1)));
    bench.run();
    drop(first);
    call.pump();
    let explained = explain(&record_of(&call.report.unwrap()), &Usual::unknown());
    let sum: f64 = explained.terms.iter().map(|term| term.us).sum();
    assert!((sum - explained.total_us).abs() <= explained.total_us * 0.01, "{sum} of {}", explained.total_us);
    explained.dearest.unwrap().name()
}

#[test]
fn a_delay_in_the_engine_is_named_by_what_caused_it() {
    let slow_prompts = [1, 40, 2];
    let slow_answers = [1, 1, 60];
    for (what, expected, found) in [
        ("its own prompt", "prefill", named(slow_prompts, 8, None, (200, 4))),
        ("its own answer", "decode", named(slow_answers, 8, None, (20, 40))),
        (
            "another's answer before it",
            "queue_others",
            named(slow_answers, 1, Some((1, true, 20, 60)), (20, 3)),
        ),
        ("its organisation's answer", "queue_own", named(slow_answers, 1, Some((2, true, 20, 60)), (20, 3))),
        (
            "another's prompt before it",
            "queue_others_prompts",
            named(slow_prompts, 1, Some((1, false, 400, 1)), (20, 3)),
        ),
        (
            "its organisation's prompt",
            "queue_own_prompts",
            named(slow_prompts, 1, Some((2, false, 400, 1)), (20, 3)),
        ),
    ] {
        assert_eq!(found, expected, "{what}");
    }
    // A prompt that is computed in the middle of the answer.
    let mut bench = slow([1, 40, 2], roomy());
    let mut call = bench.submit(of(1, 3, 20, greedy(60)));
    (0..10).for_each(|_| _ = bench.step());
    let _other = bench.submit(of(2, 40, 300, greedy(1)));
    bench.run();
    call.pump();
    let explained = explain(&record_of(&call.report.unwrap()), &Usual::unknown());
    assert_eq!(explained.dearest.unwrap().name(), "decode_behind_prompts", "{}", explained.sentence);
}
