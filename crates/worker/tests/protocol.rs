//! The protocol without a network: values survive the round trip, and every manipulation becomes a named fault.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "all of this is test code")]

use std::sync::Arc;

use headrace_domain::{
    CacheLife, CachePin, CacheSalt, ConcurrentWork, EngineTrace, FinishReason, RequestId, ResponseFormat,
    Sampling, Seed, TokenLogprob, TopLogprob, UnixNanos, Usage, WorkAhead,
};
use headrace_engine_api::{
    Job, JobError, JobEvent, JobReport, LoadReport, Priority, ReasoningBudget, Tenant,
};
use headrace_worker::{
    AskFault, ChoiceEnd, ExpectedModel, FrameFault, FrameMeaning, FrameReader, HeldTo, JobAudit, JobFailure,
    JobRequest, ReportExtras, WorkerFault, WorkerFrame, WorkerReport, put_frame,
};
use proptest::prelude::*;

const VOCAB: u32 = 100;
const WINDOW: u32 = 1_000;

fn job(sampling: Sampling) -> Job {
    Job {
        request: RequestId::fresh(UnixNanos::new(1_800_000_000_000_000_000)),
        first_choice: 3,
        prompt: Arc::from([5, 6, 7]),
        generated: 0,
        sampling,
        salt: CacheSalt::derive(&[7; 32], "a", "m", None),
        keys: None,
        tenant: Tenant(u64::MAX),
        weight: 2,
        priority: Priority::Idle,
        start_deadline_ns: Some(1_500),
        trace: None,
        unread_bytes: 100_000,
        pins: Arc::default(),
        held: None,
        grammar: None,
        thought: Some(Arc::new(ReasoningBudget {
            most_tokens: 300,
            open: vec![1, 2],
            close: 3,
            ending: vec![4, 3],
            is_open: true,
        })),
    }
}

fn sampling() -> impl Strategy<Value = Sampling> {
    let numbers = (any::<f32>(), any::<f32>(), any::<u64>(), any::<u32>(), any::<bool>());
    let lists = (
        prop::collection::btree_map(any::<u32>(), any::<f32>(), 0..5),
        prop::collection::vec("[a-zé\n]{0,8}", 0..4),
        prop::option::of(0_u8..21),
    );
    (numbers, lists).prop_map(
        |((temperature, top_p, seed, max_tokens, ignore_eos), (bias, stop, logprobs))| Sampling {
            temperature,
            top_p,
            top_k: std::num::NonZeroU32::new(max_tokens % 7),
            seed: Seed(seed),
            max_tokens,
            ignore_eos,
            logit_bias: bias.into_iter().collect(),
            stop,
            stop_token_ids: vec![max_tokens],
            logprobs,
            n: 1 + max_tokens % 4,
            ..Sampling::default()
        },
    )
}

fn logprob() -> impl Strategy<Value = TokenLogprob> {
    let top = (any::<u32>(), prop::collection::vec(any::<u8>(), 0..4), any::<f32>());
    let top = top.prop_map(|(id, bytes, logprob)| TopLogprob { id, bytes, logprob });
    let parts = (any::<u32>(), prop::option::of(any::<f32>()), prop::collection::vec(top, 0..3));
    parts.prop_map(|(id, logprob, top)| TokenLogprob { id, bytes: vec![1], logprob, top })
}

fn frame() -> impl Strategy<Value = WorkerFrame> {
    let tokens = (
        any::<u32>(),
        prop::collection::vec(any::<u32>(), 0..4),
        ".{0,9}",
        prop::collection::vec(logprob(), 0..3),
    );
    let ends = prop_oneof![
        Just(ChoiceEnd::Stop),
        Just(ChoiceEnd::Length),
        Just(ChoiceEnd::Other),
        ".{0,5}".prop_map(ChoiceEnd::Matched),
    ];
    prop_oneof![
        any::<u32>().prop_map(|running| WorkerFrame::Alive(LoadReport { running, ..LoadReport::default() })),
        any::<u32>().prop_map(|cached_tokens| WorkerFrame::Started { cached_tokens }),
        prop::collection::vec(logprob(), 0..4).prop_map(WorkerFrame::Scored),
        tokens.prop_map(|(choice, ids, text, logprobs)| WorkerFrame::Tokens { choice, ids, text, logprobs }),
        (any::<u32>(), ends).prop_map(|(choice, end)| WorkerFrame::Finished { choice, end }),
        (any::<u64>(), any::<u64>()).prop_map(|(input, output)| WorkerFrame::Done(report(input, 0, output))),
        any::<u64>().prop_map(|ms| WorkerFrame::Failed {
            error: JobFailure::Expired { retry_after_ms: ms },
            report: report(ms, 1, 2)
        }),
        (any::<u64>(), any::<u32>(), prop::option::of(any::<u64>())).prop_map(|(writes, blocks, ns)| {
            let usage = Usage { cache_write: writes, cache_write_1h: blocks.into(), ..Usage::default() };
            let ahead = ns.map(|ns| WorkAhead { running: blocks, own_decode_ns: ns, ..WorkAhead::default() });
            let beside = ns.map(|ns| ConcurrentWork { decode_prefill_ns: ns, ..ConcurrentWork::default() });
            let engine = EngineTrace { pinned_blocks: blocks, ahead, beside, ..EngineTrace::default() };
            WorkerFrame::Also(ReportExtras::from(&JobReport { usage, engine }))
        }),
    ]
}

