//! The engine on its own thread: it wakes, it sleeps, it ends, and no caller waits for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use headrace_domain::{Clock, Sampling, SystemClock, UnixNanos};
use headrace_engine::{Decode, EmbeddedEngine, EngineConfig, EngineError, TextOf};
use headrace_engine_api::{Engine, EngineHealth, Job, JobError, SubmitRefusal};
use headrace_kernels::Isa;
use headrace_scheduler::SchedulerConfig;
use headrace_sim::{ScriptedForward, ToyVocabulary};

use crate::support::{Bench, Reader, greedy, job, keys, roomy};

fn config(scheduler: SchedulerConfig) -> EngineConfig {
    EngineConfig {
        model: "m".to_owned(),
        compute_mode: "exact".to_owned(),
        eos: Vec::new(),
        skip_special: true,
        max_choices: 16,
        isa: Isa::supported().last().copied().unwrap(),
        scheduler,
        clock: Arc::new(SystemClock::new()),
    }
}

fn start() -> EmbeddedEngine {
    let forward = Box::new(ScriptedForward::new(64, 4096, 512));
    EmbeddedEngine::start_with(forward, Arc::new(ToyVocabulary), config(SchedulerConfig::default())).unwrap()
}

fn prompt(first: u32) -> Vec<u32> {
    (0..60).map(|i| (first + i * 5) % 64).collect()
}

/// Reads until the terminal event.
fn read(mut reader: Reader) -> Reader {
    while reader.report.is_none() {
        let event = reader.events.next_blocking().expect("a terminal event");
        reader.take(event);
    }
    assert!(reader.events.next_blocking().is_none(), "one terminal event and nothing after it");
    reader
}

#[test]
fn callers_on_many_threads_each_get_the_answer_of_a_job_alone() {
    let engine = start();
    assert_eq!(engine.capabilities().kv_tokens, 512 * 16);
    let ask = |i: u32| {
        let ticket = engine.submit(job(&prompt(i % 4), greedy(30))).unwrap();
        read(Reader::new(ticket.split().0)).answer
    };
    let ask = &ask;
    let answers: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..12).map(|i| scope.spawn(move || ask(i))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for (i, answer) in answers.iter().enumerate() {
        let forward = Box::new(ScriptedForward::new(64, 4096, 512));
        let expected = Bench::new(forward, Arc::new(ToyVocabulary), &[], roomy())
            .ask(job(&prompt(i as u32 % 4), greedy(30)));
        assert_eq!(*answer, expected.0, "job {i}");
    }
    let load = engine.load();
    assert_eq!((load.blocks_free, load.running, load.waiting), (load.blocks_total, 0, 0));
    assert!(engine.cached_prefix(&keys(0, &prompt(0))) >= 48);
}

#[test]
fn an_engine_is_warm_before_it_is_there() {
    let forward = ScriptedForward::new(64, 4096, 512);
    let computed = forward.computed();
    let limits = config(SchedulerConfig::default());
    let engine = EmbeddedEngine::start_with(Box::new(forward), Arc::new(ToyVocabulary), limits).unwrap();
    assert_eq!(
        computed.tokens(),
        41,
        "a short prompt, one token after it, and one of each of eight sequences"
    );
    assert_eq!(engine.cached_prefix(&keys(0, &[0; 32])), 0);
    let load = engine.load();
    assert_eq!((load.blocks_free, load.blocks_cached), (load.blocks_total, 0));
}

#[test]
fn shutting_down_lets_short_work_end_and_cuts_off_the_rest() {
    for (tokens, cut) in [(5, false), (4000, true)] {
        let engine = start();
        let ticket = engine.submit(job(&prompt(0), Sampling { ignore_eos: true, ..greedy(tokens) })).unwrap();
        let reader = Reader::new(ticket.split().0);
        // For thousands of tokens the scripted model takes far longer than this, because it reads the whole history
        // each time.
        engine.shutdown(if cut { Duration::ZERO } else { Duration::from_secs(60) });
        let done = read(reader);
        assert_eq!(done.answer.error, cut.then_some(JobError::ShuttingDown));
        let refused = engine.submit(job(&prompt(0), greedy(1))).err();
        assert!(matches!(refused, Some(SubmitRefusal::Unavailable { .. })));
        engine.shutdown(Duration::ZERO);
    }
}

