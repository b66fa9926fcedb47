//! The worker's endpoint in front of a controllable engine: who is admitted, what happens to jobs, and that dropping a
//! job's stream cancels it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "all of this is test code")]

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use headrace_call_api::{
    AnswerBody, AnswerFrames, InternalAnswer, InternalAnswerFuture, InternalApi, InternalHead,
};
use headrace_domain::{
    CacheLife, CachePin, CacheSalt, CallOutcome, Clock, ConcurrentWork, EngineTrace, FinishReason, JsonForm,
    KeyId, ManualClock, NanoDollars, PrefixKeys, RequestId, ResponseFormat, Sampling, Stage, SystemClock,
    TokenLogprob, TraceRecord, TraceSink, UnixNanos, Usage, WORKER_JOB_KEY, WorkAhead, WorkerJob,
    is_partition,
};
use headrace_engine_api::{
    Capabilities, CompiledGrammar, Engine, EngineHealth, EventSender, FormThought, GrammarState, Job,
    JobError, JobEvent, JobReport, JobTicket, LoadReport, Priority, PromptScores, ResumeSupport,
    SharedEngine, SubmitRefusal, Tenant, channel,
};
use headrace_worker::{
    ABOUT_PATH, ALIVE_PERIOD, ExpectedModel, FrameMeaning, FrameReader, HeldTo, JOBS_PATH, JobAudit,
    JobRefusal, JobRequest, OfferedModel, PackedAssets, ProcessId, TicketVerifier, WORDS_PATH,
    WorkerEndpoint, WorkerFrame, WorkerInfo, WorkerSecret,
};

const BITS: &str = "abababababababab";

/// An engine that stores its jobs.
struct ScriptedEngine {
    capabilities: Capabilities,
    jobs: Mutex<Vec<(Job, EventSender)>>,
}

impl Engine for ScriptedEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn submit(&self, job: Job) -> Result<JobTicket, SubmitRefusal> {
        if job.prompt.len() > 40 {
            return Err(SubmitRefusal::DoesNotFit { needed: 41, limit: 40 });
        }
        let (sender, ticket) = channel(job.unread_bytes, Arc::new(|| {}));
        self.jobs.lock().unwrap().push((job, sender));
        Ok(ticket)
    }

    fn cached_prefix(&self, _keys: &PrefixKeys) -> usize {
        0
    }

    fn load(&self) -> LoadReport {
        LoadReport { running: 7, ..LoadReport::default() }
    }

    fn health(&self) -> EngineHealth {
        EngineHealth::Up
    }
}

/// A grammar that consists only of its form.
#[derive(Debug)]
struct Shown(Arc<ResponseFormat>, Option<FormThought>);

impl CompiledGrammar for Shown {
    fn form(&self) -> &Arc<ResponseFormat> {
        &self.0
    }

    fn thought(&self) -> Option<&FormThought> {
        self.1.as_ref()
    }

    fn begin(&self) -> Box<dyn GrammarState> {
        unreachable!("nothing is generated")
    }

    fn state_bytes(&self) -> usize {
        0
    }
}

struct World {
    engine: Arc<ScriptedEngine>,
    endpoint: WorkerEndpoint,
    secret: WorkerSecret,
    process: ProcessId,
    words: Arc<PackedAssets>,
    clock: Arc<ManualClock>,
    traces: Arc<Kept>,
}

/// Keeps the records of jobs.
#[derive(Default)]
struct Kept(Mutex<Vec<TraceRecord>>);

impl TraceSink for Kept {
    fn record(&self, record: Box<TraceRecord>) {
        self.0.lock().unwrap().push(*record);
    }
}

fn world() -> World {
    world_of(false)
}

/// A world whose engine supports forms.
fn holding() -> World {
    world_of(true)
}

