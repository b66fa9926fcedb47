//! Reads the source of a template as far as this crate needs it: text, string literals, and literals that are compared
//! with messages. Must not know the rest of Jinja's grammar; the engine compiles the result.

use std::borrow::Cow;
use std::fmt::Write;

use crate::bounds::CAP;

/// A template split into text, string literals and the rest of its code.
#[derive(Debug)]
pub(crate) struct TemplateSource<'s> {
    text: &'s str,
    parts: Vec<SourcePart<'s>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SourcePart<'s> {
    /// Text that is written out unchanged.
    Text(&'s str),
    /// A string literal with its quotes, and its use.
    Literal { quoted: &'s str, usage: LiteralUse },
    /// Code between literals, including the delimiters.
    Code(&'s str),
    /// A comment, including its delimiters.
    Comment(&'s str),
}

/// The use of a literal, as far as the code beside it shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LiteralUse {
    /// The literal may be written out.
    Output,
    /// The literal comes before `in` or beside `==` or `!=`.
    Compared,
    /// The literal is a subscript.
    Subscript,
}

impl<'s> TemplateSource<'s> {
    pub(crate) fn read(text: &'s str) -> Self {
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let Some(at) = ["{{", "{%", "{#"].iter().filter_map(|open| rest.find(open)).min() else {
                parts.push(SourcePart::Text(rest));
                break;
            };
            let (before, tag) = rest.split_at(at);
            if !before.is_empty() {
                parts.push(SourcePart::Text(before));
            }
            rest = if tag.starts_with("{#") {
                let end = tag.find("#}").map_or(tag.len(), |end| end.saturating_add(2));
                let (comment, after) = tag.split_at(end);
                parts.push(SourcePart::Comment(comment));
                after
            } else if let Some((raw, after)) = raw_block(tag) {
                parts.push(SourcePart::Text(raw));
                after
            } else {
                read_code(tag, &mut parts)
            };
        }
        mark_uses(&mut parts);
        Self { text, parts }
    }

    /// Returns the source as given.
    pub(crate) fn text(&self) -> &'s str {
        self.text
    }

    /// Returns the texts with which a message could complete `token` after text that this template writes. If a piece
    /// of the template's own text ends with a proper beginning of the token, the rest of the token is one of them.
    pub(crate) fn continuations<'t>(&self, token: &'t str) -> Vec<&'t str> {
        let mut rests = Vec::new();
        let splits: Vec<usize> = token.char_indices().skip(1).map(|(at, _)| at).collect();
        for part in &self.parts {
            let piece = match part {
                SourcePart::Text(text) => Cow::Borrowed(*text),
                SourcePart::Literal { quoted, usage: LiteralUse::Output } => unescape(quoted),
                SourcePart::Literal { .. } | SourcePart::Code(_) | SourcePart::Comment(_) => continue,
            };
            for at in &splits {
                let (begun, rest) = token.split_at(*at);
                // Text before a tag may lose its trailing space to the tag's `-`.
                let whole = piece.trim_end();
                let ends = piece.ends_with(begun) || whole.ends_with(begun);
                // A whole piece may be the middle of a beginning that the template puts together from several pieces.
                if ends || (!whole.is_empty() && begun.ends_with(whole)) {
                    rests.push(rest);
                }
            }
        }
        rests.sort_unstable();
        rests.dedup();
        rests
    }

    /// Returns the source for the engine, with three changes:
    ///
    /// - Literals that are compared with messages are written as they appear in messages. `in_messages` returns a
    ///   character as it appears there.
    /// - Hugging Face's `{% generation %}` marks, which do not affect the text, become blocks that do not affect it
    ///   either.
    /// - The limit on length is applied to all values that are stored: variables and arguments of macros.
    pub(crate) fn rewritten(&self, in_messages: impl Fn(char) -> char) -> String {
        let mut out = String::with_capacity(self.text.len().saturating_add(self.text.len() / 4));
        let mut statement = StatementText::default();
        for part in &self.parts {
            match part {
                SourcePart::Literal { quoted, usage } => {
                    statement.source.push_str(quoted);
                    let mut escaped = false;
                    for c in quoted.chars() {
                        let compared = *usage == LiteralUse::Compared && !escaped;
                        out.push(if compared { in_messages(c) } else { c });
                        escaped = !escaped && c == '\\';
                    }
                }
                SourcePart::Text(text) | SourcePart::Comment(text) => out.push_str(text),
                SourcePart::Code(code) => statement.write(code, &mut out),
            }
        }
        out
    }
}

