//! Rewrites a Lark grammar of a text as a grammar of the same text inside a JSON string. Every terminal is escaped in
//! the one way that JSON writers use. Knows no calls and no callers.
//!
//! The escape of a concatenation is the concatenation of the escapes, so the rules stay as they are.

use std::fmt::Write;

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind};

use crate::bounds::MAX_DEPTH_LEVELS;
use crate::fault::GrammarFault;

/// Terminals of Lark's `common` module with characters that JSON escapes. The others ([`PLAIN`]) stay imports.
/// Source: <https://github.com/lark-parser/lark/blob/master/lark/grammars/common.lark>.
const COMMON: [(&str, &str); 9] = [
    ("ESCAPED_STRING", r#""([^"\\]|\\.)*""#),
    ("WS_INLINE", r"[ \t]+"),
    ("WS", r"[ \t\f\r\n]+"),
    ("CR", r"\r"),
    ("LF", r"\n"),
    ("NEWLINE", r"(\r?\n)+"),
    ("SH_COMMENT", r"#[^\n]*"),
    ("CPP_COMMENT", r"//[^\n]*"),
    ("SQL_COMMENT", r"--[^\n]*"),
];
const PLAIN: [&str; 14] = [
    "DIGIT",
    "HEXDIGIT",
    "INT",
    "SIGNED_INT",
    "DECIMAL",
    "FLOAT",
    "SIGNED_FLOAT",
    "NUMBER",
    "SIGNED_NUMBER",
    "LCASE_LETTER",
    "UCASE_LETTER",
    "LETTER",
    "WORD",
    "CNAME",
];

/// Returns the same grammar for the content of a JSON string, between its quotes.
///
/// # Errors
/// Names the part that has no such form: special tokens, complements, nested grammars.
pub fn within_json(lark: &str) -> Result<String, GrammarFault> {
    let mut reader = QuotedReader { rest: lark, line: 1, depth: 0, out: String::with_capacity(lark.len()) };
    while reader.step()? {}
    match reader.depth {
        0 => Ok(reader.out),
        _ => Err(reader.fault("`}` is missing")),
    }
}

struct QuotedReader<'a> {
    rest: &'a str,
    line: usize,
    depth: usize,
    out: String,
}

impl<'a> QuotedReader<'a> {
    fn fault(&self, why: &str) -> GrammarFault {
        GrammarFault::invalid(&format!("line {}", self.line), why)
    }

