//! Types of an OpenAPI document as words and tables. Must not know what they are for.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

use super::json::{list, object, slug, text_of};

/// Path of the types in the document.
const SCHEMAS: &str = "/components/schemas";

/// The types of a document.
pub(super) struct Types<'d> {
    document: &'d Value,
    /// Types that routes use, directly or through other types.
    named: BTreeSet<&'d str>,
    /// Types in request bodies. Only for these it matters which fields may be omitted.
    sent: BTreeSet<&'d str>,
}

impl<'d> Types<'d> {
    pub(super) fn of(document: &'d Value) -> Self {
        let (mut named, mut sent) = (BTreeSet::new(), BTreeSet::new());
        for (_, item) in object(document.get("paths")) {
            note(document, item, &mut named);
            for body in object(Some(item)).filter_map(|(_, route)| route.get("requestBody")) {
                note(document, body, &mut sent);
            }
        }
        Self { document, named, sent }
    }

    /// Describes every used type, ordered by name.
    pub(super) fn written(&self) -> String {
        let all = object(self.document.pointer(SCHEMAS));
        let mut all: Vec<_> = all.filter(|(name, _)| self.named.contains(name)).collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        let mut out = String::new();
        for (name, schema) in all {
            let _ = write!(out, "\n### Type {name}\n");
            let says = text_of(schema, "description");
            if !says.is_empty() {
                let _ = write!(out, "\n{says}\n");
            }
            out += &shape(schema, self.sent.contains(name));
        }
        out
    }
}

/// Collects all types that `value` refers to, directly or through other types.
fn note<'d>(document: &'d Value, value: &'d Value, noted: &mut BTreeSet<&'d str>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let Some(name) = value.as_str().filter(|_| key == "$ref").and_then(last) else {
                    note(document, value, noted);
                    continue;
                };
                let schema = document.pointer(&format!("{SCHEMAS}/{name}"));
                if noted.insert(name)
                    && let Some(schema) = schema
                {
                    note(document, schema, noted);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| note(document, item, noted)),
        _ => {}
    }
}

/// Describes the structure of a type.
fn shape(schema: &Value, is_sent: bool) -> String {
    let others = list(schema.get("oneOf"));
    if others.iter().any(|other| other.get("properties").is_some()) {
        let mut out = String::from("\nOne of these:\n");
        for other in others {
            let _ = write!(out, "\n{}\n{}", text_of(other, "description"), fields(other, is_sent));
        }
        return out;
    }
    if !others.is_empty() {
        let mut out = String::new();
        for other in others {
            let _ = write!(out, "\n- {}: {}", words(other, false), text_of(other, "description"));
        }
        return out + "\n";
    }
    match schema.get("properties") {
        Some(_) => fields(schema, is_sent),
        None => format!("\n{}.\n", capital(&words(schema, true))),
    }
}

fn fields(schema: &Value, is_sent: bool) -> String {
    let required: BTreeSet<_> = list(schema.get("required")).iter().filter_map(Value::as_str).collect();
    let mut out = String::from("\n| field | type | what |\n|---|---|---|\n");
    for (name, field) in object(schema.get("properties")) {
        let may_lack = is_sent && !required.contains(name);
        let default = field.get("default").filter(|default| !default.is_null());
        let left_out = match default {
            Some(default) if is_sent => format!("left out: `{default}`"),
            _ if may_lack => "may be left out".to_owned(),
            _ => String::new(),
        };
        let of_type = [words(field, false), left_out].into_iter().filter(|part| !part.is_empty());
        let of_type = of_type.collect::<Vec<_>>().join("; ");
        let _ = writeln!(out, "| `{name}` | {of_type} | {} |", cell(text_of(field, "description")));
    }
    out
}

/// A type in words: `text or null`, `list of [Name](#name)`. In a table cell (`is_line` is false), `|` is escaped.
pub(super) fn words(schema: &Value, is_line: bool) -> String {
    if let Some(name) = schema.get("$ref").and_then(Value::as_str).and_then(last) {
        return format!("[{name}](#{})", slug(&format!("Type {name}")));
    }
    if let Some(only) = schema.get("const") {
        return code(&only.to_string(), is_line);
    }
    let of_one = list(schema.get("allOf"));
    if let [one] = of_one {
        return words(one, is_line);
    }
    let others = [list(schema.get("anyOf")), list(schema.get("oneOf"))].concat();
    if !others.is_empty() {
        return others.iter().map(|other| words(other, is_line)).collect::<Vec<_>>().join(" or ");
    }
    let values = list(schema.get("enum"));
    if !values.is_empty() {
        let named = values.iter().map(|value| code(&value.to_string(), is_line));
        return named.collect::<Vec<_>>().join(", ");
    }
    let kinds = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        Some(Value::String(kind)) => vec![kind.as_str()],
        _ => return "anything".to_owned(),
    };
    let each = kinds.into_iter().map(|kind| of_kind(kind, schema, is_line));
    each.collect::<Vec<_>>().join(" or ")
}

fn of_kind(kind: &str, schema: &Value, is_line: bool) -> String {
    let bound = |name: &str| schema.get(name).map(Value::to_string);
    match kind {
        "null" => "`null`".to_owned(),
        "array" => {
            let of = schema.get("items").map_or_else(|| "anything".to_owned(), |items| words(items, is_line));
            format!("list of {of}")
        }
        "object" => match schema.get("additionalProperties") {
            Some(of @ Value::Object(_)) => format!("object of {} by name", words(of, is_line)),
            _ => "object".to_owned(),
        },
        "integer" | "number" => match (bound("minimum"), bound("maximum")) {
            // A bound such as 0 or 2⁶⁴ − 1 only states the range of the type.
            (Some(low), Some(high)) if high.len() < 10 => format!("{kind}, {low} to {high}"),
            (Some(low), _) if low != "0" => format!("{kind}, {low} or more"),
            _ => kind.to_owned(),
        },
        "string" => match (bound("maxLength"), schema.get("pattern").and_then(Value::as_str)) {
            (_, Some(pattern)) => format!("text like {}", code(pattern, is_line)),
            (Some(most), _) => format!("text of at most {most} characters"),
            _ if text_of(schema, "format") == "date-time" => "time".to_owned(),
            _ => "text".to_owned(),
        },
        kind => kind.to_owned(),
    }
}

/// The last segment of a reference, which is the type's name.
fn last(reference: &str) -> Option<&str> {
    reference.rsplit('/').next()
}

fn code(text: &str, is_line: bool) -> String {
    let text = if is_line { text.to_owned() } else { cell(text) };
    format!("`{text}`")
}

/// Escapes text so that it does not end a table cell.
pub(super) fn cell(text: &str) -> String {
    text.replace('\n', " ").replace('|', "\\|")
}

fn capital(words: &str) -> String {
    let mut rest = words.chars();
    rest.next().map(|first| first.to_uppercase().chain(rest).collect()).unwrap_or_default()
}
