//! A gateway in which everything is real except the engine and the disk.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use headrace_call_api::{
    AnswerFrames, BodySource, BrokenBody, CallService, CallerInfo, Credentials, PeerAddress, RequestHead,
    RequestTarget,
};
use headrace_call_state::{Answer, AnswerBody, MemoryBounds};
use headrace_catalog::{
    Backend, Catalog, CatalogOffer, EncoderOutput, ModelPolicy, ServedModel, TokenBackend, VectorBackend,
};
use headrace_checkpoint::Checkpoint;
use headrace_domain::{
    CacheMiss, Clock, Dialect, Endpoint, EngineTrace, FinishReason, ModelName, NanoDollars, OrgId,
    PrefixKeys, ProjectId, Region, RequestId, SamplingDefaults, SystemClock, TokenLogprob, TopLogprob,
    TraceRecord, TraceSink, UnixNanos, Usage,
};
use headrace_engine_api::{
    Capabilities, Engine, EngineHealth, EventSender, Job, JobError, JobEvent, JobReport, JobTicket,
    LoadReport, PromptScores, ResumeSupport, SubmitRefusal, channel,
};
use headrace_fleet::{Fleet, Worker};
use headrace_gateway::{Gateway, GatewayConfig, GatewayParts, IdempotencyConfig, Stored, TraceLookup};
use headrace_identity::{Directory, ExposeSecret, HashSecret, MemoryKeyStore, NewKey, RateLimits};
use headrace_ledger::prices::{CostList, PriceConfig, PriceList};
use headrace_ledger::{GrantKind, Ledger, LedgerOperation, MemoryJournal, Owner};
use headrace_limits::{LimitSpec, Limits};
use headrace_objects::{AnswerStore, BatchStore, MemoryAnswers, MemoryObjects, ObjectLimits, ObjectStore};
use headrace_prompt::{ChatTemplate, ReplyStyle, SpecialTokenTexts, TemplateLimits};
use headrace_rollout::ModelRoute;
use headrace_tokenizer::Tokenizer;
use headrace_wire::WireLimits;

/// A request as it arrives.
pub(crate) struct Arrival<B> {
    pub(crate) head: RequestHead,
    pub(crate) body: B,
}

/// Submits it as an edge does.
pub(crate) async fn ask<B: BodySource>(gateway: &Arc<Gateway>, arrival: Arrival<B>) -> Answer {
    match gateway.admit(arrival.head) {
        Ok(admission) => gateway.serve(admission, arrival.body).await,
        Err(refusal) => refusal,
    }
}

/// The list of models, in OpenAI's dialect.
pub(crate) fn model_list() -> RequestTarget {
    RequestTarget::ModelList { dialect: Dialect::OpenAi, query: Vec::new() }
}

/// One model, in OpenAI's dialect.
pub(crate) fn model(name: &str) -> RequestTarget {
    RequestTarget::Model { dialect: Dialect::OpenAi, name: name.to_owned() }
}

/// The trace of a request.
pub(crate) fn request_trace(id: &str) -> RequestTarget {
    RequestTarget::RequestTrace { id: id.to_owned() }
}

pub(crate) const MODEL: &str = "demo";
pub(crate) const ANSWER_TOKENS: u32 = 4;

/// What the engine does with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Script {
    /// Answers at once.
    Answer,
    /// Answers at once, with every choice at its full length.
    AnswerFully,
    /// Says this, one token per character.
    Say(&'static str),
    /// The same, and ends at the stop string `END`, which it does not say.
    SayToStop(&'static str),
    /// Says this in these tokens, each with its text.
    Spell(&'static [(u32, &'static str)]),
    /// Sends this many tokens of 100 bytes and then nothing until it is cancelled.
    ThenWait(u32),
    /// Sends this many tokens and then fails, once [`Scripted::may_fail`] is set.
    ThenFail(u32),
    /// The same, with tokens whose text is held back.
    HeldThenFail(u32),
    /// Sends this many tokens and then ends well, once [`Scripted::may_fail`] is set.
    ThenAnswer(u32),
    /// Sends this many tokens, then its thread is gone.
    ThenDie(u32),
    /// Sends this many tokens and is then cut off by its own shutdown.
    ThenStop(u32),
    /// Returns a vector of 1, 2, 3 and so on, of this length.
    Encode(u32),
    /// Refuses every job.
    Full,
    /// Refuses every job as too late: permanently, or for three seconds.
    TooLate { for_good: bool },
    /// Panics on submission.
    Panic,
}

