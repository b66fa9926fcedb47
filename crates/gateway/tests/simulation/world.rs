//! A seeded world: everything is real except time, the engine and the disk. What goes wrong in it, and what must hold
//! afterwards.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use headrace_call_api::CallService;
use headrace_catalog::{Backend, Catalog, CatalogOffer, ModelPolicy, ServedModel, TokenBackend};
use headrace_checkpoint::Checkpoint;
use headrace_domain::{
    AttemptOutcome, CallOutcome, Clock, HoldId, ModelName, NanoDollars, OrgId, ProjectId, RequestId,
    SamplingDefaults, SteadyClock, TraceRecord, TraceSink, UnixNanos,
};
use headrace_engine_api::{Capabilities, Engine, ResumeSupport};
use headrace_fleet::{Fleet, Worker};
use headrace_gateway::{Gateway, GatewayConfig, GatewayParts, Stored, TraceLookup};
use headrace_identity::{Directory, ExposeSecret, HashSecret, MemoryKeyStore, NewKey, RateLimits};
use headrace_ledger::prices::{CostList, PriceConfig, PriceList};
use headrace_ledger::{
    AppendFault, GrantKind, JournalHand, JournalHealth, Ledger, LedgerClient, LedgerOperation, MemoryJournal,
    Owner, PendingBatch, StandingHint,
};
use headrace_limits::{LimitSpec, Limits};
use headrace_objects::{MemoryAnswers, MemoryObjects, ObjectLimits};
use headrace_prompt::ReplyStyle;
use headrace_tokenizer::Tokenizer;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::client::{self, ClientView, Habit};
use crate::engine::SimEngine;
use crate::seen::Seen;

/// Nano-dollars per token. Output costs four times that.
const INPUT: i64 = 1_000;
const OUTPUT: i64 = 4_000;
const STALL: Duration = Duration::from_secs(10);
const START: u64 = 1_800_000_000_000_000_000;
const CREDIT: NanoDollars = NanoDollars::new(10_000_000);

/// Seeded random numbers (splitmix64).
#[derive(Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// An independent sequence.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.below(u64::MAX))
    }
}

/// The world's own time, and the errors of the wall clock.
#[derive(Clone)]
pub(crate) struct SimClock {
    start: Instant,
    stepped: Arc<AtomicI64>,
}

impl SimClock {
    pub(crate) fn mono(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap()
    }

    pub(crate) fn wall(&self) -> UnixNanos {
        UnixNanos::new((START + self.mono()).saturating_add_signed(self.stepped.load(Ordering::SeqCst)))
    }
}

impl Clock for SimClock {
    fn now(&self) -> UnixNanos {
        self.wall()
    }

    fn monotonic_nanos(&self) -> u64 {
        self.mono()
    }
}

/// What panics, and whether faults are over.
#[derive(Default)]
pub(crate) struct Faults {
    clock_in: AtomicU64,
    sink: AtomicBool,
    over: AtomicBool,
    /// Notified when the disk may have something to write: every ledger command follows a reading of the clock.
    disk: Notify,
}

impl Faults {
    pub(crate) fn are_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }
}

/// The gateway's clock: steady, and able to panic.
struct Faulty(Arc<SteadyClock<SimClock>>, Arc<Faults>);

impl Faulty {
    fn read(&self) {
        self.1.disk.notify_one();
        let left = &self.1.clock_in;
        let before = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        assert_ne!(before, Ok(1), "the seed says so");
    }
}

impl Clock for Faulty {
    fn now(&self) -> UnixNanos {
        self.read();
        self.0.now()
    }

    fn monotonic_nanos(&self) -> u64 {
        self.read();
        self.0.monotonic_nanos()
    }
}

#[derive(Default)]
struct Kept(Mutex<Vec<TraceRecord>>, Arc<Faults>);

impl TraceSink for Kept {
    fn record(&self, record: Box<TraceRecord>) {
        assert!(!self.1.sink.swap(false, Ordering::SeqCst), "the seed says so");
        self.0.lock().unwrap().push(*record);
    }
}

