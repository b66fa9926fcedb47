//! The servers that are compared: the governed path on a scripted engine, and a bare hello-world, on the same sockets.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use headrace_call_api::{Admitted, Answer, AnswerBody, BodySource, Credentials, EdgeRefusal, Front, Head};
use headrace_checkpoint::Checkpoint;
use headrace_domain::{
    Clock, Dialect, Endpoint, KeyId, ModelName, NanoDollars, OrgId, ProjectId, RequestId, SamplingDefaults,
    SystemClock, TraceRecord, TraceSink, UnixNanos,
};
use headrace_edge::{Edge, EdgeConfig};
use headrace_engine_api::Capabilities;
use headrace_fleet::{Fleet, Worker};
use headrace_gateway::{
    Catalog, Delivery, Gateway, GatewayConfig, GatewayParts, Lane, Offer, Records, ServedModel, Stored,
    TokenLane,
};
use headrace_identity::{Directory, HashSecret, MemoryKeyStore, NewKey, RateLimits, SecretString};
use headrace_ledger::prices::{PriceConfig, PriceList};
use headrace_ledger::{Command, GrantKind, Journal, Ledger, MemoryJournal, Owner};
use headrace_limits::{LimitSpec, Limits};
use headrace_prompt::{ChatTemplate, ReplyFamily, SpecialTokenTexts, TemplateLimits};
use headrace_sim::ScriptedEngine;
use headrace_store::journal::SqliteJournal;
use headrace_store::trace::{SqliteTraceStore, TraceRetention};
use headrace_tokenizer::Tokenizer;
use headrace_trace::{Metrics, MetricsConfig, Recorder, RecorderConfig, TraceStore};

use crate::tally::Tally;

const MODEL: &str = "headrace-demo";
const TOKENS_PER_ANSWER: u32 = 8;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Serves until standard input closes; then says on a line what a call took.
pub(crate) fn serve(kind: &str, dir: &str) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let Ok(runtime) = runtime else { return ExitCode::FAILURE };
    let served = runtime.block_on(async {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        if let Some(busy_us) = kind.strip_prefix("hello-") {
            let hello = Hello { key: KeyId::new("hello")?, rounds: rounds_of(busy_us.parse()?) };
            return listen(Arc::new(hello), clock).await;
        }
        let (gateway, tally) = governed(kind, Path::new(dir), Arc::clone(&clock))?;
        listen(gateway, clock).await?;
        println!("{}", tally.line());
        Ok::<_, Failure>(())
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("overhead server: {error}");
            ExitCode::FAILURE
        }
    }
}

type Failure = Box<dyn std::error::Error>;

async fn listen<F: Front>(front: Arc<F>, clock: Arc<dyn Clock>) -> Result<(), Failure> {
    let config = EdgeConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let edge = Edge::bind(config, front, Arc::new(String::new), clock).await?;
    println!("{}", edge.local_addr().port());
    let closed = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0]));
    let stop = async {
        let _ = closed.await;
    };
    edge.serve(stop, Duration::from_secs(1)).await;
    Ok(())
}

/// Says the same to everyone, in as many bytes as the governed answer has, after it has kept the processor busy.
struct Hello {
    key: KeyId,
    /// Of [`work`]: work and not time, because a core that stutters needs longer for it.
    rounds: u64,
}

/// Rounds of work that take so many microseconds where nothing stutters.
fn rounds_of(busy_us: u64) -> u64 {
    const TRIED: u64 = 100_000;
    let time = || {
        let begun = Instant::now();
        work(TRIED);
        begun.elapsed().as_nanos()
    };
    let best_ns = (0..50).map(|_| time()).min().unwrap_or(1).max(1);
    u64::try_from(u128::from(busy_us * 1_000 * TRIED) / best_ns).unwrap_or(0)
}

/// Walks over a megabyte in leaps, as a call walks over its own and everybody's memory.
fn work(rounds: u64) {
    static MEMORY: [u8; 1 << 20] = [1; 1 << 20];
    let mut at = 1_u64;
    for _ in 0..rounds {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let place = usize::try_from(at >> 44).unwrap_or(0);
        at = at.wrapping_add(u64::from(MEMORY.get(place).copied().unwrap_or(0)));
    }
    std::hint::black_box(at);
}

struct Anybody(KeyId);

impl Admitted for Anybody {
    fn payer(&self) -> &KeyId {
        &self.0
    }
}

impl Front for Hello {
    type Stream = Delivery;
    type Admitted = Anybody;

    fn admit(self: &Arc<Self>, _head: Head) -> Result<Anybody, Answer<Delivery>> {
        Ok(Anybody(self.key.clone()))
    }

    async fn call<B: BodySource>(self: &Arc<Self>, _admitted: Anybody, body: B) -> Answer<Delivery> {
        // Read as a governed call's is, so that the connection can be used again.
        let _ = body.read().await;
        work(self.rounds);
        hello()
    }

    fn knows(&self, _credentials: &Credentials) -> bool {
        true
    }

    fn list_models(&self, _credentials: &Credentials, _dialect: Dialect) -> Answer<Delivery> {
        hello()
    }

    fn show_model(&self, _credentials: &Credentials, _name: &str, _dialect: Dialect) -> Answer<Delivery> {
        hello()
    }

    async fn show_request(self: &Arc<Self>, _credentials: &Credentials, _id: &str) -> Answer<Delivery> {
        hello()
    }

    fn refuse(
        &self,
        _dialect: Dialect,
        _refusal: &EdgeRefusal,
        _endpoint: Option<Endpoint>,
        _started: UnixNanos,
    ) -> Answer<Delivery> {
        hello()
    }

