//! The load of a server, per model: the server's own report with its age, or else the calls that this process has
//! there. Must not know how servers are chosen.

mod ask;
mod header;
mod json;
mod page;

use headrace_engine_api::{LoadReport, ReportAge};
use http::{HeaderMap, HeaderValue};

pub(crate) use ask::follow;
pub(crate) use header::FORMAT_HEADER;

use crate::load::header::LOAD_HEADER;
use crate::load_gauge::LoadGauge;
use crate::server::UpstreamServer;

/// Returns the load of a model: the server's report, or the calls of this process if there is no report.
pub(crate) fn report(gauge: &LoadGauge, server: &UpstreamServer) -> LoadReport {
    gauge.report().unwrap_or_else(|| seen_here(server))
}

/// Applies the load report in the head of an answer.
pub(crate) fn record_headers(gauge: &LoadGauge, server: &UpstreamServer, headers: &HeaderMap) {
    if headers.contains_key(&LOAD_HEADER) {
        let values: Vec<&[u8]> = headers.get_all(&LOAD_HEADER).iter().map(HeaderValue::as_bytes).collect();
        if let Some(part) = header::read(&values) {
            gauge.record_header(&part, || seen_here(server).running);
        }
    }
}

/// Counts the calls that this process has at the server, and those that wait here for a place. The calls of other
/// clients are unknown, so a server without a report does not count as idle.
fn seen_here(server: &UpstreamServer) -> LoadReport {
    let count = |calls: u64| u32::try_from(calls).unwrap_or(u32::MAX);
    let waiting = server.gate.waiting() as u64;
    let running = server.counters.in_flight().saturating_sub(waiting);
    let reported = ReportAge::Never;
    LoadReport { reported, running: count(running), waiting: count(waiting), ..LoadReport::default() }
}