impl TraceLookup for Kept {
    fn recent(&self, _: RequestId) -> Option<Arc<TraceRecord>> {
        None
    }

    fn stored(&self, _: RequestId) -> Stored<'_> {
        Box::pin(std::future::ready(None))
    }

    fn json(&self, _: &TraceRecord) -> Vec<u8> {
        Vec::new()
    }

    fn block(&self, _: &TraceRecord) -> serde_json::Value {
        serde_json::Value::Null
    }
}

/// The same ledger at a distance: verdicts take their time, and a command may be lost if its caller is dropped.
struct RemoteLedger {
    ledger: Ledger,
    faults: Arc<Faults>,
    random: Mutex<Random>,
}

impl LedgerClient for RemoteLedger {
    fn decide(&self, batch: Vec<LedgerOperation>, now: UnixNanos) -> PendingBatch {
        let (ledger, faults) = (self.ledger.clone(), Arc::clone(&self.faults));
        let mut random = self.random.lock().unwrap().fork();
        PendingBatch::later(async move {
            sleep(Duration::from_millis(random.below(200))).await;
            let transacted = ledger.transact(batch, now);
            faults.disk.notify_one();
            sleep(Duration::from_millis(random.below(200))).await;
            transacted
        })
    }

    fn standing_hint(&self, org: &OrgId, project: &ProjectId) -> StandingHint {
        self.ledger.standing_hint(org, project)
    }

    fn knows_key(&self, project: &ProjectId, key: &str) -> bool {
        self.ledger.knows_key(project, key)
    }

    fn keep(&self, hold: HoldId, now: UnixNanos, lifetime: Duration) {
        self.ledger.keep(hold, now, lifetime);
    }

    fn health(&self) -> JournalHealth {
        self.ledger.health()
    }
}

/// What all worlds share because it never changes.
struct Shared {
    tokenizer: Arc<Tokenizer>,
    directory: Arc<Directory>,
    key: String,
    prices: Vec<PriceConfig>,
}

fn org() -> OrgId {
    OrgId::new("acme").unwrap()
}

fn project() -> ProjectId {
    ProjectId::new("web").unwrap()
}

/// The key of all clients.
pub(crate) fn caller_key() -> String {
    shared().key.clone()
}

fn shared() -> &'static Shared {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    SHARED.get_or_init(|| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/checkpoint");
        let checkpoint = Checkpoint::open(&dir).unwrap();
        let tokenizer = Tokenizer::new(checkpoint.tokenizer_json(), checkpoint.tokenizer_config()).unwrap();
        let directory =
            Directory::open(Arc::new(MemoryKeyStore::default()), HashSecret::new([3; 32])).unwrap();
        let (none, now) = (RateLimits::default(), UnixNanos::new(START));
        directory.create_org(org(), none, "test", now).unwrap();
        directory.create_project(project(), org(), none, "test", now).unwrap();
        let limits = RateLimits { concurrency: Some(3), ..none };
        let new = NewKey { limits, ..NewKey::new(org(), project(), "first") };
        let (_, secret) = directory.create_key(new, "test", now).unwrap();
        let prices = serde_json::json!([
            {"model": "demo", "input": INPUT * 1_000_000, "output": OUTPUT * 1_000_000}
        ]);
        Shared {
            tokenizer: Arc::new(tokenizer),
            directory: Arc::new(directory),
            key: secret.expose_secret().to_owned(),
            prices: serde_json::from_value(prices).unwrap(),
        }
    })
}

/// Silences the planned panics of a seed: only panics that show a defect are printed.
pub(crate) fn quiet_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let said = info.payload().downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| info.payload().downcast_ref::<&str>().copied()).unwrap_or_default();
        if !said.contains("the seed says so") {
            usual(info);
        }
    }));
}

pub(crate) struct World {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) clock: SimClock,
    steady: Arc<SteadyClock<SimClock>>,
    pub(crate) ledger: Ledger,
    journal: MemoryJournal,
    limits: Limits,
    traces: Arc<Kept>,
    pub(crate) faults: Arc<Faults>,
}

