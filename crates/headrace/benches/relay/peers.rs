//! Other gateways before the same upstream, under the same load on the same two cores. A file (`HEADRACE_BENCH_PEERS`),
//! which `tests/peers/gateways.py` writes, describes them and how they start. This code knows none of them.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::load::Load;
use crate::mock::Mock;
use crate::{CONNECTIONS, Cell, Failure, Row};

/// The variable that names the file: a list of `{"name", "argv": […], "env": {…}, "ready": PATH, "headers": {…}}`.
/// `{port}` is replaced by the port to listen on, and `{upstream}` by the address of the upstream.
const FILE: &str = "HEADRACE_BENCH_PEERS";
const START: Duration = Duration::from_secs(120);
/// Warm-up time, because some gateways compile or import at their first calls.
const WARM_UP: Duration = Duration::from_secs(4);
/// Minimum duration of a measurement. These gateways answer so few calls that a shorter one is inaccurate.
const LENGTH: Duration = Duration::from_secs(5);

/// A gateway, with its command and headers.
pub(crate) struct Peer {
    pub(crate) name: String,
    told: serde_json::Value,
}

/// The gateways in the file, if there is one.
pub(crate) fn named() -> Result<Vec<Peer>, Failure> {
    let Some(path) = std::env::var_os(FILE) else { return Ok(Vec::new()) };
    let told: Vec<serde_json::Value> = serde_json::from_slice(&std::fs::read(Path::new(&path))?)?;
    let name = |told: &serde_json::Value| told["name"].as_str().unwrap_or("?").to_owned();
    Ok(told.into_iter().map(|told| Peer { name: name(&told), told }).collect())
}

impl Peer {
    /// Measures one gateway under full load, then at half its maximum.
    pub(crate) fn measure(&self, cell: &Cell, length: Duration) -> Result<Row, Failure> {
        let length = length.max(LENGTH);
        let mut mock = Mock::new(cell.answer.clone())?;
        let running = self.start(mock.port()?)?;
        let request = with_headers(&cell.request, &self.headers(mock.port()?));
        let load = Load { port: running.port, connections: CONNECTIONS, request };
        let mut beside = || mock.turn();
        load.closed(WARM_UP, &mut beside)?;
        let cpu = running.cpu_seconds()?;
        let saturated = load.closed(length, &mut beside)?;
        let cpu_us = (running.cpu_seconds()? - cpu) * 1e6 / saturated.answers as f64;
        let half = load.paced(length, saturated.per_second() / 2.0, &mut beside)?;
        Ok(Row { saturated, half, cpu_us })
    }

    fn headers(&self, upstream: u16) -> String {
        let all = self.told["headers"].as_object().into_iter().flatten();
        all.map(|(name, value)| format!("{name}: {}\r\n", filled(value, 0, upstream))).collect()
    }

    /// Starts it on the second core, and waits until it is ready.
    fn start(&self, upstream: u16) -> Result<Running, Failure> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let words = self.told["argv"].as_array().ok_or("a peer without `argv`")?;
        let mut command = Command::new("taskset");
        command.args(["-c", "1"]).args(words.iter().map(|word| filled(word, port, upstream)));
        for (name, value) in self.told["env"].as_object().into_iter().flatten() {
            command.env(name, filled(value, port, upstream));
        }
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let running = Running { child: quiet.spawn()?, port };
        let begun = Instant::now();
        while !self.is_ready(port) {
            if begun.elapsed() > START {
                return Err(format!("{} is not ready after {START:?}", self.name).into());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(running)
    }

    fn is_ready(&self, port: u16) -> bool {
        let path = self.told["ready"].as_str().unwrap_or("/");
        let url = format!("http://127.0.0.1:{port}{path}");
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--fail", "--max-time", "5", "--output", "/dev/null", &url]);
        curl.status().is_ok_and(|status| status.success())
    }
}

/// A word with its placeholders replaced.
fn filled(word: &serde_json::Value, port: u16, upstream: u16) -> String {
    let upstream = format!("http://127.0.0.1:{upstream}");
    word.as_str().unwrap_or_default().replace("{port}", &port.to_string()).replace("{upstream}", &upstream)
}

/// The request with further header lines.
fn with_headers(request: &[u8], lines: &str) -> Vec<u8> {
    let end = request.windows(2).position(|window| window == b"\r\n").map_or(0, |at| at + 2);
    let (first, rest) = request.split_at(end);
    [first, lines.as_bytes(), rest].concat()
}

/// A running peer with all its child processes. They are killed when dropped.
struct Running {
    child: Child,
    port: u16,
}

impl Running {
    /// User and system time of all its processes so far (ticks of 10 ms).
    fn cpu_seconds(&self) -> Result<f64, Failure> {
        let mut ticks = 0;
        for entry in std::fs::read_dir("/proc")? {
            let Ok(stat) = std::fs::read_to_string(entry?.path().join("stat")) else { continue };
            let fields: Vec<&str> =
                stat.rsplit_once(')').map_or("", |(_, after)| after).split_whitespace().collect();
            let field = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
            if field(2) == u64::from(self.child.id()) {
                ticks += field(11) + field(12);
            }
        }
        Ok(ticks as f64 / 100.0)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process group that this benchmark started.
        let _ = Command::new("kill").args(["-9", "--", &format!("-{}", self.child.id())]).status();
        let _ = self.child.wait();
    }
}
