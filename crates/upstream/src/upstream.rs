//! An upstream server, and one model at it behind the trait `engine_api::MessageRelay`. How a call works is in `answer`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::UnixNanos;
use headrace_engine_api::{
    EngineHealth, LoadReport, MessageRelay, RelayAnswer, RelayAsk, RelayFacts, Screening,
};
use headrace_worker::{PackedAssets, WorkerInfo};
use reqwest::Url;

use crate::answer::UpstreamAnswer;
use crate::ask::PostRequest;
use crate::cache::{self, CacheEvent};
use crate::figures::ServerFigures;
use crate::gate::GateTenant;
use crate::kind::UpstreamKind;
use crate::listing::ModelListing;
use crate::load;
use crate::load_gauge::LoadGauge;
use crate::names;
use crate::probe::{self, ProbeError};
use crate::server::UpstreamServer;
use crate::spec::UpstreamSpec;
use crate::urls::UrlPolicy;
use crate::worker_requests;

/// How often a task that follows a server checks whether the server is still in use.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// One server. Cheap to clone: all clones share one server.
#[derive(Clone)]
pub struct Upstream {
    server: Arc<UpstreamServer>,
}

impl Upstream {
    /// Builds a server from a spec. Sends nothing to it.
    ///
    /// # Errors
    /// Everything that is wrong with the spec, as text.
    pub fn new(spec: UpstreamSpec) -> Result<Self, Vec<String>> {
        Ok(Self { server: Arc::new(UpstreamServer::new(spec)?) })
    }

    /// Returns the server's name in our configuration.
    pub fn name(&self) -> &str {
        &self.server.spec.name
    }

    /// Returns the server's name, with its address if it is one of several.
    pub fn label(&self) -> String {
        self.server.spec.label()
    }

    /// Calls `unreached` after every failed connection attempt, until the server is no longer in use. Run it once per
    /// server.
    pub fn follow_connections(
        &self,
        unreached: impl Fn() + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (server, notified) = (Arc::downgrade(&self.server), self.server.counters.unreached_now());
        async move {
            while server.strong_count() > 0 {
                if tokio::time::timeout(LOOK_EVERY, notified.notified()).await.is_ok() {
                    unreached();
                }
            }
        }
    }

    /// Returns the kind of the server.
    pub fn kind(&self) -> UpstreamKind {
        self.server.spec.kind
    }

    /// Returns the spec that the server was built from.
    pub fn spec(&self) -> &UpstreamSpec {
        &self.server.spec
    }

    /// Returns host and port.
    pub fn authority(&self) -> String {
        self.server.address.authority()
    }

    /// Stops new calls. Calls in progress continue.
    pub fn drain(&self) {
        self.server.set_drained(true);
    }

    /// Accepts calls again.
    pub fn resume(&self) {
        self.server.set_drained(false);
    }

    /// Returns whether the server takes calls.
    pub fn health(&self) -> EngineHealth {
        self.server.health()
    }

    /// Asks the server for its models. Their number is bounded.
    ///
    /// # Errors
    /// What the server answered instead, or why it did not answer, as text that names what may be wrong in the
    /// configuration.
    pub async fn models(&self) -> Result<ModelListing, ProbeError> {
        probe::models(&self.server).await
    }

    /// Returns whether the server is used as a worker, so that its own engine takes jobs.
    pub fn is_worker(&self) -> bool {
        self.server.line.is_some()
    }

    /// Asks a worker for its models and their facts. Stores the loads that it reports for the models of this server.
    ///
    /// # Errors
    /// What the worker answered instead, or why it did not answer.
    pub async fn about(&self, now: UnixNanos) -> Result<WorkerInfo, ProbeError> {
        worker_requests::about(&self.server, now).await
    }

    /// Asks a worker for the tokenizer assets of one of its models, by their digest.
    ///
    /// # Errors
    /// What the worker answered instead, or why it did not answer.
    pub async fn words(&self, digest: &str, now: UnixNanos) -> Result<PackedAssets, ProbeError> {
        worker_requests::words(&self.server, digest, now).await
    }

    /// Checks the server's health at the endpoint that its kind has for that.
    ///
    /// # Errors
    /// What the server answered instead, or why it did not answer.
    pub async fn probe(&self) -> Result<(), ProbeError> {
        probe::health(&self.server).await
    }

