//! The published reference: the time that each part of an LLM API call is said to take. Must not know a call.

use serde::Serialize;

use crate::cut::Cut;
use crate::term::TermName;

/// A row of the reference table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) name: &'static str,
    pub(crate) low_us: u64,
    pub(crate) high_us: u64,
}

/// A part of the call, compared with its row of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReferenceRow {
    /// The part's name in the table.
    pub name: &'static str,
    /// Its time in this call, in microseconds.
    pub us: f64,
    /// The published range, in microseconds, from and to.
    pub reference_us: [u64; 2],
    /// `below`, `within` or `above` that range.
    pub verdict: &'static str,
}

const GATEWAY: Reference = Reference { name: "gateway", low_us: 0, high_us: 5_000 };
const BALANCER: Reference = Reference { name: "load balancer", low_us: 0, high_us: 2_000 };
const TOKENIZING: Reference = Reference { name: "tokenizing", low_us: 0, high_us: 3_000 };
const ROUTING: Reference = Reference { name: "model routing", low_us: 0, high_us: 1_000 };
const INFERENCE: Reference = Reference { name: "inference", low_us: 300_000, high_us: 800_000 };
const POSTPROCESSING: Reference = Reference { name: "post-processing", low_us: 0, high_us: 5_000 };
const BILLING: Reference = Reference { name: "billing", low_us: 0, high_us: 1_000 };
const ALL: [Reference; 7] = [GATEWAY, BALANCER, TOKENIZING, ROUTING, INFERENCE, POSTPROCESSING, BILLING];

/// The row of a term. `None` for the client's own time.
pub(crate) const fn reference_of(term: TermName) -> Option<Reference> {
    match term {
        TermName::Connect
        | TermName::Authenticate
        | TermName::Parse
        | TermName::Authorize
        | TermName::Moderate
        | TermName::Form
        | TermName::Cache
        | TermName::Handover
        | TermName::Unaccounted => Some(GATEWAY),
        TermName::Place => Some(BALANCER),
        TermName::Render => Some(TOKENIZING),
        TermName::Route => Some(ROUTING),
        TermName::Retries
        | TermName::Upstream
        | TermName::QueueOwn
        | TermName::QueueOwnPrompts
        | TermName::QueueOthers
        | TermName::QueueOthersPrompts
        | TermName::Queue
        | TermName::Prefill
        | TermName::Decode
        | TermName::DecodeBehindPrompts => Some(INFERENCE),
        TermName::Postprocess | TermName::Deliver => Some(POSTPROCESSING),
        TermName::Hold | TermName::Settle => Some(BILLING),
        TermName::Receive | TermName::Reader => None,
    }
}

/// The whole table, with the call's time for each row.
pub(crate) fn beside_reference(cut: &Cut) -> Vec<ReferenceRow> {
    let row = |reference: Reference| {
        let own = cut.iter().filter(|(term, _)| reference_of(**term) == Some(reference));
        let us = own.map(|(_, nanos)| *nanos).fold(0, u64::saturating_add) as f64 / 1e3;
        let verdict = match us {
            us if us > reference.high_us as f64 => "above",
            us if us < reference.low_us as f64 => "below",
            _ => "within",
        };
        ReferenceRow {
            name: reference.name,
            us,
            reference_us: [reference.low_us, reference.high_us],
            verdict,
        }
    };
    ALL.into_iter().map(row).collect()
}
