//! Text to the terminal. A reader that is gone (`| head`) is no fault. Knows nothing of what is said.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

/// Exit code for a wrong command line or configuration.
pub(crate) const USAGE: u8 = 2;

/// To standard output.
pub(crate) fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Who takes lines in place of standard error.
static NOTES: OnceLock<Box<dyn Fn(String) + Send + Sync>> = OnceLock::new();

/// From here on, lines to standard error are handed to somebody else: a server's go through its log, so that a reader that is slow or
/// gone does not keep it from ending.
pub(crate) fn hand_notes_to(take: impl Fn(String) + Send + Sync + 'static) {
    // Once, at the start of a server.
    let _ = NOTES.set(Box::new(take));
}

/// A line to standard error.
pub(crate) fn note(text: &str) {
    match NOTES.get() {
        Some(take) => take(format!("{text}\n")),
        None => drop(writeln!(std::io::stderr().lock(), "{text}")),
    }
}

/// Says what went wrong: exit code 1.
pub(crate) fn fail(text: &str) -> ExitCode {
    note(&format!("headrace: {text}"));
    ExitCode::FAILURE
}

/// Says what is wrong with what was asked for: exit code 2.
pub(crate) fn refuse(text: &str) -> ExitCode {
    note(&format!("headrace: {text}"));
    ExitCode::from(USAGE)
}

/// Columns of the terminal (shells seldom pass `COLUMNS` on, so it is asked itself), and whether it takes colours. `COLUMNS`
/// and `NO_COLOR` are heeded.
pub(crate) fn terminal() -> (usize, bool) {
    const USUAL: usize = 100;
    let told = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let asked = || {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
        (size.ws_col > 0).then_some(usize::from(size.ws_col))
    };
    let columns = told.or_else(asked).unwrap_or(USUAL);
    let color = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    (columns, color)
}

/// A table without lines.
pub(crate) fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(head.to_vec());
    for row in rows {
        table.add_row(row);
    }
    let text = table.to_string();
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