    fn not_ready(&self, _model: Option<&str>) -> Vec<String> {
        Vec::new()
    }

    async fn drain(&self, _within: Duration) -> usize {
        0
    }
}

fn hello() -> Answer<Delivery> {
    static BODY: [u8; 2048] = [b'h'; 2048];
    let body = AnswerBody::Whole(Bytes::from_static(&BODY));
    Answer { status: 200, content_type: "text/plain", headers: Vec::new(), body }
}

struct NoRecords;

impl Records for NoRecords {
    fn recent(&self, _id: RequestId) -> Option<Arc<TraceRecord>> {
        None
    }

    fn stored(&self, _id: RequestId) -> Stored<'_> {
        Box::pin(std::future::ready(None))
    }

    fn json(&self, _record: &TraceRecord) -> Vec<u8> {
        Vec::new()
    }

    fn block(&self, _record: &TraceRecord) -> serde_json::Value {
        serde_json::Value::Null
    }
}

fn governed(kind: &str, dir: &Path, clock: Arc<dyn Clock>) -> Result<(Arc<Gateway>, Arc<Tally>), Failure> {
    let now = clock.now();
    let on_disk = kind == "sqlite";
    let (org, project, name) = (OrgId::new("bench")?, ProjectId::new("bench")?, ModelName::new(MODEL)?);

    let directory = Directory::open(Arc::new(MemoryKeyStore::default()), HashSecret::new([1; 32]))?;
    let wide = RateLimits {
        requests_per_minute: Some(u32::MAX),
        tokens_per_minute: Some(1 << 50),
        concurrency: Some(10_000),
    };
    directory.create_org(org.clone(), wide, "bench", now)?;
    directory.create_project(project.clone(), org.clone(), wide, "bench", now)?;
    let secret = Some(SecretString::from(crate::load::KEY));
    let key = NewKey { limits: wide, secret, ..NewKey::new(org.clone(), project.clone(), "bench") };
    directory.create_key(key, "bench", now)?;

    let journal: Box<dyn Journal> = if on_disk {
        Box::new(SqliteJournal::open(&dir.join("ledger.sqlite"))?)
    } else {
        Box::new(MemoryJournal::discarding())
    };
    let owner = Owner::new(1);
    let (ledger, _) = Ledger::open(journal, owner, now)?;
    let amount = NanoDollars::new(i64::MAX / 4);
    let grant =
        Command::Grant { org: org.clone(), amount, kind: GrantKind::Promotional, reference: "bench".into() };
    ledger.transact(vec![Command::OpenProject { org, project }, grant], now).durable.wait()?;

    let prices: Vec<PriceConfig> = serde_json::from_value(serde_json::json!([
        {"model": MODEL, "input": 100_000_000, "output": 400_000_000, "cached_input": 10_000_000}
    ]))?;
    let metrics =
        Arc::new(Metrics::new(&MetricsConfig { models: vec![MODEL.into()], version: "bench".into() }));
    let store: Option<Box<dyn TraceStore>> = if on_disk {
        Some(Box::new(SqliteTraceStore::open(&dir.join("trace.sqlite"), TraceRetention::default())?))
    } else {
        None
    };
    let traces = Recorder::start(store, metrics, RecorderConfig::default())?;
    let tally = Tally::before(traces);
    let engine = ScriptedEngine::new(capabilities(), TOKENS_PER_ANSWER, "word ");
    let parts = GatewayParts {
        clock,
        directory: Arc::new(directory),
        limits: Limits::new(),
        books: Arc::new(ledger),
        traces: Arc::clone(&tally) as Arc<dyn TraceSink>,
        records: Arc::new(NoRecords),
        cache_secret: [2; 32],
        owner,
    };
    let offer = Offer {
        prices: PriceList::from_config(&prices).map_err(|errors| format!("{errors:?}"))?,
        judge: None,
        fleet: Arc::new(Fleet::new([Worker::new("scripted", name.clone(), Arc::new(engine))])),
        models: vec![Arc::new(served(name)?)],
        aliases: BTreeMap::new(),
        weights: BTreeMap::new(),
    };
    let gateway = Gateway::new(parts, Catalog::checked(offer, now)?, GatewayConfig::default())?;
    Ok((gateway, tally))
}

fn capabilities() -> Capabilities {
    Capabilities {
        model: MODEL.to_owned(),
        compute_mode: "exact".to_owned(),
        numerics: "scripted".to_owned(),
        vocab: 2560,
        context_window: 2048,
        max_logprobs: 20,
        kv_tokens: 1 << 20,
    }
}

fn served(name: ModelName) -> Result<ServedModel, Failure> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/checkpoint");
    let checkpoint = Checkpoint::open(&dir)?;
    let tokenizer = Arc::new(Tokenizer::new(checkpoint.tokenizer_json(), checkpoint.tokenizer_config())?);
    let texts = SpecialTokenTexts::new(&tokenizer, None, Some("<|im_end|>".to_owned()), None, None);
    let source = checkpoint.chat_template().ok_or("the demo model has a template")?;
    Ok(ServedModel {
        name,
        lane: Lane::Tokens(TokenLane {
            template: Some(Arc::new(ChatTemplate::compile(source, &texts, TemplateLimits::default())?)),
            family: ReplyFamily::detect(source),
            tokenizer,
            defaults: SamplingDefaults::default(),
            capabilities: capabilities(),
        }),
        created_unix_s: 0,
        default_max_tokens: None,
        limits: LimitSpec::UNLIMITED,
    })
}
