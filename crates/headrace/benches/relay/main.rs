//! The cost of governing a relayed call. Compares a plain relay with a governed one before the same upstream, on the
//! same two cores. The governed relay adds key, limits, hold, price, parsing of the answer, settlement and trace.
//!
//! `cargo bench -p headrace --bench relay`. The server is a separate process on the second core, with one worker thread
//! and all its children. Load and upstream are one spinning thread on the first core. Latencies count from the time a
//! request was due, so a slow answer does not delay later measurements.
//!
//! `HEADRACE_BENCH_ONLY` selects parts, separated by commas: parts of cells' names, `shadow`, `frontier`,
//! `connections`, and `flat`. `flat` makes a million calls and runs only if it is named.
//! `cargo run --release -p xtask -- peers gateways` measures other gateways in the same run.

mod connections;
mod flat;
mod frontier;
#[path = "../common/gateway_setup.rs"]
mod gateway_setup;
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

/// Duration of each measurement in seconds. `HEADRACE_BENCH_SECONDS` overrides it.
const SECONDS: u64 = 3;
const CONNECTIONS: usize = 32;
/// Number of text pieces in a stream.
const PIECES: usize = 64;
/// Approximate number of characters per token.
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

/// A request and its answer.
struct Cell {
    name: &'static str,
    request: Vec<u8>,
    answer: Vec<u8>,
    /// Number of events in the answer.
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
        // The most expensive server runs first: half of its maximum is the rate at which all servers are compared.
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

/// The parts of the benchmark to run.
struct Only(Option<String>);

impl Only {
    fn asked() -> Self {
        Self(std::env::var("HEADRACE_BENCH_ONLY").ok())
    }

    /// Whether a part is named, or none is.
    fn has(&self, name: &str) -> bool {
        self.0.is_none() || self.is_named(name)
    }

    fn is_named(&self, name: &str) -> bool {
        self.0.as_deref().is_some_and(|only| only.split(',').any(|part| name.contains(part)))
    }
}

/// Measures what a copy of each call adds. The rate leaves room for twice the calls.
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

/// Measures one server under full load, then at `rate` calls per second, or at half its maximum if that is less.
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

/// The time in microseconds for only copying and hashing a body, as a minimal relay would.
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
