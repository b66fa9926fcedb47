//! Checks that memory stays flat over a million calls: resident memory of the governed server, read every hundred
//! thousand calls.

use std::time::Duration;

use crate::load::Load;
use crate::mock::Mock;
use crate::process::Server;
use crate::{Cell, Failure};

/// Number of calls. `HEADRACE_BENCH_CALLS` overrides it, for a quick check.
const CALLS: u64 = 1_000_000;
const CONNECTIONS: usize = 32;
/// Number of calls after which queues, rings and caches are full: the newest traces, and the holds that the ledger
/// remembers.
const SETTLED: u64 = 200_000;

/// Prints the memory over time, and the growth per call once all bounded structures are full.
pub(crate) fn print(cell: &Cell) -> Result<(), Failure> {
    let dir = tempfile::tempdir()?;
    let mut mock = Mock::new(cell.answer.clone())?;
    let url = format!("http://127.0.0.1:{}", mock.port()?);
    let server = Server::start("memory", &dir.path().to_string_lossy(), &url)?;
    let load = Load { port: server.port, connections: CONNECTIONS, request: cell.request.clone() };
    let mut beside = || mock.turn();
    let all =
        std::env::var("HEADRACE_BENCH_CALLS").ok().and_then(|calls| calls.parse().ok()).unwrap_or(CALLS);
    let (mut calls, mut settled) = (0, None);
    println!("\nResident memory over {all} calls:");
    while calls < all {
        let from = calls;
        while calls - from < all / 10 {
            calls += load.closed(Duration::from_millis(250), &mut beside)?.answers;
        }
        let resident = server.resident_bytes()?;
        println!("  {calls:>9} calls: {:.1} MiB", resident as f64 / f64::from(1 << 20));
        if settled.is_none() && calls >= SETTLED.min(all / 5) {
            settled = Some((calls, resident));
        }
    }
    if let Some((at, then)) = settled {
        let grown = server.resident_bytes()? as f64 - then as f64;
        println!("  from {at} calls on: {:+.2} bytes a call", grown / (calls - at) as f64);
    }
    Ok(())
}
