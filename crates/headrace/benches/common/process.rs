//! A benchmark in two processes on two cores: the load on the first core, the server under test on the second.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};

/// Set once the load is bound to its core.
const BOUND: &str = "HEADRACE_BENCH_BOUND";

/// Runs this program again, bound to the first core. Returns `None` if it is already bound, or cannot be.
pub(crate) fn bound() -> Option<ExitCode> {
    if std::env::var_os(BOUND).is_some() {
        return None;
    }
    let exe = std::env::current_exe().ok()?;
    let status = Command::new("taskset").args(["-c", "0"]).arg(exe).env(BOUND, "1").status().ok()?;
    Some(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A server in a process of its own. It is killed when dropped.
pub(crate) struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
    pub(crate) port: u16,
}

impl Server {
    /// Starts a server of `kind`, which may keep files in `dir` and gets the argument `more`.
    pub(crate) fn start(kind: &str, dir: &str, more: &str) -> Result<Self, Box<dyn std::error::Error>> {
        let exe = std::env::current_exe()?;
        let bound = std::env::var_os(BOUND).is_some();
        let mut command = if bound { Command::new("taskset") } else { Command::new(&exe) };
        if bound {
            command.args(["-c", "1"]).arg(&exe);
        }
        let mut child = command
            .args(["--server", kind, dir, more])
            .stdout(Stdio::piped())
            .stdin(Stdio::piped())
            .spawn()?;
        let mut stdout = BufReader::new(child.stdout.take().ok_or("no output")?);
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let port = line.trim().parse().map_err(|_| format!("the {kind} server did not start: {line:?}"))?;
        Ok(Self { child, stdout, port })
    }

    /// Ends the server and returns the line that it prints about its calls.
    pub(crate) fn finish(mut self) -> Result<Option<String>, Box<dyn std::error::Error>> {
        drop(self.child.stdin.take());
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        Ok((!line.is_empty()).then(|| line.trim().to_owned()))
    }

    /// Resident memory, in bytes (`/proc/PID/statm`, pages of 4 KiB).
    #[allow(dead_code, reason = "not every benchmark asks")]
    pub(crate) fn resident_bytes(&self) -> Result<u64, Box<dyn std::error::Error>> {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.child.id()))?;
        let pages: u64 = statm.split_whitespace().nth(1).ok_or("statm")?.parse()?;
        Ok(pages * 4096)
    }

    /// User and system time so far, from `/proc/PID/stat` (ticks of 10 ms).
    pub(crate) fn cpu_seconds(&self) -> Result<f64, Box<dyn std::error::Error>> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let after = stat.rsplit_once(')').ok_or("stat")?.1;
        let fields: Vec<&str> = after.split_whitespace().collect();
        let ticks: u64 = [11, 12].iter().filter_map(|i| fields.get(*i)?.parse::<u64>().ok()).sum();
        Ok(ticks as f64 / 100.0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process's own child, killed through its handle.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
