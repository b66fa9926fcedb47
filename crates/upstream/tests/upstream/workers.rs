//! Another Headrace's engine behind the trait `Engine`. A correct worker's events come through. Each lie and each
//! broken answer of another one becomes a named error, and no event exceeds what was requested.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use headrace_call_api::{AnswerBody, InternalApi as _, InternalHead};
use headrace_domain::{
    CacheLife, CachePin, CacheSalt, Clock as _, ConcurrentWork, EngineTrace, FinishReason, KeyId, PrefixKeys,
    RequestId, Sampling, SystemClock, Usage, WorkAhead,
};
use headrace_engine_api::{
    Capabilities, Engine, EngineHealth, Job, JobError, JobEvent, JobReport, JobTicket, LoadReport, Priority,
    ReportAge, ResumeSupport, SubmitRefusal, Tenant, channel,
};
use headrace_fault_server::{FaultServer, Request};
use headrace_upstream::{Upstream, UpstreamKind, UseHttp2, WorkerModel};
use headrace_worker::{
    ABOUT_PATH, AboutModel, ChoiceEnd, JOBS_PATH, JobRequest, OfferedModel, PROTOCOL, PackedAssets,
    ProcessId, TicketVerifier, WORDS_PATH, WorkerEndpoint, WorkerFrame, WorkerInfo, WorkerReport,
    WorkerSecret, put_frame,
};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::calls::spec;

const BITS: &str = "abababababababab";
const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn about(words: &str) -> AboutModel {
    AboutModel {
        bits: BITS.into(),
        words: words.into(),
        capabilities: Capabilities {
            model: "demo".into(),
            compute_mode: "exact".into(),
            numerics: "avx2".into(),
            vocab: 100,
            context_window: 64,
            max_logprobs: 20,
            kv_tokens: 640,
            continues: ResumeSupport::Exactly,
            grammars: false,
            thought_caps: false,
            forms: headrace_engine_api::FormKinds::NONE,
            short_context: None,
        },
        holds_forms: false,
        fuller_jobs: false,
        created_unix_s: 1,
        default_max_tokens: None,
        up: true,
        load: LoadReport { waiting: 3, ..LoadReport::default() },
    }
}

/// A server that is used as a worker.
fn upstream(url: &str) -> Upstream {
    let mut spec = spec(url, UpstreamKind::Headrace);
    spec.worker_secret = Some(SECRET.into());
    spec.http2.when = UseHttp2::Off;
    spec.timeouts.idle = Duration::from_secs(2);
    Upstream::new(spec).unwrap()
}

fn model(upstream: &Upstream) -> WorkerModel {
    let clock: Arc<dyn headrace_domain::Clock> = Arc::new(SystemClock::default());
    WorkerModel::new(upstream, &about("cdcdcdcdcdcdcdcd"), &clock).unwrap()
}

fn job() -> Job {
    Job {
        request: RequestId::from_bits(9),
        first_choice: 0,
        prompt: vec![5, 42, 79, 11].into(),
        generated: 0,
        sampling: Sampling { max_tokens: 3, ..Sampling::default() },
        salt: CacheSalt::derive(&[1; 32], "tenant", "m", None),
        keys: None,
        pins: Arc::default(),
        held: None,
        grammar: None,
        thought: None,
        tenant: Tenant(1),
        weight: 1,
        priority: Priority::Normal,
        start_deadline_ns: None,
        trace: None,
        unread_bytes: 1 << 16,
    }
}

fn raw(status: &str, body: &[u8]) -> Vec<u8> {
    let mut out = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    out.extend_from_slice(body);
    out
}

fn framed(frames: &[WorkerFrame]) -> Vec<u8> {
    let mut out = Vec::new();
    frames.iter().for_each(|frame| put_frame(&mut out, frame).unwrap());
    out
}

const STARTED: WorkerFrame = WorkerFrame::Started { cached_tokens: 0 };

fn tokens(ids: &[u32]) -> WorkerFrame {
    WorkerFrame::Tokens { choice: 0, ids: ids.to_vec(), text: "x".into(), logprobs: vec![] }
}

