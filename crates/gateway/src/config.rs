//! The parts and the bounds of a gateway. Reads no file and no environment.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use headrace_call_state::MemoryBounds;
use headrace_domain::{ClientAddressPolicy, Clock, RecordPolicy, Region, RequestId, TraceRecord, TraceSink};
use headrace_identity::Directory;
use headrace_jwt::{CertificateUsers, TokenAuthenticator};
use headrace_ledger::{LedgerClient, Owner};
use headrace_limits::Limits;
use headrace_objects::{AnswerStore, BatchStore, ObjectStore};
use headrace_wire::WireLimits;
use serde_json::Value;

/// The services that a gateway uses for as long as it lives. Everything that may change meanwhile is in its catalogue.
pub struct GatewayParts {
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Organisations, projects and keys.
    pub directory: Arc<Directory>,
    /// Verifies JWTs of identity providers. `None` if none is configured.
    pub tokens: Option<Arc<TokenAuthenticator>>,
    /// The clients that authenticate with a certificate. `None` if there are none.
    pub certificates: Option<Arc<CertificateUsers>>,
    /// Rate and concurrency limits.
    pub limits: Limits,
    /// The ledger.
    pub ledger: Arc<dyn LedgerClient>,
    /// Takes finished trace records.
    pub traces: Arc<dyn TraceSink>,
    /// Finds trace records again.
    pub records: Arc<dyn TraceLookup>,
    /// Stores clients' responses and conversations.
    pub objects: Arc<dyn ObjectStore>,
    /// Stores clients' files and batches. `None` if they are not supported.
    pub files: Option<Arc<dyn BatchStore>>,
    /// Stores answers that repeated requests get again.
    pub answers: Arc<dyn AnswerStore>,
    /// Separates the prefix caches of tenants. Never leaves the server.
    pub cache_secret: [u8; 32],
    /// The ledger owner id of this process. New at each start.
    pub owner: Owner,
}

/// A future of one record from the store.
pub type Stored<'a> = Pin<Box<dyn Future<Output = Option<Arc<TraceRecord>>> + Send + 'a>>;

/// A future of the records of one trace id from the store.
pub type StoredTrace<'a> = Pin<Box<dyn Future<Output = Vec<Arc<TraceRecord>>> + Send + 'a>>;

/// A future of a receipt, as JSON. `None` if the request was not settled.
pub type MadeReceipt<'a> =
    Pin<Box<dyn Future<Output = Result<Option<Vec<u8>>, ReceiptUnavailable>> + Send + 'a>>;

/// The ledger or the keys that sign receipts cannot be read now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiptUnavailable;

/// Finds the trace of a request for its owner.
pub trait TraceLookup: Send + Sync {
    /// The record, if it is still in memory.
    fn recent(&self, id: RequestId) -> Option<Arc<TraceRecord>>;
    /// The record, if the store has it. Reads a bounded amount at once, off the event loop.
    fn stored(&self, id: RequestId) -> Stored<'_>;
    /// The records in memory of calls that were sent with this W3C trace id (32 lower-case hexadecimal digits),
    /// newest first.
    fn recent_of_trace(&self, trace_id: &str) -> Vec<Arc<TraceRecord>> {
        let _ = trace_id;
        Vec::new()
    }
    /// The newest such records in the store, newest first. Bounded like [`TraceLookup::stored`].
    fn stored_of_trace(&self, trace_id: String) -> StoredTrace<'_> {
        let _ = trace_id;
        Box::pin(std::future::ready(Vec::new()))
    }
    /// The record as JSON, as `GET /v1/requests/ID` returns it.
    fn json(&self, record: &TraceRecord) -> Vec<u8>;
    /// The signed receipt of a request, off the event loop.
    fn receipt(&self, record: Arc<TraceRecord>) -> MadeReceipt<'_> {
        let _ = record;
        Box::pin(std::future::ready(Ok(None)))
    }
    /// The answer's `headrace` block: the record as far as it is known before the end of the answer.
    fn block(&self, record: &TraceRecord) -> Value;
    /// The `traceparent` header for the server that is asked next. Its parent span is the record's last attempt.
    /// `None` if no header is sent.
    fn traceparent(&self, record: &TraceRecord) -> Option<String> {
        let _ = record;
        None
    }
}

/// Minimum number of checks in a hold's lifetime. A check extends the hold once a quarter of its lifetime has passed.
/// After a step of the wall clock, wall time may run at up to ten times its pace. Even then, several checks come
/// before the hold expires.
const KEEP_LOOKS: u32 = 160;
/// Upper bound of the part of a hold's lifetime that is reserved for its settlement.
const SETTLE_WITHIN: Duration = Duration::from_secs(60);

