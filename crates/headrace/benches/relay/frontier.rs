//! The latency frontier: the calls per second that a server takes while 99 of a hundred are answered within a bound.
//! Latency counts from the time each call was due. Must not know what a server does.

use std::time::Duration;

use crate::load::Load;
use crate::mock::Mock;
use crate::process::Server;
use crate::{Cell, Failure};

/// Bounds on the 99th percentile, in microseconds.
const BOUNDS_US: [f64; 4] = [1_000.0, 5_000.0, 10_000.0, 50_000.0];
/// Tested rates as parts of the server's maximum, highest first.
const PARTS: [f64; 8] = [0.98, 0.95, 0.9, 0.8, 0.7, 0.5, 0.3, 0.1];
/// Number of connections. Exceeds what saturates the server, so that a burst finds a free connection.
const CONNECTIONS: usize = 128;

/// Prints a row: for each bound, the highest tested rate that kept it.
pub(crate) fn print(cell: &Cell, kind: &str, name: &str, length: Duration) -> Result<(), Failure> {
    let dir = tempfile::tempdir()?;
    let mut mock = Mock::new(cell.answer.clone())?;
    let url = format!("http://127.0.0.1:{}", mock.port()?);
    let server = Server::start(kind, &dir.path().to_string_lossy(), &url)?;
    let load = Load { port: server.port, connections: CONNECTIONS, request: cell.request.clone() };
    let mut beside = || mock.turn();
    load.closed(Duration::from_secs(1), &mut beside)?;
    let cpu = server.cpu_seconds()?;
    let saturated = load.closed(length, &mut beside)?;
    let cpu_us = (server.cpu_seconds()? - cpu) * 1e6 / saturated.answers as f64;
    let mut held = [None; BOUNDS_US.len()];
    for part in PARTS {
        let rate = saturated.per_second() * part;
        let p99 = load.paced(length, rate, &mut beside)?.percentile_us(99.0);
        for (slot, bound) in held.iter_mut().zip(BOUNDS_US) {
            if slot.is_none() && p99 <= bound {
                *slot = Some(rate);
            }
        }
        if held.iter().all(Option::is_some) {
            break;
        }
    }
    let rates = held.map(|rate| rate.map_or_else(|| "none".to_owned(), |rate: f64| format!("{rate:.0}")));
    println!(
        "| {} | {name} | {cpu_us:.0} us | {} | {:.0} |",
        cell.name,
        rates.join(" | "),
        saturated.per_second()
    );
    Ok(())
}