fn report(input: u64, cached_input: u64, output: u64) -> WorkerReport {
    let usage = Usage { input, cached_input, output, ..Usage::default() };
    WorkerReport::from(&JobReport { usage, ..JobReport::default() })
}

/// Compares bit by bit, so that NaN equals itself.
fn same(one: &impl std::fmt::Debug, other: &impl std::fmt::Debug) -> bool {
    format!("{one:?}") == format!("{other:?}")
}

proptest! {
    #[test]
    fn a_job_comes_as_it_was(sampling in sampling()) {
        let job = job(sampling);
        let model = ExpectedModel { name: "demo", bits: "ab" };
        let bytes = JobRequest::new(&job, model, 1_000).to_bytes();
        let ask = JobRequest::read(&bytes).unwrap();
        prop_assert_eq!((ask.model().name, ask.model().bits), ("demo", "ab"));
        let mut came = ask.into_job(70_000);
        prop_assert_eq!(came.start_deadline_ns.take(), Some(70_500));
        prop_assert_eq!(came.salt.to_bytes(), job.salt.to_bytes());
        let expected = Job { start_deadline_ns: None, ..job.clone() };
        prop_assert!(same(&came, &expected));
        let bits = |job: &Job| (job.sampling.temperature.to_bits(), job.sampling.top_p.to_bits());
        prop_assert_eq!(bits(&came), bits(&job));
        // A truncated job is invalid, wherever it ends.
        for end in 0..bytes.len() {
            prop_assert_eq!(JobRequest::read(&bytes[..end]).unwrap_err(), AskFault::Malformed);
        }
    }

    #[test]
    fn frames_come_as_they_were_in_any_pieces(frames in prop::collection::vec(frame(), 1..6), cut in any::<prop::sample::Index>()) {
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| put_frame(&mut bytes, frame).unwrap());
        let cut = cut.index(bytes.len());
        for pieces in [vec![&bytes[..]], vec![&bytes[..cut], &bytes[cut..]], bytes.chunks(1).collect()] {
            let mut unframer = FrameReader::default();
            let mut came = Vec::new();
            for piece in pieces {
                unframer.push(piece);
                while let Some(frame) = unframer.next_frame().unwrap() {
                    came.push(frame);
                }
            }
            prop_assert!(same(&came, &frames) && !unframer.is_mid_frame());
        }
        let mut unframer = FrameReader::default();
        unframer.push(&bytes[..bytes.len() - 1]);
        while unframer.next_frame().unwrap().is_some() {}
        prop_assert!(unframer.is_mid_frame(), "it is not taken for whole");
    }

    #[test]
    fn bytes_that_mean_nothing_break_nothing(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = JobRequest::read(&bytes);
        let mut audit = JobAudit::new(&job(Sampling { n: 2, ..Sampling::default() }), VOCAB, WINDOW);
        let mut unframer = FrameReader::default();
        unframer.push(&bytes);
        while let Ok(Some(frame)) = unframer.next_frame() {
            let _ = audit.take(frame);
        }
    }

    /// For any frames in any order, the events stay within what was requested.
    #[test]
    fn nothing_passes_that_was_not_asked_for(frames in prop::collection::vec(frame(), 0..40)) {
        let sampling = Sampling { n: 2, max_tokens: 3, ..Sampling::default() };
        let mut audit = JobAudit::new(&job(sampling), VOCAB, WINDOW);
        let (mut ids, mut ended) = ([0; 2], [false; 2]);
        for frame in frames.into_iter().map(tamed) {
            let Ok(heard) = audit.take(frame) else { break };
            match heard {
                FrameMeaning::Event(JobEvent::Tokens { choice, ids: more, .. }) => {
                    let at = choice as usize - 3;
                    ids[at] += more.len();
                    prop_assert!(!ended[at] && ids[at] <= 3 && more.iter().all(|id| *id < VOCAB));
                }
                FrameMeaning::Event(JobEvent::Finished { choice, .. }) => {
                    let at = choice as usize - 3;
                    prop_assert!(ids[at] > 0 && !std::mem::replace(&mut ended[at], true));
                }
                FrameMeaning::Over(Ok(()), _) => {
                    prop_assert!(ended == [true; 2]);
                    break;
                }
                _ => {}
            }
        }
    }
}