/// A `{% … %}` that is being rewritten.
#[derive(Debug, Default)]
struct StatementText {
    /// The source of the statement so far.
    source: String,
    /// Whether a parenthesis was opened after `set x =`.
    assigns: bool,
}

impl StatementText {
    fn write(&mut self, code: &str, out: &mut String) {
        if code.starts_with("{%") || code.starts_with("{{") {
            *self = Self::default();
        }
        let mut rest = code;
        if let Some(after) = assignment(code).filter(|_| self.source.is_empty()) {
            let (head, value) = code.split_at(after);
            out.push_str(head);
            out.push('(');
            rest = value;
            self.assigns = true;
        }
        self.source.push_str(code);
        let Some(body) = rest.strip_suffix("%}") else {
            out.push_str(rest);
            return;
        };
        let body = body.strip_suffix(['-', '+']).unwrap_or(body);
        let close = rest.get(body.len()..).unwrap_or("%}");
        if self.assigns {
            let _ = write!(out, "{body})|{CAP} {close}");
        } else {
            out.push_str(&without_generation(rest));
        }
        let parameters = macro_parameters(&self.source);
        if !parameters.is_empty() {
            let _ = write!(out, "{{% set {CAP} = ({},)|{CAP} {close}", parameters.join(", "));
        }
        *self = Self::default();
    }
}

/// Returns the position in `code` at which the value of `{% set x = …` begins. `None` for other statements.
fn assignment(code: &str) -> Option<usize> {
    let inner = code.strip_prefix("{%")?.trim_start_matches(['-', '+']).trim_start();
    let names = inner.strip_prefix("set")?.strip_prefix(char::is_whitespace)?;
    let equals = names.find('=')?;
    // `{% set x | filter(key=1) %}` opens a block.
    if names.get(..equals)?.contains(['(', '|']) {
        return None;
    }
    Some(code.len().saturating_sub(names.len()).saturating_add(equals).saturating_add(1))
}

/// Returns the names of a macro's parameters, from the macro's whole statement.
fn macro_parameters(statement: &str) -> Vec<&str> {
    let inner = statement.trim_start_matches("{%").trim_start_matches(['-', '+']).trim_start();
    let Some((_, list)) = inner
        .strip_prefix("macro")
        .filter(|rest| rest.starts_with(char::is_whitespace))
        .and_then(|rest| rest.split_once('('))
    else {
        return Vec::new();
    };
    let mut names = Vec::new();
    let (mut depth, mut quote, mut escaped, mut at_name) = (0usize, None, false, true);
    for (at, c) in list.char_indices() {
        match (quote, c) {
            (Some(open), _) => {
                if c == open && !escaped {
                    quote = None;
                }
                escaped = !escaped && c == '\\';
            }
            (None, '"' | '\'') => quote = Some(c),
            (None, '(' | '[' | '{') => depth = depth.saturating_add(1),
            (None, ')' | ']' | '}') if depth > 0 => depth -= 1,
            (None, ')') => break,
            (None, ',') if depth == 0 => at_name = true,
            (None, c) if at_name && (c.is_alphabetic() || c == '_') => {
                let name = list.get(at..).unwrap_or("");
                let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
                names.extend(name.get(..end));
                at_name = false;
            }
            _ => {}
        }
    }
    names
}

/// Splits `{% raw %}…{% endraw %}` off the beginning of `tag`. Returns the block and the rest.
fn raw_block(tag: &str) -> Option<(&str, &str)> {
    let word = |tag: &str, name: &str| -> Option<usize> {
        let inner = tag.strip_prefix("{%")?;
        let end = inner.find("%}")?;
        let body = inner.get(..end)?.trim_matches(['-', '+']).trim();
        (body == name).then(|| end.saturating_add(4))
    };
    let opened = word(tag, "raw")?;
    let mut at = opened;
    loop {
        at = at.saturating_add(tag.get(at..)?.find("{%")?);
        if let Some(length) = word(tag.get(at..)?, "endraw") {
            return Some(tag.split_at(at.saturating_add(length)));
        }
        at = at.saturating_add(2);
    }
}