    /// Returns the statistics of the server's calls.
    pub fn figures(&self) -> ServerFigures {
        self.server.counters.read(self.server.gate.waiting())
    }

    /// Polls the server's load, if its kind reports it, until the server is no longer in use. Run it once per server.
    pub fn follow_load(&self) -> impl Future<Output = ()> + Send + 'static {
        load::follow(Arc::downgrade(&self.server))
    }

    /// Looks up the server's name periodically, until the server is no longer in use. Run it once per server.
    pub fn follow_name(&self) -> impl Future<Output = ()> + Send + 'static {
        names::follow(Arc::downgrade(&self.server))
    }

    /// Returns why the load is unknown. `None` if it was reported, or is not polled.
    pub fn load_fault(&self) -> Option<String> {
        self.server.loads.fault()
    }

    /// Follows the server's cache events in order, until the server is no longer in use. Run it once per server.
    pub fn follow_cache(
        &self,
        tell: impl FnMut(CacheEvent) + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        cache::follow(Arc::downgrade(&self.server), tell)
    }

    /// Returns why the state of the server's cache is unknown or incomplete.
    pub fn cache_fault(&self) -> Option<String> {
        self.server.cache_fault.lock().clone()
    }

    /// Returns the state that all calls to the server share.
    pub(crate) fn server(&self) -> Arc<UpstreamServer> {
        Arc::clone(&self.server)
    }

    /// Returns one of the server's models.
    pub fn model(&self, model: &str, context_window: Option<u32>) -> RelayModel {
        let spec = &self.server.spec;
        let facts = RelayFacts {
            upstream: spec.name.as_str().into(),
            dialect: spec.kind.dialect(),
            model: model.into(),
            max_tokens_field: spec.kind.max_tokens_field(),
            context_window,
            abandoned: spec.abandoned,
            resumes: spec.kind.resumes(),
            cache: spec.prefix_cache(),
            allow_unpriced: spec.allow_unpriced.as_slice().into(),
        };
        let urls = Arc::new(spec.url_policy());
        RelayModel { server: Arc::clone(&self.server), facts, urls, gauge: self.server.loads.gauge(model) }
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream")
            .field("name", &self.name())
            .field("kind", &self.kind())
            .field("at", &self.authority())
            .finish_non_exhaustive()
    }
}

/// One model at a server, reached by messages.
pub struct RelayModel {
    server: Arc<UpstreamServer>,
    facts: RelayFacts,
    urls: Arc<UrlPolicy>,
    gauge: Arc<LoadGauge>,
}

impl RelayModel {
    fn post(&self, url: Url, ask: RelayAsk) -> Box<dyn RelayAnswer> {
        let RelayAsk { request, tenant, weight, endpoint, body, stream, headers, head_within, bounds } = ask;
        let dialect = endpoint.dialect();
        let gauge = Arc::clone(&self.gauge);
        let asker = GateTenant { tenant, weight };
        let post =
            PostRequest { url, dialect, request, body, stream, headers, head_within, asker, gauge, bounds };
        Box::new(UpstreamAnswer::new(Arc::clone(&self.server), post))
    }
}

impl MessageRelay for RelayModel {
    fn facts(&self) -> &RelayFacts {
        &self.facts
    }

    fn send(&self, ask: RelayAsk) -> Box<dyn RelayAnswer> {
        let url = self.server.url(ask.endpoint).clone();
        self.post(url, ask)
    }

    fn count(&self, ask: RelayAsk) -> Option<Box<dyn RelayAnswer>> {
        let counts = self.server.spec.kind.counts_tokens();
        counts.then(|| self.post(self.server.count_url().clone(), ask))
    }

    fn screen(&self, urls: Vec<String>) -> Screening {
        let policy = Arc::clone(&self.urls);
        Box::pin(async move { policy.screen_now(&urls).await })
    }

    fn load(&self) -> LoadReport {
        load::report(&self.gauge, &self.server)
    }

    fn health(&self) -> EngineHealth {
        self.server.health()
    }
}

impl fmt::Debug for RelayModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayModel").field("facts", &self.facts).finish_non_exhaustive()
    }
}