/// Changes a random frame so that some of its values are valid.
fn tamed(frame: WorkerFrame) -> WorkerFrame {
    match frame {
        WorkerFrame::Started { cached_tokens } => WorkerFrame::Started { cached_tokens: cached_tokens % 5 },
        WorkerFrame::Tokens { choice, ids, text, .. } => WorkerFrame::Tokens {
            choice: 3 + choice % 3,
            ids: ids.into_iter().map(|id| id % 101).collect(),
            text,
            logprobs: Vec::new(),
        },
        WorkerFrame::Finished { choice, end } => WorkerFrame::Finished { choice: 3 + choice % 3, end },
        other => other,
    }
}

fn tokens(choice: u32, ids: &[u32]) -> WorkerFrame {
    WorkerFrame::Tokens { choice, ids: ids.to_vec(), text: "x".into(), logprobs: Vec::new() }
}

fn finished(choice: u32) -> WorkerFrame {
    WorkerFrame::Finished { choice, end: ChoiceEnd::Stop }
}

const STARTED: WorkerFrame = WorkerFrame::Started { cached_tokens: 2 };

/// Returns the fault of the last frame. The frames before it are valid.
fn fault(sampling: Sampling, frames: Vec<WorkerFrame>) -> WorkerFault {
    let mut audit = JobAudit::new(&job(sampling), VOCAB, WINDOW);
    let count = frames.len();
    for (at, frame) in frames.into_iter().enumerate() {
        match audit.take(frame) {
            Err(fault) => {
                assert_eq!(at + 1, count, "{fault}");
                return fault;
            }
            Ok(_) => assert!(at + 1 < count, "it was taken"),
        }
    }
    panic!("nothing is wrong")
}