    fn unsupported(&self, what: &str, why: &str) -> GrammarFault {
        GrammarFault::unsupported(what, &format!("line {}", self.line), why)
    }

    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at_checked(bytes).unwrap_or((self.rest, ""));
        self.rest = rest;
        taken
    }

    fn name(&mut self) -> &'a str {
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        self.take(end)
    }

    fn spaces(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
    }

    /// Rewrites the next piece. Returns whether there was one.
    fn step(&mut self) -> Result<bool, GrammarFault> {
        let Some(next) = self.rest.chars().next() else { return Ok(false) };
        match next {
            '"' => self.text()?,
            '#' => self.comment(),
            '/' if self.rest.starts_with("//") => self.comment(),
            '/' => self.regex()?,
            '%' => self.directive()?,
            '<' => return Err(self.unsupported("<…>", "a text has no special tokens")),
            '@' => return Err(self.unsupported("@", "there is no other grammar")),
            '~' => self.repetition()?,
            '{' | '}' => {
                let depth = if next == '{' { self.depth.checked_add(1) } else { self.depth.checked_sub(1) };
                self.depth = depth.ok_or_else(|| self.fault("`{` is missing"))?;
                let taken = self.take(1);
                self.out.push_str(taken);
            }
            c if c.is_ascii_alphabetic() || c == '_' => {
                let name = self.name();
                if self.rest.starts_with('[') {
                    return Err(self.unsupported("[…]", "rules have no attributes here"));
                }
                self.out.push_str(name);
            }
            c => {
                if c == '\n' {
                    self.line += 1;
                }
                let taken = self.take(c.len_utf8());
                self.out.push_str(taken);
                if c == '\n' {
                    // Indents the line, so that in the outer grammar it does not begin a rule of that grammar.
                    self.out.push(' ');
                }
            }
        }
        Ok(true)
    }

    fn comment(&mut self) {
        let end = self.rest.find('\n').unwrap_or(self.rest.len());
        self.take(end);
    }

    /// `"text"`, `"text"i`, or `"a".."z"`.
    fn text(&mut self) -> Result<(), GrammarFault> {
        let text = self.quoted()?;
        if let Some(rest) = self.rest.strip_prefix("..") {
            self.rest = rest;
            let last = self.quoted()?;
            let one = |text: &str| text.chars().next().filter(|c| text.len() == c.len_utf8());
            let range = one(&text).zip(one(&last)).filter(|(first, last)| first <= last);
            let (first, last) =
                range.ok_or_else(|| self.fault("a range is from one character to a later one"))?;
            let class = Class::Unicode(ClassUnicode::new([ClassUnicodeRange::new(first, last)]));
            return self.terminal(&Hir::class(class));
        }
        if let Some(rest) = self.rest.strip_prefix('i').filter(|rest| !rest.starts_with(is_word)) {
            self.rest = rest;
            return self.pattern(&regex_syntax::escape(&text), "i");
        }
        self.out.push_str(&serde_json::Value::from(escaped(&text)).to_string());
        Ok(())
    }

    fn quoted(&mut self) -> Result<String, GrammarFault> {
        let mut texts = serde_json::Deserializer::from_str(self.rest).into_iter::<String>();
        let text = texts
            .next()
            .and_then(Result::ok)
            .ok_or_else(|| self.fault("a text in quotes is none of JSON's"))?;
        let end = texts.byte_offset();
        self.take(end);
        Ok(text)
    }

    fn regex(&mut self) -> Result<(), GrammarFault> {
        let (mut end, mut is_escaped) = (None, false);
        for (at, c) in self.rest.char_indices().skip(1) {
            match c {
                '/' if !is_escaped => {
                    end = Some(at);
                    break;
                }
                '\n' => break,
                _ => is_escaped = c == '\\' && !is_escaped,
            }
        }
        let end = end.ok_or_else(|| self.fault("a regular expression does not end"))?;
        let pattern = self.take(end).get(1..).unwrap_or_default();
        self.take(1);
        let flags = self.rest.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(self.rest.len());
        let flags = self.take(flags);
        self.pattern(&pattern.replace("\\/", "/"), flags)
    }

    fn pattern(&mut self, pattern: &str, flags: &str) -> Result<(), GrammarFault> {
        let mut builder = ParserBuilder::new();
        builder.nest_limit(u32::try_from(MAX_DEPTH_LEVELS).unwrap_or(u32::MAX));
        for flag in flags.chars() {
            match flag {
                'i' => builder.case_insensitive(true),
                'm' => builder.multi_line(true),
                's' => builder.dot_matches_new_line(true),
                'x' => builder.ignore_whitespace(true),
                'u' => builder.unicode(true),
                _ => return Err(self.unsupported(&format!("/…/{flag}"), "no such flag is known")),
            };
        }
        let hir = builder.build().parse(pattern);
        let hir = hir.map_err(|_| self.fault(&format!("`{}` is no regular expression", crop(pattern))))?;
        self.terminal(&hir)
    }

    fn terminal(&mut self, hir: &Hir) -> Result<(), GrammarFault> {
        let mut out = String::new();
        if let Err(what) = write_hir(hir, &mut out) {
            return Err(self.unsupported(what, "a text within JSON has none"));
        }
        // An empty regular expression is not allowed, so an empty text is written.
        self.out.push_str(&if out.is_empty() {
            "\"\"".to_owned()
        } else {
            format!("/{}/", out.replace('/', "\\/"))
        });
        Ok(())
    }

    fn directive(&mut self) -> Result<(), GrammarFault> {
        self.take(1);
        match self.name() {
            "ignore" => self.out.push_str("%ignore"),
            "import" => return self.import(),
            name => {
                return Err(self.unsupported(
                    &format!("%{name}"),
                    "within a call only `%ignore` and `%import` are known",
                ));
            }
        }
        Ok(())
    }

    /// `%import common.WS`, `%import common.WS -> SPACE` or `%import common (WS, INT)`.
    fn import(&mut self) -> Result<(), GrammarFault> {
        self.spaces();
        let path = self.name();
        let Some(below) = path.strip_prefix("common") else {
            return Err(self.unsupported("%import", "only `common` can be imported"));
        };
        self.spaces();
        let mut names: Vec<(String, String)> = Vec::new();
        if let Some(name) = below.strip_prefix('.') {
            let mut alias = name;
            if let Some(rest) = self.rest.strip_prefix("->") {
                self.rest = rest;
                self.spaces();
                alias = self.name();
            }
            names.push((name.to_owned(), alias.to_owned()));
        } else if let Some((list, rest)) = self.rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
            self.rest = rest;
            names.extend(list.split(',').map(|name| (name.trim().to_owned(), name.trim().to_owned())));
        }
        if names.is_empty() {
            return Err(self.fault("what is to be imported is not said"));
        }
        for (name, alias) in names {
            if let Some((_, pattern)) = COMMON.iter().find(|(known, _)| *known == name) {
                let _ = write!(self.out, "\n {alias}: ");
                self.pattern(pattern, "")?;
                self.out.push('\n');
            } else if PLAIN.contains(&name.as_str()) {
                let to = if name == alias { String::new() } else { format!(" -> {alias}") };
                let _ = writeln!(self.out, "\n %import common.{name}{to}");
            } else {
                return Err(self.unsupported(&format!("common.{name}"), "it is not known"));
            }
        }
        self.out.push(' ');
        Ok(())
    }

    /// `~ 3` or `~ 2..4`. A `~` without a number is a complement, which is refused.
    fn repetition(&mut self) -> Result<(), GrammarFault> {
        self.take(1);
        self.spaces();
        if !self.rest.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(self.unsupported("~", "a text within JSON has no complement"));
        }
        self.out.push('~');
        Ok(())
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn crop(text: &str) -> String {
    text.chars().take(60).collect()
}

