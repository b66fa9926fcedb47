//! Converts Python literals, as models write them in calls, into JSON. Must not know calls.

use std::fmt::Write;

/// The maximum nesting depth that is read.
const MAX_DEPTH: u32 = 64;

/// Returns the JSON of a Python literal, or of JSON's `true`, `false` and `null`. `None` if `text` is no literal.
pub(crate) fn literal(text: &str) -> Option<String> {
    let mut reader = LiteralReader::new(text);
    let mut out = String::new();
    reader.value(&mut out, 0)?;
    reader.space();
    reader.rest.is_empty().then_some(out)
}

/// Reads a list of calls, such as `[f(a=1), g()]`. Returns the name of each call and its keyword arguments as a JSON
/// object.
pub(crate) fn calls(text: &str) -> Option<Vec<(String, String)>> {
    let mut reader = LiteralReader::new(text);
    let mut calls = Vec::new();
    reader.expect('[')?;
    loop {
        calls.push(reader.call()?);
        if !reader.next_item(']')? {
            break;
        }
    }
    reader.space();
    reader.rest.is_empty().then_some(calls)
}

/// Reads calls that follow each other, each usually in a line of its own. Returns the same as [`calls`].
pub(crate) fn call_lines(text: &str) -> Option<Vec<(String, String)>> {
    let mut reader = LiteralReader::new(text);
    let mut calls = Vec::new();
    loop {
        calls.push(reader.call()?);
        reader.space();
        if reader.rest.is_empty() {
            return Some(calls);
        }
    }
}

/// Whether `c` may occur in the name of a call. Names may contain dots.
pub(crate) fn is_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '.' | '-')
}

struct LiteralReader<'t> {
    rest: &'t str,
}

impl<'t> LiteralReader<'t> {
    fn new(text: &'t str) -> Self {
        Self { rest: text }
    }

    fn space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn expect(&mut self, c: char) -> Option<()> {
        self.space();
        self.rest = self.rest.strip_prefix(c)?;
        Some(())
    }

    /// Reads the text after an item. Returns `true` if another item follows, and `false` after `close`. Python allows a
    /// comma before `close`.
    fn next_item(&mut self, close: char) -> Option<bool> {
        self.space();
        if let Some(rest) = self.rest.strip_prefix(',') {
            self.rest = rest.trim_start();
            if !self.rest.starts_with(close) {
                return Some(true);
            }
        }
        self.expect(close)?;
        Some(false)
    }

    fn name(&mut self) -> Option<&'t str> {
        self.space();
        let end = self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        (!name.is_empty()).then_some(name)
    }

    fn call(&mut self) -> Option<(String, String)> {
        let name = self.name()?.to_owned();
        self.expect('(')?;
        let mut out = "{".to_owned();
        self.space();
        if let Some(rest) = self.rest.strip_prefix(')') {
            self.rest = rest;
            return Some((name, out + "}"));
        }
        loop {
            let key = self.name()?;
            self.expect('=')?;
            let _ = write!(out, "{}: ", crate::json::quoted(key));
            self.value(&mut out, 0)?;
            if !self.next_item(')')? {
                return Some((name, out + "}"));
            }
            out.push_str(", ");
        }
    }

    fn value(&mut self, out: &mut String, depth: u32) -> Option<()> {
        let deeper = depth.checked_add(1).filter(|depth| *depth < MAX_DEPTH)?;
        self.space();
        match self.rest.chars().next()? {
            '\'' | '"' => {
                let mut text = self.string()?;
                // Adjacent strings are one string.
                loop {
                    self.space();
                    if !self.rest.starts_with(['\'', '"']) {
                        break;
                    }
                    text.push_str(&self.string()?);
                }
                out.push_str(&crate::json::quoted(&text));
            }
            '[' => self.items(out, deeper, ('[', ']'))?,
            '(' => self.items(out, deeper, ('(', ')'))?,
            '{' => self.members(out, deeper)?,
            _ => {
                let end = self.rest.find(|c: char| !(is_name(c) || c == '+')).unwrap_or(self.rest.len());
                let (word, rest) = self.rest.split_at_checked(end)?;
                self.rest = rest;
                match word {
                    "None" | "null" => out.push_str("null"),
                    "True" | "true" => out.push_str("true"),
                    "False" | "false" => out.push_str("false"),
                    number => out.push_str(&self::number(number)?),
                }
            }
        }
        Some(())
    }

    fn items(&mut self, out: &mut String, depth: u32, (open, close): (char, char)) -> Option<()> {
        self.expect(open)?;
        out.push('[');
        self.space();
        if let Some(rest) = self.rest.strip_prefix(close) {
            self.rest = rest;
        } else {
            loop {
                self.value(out, depth)?;
                if !self.next_item(close)? {
                    break;
                }
                out.push_str(", ");
            }
        }
        out.push(']');
        Some(())
    }

    fn members(&mut self, out: &mut String, depth: u32) -> Option<()> {
        self.expect('{')?;
        out.push('{');
        self.space();
        if let Some(rest) = self.rest.strip_prefix('}') {
            self.rest = rest;
        } else {
            loop {
                self.space();
                let key = self.string()?;
                self.expect(':')?;
                let _ = write!(out, "{}: ", crate::json::quoted(&key));
                self.value(out, depth)?;
                if !self.next_item('}')? {
                    break;
                }
                out.push_str(", ");
            }
        }
        out.push('}');
        Some(())
    }

    fn string(&mut self) -> Option<String> {
        let quote = self.rest.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        let triple = quote.to_string().repeat(3);
        let close = if self.rest.starts_with(&triple) { triple } else { quote.to_string() };
        let mut rest = self.rest.get(close.len()..)?;
        let mut text = String::new();
        loop {
            if let Some(after) = rest.strip_prefix(close.as_str()) {
                self.rest = after;
                return Some(text);
            }
            let mut chars = rest.chars();
            match chars.next()? {
                '\\' => escape(&mut chars, &mut text)?,
                c => text.push(c),
            }
            rest = chars.as_str();
        }
    }
}