/// An engine that follows a script.
pub(crate) struct Scripted {
    capabilities: Capabilities,
    pub(crate) script: Mutex<Script>,
    pub(crate) may_fail: Arc<AtomicBool>,
    pub(crate) jobs: Mutex<Vec<Job>>,
    /// How often a job was submitted, taken or not.
    pub(crate) submitted: AtomicUsize,
    pub(crate) cancelled: Arc<Mutex<u32>>,
    /// The calls that hold prefixes in its cache.
    pub(crate) holders: Mutex<Vec<RequestId>>,
    /// What it reports about the prefix cache.
    pub(crate) miss: Mutex<Option<CacheMiss>>,
    pub(crate) health: Mutex<EngineHealth>,
    /// What it reports about every job's times.
    pub(crate) trace: Mutex<EngineTrace>,
}

impl Scripted {
    pub(crate) fn new(script: Script) -> Arc<Self> {
        Arc::new(Self::plain(script))
    }

    fn plain(script: Script) -> Self {
        Self {
            capabilities: capabilities(),
            script: Mutex::new(script),
            may_fail: Arc::default(),
            jobs: Mutex::default(),
            submitted: AtomicUsize::new(0),
            cancelled: Arc::default(),
            holders: Mutex::default(),
            miss: Mutex::default(),
            health: Mutex::new(EngineHealth::Up),
            trace: Mutex::default(),
        }
    }
}

