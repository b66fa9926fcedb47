//! Tests the encoder engine through its trait, with a model that is a plain function: answers, batches, and the
//! handling of failures.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use headrace_domain::{
    CacheSalt, FinishReason, RequestId, Sampling, SamplingDefaults, SamplingRequest, SystemClock, UnixNanos,
};
use headrace_embedder::{Embedder, EmbedderConfig};
use headrace_engine_api::{
    Engine, EngineHealth, Job, JobError, JobEvent, JobEvents, JobTicket, Priority, SubmitRefusal, Tenant,
};
use headrace_kernels::encode::{Encode, EncodeShape, Sequence, Vectors};
use headrace_kernels::forward::ForwardError;

/// A token on which the model panics, and one for which it returns NaN.
const PANICS: u32 = 13;
const NO_NUMBER: u32 = 14;
const SEPARATOR: u32 = 7;

/// The batches that the model received, and a switch that blocks the model.
#[derive(Default)]
struct Seen {
    /// The tokens of each sequence of each batch.
    batches: Mutex<Vec<Vec<Vec<u32>>>>,
    held: Mutex<bool>,
    moved: Condvar,
}

impl Seen {
    fn hold(&self, held: bool) {
        *self.held.lock().unwrap() = held;
        self.moved.notify_all();
    }

    fn batches(&self) -> Vec<Vec<Vec<u32>>> {
        self.batches.lock().unwrap().clone()
    }
}

/// A model that returns a sequence's length, the sum of its tokens, and the start of its second text.
struct Function(Arc<Seen>, EncodeShape);

impl Encode for Function {
    fn shape(&self) -> &EncodeShape {
        &self.1
    }

    fn numerics(&self) -> &str {
        "function"
    }

