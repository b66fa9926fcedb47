//! The gateway role: the stores, the upstreams, and the gateway that answers calls with them. Must not know how calls
//! arrive, nor how an engine computes.

mod key_uses;
mod shared_identities;
mod stores;
mod token_users;

use std::sync::Arc;
use std::time::Duration;

use headrace_catalog::Catalog;
use headrace_config::ServerSettings;
use headrace_domain::{Clock, ContentSink, TraceSink};
use headrace_gateway::{Gateway, GatewayParts};
use headrace_identity::{Directory, Operators};
use headrace_jwt::{CertificateUsers, TokenAuthenticator};
use headrace_ledger::{CommandResult, LedgerClient, LedgerOperation, Receipt};
use headrace_limits::Limits;
use headrace_terminal::output;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use self::stores::GatewayStores;
use super::engine::EngineRole;
use crate::banner::ModelOffer;
use crate::datadir::DataDir;
use crate::exporters::Exporters;
use crate::limit_server::{self, LimitServer};
use crate::limit_shares::ShareExchange;
use crate::receipts::LiveReceipts;
use crate::records::StoredRecords;
use crate::reload::{self, ConfigReloader};
use crate::role_context::RoleContext;
use crate::running_model::RunningModel;
use crate::tokenizer_assets::AssetsByModel;
use crate::upstreams::{UpstreamModels, UpstreamRegistry};
use crate::webhooks::AlertDelivery;
use crate::{canaries, gauges, identity_providers, objects, spending};

/// Time by which a lease on limits outlives the longest hold. Only a lease that no call ends reaches this age.
const LEASE_MARGIN: Duration = Duration::from_secs(60);
/// Interval at which holds that no call settled are expired.
const EXPIRE_EVERY: Duration = Duration::from_secs(1);
/// Interval at which idle limit counters are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
/// Cache of the tokenizer assets of workers' models, relative to the data directory.
const WORDS_CACHE: &str = "cache/words";

/// The gateway role of a server.
pub(crate) struct GatewayRole {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) stores: GatewayStores,
    pub(crate) upstreams: Arc<UpstreamRegistry>,
    /// The models at the start: local ones first, then those of upstreams.
    pub(crate) models: Vec<ModelOffer>,
    /// Verifies JWTs. A reload replaces its identity providers.
    pub(crate) tokens: Arc<TokenAuthenticator>,
    /// Makes receipts.
    pub(crate) receipts: Arc<LiveReceipts>,
    /// Delivers alerts. `None` if no endpoint is configured.
    pub(crate) webhooks: Option<Arc<AlertDelivery>>,
    limits: Limits,
    /// `None` if this server has its limits for itself.
    limit_keeper: LimitKeeper,
    exporters: Exporters,
    context: RoleContext,
}

impl GatewayRole {
    /// Opens the stores, asks the upstreams for their models, and builds the gateway over these and the local models.
    /// Resumes the work that an earlier process left. Blocks.
    ///
    /// # Errors
    /// Returns what cannot be opened or served. The stores are closed again.
    pub(crate) fn open(
        config: &ServerSettings,
        assets: AssetsByModel,
        data_dir: &DataDir,
        identities: (Arc<Directory>, Arc<Operators>),
        engine: Option<&EngineRole>,
        context: &RoleContext,
    ) -> Result<Self, String> {
        let RoleContext { clock, metrics, runtime } = context;
        let stores = GatewayStores::open(config, data_dir, identities, context)?;
        // Longer than any call, so no call outlives its hold.
        let lifetime = config.gateway.hold_lifetime.saturating_add(LEASE_MARGIN);
        let (limits, limit_keeper) = open_limits(config, data_dir, lifetime, context).inspect_err(|_| {
            // The reason why there are no limits is the one to report.
            let _ = stores.close();
        })?;
        let cache = data_dir.path().join(WORDS_CACHE);
        let upstreams = Arc::new(UpstreamRegistry::new(Arc::clone(clock), Some(cache)));
        let receipts = Arc::new(LiveReceipts::new(config, &data_dir.storage().reader()));
        let exporters = Exporters::start(&config.telemetry, &stores.recorder, metrics, clock)?;
        let running = engine.map(|engine| engine.engines().running()).unwrap_or_default();
        let built = ask_upstreams(config, assets, &upstreams, runtime).and_then(|fronted| {
            let issuers = identity_providers::of_callers(config, &stores.directory)?;
            let tokens = TokenAuthenticator::new(issuers, Arc::clone(&stores.directory), clock);
            let tokens = Arc::new(tokens);
            let certificates = CertificateUsers::new(&config.certificates, Arc::clone(&stores.directory));
            let callers = (&limits, &tokens, Arc::new(certificates));
            receipts.signer().map_err(|error| error.to_string())?;
            let (outbox, ledger) = (data_dir.storage().outbox(), Arc::clone(&stores.ledger));
            let webhooks = AlertDelivery::open(config, outbox, ledger, clock)?;
            let found = (&stores, &receipts);
            let gateway = build(config, data_dir, &running, &fronted, found, callers, clock)?;
            Ok((gateway, tokens, webhooks, fronted))
        });
        let (gateway, tokens, webhooks, fronted) = match built {
            Ok(built) => built,
            Err(why) => {
                // The reason why there is no gateway is the one to report.
                let _ = stores.close();
                exporters.close(runtime);
                return Err(why);
            }
        };
        let served = running.iter().map(|model| &model.served).chain(&fronted.models);
        let models = served.map(|model| ModelOffer::of(model)).collect();
        let context = context.clone();
        let role = Self {
            gateway,
            stores,
            tokens,
            receipts,
            webhooks,
            upstreams,
            models,
            limits,
            limit_keeper,
            exporters,
            context,
        };
        role.begin(data_dir, fronted);
        Ok(role)
    }