impl Engine for Scripted {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn submit(&self, job: Job) -> Result<JobTicket, SubmitRefusal> {
        self.submitted.fetch_add(1, Ordering::SeqCst);
        self.holders.lock().unwrap().extend(job.held.map(|held| held.owner));
        let script = *self.script.lock().unwrap();
        if script == Script::Full {
            let retry_after = Duration::from_millis(2500);
            return Err(SubmitRefusal::QueueFull { what: "sequences", limit: 7, retry_after });
        }
        if let Script::TooLate { for_good } = script {
            self.jobs.lock().unwrap().push(job);
            return Err(SubmitRefusal::TooLate {
                wait: Duration::from_secs(8),
                prefill: Duration::from_secs(2),
                retry_after: (!for_good).then_some(Duration::from_millis(2500)),
            });
        }
        assert_ne!(script, Script::Panic, "the script says so");
        let (sender, ticket) = channel(job.unread_bytes, Arc::new(|| {}));
        let prompt = job.prompt.len() as u64;
        let scored = |top: Option<u8>| top.map(score);
        self.jobs.lock().unwrap().push(job.clone());
        sender.send(JobEvent::Started { cached_tokens: 0 });
        if let Some(each) = scored(job.sampling.prompt_logprobs) {
            sender.send(JobEvent::Scored(PromptScores { tokens: vec![each; job.prompt.len()] }));
        }
        let miss = *self.miss.lock().unwrap();
        let times = self.trace.lock().unwrap().clone();
        let engine = match miss {
            Some(_) => EngineTrace { steps: 1, prompt_blocks: 9, cached_blocks: 4, miss, ..times },
            None => times,
        };
        let report = |output: u64| {
            let usage = Usage { input: prompt, output, ..Usage::default() };
            Arc::new(JobReport { usage, engine: engine.clone() })
        };
        match script {
            Script::Answer | Script::AnswerFully => {
                let most = if script == Script::Answer { ANSWER_TOKENS } else { u32::MAX };
                let each = most.min(job.sampling.max_tokens);
                let logprobs: Vec<_> = scored(job.sampling.logprobs).into_iter().collect();
                for choice in job.first_choice..job.first_choice + job.sampling.n {
                    for _ in 0..each {
                        let (text, logprobs) = ("ha ".to_owned(), logprobs.clone());
                        sender.send(JobEvent::Tokens { choice, ids: vec![65], text, logprobs });
                    }
                    sender.send(JobEvent::Finished { choice, reason: FinishReason::Stop });
                }
                sender.finish(JobEvent::Done(report(u64::from(each * job.sampling.n))));
            }
            Script::Say(text) => {
                text.chars().for_each(|c| token(&sender, 0, c.encode_utf8(&mut [0; 4])));
                sender.send(JobEvent::Finished { choice: 0, reason: FinishReason::Stop });
                sender.finish(JobEvent::Done(report(text.len() as u64)));
            }
            Script::SayToStop(text) => {
                text.chars().for_each(|c| token(&sender, 0, c.encode_utf8(&mut [0; 4])));
                let reason = FinishReason::StopString { matched: "END".to_owned() };
                sender.send(JobEvent::Finished { choice: 0, reason });
                sender.finish(JobEvent::Done(report(text.len() as u64)));
            }
            Script::Spell(tokens) => {
                for (id, text) in tokens {
                    let (ids, text) = (vec![*id], (*text).to_owned());
                    sender.send(JobEvent::Tokens { choice: 0, ids, text, logprobs: Vec::new() });
                }
                sender.send(JobEvent::Finished { choice: 0, reason: FinishReason::Stop });
                sender.finish(JobEvent::Done(report(tokens.len() as u64)));
            }
            Script::Encode(width) => {
                let values: Vec<f32> = (1..=width).map(|value| value as f32).collect();
                sender.send(JobEvent::Encoded(values.into()));
                sender.send(JobEvent::Finished { choice: job.first_choice, reason: FinishReason::Stop });
                sender.finish(JobEvent::Done(report(0)));
            }
            Script::ThenDie(tokens) => (0..tokens).for_each(|_| token(&sender, 0, "ha ")),
            Script::ThenStop(tokens) => {
                (0..tokens).for_each(|_| token(&sender, 0, "ha "));
                let (error, report) = (JobError::ShuttingDown, report(u64::from(tokens)));
                sender.finish(JobEvent::Failed { error, report });
            }
            Script::ThenFail(tokens) | Script::HeldThenFail(tokens) => {
                let text = if matches!(script, Script::HeldThenFail(_)) { "" } else { "ha " };
                (0..tokens).for_each(|_| token(&sender, 0, text));
                let error = JobError::NotFinite { position: 9 };
                let last = JobEvent::Failed { error, report: report(u64::from(tokens)) };
                let may_fail = Arc::clone(&self.may_fail);
                std::thread::spawn(move || {
                    while !may_fail.load(Ordering::SeqCst) && !sender.is_cancelled() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    sender.finish(last);
                });
            }
            Script::ThenAnswer(tokens) => {
                (0..tokens).for_each(|_| token(&sender, 0, "ha "));
                let (last, may_end) = (JobEvent::Done(report(u64::from(tokens))), Arc::clone(&self.may_fail));
                let cancelled = Arc::clone(&self.cancelled);
                std::thread::spawn(move || {
                    while !may_end.load(Ordering::SeqCst) && !sender.is_cancelled() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    *cancelled.lock().unwrap() += u32::from(sender.is_cancelled());
                    sender.send(JobEvent::Finished { choice: 0, reason: FinishReason::Stop });
                    sender.finish(last);
                });
            }
            Script::ThenWait(tokens) => {
                (0..tokens).for_each(|_| token(&sender, 0, &"x".repeat(100)));
                let cancelled = Arc::clone(&self.cancelled);
                let last = JobEvent::Failed { error: JobError::Cancelled, report: report(u64::from(tokens)) };
                std::thread::spawn(move || {
                    while !sender.is_cancelled() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    *cancelled.lock().unwrap() += 1;
                    sender.finish(last);
                });
            }
            Script::Full | Script::TooLate { .. } | Script::Panic => {}
        }
        Ok(ticket)
    }

