//! Translates llama.cpp's grammar notation (GBNF, similar to XGrammar's EBNF) into llguidance's. Source:
//! `grammars/README.md` of llama.cpp. Supports rules, texts, character classes, groups, alternatives and repetitions,
//! and refuses anything else.

use std::collections::HashMap;
use std::fmt::Write;

use crate::fault::GrammarFault;

mod calls;
mod literal;
mod numbers;
mod pattern;
mod schema;

pub use calls::calls_as_gbnf;

/// The rule that a grammar begins with, in GBNF and in Lark.
const ROOT: &str = "root";
const START: &str = "start";

/// Translates a grammar for llguidance. The caller must have limited the nesting, because parsing is recursive.
///
/// # Errors
/// The line of the error, and the problem there.
pub(crate) fn to_lark(text: &str) -> Result<String, GrammarFault> {
    let mut reader = GbnfReader { rest: text, line: 1, names: RuleNames::default() };
    let mut out = String::new();
    reader.skip(true);
    while !reader.rest.is_empty() {
        let name = reader.name().ok_or_else(|| reader.fault("a rule's name is expected"))?;
        let rule = reader.names.define(&name);
        if rule.defined {
            return Err(reader.fault(&format!("the rule `{name}` is defined twice")));
        }
        let rule = rule.lark;
        reader.skip(true);
        if !reader.take("::=") {
            return Err(reader.fault(&format!("`::=` is expected after `{name}`")));
        }
        reader.skip(true);
        let body = reader.alternatives(false)?;
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{rule}: {body}");
        reader.skip(true);
    }
    if let Some(name) = reader.names.undefined() {
        return Err(GrammarFault::invalid("", format!("the rule `{name}` is used and defined nowhere")));
    }
    if !reader.names.known.contains_key(ROOT) {
        return Err(GrammarFault::invalid(
            "",
            format!("there is no rule `{ROOT}`, which an answer begins with"),
        ));
    }
    Ok(out)
}

/// Numbers of rules by GBNF name, and whether each is defined.
#[derive(Default)]
struct RuleNames {
    known: HashMap<String, (usize, bool)>,
}

struct DefinedRule {
    lark: String,
    /// Whether it was defined before.
    defined: bool,
}

impl RuleNames {
    fn lark(&mut self, name: &str) -> String {
        let next = self.known.len();
        let (number, _) = self.known.entry(name.to_owned()).or_insert((next, false));
        if name == ROOT { START.to_owned() } else { format!("r{number}") }
    }

    fn define(&mut self, name: &str) -> DefinedRule {
        let lark = self.lark(name);
        let defined = self.known.get_mut(name).is_some_and(|known| std::mem::replace(&mut known.1, true));
        DefinedRule { lark, defined }
    }

    fn undefined(&self) -> Option<&str> {
        let undefined = self.known.iter().filter(|(_, (_, defined))| !defined);
        undefined.min_by_key(|(_, (number, _))| *number).map(|(name, _)| name.as_str())
    }
}

struct GbnfReader<'a> {
    rest: &'a str,
    line: usize,
    names: RuleNames,
}