    /// Resumes the work that an earlier process left, follows the upstreams, and registers the gauges.
    fn begin(&self, data_dir: &DataDir, fronted: UpstreamModels) {
        let Self { gateway, stores, upstreams, limits, context, .. } = self;
        let RoleContext { clock, metrics, runtime } = context;
        gateway.keep_shadow_spending(spending::of(data_dir.path()));
        gateway.keep_contents(Arc::clone(&stores.contents.recorder) as Arc<dyn ContentSink>);
        objects::take_over(runtime, gateway, clock.now(), stores.is_shared);
        if let Err(why) = canaries::restore(gateway, &stores.directory) {
            output::note(&format!("warning: canaries that were taken out before are on trial again: {why}"));
        }
        upstreams.take_over(fronted, metrics, runtime);
        gauges::register(metrics, &stores.ledger, limits);
        gauges::register_gateway(metrics, gateway);
        gauges::register_shadows(metrics, gateway);
        gauges::register_canaries(metrics, gateway);
        stores.health().register(metrics);
    }

    /// Spawns the periodic tasks. `reloader` serves other models when an upstream has others than before.
    pub(crate) fn spawn_tasks(&self, reloader: &Arc<ConfigReloader>, tasks: &mut JoinSet<()>) {
        let Self { gateway, stores, tokens, upstreams, limits, context, .. } = self;
        tasks.spawn(expire_holds(Arc::clone(&stores.ledger_client), Arc::clone(&context.clock)));
        if let Some(webhooks) = &self.webhooks {
            tasks.spawn(Arc::clone(webhooks).run());
        }
        tasks.spawn(sweep_limits(limits.clone(), Arc::clone(&context.clock)));
        tasks.spawn(stores.health().tend());
        tasks.spawn(key_uses::sync(Arc::clone(&stores.directory), Arc::clone(&context.clock)));
        tasks.spawn(token_users::make(Arc::clone(&stores.directory), Arc::clone(&context.clock)));
        if stores.is_shared {
            let (directory, operators) = (Arc::clone(&stores.directory), Arc::clone(&stores.operators));
            tasks.spawn(shared_identities::refresh(directory, operators));
            tasks.spawn(objects::follow_others(Arc::downgrade(gateway)));
        }
        tokens.keep_fresh(&context.runtime);
        tasks.spawn(canaries::tend(Arc::downgrade(gateway), Arc::clone(&stores.directory)));
        tasks.spawn(objects::tend(Arc::downgrade(gateway)));
        let lister = Arc::clone(reloader);
        let relist = move |upstream: String| lister.relist(&upstream);
        tasks.spawn(Arc::clone(upstreams).tend(Arc::downgrade(gateway), relist));
        let follower = Arc::clone(reloader);
        let readdress = move |upstream: String| follower.readdress(&upstream);
        tasks.spawn(Arc::clone(upstreams).follow_names(readdress));
        tasks.spawn(Arc::clone(upstreams).watch_loads());
    }

    /// Closes the stores once the gateway is drained, and sends what the exporters have queued. Blocks.
    ///
    /// # Errors
    /// Returns why not every call is settled on the disk.
    pub(crate) fn close(self) -> Result<(), String> {
        self.limit_keeper.close();
        let closed = self.stores.close();
        self.exporters.close(&self.context.runtime);
        closed
    }
}

/// What keeps the limits per minute of several gateways.
enum LimitKeeper {
    /// This gateway has its limits for itself.
    None,
    /// Gateways with the same stores divide the limits.
    Shares(ShareExchange),
    /// A server counts for all gateways.
    Server(LimitServer),
}