#[test]
fn draining_takes_nothing_new_and_finishes_what_runs() {
    let engine = start();
    assert_eq!(engine.health(), EngineHealth::Up);
    let ticket = engine.submit(job(&prompt(0), Sampling { ignore_eos: true, ..greedy(2000) })).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| engine.shutdown(Duration::from_secs(60)));
        while engine.health() == EngineHealth::Up {
            std::thread::yield_now();
        }
        assert_eq!(engine.health(), EngineHealth::Draining);
        let refused = engine.submit(job(&prompt(0), greedy(1))).err();
        assert!(matches!(refused, Some(SubmitRefusal::Unavailable { .. })));
        assert_eq!(read(Reader::new(ticket.split().0)).answer.error, None);
    });
}

#[test]
fn a_cancelled_job_lets_go_and_its_receipt_resolves() {
    let engine = start();
    let ticket = engine.submit(job(&prompt(0), Sampling { ignore_eos: true, ..greedy(4000) })).unwrap();
    let (events, control) = ticket.split();
    let receipt = control.cancel();
    let reader = read(Reader::new(events));
    assert_eq!(reader.answer.error, Some(JobError::Cancelled));
    let received = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(receipt.report());
    assert_eq!(Some(received), reader.report);
    let load = engine.load();
    assert_eq!(load.blocks_free, load.blocks_total);
}

#[test]
fn dropping_the_engine_ends_every_job() {
    let engine = start();
    let readers: Vec<_> = (0..5)
        .map(|i| engine.submit(job(&prompt(i), Sampling { ignore_eos: true, ..greedy(4000) })).unwrap())
        .map(|ticket| Reader::new(ticket.split().0))
        .collect();
    drop(engine);
    for reader in readers {
        assert_eq!(read(reader).answer.error, Some(JobError::ShuttingDown));
    }
}

#[test]
fn a_reader_that_comes_back_or_hangs_up_wakes_the_engine() {
    for comes_back in [true, false] {
        let engine = start();
        let sampling = Sampling { ignore_eos: true, ..greedy(400) };
        let ticket = engine.submit(Job { unread_bytes: 4000, ..job(&prompt(0), sampling) }).unwrap();
        let reader = Reader::new(ticket.split().0);
        while engine.load().paused == 0 {
            std::thread::yield_now();
        }
        if comes_back {
            let done = read(reader);
            assert_eq!((done.answer.error, done.answer.choices[&0].ids.len()), (None, 400));
        } else {
            drop(reader);
        }
        while engine.load().blocks_free < engine.load().blocks_total {
            std::thread::yield_now();
        }
        assert_eq!(engine.load().paused, 0);
    }
}

/// A vocabulary that panics on one id.
struct Treacherous;

impl TextOf for Treacherous {
    fn decoder(&self) -> Box<dyn Decode> {
        ToyVocabulary.decoder()
    }

    fn bytes(&self, id: u32) -> &[u8] {
        if id == 63 { std::panic::resume_unwind(Box::new("a hole")) } else { ToyVocabulary.bytes(id) }
    }
}

#[test]
fn a_panic_while_sampling_ends_that_job_alone() {
    let forward = Box::new(ScriptedForward::new(64, 4096, 512));
    let engine =
        EmbeddedEngine::start_with(forward, Arc::new(Treacherous), config(SchedulerConfig::default()))
            .unwrap();
    // Scoring reads the bytes of every prompt token.
    let scored = |prompt: &[u32]| job(prompt, Sampling { prompt_logprobs: Some(0), ..greedy(0) });
    let bad = engine.submit(scored(&[1, 2, 63, 4])).unwrap();
    let good = engine.submit(scored(&[1, 2, 3, 4])).unwrap();
    let bad = read(Reader::new(bad.split().0));
    assert_eq!(bad.answer.error, Some(JobError::Panicked { detail: "a hole".to_owned() }));
    assert_eq!(read(Reader::new(good.split().0)).answer.error, None);
    assert_eq!(engine.load().running, 0);
}