#[test]
fn each_lie_of_a_worker_has_a_name() {
    let plain = || Sampling { max_tokens: 2, stop: vec!["END".into()], ..Sampling::default() };
    let scored = || Sampling { prompt_logprobs: Some(0), ..plain() };
    let lp = |id| TokenLogprob { id, bytes: vec![], logprob: Some(-1.0), top: vec![] };
    let far = TokenLogprob { logprob: Some(f32::NAN), ..lp(1) };
    let with = |logprobs| WorkerFrame::Tokens { choice: 3, ids: vec![1], text: String::new(), logprobs };
    let text =
        |bytes| WorkerFrame::Tokens { choice: 3, ids: vec![1], text: "x".repeat(bytes), logprobs: vec![] };
    let end = |end| WorkerFrame::Finished { choice: 3, end };
    let asked = || Sampling { logprobs: Some(0), ..plain() };
    let rows = [
        (plain(), vec![STARTED, STARTED], WorkerFault::BegunTwice),
        (plain(), vec![WorkerFrame::Started { cached_tokens: 4 }], WorkerFault::Cached(4)),
        (plain(), vec![tokens(3, &[1])], WorkerFault::NotBegun),
        (plain(), vec![STARTED, tokens(2, &[1])], WorkerFault::Choice(2)),
        (plain(), vec![STARTED, tokens(4, &[1])], WorkerFault::Choice(4)),
        (plain(), vec![STARTED, tokens(3, &[1, 100])], WorkerFault::Id(100)),
        (plain(), vec![STARTED, tokens(3, &[1, 2, 3])], WorkerFault::TooManyTokens { choice: 3, limit: 2 }),
        (plain(), vec![STARTED, text(9_000)], WorkerFault::TooMuchText(3)),
        (plain(), vec![STARTED, with(vec![lp(1)])], WorkerFault::Logprobs(3)),
        (asked(), vec![STARTED, with(vec![])], WorkerFault::Logprobs(3)),
        (asked(), vec![STARTED, with(vec![lp(100)])], WorkerFault::Logprobs(3)),
        (asked(), vec![STARTED, with(vec![far])], WorkerFault::Logprobs(3)),
        (plain(), vec![STARTED, WorkerFrame::Scored(vec![lp(1)])], WorkerFault::Scores),
        (scored(), vec![STARTED, WorkerFrame::Scored(vec![lp(1); 4])], WorkerFault::Scores),
        (scored(), vec![STARTED, WorkerFrame::Scored(vec![])], WorkerFault::Scores),
        (scored(), vec![STARTED, tokens(3, &[1])], WorkerFault::NotBegun),
        (plain(), vec![STARTED, finished(3)], WorkerFault::End(3)),
        (plain(), vec![STARTED, tokens(3, &[1]), end(ChoiceEnd::Length)], WorkerFault::End(3)),
        (
            plain(),
            vec![STARTED, tokens(3, &[1]), end(ChoiceEnd::Matched("OTHER".into()))],
            WorkerFault::End(3),
        ),
        (plain(), vec![STARTED, tokens(3, &[1]), end(ChoiceEnd::Other)], WorkerFault::End(3)),
        (plain(), vec![STARTED, tokens(3, &[1]), finished(3), tokens(3, &[1])], WorkerFault::AfterItsEnd(3)),
        (
            plain(),
            vec![STARTED, tokens(3, &[1]), WorkerFrame::Done(report(1, 2, 1))],
            WorkerFault::Unfinished,
        ),
        (
            plain(),
            vec![STARTED, tokens(3, &[1]), finished(3), WorkerFrame::Done(report(2, 2, 1))],
            WorkerFault::Usage,
        ),
        (
            plain(),
            vec![STARTED, tokens(3, &[1]), finished(3), WorkerFrame::Done(report(1, 2, 9))],
            WorkerFault::Usage,
        ),
        (
            plain(),
            vec![STARTED, tokens(3, &[1]), finished(3), WorkerFrame::Done(report(2, 1, 1))],
            WorkerFault::Usage,
        ),
        (plain(), vec![wrote(0, 0), wrote(0, 0)], WorkerFault::ReportedTwice),
        (
            plain(),
            vec![STARTED, tokens(3, &[1]), finished(3), wrote(1, 0), WorkerFrame::Done(report(0, 2, 1))],
            WorkerFault::Usage,
        ),
    ];
    for (sampling, frames, expected) in rows {
        assert_eq!(fault(sampling, frames), expected);
    }
    let alive_frames = vec![WorkerFrame::Alive(LoadReport::default()); (1 << 18) + 1];
    assert_eq!(fault(plain(), alive_frames), WorkerFault::AliveFrames);
}

#[test]
fn a_right_answer_passes_and_its_report_lies_within_what_happened() {
    let stop = Sampling { max_tokens: 2, stop: vec!["END".into()], ..Sampling::default() };
    let mut audit = JobAudit::new(&job(stop), VOCAB, WINDOW);
    assert_eq!(audit.take(STARTED), Ok(FrameMeaning::Event(JobEvent::Started { cached_tokens: 2 })));
    audit.take(tokens(3, &[1, 2])).unwrap();
    let end = audit.take(WorkerFrame::Finished { choice: 3, end: ChoiceEnd::Matched("END".into()) });
    let reason = FinishReason::StopString { matched: "END".into() };
    assert_eq!(end, Ok(FrameMeaning::Event(JobEvent::Finished { choice: 3, reason })));
    let engine = headrace_domain::EngineTrace { queue_ns: u64::MAX, decode_ns: 7, ..Default::default() };
    let usage = Usage { input: 1, cached_input: 2, output: 2, ..Usage::default() };
    let Ok(FrameMeaning::Over(Ok(()), last)) =
        audit.take(WorkerFrame::Done(WorkerReport::from(&JobReport { usage, engine })))
    else {
        panic!("it is whole")
    };
    let last = last.within(3, 1_000);
    assert_eq!((last.usage, last.engine.queue_ns, last.engine.decode_ns), (usage, 1_000, 0));
    let failed = WorkerFrame::Failed { error: JobFailure::Cancelled, report: report(9, 9, u64::MAX) };
    let mut audit = JobAudit::new(&job(Sampling::default()), VOCAB, WINDOW);
    let Ok(FrameMeaning::Over(Err(error), last)) = audit.take(failed) else { panic!("it failed") };
    assert!(matches!(error, JobError::Refused(_)), "nobody here had cancelled it: {error:?}");
    let usage = last.within(3, 0).usage;
    assert_eq!((usage.input, usage.cached_input, usage.output), (0, 3, 0));
}

