//! What governing a relayed call costs: a plain relay of ours, and the same with key, limits, hold, price, reading of the answer,
//! settlement and trace, before the same upstream, in one run on the same two cores.
//!
//! `cargo bench -p headrace --bench relay`. The server is a process of its own on the second core, with one worker thread and
//! everything that it starts; load and upstream are one spinning thread on the first. Latencies count from the moment a request
//! was due, so that a slow answer delays none of the measurements that follow it.
//!
//! `HEADRACE_BENCH_ONLY` names what is run of it, separated by commas: parts of cells' names, `shadow`, `frontier`, `connections`,
//! and `flat`, a million calls, which is left out unless it is named.
//! `cargo run --release -p xtask -- peers gateways` puts other people's gateways beside ours in the same run.

mod connections;
mod flat;
mod frontier;
#[path = "../common/house.rs"]
mod house;
#[path = "../common/load.rs"]
mod load;
mod mock;
mod peers;
#[path = "../common/process.rs"]
mod process;
mod server;
#[path = "../common/tally.rs"]
mod tally;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use load::{Load, Measured, chat, request};
use mock::Mock;
use process::{Server, bound};

/// Length of each measurement; `HEADRACE_BENCH_SECONDS` sets another.
const SECONDS: u64 = 3;
const CONNECTIONS: usize = 32;
/// Pieces of text of a stream.
const PIECES: usize = 64;
/// Characters of a token, about.
const TOKEN: usize = 4;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some("--server") {
        let mut next = || args.next().unwrap_or_default();
        return server::serve(&next(), &next(), &next());
    }
    if let Some(code) = bound() {
        return code;
    }
    match report() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("relay: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What is sent and what comes back.
struct Cell {
    name: &'static str,
    request: Vec<u8>,
    answer: Vec<u8>,
    /// Events of an answer.
    events: usize,
}

struct Row {
    saturated: Measured,
    half: Measured,
    cpu_us: f64,
}

fn report() -> Result<(), Failure> {
    let seconds =
        std::env::var("HEADRACE_BENCH_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(SECONDS);
    let length = Duration::from_secs(seconds);
    let sized = |name, tokens: usize| Cell {
        name,
        request: request(&chat(tokens * TOKEN, false)),
        answer: mock::whole(),
        events: 1,
    };
    let cells = [
        Cell {
            name: "instant answer",
            request: request(&chat(250, false)),
            answer: mock::whole(),
            events: 1,
        },
        Cell {
            name: "stream of 64",
            request: request(&chat(250, true)),
            answer: mock::stream(PIECES),
            events: PIECES + 3,
        },
        sized("1k tokens in", 1_000),
        sized("10k tokens in", 10_000),
        sized("100k tokens in", 100_000),
    ];
    let peers = peers::named()?;
    println!(
        "| cell | relay | calls/s saturated | of plain | CPU/call | p50 | p99 | added p50 | added p99 | events/s |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|");
    let only = Only::asked();
    for cell in cells.iter().filter(|cell| only.has(cell.name)) {
        // The dearest first: half of what it takes is the rate at which all are compared.
        let sqlite = measure(cell, "sqlite", length, None)?;
        let rate = sqlite.saturated.per_second() / 2.0;
        let memory = measure(cell, "memory", length, Some(rate))?;
        let plain = measure(cell, "plain", length, Some(rate))?;
        for (name, row) in
            [("plain", &plain), ("governed, memory journal", &memory), ("governed, SQLite", &sqlite)]
        {
            tell(cell, name, row, &plain);
        }
        for peer in &peers {
            tell(cell, &peer.name, &peer.measure(cell, length)?, &plain);
        }
    }
    for bytes in [4_000, 40_000, 400_000] {
        println!("A memcpy and a BLAKE3 hash of {bytes} bytes here: {:.1} us", copy_and_hash_us(bytes));
    }
    let [instant, stream, ..] = &cells;
    if only.has("shadow") {
        shadowed(instant, length)?;
    }
    if only.has("frontier") {
        println!("\n| cell | relay | CPU/call | calls/s at p99 <= 1 ms | 5 ms | 10 ms | 50 ms | saturated |");
        println!("|---|---|---:|---:|---:|---:|---:|---:|");
        for cell in [instant, stream] {
            for (kind, name) in
                [("plain", "plain"), ("memory", "governed, memory journal"), ("sqlite", "governed, SQLite")]
            {
                frontier::print(cell, kind, name, Duration::from_secs(1))?;
            }
        }
    }
    if only.is_named("flat") {
        flat::print(instant)?;
    }
    if only.has("connections") { connections::print(instant, stream) } else { Ok(()) }
}

/// What is run.
struct Only(Option<String>);

impl Only {
    fn asked() -> Self {
        Self(std::env::var("HEADRACE_BENCH_ONLY").ok())
    }

    /// Whether it is named, or nothing is.
    fn has(&self, name: &str) -> bool {
        self.0.is_none() || self.is_named(name)
    }

    fn is_named(&self, name: &str) -> bool {
        self.0.as_deref().is_some_and(|only| only.split(',').any(|part| name.contains(part)))
    }
}

/// What a copy of each call adds to the calls, at a rate at which all of them have room: they are twice as many.
fn shadowed(cell: &Cell, length: Duration) -> Result<(), Failure> {
    let rate = measure(cell, "shadow", length, None)?.saturated.per_second() / 4.0;
    let alone = measure(cell, "memory", length, Some(rate))?;
    let copied = measure(cell, "shadow", length, Some(rate))?;
    let [p50, p99] = [50.0, 99.0].map(|at| copied.half.percentile_us(at) - alone.half.percentile_us(at));
    println!(
        "\nA copy of each call at another model, at {rate:.0} calls/s: {p50:+.0} us p50, {p99:+.0} us p99"
    );
    Ok(())
}

fn tell(cell: &Cell, name: &str, row: &Row, plain: &Row) {
    let (rate, base) = (row.saturated.per_second(), plain.saturated.per_second());
    let [p50, p99] = [50.0, 99.0].map(|at| row.half.percentile_us(at));
    let [base50, base99] = [50.0, 99.0].map(|at| plain.half.percentile_us(at));
    println!(
        "| {} | {name} | {rate:.0} | {:.0} % | {:.0} us | {p50:.0} us | {p99:.0} us | {:+.0} us | {:+.0} us | {:.0} |",
        cell.name,
        100.0 * rate / base,
        row.cpu_us,
        p50 - base50,
        p99 - base99,
        rate * cell.events as f64,
    );
}

/// One server under full load, then at `rate` calls a second, or half of what it took if that is less.
fn measure(cell: &Cell, kind: &str, length: Duration, rate: Option<f64>) -> Result<Row, Failure> {
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
    let half = saturated.per_second() / 2.0;
    let half = load.paced(length, rate.map_or(half, |rate| rate.min(half)), &mut beside)?;
    if let Some(line) = server.finish()? {
        eprintln!("  {}, {kind}: {line}", cell.name);
    }
    Ok(Row { saturated, half, cpu_us })
}

/// What a relay that only copied and hashed a body would take for it.
fn copy_and_hash_us(bytes: usize) -> f64 {
    let from = vec![7_u8; bytes];
    let mut times: Vec<f64> = (0..200)
        .map(|_| {
            let begun = Instant::now();
            let copy = from.clone();
            std::hint::black_box(blake3::hash(&copy));
            begun.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}
