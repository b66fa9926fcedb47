//! The environment of the servers under test: keys, limits, ledger, traces, and the sockets of the edge.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use headrace_call_api::CallService;
use headrace_catalog::{Catalog, CatalogOffer, NameRules, ServedModel};
use headrace_domain::{Clock, NanoDollars, NoTrace, OrgId, ProjectId, RequestId, TraceRecord, TraceSink};
use headrace_edge::{Edge, EdgeConfig};
use headrace_fleet::{Fleet, Worker};
use headrace_gateway::{Gateway, GatewayConfig, GatewayParts, Stored, TraceLookup};
use headrace_identity::{Directory, HashSecret, MemoryKeyStore, NewKey, RateLimits, SecretString};
use headrace_ledger::prices::{CostList, PriceConfig, PriceList};
use headrace_ledger::{GrantKind, Ledger, LedgerClient, LedgerOperation, MemoryJournal, Owner};
use headrace_limits::Limits;
use headrace_objects::{MemoryObjects, ObjectLimits, ObjectStore};
use headrace_rollout::{ShadowBudget, ShadowSpec};
use headrace_store::disk::DiskGuard;
use headrace_store::trace::TraceRetention;
use headrace_store::{Storage, StorageUrl};
use headrace_trace::{Metrics, MetricsConfig, RecorderConfig, TraceRecorder, TraceStore};

use crate::tally::Tally;

pub(crate) type Failure = Box<dyn std::error::Error>;

/// Serves until standard input closes.
pub(crate) async fn listen<F: CallService>(service: Arc<F>, clock: Arc<dyn Clock>) -> Result<(), Failure> {
    let config = EdgeConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let traces = Arc::new(NoTrace);
    let edge = Edge::bind(config, service, None, headrace_edge::no_metrics(), traces, clock).await?;
    println!("{}", edge.local_addr().port());
    let closed = tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0]));
    let stop = async {
        let _ = closed.await;
    };
    edge.serve(stop, Duration::from_secs(1)).await;
    Ok(())
}

struct NoRecords;

impl TraceLookup for NoRecords {
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

/// A gateway with real parts that serves one model by one worker. Its ledger is on the disk (`sqlite`) or in memory.
/// With the kind `shadow`, each call is also copied.
pub(crate) fn open_gateway(
    kind: &str,
    dir: &Path,
    clock: Arc<dyn Clock>,
    model: ServedModel,
    worker: Worker,
) -> Result<(Arc<Gateway>, Arc<Tally>), Failure> {
    let (now, on_disk) = (clock.now(), kind == "sqlite");
    let (org, project) = (OrgId::new("bench")?, ProjectId::new("bench")?);

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

    let storage = Storage::open(StorageUrl::of_folder(dir), None);
    let owner = Owner::new(1);
    let amount = NanoDollars::new(i64::MAX / 4);
    let grant = LedgerOperation::Grant {
        org: org.clone(),
        amount,
        kind: GrantKind::Promotional,
        reference: "bench".into(),
    };
    let opening = vec![LedgerOperation::OpenProject { org, project }, grant];
    let (ledger, opened): (Arc<dyn LedgerClient>, _) = if on_disk {
        let ledger = storage.ledger("bench", Box::new(move || owner), &clock, Box::new(|_| ()))?;
        (ledger.client, ledger.admin.transact(opening, now))
    } else {
        let (ledger, _) = Ledger::open(Box::new(MemoryJournal::discarding()), owner, now)?;
        let opened = ledger.transact(opening, now);
        (Arc::new(ledger), opened)
    };
    opened.durable.wait()?;

    let prices: Vec<PriceConfig> = serde_json::from_value(serde_json::json!([
        {"model": model.name, "input": 100_000_000, "output": 400_000_000, "cached_input": 10_000_000}
    ]))?;
    let metrics = Arc::new(Metrics::new(&MetricsConfig {
        models: vec![model.name.to_string()],
        version: "bench".into(),
    }));
    let store: Option<Box<dyn TraceStore>> = if on_disk {
        Some(storage.traces(TraceRetention::default(), u64::MAX, DiskGuard::of(dir, Some(0)))?)
    } else {
        None
    };
    let objects: Arc<dyn ObjectStore> = if on_disk {
        storage.objects(ObjectLimits::default(), None)?
    } else {
        Arc::new(MemoryObjects::new(ObjectLimits::default()))
    };
    let traces = TraceRecorder::start(store, metrics, RecorderConfig::default())?;
    let tally = Tally::before(traces);
    let parts = GatewayParts {
        clock,
        directory: Arc::new(directory),
        tokens: None,
        certificates: None,
        limits: Limits::new(),
        ledger,
        traces: Arc::clone(&tally) as Arc<dyn TraceSink>,
        records: Arc::new(NoRecords),
        objects,
        files: None,
        answers: Arc::new(headrace_objects::MemoryAnswers::new(1 << 30)),
        cache_secret: [2; 32],
        owner,
    };
    let mut names = NameRules::default();
    if kind == "shadow" {
        let budget = ShadowBudget { amount, period: Duration::from_secs(3600) };
        let (to, share, compare) = (model.name.clone(), 1.0, true);
        let shadow = ShadowSpec { model: to, share, budget, compare, in_flight: 64, queue: 1024 };
        names.shadows.insert(model.name.clone(), Arc::new(shadow));
    }
    let offer = CatalogOffer {
        prices: PriceList::from_config(&prices).map_err(|errors| format!("{errors:?}"))?,
        costs: CostList::default(),
        judge: None,
        fleet: Arc::new(Fleet::new([worker])),
        models: vec![Arc::new(model)],
        aliases: BTreeMap::new(),
        weights: BTreeMap::new(),
        names,
    };
    let gateway = Gateway::new(parts, Catalog::checked(offer, now)?, GatewayConfig::default())?;
    Ok((gateway, tally))
}