/// A report of tokens that were kept for minutes and for an hour.
fn wrote(cache_write: u64, cache_write_1h: u64) -> WorkerFrame {
    let usage = Usage { cache_write, cache_write_1h, ..Usage::default() };
    WorkerFrame::Also(ReportExtras::from(&JobReport { usage, ..JobReport::default() }))
}

fn pins(pins: &[(u32, CacheLife)]) -> Arc<[CachePin]> {
    pins.iter().map(|&(tokens, life)| CachePin { tokens, life }).collect()
}

/// Covers a prompt of ten tokens. Two of them were cached.
#[test]
fn nothing_is_believed_to_be_kept_but_what_was_marked_and_is_not_counted_twice() {
    use CacheLife::{Hour, Minutes};
    type Marks = &'static [(u32, CacheLife)];
    let big = u64::MAX;
    let rows: [(Marks, u64, (u64, u64), bool); 13] = [
        (&[(8, Minutes)], 0, (8, 0), true),
        (&[(8, Minutes)], 8, (0, 0), true),
        (&[(8, Minutes)], 1, (8, 0), false),
        (&[(8, Minutes)], 0, (0, 8), false),
        (&[(4, Minutes)], 0, (5, 0), false),
        (&[(4, Hour), (8, Minutes)], 0, (4, 4), true),
        (&[(4, Hour), (8, Minutes)], 0, (3, 5), false),
        (&[(4, Hour), (8, Minutes)], 0, (8, 0), true),
        (&[(4, Minutes), (8, Hour)], 0, (0, 8), true),
        (&[(8, Hour)], 0, (big, 1), false),
        (&[(8, Hour)], big, (1, 1), false),
        (&[], 7, (1, 0), false),
        (&[], 7, (0, 1), false),
    ];
    for (marks, input, (minutes, hour), fits) in rows {
        let sampling = Sampling { max_tokens: 1, ..Sampling::default() };
        let job = Job { prompt: (0..10).collect(), pins: pins(marks), ..job(sampling) };
        let mut audit = JobAudit::new(&job, VOCAB, WINDOW);
        for frame in [STARTED, tokens(3, &[1]), finished(3), wrote(minutes, hour)] {
            audit.take(frame).unwrap();
        }
        let text = format!("{marks:?}: {input}, {minutes}, {hour}");
        match audit.take(WorkerFrame::Done(report(input, 2, 1))) {
            Ok(FrameMeaning::Over(Ok(()), last)) if fits => {
                let usage = last.within(10, 0).usage;
                assert_eq!((usage.input, usage.cached_input, usage.output), (input, 2, 1), "{text}");
                assert_eq!((usage.cache_write, usage.cache_write_1h), (minutes, hour), "{text}");
            }
            other => assert!(!fits && other == Err(WorkerFault::Usage), "{text}: {other:?}"),
        }
        // A failed job is charged as well, so its report is limited to what is possible.
        let mut audit = JobAudit::new(&job, VOCAB, WINDOW);
        audit.take(wrote(minutes, hour)).unwrap();
        let failed = WorkerFrame::Failed { error: JobFailure::ShuttingDown, report: report(input, 2, 1) };
        let Ok(FrameMeaning::Over(Err(_), last)) = audit.take(failed) else { panic!("it failed") };
        let usage = last.within(10, 0).usage;
        let most = |life| marks.iter().filter(|(_, own)| *own >= life).map(|(at, _)| u64::from(*at)).max();
        assert!(usage.prompt_tokens() <= 10, "{text}: {usage:?}");
        assert!(usage.cache_writes() <= most(Minutes).unwrap_or(0), "{text}: {usage:?}");
        assert!(usage.cache_write_1h <= most(Hour).unwrap_or(0), "{text}: {usage:?}");
    }
}

