//! Python's `pprint.pformat` at its default width, for Jinja2's filter `pprint`, and Python's definition of lines. Must
//! not know templates.

use minijinja::Error;
use minijinja::value::{Value, ValueKind};

use crate::bounds::TooLong;
use crate::json;
use crate::mask::MaskTable;

const WIDTH_CHARS: usize = 80;
/// The maximum nesting depth that is written.
const MAX_DEPTH: usize = 128;

/// Returns `value` on one line if it fits, and otherwise broken as Python breaks it.
pub(crate) fn print(value: &Value, masks: &MaskTable, max_bytes: usize) -> Result<String, Error> {
    let mut printer = PrettyPrinter { masks, max_bytes, out: String::new() };
    printer.value(value, WritePosition { indent: 0, allowance: 0, depth: 0 })?;
    Ok(printer.out)
}

/// Splits a text into lines as Python's `str.splitlines` does, and keeps the line ends.
pub(crate) fn lines(text: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some((at, end)) = rest.char_indices().find(|(_, c)| ends_line(*c)) {
        let mut cut = at.saturating_add(end.len_utf8());
        if end == '\r' && rest.get(cut..).is_some_and(|after| after.starts_with('\n')) {
            cut = cut.saturating_add(1);
        }
        let (line, after) = rest.split_at_checked(cut).unwrap_or((rest, ""));
        lines.push(line);
        rest = after;
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// Whether Python ends a line at `c`.
pub(crate) fn ends_line(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// The position at which a value is written.
#[derive(Debug, Clone, Copy)]
struct WritePosition {
    /// The number of columns before the value.
    indent: usize,
    /// The number of columns that must stay free after the value.
    allowance: usize,
    depth: usize,
}

struct PrettyPrinter<'a> {
    masks: &'a MaskTable,
    max_bytes: usize,
    out: String,
}

impl PrettyPrinter<'_> {
    fn value(&mut self, value: &Value, place: WritePosition) -> Result<(), Error> {
        if place.depth > MAX_DEPTH || self.out.len() > self.max_bytes {
            return Err(TooLong::error());
        }
        let line = self.line(value, place.depth)?;
        let width = WIDTH_CHARS.saturating_sub(place.indent).saturating_sub(place.allowance);
        if line.chars().count() <= width {
            self.out.push_str(&line);
            return Ok(());
        }
        let place = WritePosition { depth: place.depth.saturating_add(1), ..place };
        match value.kind() {
            ValueKind::String => self.text(value.as_str().unwrap_or_default(), place),
            ValueKind::Map => self.members(value, place)?,
            ValueKind::Seq | ValueKind::Iterable => self.items(value, place)?,
            _ => self.out.push_str(&line),
        }
        Ok(())
    }

    /// Returns the value on one line, with keys in order.
    fn line(&self, value: &Value, depth: usize) -> Result<String, Error> {
        if depth > MAX_DEPTH {
            return Err(TooLong::error());
        }
        let deeper = depth.saturating_add(1);
        let mut out = String::new();
        match value.kind() {
            ValueKind::String => out = json::python_repr(value.as_str().unwrap_or_default()),
            ValueKind::Map => {
                out.push('{');
                for (at, (key, item)) in self.sorted(value)?.into_iter().enumerate() {
                    out.push_str(if at > 0 { ", " } else { "" });
                    out.push_str(&self.line(&key, deeper)?);
                    out.push_str(": ");
                    out.push_str(&self.line(&item, deeper)?);
                }
                out.push('}');
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let (open, close) = brackets(value);
                out.push_str(open);
                for (at, item) in value.try_iter()?.enumerate() {
                    out.push_str(if at > 0 { ", " } else { "" });
                    out.push_str(&self.line(&item, deeper)?);
                }
                out.push_str(close);
            }
            _ => out = json::python_str(value, self.max_bytes)?,
        }
        if out.len() > self.max_bytes { Err(TooLong::error()) } else { Ok(out) }
    }

    fn sorted(&self, value: &Value) -> Result<Vec<(Value, Value)>, Error> {
        let mut members = Vec::new();
        for key in value.try_iter()? {
            members.push((key.clone(), value.get_item(&key)?));
        }
        members.sort_by(|(a, _), (b, _)| match (a.as_str(), b.as_str()) {
            (Some(a), Some(b)) => self.masks.fold(a).cmp(&self.masks.fold(b)),
            _ => a.cmp(b),
        });
        Ok(members)
    }

    fn members(&mut self, value: &Value, place: WritePosition) -> Result<(), Error> {
        let indent = place.indent.saturating_add(1);
        let members = self.sorted(value)?;
        let count = members.len();
        self.out.push('{');
        for (at, (key, item)) in members.into_iter().enumerate() {
            let last = at.saturating_add(1) == count;
            let key = self.line(&key, place.depth)?;
            let indented = indent.saturating_add(key.chars().count()).saturating_add(2);
            self.out.push_str(&key);
            self.out.push_str(": ");
            let allowance = if last { place.allowance.saturating_add(1) } else { 1 };
            self.value(&item, WritePosition { indent: indented, allowance, ..place })?;
            if !last {
                self.next_line(indent);
            }
        }
        self.out.push('}');
        Ok(())
    }

    fn items(&mut self, value: &Value, place: WritePosition) -> Result<(), Error> {
        let indent = place.indent.saturating_add(1);
        let (open, close) = brackets(value);
        let items: Vec<Value> = value.try_iter()?.collect();
        let count = items.len();
        self.out.push_str(open);
        for (at, item) in items.into_iter().enumerate() {
            let last = at.saturating_add(1) == count;
            let allowance = if last { place.allowance.saturating_add(close.len()) } else { 1 };
            self.value(&item, WritePosition { indent, allowance, ..place })?;
            if !last {
                self.next_line(indent);
            }
        }
        self.out.push_str(close);
        Ok(())
    }

    fn next_line(&mut self, indent: usize) {
        self.out.push_str(",\n");
        self.out.push_str(&" ".repeat(indent));
    }

    /// Writes a long text as adjacent literals, cut between words and at its own line ends.
    fn text(&mut self, text: &str, place: WritePosition) {
        let top = place.depth == 1;
        let more = usize::from(top);
        let indent = place.indent.saturating_add(more);
        let allowance = place.allowance.saturating_add(more);
        let width = WIDTH_CHARS.saturating_sub(indent);
        let lines = lines(text);
        let last = lines.len().saturating_sub(1);
        let long = |text: &str, most: usize| json::python_repr(text).chars().count() > most;
        let mut chunks = Vec::new();
        for (at, line) in lines.into_iter().enumerate() {
            let behind = if at == last { allowance } else { 0 };
            if !long(line, width.saturating_sub(behind)) {
                chunks.push(line.to_owned());
                continue;
            }
            let words = words(line);
            let last_word = words.len().saturating_sub(1);
            let mut current = String::new();
            for (nth, word) in words.into_iter().enumerate() {
                let most = if nth == last_word { width.saturating_sub(behind) } else { width };
                if long(&format!("{current}{word}"), most) {
                    if !current.is_empty() {
                        chunks.push(std::mem::take(&mut current));
                    }
                    word.clone_into(&mut current);
                } else {
                    current.push_str(word);
                }
            }
            if !current.is_empty() {
                chunks.push(current);
            }
        }
        let several = chunks.len() > 1;
        self.out.push_str(if top && several { "(" } else { "" });
        for (at, chunk) in chunks.iter().enumerate() {
            if at > 0 {
                self.out.push('\n');
                self.out.push_str(&" ".repeat(indent));
            }
            self.out.push_str(&json::python_repr(chunk));
        }
        self.out.push_str(if top && several { ")" } else { "" });
    }
}

/// Returns each word of a line with the white space after it.
fn words(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = line;
    while !rest.is_empty() {
        let space = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let end = rest.get(space..).and_then(|tail| tail.find(|c: char| !c.is_whitespace()));
        let cut = end.map_or(rest.len(), |end| space.saturating_add(end));
        let (word, after) = rest.split_at_checked(cut).unwrap_or((rest, ""));
        words.push(word);
        rest = after;
    }
    words
}

fn brackets(value: &Value) -> (&'static str, &'static str) {
    match (value.is_tuple(), value.len()) {
        (true, Some(1)) => ("(", ",)"),
        (true, _) => ("(", ")"),
        (false, _) => ("[", "]"),
    }
}