impl LimitKeeper {
    /// Leaves what this gateway had to the others. Blocks.
    fn close(self) {
        match self {
            Self::None => {}
            Self::Shares(exchange) => drop(exchange),
            Self::Server(server) => server.close(),
        }
    }
}

/// Opens the counters of limits. Gateways share the limits per minute by a server, or by their stores. Blocks.
fn open_limits(
    config: &ServerSettings,
    data_dir: &DataDir,
    lifetime: Duration,
    RoleContext { clock, metrics, runtime }: &RoleContext,
) -> Result<(Limits, LimitKeeper), String> {
    if let Some(settings) = &config.limit_server {
        let name = &config.storage.gateway_name;
        let (limits, server) = limit_server::open(settings, name, lifetime, (metrics, runtime))?;
        return Ok((limits, LimitKeeper::Server(server)));
    }
    let Some(store) = data_dir.storage().limit_shares() else {
        return Ok((Limits::with_lease_lifetime(lifetime), LimitKeeper::None));
    };
    let (holder, former) = data_dir.share_holder().map_err(|error| error.to_string())?;
    let (limits, mut shares) = Limits::over_gateways(lifetime, holder);
    if let Some(former) = former {
        shares.replace(former);
    }
    let exchange = ShareExchange::start(shares, store, Arc::clone(clock))?;
    Ok((limits, LimitKeeper::Shares(exchange)))
}

/// Asks the upstreams for their models. A fault of one upstream is reported and does not stop the others.
fn ask_upstreams(
    config: &ServerSettings,
    assets: AssetsByModel,
    upstreams: &UpstreamRegistry,
    runtime: &Handle,
) -> Result<UpstreamModels, String> {
    runtime.block_on(upstreams.look_up(config));
    let sites = upstreams.sites_of(config).map_err(|faults| faults.join("\n"))?;
    let sites = runtime.block_on(reload::ask_new(sites));
    for site in &sites {
        if let Some(fault) = site.fault() {
            output::note(&format!("warning: {fault}; it is asked again"));
        }
    }
    let fronted = upstreams.fronted(config, assets, sites);
    fronted.notes.iter().for_each(|note| output::note(&format!("warning: {note}")));
    Ok(fronted)
}

/// Builds the gateway over the local models and those of upstreams.
fn build(
    config: &ServerSettings,
    data_dir: &DataDir,
    running: &[RunningModel],
    fronted: &UpstreamModels,
    (stores, receipts): (&GatewayStores, &Arc<LiveReceipts>),
    (limits, tokens, certificates): (&Limits, &Arc<TokenAuthenticator>, Arc<CertificateUsers>),
    clock: &Arc<dyn Clock>,
) -> Result<Arc<Gateway>, String> {
    let offer = reload::offer(config, running, fronted, clock);
    let offer =
        offer.map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
    let catalog = Catalog::checked(offer, clock.now()).map_err(|error| error.to_string())?;
    let reader = data_dir.storage().reader().traces_when_read();
    let parts = GatewayParts {
        clock: Arc::clone(clock),
        directory: Arc::clone(&stores.directory),
        tokens: Some(Arc::clone(tokens)),
        certificates: Some(certificates),
        limits: limits.clone(),
        ledger: Arc::clone(&stores.ledger_client),
        traces: Arc::clone(&stores.recorder) as Arc<dyn TraceSink>,
        records: Arc::new(StoredRecords::new(Arc::clone(&stores.recorder), reader, Arc::clone(receipts))),
        objects: Arc::clone(&stores.objects.objects),
        files: Some(Arc::clone(&stores.objects.files)),
        answers: Arc::clone(&stores.objects.answers),
        cache_secret: data_dir.cache_salt(),
        owner: stores.owner,
    };
    Gateway::new(parts, catalog, config.gateway.clone()).map_err(|error| error.to_string())
}

/// Expires holds that no call settled, until the future is dropped.
async fn expire_holds(ledger: Arc<dyn LedgerClient>, clock: Arc<dyn Clock>) {
    loop {
        tokio::time::sleep(EXPIRE_EVERY).await;
        let done = ledger.decide(vec![LedgerOperation::ExpireHolds], clock.now()).await;
        if let [CommandResult::Done(Receipt::ReleasedMany { holds, .. })] = done.verdicts.as_slice()
            && !holds.is_empty()
        {
            let (count, first) = (holds.len(), holds.first());
            tracing::error!(
                count,
                ?first,
                "holds expired before they were settled; nothing was charged for them"
            );
        }
        // A failing journal reports its own error; the next tick retries.
        let _ = done.durable.await;
    }
}

/// Removes idle limit counters, until the future is dropped.
async fn sweep_limits(limits: Limits, clock: Arc<dyn Clock>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        limits.sweep(clock.now());
    }
}