/// What the process before this one left.
#[derive(Clone)]
pub(crate) struct Remains {
    pub(crate) journal: MemoryJournal,
    pub(crate) answers: Arc<MemoryAnswers>,
    /// The number of this process, from 1.
    pub(crate) owner: u128,
    /// How long the processes before it have run.
    pub(crate) elapsed: Duration,
}

impl Remains {
    /// Nothing: this is the first process.
    pub(crate) fn none() -> Self {
        let (journal, answers) = (MemoryJournal::new(), Arc::new(MemoryAnswers::new(1 << 30)));
        Self { journal, answers, owner: 1, elapsed: Duration::ZERO }
    }
}

/// Runs a world and checks its final state.
pub(crate) fn run(seed: u64) -> Seen {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(live(Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d))))
}

impl World {
    pub(crate) fn over(random: &mut Random, remains: Remains) -> (Self, JournalHand) {
        let Remains { journal, answers, owner, elapsed } = remains;
        let stepped = Arc::new(AtomicI64::new(i64::try_from(elapsed.as_nanos()).unwrap()));
        let clock = SimClock { start: Instant::now(), stepped };
        let steady = Arc::new(SteadyClock::new(clock.clone()));
        let (faults, limits) = (Arc::<Faults>::default(), Limits::new());
        let (now, is_first) = (steady.now(), owner == 1);
        let owner = Owner::new(owner);
        let (ledger, mut hand) = Ledger::open_by_hand(Box::new(journal.clone()), owner, now).unwrap();
        let grant = LedgerOperation::Grant {
            org: org(),
            amount: CREDIT,
            kind: GrantKind::Paid,
            reference: "test".to_owned(),
        };
        let opening = vec![LedgerOperation::OpenProject { org: org(), project: project() }, grant];
        if is_first {
            let opened = ledger.transact(opening, now);
            hand.turn();
            opened.durable.wait().unwrap();
        }
        let name = ModelName::new("demo").unwrap();
        let capabilities = capabilities();
        // Further workers, and what they do, use none of the world's own random numbers.
        let mut apart = Random(!random.0);
        let worker = |id: &str, random: Random| {
            let faults = Arc::clone(&faults);
            let (capabilities, random) = (capabilities.clone(), Mutex::new(random));
            let engine: Arc<dyn Engine> = Arc::new(SimEngine { capabilities, random, faults });
            Worker::new(id, name.clone(), engine)
        };
        let mut workers = vec![worker("w0", random.fork())];
        for id in ["w1", "w2"] {
            if apart.one_in(2) {
                workers.push(worker(id, apart.fork()));
            }
        }
        let traces = Arc::new(Kept(Mutex::default(), Arc::clone(&faults)));
        let shared = shared();
        let served = ServedModel {
            name: name.clone(),
            backend: Backend::Tokens(TokenBackend {
                template: None,
                replies: ReplyStyle::PLAIN,
                grammars: Arc::new(headrace_grammar::FormCompiler::new(
                    Arc::clone(&shared.tokenizer),
                    &[],
                    4096,
                )),
                tokenizer: Arc::clone(&shared.tokenizer),
                defaults: SamplingDefaults::default(),
                capabilities,
            }),
            created_unix_s: 0,
            default_max_tokens: None,
            limits: LimitSpec::UNLIMITED,
            policy: ModelPolicy::default(),
        };
        let remote_ledger = RemoteLedger {
            ledger: ledger.clone(),
            faults: Arc::clone(&faults),
            random: Mutex::new(random.fork()),
        };
        let parts = GatewayParts {
            clock: Arc::new(Faulty(Arc::clone(&steady), Arc::clone(&faults))),
            directory: Arc::clone(&shared.directory),
            tokens: None,
            certificates: None,
            limits: limits.clone(),
            ledger: if random.one_in(3) { Arc::new(remote_ledger) } else { Arc::new(ledger.clone()) },
            traces: Arc::clone(&traces) as Arc<dyn TraceSink>,
            records: Arc::clone(&traces) as Arc<dyn TraceLookup>,
            objects: Arc::new(MemoryObjects::new(ObjectLimits::default())),
            files: None,
            answers,
            cache_secret: [9; 32],
            owner,
        };
        let config = GatewayConfig {
            stall_timeout: STALL,
            hold_lifetime: Duration::from_secs(20 + random.below(100)),
            delivery_buffer_bytes: 1 << (10 + random.below(9)),
            hash_answers: true,
            ..GatewayConfig::default()
        };
        let offer = CatalogOffer {
            prices: PriceList::from_config(&shared.prices).unwrap(),
            costs: CostList::default(),
            judge: None,
            fleet: Arc::new(Fleet::new(workers)),
            models: vec![Arc::new(served)],
            aliases: BTreeMap::new(),
            weights: BTreeMap::new(),
            names: headrace_catalog::NameRules::default(),
        };
        let gateway = Gateway::new(parts, Catalog::checked(offer, now).unwrap(), config).unwrap();
        (Self { gateway, clock, steady, ledger, journal, limits, traces, faults }, hand)
    }