fn done(input: u64, output: u64) -> WorkerFrame {
    let usage = Usage { input, output, ..Usage::default() };
    WorkerFrame::Done(WorkerReport::from(&JobReport { usage, ..JobReport::default() }))
}

fn right() -> Vec<WorkerFrame> {
    let end = WorkerFrame::Finished { choice: 0, end: ChoiceEnd::Length };
    let alive = WorkerFrame::Alive(LoadReport { running: 5, ..LoadReport::default() });
    vec![alive, STARTED, tokens(&[7, 8]), tokens(&[9]), end, done(4, 3)]
}

/// Returns all events of a job.
async fn played(answer: Vec<u8>) -> (Vec<JobEvent>, WorkerModel) {
    let fault_server = FaultServer::start_with(move |_: &Request| Some(answer.clone())).await.unwrap();
    let model = model(&upstream(&fault_server.url()));
    let (mut events, _control) = model.submit(job()).unwrap().split();
    let mut all = Vec::new();
    while let Some(event) = events.next().await {
        all.push(event);
    }
    (all, model)
}

#[tokio::test]
async fn what_a_worker_says_comes_through_as_it_was() {
    let (events, model) = played(raw("200 OK", &framed(&right()))).await;
    let [JobEvent::Started { cached_tokens: 0 }, first, second, end, JobEvent::Done(report)] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert!(matches!(first, JobEvent::Tokens { ids, .. } if ids == &[7, 8]), "{first:?}");
    assert!(matches!(second, JobEvent::Tokens { ids, .. } if ids == &[9]), "{second:?}");
    assert_eq!(end, &JobEvent::Finished { choice: 0, reason: FinishReason::Length });
    assert_eq!(report.usage, Usage { input: 4, output: 3, ..Usage::default() });
    let load = model.load();
    assert!(load.running == 5 && matches!(load.reported, ReportAge::Ago { .. }), "{load:?}");
    assert_eq!(model.capabilities().numerics, BITS, "who has the same bits goes on with it");
}

#[tokio::test]
async fn a_server_is_told_below_which_span_it_works() {
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for (trace, told) in [(None, None), (Some(parent), Some(parent)), (Some("no\nheader"), None)] {
        let job = Job { trace: trace.map(Arc::from), ..job() };
        let worker =
            FaultServer::start_with(|_: &Request| Some(raw("200 OK", &framed(&right())))).await.unwrap();
        let (mut events, _control) = model(&upstream(&worker.url())).submit(job).unwrap().split();
        while events.next().await.is_some() {}
        assert_eq!(worker.seen().requests[0].header("traceparent"), told);
    }
}