impl GbnfReader<'_> {
    fn fault(&self, why: &str) -> GrammarFault {
        GrammarFault::invalid(&format!("line {}", self.line), why)
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.rest = self.rest.get(next.len_utf8()..).unwrap_or_default();
        self.line += usize::from(next == '\n');
        Some(next)
    }

    fn take(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Skips white space and comments, and line ends only if `lines`.
    fn skip(&mut self, lines: bool) {
        while let Some(next) = self.peek() {
            match next {
                '#' => {
                    while self.peek().is_some_and(|next| next != '\n') {
                        self.next();
                    }
                }
                '\n' | '\r' if !lines => return,
                next if next.is_whitespace() => drop(self.next()),
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Option<String> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!name.is_empty()).then(|| name.to_owned())
    }

    /// Alternatives up to the end of a rule or group. A rule continues after a line that ends in `|`, or before one
    /// that begins with it.
    fn alternatives(&mut self, in_group: bool) -> Result<String, GrammarFault> {
        let mut out = self.sequence(in_group)?;
        loop {
            self.skip(in_group);
            if !in_group {
                self.skip_to_bar();
            }
            if !self.take("|") {
                return Ok(out);
            }
            self.skip(true);
            let next = self.sequence(in_group)?;
            let _ = write!(out, " | {next}");
        }
    }

    /// Continues at the next line if it begins with `|`.
    fn skip_to_bar(&mut self) {
        let (rest, line) = (self.rest, self.line);
        self.skip(true);
        if self.peek() != Some('|') {
            (self.rest, self.line) = (rest, line);
        }
    }

    fn sequence(&mut self, in_group: bool) -> Result<String, GrammarFault> {
        let mut parts: Vec<String> = Vec::new();
        loop {
            self.skip(in_group);
            let part = match self.peek() {
                Some('"') => self.text()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.next();
                    "/(?s:.)/".to_owned()
                }
                Some('(') => {
                    self.next();
                    let inner = self.alternatives(true)?;
                    if !self.take(")") {
                        return Err(self.fault("`)` is missing"));
                    }
                    format!("({inner})")
                }
                Some(c) if c.is_ascii_alphanumeric() || c == '_' => {
                    let name = self.name().unwrap_or_default();
                    self.names.lark(&name)
                }
                None | Some('|' | ')' | '\n' | '\r') => break,
                Some(other) => return Err(self.fault(&format!("`{other}` means nothing here"))),
            };
            let times = self.times()?;
            parts.push(part + &times);
        }
        Ok(if parts.is_empty() { "\"\"".to_owned() } else { parts.join(" ") })
    }

    fn times(&mut self) -> Result<String, GrammarFault> {
        for times in ["*", "+", "?"] {
            if self.take(times) {
                return Ok(times.to_owned());
            }
        }
        if !self.take("{") {
            return Ok(String::new());
        }
        let end = self.rest.find('}').ok_or_else(|| self.fault("`}` is missing"))?;
        let (inner, rest) = self.rest.split_at(end);
        self.rest = rest.strip_prefix('}').unwrap_or(rest);
        let inner: String = inner.chars().filter(|c| !c.is_whitespace()).collect();
        let parts: Vec<&str> = inner.split(',').collect();
        let count = |text: &str| text.parse::<u32>().ok().filter(|count| *count <= MOST_TIMES);
        let fault = || self.fault(&format!("`{{{inner}}}` is no repetition of at most {MOST_TIMES}"));
        match parts.as_slice() {
            [only] => count(only).map(|count| format!("{{{count}}}")).ok_or_else(fault),
            [least, ""] => count(least).map(|least| format!("{{{least},}}")).ok_or_else(fault),
            [least, most] => {
                let least = if least.is_empty() { Some(0) } else { count(least) };
                let pair = least.zip(count(most)).filter(|(least, most)| least <= most);
                pair.map(|(least, most)| format!("{{{least},{most}}}")).ok_or_else(fault)
            }
            _ => Err(fault()),
        }
    }

    /// A quoted text, written as a JSON string.
    fn text(&mut self) -> Result<String, GrammarFault> {
        self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                Some('"') => return Ok(serde_json::Value::from(text).to_string()),
                Some('\\') => text.push(self.escape()?),
                Some(c) => text.push(c),
                None => return Err(self.fault("a text does not end")),
            }
        }
    }

    /// The character of an escape, after its backslash.
    fn escape(&mut self) -> Result<char, GrammarFault> {
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(c) if c.is_ascii_punctuation() => return Ok(c),
            _ => return Err(self.fault("a backslash is followed by nothing that is known")),
        };
        let (code, rest) = self.rest.split_at_checked(digits).unwrap_or((self.rest, ""));
        let found = u32::from_str_radix(code, 16).ok().and_then(char::from_u32);
        let found = found.ok_or_else(|| self.fault(&format!("`{code}` is no character's number")))?;
        self.rest = rest;
        Ok(found)
    }

    /// A class such as `[^a-z"]`, as a regular expression.
    fn class(&mut self) -> Result<String, GrammarFault> {
        self.next();
        let mut out = String::from("/[");
        if self.take("^") {
            out.push('^');
        }
        let mut is_empty = true;
        loop {
            let first = match self.next() {
                Some(']') if !is_empty => break,
                Some(']') => return Err(self.fault("a class of no characters")),
                Some('\\') => self.escape()?,
                Some(c) => c,
                None => return Err(self.fault("a class of characters does not end")),
            };
            is_empty = false;
            let is_range = self.rest.starts_with('-') && !self.rest.starts_with("-]");
            push_char(&mut out, first);
            if is_range {
                self.next();
                let last = match self.next() {
                    Some('\\') => self.escape()?,
                    Some(c) => c,
                    None => return Err(self.fault("a class of characters does not end")),
                };
                if last < first {
                    return Err(self.fault(&format!("from `{first}` to `{last}` there is nothing")));
                }
                out.push('-');
                push_char(&mut out, last);
            }
        }
        out.push_str("]/");
        Ok(out)
    }
}

/// Most repetitions of one part.
const MOST_TIMES: u32 = 10_000;

/// A character in a class of a regular expression between slashes. It is written as its code point unless it is
/// alphanumeric.
fn push_char(out: &mut String, c: char) {
    if c.is_alphanumeric() {
        out.push(c);
    } else {
        let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grammars_are_written_anew() {
        let rows = [
            (r#"root ::= "yes" | "no""#, "start: \"yes\" | \"no\"\n"),
            (
                "# a list\nroot ::= \"[\" (item-one (\",\" item-one)*)? \"]\"\nitem-one ::= [a-z0-9]{1,3} # short\n  | [^\"\\\\\\n]+\n",
                "start: \"[\" (r1 (\",\" r1)*)? \"]\"\nr1: /[a-z0-9]/{1,3} | /[^\\u{22}\\u{5c}\\u{a}]/+\n",
            ),
            ("root ::= ( \"a\"\n \"b\" | ) .", "start: (\"a\" \"b\" | \"\") /(?s:.)/\n"),
            (r#"root ::= "\x41\u00e9\"\\" [\x41-Z-]"#, "start: \"Aé\\\"\\\\\" /[A-Z\\u{2d}]/\n"),
        ];
        for (gbnf, lark) in rows {
            assert!(headrace_engine_api::is_gbnf(gbnf));
            assert_eq!(to_lark(gbnf).unwrap(), lark, "{gbnf}");
        }
    }

    #[test]
    fn what_is_none_is_told_with_its_line() {
        let rows = [
            ("root ::= \"a", "`line 1`: a text does not end"),
            ("a ::= \"b\"", "no rule `root`"),
            ("root ::= a\nb ::= \"c\"", "the rule `a` is used and defined nowhere"),
            ("root ::= \"a\"\nroot ::= \"b\"", "`line 2`: the rule `root` is defined twice"),
            ("root ::= [z-a]", "from `z` to `a`"),
            ("root ::= (\"a\"", "`)` is missing"),
            ("root ::= \"a\"{3,1}", "no repetition"),
            ("root ::= !\"a\"", "`!` means nothing here"),
            ("root = \"a\"", "`::=` is expected"),
        ];
        for (gbnf, expected) in rows {
            let error = to_lark(gbnf).expect_err("a refusal").to_string();
            assert!(error.contains(expected), "{gbnf}: {error}");
        }
    }
}
