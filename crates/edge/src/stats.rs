//! The edge's own counters. Must not know tenants or requests.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one edge. Relaxed atomics suffice, because no decision depends on them.
#[derive(Debug, Default)]
pub(crate) struct EdgeStats {
    pub(crate) connections_accepted: AtomicU64,
    pub(crate) connections_refused: AtomicU64,
    pub(crate) connections_closed: AtomicU64,
    pub(crate) accept_errors: AtomicU64,
    pub(crate) tls_failures: AtomicU64,
    pub(crate) header_timeouts: AtomicU64,
    pub(crate) body_timeouts: AtomicU64,
    pub(crate) write_timeouts: AtomicU64,
    pub(crate) refusals_cut_short: AtomicU64,
    pub(crate) requests: AtomicU64,
}

/// Increments a counter.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Returns the value of a counter.
pub(crate) fn value(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// One metric of the edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EdgeNumber {
    /// The Prometheus name.
    pub name: &'static str,
    /// The description, one sentence.
    pub help: &'static str,
    /// Whether the value only grows. Otherwise it is a gauge.
    pub grows: bool,
    /// The current value.
    pub value: u64,
}

impl EdgeStats {
    /// Returns the current metrics.
    pub(crate) fn numbers(&self) -> [EdgeNumber; 10] {
        let open = value(&self.connections_accepted).saturating_sub(value(&self.connections_closed));
        let grows =
            |name, help, counter: &AtomicU64| EdgeNumber { name, help, grows: true, value: value(counter) };
        [
            EdgeNumber {
                name: "headrace_edge_connections_open",
                help: "Connections open now.",
                grows: false,
                value: open,
            },
            grows(
                "headrace_edge_connections_accepted_total",
                "Connections taken.",
                &self.connections_accepted,
            ),
            grows(
                "headrace_edge_connections_refused_total",
                "Connections over the limit.",
                &self.connections_refused,
            ),
            grows(
                "headrace_edge_accept_errors_total",
                "Connections that the kernel could not hand over.",
                &self.accept_errors,
            ),
            grows(
                "headrace_edge_tls_failures_total",
                "TLS handshakes that failed or took too long.",
                &self.tls_failures,
            ),
            grows(
                "headrace_edge_header_timeouts_total",
                "Connections closed for slow headers.",
                &self.header_timeouts,
            ),
            grows(
                "headrace_edge_body_timeouts_total",
                "Requests refused for a slow body.",
                &self.body_timeouts,
            ),
            grows(
                "headrace_edge_write_timeouts_total",
                "Connections closed for not reading.",
                &self.write_timeouts,
            ),
            grows(
                "headrace_edge_refusals_cut_short_total",
                "Refusals beyond a peer's allowance, which have no trace.",
                &self.refusals_cut_short,
            ),
            grows("headrace_edge_requests_total", "Requests whose headers were whole.", &self.requests),
        ]
    }
}
