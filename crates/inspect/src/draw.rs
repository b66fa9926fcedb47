//! Draws what a model sees for a terminal: tokens in alternating colours, special tokens marked, and the edges of cache
//! blocks. Text of a prompt never reaches the terminal as a control sequence. Must not know how the data was computed.

use std::fmt::Write as _;

use headrace_domain::steers_terminals;

use crate::prompt_report::{PromptReport, SeenPart};
use crate::token::{SeenToken, TokenKind, TokenList};

/// The options for drawing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrawOptions {
    /// The width of the terminal, in columns.
    pub width: usize,
    /// Whether to use colours. Without colours, special tokens are enclosed in `⟦⟧`.
    pub color: bool,
    /// Whether to draw a mark between any two tokens, for output without colours.
    pub bounds: bool,
}

const RESET: &str = "\x1b[0m";
const SPECIAL: &str = "\x1b[1;35m";
const MARKUP: &str = "\x1b[35m";
const EDGE: &str = "\x1b[2;33m";
const DIM: &str = "\x1b[2m";
/// The alternating colours of the caller's tokens.
const OWN: [&str; 2] = ["\x1b[30;46m", "\x1b[30;42m"];
/// The alternating colours of the template's tokens.
const FRAME: [&str; 2] = ["\x1b[37;100m", "\x1b[37;44m"];
/// The minimum length of a rule, in columns.
const LEAST_RULE: usize = 8;

/// Draws the prompt, then its parts as a table.
pub fn draw_prompt(prompt_report: &PromptReport, options: &DrawOptions) -> String {
    let mut out = String::new();
    let edge = prompt_report.cached_tokens.unwrap_or(prompt_report.cacheable_tokens);
    for (at, token) in prompt_report.tokens.iter().enumerate() {
        if at > 0 && at == edge {
            out.push_str(&boundary(prompt_report, options));
        } else if at > 0 && at % prompt_report.block_tokens == 0 {
            paint(&mut out, options, EDGE, "▏");
        } else if at > 0 && options.bounds {
            paint(&mut out, options, EDGE, "·");
        }
        let begins = token.start.unwrap_or(usize::MAX);
        let next = prompt_report.parts.partition_point(|part| part.start <= begins);
        let own = next
            .checked_sub(1)
            .and_then(|at| prompt_report.parts.get(at))
            .is_some_and(|part| begins < part.end);
        let shades = if own { OWN } else { FRAME };
        draw_token(&mut out, token, shades, at, options);
    }
    out.push_str("\n\n");
    out.push_str(&parts(prompt_report));
    for spelled in &prompt_report.spelled {
        let _ = writeln!(
            out,
            "`{}` at byte {} is text: a message cannot become one",
            printable(&spelled.text),
            spelled.start
        );
    }
    out
}

/// Draws the line at the end of the cached tokens.
fn boundary(prompt_report: &PromptReport, options: &DrawOptions) -> String {
    let tokens = prompt_report.cached_tokens.unwrap_or(prompt_report.cacheable_tokens);
    let blocks = tokens / prompt_report.block_tokens.max(1);
    let said = match prompt_report.cached_tokens {
        Some(_) => "come from the cache of the other prompt",
        None => "can come from a cache",
    };
    let words = format!(
        " {} ({} of {}) {said} ",
        counted(tokens, "token"),
        counted(blocks, "block"),
        prompt_report.block_tokens
    );
    let rule = options.width.saturating_sub(words.chars().count()).max(LEAST_RULE) / 2;
    let mut line = String::from("\n");
    paint(&mut line, options, EDGE, &format!("{0}{words}{0}", "─".repeat(rule)));
    line.push('\n');
    line
}