#[tokio::test]
async fn each_lie_and_each_break_of_a_worker_is_told_by_name() {
    let framed_as = |frames: Vec<WorkerFrame>| raw("200 OK", &framed(&frames));
    let whole = framed(&right());
    let refusal = |status: &str, json: &str| raw(status, json.as_bytes());
    let rows: Vec<(Vec<u8>, &str)> = vec![
        (framed_as(vec![STARTED, tokens(&[100])]), "id 100, which is outside of the vocabulary"),
        (framed_as(vec![STARTED, tokens(&[1, 2]), tokens(&[3, 4])]), "more than the 3 tokens of choice 0"),
        (framed_as(vec![STARTED, WorkerFrame::Finished { choice: 0, end: ChoiceEnd::Stop }]), "an end of choice 0 that it cannot have"),
        (framed_as(vec![STARTED, tokens(&[1]), done(4, 1)]), "the end of a job whose choices have not ended"),
        (framed_as(vec![tokens(&[1])]), "tokens of a job that has not begun"),
        (raw("200 OK", &u32::MAX.to_le_bytes()), "a frame of 4294967295 bytes"),
        (raw("200 OK", &[2, 0, 0, 0, 99, 99]), "a frame that means nothing"),
        (raw("200 OK", b"<html>no worker</html>"), "a frame of"),
        (raw("200 OK", &whole[..whole.len() - 3]), "it ended before the job did"),
        (raw("200 OK", b""), "it ended before the job did"),
        (refusal("401 Unauthorized", r#"{"refusal":"ticket"}"#), "takes no ticket of ours: the secret there"),
        (
            b"HTTP/1.1 401 No\r\ndate: Thu, 01 Jan 2015 00:00:00 GMT\r\ncontent-length: 20\r\n\r\n{\"refusal\":\"ticket\"}".to_vec(),
            "its clock and ours are",
        ),
        (refusal("404 Not Found", "{}"), "it takes no jobs"),
        (refusal("500 Oh", "<html>"), "it answers 500 with what is no refusal"),
        (raw("302 Found", b""), "302"),
        (b"SSH-2.0-x\r\n".to_vec(), "no HTTP"),
    ];
    for (answer, words) in rows {
        let (events, _) = played(answer).await;
        let Some(JobEvent::Failed { error, report }) = events.last() else { panic!("{words}: {events:?}") };
        let told = match error {
            JobError::Internal { detail } => detail.clone(),
            JobError::Refused(SubmitRefusal::Unavailable { why }) => why.clone(),
            other => panic!("{words}: {other:?}"),
        };
        assert!(told.contains(words), "{words}: {told}");
        let ids: usize = events
            .iter()
            .map(|event| if let JobEvent::Tokens { ids, .. } = event { ids.len() } else { 0 })
            .sum();
        assert!(ids <= 3 && report.usage.output == ids as u64, "{words}: {events:?}");
    }
}

/// Starts a server that sends the head of an answer and these frames in pieces, and then nothing more.
async fn silent_after(said: &[WorkerFrame]) -> String {
    let said: Vec<Vec<u8>> = said.iter().map(|frame| framed(std::slice::from_ref(frame))).collect();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = [0; 4096];
        let read = stream.read(&mut head).await.unwrap();
        assert!(read > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10000\r\n\r\n").await.unwrap();
        for piece in said {
            stream.write_all(&piece).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        std::future::pending::<()>().await;
    });
    url
}

#[tokio::test]
async fn silence_is_a_break_but_not_while_nobody_reads() {
    let model_at = |url: String| model(&upstream(&url));
    let model = model_at(silent_after(&[STARTED]).await);
    let (mut events, _control) = model.submit(job()).unwrap().split();
    assert!(matches!(events.next().await, Some(JobEvent::Started { .. })));
    let Some(JobEvent::Failed { error: JobError::Internal { detail }, .. }) = events.next().await else {
        panic!("it is silent")
    };
    assert!(detail.contains("did not come within"), "{detail}");
    // The reader pauses for longer than a worker may be silent, because the first event fills the unread bytes.
    let model = model_at(silent_after(&right()).await);
    let (mut events, _control) = model.submit(Job { unread_bytes: 1, ..job() }).unwrap().split();
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let mut last = None;
    while let Some(event) = events.next().await {
        last = Some(event);
    }
    assert!(matches!(last, Some(JobEvent::Done(_))), "{last:?}");
}

#[tokio::test]
async fn a_workers_refusal_is_what_its_engine_said() {
    let full = r#"{"refusal":"queue_full","of_tokens":true,"limit":9,"retry_after_ms":2500}"#;
    let (events, _) = played(raw("429 Too Many Requests", full.as_bytes())).await;
    let retry_after = Duration::from_millis(2500);
    let refusal = SubmitRefusal::QueueFull { what: "tokens", limit: 9, retry_after };
    let [JobEvent::Failed { error, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(error, &JobError::Refused(refusal));
}

#[tokio::test]
async fn a_job_says_what_it_is_with_a_ticket_and_no_key_and_what_no_worker_takes_is_not_sent() {
    let answer = raw("200 OK", &framed(&right()));
    let fault_server = FaultServer::start_with(move |_: &Request| Some(answer.clone())).await.unwrap();
    let model = model(&upstream(&fault_server.url()));
    for change in [
        (|job| job.prompt = vec![100].into()) as fn(&mut Job),
        |job| job.sampling.n = 0,
        |job| job.prompt = vec![1; 65].into(),
        |job| job.prompt = vec![].into(),
    ] {
        let mut bad = job();
        change(&mut bad);
        assert!(model.submit(bad).is_err());
    }
    assert!(fault_server.seen().requests.is_empty());
    let (mut events, _control) = model.submit(job()).unwrap().split();
    while events.next().await.is_some() {}
    let seen = fault_server.seen();
    let request = &seen.requests[0];
    assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", JOBS_PATH));
    let authorization = request.header("authorization").unwrap();
    assert!(authorization.starts_with("Headrace-Ticket v2."), "{authorization}");
    let ask = JobRequest::read(&request.body).unwrap();
    assert_eq!((ask.model().name, ask.model().bits), ("demo", BITS));
    assert_eq!(ask.into_job(0).prompt, job().prompt);
}

#[tokio::test]
async fn what_a_worker_is_and_its_words_are_believed_only_as_far_as_they_can_be_checked() {
    let words = PackedAssets::new(vec![("tokenizer.json".into(), b"{}".to_vec())]).unwrap();
    let told = WorkerInfo { protocol: PROTOCOL, version: "9".into(), models: vec![about(words.digest())] };
    let (json, bytes) = (serde_json::to_vec(&told).unwrap(), words.bytes().to_vec());
    let fault_server = FaultServer::start_with(move |request: &Request| {
        Some(match request.path.as_str() {
            ABOUT_PATH => raw("200 OK", &json),
            path if path.starts_with(WORDS_PATH) => raw("200 OK", &bytes),
            _ => raw("404 Not Found", b"{}"),
        })
    });
    let fault_server = fault_server.await.unwrap();
    let upstream = upstream(&fault_server.url());
    let now = SystemClock::default().now();
    assert_eq!(upstream.about(now).await.unwrap().models.len(), 1);
    let load = model(&upstream).load();
    assert_eq!(load.waiting, 3, "its models know how busy it said they are");
    assert_eq!(upstream.words(words.digest(), now).await.unwrap(), words);
    let other = upstream.words(&"ab".repeat(32), now).await.unwrap_err().to_string();
    assert!(other.contains("not those of the digest"), "{other}");
}

/// An engine that keeps every marked prefix, for an hour if requested, and reports that at once.
struct Keeping(Capabilities);

impl Keeping {
    fn report(pins: &[CachePin], prompt: u64) -> JobReport {
        let until = |life| pins.iter().filter(|pin| pin.life >= life).map(|pin| u64::from(pin.tokens)).max();
        let (hour, all) =
            (until(CacheLife::Hour).unwrap_or_default(), until(CacheLife::Minutes).unwrap_or_default());
        let usage = Usage {
            input: prompt - all,
            cache_write: all - hour,
            cache_write_1h: hour,
            output: 3,
            ..Usage::default()
        };
        let engine = EngineTrace {
            pinned_blocks: u32::try_from(all / 16).unwrap(),
            ahead: Some(WorkAhead { running: 4, own: 2, prefill_tokens: 60, ..WorkAhead::default() }),
            beside: Some(ConcurrentWork {
                prefill_tokens: 9,
                decode_prefill_tokens: 8,
                ..ConcurrentWork::default()
            }),
            ..EngineTrace::default()
        };
        JobReport { usage, engine }
    }
}

impl Engine for Keeping {
    fn capabilities(&self) -> &Capabilities {
        &self.0
    }

    fn submit(&self, job: Job) -> Result<JobTicket, SubmitRefusal> {
        let (sender, ticket) = channel(job.unread_bytes, Arc::new(|| {}));
        sender.send(JobEvent::Started { cached_tokens: 0 });
        sender.send(JobEvent::Tokens { choice: 0, ids: vec![7, 8, 9], text: "x".into(), logprobs: vec![] });
        sender.send(JobEvent::Finished { choice: 0, reason: FinishReason::Length });
        sender.finish(JobEvent::Done(Arc::new(Self::report(&job.pins, job.prompt.len() as u64))));
        Ok(ticket)
    }

    fn cached_prefix(&self, _keys: &PrefixKeys) -> usize {
        0
    }

    fn load(&self) -> LoadReport {
        LoadReport::default()
    }

    fn health(&self) -> EngineHealth {
        EngineHealth::Up
    }
}

/// A worker's own endpoint behind HTTP.
async fn keeping() -> FaultServer {
    keeping_in(vec![Some(ProcessId::fresh().unwrap())], Arc::default()).await
}

/// The same worker in a sequence of processes. `at` is the index of the current one. `None` is a version without
/// process ids: it accepts tickets without one, and reports none.
async fn keeping_in(processes: Vec<Option<ProcessId>>, at: Arc<AtomicUsize>) -> FaultServer {
    let words = Arc::new(PackedAssets::new(vec![("tokenizer.json".into(), b"{}".to_vec())]).unwrap());
    let offer = OfferedModel {
        engine: Arc::new(Keeping(about("").capabilities)),
        bits: BITS.into(),
        compile: Arc::new(|_| unreachable!("it is held to nothing")),
        words,
        created_unix_s: 1,
        default_max_tokens: None,
        in_use: Arc::new(()),
    };
    let clock = Arc::new(SystemClock::default());
    let endpoints: Vec<_> = processes
        .into_iter()
        .map(|process| {
            let secret = WorkerSecret::new(&SECRET.into()).unwrap();
            let tickets = TicketVerifier::new(secret.clone(), process.unwrap_or(ProcessId::UNKNOWN));
            let (payer, offer) = (KeyId::new("worker").unwrap(), offer.clone());
            let clock = Arc::<SystemClock>::clone(&clock);
            let traces = Arc::new(headrace_domain::NoTrace);
            let endpoint =
                WorkerEndpoint::new(tickets, clock, payer, "1", traces, move || vec![offer.clone()]);
            (endpoint, process.is_none().then_some(secret))
        })
        .collect();
    FaultServer::start_with(move |request: &Request| {
        let (endpoint, older) = &endpoints[at.load(Ordering::SeqCst)];
        let shown = request.header("authorization").map(str::to_owned);
        let shown = match older {
            // An older worker checks the version of a ticket. The endpoint behind it accepts the request through a new
            // ticket.
            Some(_) if shown.as_ref().is_none_or(|shown| !shown.contains(" v1.")) => {
                return Some(raw("401 Told", br#"{"refusal":"ticket"}"#));
            }
            Some(secret) => {
                let asked = (request.method.as_str(), request.path.as_str());
                Some(secret.ticket(Some(ProcessId::UNKNOWN), asked, &request.body, clock.now()).unwrap())
            }
            None => shown,
        };
        let authorization = shown.as_deref().map(str::as_bytes);
        let (method, path) = (request.method.as_str(), request.path.as_str());
        let head = InternalHead { method, path, authorization, traceparent: None, now: clock.now() };
        let mut answer = match endpoint.admit(&head) {
            Ok(call) => at_once(call.answer(request.body.clone().into())),
            Err(refusal) => refusal,
        };
        let mut body = Vec::new();
        match &mut answer.body {
            AnswerBody::Whole(bytes) => body.extend_from_slice(bytes),
            AnswerBody::Stream(frames) => {
                while let Some(bytes) = at_once(Box::pin(poll_fn(|cx| frames.poll_frame(cx)))) {
                    body.extend_from_slice(&bytes.unwrap());
                }
            }
            AnswerBody::Long { .. } => unreachable!("a desk says it whole or as a stream"),
        }
        let mut said = format!("HTTP/1.1 {} Told\r\n", answer.status);
        answer.headers.iter().for_each(|(name, value)| said += &format!("{name}: {value}\r\n"));
        said += &format!("content-length: {}\r\n\r\n", body.len());
        Some([said.as_bytes(), &body].concat())
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn a_worker_that_starts_anew_or_is_older_is_asked_once_more() {
    let (one, other) = (ProcessId::fresh().unwrap(), ProcessId::fresh().unwrap());
    let at = Arc::new(AtomicUsize::new(0));
    let worker = keeping_in(vec![Some(one), Some(other), None, Some(one)], Arc::clone(&at)).await;
    let upstream = upstream(&worker.url());
    let model = model(&upstream);
    let clock = SystemClock::default();
    for (process, version) in ["v2", "v2", "v1", "v2"].into_iter().enumerate() {
        at.store(process, Ordering::SeqCst);
        let asked = worker.seen().requests.len();
        // The first job learns the process id, and succeeds all the same.
        let (mut events, _control) = model.submit(job()).unwrap().split();
        let mut all = Vec::new();
        while let Some(event) = events.next().await {
            all.push(event);
        }
        assert!(!all.iter().any(|event| matches!(event, JobEvent::Failed { .. })), "{process}: {all:?}");
        upstream.about(clock.now()).await.unwrap();
        let seen = worker.seen();
        let tickets = seen.requests[asked..].iter().map(|request| request.header("authorization").unwrap());
        let versions: Vec<_> = tickets.map(|ticket| ticket[16..18].to_owned()).collect();
        assert_eq!(
            versions.len(),
            3,
            "one request is told the process, one runs the job, one asks: {versions:?}"
        );
        assert_eq!(versions[1..], [version, version], "{process}");
    }
}

/// Polls a future that must be ready at once.
fn at_once<T>(mut future: impl Future<Output = T> + Unpin) -> T {
    match std::pin::Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("it waits"),
    }
}

#[tokio::test]
async fn what_is_to_be_kept_is_told_to_workers_that_take_it_and_comes_back_as_usage() {
    let pin = |tokens, life| CachePin { tokens, life };
    let pins: Arc<[CachePin]> = Arc::from([pin(16, CacheLife::Hour), pin(48, CacheLife::Minutes)]);
    let marked = Job { prompt: (0..60).collect(), pins, ..job() };
    let worker = keeping().await;
    let upstream = upstream(&worker.url());
    // First the worker is not known to take fuller jobs, then its report says so, then an older version replaces it.
    let model = model(&upstream);
    let clock: Arc<dyn headrace_domain::Clock> = Arc::new(SystemClock::default());
    for fuller in [false, true, false] {
        if fuller {
            let about = upstream.about(clock.now()).await.unwrap();
            assert!(about.models[0].fuller_jobs);
        } else {
            WorkerModel::new(&upstream, &about("cdcdcdcdcdcdcdcd"), &clock).unwrap();
        }
        let (mut events, _control) = model.submit(marked.clone()).unwrap().split();
        let mut last = None;
        while let Some(event) = events.next().await {
            last = Some(event);
        }
        let Some(JobEvent::Done(report)) = last else { panic!("{last:?}") };
        let seen = worker.seen();
        let ask = JobRequest::read(&seen.requests.last().unwrap().body).unwrap();
        assert_eq!(ask.in_full(), fuller);
        let sent = ask.into_job(0).pins;
        if fuller {
            assert_eq!((&sent, &*report), (&marked.pins, &Keeping::report(&marked.pins, 60)));
            let usage = report.usage;
            assert_eq!((usage.input, usage.cache_write, usage.cache_write_1h), (12, 32, 16));
            assert_eq!(report.engine.pinned_blocks, 3);
        } else {
            assert!(sent.is_empty());
            assert_eq!(report.usage, Usage { input: 60, output: 3, ..Usage::default() });
            assert_eq!(report.engine, EngineTrace::default());
        }
    }
}

/// A worker reports that it kept more tokens in its cache than requested, or unrequested ones.
#[tokio::test]
async fn nobody_pays_for_what_a_worker_kept_unasked() {
    let wrote = |cache_write| {
        let usage = Usage { cache_write, ..Usage::default() };
        WorkerFrame::Also((&JobReport { usage, ..JobReport::default() }).into())
    };
    for (frames, input) in [(vec![wrote(4)], 0), (vec![wrote(1)], 4), (vec![wrote(u64::MAX)], 4)] {
        let answer: Vec<WorkerFrame> =
            right().into_iter().take(5).chain(frames).chain([done(input, 3)]).collect();
        let (events, _) = played(raw("200 OK", &framed(&answer))).await;
        let Some(JobEvent::Failed { error: JobError::Internal { detail }, report }) = events.last() else {
            panic!("{events:?}")
        };
        assert!(detail.contains("other usage than what came"), "{detail}");
        assert_eq!(report.usage, Usage { input: 4, output: 3, ..Usage::default() });
    }
}
