//! A progress line for work that takes longer than a second. It is updated in place on a terminal, and printed every
//! few seconds if standard error is no terminal. Knows nothing of the work.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::output::shown_line;

/// Work shorter than this shows no progress.
const QUIET: Duration = Duration::from_secs(1);
/// Interval between updates on a terminal, and elsewhere.
const PERIODS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The progress of one piece of work.
pub struct ProgressLine {
    what: String,
    start: Instant,
    shown: Option<Instant>,
    terminal: bool,
}

impl ProgressLine {
    /// Starts the clock.
    pub fn new(what: &str) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { what: what.to_owned(), start: Instant::now(), shown: None, terminal }
    }

    /// Shows that `done` of `total` bytes are done.
    pub fn bytes(&mut self, done: u64, total: u64) {
        const MIB: u64 = 1 << 20;
        self.show(done, total, &|| format!("{} of {} MiB", done / MIB, total / MIB));
    }

    /// Shows that `done` of `total` tokens are done.
    pub fn tokens(&mut self, done: u64, total: u64) {
        self.show(done, total, &|| format!("{done} of {total} tokens"));
    }

    /// Shows that `done` of `total` requests have ended. A terminal also gets a bar.
    pub fn requests(&mut self, done: u64, total: u64) {
        let bar = if self.terminal { format!("{} ", bar(done, total)) } else { String::new() };
        self.show(done, total, &|| format!("{bar}{done} of {total} requests"));
    }

    fn show(&mut self, done: u64, total: u64, amount: &dyn Fn() -> String) {
        let now = Instant::now();
        let period = if self.terminal { PERIODS.0 } else { PERIODS.1 };
        let due = match self.shown {
            None => now.duration_since(self.start) >= QUIET,
            Some(last) => now.duration_since(last) >= period,
        };
        if !due {
            return;
        }
        self.shown = Some(now);
        let line = line(&shown_line(&self.what), done, total, &amount());
        let mut out = std::io::stderr().lock();
        // A closed terminal loses only this line.
        let _ = if self.terminal {
            write!(out, "\r\x1b[K{line}").and_then(|()| out.flush())
        } else {
            writeln!(out, "{line}")
        };
    }

    /// Ends the work and removes the line.
    pub fn end(self) {
        if self.terminal && self.shown.is_some() {
            let mut out = std::io::stderr().lock();
            // A closed terminal loses only this line.
            let _ = write!(out, "\r\x1b[K").and_then(|()| out.flush());
        }
    }
}

fn line(what: &str, done: u64, total: u64, amount: &str) -> String {
    let percent = (u128::from(done) * 100).checked_div(u128::from(total)).unwrap_or(100);
    format!("{what}: {percent} % ({amount})")
}

/// A progress bar of fixed width.
fn bar(done: u64, total: u64) -> String {
    const WIDTH: u64 = 24;
    let full = (u128::from(done) * u128::from(WIDTH)).checked_div(u128::from(total)).unwrap_or_default();
    let full = usize::try_from(full.min(u128::from(WIDTH))).unwrap_or_default();
    format!("{}{}", "█".repeat(full), "░".repeat((WIDTH as usize).saturating_sub(full)))
}

#[cfg(test)]
mod tests {
    #[test]
    fn lines() {
        assert_eq!(
            super::line("loading m", 512, 1024, "512 of 1024 MiB"),
            "loading m: 50 % (512 of 1024 MiB)"
        );
        assert_eq!(super::line("loading m", 0, 0, "0 of 0 MiB"), "loading m: 100 % (0 of 0 MiB)");
    }

    #[test]
    fn a_bar_is_as_full_as_its_work_is_done() {
        for (done, total, full) in [(0, 0, 0), (0, 9, 0), (1, 2, 12), (9, 9, 24), (12, 9, 24)] {
            let bar = super::bar(done, total);
            assert_eq!((bar.matches('█').count(), bar.chars().count()), (full, 24), "{done} of {total}");
        }
    }
}
