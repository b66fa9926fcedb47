//! What calls and the supervisor share: the connection, and the outage while there is none. Asks the server within a
//! deadline, or applies the policy for a server that cannot be reached. Must not know how connections are opened.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use headrace_domain::UnixNanos;
use headrace_limits::{QuotaDemand, QuotaGrant, QuotaReturn};
use parking_lot::{Mutex, RwLock};
use redis::aio::MultiplexedConnection;
use tokio::sync::Notify;

use crate::functions::{self, KeyNames, LeaseAnswer};
use crate::own_share::OwnShares;
use crate::settings::{UnreachablePolicy, ValkeyStatus};

/// How long a call waits for the server.
const DEADLINE: Duration = Duration::from_millis(50);

/// What calls and the supervisor share.
pub(crate) struct SourceState {
    pub(crate) keys: KeyNames,
    pub(crate) policy: UnreachablePolicy,
    connection: RwLock<Option<MultiplexedConnection>>,
    /// The number of live gateways, as last seen. Zero before the first answer.
    gateways: AtomicU64,
    failures: AtomicU64,
    /// The buckets of an outage. `None` while the server answers, and before the first call of an outage.
    outage: Mutex<Option<OwnShares>>,
    /// Wakes the supervisor when the connection was lost.
    pub(crate) lost: Notify,
}

impl SourceState {
    pub(crate) fn new(prefix: &str, policy: UnreachablePolicy) -> Self {
        Self {
            keys: KeyNames::new(prefix),
            policy,
            connection: RwLock::new(None),
            gateways: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            outage: Mutex::new(None),
            lost: Notify::new(),
        }
    }

    pub(crate) fn status(&self) -> ValkeyStatus {
        ValkeyStatus {
            is_reachable: self.connection.read().is_some(),
            gateways: u32::try_from(self.gateways.load(Ordering::Relaxed)).unwrap_or(u32::MAX),
            failures: self.failures.load(Ordering::Relaxed),
        }
    }

    /// Gives back to the buckets of an outage. Returns what belongs to the server.
    pub(crate) fn give_back_alone(&self, returned: QuotaReturn) -> Option<QuotaReturn> {
        match self.outage.lock().as_mut() {
            Some(outage) => {
                outage.give_back(&returned);
                None
            }
            None => Some(returned),
        }
    }

    /// Takes a slice of each limit, or of none.
    pub(crate) async fn lease(&self, demands: &[QuotaDemand], now: UnixNanos) -> Vec<QuotaGrant> {
        let connection = self.connection.read().clone();
        if let Some(mut connection) = connection {
            let asked = functions::take(&mut connection, &self.keys, demands);
            match tokio::time::timeout(DEADLINE, asked).await {
                Ok(Ok(LeaseAnswer::Grants(grants))) if grants.len() == demands.len() => return grants,
                Ok(Ok(LeaseAnswer::Grants(_))) => self.lose("an answer that does not fit the question"),
                Ok(Ok(LeaseAnswer::NoEpoch)) => self.lose("the server has lost its data"),
                Ok(Err(error)) => self.lose(&error),
                Err(_) => self.lose("no answer within 50 ms"),
            }
        }
        self.lease_alone(demands, now)
    }

    /// Applies the policy for a server that cannot be reached.
    fn lease_alone(&self, demands: &[QuotaDemand], now: UnixNanos) -> Vec<QuotaGrant> {
        let gateways = u32::try_from(self.gateways.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        if self.policy == UnreachablePolicy::Refuse || gateways == 0 {
            // A gateway that never reached the server does not know its share.
            let nothing = QuotaGrant { share: Some(0), ..QuotaGrant::default() };
            return vec![nothing; demands.len()];
        }
        let mut outage = self.outage.lock();
        outage.get_or_insert_with(|| OwnShares::new(gateways, now)).lease(demands, now)
    }

    /// Notes that the server did not answer. Calls then no longer wait for it, until it is reached again.
    pub(crate) fn lose(&self, why: impl std::fmt::Display) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        if self.connection.write().take().is_some() {
            tracing::warn!(
                %why,
                policy = ?self.policy,
                "the server of rate limits cannot be reached; it is tried again every second"
            );
            self.lost.notify_one();
        }
    }

    /// The open connection.
    pub(crate) fn connection(&self) -> Option<MultiplexedConnection> {
        self.connection.read().clone()
    }

    /// Ends an outage. Returns what the gateway let pass meanwhile, at most what its share refills in `most`.
    pub(crate) fn end_outage(&self, most: Duration) -> Vec<QuotaReturn> {
        self.outage.lock().take().map(|outage| outage.into_used(most)).unwrap_or_default()
    }

    /// Lets calls use a connection.
    pub(crate) fn set_connection(&self, connection: MultiplexedConnection) {
        *self.connection.write() = Some(connection);
    }

    pub(crate) fn set_gateways(&self, gateways: u32) {
        self.gateways.store(u64::from(gateways), Ordering::Relaxed);
    }
}