    fn cached_prefix(&self, _keys: &PrefixKeys) -> usize {
        0
    }

    fn release_pins(&self, owner: RequestId) {
        self.holders.lock().unwrap().retain(|holder| *holder != owner);
    }

    fn load(&self) -> LoadReport {
        LoadReport::default()
    }

    fn health(&self) -> EngineHealth {
        self.health.lock().unwrap().clone()
    }
}

fn token(sender: &EventSender, choice: u32, text: &str) {
    sender.send(JobEvent::Tokens { choice, ids: vec![65], text: text.to_owned(), logprobs: Vec::new() });
}

/// A clock that panics once at a given reading, or is late from a given reading on.
pub(crate) struct Faulty {
    clock: SystemClock,
    left: AtomicU64,
    late_in: AtomicU64,
    late_by_ns: AtomicU64,
    late_ns: AtomicU64,
}

impl Faulty {
    fn new() -> Self {
        let [left, late_in, late_by_ns, late_ns] = std::array::from_fn(|_| AtomicU64::new(0));
        Self { clock: SystemClock::new(), left, late_in, late_by_ns, late_ns }
    }

    /// Makes the `n`-th reading from now panic. 0 disables the panic.
    pub(crate) fn panic_at(&self, n: u64) {
        self.left.store(n, Ordering::SeqCst);
    }

    /// Makes the `n`-th reading from now and all later ones late, as if everything before had taken `by_ns`.
    pub(crate) fn late_at(&self, n: u64, by_ns: u64) {
        self.late_by_ns.store(by_ns, Ordering::SeqCst);
        self.late_in.store(n, Ordering::SeqCst);
    }

    /// Whether that reading is still to come.
    pub(crate) fn is_still_in_time(&self) -> bool {
        self.late_in.load(Ordering::SeqCst) > 0
    }

    /// Whether the panic is still to come.
    pub(crate) fn is_armed(&self) -> bool {
        self.left.load(Ordering::SeqCst) > 0
    }

    fn read(&self) {
        let before = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        assert_ne!(before, Ok(1), "the clock was told to fail");
        let late = self.late_in.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if late == Ok(1) {
            self.late_ns.fetch_add(self.late_by_ns.load(Ordering::SeqCst), Ordering::SeqCst);
        }
    }
}

impl Clock for Faulty {
    fn now(&self) -> UnixNanos {
        self.read();
        self.clock.now().after(Duration::from_nanos(self.late_ns.load(Ordering::SeqCst)))
    }

    fn monotonic_nanos(&self) -> u64 {
        self.read();
        self.clock.monotonic_nanos() + self.late_ns.load(Ordering::SeqCst)
    }
}

/// A token's log-probabilities, with `top` alternatives.
pub(crate) fn score(top: u8) -> TokenLogprob {
    let bytes = b"ha ha ha".to_vec();
    let top = (0..u32::from(top)).map(|id| TopLogprob { id, bytes: bytes.clone(), logprob: -12.345_678 });
    TokenLogprob { id: 65, bytes: bytes.clone(), logprob: Some(-1.234_567_8), top: top.collect() }
}

/// Keeps every record, and counts how often the store was asked for one. The flag makes the next recording panic.
#[derive(Default)]
pub(crate) struct Kept(
    pub(crate) Mutex<Vec<Arc<TraceRecord>>>,
    pub(crate) AtomicUsize,
    pub(crate) AtomicBool,
);

impl TraceSink for Kept {
    fn record(&self, record: Box<TraceRecord>) {
        assert!(!self.2.swap(false, Ordering::SeqCst), "the sink was told to fail");
        self.0.lock().unwrap().push(Arc::from(record));
    }
}