fn world_of(grammars: bool) -> World {
    let capabilities = Capabilities {
        model: "demo".into(),
        compute_mode: "exact".into(),
        numerics: "n".into(),
        vocab: 100,
        context_window: 50,
        max_logprobs: 20,
        kv_tokens: 1_000,
        continues: ResumeSupport::Exactly,
        grammars,
        thought_caps: false,
        forms: headrace_engine_api::FormKinds::NONE,
        short_context: Some(40),
    };
    let engine = Arc::new(ScriptedEngine { capabilities, jobs: Mutex::default() });
    let words = Arc::new(PackedAssets::new(vec![("tokenizer.json".into(), b"{}".to_vec())]).unwrap());
    let offer = OfferedModel {
        engine: Arc::clone(&engine) as SharedEngine,
        bits: BITS.into(),
        compile: Arc::new(|held_to| match held_to {
            HeldTo { form: ResponseFormat::Regex(_), .. } => {
                Err(SubmitRefusal::Invalid { what: "no expressions".to_owned() })
            }
            held_to => Ok(Arc::new(Shown(Arc::new(held_to.form), held_to.thought))),
        }),
        words: Arc::clone(&words),
        created_unix_s: 1,
        default_max_tokens: Some(9),
        in_use: Arc::new(()),
    };
    let secret = WorkerSecret::new(&"0123456789abcdef0123456789abcdef".into()).unwrap();
    let payer = KeyId::new("worker").unwrap();
    let process = ProcessId::fresh().unwrap();
    let (tickets, clock) = (TicketVerifier::new(secret.clone(), process), Arc::new(ManualClock::at(now())));
    let traces = Arc::new(Kept::default());
    let (time, sink) = (Arc::<ManualClock>::clone(&clock), Arc::<Kept>::clone(&traces));
    let endpoint = WorkerEndpoint::new(tickets, time, payer, "1.2.3", sink, move || vec![offer.clone()]);
    World { engine, endpoint, secret, process, words, clock, traces }
}

fn now() -> UnixNanos {
    SystemClock::new().now()
}

fn job(prompt: &[u32]) -> Job {
    Job {
        request: RequestId::fresh(now()),
        first_choice: 0,
        prompt: prompt.into(),
        generated: 0,
        sampling: Sampling { prompt_logprobs: Some(0), ..Sampling::default() },
        salt: CacheSalt::from_bytes([1; 32]),
        keys: None,
        tenant: Tenant(1),
        weight: 1,
        priority: Priority::Normal,
        start_deadline_ns: None,
        trace: None,
        unread_bytes: 100_000,
        pins: Arc::default(),
        held: None,
        grammar: None,
        thought: None,
    }
}

fn body(job: &Job, bits: &str) -> Vec<u8> {
    JobRequest::new(job, ExpectedModel { name: "demo", bits }, 0).to_bytes()
}

impl World {
    /// Sends a request with a valid ticket.
    fn ask(&self, method: &str, path: &str, body: Vec<u8>) -> InternalAnswer {
        let ticket = self.secret.ticket(Some(self.process), (method, path), &body, now()).unwrap();
        self.show(method, path, body, Some(ticket.as_bytes()))
    }

    fn show(&self, method: &str, path: &str, body: Vec<u8>, authorization: Option<&[u8]>) -> InternalAnswer {
        self.show_below(method, path, body, authorization, None)
    }

    /// A job under a `traceparent`.
    fn ask_below(&self, body: Vec<u8>, traceparent: Option<&str>) -> InternalAnswer {
        let ticket = self.secret.ticket(Some(self.process), ("POST", JOBS_PATH), &body, now()).unwrap();
        self.show_below("POST", JOBS_PATH, body, Some(ticket.as_bytes()), traceparent)
    }

    fn show_below(
        &self,
        method: &str,
        path: &str,
        body: Vec<u8>,
        authorization: Option<&[u8]>,
        traceparent: Option<&str>,
    ) -> InternalAnswer {
        let head = InternalHead { method, path, authorization, traceparent, now: now() };
        match self.endpoint.admit(&head) {
            Ok(call) => at_once(call.answer(Bytes::from(body))),
            Err(refusal) => refusal,
        }
    }

