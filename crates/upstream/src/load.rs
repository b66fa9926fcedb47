//! How busy a server is, as far as that is known: what we have under way there ourselves. Knows no choice between servers.

use headrace_engine_api::{LoadReport, Reported};

use crate::server::Server;

/// The calls that this process has there, and those that wait here for a place. What others have there is not known, and a
/// server that has not said anything is not idle.
pub(crate) fn seen_here(server: &Server) -> LoadReport {
    let count = |calls: u64| u32::try_from(calls).unwrap_or(u32::MAX);
    let waiting = server.gate.waiting() as u64;
    let running = server.counters.in_flight().saturating_sub(waiting);
    let reported = Reported::Never;
    LoadReport { reported, running: count(running), waiting: count(waiting), ..LoadReport::default() }
}
