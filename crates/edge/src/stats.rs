//! What the edge counts of itself, in Prometheus's text form. Knows no tenant and no request.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one edge. Relaxed: nothing is decided by them.
#[derive(Debug, Default)]
pub(crate) struct Stats {
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

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Reads one.
pub(crate) fn value(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Stats {
    /// Prometheus text, version 0.0.4.
    pub(crate) fn text(&self) -> String {
        let mut out = String::with_capacity(1_024);
        let open = value(&self.connections_accepted).saturating_sub(value(&self.connections_closed));
        let _ = writeln!(
            out,
            "# HELP headrace_edge_connections_open Connections open now.\n\
             # TYPE headrace_edge_connections_open gauge\nheadrace_edge_connections_open {open}"
        );
        for (name, help, counter) in [
            ("connections_accepted", "Connections taken.", &self.connections_accepted),
            ("connections_refused", "Connections over the limit.", &self.connections_refused),
            ("accept_errors", "Connections that the kernel could not hand over.", &self.accept_errors),
            ("tls_failures", "TLS handshakes that failed or took too long.", &self.tls_failures),
            ("header_timeouts", "Connections closed for slow headers.", &self.header_timeouts),
            ("body_timeouts", "Requests refused for a slow body.", &self.body_timeouts),
            ("write_timeouts", "Connections closed for not reading.", &self.write_timeouts),
            (
                "refusals_cut_short",
                "Refusals beyond a peer's allowance, which have no trace.",
                &self.refusals_cut_short,
            ),
            ("requests", "Requests whose headers were whole.", &self.requests),
        ] {
            let _ = writeln!(
                out,
                "# HELP headrace_edge_{name}_total {help}\n# TYPE headrace_edge_{name}_total counter\n\
                 headrace_edge_{name}_total {}",
                value(counter)
            );
        }
        out
    }
}
