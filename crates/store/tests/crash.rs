//! The ledger on SQLite through `kill -9`, power cuts and a full disk. A child process works and is killed, and every
//! acknowledged change must be there, once. `HEADRACE_CRASHES=200` kills it 200 times. `HEADRACE_CUTS=all` cuts the
//! power at every write boundary of the script.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

#[path = "crash/child.rs"]
mod child;
#[path = "crash/full.rs"]
mod full;
#[path = "crash/kill.rs"]
mod kill;
#[path = "crash/ledger_file.rs"]
mod ledger_file;
#[path = "crash/power.rs"]
mod power;