/// Reads one `{{ … }}` or `{% … %}` and returns the rest.
fn read_code<'s>(tag: &'s str, parts: &mut Vec<SourcePart<'s>>) -> &'s str {
    let close = if tag.starts_with("{{") { "}}" } else { "%}" };
    let mut from = 0;
    let mut at = 2;
    let mut depth = 0usize;
    while let Some(rest) = tag.get(at..) {
        let Some(c) = rest.chars().next() else { break };
        match c {
            '"' | '\'' => {
                let end = literal_end(tag, at);
                if let (Some(code), Some(quoted)) = (tag.get(from..at), tag.get(at..end)) {
                    parts.push(SourcePart::Code(code));
                    parts.push(SourcePart::Literal { quoted, usage: LiteralUse::Output });
                }
                (from, at) = (end, end);
                continue;
            }
            // The closing braces of a dictionary do not close the tag.
            '{' => depth = depth.saturating_add(1),
            '}' if depth > 0 => depth -= 1,
            _ if rest.starts_with(close) => {
                let (code, after) = tag.split_at(at.saturating_add(2));
                parts.push(SourcePart::Code(code.get(from..).unwrap_or("")));
                return after;
            }
            _ => {}
        }
        at = at.saturating_add(c.len_utf8());
    }
    parts.push(SourcePart::Code(tag.get(from..).unwrap_or("")));
    ""
}

/// Returns the position after the closing quote of the literal that begins at `at`.
fn literal_end(tag: &str, at: usize) -> usize {
    let mut chars = tag.get(at..).unwrap_or("").char_indices();
    let quote = chars.next().map_or('"', |(_, c)| c);
    let mut escaped = false;
    for (offset, c) in chars {
        if c == quote && !escaped {
            return at.saturating_add(offset).saturating_add(1);
        }
        escaped = !escaped && c == '\\';
    }
    tag.len()
}

/// Sets the use of each literal: compared (before `in` or `not in`, or beside `==` or `!=`), subscript, or output.
fn mark_uses(parts: &mut [SourcePart<'_>]) {
    let code = |part: Option<&SourcePart<'_>>| match part {
        Some(SourcePart::Code(code)) => (*code).to_owned(),
        _ => String::new(),
    };
    for at in 0..parts.len() {
        let before = at.checked_sub(1).map(|at| code(parts.get(at))).unwrap_or_default();
        let after = code(parts.get(at.saturating_add(1)));
        let mut words = after.split_whitespace();
        let follows = match (words.next(), words.next()) {
            (Some("in"), _) | (Some("not"), Some("in")) => true,
            (Some(word), _) => word.starts_with("==") || word.starts_with("!="),
            _ => false,
        };
        let before = before.trim_end();
        let precedes = before.ends_with("==") || before.ends_with("!=");
        // `x['key']`, not the list `['item']`.
        let indexed = before.strip_suffix('[').and_then(|before| before.chars().next_back());
        let indexed = indexed.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | ']' | ')'));
        if let Some(SourcePart::Literal { usage, .. }) = parts.get_mut(at) {
            *usage = match (follows || precedes, indexed && after.trim_start().starts_with(']')) {
                (true, _) => LiteralUse::Compared,
                (false, true) => LiteralUse::Subscript,
                (false, false) => LiteralUse::Output,
            };
        }
    }
}

/// Returns the value of a string literal. Only escapes of quotes and common control characters are decoded, which is
/// enough to compare its end.
fn unescape(quoted: &str) -> Cow<'_, str> {
    let inner = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or("");
    if !inner.contains('\\') {
        return Cow::Borrowed(inner);
    }
    let mut out = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match (c, if c == '\\' { chars.next() } else { None }) {
            ('\\', Some('n')) => out.push('\n'),
            ('\\', Some('t')) => out.push('\t'),
            ('\\', Some('r')) => out.push('\r'),
            ('\\', Some('x')) => push_hex(&mut chars, 2, &mut out),
            ('\\', Some('u')) => push_hex(&mut chars, 4, &mut out),
            ('\\', Some(other)) => out.push(other),
            _ => out.push(c),
        }
    }
    Cow::Owned(out)
}

fn push_hex(chars: &mut std::str::Chars<'_>, digits: usize, out: &mut String) {
    let hex: String = chars.take(digits).collect();
    match u32::from_str_radix(&hex, 16).ok().and_then(char::from_u32) {
        Some(c) => out.push(c),
        None => {
            let _ = out.write_str(&hex);
        }
    }
}

/// Rewrites `{% generation %}` and `{% endgeneration %}` as `{% if true %}` and `{% endif %}`.
fn without_generation(code: &str) -> Cow<'_, str> {
    let Some(inner) = code.strip_prefix("{%").and_then(|code| code.strip_suffix("%}")) else {
        return Cow::Borrowed(code);
    };
    let replace = |word: &str, by: &str| Cow::Owned(code.replacen(word, by, 1));
    match inner.trim_matches(['-', '+']).trim() {
        "generation" => replace("generation", "if true"),
        "endgeneration" => replace("endgeneration", "endif"),
        _ => Cow::Borrowed(code),
    }
}
