//! Writes values as Python does: `json.dumps` for `tojson`, `repr` and `str` for printing. Must not know templates.

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use crate::bounds::TooLong;
use crate::mask::MaskTable;

/// The maximum nesting depth that is written.
const MAX_DEPTH: usize = 128;

/// The arguments of `json.dumps` that templates use.
#[derive(Debug, Clone, Default)]
pub(crate) struct DumpStyle {
    /// Whether to write `\u00e9` for `é`.
    pub(crate) ascii: bool,
    /// The indentation of one level. `None` writes everything on one line.
    pub(crate) indent: Option<String>,
    pub(crate) sort_keys: bool,
    pub(crate) item_separator: String,
    pub(crate) key_separator: String,
}

/// Writes `value` as JSON the way `json.dumps` does. Masks stay masks.
pub(crate) fn dumps(
    value: &Value,
    style: &DumpStyle,
    masks: &MaskTable,
    max_bytes: usize,
) -> Result<String, Error> {
    let mut dumper = JsonDumper { style, masks, max_bytes, out: String::new() };
    dumper.value(value, 0)?;
    Ok(dumper.out)
}

struct JsonDumper<'a> {
    style: &'a DumpStyle,
    masks: &'a MaskTable,
    max_bytes: usize,
    out: String,
}

impl JsonDumper<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if self.out.len() > self.max_bytes {
            return Err(TooLong::error());
        }
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::BadSerialization, "nested too deeply for tojson"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&json_number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.collect::<Vec<_>>();
                self.group(items.len(), depth, ('[', ']'), |dumper, at, depth| {
                    items.get(at).map_or(Ok(()), |item| dumper.value(item, depth))
                })?;
            }
            ValueKind::Map => {
                let mut members = Vec::new();
                for key in value.try_iter()? {
                    let item = value.get_item(&key)?;
                    members.push((self.key(&key)?, item));
                }
                if self.style.sort_keys {
                    members.sort_by_cached_key(|(key, _)| self.masks.fold(key));
                }
                self.group(members.len(), depth, ('{', '}'), |dumper, at, depth| {
                    let Some((key, item)) = members.get(at) else { return Ok(()) };
                    dumper.string(key);
                    dumper.out.push_str(&dumper.style.key_separator);
                    dumper.value(item, depth)
                })?;
            }
            other => {
                let reason = format!("Object of type {other} is not JSON serializable");
                return Err(Error::new(ErrorKind::BadSerialization, reason));
            }
        }
        Ok(())
    }

    fn group(
        &mut self,
        count: usize,
        depth: usize,
        (open, close): (char, char),
        mut item: impl FnMut(&mut Self, usize, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for at in 0..count {
            if at > 0 {
                self.out.push_str(&self.style.item_separator);
            }
            self.line(depth.saturating_add(1))?;
            item(self, at, depth.saturating_add(1))?;
        }
        if count > 0 {
            self.line(depth)?;
        }
        self.out.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) -> Result<(), Error> {
        let Some(indent) = &self.style.indent else { return Ok(()) };
        if indent.len().saturating_mul(depth) > self.max_bytes.saturating_sub(self.out.len()) {
            return Err(TooLong::error());
        }
        self.out.push('\n');
        (0..depth).for_each(|_| self.out.push_str(indent));
        Ok(())
    }

    /// Returns a key as Python coerces it to a string.
    fn key(&self, key: &Value) -> Result<String, Error> {
        Ok(match key.kind() {
            ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
            ValueKind::None => "null".to_owned(),
            ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
            ValueKind::Number => json_number(key),
            other => {
                let reason = format!("keys must be str, int, float, bool or None, not {other}");
                return Err(Error::new(ErrorKind::BadSerialization, reason));
            }
        })
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match (self.masks.fold_char(c), self.masks.unmask(c).is_some()) {
                // A mask represents its character, even if that character must be escaped.
                ('"' | '\\', _) => {
                    self.out.push('\\');
                    self.out.push(c);
                }
                ('\n', _) => self.out.push_str("\\n"),
                ('\r', _) => self.out.push_str("\\r"),
                ('\t', _) => self.out.push_str("\\t"),
                ('\u{8}', _) => self.out.push_str("\\b"),
                ('\u{c}', _) => self.out.push_str("\\f"),
                (control, _) if control < ' ' => {
                    let _ = write!(self.out, "\\u{:04x}", u32::from(control));
                }
                (own, masked) if self.style.ascii && !(own.is_ascii() && (masked || own != '\u{7f}')) => {
                    for unit in own.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                _ => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

fn json_number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(number) if !value.is_integer() => match number {
            n if n.is_nan() => "NaN".to_owned(),
            n if n.is_infinite() => if n > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
            n => float(n),
        },
        _ => value.to_string(),
    }
}

/// A float as Python's `repr` writes it: the shortest digits, in exponent form from 1e16 up and below 1e-4.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    // Rust's `{:?}` switches to exponents at the same places, but writes them without sign and padding.
    let text = format!("{number:?}");
    match text.split_once('e') {
        Some((digits, exponent)) => match exponent.strip_prefix('-') {
            Some(exponent) => format!("{digits}e-{exponent:0>2}"),
            None => format!("{digits}e+{exponent:0>2}"),
        },
        None => text,
    }
}

/// Returns `value` as Python's `str` does. Masks stay masks.
pub(crate) fn python_str(value: &Value, max_bytes: usize) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Map => {
            let mut out = String::new();
            repr(value, &mut out, 0, max_bytes)?;
            Ok(out)
        }
        ValueKind::Number if !value.is_integer() => {
            Ok(f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float))
        }
        _ => Ok(value.to_string()),
    }
}

fn repr(value: &Value, out: &mut String, depth: usize, max_bytes: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH || out.len() > max_bytes {
        return Err(TooLong::error());
    }
    let deeper = depth.saturating_add(1);
    match value.kind() {
        ValueKind::String => repr_string(value.as_str().unwrap_or_default(), out),
        ValueKind::Map => {
            out.push('{');
            for (at, key) in value.try_iter()?.enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                repr(&key, out, deeper, max_bytes)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, out, deeper, max_bytes)?;
            }
            out.push('}');
        }
        ValueKind::Seq => {
            let tuple = value.is_tuple();
            out.push(if tuple { '(' } else { '[' });
            let mut count = 0usize;
            for item in value.try_iter()? {
                out.push_str(if count > 0 { ", " } else { "" });
                repr(&item, out, deeper, max_bytes)?;
                count = count.saturating_add(1);
            }
            out.push_str(if tuple && count == 1 { "," } else { "" });
            out.push(if tuple { ')' } else { ']' });
        }
        _ => out.push_str(&python_str(value, max_bytes)?),
    }
    Ok(())
}

/// Returns a text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns a text as Python's `repr` does.
pub(crate) fn python_repr(text: &str) -> String {
    let mut out = String::new();
    repr_string(text, &mut out);
    out
}

fn repr_string(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if u32::from(c) < 0x20 || (0x7f..0xa0).contains(&u32::from(c)) => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_as_python() {
        let rows = [
            (1.0, "1.0"),
            (2.5, "2.5"),
            (0.1, "0.1"),
            (100_000.0, "100000.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-1.25e-7, "-1.25e-07"),
            (-0.0, "-0.0"),
        ];
        for (number, text) in rows {
            assert_eq!(float(number), text);
        }
    }
}
