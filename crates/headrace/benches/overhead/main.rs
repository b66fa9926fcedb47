//! What the governed path costs: key, limits, hold, schema, render, tokenize, place, stream, settle and trace around an
//! engine that answers at once, beside a bare hello-world on the same HTTP stack, in one run. A hello-world that keeps the
//! processor busy for as long shows what of the waiting may be the machine's own: on a core that stutters it waits,
//! too, in some runs.
//!
//! `cargo bench -p headrace --bench overhead`. The server is a process of its own with one worker thread, bound to the
//! second core with everything it starts; the load is one spinning thread bound to the first. Latencies count from the moment a request was due, so that a slow answer
//! delays none of the measurements that follow it.

mod load;
mod server;
mod tally;

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use load::{Load, Measured};

/// Length of each measurement; `HEADRACE_BENCH_SECONDS` sets another.
const SECONDS: u64 = 5;
const CONNECTIONS: usize = 32;
/// Set once the load is bound to its core.
const BOUND: &str = "HEADRACE_BENCH_BOUND";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some("--server") {
        return server::serve(&args.next().unwrap_or_default(), &args.next().unwrap_or_default());
    }
    if std::env::var_os(BOUND).is_none()
        && let Ok(exe) = std::env::current_exe()
        && let Ok(status) = Command::new("taskset").args(["-c", "0"]).arg(exe).env(BOUND, "1").status()
    {
        return if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
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
    // The governed path first: half of its saturation is the rate at which all are compared.
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

/// One server under full load, then at `rate` calls a second, or half of what it took if that is less.
fn measure(
    name: &'static str,
    kind: &str,
    length: Duration,
    rate: Option<f64>,
) -> Result<Row, Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let server = Server::start(kind, &dir.path().to_string_lossy())?;
    let load = Load { port: server.port, connections: CONNECTIONS };
    load.closed(Duration::from_secs(1))?;
    let cpu = server.cpu_seconds()?;
    let saturated = load.closed(length)?;
    let cpu_us = (server.cpu_seconds()? - cpu) * 1e6 / saturated.answers as f64;
    let half = saturated.per_second() / 2.0;
    let paced = rate.map_or(half, |rate| rate.min(half));
    let half = load.paced(length, paced)?;
    println!("{name}: measured at {paced:.0}/s");
    if let Some(line) = server.finish()? {
        println!("  a call, both loads: {line}");
    }
    Ok(Row { name, saturated, half, cpu_us })
}

/// The median time of writing and syncing 4 KiB where the journal would stand.
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

/// A server in a process of its own, ended with this guard.
struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
    port: u16,
}

impl Server {
    fn start(kind: &str, dir: &str) -> Result<Self, Box<dyn std::error::Error>> {
        let exe = std::env::current_exe()?;
        let bound = std::env::var_os(BOUND).is_some();
        let mut command = if bound { Command::new("taskset") } else { Command::new(&exe) };
        if bound {
            command.args(["-c", "1"]).arg(&exe);
        }
        let mut child =
            command.args(["--server", kind, dir]).stdout(Stdio::piped()).stdin(Stdio::piped()).spawn()?;
        let mut stdout = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let port = line.trim().parse().map_err(|_| format!("the {kind} server did not start: {line:?}"))?;
        Ok(Self { child, stdout, port })
    }

    /// Ends it, and hears what it says of its calls.
    fn finish(mut self) -> Result<Option<String>, Box<dyn std::error::Error>> {
        drop(self.child.stdin.take());
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        Ok((!line.is_empty()).then(|| line.trim().to_owned()))
    }

    /// User and system time so far, from `/proc/PID/stat` (ticks of 10 ms).
    fn cpu_seconds(&self) -> Result<f64, Box<dyn std::error::Error>> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let after = stat.rsplit_once(')').ok_or("stat")?.1;
        let fields: Vec<&str> = after.split_whitespace().collect();
        let ticks: u64 = [11, 12].iter().filter_map(|i| fields.get(*i)?.parse::<u64>().ok()).sum();
        Ok(ticks as f64 / 100.0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Our own child, ended by its handle.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
