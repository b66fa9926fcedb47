//! Gateways that use a server of their own.

pub(crate) mod redis;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use headrace_domain::{Clock as _, KeyId, OrgId, RequestId, SystemClock, UnixNanos};
use headrace_limits::{Lease, LimitRefusal, LimitSpec, Limits, QuotaSource, Scope};
use headrace_valkey::{UnreachablePolicy, ValkeyQuota, ValkeySettings, ValkeyStatus};
use tokio::runtime::Runtime;

pub(crate) use redis::RedisServer;

const PATIENCE: Duration = Duration::from_secs(20);

static GATEWAYS: AtomicU32 = AtomicU32::new(0);

pub(crate) type Scopes = Vec<(Scope, LimitSpec)>;

pub(crate) fn key(n: u8) -> Scope {
    Scope::Key(KeyId::new(&format!("k{n}")).unwrap())
}

pub(crate) fn org() -> Scope {
    Scope::Org(OrgId::new("o").unwrap())
}

pub(crate) fn requests(scope: Scope, limit: u32) -> Scopes {
    vec![(scope, LimitSpec { requests_per_minute: Some(limit), ..LimitSpec::UNLIMITED })]
}

pub(crate) fn tokens(scope: Scope, limit: u64) -> Scopes {
    vec![(scope, LimitSpec { tokens_per_minute: Some(limit), ..LimitSpec::UNLIMITED })]
}

/// Opens gateways on a server.
impl RedisServer {
    pub(crate) fn gateway(&self, policy: UnreachablePolicy) -> Gateway {
        Gateway::new(self.url(), self.ca_file(), policy)
    }

    pub(crate) fn gateway_without_ca(&self) -> Gateway {
        Gateway::new(self.url(), None, UnreachablePolicy::Share)
    }

    pub(crate) fn gateway_with_password(&self, password: &str) -> Gateway {
        Gateway::new(&self.url_with(password), self.ca_file(), UnreachablePolicy::Share)
    }
}

/// A gateway's limits.
pub(crate) struct Gateway {
    limits: Limits,
    source: Arc<ValkeyQuota>,
    // Dropped last: the source ends on it.
    runtime: Runtime,
}

impl Gateway {
    fn new(url: &str, ca_file: Option<PathBuf>, policy: UnreachablePolicy) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let settings = ValkeySettings {
            address: url.parse().unwrap(),
            ca_file,
            prefix: "test".to_owned(),
            policy,
            gateway: format!("g{}", GATEWAYS.fetch_add(1, Ordering::Relaxed)),
        };
        let source = Arc::new(ValkeyQuota::open(&settings, runtime.handle()).unwrap());
        let limits = Limits::shared(Arc::clone(&source) as Arc<dyn QuotaSource>, Duration::from_secs(60));
        Self { limits, source, runtime }
    }

    /// Counts a request, and returns whether it passed.
    pub(crate) fn count(&self, scopes: &[(Scope, LimitSpec)]) -> bool {
        self.try_count(scopes).is_ok()
    }

    pub(crate) fn refusal(&self, scopes: &[(Scope, LimitSpec)]) -> Option<String> {
        self.try_count(scopes).err().map(|refusal| refusal.to_string())
    }

    fn try_count(&self, scopes: &[(Scope, LimitSpec)]) -> Result<(), LimitRefusal> {
        if let Some(fetch) = self.limits.fetch_quota(scopes, 0, now()) {
            self.runtime.block_on(fetch);
        }
        self.limits.count(scopes, now())
    }

    /// Enters and takes tokens, as a call does before it runs.
    pub(crate) fn acquire(&self, scopes: &[(Scope, LimitSpec)], tokens: u64) -> Option<Lease> {
        if let Some(fetch) = self.limits.fetch_quota(scopes, 1, now()) {
            self.runtime.block_on(fetch);
        }
        let mut lease = self.limits.enter(scopes, RequestId::from_bits(1), now()).ok()?;
        if let Some(fetch) = lease.fetch_quota(&[], tokens, now()) {
            self.runtime.block_on(fetch);
        }
        lease.take(&[], tokens, now()).ok().map(|()| lease)
    }

    pub(crate) fn settle(&self, lease: Lease, used: u64) {
        lease.settle(used, now());
    }

    /// The tokens that remain after one more request.
    pub(crate) fn remaining(&self, scopes: &[(Scope, LimitSpec)]) -> u64 {
        if let Some(fetch) = self.limits.fetch_quota(scopes, 1, now()) {
            self.runtime.block_on(fetch);
        }
        self.limits.standing(scopes, now()).remaining_tokens.unwrap()
    }

    pub(crate) fn status(&self) -> ValkeyStatus {
        self.source.status()
    }

    pub(crate) fn wait_for_gateways(&self, count: u32) {
        wait("the gateways", || self.status().gateways == count);
    }

    pub(crate) fn wait_until_reachable(&self) {
        wait("the server", || self.status().is_reachable);
    }

    pub(crate) fn wait_until_lost(&self, scopes: &[(Scope, LimitSpec)]) {
        wait("the loss", || {
            self.count(scopes);
            !self.status().is_reachable
        });
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.source.close();
    }
}

fn wait(what: &str, mut is_there: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_there() {
        assert!(since.elapsed() < PATIENCE, "no sign of {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn now() -> UnixNanos {
    SystemClock::new().now()
}
