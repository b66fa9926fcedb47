//! Writes text to the terminal. A closed reader (`| head`) is no error. Knows nothing of what is written.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

use headrace_domain::steers_terminals;

/// Exit code for a wrong command line or configuration.
pub const USAGE: u8 = 2;

/// Writes to standard output. The text cannot steer a terminal: see [`shown`].
pub fn say(text: &str) {
    write_out(&shown(text));
}

/// Like [`say`], but keeps colours. Foreign text inside it must already have been escaped.
pub fn say_drawn(text: &str) {
    write_out(&drawn(text));
}

/// Escapes everything that would steer a terminal, except line breaks, tabs and colours.
pub fn drawn(text: &str) -> Cow<'_, str> {
    escaped(text, |rest| is_line(rest).max(colour(rest)))
}

fn write_out(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Escapes characters that would steer a terminal, are invisible, or change the writing direction. Uses JSON's form,
/// `\u001b`, so valid JSON stays the same JSON. Line breaks and tabs stay.
pub fn shown(text: &str) -> Cow<'_, str> {
    if !text.contains(|c| steers_terminals(c) && !matches!(c, '\n' | '\t')) {
        return Cow::Borrowed(text);
    }
    escaped(text, is_line)
}

/// Like [`shown`], but also escapes line breaks and tabs.
pub fn shown_line(text: &str) -> Cow<'_, str> {
    escaped(text, |_| 0)
}

/// Escapes steering characters. `keep` returns how many bytes at the start of its argument stay unescaped.
fn escaped(text: &str, keep: impl Fn(&str) -> usize) -> Cow<'_, str> {
    if !text.contains(steers_terminals) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(steers_terminals) {
        let (before, steering) = rest.split_at(at);
        out.push_str(before);
        let kept = keep(steering);
        let Some(first) = steering.chars().next() else { break };
        if kept > 0 {
            out.push_str(steering.get(..kept).unwrap_or_default());
        } else {
            for unit in first.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
        rest = steering.get(kept.max(first.len_utf8())..).unwrap_or_default();
    }
    out.push_str(rest);
    Cow::Owned(out)
}

fn is_line(text: &str) -> usize {
    usize::from(text.starts_with(['\n', '\t']))
}

/// The length of a colour sequence at the start of `text`, or 0.
fn colour(text: &str) -> usize {
    let Some(codes) = text.strip_prefix("\x1b[") else { return 0 };
    let end = codes.find(|c: char| !matches!(c, '0'..='9' | ';'));
    match end {
        Some(end) if codes.get(end..).is_some_and(|rest| rest.starts_with('m')) => 2 + end + 1,
        _ => 0,
    }
}

/// Receives the lines that would go to standard error.
static NOTES: OnceLock<Box<dyn Fn(String) + Send + Sync>> = OnceLock::new();

/// Sends all later lines for standard error to `take`. A server passes them through its log, so that a slow or closed
/// reader cannot block its shutdown.
pub fn hand_notes_to(take: impl Fn(String) + Send + Sync + 'static) {
    // Called once, when a server starts.
    let _ = NOTES.set(Box::new(take));
}

/// Writes one or more lines to standard error. The text cannot steer a terminal.
pub fn note(text: &str) {
    let text = shown(text);
    match NOTES.get() {
        Some(take) => take(format!("{text}\n")),
        None => drop(writeln!(std::io::stderr().lock(), "{text}")),
    }
}

/// Reports a failure. Returns exit code 1.
pub fn fail(text: &str) -> ExitCode {
    note(&format!("headrace: {text}"));
    ExitCode::FAILURE
}

/// Reports wrong usage or configuration. Returns exit code 2.
pub fn refuse(text: &str) -> ExitCode {
    note(&format!("headrace: {text}"));
    ExitCode::from(USAGE)
}

/// Width of the terminal in columns, and whether it takes colours. `COLUMNS` and `NO_COLOR` take precedence. Shells
/// seldom export `COLUMNS`, so the terminal itself is asked next.
pub fn terminal() -> (usize, bool) {
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

/// Formats a table without rules. Each cell stays on one line.
pub fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(head.to_vec());
    for row in rows {
        table.add_row(row.iter().map(|cell| shown_line(cell).into_owned()));
    }
    let text = table.to_string();
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_steers_the_terminal_and_json_stays_what_it_was() {
        let hostile = "a\u{1b}[31mb\u{1b}]0;pwn\u{7}\r\u{9b}2J\u{202e}\u{200b}\u{e0041}\nfake\té😀";
        let safe = "a\\u001b[31mb\\u001b]0;pwn\\u0007\\u000d\\u009b2J\\u202e\\u200b\\udb40\\udc41\nfake\té😀";
        assert_eq!(shown(hostile), safe);
        assert_eq!(shown_line(hostile), safe.replace('\n', "\\u000a").replace('\t', "\\u0009"));
        assert!(matches!(shown("é\n\t😀"), Cow::Borrowed(_)));
        let json = serde_json::to_string(hostile).unwrap();
        assert_eq!(serde_json::from_str::<String>(&shown(&json)).unwrap(), hostile);
        for c in '\0'..='\u{10ffff}' {
            assert!(!shown_line(&c.to_string()).contains(steers_terminals), "{c:?}");
        }
    }

    #[test]
    fn a_drawing_keeps_its_colours_and_nothing_else() {
        assert_eq!(drawn("\u{1b}[1;31mred\u{1b}[0m\n"), "\u{1b}[1;31mred\u{1b}[0m\n");
        for (text, safe) in [
            ("\u{1b}[2J", "\\u001b[2J"),
            ("\u{1b}]0;t\u{7}", "\\u001b]0;t\\u0007"),
            ("\u{1b}", "\\u001b"),
            ("\u{1b}[", "\\u001b["),
            ("\u{1b}[1", "\\u001b[1"),
            ("\u{202e}x", "\\u202ex"),
        ] {
            assert_eq!(drawn(text), safe);
        }
    }

    #[test]
    fn a_cell_of_a_table_is_one_line() {
        let text = table(&["name"], vec![vec!["a\nfake \u{1b}[31m".to_owned()]]);
        assert_eq!(text.lines().count(), 2, "{text:?}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}