impl TraceLookup for Kept {
    fn recent(&self, id: RequestId) -> Option<Arc<TraceRecord>> {
        self.0.lock().unwrap().iter().find(|record| record.request_id == id).cloned()
    }

    fn stored(&self, _id: RequestId) -> Stored<'_> {
        self.1.fetch_add(1, Ordering::SeqCst);
        Box::pin(std::future::ready(None))
    }

    fn json(&self, record: &TraceRecord) -> Vec<u8> {
        serde_json::to_vec(record).unwrap()
    }

    fn block(&self, record: &TraceRecord) -> serde_json::Value {
        headrace_trace::answer_json(record)
    }

    fn traceparent(&self, record: &TraceRecord) -> Option<String> {
        Some(format!("{} behind {} attempts", record.request_id, record.attempts.len()))
    }
}

pub(crate) struct World {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) engine: Arc<Scripted>,
    pub(crate) ledger: Ledger,
    pub(crate) journal: MemoryJournal,
    pub(crate) limits: Limits,
    pub(crate) directory: Arc<Directory>,
    pub(crate) traces: Arc<Kept>,
    pub(crate) clock: Arc<Faulty>,
    pub(crate) key: String,
    pub(crate) org: OrgId,
    pub(crate) project: ProjectId,
    pub(crate) judge: Option<Arc<dyn headrace_moderation::Judge>>,
}

/// The share of the only organisation.
pub(crate) const WEIGHT: u32 = 7;

/// How a world differs from the usual one.
pub(crate) struct Setup {
    pub(crate) credit: NanoDollars,
    pub(crate) limits: RateLimits,
    pub(crate) stall: Duration,
    pub(crate) hold: Duration,
    pub(crate) rules: Vec<headrace_moderation::RuleConfig>,
    /// The judges that the rules ask.
    pub(crate) judges: headrace_moderation::JudgesByName,
    /// The longest text that is rendered on the event loop, in bytes.
    pub(crate) render_inline_bytes: usize,
    /// The most bytes of an answer that wait for their reader before the task does.
    pub(crate) buffer_bytes: usize,
    pub(crate) memory: MemoryBounds,
    /// A chat template that replaces the demo model's.
    pub(crate) template: Option<&'static str>,
    /// The region of the server and of its own model.
    pub(crate) region: Option<&'static str>,
    /// Limits of the clients' stored objects.
    pub(crate) objects: ObjectLimits,
    /// The store for them. `None` for memory.
    pub(crate) stored_in: Option<Arc<dyn ObjectStore>>,
    /// Makes the model an encoder with this output.
    pub(crate) makes: Option<EncoderOutput>,
    /// The directory of the model's tokenizer, relative to this crate's manifest.
    pub(crate) words_of: &'static str,
    /// A tokenizer that replaces it, as a `tokenizer.json`.
    pub(crate) tokenizer_json: Option<&'static [u8]>,
    /// What the engine can do.
    pub(crate) capabilities: Capabilities,
    pub(crate) policy: ModelPolicy,
    /// Limits on the content of a request.
    pub(crate) wire: WireLimits,
    /// How answers are kept for repeated requests.
    pub(crate) idempotency: IdempotencyConfig,
    /// The store for them.
    pub(crate) answers: Arc<dyn AnswerStore>,
    /// The bytes of answers are hashed.
    pub(crate) hash_answers: bool,
    /// The store of files and batches.
    pub(crate) files: Option<Arc<dyn BatchStore>>,
}

