//! Settings of what is recorded of calls: the policy of projects that set none, bounds on requests and answers, and
//! addresses of clients. Must not know what a request contains.

use super::field::{SettingField, field};
use super::kinds::{DAY, KIB, MIB, TIB, bytes, seconds};
use super::value::SettingKind;

/// The settings.
pub(super) const FIELDS: &[SettingField] = &[
    field(
        "records.level",
        SettingKind::Choice(&["nothing", "metadata", "redacted", "full"]),
        "\"metadata\"",
        "What is recorded of the calls of projects that set nothing else (`headrace projects records`). `nothing`: times, counts and charges. `metadata`: also the labels that callers send. `redacted`: also requests and answers, with personal data replaced. `full`: also requests and answers as they were sent. See [privacy](privacy.md).",
    ),
    field(
        "records.keep",
        seconds(1, 3650 * DAY),
        "\"30d\"",
        "How long requests and answers are kept, if the project sets no time of its own.",
    ),
    field(
        "records.max_call",
        bytes(KIB, 64 * MIB),
        "\"1MiB\"",
        "Maximum size of a recorded request, and of a recorded answer. The end of a longer one is not recorded.",
    ),
    field(
        "records.max_size",
        bytes(MIB, 1024 * TIB),
        "\"4GiB\"",
        "Maximum size of all recorded requests and answers together. The oldest ones are removed first.",
    ),
    field(
        "traces.client_address",
        SettingKind::Choice(&["none", "network", "full"]),
        "\"network\"",
        "What traces record of clients' addresses: nothing, the network (24 bits of an IPv4 address, 48 bits of an IPv6 address), or the whole address. Calls of projects with `records.level = \"nothing\"` have none.",
    ),
];

/// Bounds on recorded requests and answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentBounds {
    /// Maximum bytes of a request, and of an answer.
    pub max_call_bytes: usize,
    /// Maximum bytes of all of them together.
    pub max_total_bytes: u64,
}