    /// Plants faults: a panic of the clock or of the sink, and failures of the disk.
    pub(crate) fn plant(&self, random: &mut Random) {
        match random.below(6) {
            0 | 1 => self.faults.clock_in.store(1 + random.below(250), Ordering::SeqCst),
            2 => self.faults.sink.store(true, Ordering::SeqCst),
            _ => {}
        }
        for _ in 0..random.below(3) {
            match random.below(4) {
                3 => self.journal.fail_append(1 + random.below(8), AppendFault::Written),
                2 => self.journal.fail_append(1 + random.below(8), AppendFault::NotWritten),
                _ => {}
            }
        }
    }

    /// The journal's thread: sometimes slow, sometimes down for seconds. It sleeps while there is nothing to write.
    pub(crate) async fn disk(self: Arc<Self>, mut hand: JournalHand, mut random: Random) {
        loop {
            if self.ledger.health().down.is_none() {
                self.faults.disk.notified().await;
            }
            let most = if random.one_in(50) { 500_000 } else { 3_000 };
            sleep(Duration::from_micros(100 + random.below(most))).await;
            hand.turn();
            if !self.faults.are_over() && random.one_in(500) {
                self.journal.set_down(true);
                for _ in 0..random.below(50) {
                    sleep(Duration::from_millis(100)).await;
                    hand.turn();
                }
                self.journal.set_down(false);
            }
        }
    }

    /// Steps the wall clock: by two minutes, by more than a year, back by an hour. Some steps are undone.
    async fn steps(clock: SimClock, mut random: Random) {
        const SECOND: i64 = 1_000_000_000;
        loop {
            sleep(Duration::from_millis(random.below(40_000))).await;
            let by = [120, 400 * 86_400, -3_600][random.below(3) as usize] * SECOND;
            clock.stepped.fetch_add(by, Ordering::SeqCst);
            if random.one_in(2) {
                sleep(Duration::from_millis(random.below(5_000))).await;
                clock.stepped.fetch_sub(by, Ordering::SeqCst);
            }
        }
    }

    pub(crate) async fn expiry(self: Arc<Self>) {
        loop {
            sleep(Duration::from_secs(1)).await;
            self.transact(LedgerOperation::ExpireHolds).await;
        }
    }

    async fn transact(&self, command: LedgerOperation) {
        let transacted = self.ledger.transact(vec![command], self.steady.now());
        self.faults.disk.notify_one();
        let _ = transacted.durable.await;
    }