impl Default for Setup {
    fn default() -> Self {
        let credit = NanoDollars::from_dollars("1").unwrap();
        // A reader stalls only in the tests that set a shorter limit: others read late on a busy machine.
        let (stall, hold) = (Duration::from_secs(300), Duration::from_secs(3600));
        Self {
            credit,
            limits: RateLimits::default(),
            stall,
            hold,
            rules: Vec::new(),
            judges: headrace_moderation::JudgesByName::new(),
            render_inline_bytes: 32 << 10,
            buffer_bytes: 256 << 10,
            memory: MemoryBounds::default(),
            template: None,
            region: None,
            objects: ObjectLimits::default(),
            stored_in: None,
            makes: None,
            words_of: "../../demo-model/checkpoint",
            tokenizer_json: None,
            capabilities: capabilities(),
            policy: ModelPolicy::default(),
            wire: WireLimits::default(),
            idempotency: IdempotencyConfig::default(),
            answers: Arc::new(MemoryAnswers::new(1 << 30)),
            hash_answers: false,
            files: None,
        }
    }
}

impl World {
    /// The tokenizer of its model.
    pub(crate) fn tokenizer(&self) -> Arc<Tokenizer> {
        let catalog = self.gateway.catalog();
        let model = catalog.models().next().unwrap();
        match &model.backend {
            Backend::Tokens(backend) => Arc::clone(&backend.tokenizer),
            Backend::Vectors(_) | Backend::Messages(_) => panic!("no words"),
        }
    }

    pub(crate) fn new(setup: Setup) -> Self {
        let clock = Arc::new(Faulty::new());
        let now = clock.now();
        let (org, project) = (OrgId::new("acme").unwrap(), ProjectId::new("web").unwrap());
        let directory =
            Arc::new(Directory::open(Arc::new(MemoryKeyStore::default()), HashSecret::new([3; 32])).unwrap());
        directory.create_org(org.clone(), RateLimits::default(), "test", now).unwrap();
        directory.create_project(project.clone(), org.clone(), RateLimits::default(), "test", now).unwrap();
        let new = NewKey { limits: setup.limits, ..NewKey::new(org.clone(), project.clone(), "first") };
        let (_, secret) = directory.create_key(new, "test", now).unwrap();

        let journal = MemoryJournal::new();
        let (ledger, _) = Ledger::open(Box::new(journal.clone()), Owner::new(1), now).unwrap();
        let mut opening = vec![LedgerOperation::OpenProject { org: org.clone(), project: project.clone() }];
        if setup.credit > NanoDollars::ZERO {
            let reference = "test".to_owned();
            opening.push(LedgerOperation::Grant {
                org: org.clone(),
                amount: setup.credit,
                kind: GrantKind::Paid,
                reference,
            });
        }
        ledger.transact(opening, now).durable.wait().unwrap();

        let name = ModelName::new(MODEL).unwrap();
        let engine = Arc::new(Scripted {
            capabilities: setup.capabilities.clone(),
            ..Scripted::plain(Script::Answer)
        });
        let prices: Vec<PriceConfig> = serde_json::from_value(serde_json::json!([
            {"model": MODEL, "input": 1_000_000_000i64, "output": 4_000_000_000i64}
        ]))
        .unwrap();
        let limits = Limits::new();
        let traces = Arc::new(Kept::default());
        let judge = (!setup.rules.is_empty()).then(|| {
            Arc::new(headrace_moderation::Rules::compile_with(&setup.rules, &setup.judges).unwrap())
                as Arc<dyn headrace_moderation::Judge>
        });
        let parts = GatewayParts {
            clock: Arc::clone(&clock) as Arc<dyn Clock>,
            directory: Arc::clone(&directory),
            tokens: None,
            certificates: None,
            limits: limits.clone(),
            ledger: Arc::new(ledger.clone()),
            traces: Arc::clone(&traces) as Arc<dyn TraceSink>,
            records: Arc::clone(&traces) as Arc<dyn TraceLookup>,
            objects: setup.stored_in.clone().unwrap_or_else(|| Arc::new(MemoryObjects::new(setup.objects))),
            files: setup.files.clone(),
            answers: Arc::clone(&setup.answers),
            cache_secret: [9; 32],
            owner: Owner::new(1),
        };
        let region = setup.region.map(|region| Region::new(region).unwrap());
        let config = GatewayConfig {
            region: region.clone(),
            stall_timeout: setup.stall,
            hold_lifetime: setup.hold,
            render_inline_bytes: setup.render_inline_bytes,
            delivery_buffer_bytes: setup.buffer_bytes,
            memory: setup.memory,
            wire: setup.wire.clone(),
            idempotency: setup.idempotency,
            hash_answers: setup.hash_answers,
            ..GatewayConfig::default()
        };
        let worker = Worker::new("w0", name.clone(), Arc::clone(&engine) as Arc<dyn Engine>).within(region);
        let offer = CatalogOffer {
            prices: PriceList::from_config(&prices).unwrap(),
            judge: judge.clone(),
            costs: CostList::default(),
            fleet: Arc::new(Fleet::new([worker])),
            models: vec![Arc::new(served(name, &setup))],
            aliases: BTreeMap::from([(
                ModelName::new("alias").unwrap(),
                ModelRoute::to(ModelName::new(MODEL).unwrap()),
            )]),
            weights: BTreeMap::from([(org.clone(), WEIGHT)]),
            names: headrace_catalog::NameRules::default(),
        };
        let gateway = Gateway::new(parts, Catalog::checked(offer, now).unwrap(), config).unwrap();
        let key = secret.expose_secret().to_owned();
        Self { gateway, engine, ledger, journal, limits, directory, traces, clock, key, org, project, judge }
    }