#[test]
fn what_stood_ahead_and_beside_lies_within_the_times_that_passed_here() {
    let job = Job {
        prompt: (0..40).collect(),
        pins: pins(&[(36, CacheLife::Minutes)]),
        ..job(Sampling { max_tokens: 1, ..Sampling::default() })
    };
    let told = |engine: EngineTrace, elapsed_ns| {
        let mut audit = JobAudit::new(&job, VOCAB, WINDOW);
        let told = JobReport { engine, ..JobReport::default() };
        audit.take(WorkerFrame::Also(ReportExtras::from(&told))).unwrap();
        let failed =
            WorkerFrame::Failed { error: JobFailure::ShuttingDown, report: WorkerReport::from(&told) };
        let Ok(FrameMeaning::Over(Err(_), last)) = audit.take(failed) else { panic!("it failed") };
        last.within(40, elapsed_ns).engine
    };
    let ahead = WorkAhead {
        running: 3,
        own: 1,
        own_prefill_ns: 10,
        own_decode_ns: 20,
        others_prefill_ns: 30,
        others_decode_ns: 40,
        prefill_tokens: 50,
    };
    let beside = ConcurrentWork { prefill_tokens: 5, decode_prefill_tokens: 6, decode_prefill_ns: 7 };
    let right = EngineTrace {
        queue_ns: 100,
        decode_ns: 8,
        pinned_blocks: 1,
        unpinned_blocks: 1,
        ahead: Some(ahead),
        beside: Some(beside),
        ..EngineTrace::default()
    };
    assert_eq!(told(right.clone(), 1_000), right);
    // Less time passed on this side than the worker reports.
    let cut = told(right.clone(), 50);
    let half = WorkAhead {
        own_prefill_ns: 5,
        own_decode_ns: 10,
        others_prefill_ns: 15,
        others_decode_ns: 20,
        ..ahead
    };
    assert_eq!((cut.queue_ns, cut.ahead), (50, Some(half)));
    assert_eq!((cut.decode_ns, cut.beside), (0, Some(ConcurrentWork { decode_prefill_ns: 0, ..beside })));
    // Two whole blocks are marked.
    for (blocks, expected) in [((2, 0), (2, 0)), ((9, 9), (2, 0)), ((0, 9), (0, 2)), ((1, 9), (1, 1))] {
        let (pinned_blocks, unpinned_blocks) = blocks;
        let engine = told(EngineTrace { pinned_blocks, unpinned_blocks, ..right.clone() }, 1_000);
        assert_eq!((engine.pinned_blocks, engine.unpinned_blocks), expected, "{blocks:?}");
    }
    // The sums of reported counts never overflow.
    let most = WorkAhead {
        running: u32::MAX,
        own: u32::MAX,
        own_prefill_ns: u64::MAX,
        own_decode_ns: u64::MAX,
        others_prefill_ns: u64::MAX,
        others_decode_ns: u64::MAX,
        prefill_tokens: u64::MAX,
    };
    let far = ConcurrentWork {
        prefill_tokens: u64::MAX,
        decode_prefill_tokens: u64::MAX,
        decode_prefill_ns: u64::MAX,
    };
    let engine = told(EngineTrace { ahead: Some(most), beside: Some(far), ..right }, 1_000);
    let (ahead, beside) = (engine.ahead.unwrap(), engine.beside.unwrap());
    let waited =
        ahead.own_prefill_ns + ahead.own_decode_ns + ahead.others_prefill_ns + ahead.others_decode_ns;
    assert!(waited <= 100 && ahead.running < 1 << 25 && ahead.own < 1 << 25, "{ahead:?}");
    assert!(ahead.prefill_tokens.max(beside.prefill_tokens) < 1 << 41, "{ahead:?} {beside:?}");
    assert!(beside.decode_prefill_tokens < 1 << 41 && beside.decode_prefill_ns == 8, "{beside:?}");
}

#[test]
fn jobs_and_frames_of_other_versions_or_sizes_are_refused_by_name() {
    let model = ExpectedModel { name: "demo", bits: "ab" };
    let mut bytes = JobRequest::new(&job(Sampling::default()), model, 0).to_bytes();
    bytes.push(0);
    assert_eq!(JobRequest::read(&bytes), Err(AskFault::Malformed));
    bytes[0] = 7;
    assert_eq!(JobRequest::read(&bytes), Err(AskFault::Version(7)));
    assert!(AskFault::Version(7).to_string().contains("version 7 of the worker protocol"));
    let value = |change: fn(&mut Job)| {
        let mut job = job(Sampling::default());
        change(&mut job);
        match JobRequest::read(&JobRequest::new(&job, model, 0).to_bytes()) {
            Err(AskFault::Value(what)) => what,
            other => panic!("{other:?}"),
        }
    };
    for (change, words) in [
        ((|job| job.prompt = Arc::from([])) as fn(&mut Job), "prompt without a token"),
        (|job| job.sampling.n = 0, "n = 0"),
        (|job| job.sampling.n = u32::MAX, "n = 4294967295"),
        (|job| job.first_choice = u32::MAX, "from choice 4294967295"),
        (|job| job.generated = 3, "3 of 3 ids generated before"),
        (|job| job.sampling.stop = vec!["x".into(); 2_000], "2000 stop strings"),
        (|job| job.sampling.stop_token_ids = vec![1; 100_000], "65536 ids"),
        (|job| job.sampling.logit_bias = vec![(2, 1.0), (1, 1.0)], "ascending order"),
    ] {
        let what = value(change);
        assert!(what.contains(words), "{what} should say {words}");
    }
    let mut unframer = FrameReader::default();
    unframer.push(&u32::MAX.to_le_bytes());
    assert_eq!(unframer.next_frame(), Err(FrameFault::TooLong { bytes: u32::MAX.into() }));
    let mut out = vec![1];
    let long = WorkerFrame::Tokens { choice: 0, ids: vec![], text: "x".repeat(2 << 20), logprobs: vec![] };
    assert!(put_frame(&mut out, &long).is_err() && out == [1], "nothing of it is sent");
    // Two frames in place of one.
    put_frame(&mut out, &STARTED).unwrap();
    let mut two = out.split_off(1);
    two[0] += 1;
    two.push(0);
    let mut unframer = FrameReader::default();
    unframer.push(&two);
    assert_eq!(unframer.next_frame(), Err(FrameFault::Malformed));
}

