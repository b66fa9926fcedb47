//! How busy a server is: what it says of itself, model by model and with the age of that, and otherwise what we have under way
//! there. Knows no choice between servers.

mod ask;
pub(crate) mod gauge;
mod header;
mod json;
mod page;
mod reading;

use headrace_engine_api::{LoadReport, Reported};
use http::{HeaderMap, HeaderValue};

pub(crate) use ask::follow;
pub(crate) use header::FORMAT_HEADER;

use crate::load::gauge::Gauge;
use crate::load::header::LOAD_HEADER;
use crate::server::Server;

/// How busy a model is: what its server said, or where it said nothing what is under way there from here.
pub(crate) fn report(gauge: &Gauge, server: &Server) -> LoadReport {
    gauge.report().unwrap_or_else(|| seen_here(server))
}

/// Takes in what the head of an answer says.
pub(crate) fn told(gauge: &Gauge, server: &Server, headers: &HeaderMap) {
    if headers.contains_key(&LOAD_HEADER) {
        let values: Vec<&[u8]> = headers.get_all(&LOAD_HEADER).iter().map(HeaderValue::as_bytes).collect();
        if let Some(part) = header::read(&values) {
            gauge.tell_of_header(&part, || seen_here(server).running);
        }
    }
}

/// The calls that this process has there, and those that wait here for a place. What others have there is not known, and a
/// server that has not said anything is not idle.
fn seen_here(server: &Server) -> LoadReport {
    let count = |calls: u64| u32::try_from(calls).unwrap_or(u32::MAX);
    let waiting = server.gate.waiting() as u64;
    let running = server.counters.in_flight().saturating_sub(waiting);
    let reported = Reported::Never;
    LoadReport { reported, running: count(running), waiting: count(waiting), ..LoadReport::default() }
}
