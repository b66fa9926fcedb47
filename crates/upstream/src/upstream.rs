//! One server of others, and one model there behind the seam. What they do for a call stands in `answer`; here is who they are.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::UnixNanos;
use headrace_engine_api::{Health, LoadReport, Relay, RelayAnswer, RelayAsk, RelayFacts, Screening};
use headrace_worker::{About, Words};
use reqwest::Url;

use crate::answer::Answer;
use crate::ask::Post;
use crate::cache::{self, CacheEvent};
use crate::figures::Figures;
use crate::gate::Asker;
use crate::kind::Kind;
use crate::listing::Listing;
use crate::load;
use crate::load::gauge::Gauge;
use crate::names;
use crate::probe::{self, ProbeError};
use crate::server::Server;
use crate::spec::UpstreamSpec;
use crate::urls::UrlPolicy;
use crate::workers::asking;

/// How often it is checked whether anybody has a server that is followed.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// One server. Cheap to clone: all clones are the same one.
#[derive(Clone)]
pub struct Upstream {
    server: Arc<Server>,
}

impl Upstream {
    /// Builds what a spec says. Nothing is asked of the server.
    ///
    /// # Errors
    /// Everything that is wrong with the spec, in words.
    pub fn new(spec: UpstreamSpec) -> Result<Self, Vec<String>> {
        Ok(Self { server: Arc::new(Server::new(spec)?) })
    }

    /// Its name in our configuration.
    pub fn name(&self) -> &str {
        &self.server.spec.name
    }

    /// Its name, with its address if it is one of several of the name.
    pub fn label(&self) -> String {
        self.server.spec.label()
    }

    /// Calls `unreached` whenever no connection to it came about, for as long as anybody has it. One of these is enough.
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

    /// What it is.
    pub fn kind(&self) -> Kind {
        self.server.spec.kind
    }

    /// From what it was built.
    pub fn spec(&self) -> &UpstreamSpec {
        &self.server.spec
    }

    /// Host and port.
    pub fn authority(&self) -> String {
        self.server.address.authority()
    }

    /// Takes no new calls from now on; those under way go on.
    pub fn drain(&self) {
        self.server.set_drained(true);
    }

    /// Takes calls again.
    pub fn resume(&self) {
        self.server.set_drained(false);
    }

    /// Whether it takes calls.
    pub fn health(&self) -> Health {
        self.server.health()
    }

    /// The models that it lists, asked now: a bounded number of them.
    ///
    /// # Errors
    /// What it answered instead, or why it did not, in words that name what may be wrong in the configuration.
    pub async fn models(&self) -> Result<Listing, ProbeError> {
        probe::models(&self.server).await
    }

    /// Whether it is asked as a worker: its own engine takes jobs.
    pub fn is_worker(&self) -> bool {
        self.server.line.is_some()
    }

    /// What it is as a worker, asked now. How busy it says it is, its models know from then on.
    ///
    /// # Errors
    /// What it answered instead, or why it did not.
    pub async fn about(&self, now: UnixNanos) -> Result<About, ProbeError> {
        asking::about(&self.server, now).await
    }

    /// The words of one of a worker's models, by their digest, asked now.
    ///
    /// # Errors
    /// What it answered instead, or why it did not.
    pub async fn words(&self, digest: &str, now: UnixNanos) -> Result<Words, ProbeError> {
        asking::words(&self.server, digest, now).await
    }

    /// Whether it is well, asked now at the place that its kind has for it.
    ///
    /// # Errors
    /// What it answered instead, or why it did not.
    pub async fn probe(&self) -> Result<(), ProbeError> {
        probe::health(&self.server).await
    }

    /// How its calls went.
    pub fn figures(&self) -> Figures {
        self.server.counters.read(self.server.gate.waiting())
    }

    /// Asks it again and again how busy it is, where its kind tells that, for as long as anybody has it. One of these is enough.
    pub fn follow_load(&self) -> impl Future<Output = ()> + Send + 'static {
        load::follow(Arc::downgrade(&self.server))
    }

    /// Looks up again and again where its name leads, for as long as anybody has it. One of these is enough.
    pub fn follow_name(&self) -> impl Future<Output = ()> + Send + 'static {
        names::follow(Arc::downgrade(&self.server))
    }

    /// Why it is not known how busy it is; `None`: it told, or is not asked.
    pub fn load_fault(&self) -> Option<String> {
        self.server.loads.fault()
    }

    /// Hears what it tells of its cache, in order, for as long as anybody has it. One of these is enough.
    pub fn follow_cache(
        &self,
        tell: impl FnMut(CacheEvent) + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        cache::follow(Arc::downgrade(&self.server), tell)
    }

    /// Why what it tells of its cache is not known, or not all of it.
    pub fn cache_fault(&self) -> Option<String> {
        self.server.cache_fault.lock().clone()
    }

    /// What all calls to it share.
    pub(crate) fn server(&self) -> Arc<Server> {
        Arc::clone(&self.server)
    }

    /// One of its models.
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
    server: Arc<Server>,
    facts: RelayFacts,
    urls: Arc<UrlPolicy>,
    gauge: Arc<Gauge>,
}

impl RelayModel {
    fn post(&self, url: Url, ask: RelayAsk) -> Box<dyn RelayAnswer> {
        let RelayAsk { request, tenant, weight, endpoint, body, stream, headers, head_within, bounds } = ask;
        let dialect = endpoint.dialect();
        let gauge = Arc::clone(&self.gauge);
        let asker = Asker { tenant, weight };
        let post = Post { url, dialect, request, body, stream, headers, head_within, asker, gauge, bounds };
        Box::new(Answer::new(Arc::clone(&self.server), post))
    }
}

impl Relay for RelayModel {
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

    fn health(&self) -> Health {
        self.server.health()
    }
}

impl fmt::Debug for RelayModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayModel").field("facts", &self.facts).finish_non_exhaustive()
    }
}
