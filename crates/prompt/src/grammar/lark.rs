//! Writes the rules of a grammar in Lark: marks, texts and JSON. Must not know tools or families.

use std::fmt::Write;

use serde_json::{Map, Value};

/// Keyword beside the schema of arguments that consist of one text: the text's grammar in Lark. The grammar describes
/// the text as it appears inside a JSON string.
pub const TEXT_GRAMMAR: &str = "x-text-grammar";
/// Keyword beside the schema of a text: a regular expression that must match the whole text. It is written as between
/// slashes in Lark.
pub const TEXT_PATTERN: &str = "x-text-pattern";

/// A grammar that is being written.
pub(super) struct LarkWriter<'s> {
    pub(super) rules: String,
    pub(super) special: &'s dyn Fn(&str) -> Option<u32>,
    /// The number of terminals named so far.
    pub(super) texts: usize,
}

impl LarkWriter<'_> {
    pub(super) fn rule(&mut self, name: &str, is: &str) {
        let _ = writeln!(self.rules, "{name}: {is}");
    }

    pub(super) fn json(&mut self, rule: &str, schema: &Value) {
        let only = schema
            .get("properties")
            .and_then(Value::as_object)
            .and_then(|properties| properties.keys().next());
        if let (Some(lark), Some(key)) = (schema.get(TEXT_GRAMMAR).and_then(Value::as_str), only) {
            let open = quoted(&format!("{{{}: \"", Value::from(key.as_str())));
            self.rule(rule, &format!("{open} {rule}_text {}", quoted("\"}")));
            self.rule(&format!("{rule}_text"), &format!("%lark {{\n {lark}\n }}"));
            return;
        }
        self.rule(rule, &format!("%json {schema}"));
    }

    /// Writes the rule for a text without `mark`, with the lengths of `schema`, followed by `close`. `close` contains
    /// the mark and ends the text. Returns the expression for both.
    pub(super) fn text(&mut self, mark: &str, close: &str, schema: &Map<String, Value>) -> String {
        let special = self.begins_with_special(mark);
        let bound = |key: &str| schema.get(key).and_then(Value::as_u64);
        let mut is = self.without(if special { &[] } else { std::slice::from_ref(&mark) });
        if let (least, most) = (bound("minLength"), bound("maxLength"))
            && (least.is_some() || most.is_some())
        {
            let most = most.map(|most| most.to_string()).unwrap_or_default();
            let _ = write!(is, " & /(?s:.){{{},{most}}}/", least.unwrap_or(0));
        }
        if let Some(pattern) = schema.get(TEXT_PATTERN).and_then(Value::as_str) {
            let _ = write!(is, " & /{pattern}/");
        }
        self.texts = self.texts.saturating_add(1);
        let number = self.texts;
        self.rule(&format!("TEXT_{number}"), &is);
        if special {
            // A line break before the special token would be part of the text.
            return format!("TEXT_{number} {}", self.mark(close.trim_start()));
        }
        // A lazy rule: the text ends as soon as its mark is complete.
        self.rule(&format!("text_{number}[lazy]"), &format!("TEXT_{number} {}", quoted(close)));
        format!("text_{number}")
    }

    /// Whether a mark begins with a special token, which no text contains.
    pub(super) fn begins_with_special(&self, mark: &str) -> bool {
        self.mark(mark).starts_with("<[")
    }

    /// Returns the expression for text without `marks`.
    pub(super) fn without(&self, marks: &[&str]) -> String {
        let any = "/(?s:.*)/";
        if marks.is_empty() {
            return any.to_owned();
        }
        let marks: Vec<String> = marks.iter().map(|mark| as_regex(mark)).collect();
        format!("{any} & ~/(?s:.*)({})(?s:.*)/", marks.join("|"))
    }

    /// Returns the expression for a text of the template, with special tokens as token ids.
    pub(super) fn mark(&self, text: &str) -> String {
        let mut parts: Vec<String> = Vec::new();
        let mut from = 0;
        let mut at = 0;
        while at < text.len() {
            let rest = text.get(at..).unwrap_or("");
            let ends = rest.match_indices(['>', ']', '[']).map(|(end, _)| end.saturating_add(1));
            let found = (rest.starts_with(['<', '[', ']']))
                .then(|| ends.into_iter().find_map(|end| Some((end, (self.special)(rest.get(..end)?)?))))
                .flatten();
            if let Some((end, id)) = found {
                parts.extend(text.get(from..at).filter(|text| !text.is_empty()).map(quoted));
                parts.push(format!("<[{id}]>"));
                at = at.saturating_add(end);
                from = at;
            } else {
                at = at.saturating_add(rest.chars().next().map_or(1, char::len_utf8));
            }
        }
        parts.extend(text.get(from..).filter(|text| !text.is_empty()).map(quoted));
        if parts.is_empty() { r#""""#.to_owned() } else { parts.join(" ") }
    }
}

/// Returns a key as Lark. An empty key matches any key.
pub(super) fn key_of(key: &str) -> String {
    if key.is_empty() { "/[A-Za-z_][A-Za-z0-9_]*/".to_owned() } else { quoted(key) }
}

/// Returns a text as a Lark string, which has the form of a JSON string.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Returns a text as a regular expression for use between slashes.
pub(super) fn as_regex(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            c if c.is_ascii_punctuation() && !matches!(c, '_' | '<' | '>' | '=' | ':' | '"') => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}