    pub(crate) fn script(&self, script: Script) {
        *self.engine.script.lock().unwrap() = script;
    }

    pub(crate) async fn call(&self, endpoint: Endpoint, body: serde_json::Value) -> Answer {
        ask(&self.gateway, self.arrival(endpoint, body.to_string())).await
    }

    pub(crate) async fn chat(&self, stream: bool) -> Answer {
        self.call(Endpoint::ChatCompletions, chat_body(stream)).await
    }

    pub(crate) fn arrival(&self, endpoint: Endpoint, body: String) -> Arrival<Bytes> {
        Arrival { head: self.head(RequestTarget::Call(endpoint)), body: Bytes::from(body) }
    }

    /// The head of a request with this world's key.
    pub(crate) fn head(&self, target: RequestTarget) -> RequestHead {
        let caller = CallerInfo {
            credentials: self.credentials(),
            peer: PeerAddress { address: ([127, 0, 0, 1], 1).into() },
            traceparent: None,
            dialect_headers: Vec::new(),
            idempotency: None,
            started: SystemClock::new().now(),
            started_mono_ns: 0,
            connection: None,
        };
        RequestHead { target, caller }
    }

    /// Sends a request with this world's key.
    pub(crate) async fn request(&self, target: RequestTarget, body: impl Into<Bytes>) -> Answer {
        ask(&self.gateway, Arrival { head: self.head(target), body: body.into() }).await
    }

    /// The present time on the clock of this world's gateway.
    pub(crate) fn gateway_ns(&self) -> u64 {
        self.clock.monotonic_nanos()
    }

    pub(crate) fn credentials(&self) -> Credentials {
        Credentials {
            authorization: Some(format!("Bearer {}", self.key).into_bytes()),
            ..Credentials::default()
        }
    }