    /// Sends a job whose answer may have to be awaited.
    async fn ask_late(&self, body: Vec<u8>) -> InternalAnswer {
        let ticket = self.secret.ticket(Some(self.process), ("POST", JOBS_PATH), &body, now()).unwrap();
        let authorization = Some(ticket.as_bytes());
        let head =
            InternalHead { method: "POST", path: JOBS_PATH, authorization, traceparent: None, now: now() };
        self.endpoint.admit(&head).map_err(whole).unwrap().answer(Bytes::from(body)).await
    }

    /// The only record of a job, once it is there; none is left behind.
    async fn record(&self) -> TraceRecord {
        for _ in 0..1_000 {
            let kept = self.traces.0.lock().unwrap().pop();
            if let Some(record) = kept {
                assert!(self.traces.0.lock().unwrap().is_empty(), "a job is recorded once");
                return record;
            }
            tokio::task::yield_now().await;
        }
        panic!("the job is not recorded");
    }

    fn take(&self) -> (Job, EventSender) {
        self.engine.jobs.lock().unwrap().pop().expect("the engine was given a job")
    }
}

/// Polls an answer that must be ready at once.
fn at_once(mut answer: InternalAnswerFuture) -> InternalAnswer {
    match answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("it waits"),
    }
}

fn whole(answer: InternalAnswer) -> (u16, Bytes) {
    let AnswerBody::Whole(body) = answer.body else { panic!("it is a stream") };
    (answer.status, body)
}

fn refusal(answer: InternalAnswer) -> (u16, JobRefusal) {
    let (status, body) = whole(answer);
    (status, serde_json::from_slice(&body).unwrap())
}

fn stream(answer: InternalAnswer) -> Box<dyn AnswerFrames> {
    match answer.body {
        AnswerBody::Stream(frames) if answer.status == 200 => frames,
        _ => panic!("{} is no stream", answer.status),
    }
}

/// Returns the next frames. Empty at the end.
async fn frames(stream: &mut Box<dyn AnswerFrames>) -> Vec<WorkerFrame> {
    let mut unframer = FrameReader::default();
    let mut out = Vec::new();
    if let Some(bytes) = poll_fn(|cx| stream.poll_frame(cx)).await {
        unframer.push(&bytes.unwrap());
    }
    while let Some(frame) = unframer.next_frame().unwrap() {
        out.push(frame);
    }
    assert!(!unframer.is_mid_frame());
    out
}

fn score(id: u32) -> TokenLogprob {
    TokenLogprob { id, bytes: vec![b'x'; 40_000], logprob: Some(-1.0), top: Vec::new() }
}

#[tokio::test]
async fn a_job_goes_to_its_engine_and_its_events_come_back_as_they_were() {
    let world = world();
    let asked = job(&[1, 2, 3, 4]);
    let mut stream = stream(world.ask("POST", JOBS_PATH, body(&asked, BITS)));
    let (got, sender) = world.take();
    assert_eq!((&got.prompt, &got.sampling, got.salt), (&asked.prompt, &asked.sampling, asked.salt));
    let usage = Usage { input: 4, output: 1, ..Usage::default() };
    let report = Arc::new(JobReport { usage, ..JobReport::default() });
    let events = [
        JobEvent::Started { cached_tokens: 0 },
        // More scores than fit into one frame.
        JobEvent::Scored(PromptScores { tokens: [1, 2, 3, 4].map(score).to_vec() }),
        JobEvent::Tokens { choice: 0, ids: vec![5], text: "é".into(), logprobs: vec![] },
        JobEvent::Finished { choice: 0, reason: FinishReason::Stop },
    ];
    events.iter().for_each(|event| assert!(sender.send(event.clone())));
    sender.finish(JobEvent::Done(report.clone()));
    let (mut audit, mut came, mut over) = (JobAudit::new(&asked, 100, 50), Vec::new(), None);
    let mut chunks = 0;
    loop {
        let frames = frames(&mut stream).await;
        if frames.is_empty() {
            break;
        }
        chunks += 1;
        for frame in frames {
            match audit.take(frame).unwrap() {
                FrameMeaning::Event(event) => came.push(event),
                FrameMeaning::Over(ended, report) => {
                    over = Some((ended, Arc::new(report.within(4, u64::MAX))))
                }
                FrameMeaning::Load(load) => assert_eq!(load.running, 7),
                FrameMeaning::Nothing => {}
            }
        }
    }
    assert_eq!(came, events);
    assert_eq!(over, Some((Ok(()), report)));
    assert!(chunks > 2, "large scores come in several pieces");
}