    /// Waits in virtual time until everything has ended.
    pub(crate) async fn until_idle(&self) {
        for _ in 0..20_000 {
            if self.gateway.in_flight() == 0 {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
        panic!("{} calls stay in flight", self.gateway.in_flight());
    }
}

async fn live(mut random: Random) -> Seen {
    let (world, hand) = World::over(&mut random, Remains::none());
    let world = Arc::new(world);
    let mut background = vec![
        tokio::spawn(Arc::clone(&world).disk(hand, random.fork())),
        tokio::spawn(Arc::clone(&world).expiry()),
    ];
    if random.one_in(3) {
        background.push(tokio::spawn(World::steps(world.clock.clone(), random.fork())));
    }
    world.plant(&mut random);
    let mut calls = Vec::new();
    for _ in 0..1 + random.below(6) {
        let (habit, random_of_call) = (client::habit(&mut random), random.fork());
        let (gateway, clock) = (Arc::clone(&world.gateway), world.clock.clone());
        calls.push(tokio::spawn(client::call(gateway, clock, shared().key.clone(), habit, random_of_call)));
        sleep(Duration::from_millis(random.below(3_000))).await;
    }
    let drains = random.one_in(4);
    if drains {
        sleep(Duration::from_millis(random.below(4_000))).await;
        world.gateway.drain(Duration::from_millis(random.below(20_000))).await;
    }
    let mut views = Vec::new();
    for call in calls {
        views.push(call.await.expect("no panic comes through to a client"));
    }
    world.until_idle().await;
    world.end_faults();
    if !drains {
        views.push(world.one_good_call(&mut random).await);
    }
    background.into_iter().for_each(|task| task.abort());
    world.check(&views)
}

impl World {
    /// Nothing panics or fails any more.
    pub(crate) fn end_faults(&self) {
        self.faults.over.store(true, Ordering::SeqCst);
        self.faults.clock_in.store(0, Ordering::SeqCst);
        self.faults.sink.store(false, Ordering::SeqCst);
    }

    /// Gets over the planted append faults that are left, and a disk that is down.
    pub(crate) async fn mend_disk(&self) {
        for _ in 0..10 {
            self.transact(budget()).await;
            while self.ledger.health().down.is_some() {
                sleep(Duration::from_millis(100)).await;
            }
        }
    }

    /// The money that was charged so far, by this process and those before it.
    pub(crate) fn charged(&self) -> NanoDollars {
        let totals = self.ledger.totals();
        CREDIT.checked_sub(totals.available).and_then(|sum| sum.checked_sub(totals.held)).unwrap()
    }

    /// The calls of this process that were charged.
    pub(crate) fn charged_calls(&self) -> Vec<TraceRecord> {
        let traces = self.traces.0.lock().unwrap();
        traces.iter().filter(|trace| trace.cost > NanoDollars::ZERO).cloned().collect()
    }

    /// Whether the record of a call was lost to a panic.
    pub(crate) fn has_lost_record(&self) -> bool {
        self.traces.0.lock().unwrap().iter().any(is_stub)
    }

    /// Once faults are over, the next call is served.
    async fn one_good_call(&self, random: &mut Random) -> ClientView {
        self.mend_disk().await;
        let call = client::call(
            Arc::clone(&self.gateway),
            self.clock.clone(),
            shared().key.clone(),
            Habit::Quick,
            random.fork(),
        );
        let view = call.await;
        assert_eq!((view.status, view.end), (Some(200), Some(Ok(()))), "the next call is served: {view:?}");
        self.until_idle().await;
        view
    }

    fn check(&self, views: &[ClientView]) -> Seen {
        let totals = self.ledger.totals();
        assert_eq!(totals.open_holds, 0, "every hold has ended");
        assert_eq!(totals.holds, totals.settled + totals.released, "once");
        assert_eq!(totals.held, NanoDollars::ZERO);
        assert_eq!(self.ledger.health().expired, 0, "no hold of a living call expires");
        assert_eq!(self.limits.metrics().leases, 0, "every lease is back");
        let report = headrace_ledger::verify::verify(&self.journal.contents());
        assert!(report.ok(), "{report}");

        let traces = self.traces.0.lock().unwrap();
        let outcomes = || traces.iter().map(|trace| &trace.outcome).collect::<Vec<_>>();
        assert_eq!(traces.len(), views.len(), "one trace per call: {views:?} {:?}", outcomes());
        let lost = traces.iter().any(is_stub);
        let charged: i64 = traces.iter().map(|trace| trace.cost.get()).sum();
        let paid = CREDIT.get() - totals.available.get();
        assert!(if lost { charged <= paid } else { charged == paid }, "traces say {charged}, paid is {paid}");
        assert_eq!(-totals.loss.get() + paid, totals.revenue.get(), "usage is paid or lost");
        let mut seen = Seen::new(self.ledger.health().failures);
        for view in views {
            let Some(id) = &view.id else { continue };
            let own: Vec<_> = traces.iter().filter(|trace| trace.request_id.to_string() == *id).collect();
            assert_eq!(own.len(), 1, "one trace of {view:?}");
            check_call(view, own[0]);
        }
        traces.iter().for_each(|trace| seen.count(trace));
        seen
    }
}

/// Whether a record replaces one that was lost to a panic of the sink.
fn is_stub(trace: &TraceRecord) -> bool {
    matches!(&trace.outcome, CallOutcome::Failed { message, .. } if message.starts_with("a panic"))
}

fn check_call(view: &ClientView, trace: &TraceRecord) {
    assert!(trace.cost <= trace.held, "{trace:?}");
    if is_stub(trace) {
        return;
    }
    check_attempts(view, trace);
    view.check_sent(trace.sent.as_deref());
    let ended_well = view.end == Some(Ok(())) && !view.text.contains("error");
    match &trace.outcome {
        CallOutcome::Completed { .. } => {
            let usage = trace.usage;
            let full =
                i64::try_from(usage.input).unwrap() * INPUT + i64::try_from(usage.output).unwrap() * OUTPUT;
            assert_eq!(trace.cost.get(), full, "a completed call pays its usage: {view:?}");
            if ended_well {
                assert_eq!(view.tokens, usage.output, "and has all of it: {view:?}");
            }
        }
        CallOutcome::Cancelled { .. } | CallOutcome::Failed { .. } => {
            let paid = i64::try_from(view.tokens).unwrap() * OUTPUT;
            assert!(paid <= trace.cost.get(), "nobody reads what nobody paid for: {view:?} {trace:?}");
            assert!(!(ended_well && view.status == Some(200)), "it looks whole: {view:?} {trace:?}");
        }
        CallOutcome::Refused(_) => {
            assert_eq!((trace.cost, view.tokens), (NanoDollars::ZERO, 0));
            assert!(view.status.is_none_or(|status| status >= 400), "{view:?}");
        }
    }
    if let Habit::Aborts(_, why) = view.habit
        && let CallOutcome::Cancelled { why: said } = &trace.outcome
    {
        assert!(why != headrace_call_api::AbortReason::ClientGone || said.contains("went away"));
        assert!(!said.contains("went away"), "the transport said why: {view:?} {trace:?}");
    }
    assert!(view.streamed || view.status != Some(200) || view.tokens == 0 || trace.cost > NanoDollars::ZERO);
}

/// For each prompt every worker was asked at most once, one after the other, and only the last one has answered.
fn check_attempts(view: &ClientView, trace: &TraceRecord) {
    let attempts = &trace.attempts;
    for (at, attempt) in attempts.iter().enumerate() {
        let later: Vec<_> =
            attempts[at + 1..].iter().filter(|later| later.prompt == attempt.prompt).collect();
        assert!(later.iter().all(|later| later.worker != attempt.worker), "{attempts:?}");
        let until_ns = attempt.start_ns + attempt.duration_ns;
        assert!(later.iter().all(|later| later.start_ns >= until_ns), "{attempts:?}");
        let gave_way =
            matches!(attempt.outcome, AttemptOutcome::Refused { .. } | AttemptOutcome::Failed { .. });
        assert!(gave_way || later.is_empty(), "{attempts:?}");
        let answered = attempt.outcome == AttemptOutcome::Answered;
        let is_whole = matches!(trace.outcome, CallOutcome::Completed { .. });
        assert!(answered || !later.is_empty() || !is_whole, "{view:?} {trace:?}");
    }
}

/// A command that causes a write. Planted append faults have occurred after it.
fn budget() -> LedgerOperation {
    LedgerOperation::SetBudget { org: org(), project: project(), budget: None }
}

fn capabilities() -> Capabilities {
    Capabilities {
        model: "demo".to_owned(),
        compute_mode: "exact".to_owned(),
        numerics: "simulated".to_owned(),
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