fn escape(chars: &mut std::str::Chars<'_>, text: &mut String) -> Option<()> {
    let c = chars.next()?;
    let plain = match c {
        'n' => Some('\n'),
        't' => Some('\t'),
        'r' => Some('\r'),
        'b' => Some('\u{8}'),
        'f' => Some('\u{c}'),
        '0' => Some('\0'),
        '\\' | '\'' | '"' => Some(c),
        _ => None,
    };
    if let Some(plain) = plain {
        text.push(plain);
        return Some(());
    }
    let digits = match c {
        '\n' => return Some(()),
        'x' => 2,
        'u' => 4,
        'U' => 8,
        // Python keeps the backslash of an unknown escape.
        other => {
            text.extend(['\\', other]);
            return Some(());
        }
    };
    let mut hex = |skip: &str, digits: usize| {
        let (code, rest) = chars.as_str().strip_prefix(skip)?.split_at_checked(digits)?;
        let code = u32::from_str_radix(code, 16).ok()?;
        *chars = rest.chars();
        Some(code)
    };
    let code = match hex("", digits)? {
        // A pair of surrogates, as in JSON.
        high @ 0xd800..=0xdbff => {
            let low = hex("\\u", 4)?.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
            0x1_0000_u32.checked_add((high & 0x3ff) << 10)?.checked_add(low)?
        }
        code => code,
    };
    text.push(char::from_u32(code)?);
    Some(())
}

/// Returns a Python number as JSON writes it.
fn number(word: &str) -> Option<String> {
    let digits = word.replace('_', "");
    let plain = digits.strip_prefix('+').unwrap_or(&digits);
    if serde_json::from_str::<serde_json::Number>(plain).is_ok() {
        return Some(plain.to_owned());
    }
    // `.5` and `5.`
    let (sign, rest) = plain.strip_prefix('-').map_or(("", plain), |rest| ("-", rest));
    let whole = match rest.strip_suffix('.') {
        Some(rest) => format!("{sign}{rest}.0"),
        None if rest.starts_with('.') => format!("{sign}0{rest}"),
        None => return None,
    };
    serde_json::from_str::<serde_json::Number>(&whole).is_ok().then_some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals() {
        for (text, expected) in [
            ("None", Some("null")),
            ("[True, False, 1_000, -2.5, .5, 1e3]", Some("[true, false, 1000, -2.5, 0.5, 1e3]")),
            ("('a', \"b\",)", Some("[\"a\", \"b\"]")),
            ("{'k': {'n': []}, \"m\": 'it\\'s'}", Some("{\"k\": {\"n\": []}, \"m\": \"it's\"}")),
            ("'a' 'b'", Some("\"ab\"")),
            ("'''x'y\n'''", Some("\"x'y\\n\"")),
            ("'\\x41\\u00e9\\U0001f600\\ud83d\\ude00\\q'", Some("\"Aé😀😀\\\\q\"")),
            ("5.", Some("5.0")),
            ("1e999", None),
            ("foo", None),
            ("[1", None),
            ("[1] 2", None),
            ("'a", None),
            ("'\\ud800'", None),
            ("{1: 2}", None),
        ] {
            assert_eq!(literal(text).as_deref(), expected, "{text}");
        }
        assert_eq!(literal(&("[".repeat(100) + &"]".repeat(100))), None);
    }

    #[test]
    fn lines_of_calls() {
        let call = |name: &str, arguments: &str| (name.to_owned(), arguments.to_owned());
        assert_eq!(
            call_lines("\nf(x='a\\nb', y=true)\n\n g( )\n"),
            Some(vec![call("f", "{\"x\": \"a\\nb\", \"y\": true}"), call("g", "{}")])
        );
        for text in ["", "\n", "f", "f(", "f(1)", "[f()]", "f(), g()", "f() 1"] {
            assert_eq!(call_lines(text), None, "{text}");
        }
    }

    #[test]
    fn lists_of_calls() {
        let read = |text: &str| calls(text);
        let call = |name: &str, arguments: &str| (name.to_owned(), arguments.to_owned());
        assert_eq!(read("[f()]"), Some(vec![call("f", "{}")]));
        assert_eq!(
            read("[a.b(x=1, y='z',), g(l=[{'k': 2}])]"),
            Some(vec![call("a.b", "{\"x\": 1, \"y\": \"z\"}"), call("g", "{\"l\": [{\"k\": 2}]}")])
        );
        for text in ["[]", "[1]", "f()", "[f(1)]", "[f(x=)]", "[f(x=1)", "[f(x=g())]"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