    /// The organisation's balance, once nothing is in flight.
    pub(crate) async fn balance_when_idle(&self) -> NanoDollars {
        for _ in 0..6_000 {
            let standing = self.ledger.standing(&self.org, &self.project).unwrap();
            if self.gateway.in_flight() == 0 {
                assert_eq!(standing.held, NanoDollars::ZERO, "every hold is resolved");
                assert_eq!(standing.available, standing.balance);
                return standing.balance;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("calls stay in flight");
    }

    pub(crate) fn last_trace(&self) -> Arc<TraceRecord> {
        Arc::clone(self.traces.0.lock().unwrap().last().unwrap())
    }
}

pub(crate) fn chat_body(stream: bool) -> serde_json::Value {
    serde_json::json!({
        "model": MODEL, "stream": stream, "max_tokens": 10,
        "messages": [{"role": "user", "content": "CANARY-7f3a say ha"}],
    })
}

/// All of a body that ends well.
pub(crate) async fn read(answer: Answer) -> String {
    let (text, end) = read_to_the_end(answer).await;
    assert_eq!(end, Ok(()), "{text}");
    text
}

/// All of a body, and how it ended.
pub(crate) async fn read_to_the_end(answer: Answer) -> (String, Result<(), BrokenBody>) {
    let (mut delivery, length) = match answer.body {
        AnswerBody::Whole(bytes) => return (String::from_utf8(bytes.to_vec()).unwrap(), Ok(())),
        AnswerBody::Stream(delivery) => (delivery, None),
        AnswerBody::Long { body, bytes } => (body, Some(bytes)),
    };
    let mut all = Vec::new();
    let end = loop {
        match poll_fn(|cx| delivery.poll_frame(cx)).await {
            None => break Ok(()),
            Some(Err(broken)) => break Err(broken),
            Some(Ok(bytes)) => all.extend_from_slice(&bytes),
        }
    };
    assert!(length.is_none_or(|length| end.is_err() || length == all.len() as u64));
    (String::from_utf8(all).unwrap(), end)
}

/// The trace of an answered call, which may be written a moment after its last byte.
pub(crate) async fn trace_of(world: &World, answer: Answer) -> Arc<TraceRecord> {
    let id: RequestId = header(&answer, "x-request-id").unwrap().parse().unwrap();
    read(answer).await;
    for _ in 0..12_000 {
        if let Some(record) = world.traces.recent(id) {
            return record;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("no trace of {id}");
}

pub(crate) fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    answer.headers.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
}

pub(crate) fn capabilities() -> Capabilities {
    Capabilities {
        model: MODEL.to_owned(),
        compute_mode: "exact".to_owned(),
        numerics: "scripted".to_owned(),
        vocab: 4096,
        context_window: 512,
        max_logprobs: 20,
        kv_tokens: 4096,
        continues: ResumeSupport::Never,
        grammars: false,
        thought_caps: false,
        forms: headrace_engine_api::FormKinds::NONE,
        short_context: None,
    }
}

fn served(name: ModelName, setup: &Setup) -> ServedModel {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(setup.words_of);
    let checkpoint = Checkpoint::open(&dir).unwrap();
    let json = setup.tokenizer_json.unwrap_or_else(|| checkpoint.tokenizer_json());
    let tokenizer = Arc::new(Tokenizer::new(json, checkpoint.tokenizer_config()).unwrap());
    if let Some(makes) = setup.makes {
        let backend = VectorBackend {
            tokenizer,
            capabilities: setup.capabilities.clone(),
            makes,
            lower_case: false,
            prompts: BTreeMap::from([("query".to_owned(), "query: ".to_owned())]),
            default_prompt: None,
        };
        let (limits, policy) = (LimitSpec::UNLIMITED, ModelPolicy::default());
        let backend = Backend::Vectors(backend);
        return ServedModel { name, backend, created_unix_s: 0, default_max_tokens: None, limits, policy };
    }
    let texts = SpecialTokenTexts::new(&tokenizer, None, Some("<|im_end|>".to_owned()), None, None);
    let source = setup.template.unwrap_or_else(|| checkpoint.chat_template().unwrap());
    ServedModel {
        name,
        backend: Backend::Tokens(TokenBackend {
            template: Some(Arc::new(
                ChatTemplate::compile(source, &texts, TemplateLimits::default()).unwrap(),
            )),
            replies: ReplyStyle::detect(source),
            grammars: Arc::new(headrace_grammar::FormCompiler::new(
                Arc::clone(&tokenizer),
                &[],
                setup.capabilities.vocab,
            )),
            tokenizer,
            defaults: SamplingDefaults::default(),
            capabilities: setup.capabilities.clone(),
        }),
        created_unix_s: 0,
        default_max_tokens: None,
        limits: LimitSpec::UNLIMITED,
        policy: setup.policy.clone(),
    }
}