/// A clock that panics the given number of times, on the engine's thread only.
struct DeadlyClock(AtomicU32);

impl Clock for DeadlyClock {
    fn now(&self) -> UnixNanos {
        UnixNanos::default()
    }

    fn monotonic_nanos(&self) -> u64 {
        let on_engine = std::thread::current().name().is_some_and(|name| name.starts_with("engine-"));
        let left = |left: u32| left.checked_sub(1);
        if on_engine && self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok() {
            std::panic::resume_unwind(Box::new("the loop itself broke"));
        }
        0
    }
}

/// An engine whose loop can be broken, with three long jobs.
fn start_fragile() -> (Arc<DeadlyClock>, EmbeddedEngine, Vec<Reader>) {
    let clock = Arc::new(DeadlyClock(0.into()));
    let forward = Box::new(ScriptedForward::new(64, 4096, 512));
    let config = EngineConfig { clock: clock.clone(), ..config(SchedulerConfig::default()) };
    let engine = EmbeddedEngine::start_with(forward, Arc::new(ToyVocabulary), config).unwrap();
    let endless = || job(&prompt(0), Sampling { ignore_eos: true, ..greedy(4000) });
    let readers = (0..3).map(|_| Reader::new(engine.submit(endless()).unwrap().split().0)).collect();
    (clock, engine, readers)
}

/// Submits until the engine accepts, or is dead.
fn submit_again(engine: &EmbeddedEngine) -> Result<Reader, SubmitRefusal> {
    loop {
        match engine.submit(job(&prompt(0), greedy(30))) {
            Ok(ticket) => return Ok(read(Reader::new(ticket.split().0))),
            Err(refused) if matches!(engine.health(), EngineHealth::Dead { .. }) => return Err(refused),
            Err(_) => std::thread::yield_now(),
        }
    }
}

#[test]
fn a_loop_that_breaks_ends_its_jobs_and_begins_again_with_the_same_bits() {
    let (clock, engine, readers) = start_fragile();
    // The first panic in a step may be blamed on its sequence. The second one then breaks the loop.
    clock.0.store(2, Ordering::SeqCst);
    for reader in readers {
        let error = read(reader).answer.error;
        assert!(matches!(error, Some(JobError::Panicked { .. })), "{error:?}");
    }
    while engine.load().restarts == 0 {
        drop(submit_again(&engine).unwrap());
    }
    let answer = submit_again(&engine).unwrap().answer;
    let forward = Box::new(ScriptedForward::new(64, 4096, 512));
    let expected =
        Bench::new(forward, Arc::new(ToyVocabulary), &[], roomy()).ask(job(&prompt(0), greedy(30)));
    assert_eq!(answer, expected.0);
    let load = engine.load();
    assert_eq!((engine.health(), load.blocks_free, load.running), (EngineHealth::Up, load.blocks_total, 0));
}

#[test]
fn a_loop_that_breaks_again_and_again_is_dead_for_good_and_says_so() {
    let (clock, engine, readers) = start_fragile();
    clock.0.store(u32::MAX, Ordering::SeqCst);
    for reader in readers {
        let error = read(reader).answer.error;
        assert!(matches!(error, Some(JobError::Panicked { .. })), "{error:?}");
    }
    let refused = loop {
        if let Err(refused) = submit_again(&engine) {
            break refused;
        }
    };
    assert!(refused.to_string().contains("the loop itself broke"), "{refused}");
    assert!(matches!(engine.health(), EngineHealth::Dead { .. }));
    engine.shutdown(Duration::from_secs(60));
    assert!(matches!(engine.health(), EngineHealth::Dead { .. }), "and stays so");
}

#[test]
fn a_configuration_that_cannot_work_is_refused_with_every_reason() {
    let bad =
        EngineConfig { eos: vec![99], max_choices: 0, ..config(SchedulerConfig { max_chunk: 0, ..roomy() }) };
    let forward = Box::new(ScriptedForward::new(64, 4096, 512));
    match EmbeddedEngine::start_with(forward, Arc::new(ToyVocabulary), bad).err() {
        Some(EngineError::Config { problems }) => {
            assert_eq!(problems.len(), 3, "{problems:?}");
        }
        other => panic!("{other:?}"),
    }
}