fn draw_token(
    out: &mut String,
    token: &SeenToken,
    shades: [&'static str; 2],
    at: usize,
    options: &DrawOptions,
) {
    let text = printable(&token.piece);
    match (token.kind, options.color) {
        (TokenKind::Text, false) => out.push_str(&text),
        (_, false) => {
            let _ = write!(out, "⟦{text}⟧");
        }
        (TokenKind::Special, true) => paint(out, options, SPECIAL, &text),
        (TokenKind::Markup, true) => paint(out, options, MARKUP, &text),
        (TokenKind::Text, true) => {
            let shade = if at.is_multiple_of(2) { shades[0] } else { shades[1] };
            // A colour that crosses the end of a line would colour the rest of the line.
            for (line, piece) in text.split('\n').enumerate() {
                if line > 0 {
                    out.push_str(&format!("{DIM}⏎{RESET}\n"));
                }
                if !piece.is_empty() {
                    paint(out, options, shade, piece);
                }
            }
        }
    }
}

fn paint(out: &mut String, options: &DrawOptions, color: &str, text: &str) {
    match options.color {
        true => {
            let _ = write!(out, "{color}{text}{RESET}");
        }
        false => out.push_str(text),
    }
}

/// Replaces control characters in a text by escapes, because text of a prompt or a file must not control the terminal.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => out.push(c),
            c if steers_terminals(c) => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

/// Returns a row for each part, and one for the template's own tokens.
fn parts(prompt_report: &PromptReport) -> String {
    let share = |tokens: usize| match prompt_report.count {
        0 => 0,
        all => tokens.saturating_mul(100) / all,
    };
    let mut rows: Vec<[String; 4]> = prompt_report
        .parts
        .iter()
        .map(|part| {
            let last = part.first_token.saturating_add(part.tokens);
            [
                name(part),
                part.tokens.to_string(),
                format!("{} %", share(part.tokens)),
                format!("{}–{last}", part.first_token),
            ]
        })
        .collect();
    let own = [
        prompt_report.template_tokens.to_string(),
        format!("{} %", share(prompt_report.template_tokens)),
        String::new(),
    ];
    let [tokens, percent, place] = own;
    rows.push(["the template's own".to_owned(), tokens, percent, place]);
    rows.insert(0, ["part", "tokens", "share", "at tokens"].map(str::to_owned));
    aligned(&rows)
}

fn name(part: &SeenPart) -> String {
    let whose = printable(&part.whose);
    match (part.what, part.call) {
        ("message", _) => format!("messages[{}] {whose}", part.index),
        ("tool", _) => format!("tools[{}] {whose}", part.index),
        (_, Some(call)) => format!("messages[{}].tool_calls[{call}]", part.index),
        (what, None) => format!("messages[{}] {what}", part.index),
    }
}

/// Draws the tokens of a text, one per line.
pub fn draw_tokens(list: &TokenList) -> String {
    let row = |token: &SeenToken| {
        let place = match (token.start, token.end) {
            (Some(start), Some(end)) => format!("{start}–{end}"),
            _ => "–".to_owned(),
        };
        let kind = match token.kind {
            TokenKind::Text => "",
            TokenKind::Special => "special",
            TokenKind::Markup => "markup",
        };
        [token.id.to_string(), place, quoted(&token.piece), kind.to_owned()]
    };
    let head = ["id", "bytes", "piece", ""].map(str::to_owned);
    let rows: Vec<[String; 4]> = std::iter::once(head).chain(list.tokens.iter().map(row)).collect();
    let mut out = aligned(&rows);
    let each = match list.count {
        0 => String::new(),
        count => {
            let tenths = list.bytes.saturating_mul(10) / count;
            format!(", {}.{} bytes a token", tenths / 10, tenths % 10)
        }
    };
    let mut last = format!("\n{}, {}{each}\n", counted(list.count, "token"), counted(list.bytes, "byte"));
    if let Some(decoded) = &list.decoded {
        let _ = writeln!(last, "the tokenizer changes this text: its tokens stand for {decoded:?}");
    }
    out.push_str(&last);
    out
}

/// Returns `1 token`, `12 tokens`.
fn counted(of: usize, what: &str) -> String {
    let ending = if of == 1 { "" } else { "s" };
    format!("{of} {what}{ending}")
}

/// Returns a piece between quotes, on one line.
fn quoted(piece: &str) -> String {
    format!("\"{}\"", printable(piece).replace('\n', "\\n").replace('\t', "\\t"))
}

fn aligned(rows: &[[String; 4]]) -> String {
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths = [width(0), width(1), width(2), width(3)];
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let pad = width.saturating_sub(cell.chars().count()).saturating_add(2);
            let _ = write!(line, "{cell}{}", " ".repeat(pad));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}