/// The server's region, and the gateway's bounds, each with its unit.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// The region in which this server runs and keeps data about calls. `None` if it is not configured.
    pub region: Option<Region>,
    /// Answer length in tokens if the caller sets none.
    pub default_max_tokens: u32,
    /// Lifetime of a hold that is not settled. Calls end before that: see [`GatewayConfig::longest_call`].
    pub hold_lifetime: Duration,
    /// How long a reader may take nothing while data waits for it.
    pub stall_timeout: Duration,
    /// Bytes that may wait for a reader before the gateway stops reading the engine's events. The same number may
    /// then wait at the engine before it suspends the call.
    pub delivery_buffer_bytes: usize,
    /// How long a stream's status line waits for its first event.
    pub first_event_wait: Duration,
    /// How often a silent stream gets a keep-alive.
    pub keep_alive: Duration,
    /// Bodies longer than this many bytes are parsed and rendered off the event loop. A body that is forwarded
    /// unchanged is only skimmed, in a sixteenth of the time, so it may be sixteen times as long.
    pub render_inline_bytes: usize,
    /// Bytes of bodies that are parsed and rendered concurrently off the event loop. One key may use half of them.
    pub render_bytes_at_once: usize,
    /// Memory that calls may take.
    pub memory: MemoryBounds,
    /// How long objects stored by clients are kept.
    pub object_retention: Duration,
    /// How answers are kept for repeated requests.
    pub idempotency: IdempotencyConfig,
    /// Whether the bytes of answers are hashed as they are sent, for receipts.
    pub hash_answers: bool,
    /// What is recorded of the calls of projects that set no policy.
    pub records: RecordPolicy,
    /// What traces record of clients' addresses.
    pub client_address: ClientAddressPolicy,
    /// Bounds on what a request may contain.
    pub wire: WireLimits,
}

/// How answers to requests with an idempotency key are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdempotencyConfig {
    /// How long an answer is kept. Zero keeps none. The ledger remembers the key for 24 hours in every case.
    pub keep: Duration,
    /// The most bytes of an answer that is kept.
    pub max_answer_bytes: usize,
}

impl Default for IdempotencyConfig {
    fn default() -> Self {
        Self { keep: Duration::from_secs(24 * 3600), max_answer_bytes: 8 << 20 }
    }
}

impl Default for GatewayConfig {
    /// The default bounds.
    fn default() -> Self {
        Self {
            region: None,
            default_max_tokens: 1024,
            hold_lifetime: Duration::from_secs(3600),
            stall_timeout: Duration::from_secs(30),
            delivery_buffer_bytes: 256 * 1024,
            first_event_wait: Duration::from_secs(10),
            keep_alive: Duration::from_secs(15),
            render_inline_bytes: 32 * 1024,
            render_bytes_at_once: 16 << 20,
            memory: MemoryBounds::default(),
            object_retention: Duration::from_secs(30 * 24 * 3600),
            idempotency: IdempotencyConfig::default(),
            hash_answers: false,
            records: RecordPolicy::default(),
            client_address: ClientAddressPolicy::default(),
            wire: WireLimits::default(),
        }
    }
}

impl GatewayConfig {
    /// The bounds with which no call could be served: the name of each, and what is wrong with it.
    pub fn faults(&self) -> Vec<(&'static str, &'static str)> {
        let none = [
            ("default_max_tokens", self.default_max_tokens == 0),
            ("hold_lifetime", self.hold_lifetime.is_zero()),
            ("stall_timeout", self.stall_timeout.is_zero()),
            ("delivery_buffer", self.delivery_buffer_bytes == 0),
            ("keep_alive", self.keep_alive.is_zero()),
            ("max_render_bytes_at_once", self.render_bytes_at_once == 0),
            ("max_call_memory", self.memory.call == 0),
            ("max_key_memory", self.memory.key == 0),
            ("max_memory", self.memory.all == 0),
        ];
        let none = none.into_iter().filter(|(_, zero)| *zero);
        none.map(|(name, _)| (name, "is 0: no call could be served with it")).collect()
    }

    /// How often a call's task checks its deadlines and whether to extend its hold.
    pub(crate) fn period(&self) -> Duration {
        (self.stall_timeout / 4)
            .min(self.hold_lifetime / KEEP_LOOKS)
            .clamp(Duration::from_millis(5), Duration::from_secs(1))
    }

    /// The longest time that a call may take: the lifetime of its hold, less the time to settle it. Work without a
    /// hold would be unpaid, because the money may be held for another call by then.
    pub(crate) fn longest_call(&self) -> Duration {
        self.hold_lifetime.saturating_sub(SETTLE_WITHIN.min(self.hold_lifetime / 10))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_of_nothing_is_named() {
        assert_eq!(GatewayConfig::default().faults(), []);
        let config = GatewayConfig { stall_timeout: Duration::ZERO, ..GatewayConfig::default() };
        assert!(matches!(config.faults()[..], [("stall_timeout", _)]));
    }

    #[test]
    fn a_call_ends_while_there_is_time_to_settle_its_hold() {
        for (hold_s, call_s) in [(3600, 3540), (600, 540), (100, 90), (10, 9), (0, 0)] {
            let hold_lifetime = Duration::from_secs(hold_s);
            let config = GatewayConfig { hold_lifetime, ..GatewayConfig::default() };
            assert_eq!(config.longest_call(), Duration::from_secs(call_s), "a hold of {hold_s} s");
        }
    }
}