/// A text as it is written within a JSON string.
fn escaped(text: &str) -> String {
    let json = serde_json::Value::from(text).to_string();
    json.get(1..json.len().saturating_sub(1)).unwrap_or_default().to_owned()
}

/// Whether JSON escapes a character.
const fn is_escaped(c: char) -> bool {
    matches!(c, '"' | '\\' | '\0'..='\x1f')
}

/// Rewrites an expression. The error names the part that cannot be rewritten.
fn write_hir(hir: &Hir, out: &mut String) -> Result<(), &'static str> {
    match hir.kind() {
        HirKind::Empty => {}
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).map_err(|_| "bytes")?;
            out.push_str(&regex_syntax::escape(&escaped(text)));
        }
        HirKind::Class(Class::Unicode(class)) => write_class(class, out),
        HirKind::Class(Class::Bytes(_)) => return Err("bytes"),
        HirKind::Look(_) => return Err("an anchor"),
        HirKind::Repetition(repetition) => {
            out.push_str("(?:");
            write_hir(&repetition.sub, out)?;
            let most = repetition.max.map(|most| most.to_string()).unwrap_or_default();
            // Writing to a string cannot fail.
            let _ = write!(out, "){{{},{most}}}", repetition.min);
        }
        HirKind::Capture(capture) => {
            out.push_str("(?:");
            write_hir(&capture.sub, out)?;
            out.push(')');
        }
        HirKind::Concat(parts) => {
            for part in parts {
                write_hir(part, out)?;
            }
        }
        HirKind::Alternation(parts) => {
            for (at, part) in parts.iter().enumerate() {
                out.push_str(if at == 0 { "(?:" } else { "|" });
                write_hir(part, out)?;
            }
            out.push(')');
        }
    }
    Ok(())
}

/// Writes one character of a class: unescaped, or as its JSON escape.
fn write_class(class: &ClassUnicode, out: &mut String) {
    let special: Vec<char> = ('\0'..='\x1f').chain(['"', '\\']).collect();
    let mut plain = class.clone();
    let ranges = special.iter().map(|c| ClassUnicodeRange::new(*c, *c));
    let mut escapes = ClassUnicode::new(ranges);
    plain.difference(&escapes.clone());
    escapes.intersect(class);
    let mut ways: Vec<String> = Vec::new();
    if !plain.ranges().is_empty() {
        let mut way = String::from("[");
        for range in plain.ranges() {
            let _ = write!(way, "\\x{{{:x}}}-\\x{{{:x}}}", u32::from(range.start()), u32::from(range.end()));
        }
        ways.push(way + "]");
    }
    let mut hidden =
        escapes.ranges().iter().flat_map(|range| range.start()..=range.end()).filter(|c| is_escaped(*c));
    ways.extend(hidden.by_ref().map(|c| regex_syntax::escape(&escaped(c.encode_utf8(&mut [0; 4])))));
    let _ = write!(out, "(?:{})", ways.join("|"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminals_are_written_as_json_writes_them() {
        for (lark, expected) in [
            ("start: \"a\" B // x\nB: \"\\\"\\n\"", "start: \"a\" B \n B: \"\\\\\\\"\\\\n\""),
            ("A: /[a\"]/", "A: /(?:[\\x{61}-\\x{61}]|\\\\\")/"),
            ("A: /a\\/b/", "A: /a\\/b/"),
            ("A: \"0\"..\"9\"", "A: /(?:[\\x{30}-\\x{39}])/"),
            ("A: \"x\" ~ 2..3", "A: \"x\" ~2..3"),
            ("%import common.INT\n", " \n %import common.INT\n \n "),
            ("%import common.LF -> E", "\n E: /\\\\n/\n "),
        ] {
            let told = within_json(lark).unwrap();
            assert_eq!(told.trim(), expected.trim(), "{lark}");
        }
    }

    #[test]
    fn what_has_no_such_form_is_named() {
        for (lark, said) in [
            ("start: <|im_end|>", "<…>"),
            ("start: @other", "`@`"),
            ("A: ~/a/", "`~`"),
            ("start: %json {}", "%json"),
            ("%import python.NAME", "%import"),
            ("%import common.NOTHING", "common.NOTHING"),
            ("a[lazy]: \"x\"", "attributes"),
            ("A: /^a/", "an anchor"),
            ("A: /a", "does not end"),
            ("A: /(/", "no regular expression"),
            ("A: \"a", "none of JSON's"),
            ("A: \"b\"..\"a\"", "a range"),
            ("start: \"a\" } evil: \"b\"", "`{` is missing"),
            ("start: \"a\"{2", "`}` is missing"),
        ] {
            let error = within_json(lark).unwrap_err().to_string();
            assert!(error.contains(said), "{lark}: {error}");
        }
    }
}
