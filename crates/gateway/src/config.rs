//! What a gateway is made of and the bounds it keeps. Reads no file and no environment.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{Clock, Region, RequestId, TraceRecord, TraceSink};
use headrace_identity::Directory;
use headrace_ledger::{Books, Owner};
use headrace_limits::Limits;
use headrace_objects::{BatchStore, ObjectStore};
use headrace_wire::WireLimits;
use serde_json::Value;

use crate::memory::MemoryBounds;

/// The rooms that a gateway decides with, for as long as it lives. What may change meanwhile is in its catalogue.
pub struct GatewayParts {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Who calls.
    pub directory: Arc<Directory>,
    /// How often and how much at once.
    pub limits: Limits,
    /// Money.
    pub books: Arc<dyn Books>,
    /// Takes finished trace records.
    pub traces: Arc<dyn TraceSink>,
    /// Finds them again.
    pub records: Arc<dyn Records>,
    /// Keeps what clients store.
    pub objects: Arc<dyn ObjectStore>,
    /// Keeps their files and batches; `None`: there are none.
    pub files: Option<Arc<dyn BatchStore>>,
    /// Separates the prefix caches of tenants. Never leaves the server.
    pub cache_secret: [u8; 32],
    /// This process, new at each start.
    pub owner: Owner,
}

/// A record on its way from the store.
pub type Stored<'a> = Pin<Box<dyn Future<Output = Option<Arc<TraceRecord>>> + Send + 'a>>;

/// Records of one trace id on their way from the store.
pub type StoredTrace<'a> = Pin<Box<dyn Future<Output = Vec<Arc<TraceRecord>>> + Send + 'a>>;

/// Finds the trace of a request for its owner.
pub trait Records: Send + Sync {
    /// The record, if it is still in memory.
    fn recent(&self, id: RequestId) -> Option<Arc<TraceRecord>>;
    /// The record, if the store has it. Bounded in what it reads at once, and off the event loop.
    fn stored(&self, id: RequestId) -> Stored<'_>;
    /// The records in memory of calls whose callers sent this W3C trace id (32 hexadecimal digits in lower case), newest first.
    fn recent_of_trace(&self, trace_id: &str) -> Vec<Arc<TraceRecord>> {
        let _ = trace_id;
        Vec::new()
    }
    /// The newest such records in the store, newest first. Bounded as [`Records::stored`] is.
    fn stored_of_trace(&self, trace_id: String) -> StoredTrace<'_> {
        let _ = trace_id;
        Box::pin(std::future::ready(Vec::new()))
    }
    /// Its JSON, as `GET /v1/requests/ID` answers it.
    fn json(&self, record: &TraceRecord) -> Vec<u8>;
    /// The same as far as it is known before the last word of the answer: the answer's `headrace` block.
    fn block(&self, record: &TraceRecord) -> Value;
    /// What whoever is asked next is told of the trace that it works in: `traceparent`, below the last of the record's attempts. `None`:
    /// nothing.
    fn traceparent(&self, record: &TraceRecord) -> Option<String> {
        let _ = record;
        None
    }
}

/// How often in a hold's lifetime its call looks at least whether it is to be kept. It is kept when a quarter of it has passed: also
/// where the wall clock catches up with a step, which it does at ten times its pace at most, several looks come before that.
const KEEP_LOOKS: u32 = 160;
/// The most that is kept back of a hold's life to settle it in.
const SETTLE_WITHIN: Duration = Duration::from_secs(60);

/// Where it is, and bounds, each with its unit.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// Where this server is, and what it keeps of calls; `None`: nobody has said.
    pub region: Option<Region>,
    /// Length of an answer whose caller names none, in tokens.
    pub default_max_tokens: u32,
    /// How long a hold lives if nobody settles it. Calls end before it does: [`GatewayConfig::longest_call`].
    pub hold_lifetime: Duration,
    /// How long a reader may take nothing while something waits for it.
    pub stall_timeout: Duration,
    /// Bytes that wait for a reader before the gateway stops asking the engine's queue for more. So many may then wait there,
    /// before the engine lets the call stand still.
    pub delivery_buffer_bytes: usize,
    /// How long a stream's status line waits for its first event.
    pub first_event_wait: Duration,
    /// How often a silent stream gets a sign of life.
    pub keep_alive: Duration,
    /// Prompts longer than this many bytes are rendered off the event loop. What goes on as it came is only looked through, and that
    /// takes a sixteenth of the time.
    pub render_inline_bytes: usize,
    /// Bytes of bodies that are read and rendered at once off the event loop; half of them for one key.
    pub render_bytes_at_once: usize,
    /// Memory that calls may take.
    pub memory: MemoryBounds,
    /// How long what clients store is kept.
    pub object_retention: Duration,
    /// What a request may say.
    pub wire: WireLimits,
}

impl Default for GatewayConfig {
    /// The usual bounds.
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
            wire: WireLimits::default(),
        }
    }
}

impl GatewayConfig {
    /// What no gateway could serve with: each bound by name, and what is wrong with it.
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

    /// How often a call's task looks at its clocks, and whether its hold is to be kept.
    pub(crate) fn period(&self) -> Duration {
        (self.stall_timeout / 4)
            .min(self.hold_lifetime / KEEP_LOOKS)
            .clamp(Duration::from_millis(5), Duration::from_secs(1))
    }

    /// How long a call may take: as long as its hold lives, less the time to settle it. Work without a hold would be work that
    /// nobody pays for, out of money that others may hold by then.
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