    fn encode(&mut self, batch: &[Sequence<'_>], out: &mut Vectors) -> Result<(), ForwardError> {
        self.0.batches.lock().unwrap().push(batch.iter().map(|sequence| sequence.tokens.to_vec()).collect());
        let mut held = self.0.held.lock().unwrap();
        while *held {
            held = self.0.moved.wait(held).unwrap();
        }
        drop(held);
        out.reset(batch.len(), 3);
        for (row, sequence) in batch.iter().enumerate() {
            assert!(!sequence.tokens.contains(&PANICS), "a token to panic over");
            let sum: u32 = sequence.tokens.iter().sum();
            let sum = if sequence.tokens.contains(&NO_NUMBER) { f32::NAN } else { sum as f32 };
            let row = out.row_mut(row).unwrap();
            row.copy_from_slice(&[sequence.tokens.len() as f32, sum, sequence.second as f32]);
        }
        Ok(())
    }
}

fn start(change: impl FnOnce(&mut EmbedderConfig)) -> (Arc<Seen>, Embedder) {
    let seen = Arc::new(Seen::default());
    let shape = EncodeShape {
        vocab: 1000,
        max_tokens: 64,
        max_batch_tokens: 2048,
        block_tokens: 16,
        width: 3,
        weight_bytes: 1,
    };
    let mut config = EmbedderConfig::new("m", "exact", Arc::new(SystemClock::new()));
    config.separator = Some(SEPARATOR);
    change(&mut config);
    let model = Function(Arc::clone(&seen), shape);
    (seen, Embedder::start(Box::new(model), config).unwrap())
}

fn sampling() -> Sampling {
    SamplingRequest::default().resolve(&SamplingDefaults::default(), 0, 0)
}

fn job(tenant: u64, tokens: &[u32]) -> Job {
    Job {
        request: RequestId::fresh(UnixNanos::new(0)),
        first_choice: 5,
        prompt: tokens.into(),
        generated: 0,
        sampling: sampling(),
        pins: Arc::default(),
        held: None,
        grammar: None,
        thought: None,
        salt: CacheSalt::derive(&[0; 32], "p", "m", None),
        keys: None,
        tenant: Tenant(tenant),
        weight: 1,
        priority: Priority::Normal,
        start_deadline_ns: None,
        trace: None,
        unread_bytes: 1 << 20,
    }
}

fn events(ticket: JobTicket) -> JobEvents {
    ticket.split().0
}

/// Returns all events of a job.
fn received(mut events: JobEvents) -> Vec<JobEvent> {
    std::iter::from_fn(|| events.next_blocking()).collect()
}

/// Waits until the model has received `times` batches.
fn asked(seen: &Seen, times: usize) {
    while seen.batches().len() < times {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_text_is_answered_with_what_the_model_makes_of_it() {
    let (_seen, engine) = start(|_| {});
    let received = received(events(engine.submit(job(1, &[3, SEPARATOR, 4, SEPARATOR])).unwrap()));
    let [JobEvent::Started { cached_tokens: 0 }, JobEvent::Encoded(values), finished, JobEvent::Done(report)] =
        &received[..]
    else {
        panic!("{received:?}");
    };
    assert_eq!(**values, [4.0, 21.0, 2.0], "the second text begins behind the first separator");
    assert_eq!(*finished, JobEvent::Finished { choice: 5, reason: FinishReason::Stop });
    assert_eq!((report.usage.input, report.usage.total(), report.engine.steps), (4, 4, 1));
    assert_eq!((engine.capabilities().context_window, engine.health()), (64, EngineHealth::Up));
}

#[test]
fn texts_of_many_calls_share_batches_the_longest_first() {
    let (seen, engine) = start(|_| {});
    seen.hold(true);
    let first = engine.submit(job(1, &[1])).unwrap();
    asked(&seen, 1);
    let others: Vec<_> =
        [2_usize, 40, 17].map(|length| engine.submit(job(length as u64, &vec![2; length])).unwrap()).into();
    assert_eq!((engine.load().running, engine.load().waiting), (1, 3));
    seen.hold(false);
    for ticket in others.into_iter().chain([first]) {
        assert!(matches!(received(events(ticket)).last(), Some(JobEvent::Done(_))));
    }
    let lengths: Vec<Vec<usize>> =
        seen.batches().iter().map(|batch| batch.iter().map(Vec::len).collect()).collect();
    assert_eq!(lengths, [vec![1], vec![40, 17, 2]]);
}

#[test]
fn who_breaks_the_model_ends_alone() {
    let (seen, engine) = start(|_| {});
    seen.hold(true);
    let first = engine.submit(job(1, &[1])).unwrap();
    asked(&seen, 1);
    let jobs: Vec<_> =
        [1, PANICS, 2, NO_NUMBER, 3].map(|id| (id, engine.submit(job(1, &[id])).unwrap())).into();
    seen.hold(false);
    drop(first);
    for (id, ticket) in jobs {
        let received = received(events(ticket));
        match (id, received.last()) {
            (PANICS, Some(JobEvent::Failed { error: JobError::Panicked { detail }, .. })) => {
                assert!(detail.contains("a token to panic over"), "{detail}");
            }
            (NO_NUMBER, Some(JobEvent::Failed { error: JobError::NotFinite { .. }, .. })) => {}
            (1..=3, Some(JobEvent::Done(_))) => {}
            (id, last) => panic!("{id}: {last:?}"),
        }
    }
    let again = received(events(engine.submit(job(1, &[9])).unwrap()));
    assert!(matches!(again.last(), Some(JobEvent::Done(_))), "the engine continues");
}

#[test]
fn what_is_cancelled_while_it_waits_is_never_computed() {
    let (seen, engine) = start(|_| {});
    seen.hold(true);
    let first = engine.submit(job(1, &[1])).unwrap();
    asked(&seen, 1);
    let (mut gone, control) = engine.submit(job(1, &[100])).unwrap().split();
    let stays = engine.submit(job(1, &[200])).unwrap();
    let _receipt = control.cancel();
    seen.hold(false);
    assert!(matches!(received(events(stays)).last(), Some(JobEvent::Done(_))));
    assert!(matches!(gone.next_blocking(), Some(JobEvent::Failed { error: JobError::Cancelled, .. })));
    assert!(matches!(received(events(first)).last(), Some(JobEvent::Done(_))));
    assert!(!seen.batches().iter().flatten().any(|tokens| tokens == &[100]));
}

#[test]
fn what_cannot_be_taken_is_refused_at_once() {
    let (seen, engine) = start(|config| config.queue_texts = 16);
    let longer = Sampling { max_tokens: 1, ..sampling() };
    for (bad, fits) in [
        (job(1, &[]), false),
        (job(1, &[1000]), false),
        (job(1, &[1; 65]), true),
        (Job { sampling: longer, ..job(1, &[1]) }, false),
    ] {
        match engine.submit(bad).err().unwrap() {
            SubmitRefusal::DoesNotFit { needed: 65, limit: 64 } => assert!(fits),
            SubmitRefusal::Invalid { .. } => assert!(!fits),
            other => panic!("{other:?}"),
        }
    }
    seen.hold(true);
    let first = engine.submit(job(1, &[1])).unwrap();
    asked(&seen, 1);
    let mut kept: Vec<_> = (0..14).map(|_| engine.submit(job(1, &[2])).unwrap()).collect();
    // The last eighth of the queue is not for the tenant that fills it.
    let refused = engine.submit(job(1, &[2])).err().unwrap();
    assert!(matches!(refused, SubmitRefusal::QueueFull { what: "sequences", limit: 16, .. }), "{refused:?}");
    kept.extend((0..2).map(|_| engine.submit(job(2, &[2])).unwrap()));
    assert!(matches!(engine.submit(job(2, &[2])), Err(SubmitRefusal::QueueFull { .. })));
    seen.hold(false);
    for ticket in kept.into_iter().chain([first]) {
        assert!(matches!(received(events(ticket)).last(), Some(JobEvent::Done(_))));
    }
}

#[test]
fn a_shutdown_lets_what_waits_end_and_cuts_off_what_is_late() {
    let (seen, engine) = start(|config| config.batch_texts = 1);
    let jobs: Vec<_> = (0..20).map(|id| engine.submit(job(1, &[id])).unwrap()).collect();
    engine.shutdown(Duration::from_secs(30));
    let ended = jobs.into_iter().map(|ticket| received(events(ticket)));
    // Ids 13 and 14 make the model fail.
    assert_eq!(ended.filter(|received| matches!(received.last(), Some(JobEvent::Done(_)))).count(), 18);
    assert!(matches!(engine.submit(job(1, &[1])), Err(SubmitRefusal::Unavailable { .. })));
    assert_eq!(seen.batches().len(), 20);

    let (seen, engine) = start(|config| config.batch_texts = 1);
    seen.hold(true);
    let first = engine.submit(job(1, &[1])).unwrap();
    asked(&seen, 1);
    let waits = engine.submit(job(1, &[2])).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Once it takes nothing more, it shuts down.
            while !matches!(engine.submit(job(1, &[3])), Err(SubmitRefusal::Unavailable { .. })) {
                std::thread::sleep(Duration::from_millis(1));
            }
            seen.hold(false);
        });
        engine.shutdown(Duration::ZERO);
    });
    assert!(matches!(received(events(first)).last(), Some(JobEvent::Done(_))));
    assert!(matches!(
        received(events(waits)).last(),
        Some(JobEvent::Failed { error: JobError::ShuttingDown, .. })
    ));
}

#[test]
fn a_text_past_its_deadline_is_not_begun() {
    let (seen, engine) = start(|_| {});
    seen.hold(true);
    let first = engine.submit(job(1, &[1])).unwrap();
    asked(&seen, 1);
    let late = engine.submit(Job { start_deadline_ns: Some(1_000_000_000), ..job(1, &[2]) }).unwrap();
    std::thread::sleep(Duration::from_millis(1_100));
    seen.hold(false);
    let late = received(events(late));
    assert!(
        matches!(late.last(), Some(JobEvent::Failed { error: JobError::Expired { .. }, .. })),
        "{late:?}"
    );
    assert!(matches!(received(events(first)).last(), Some(JobEvent::Done(_))));
}
