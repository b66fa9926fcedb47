//! The cost of the governed path: key, limits, hold, schema, render, tokenize, place, stream, settle and trace around
//! an engine that answers at once. A bare hello-world on the same HTTP stack runs beside it. A second hello-world keeps
//! the processor busy for as long as the governed path. It shows how much of the waiting is due to the machine: on a
//! core that stutters, it waits too in some runs.
//!
//! `cargo bench -p headrace --bench overhead`. The server is a separate process with one worker thread, bound to the
//! second core with all its threads. The load is one spinning thread bound to the first core. Latencies count from the
//! time a request was due, so a slow answer does not delay later measurements.

#[path = "../common/gateway_setup.rs"]
mod gateway_setup;
#[path = "../common/load.rs"]
mod load;
#[path = "../common/process.rs"]
mod process;
mod server;
#[path = "../common/tally.rs"]
mod tally;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use load::{Load, Measured, alone, chat, request};
use process::{Server, bound};

/// Duration of each measurement in seconds. `HEADRACE_BENCH_SECONDS` overrides it.
const SECONDS: u64 = 5;
const CONNECTIONS: usize = 32;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some("--server") {
        return server::serve(&args.next().unwrap_or_default(), &args.next().unwrap_or_default());
    }
    if let Some(code) = bound() {
        return code;
    }
    match report() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("overhead: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Row {
    name: &'static str,
    saturated: Measured,
    half: Measured,
    cpu_us: f64,
}

fn report() -> Result<(), Box<dyn std::error::Error>> {
    let seconds =
        std::env::var("HEADRACE_BENCH_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(SECONDS);
    let length = Duration::from_secs(seconds);
    println!("fdatasync of 4 KiB on this disk: p50 {:.0} us", fsync_us()?);
    // The governed path runs first: half of its saturation is the rate at which all servers are compared.
    let memory = measure("memory journal", "memory", length, None)?;
    let rate = memory.saturated.per_second() / 2.0;
    let sqlite = measure("SQLite journal, FULL", "sqlite", length, Some(rate))?;
    let hello = measure("hello-world", "hello-0", length, Some(rate))?;
    let busy = format!("hello-{:.0}", (memory.cpu_us - hello.cpu_us).max(0.0));
    let control = measure("hello-world, as busy", &busy, length, Some(rate))?;
    println!(
        "\n| path | requests/s saturated | CPU/request | p50 | p99 | added CPU | added p50 | added p99 |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    let base = (hello.cpu_us, hello.half.percentile_us(50.0), hello.half.percentile_us(99.0));
    for row in [&hello, &control, &memory, &sqlite] {
        let (p50, p99) = (row.half.percentile_us(50.0), row.half.percentile_us(99.0));
        println!(
            "| {} | {:.0} | {:.0} us | {p50:.0} us | {p99:.0} us | {:+.0} us | {:+.0} us | {:+.0} us |",
            row.name,
            row.saturated.per_second(),
            row.cpu_us,
            row.cpu_us - base.0,
            p50 - base.1,
            p99 - base.2,
        );
    }
    println!("\nGoal with the journal in memory: +150 us p50, +1000 us p99 at half of saturation.");
    Ok(())
}

/// Measures one server under full load, then at `rate` calls per second, or at half its maximum if that is less.
fn measure(
    name: &'static str,
    kind: &str,
    length: Duration,
    rate: Option<f64>,
) -> Result<Row, Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let server = Server::start(kind, &dir.path().to_string_lossy(), "")?;
    let load = Load { port: server.port, connections: CONNECTIONS, request: request(&chat(250, true)) };
    load.closed(Duration::from_secs(1), &mut alone)?;
    let cpu = server.cpu_seconds()?;
    let saturated = load.closed(length, &mut alone)?;
    let cpu_us = (server.cpu_seconds()? - cpu) * 1e6 / saturated.answers as f64;
    let half = saturated.per_second() / 2.0;
    let paced = rate.map_or(half, |rate| rate.min(half));
    let half = load.paced(length, paced, &mut alone)?;
    println!("{name}: measured at {paced:.0}/s");
    if let Some(line) = server.finish()? {
        println!("  a call, both loads: {line}");
    }
    Ok(Row { name, saturated, half, cpu_us })
}

/// The median time in microseconds to write and sync 4 KiB on the journal's disk.
fn fsync_us() -> std::io::Result<f64> {
    use std::io::Write;
    let mut file = tempfile::tempfile()?;
    let mut times: Vec<f64> = Vec::new();
    for _ in 0..200 {
        file.write_all(&[1; 4096])?;
        let from = Instant::now();
        file.sync_data()?;
        times.push(from.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times.get(times.len() / 2).copied().unwrap_or(0.0))
}