#[tokio::test]
async fn what_answers_are_held_to_is_compiled_here_before_the_engine_has_the_job() {
    let world = world();
    let form = ResponseFormat::JsonSchema(JsonForm {
        name: Some("x".into()),
        schema: serde_json::from_str(r#"{"properties": {"z": {}, "a": {"type": "string"}}}"#).unwrap(),
        strict: true,
        compact: false,
        white_space: None,
    });
    let thought = FormThought { open: 1, close: 2, is_open: true, between: vec![3], most_ids: Some(9) };
    let held = |form: &ResponseFormat| {
        let grammar = Shown(Arc::new(form.clone()), Some(thought.clone()));
        Job { grammar: Some(Arc::new(grammar)), ..job(&[1]) }
    };
    // An engine without support for forms gets no such job.
    let (status, told) = refusal(world.ask_late(body(&held(&form), BITS)).await);
    let JobRefusal::Invalid { what } = told else { panic!("{told:?}") };
    assert!(status == 400 && what.contains("holds answers to none"), "{what}");
    let world = holding();
    let about = WorkerInfo::read(&whole(world.ask("GET", ABOUT_PATH, Vec::new())).1).unwrap();
    assert!(about.models[0].capabilities.grammars && about.models[0].holds_forms);
    assert_eq!(about.models[0].capabilities.short_context, Some(40));
    let _stream = stream(world.ask_late(body(&held(&form), BITS)).await);
    let (got, _sender) = world.take();
    let grammar = got.grammar.expect("it is held to something");
    assert_eq!((&**grammar.form(), grammar.thought()), (&form, Some(&thought)));
    let keys = |form: &ResponseFormat| serde_json::to_string(form).unwrap();
    assert_eq!(keys(grammar.form()), keys(&form), "keys stay in their order");
    let (_, told) = refusal(world.ask_late(body(&held(&ResponseFormat::Regex("a".into())), BITS)).await);
    assert_eq!(told, JobRefusal::Invalid { what: "no expressions".to_owned() });
    assert!(world.engine.jobs.lock().unwrap().is_empty());
    // A job without a form has the same bytes as before.
    let told = held(&form);
    let plain = body(&Job { grammar: None, ..told.clone() }, BITS);
    assert!(body(&told, BITS).starts_with(&plain) && body(&told, BITS).len() > plain.len());
}

#[tokio::test]
async fn what_is_to_be_kept_reaches_the_engine_and_all_is_told_to_whoever_asks_for_it() {
    let world = world();
    let pins: Arc<[CachePin]> = Arc::from([
        CachePin { tokens: 16, life: CacheLife::Hour },
        CachePin { tokens: 35, life: CacheLife::Minutes },
    ]);
    let asked = Job { pins, sampling: Sampling::default(), ..job(&[1; 36]) };
    let usage = Usage { input: 4, cache_write: 16, cache_write_1h: 16, output: 1, ..Usage::default() };
    let engine = EngineTrace {
        queue_ns: 10,
        decode_ns: 10,
        pinned_blocks: 2,
        ahead: Some(WorkAhead { running: 3, own: 1, others_decode_ns: 9, ..WorkAhead::default() }),
        beside: Some(ConcurrentWork { prefill_tokens: 7, decode_prefill_ns: 8, ..ConcurrentWork::default() }),
        ..EngineTrace::default()
    };
    let report = JobReport { usage, engine };
    let model = ExpectedModel { name: "demo", bits: BITS };
    let plain = || JobRequest::new(&asked, model, 0);
    for (body, fuller) in [(plain().to_bytes(), false), (plain().fuller(&asked).to_bytes(), true)] {
        for fails in [false, true] {
            let mut stream = stream(world.ask("POST", JOBS_PATH, body.clone()));
            let (got, sender) = world.take();
            assert_eq!(got.pins, if fuller { Arc::clone(&asked.pins) } else { Arc::default() });
            sender.send(JobEvent::Started { cached_tokens: 0 });
            sender.send(JobEvent::Tokens { choice: 0, ids: vec![5], text: "x".into(), logprobs: vec![] });
            sender.send(JobEvent::Finished { choice: 0, reason: FinishReason::Stop });
            let report = Arc::new(report.clone());
            sender.finish(match fails {
                false => JobEvent::Done(report.clone()),
                true => JobEvent::Failed { error: JobError::ShuttingDown, report: report.clone() },
            });
            let (mut audit, mut over, mut told) = (JobAudit::new(&asked, 100, 50), None, 0);
            for frame in frames(&mut stream).await {
                told += usize::from(matches!(frame, WorkerFrame::Also(_)));
                if let FrameMeaning::Over(_, last) = audit.take(frame).unwrap() {
                    over = Some(last.within(36, 1_000));
                }
            }
            let over = over.expect("it is over");
            assert_eq!(told, usize::from(fuller), "whoever does not ask gets no frame that it may not know");
            match fuller {
                true => assert_eq!(over, *report),
                false => assert_eq!((over.usage.cache_writes(), over.engine.ahead), (0, None)),
            }
        }
    }
}

#[tokio::test]
async fn whoever_lets_go_of_a_stream_aborts_its_job_at_once() {
    let world = world();
    let mut stream = stream(world.ask("POST", JOBS_PATH, body(&job(&[1]), BITS)));
    let (_, sender) = world.take();
    sender.send(JobEvent::Started { cached_tokens: 0 });
    assert_eq!(frames(&mut stream).await.len(), 2);
    assert!(!sender.is_cancelled());
    drop(stream);
    assert!(sender.is_cancelled());
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// What an engine says of a job that took it 20 ms.
fn took_20_ms() -> Arc<JobReport> {
    let ms = 1_000_000;
    let usage = Usage { input: 2, cached_input: 1, output: 1, ..Usage::default() };
    let engine = EngineTrace {
        queue_ns: 2 * ms,
        prefill_ns: 8 * ms,
        decode_ns: 10 * ms,
        steps: 2,
        cached_blocks: 1,
        prompt_blocks: 1,
        ..EngineTrace::default()
    };
    Arc::new(JobReport { usage, engine })
}

async fn read_to_the_end(stream: &mut Box<dyn AnswerFrames>) {
    while !frames(stream).await.is_empty() {}
}

#[tokio::test]
async fn a_job_that_ran_is_recorded_once_below_its_gateways_span_with_its_engines_part() {
    let world = world();
    let (asked, traceparent) = (job(&[1, 2, 3]), format!("00-{TRACE}-{PARENT}-01"));
    let mut stream = stream(world.ask_below(body(&asked, BITS), Some(&traceparent)));
    let (_, sender) = world.take();
    sender.send(JobEvent::Started { cached_tokens: 1 });
    world.clock.advance(Duration::from_millis(10));
    sender.send(JobEvent::Tokens { choice: 0, ids: vec![5], text: "x".into(), logprobs: vec![] });
    assert!(!frames(&mut stream).await.is_empty());
    world.clock.advance(Duration::from_millis(15));
    sender.send(JobEvent::Finished { choice: 1, reason: FinishReason::Length });
    sender.send(JobEvent::Finished { choice: 0, reason: FinishReason::Stop });
    let report = took_20_ms();
    sender.finish(JobEvent::Done(Arc::clone(&report)));
    read_to_the_end(&mut stream).await;
    drop(stream);
    let record = world.record().await;
    assert_eq!((record.trace_id.as_deref(), record.parent_span_id.as_deref()), (Some(TRACE), Some(PARENT)));
    assert_eq!(record.worker_job.as_deref(), Some(&WorkerJob { call: asked.request }));
    assert_ne!(record.request_id, asked.request, "a record of its own");
    assert_eq!(
        record.outcome,
        CallOutcome::Completed { finish: vec!["stop".to_owned(), "length".to_owned()] }
    );
    assert_eq!(record.model_served.as_deref(), Some("demo"));
    assert_eq!((&record.usage, record.engine.as_ref()), (&report.usage, Some(&report.engine)));
    // The worker charges no one.
    assert_eq!((&record.org, &record.project, record.endpoint), (&None, &None, None));
    assert_eq!(record.key.as_ref().map(KeyId::as_str), Some(WORKER_JOB_KEY));
    assert_eq!([record.held, record.cost, record.loss], [NanoDollars::ZERO; 3]);
    // The engine's part within what was seen here.
    assert!(is_partition(&record.stages, record.duration_ns), "{:?}", record.stages);
    let ms = |stage| record.span(stage).map(|span| span.duration_ns / 1_000_000);
    let parts = [Stage::Queue, Stage::Prefill, Stage::Decode, Stage::Handover].map(ms);
    assert_eq!(parts, [Some(2), Some(8), Some(10), Some(5)]);
    assert_eq!((record.duration_ns, record.first_token_ns), (25_000_000, Some(10_000_000)));
    tokio::task::yield_now().await;
    assert!(world.traces.0.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_job_that_did_not_complete_is_recorded_once_with_what_it_took() {
    type End = fn(EventSender, Box<dyn AnswerFrames>);
    let failed = |sender: EventSender, stream: Box<dyn AnswerFrames>| {
        sender.finish(JobEvent::Failed { error: JobError::ShuttingDown, report: took_20_ms() });
        drop(tokio::spawn(async move {
            let mut stream = stream;
            read_to_the_end(&mut stream).await;
        }));
    };
    let release = |sender: EventSender, stream: Box<dyn AnswerFrames>| {
        drop(stream);
        assert!(sender.is_cancelled());
        // The engine says what it had computed when it comes to it.
        sender.finish(JobEvent::Failed { error: JobError::Cancelled, report: took_20_ms() });
    };
    let engine_gone = |sender: EventSender, stream: Box<dyn AnswerFrames>| {
        drop(sender);
        drop(tokio::spawn(async move {
            let mut stream = stream;
            read_to_the_end(&mut stream).await;
        }));
    };
    let never_read = |sender: EventSender, stream: Box<dyn AnswerFrames>| {
        sender.finish(JobEvent::Done(took_20_ms()));
        drop(stream);
    };
    let cancelled = CallOutcome::Cancelled { why: "the gateway cancelled the job".to_owned() };
    let broke = |stage, message: &str| CallOutcome::Failed { stage, message: message.to_owned() };
    let rows: [(End, CallOutcome, u64); 4] = [
        (failed, broke(Stage::Prefill, "the engine is shutting down"), 1),
        (release, cancelled.clone(), 1),
        (engine_gone, broke(Stage::Prefill, "the engine ended before the job did"), 0),
        (never_read, cancelled, 1),
    ];
    for (end, outcome, output) in rows {
        let world = world();
        let mut stream = stream(world.ask("POST", JOBS_PATH, body(&job(&[1]), BITS)));
        let (_, sender) = world.take();
        sender.send(JobEvent::Started { cached_tokens: 0 });
        assert_eq!(frames(&mut stream).await.len(), 2);
        end(sender, stream);
        let record = world.record().await;
        assert_eq!((&record.outcome, record.usage.output), (&outcome, output));
        assert!(is_partition(&record.stages, record.duration_ns), "{:?}", record.stages);
        tokio::task::yield_now().await;
        assert!(world.traces.0.lock().unwrap().is_empty(), "{outcome:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_its_gateway_does_not_read_is_recorded_as_such() {
    let world = world();
    let mut stream = stream(world.ask("POST", JOBS_PATH, body(&job(&[1]), BITS)));
    let (_, sender) = world.take();
    for _ in 0..90 {
        world.clock.advance(Duration::from_secs(1));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(sender.is_cancelled());
    sender.finish(JobEvent::Failed { error: JobError::Cancelled, report: took_20_ms() });
    read_to_the_end(&mut stream).await;
    drop(stream);
    let why = "the gateway read nothing of the job for too long".to_owned();
    assert_eq!(world.record().await.outcome, CallOutcome::Cancelled { why });
}

#[tokio::test]
async fn a_job_without_a_good_traceparent_runs_and_is_recorded_in_a_trace_of_its_own() {
    let long = format!("00-{TRACE}-{PARENT}-01{}", "0".repeat(10_000));
    let zero = format!("00-{}-{PARENT}-01", "0".repeat(32));
    let upper = format!("00-{}-{PARENT}-01", TRACE.to_uppercase());
    let bad = ["", "x", "\u{1b}[31m", TRACE, zero.as_str(), upper.as_str(), long.as_str()];
    for traceparent in bad.into_iter().map(Some).chain([None]) {
        let world = world();
        let mut stream = stream(world.ask_below(body(&job(&[1]), BITS), traceparent));
        let (_, sender) = world.take();
        sender.finish(JobEvent::Done(took_20_ms()));
        read_to_the_end(&mut stream).await;
        let record = world.record().await;
        assert_eq!((record.trace_id, record.parent_span_id), (None, None), "{traceparent:?}");
        assert_eq!(record.outcome, CallOutcome::Completed { finish: Vec::new() });
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_shows_that_it_lives_and_ends_without_a_word_when_its_engine_does() {
    let world = world();
    let mut stream = stream(world.ask("POST", JOBS_PATH, body(&job(&[1]), BITS)));
    let (_, sender) = world.take();
    let begun = tokio::time::Instant::now();
    for tick in 0..4 {
        assert!(matches!(frames(&mut stream).await[..], [WorkerFrame::Alive(_)]), "{tick}");
    }
    assert_eq!(begun.elapsed(), 3 * ALIVE_PERIOD);
    drop(sender);
    assert!(frames(&mut stream).await.is_empty(), "nobody can take that for an end");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_nobody_reads_is_let_go_and_one_that_is_read_is_not() {
    let world = world();
    let mut read = stream(world.ask("POST", JOBS_PATH, body(&job(&[1]), BITS)));
    let (_, reading) = world.take();
    let _unread = stream(world.ask("POST", JOBS_PATH, body(&job(&[1]), BITS)));
    let (_, waiting) = world.take();
    for second in 0..90 {
        assert_eq!(waiting.is_cancelled(), second > 60, "{second}");
        world.clock.advance(Duration::from_secs(1));
        tokio::time::sleep(Duration::from_secs(1)).await;
        drop(tokio::time::timeout(Duration::ZERO, frames(&mut read)).await);
    }
    assert!(!reading.is_cancelled());
}

#[tokio::test]
async fn what_is_no_good_is_refused_and_the_engine_hears_nothing_of_it() {
    let world = world();
    let good = || body(&job(&[1]), BITS);
    let unavailable = |words: &str, (status, refusal): (u16, JobRefusal)| {
        let JobRefusal::Unavailable { why } = refusal else { panic!("{refusal:?}") };
        assert!(status == 503 && why.contains(words), "{why}");
    };
    unavailable("is another one than before", refusal(world.ask("POST", JOBS_PATH, body(&job(&[1]), "cd"))));
    let other = JobRequest::new(&job(&[1]), ExpectedModel { name: "none", bits: BITS }, 0).to_bytes();
    unavailable("no model `none`", refusal(world.ask("POST", JOBS_PATH, other)));
    let long = refusal(world.ask("POST", JOBS_PATH, body(&job(&[1; 41]), BITS)));
    assert_eq!(long, (400, JobRefusal::DoesNotFit { needed: 41, limit: 40 }));
    for bytes in [vec![], vec![2, 0], vec![1, 255], good()[1..].to_vec()] {
        let (status, refusal) = refusal(world.ask("POST", JOBS_PATH, bytes));
        assert!(status == 400 && matches!(refusal, JobRefusal::Invalid { .. }), "{refusal:?}");
    }
    let ticket = world.secret.ticket(Some(world.process), ("POST", JOBS_PATH), &good(), now()).unwrap();
    let ticket = Some(ticket.as_bytes());
    // A ticket for another body, for another path, none, and a used one.
    let late =
        world.secret.ticket(Some(world.process), ("POST", JOBS_PATH), &good(), UnixNanos::new(1)).unwrap();
    for (path, body, ticket) in [
        (JOBS_PATH, body(&job(&[2]), BITS), ticket),
        (JOBS_PATH, good(), None),
        (JOBS_PATH, good(), Some(&b"Bearer sk-1"[..])),
        (JOBS_PATH, good(), Some(late.as_bytes())),
        (ABOUT_PATH, good(), ticket),
        (JOBS_PATH, good(), ticket),
    ] {
        assert_eq!(refusal(world.show("POST", path, body, ticket)), (401, JobRefusal::Ticket));
    }
    for (method, path) in [("GET", JOBS_PATH), ("POST", ABOUT_PATH), ("GET", "/internal/v1/other")] {
        assert_eq!(whole(world.ask(method, path, Vec::new())).0, 404, "{method} {path}");
    }
    assert!(world.engine.jobs.lock().unwrap().is_empty());
    assert!(world.traces.0.lock().unwrap().is_empty(), "what did not run is not recorded");
    // A ticket for another process, and one of an older gateway without a process id. Both gateways learn the process
    // id from the answer.
    let others = [Some(ProcessId::UNKNOWN), Some(ProcessId::fresh().unwrap()), None];
    for (other, status) in others.into_iter().zip([401, 401, 503]) {
        let ticket = world.secret.ticket(other, ("GET", ABOUT_PATH), b"", now()).unwrap();
        let answer = world.show("GET", ABOUT_PATH, Vec::new(), Some(ticket.as_bytes()));
        let told = answer.headers.iter().find(|(name, _)| *name == "www-authenticate").unwrap().1.clone();
        assert_eq!(ProcessId::of_challenge(&told), Some(world.process), "{told}");
        let (refused_with, refusal) = refusal(answer);
        assert_eq!(refused_with, status);
        if status == 503 {
            unavailable("update the gateway", (503, refusal));
        }
    }
}

#[test]
fn a_worker_tells_what_it_is_and_gives_its_words_by_their_digest() {
    let world = world();
    let (status, about) = whole(world.ask("GET", ABOUT_PATH, Vec::new()));
    let about = WorkerInfo::read(&about).unwrap();
    let model = &about.models[0];
    assert_eq!((status, about.version.as_str(), &*model.bits, model.up), (200, "1.2.3", BITS, true));
    assert_eq!((&model.capabilities, model.default_max_tokens), (&world.engine.capabilities, Some(9)));
    assert!(model.fuller_jobs);
    let path = format!("{WORDS_PATH}{}", model.words);
    let (status, words) = whole(world.ask("GET", &path, Vec::new()));
    assert_eq!((status, PackedAssets::taken(words, &model.words)), (200, Ok((*world.words).clone())));
    assert_eq!(whole(world.ask("GET", &format!("{WORDS_PATH}00"), Vec::new())).0, 404);
}