/// A job with known bytes.
fn known() -> Job {
    Job {
        request: "req_018f0000000070008000000000000001".parse().unwrap(),
        salt: CacheSalt::from_bytes([9; 32]),
        ..job(Sampling { stop: vec!["a".into()], ..Sampling::default() })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// A job of an older gateway, with this appendix.
fn behind(json: &str) -> Vec<u8> {
    [unhex(ASK), json.as_bytes().to_vec()].concat()
}

#[test]
fn jobs_of_before_are_read_as_they_were_meant_and_written_as_they_were() {
    let old = behind(r#"{"form":"json_object","thought":null}"#);
    let mut ask = JobRequest::read(&old).unwrap();
    assert!(ask.to_bytes() == old && !ask.in_full());
    assert_eq!(ask.take_held_to(), Some(HeldTo { form: ResponseFormat::JsonObject, thought: None }));
    assert!(ask.to_bytes() == behind("") && ask.into_job(0).pins.is_empty());
    let plain = JobRequest::read(&behind("")).unwrap();
    assert!(plain.to_bytes() == behind("") && !plain.in_full() && plain.into_job(0).pins.is_empty());
}

#[test]
fn a_fuller_job_says_what_is_to_be_kept_behind_all_that_workers_of_before_take() {
    let model = ExpectedModel { name: "m", bits: "b" };
    let job = Job { pins: pins(&[(1, CacheLife::Hour), (3, CacheLife::Minutes)]), ..known() };
    let plain = JobRequest::new(&job, model, 500);
    assert_eq!(plain.to_bytes(), behind(""), "a worker that takes no such job hears nothing of it");
    let fuller = plain.fuller(&job).to_bytes();
    let json = r#"{"thought":null,"pins":[{"tokens":1,"life":"hour"},{"tokens":3,"life":"minutes"}],"in_full":true}"#;
    assert_eq!(fuller, behind(json));
    let ask = JobRequest::read(&fuller).unwrap();
    assert!(ask.in_full());
    assert_eq!(ask.into_job(0).pins, job.pins);
    for end in behind("").len() + 1..fuller.len() {
        assert_eq!(JobRequest::read(&fuller[..end]), Err(AskFault::Malformed), "{end}");
    }
    let none = JobRequest::new(&known(), model, 500).fuller(&known()).to_bytes();
    assert_eq!(none, behind(r#"{"thought":null,"in_full":true}"#));
    // More prefixes than a worker accepts.
    let many = Job { pins: pins(&[(1, CacheLife::Hour); 20]), ..known() };
    let read = JobRequest::read(&JobRequest::new(&many, model, 500).fuller(&many).to_bytes()).unwrap();
    assert_eq!(read.into_job(0).pins.len(), 8);
}

#[test]
fn what_stands_behind_a_job_is_taken_only_as_far_as_it_can_be_meant() {
    let pin = |tokens: u32| format!(r#"{{"tokens":{tokens},"life":"hour"}}"#);
    let pins = |pins: &[String]| format!(r#"{{"pins":[{}]}}"#, pins.join(","));
    let thought = r#"{"open":1,"close":2,"is_open":true,"between":[BETWEEN],"most_ids":null}"#;
    let long = thought.replace("BETWEEN", &vec!["3"; 100].join(","));
    let rows = [
        (pins(&[pin(4)]), Some("the prompt has not")),
        (pins(&[pin(u32::MAX)]), Some("the prompt has not")),
        (pins(&[pin(2), pin(1)]), Some("in their order")),
        (pins(&vec![pin(1); 9]), Some("9 prefixes to be kept; at most 8")),
        (format!(r#"{{"thought":{}}}"#, thought.replace("BETWEEN", "")), Some("a thought before no form")),
        (format!(r#"{{"form":"json_object","thought":{long}}}"#), Some("100 ids behind a thought")),
        (format!(r#"{{"in_full":true}}{}"#, " ".repeat(600 << 10)), Some("bytes behind a job")),
        (r#"{"pins":[{"tokens":1,"life":"day"}]}"#.to_owned(), None),
        (r#"{"pins":[{"tokens":-1,"life":"hour"}]}"#.to_owned(), None),
        (r#"{"pins":[{"tokens":4294967296,"life":"hour"}]}"#.to_owned(), None),
        (r#"{"later":1}"#.to_owned(), None),
        ("null".to_owned(), None),
        (r#"{"in_full":true}{}"#.to_owned(), None),
    ];
    for (json, words) in rows {
        match (JobRequest::read(&behind(&json)), words) {
            (Err(AskFault::Value(what)), Some(words)) => {
                assert!(what.contains(words), "{what} should say {words}");
            }
            (told, words) => assert!(told == Err(AskFault::Malformed) && words.is_none(), "{json}: {told:?}"),
        }
    }
    for json in [pins(&[pin(0), pin(0), pin(3)]), "{}".to_owned(), r#"{"in_full":false}"#.to_owned()] {
        assert!(JobRequest::read(&behind(&json)).is_ok(), "{json}");
    }
}

/// Every program with version 2 can read what another one writes. Other bytes need a new version number. The last frame
/// is sent only to gateways that asked for it.
#[test]
fn version_2_is_these_bytes() {
    let job = known();
    let ask = JobRequest::new(&job, ExpectedModel { name: "m", bits: "b" }, 500).to_bytes();
    let mut frames = Vec::new();
    let lp = TokenLogprob { id: 1, bytes: vec![65], logprob: Some(-0.5), top: vec![] };
    for frame in [
        WorkerFrame::Alive(LoadReport { running: 1, step_ns: 300, ..LoadReport::default() }),
        STARTED,
        WorkerFrame::Scored(vec![lp]),
        tokens(3, &[1, 300]),
        WorkerFrame::Finished { choice: 3, end: ChoiceEnd::Matched("a".into()) },
        WorkerFrame::Failed { error: JobFailure::Internal("x".into()), report: report(1, 2, 3) },
        WorkerFrame::Done(report(1, 2, 3)),
    ] {
        put_frame(&mut frames, &frame).unwrap();
    }
    assert_eq!(hex(&ask), ASK, "the bytes of a job");
    assert_eq!(hex(&frames), FRAMES, "the bytes of frames");
    let mut last = Vec::new();
    put_frame(&mut last, &wrote(16, 32)).unwrap();
    let json = r#"{"cache_write":16,"cache_write_1h":32,"pinned_blocks":0,"unpinned_blocks":0,"ahead":null,"beside":null}"#;
    assert_eq!(last, [&[105, 0, 0, 0, 7, 103][..], json.as_bytes()].concat());
    // Unknown fields of a later version are ignored, and missing fields of an earlier one are empty.
    for json in
        [r#"{"cache_write":16,"cache_write_1h":32,"later":[1]}"#, r#"{"cache_write_1h":32,"cache_write":16}"#]
    {
        let length = u8::try_from(json.len()).unwrap();
        let mut unframer = FrameReader::default();
        unframer.push(&[&[length + 2, 0, 0, 0, 7, length][..], json.as_bytes()].concat());
        assert_eq!(unframer.next_frame(), Ok(Some(wrote(16, 32))));
    }
    let mut unframer = FrameReader::default();
    unframer.push(&[4, 0, 0, 0, 7, 2, b'{', b'!']);
    assert_eq!(unframer.next_frame(), Err(FrameFault::Malformed));
    assert_eq!(headrace_worker::PROTOCOL, 2);
}

const ASK: &str = "02016d0162247265715f3031386630303030303030303730303038303030303030303030303030303031030305060700000000000000803f000000000000000000000000000000803f00001000010161000001000001ac0202010203020403010909090909090909090909090909090909090909090909090909090909090909ffffffffffffffffff01020101e807a08d06";
const FRAMES: &str = "1100000000010000000000000000000000ac0200000200000001020b000000020101014101000000bf000900000003030201ac0201780005000000040301016119000000060501780102030000000000000000000000000000000000001600000005010203000000000000000000000000000000000000";
