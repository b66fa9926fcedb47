//! Prepares a JSON Schema for compilation. Every keyword is enforced, or refused with its name and place. References
//! become definitions of their own, and keys keep their order. Knows no tokens.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::bounds::{
    MAX_COUNTED, MAX_DEPTH_LEVELS, MAX_NAME_PATTERNS, MAX_OBJECT_PROPERTIES, MAX_PATTERNS, MAX_SCHEMA_NODES,
};
use crate::fault::GrammarFault;
use crate::regex;

mod ends;
mod keywords;
mod pairs;

use keywords::{Keyword, keyword};
use pairs::PropertyPairs;

/// The largest number bound for which llguidance builds an expression.
const MAX_NUMBER: f64 = u64::MAX as f64;

/// The string formats that can be enforced.
pub(crate) const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"];

/// Prepares a schema for compilation.
///
/// # Errors
/// The first keyword, in text order, that cannot be enforced; or an exceeded limit.
pub(crate) fn prepared(schema: &Value) -> Result<Value, GrammarFault> {
    prepare(SchemaWalk::new(schema))
}

/// Prepares a schema that allows everything `schema` allows. Keywords that cannot be enforced are left out.
///
/// # Errors
/// The first part that is not a JSON Schema; or an exceeded limit.
pub(crate) fn prepared_loosely(schema: &Value) -> Result<Value, GrammarFault> {
    prepare(SchemaWalk { is_loose: true, ..SchemaWalk::new(schema) })
}

fn prepare(mut walk: SchemaWalk<'_>) -> Result<Value, GrammarFault> {
    let schema = walk.root;
    let mut root = walk.schema(schema, "", 0)?;
    let mut definitions = Map::new();
    let mut next = 0;
    while let Some(pointer) = walk.referenced.get(next).cloned() {
        let target = walk.target(&pointer)?;
        definitions.insert(next.to_string(), walk.schema(target, &pointer, 0)?);
        next += 1;
    }
    ends::check(&root, &definitions)?;
    if let Some(root) = root.as_object_mut() {
        if let Some(draft) = walk.draft {
            root.insert("$schema".to_owned(), draft.into());
        }
        if !definitions.is_empty() {
            root.insert("$defs".to_owned(), definitions.into());
        }
    }
    Ok(root)
}

/// Adds to a prepared schema the pattern for white space between the parts of its JSON.
pub(crate) fn with_white_space(schema: Value, pattern: &str) -> Value {
    guided(schema, json!({ "whitespace_pattern": pattern }))
}

/// Adds llguidance's own keyword for how the JSON is written. A caller's `x-guidance` never reaches it, because unknown
/// keywords are dropped.
pub(crate) fn guided(mut schema: Value, how: Value) -> Value {
    match &mut schema {
        Value::Object(map) => {
            map.insert("x-guidance".to_owned(), how);
            schema
        }
        // The schema is `true`, which any value fits. `false` was refused before.
        _ => json!({ "x-guidance": how }),
    }
}

struct SchemaWalk<'a> {
    root: &'a Value,
    /// The schema's `$schema`, if it names a known draft.
    draft: Option<&'a str>,
    /// Before draft 2019-09, keywords beside `$ref` are ignored.
    is_old: bool,
    /// Whether keywords that cannot be enforced are left out instead of refused.
    is_loose: bool,
    /// The pointers that references lead to, each once. `numbers` maps each to its index here.
    referenced: Vec<String>,
    numbers: HashMap<String, usize>,
    nodes: usize,
    patterns: usize,
    pairs: PropertyPairs,
}

impl<'a> SchemaWalk<'a> {
    fn new(root: &'a Value) -> Self {
        let said = root.get("$schema").and_then(Value::as_str);
        let draft = said.filter(|said| keywords::is_known_draft(said));
        let is_old = draft.is_some_and(keywords::is_old_draft);
        let (referenced, numbers, pairs) = (Vec::new(), HashMap::new(), PropertyPairs::default());
        Self { root, draft, is_old, is_loose: false, referenced, numbers, nodes: 0, patterns: 0, pairs }
    }

    /// Prepares the schema at `path`, `depth` levels deep.
    fn schema(&mut self, schema: &Value, path: &str, depth: usize) -> Result<Value, GrammarFault> {
        self.nodes += 1;
        bounded("sub-schemas", self.nodes as u64, MAX_SCHEMA_NODES as u64, path)?;
        bounded("levels of nesting", depth as u64, MAX_DEPTH_LEVELS as u64, path)?;
        let map = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(map) => map,
            _ => return Err(GrammarFault::invalid(path, "a schema is an object, `true` or `false`")),
        };
        let mut out = Map::new();
        let alone = self.is_old && map.contains_key("$ref");
        let mut format = None;
        for (key, value) in map {
            if alone && key != "$ref" {
                continue;
            }
            let at = format!("{path}/{}", escaped(key));
            match self.keyword(map, (key, value), (path, &at), depth)? {
                Some(pattern) if key == "format" && pattern.is_object() => format = Some(pattern),
                // That exactly one alternative holds is not enforced.
                Some(_) if self.is_loose && key == "oneOf" && map.contains_key("anyOf") => {}
                Some(kept) if self.is_loose && key == "oneOf" => drop(out.insert("anyOf".to_owned(), kept)),
                Some(kept) => drop(out.insert(key.clone(), kept)),
                None => {}
            }
        }
        if self.is_loose && map.contains_key("patternProperties") && !out.contains_key("patternProperties") {
            // The names of the dropped patterns would count as additional ones.
            out.shift_remove("additionalProperties");
        }
        if let Some(pattern) = format {
            let all = out.entry("allOf").or_insert_with(|| json!([]));
            all.as_array_mut().into_iter().for_each(|all| all.push(pattern.clone()));
        }
        match self.counts(&out, path) {
            Err(_) if self.is_loose => drop(out.shift_remove("minProperties")),
            counted => counted?,
        }
        self.pairs.add(&out, path)?;
        Ok(Value::Object(out))
    }

    /// The value of a keyword in the prepared schema. `None` leaves the keyword out.
    fn keyword(
        &mut self,
        map: &Map<String, Value>,
        entry: (&str, &Value),
        place: (&str, &str),
        depth: usize,
    ) -> Result<Option<Value>, GrammarFault> {
        match self.enforced(map, entry, place, depth) {
            Err(GrammarFault::Unsupported { .. }) if self.is_loose => Ok(None),
            Err(GrammarFault::TooLarge { what: "as a count", .. }) if self.is_loose => Ok(None),
            kept => kept,
        }
    }

    fn enforced(
        &mut self,
        map: &Map<String, Value>,
        (key, value): (&str, &Value),
        (path, at): (&str, &str),
        depth: usize,
    ) -> Result<Option<Value>, GrammarFault> {
        let kept = match keyword(key) {
            Keyword::Unknown | Keyword::Annotation => return Ok(None),
            Keyword::Unsupported(why) => {
                let changes_nothing = keywords::changes_nothing(key, value, map);
                return if changes_nothing {
                    Ok(None)
                } else {
                    Err(GrammarFault::unsupported(key, path, why))
                };
            }
            Keyword::Value => {
                keywords::check_value(key, value).map_err(|why| GrammarFault::invalid(at, why))?;
                value.clone()
            }
            Keyword::Schema => self.schema(value, at, depth + 1)?,
            Keyword::SchemaOrList if value.is_array() => self.list(value, at, depth)?,
            Keyword::SchemaOrList => self.schema(value, at, depth + 1)?,
            Keyword::List => self.list(value, at, depth)?,
            Keyword::Map => self.map(key, value, at, depth)?,
            Keyword::Reference => json!(format!("#/$defs/{}", self.reference(value, at)?)),
            Keyword::Pattern => {
                self.pattern(value, at)?;
                value.clone()
            }
            Keyword::Format => {
                let format = check_format(value, path, at)?;
                if let Some(pattern) = keywords::format_pattern(format) {
                    return Ok(Some(json!({ "pattern": pattern })));
                }
                value.clone()
            }
            Keyword::Count => {
                let count = value
                    .as_u64()
                    .or_else(|| value.as_f64().filter(|n| *n >= 0.0 && n.fract() == 0.0).map(|n| n as u64));
                let count =
                    count.ok_or_else(|| GrammarFault::invalid(at, "it must be a whole number, 0 or more"))?;
                bounded("as a count", count, MAX_COUNTED, at)?;
                count.into()
            }
            Keyword::Number => {
                let is_bool = value.is_boolean() && key.starts_with("exclusive");
                if !value.is_number() && !is_bool {
                    return Err(GrammarFault::invalid(at, "it must be a number"));
                }
                if is_bool && self.is_loose {
                    // Draft 4 has a flag beside the bound. The bound alone allows one more value.
                    return Ok(None);
                }
                if value.as_f64().is_some_and(|number| number.abs() > MAX_NUMBER) {
                    let why = "it is beyond ±2^64; leave it out";
                    return Err(GrammarFault::unsupported(key, path, why));
                }
                if key == "multipleOf" && !value.as_f64().is_some_and(|n| n > 0.0) {
                    return Err(GrammarFault::invalid(at, "it must be above 0"));
                }
                value.clone()
            }
        };
        Ok(Some(kept))
    }

    fn list(&mut self, value: &Value, at: &str, depth: usize) -> Result<Value, GrammarFault> {
        let items = value.as_array().filter(|items| !items.is_empty());
        let items =
            items.ok_or_else(|| GrammarFault::invalid(at, "it must be a list with at least one schema"))?;
        let each = items.iter().enumerate();
        each.map(|(index, item)| self.schema(item, &format!("{at}/{index}"), depth + 1)).collect()
    }

    fn map(&mut self, key: &str, value: &Value, at: &str, depth: usize) -> Result<Value, GrammarFault> {
        let map =
            value.as_object().ok_or_else(|| GrammarFault::invalid(at, "it must be an object of schemas"))?;
        let patterns = key == "patternProperties";
        let (what, limit) = match patterns {
            true => ("patterns of names", MAX_NAME_PATTERNS),
            false => ("properties", MAX_OBJECT_PROPERTIES),
        };
        bounded(what, map.len() as u64, limit as u64, at)?;
        let mut out = Map::new();
        for (name, schema) in map {
            let at = format!("{at}/{}", escaped(name));
            if patterns {
                self.pattern(&Value::from(name.as_str()), &at)?;
            }
            out.insert(name.clone(), self.schema(schema, &at, depth + 1)?);
        }
        Ok(Value::Object(out))
    }

    fn pattern(&mut self, value: &Value, at: &str) -> Result<(), GrammarFault> {
        self.patterns += 1;
        bounded("regular expressions", self.patterns as u64, MAX_PATTERNS as u64, at)?;
        let pattern =
            value.as_str().ok_or_else(|| GrammarFault::invalid(at, "it must be a regular expression"))?;
        match regex::check(pattern, at) {
            // Other dialects of regular expressions have more features.
            Err(GrammarFault::Invalid { .. } | GrammarFault::TooLarge { .. })
                if self.is_loose && !regex::is_broken(pattern) =>
            {
                Err(GrammarFault::unsupported("pattern", at, "it is of another dialect"))
            }
            checked => checked,
        }
    }

    /// The number of the definition that a reference leads to.
    fn reference(&mut self, value: &Value, at: &str) -> Result<usize, GrammarFault> {
        let said = value.as_str().ok_or_else(|| GrammarFault::invalid(at, "it must be a reference"))?;
        let Some(fragment) = said.strip_prefix('#') else {
            let why = "only references within the schema are followed (`#/$defs/NAME`); put what it refers to under `$defs`";
            return Err(GrammarFault::unsupported("$ref", at, why));
        };
        let pointer = match percent_decoded(fragment) {
            Some(pointer) if pointer.is_empty() || pointer.starts_with('/') => pointer,
            Some(anchor) => anchored(self.root, &anchor, 0).ok_or_else(|| nowhere(at, said))?,
            None => return Err(nowhere(at, said)),
        };
        // A trailing slash refers to a member with an empty name, but some schemas use it without meaning.
        let whole = self.root.pointer(&pointer).map(|_| pointer.as_str());
        let pointer = whole.unwrap_or_else(|| pointer.trim_end_matches('/')).to_owned();
        self.root.pointer(&pointer).ok_or_else(|| nowhere(at, said))?;
        let next = self.referenced.len();
        let number = *self.numbers.entry(pointer.clone()).or_insert(next);
        if number == next {
            bounded("definitions", next as u64, MAX_SCHEMA_NODES as u64, at)?;
            self.referenced.push(pointer);
        }
        Ok(number)
    }

    fn target(&self, pointer: &str) -> Result<&'a Value, GrammarFault> {
        self.root.pointer(pointer).ok_or_else(|| nowhere(pointer, pointer))
    }

    /// Refuses `minProperties` if names are free: llguidance counts properties as they are written, and a name may come
    /// twice.
    fn counts(&self, out: &Map<String, Value>, path: &str) -> Result<(), GrammarFault> {
        let names_are_free = || {
            out.get("additionalProperties") != Some(&Value::Bool(false))
                || out.contains_key("patternProperties")
        };
        let least = out.get("minProperties").and_then(Value::as_u64).unwrap_or(0);
        let required = out.get("required").and_then(Value::as_array).map_or(0, |names| names.len() as u64);
        if least > required.saturating_add(1) && names_are_free() {
            let why =
                "an answer could write one free name twice; list the names under `properties` and `required`";
            return Err(GrammarFault::unsupported("minProperties", path, why));
        }
        Ok(())
    }
}

fn check_format<'v>(value: &'v Value, path: &str, at: &str) -> Result<&'v str, GrammarFault> {
    let format = value.as_str().ok_or_else(|| GrammarFault::invalid(at, "it must be a format's name"))?;
    if FORMATS.contains(&format) {
        return Ok(format);
    }
    let why = format!("the format `{format}` is not known here; those that are: {}", FORMATS.join(", "));
    Err(GrammarFault::unsupported("format", path, why))
}

fn bounded(what: &'static str, has: u64, limit: u64, path: &str) -> Result<(), GrammarFault> {
    if has <= limit {
        Ok(())
    } else {
        Err(GrammarFault::TooLarge { what, has, limit, path: path.to_owned() })
    }
}

fn nowhere(at: &str, said: &str) -> GrammarFault {
    GrammarFault::invalid(at, format!("`{said}` refers to nothing in the schema"))
}

/// A key as a segment of a JSON pointer (RFC 6901).
pub(crate) fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [rest.next()?, rest.next()?];
        bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
    }
    String::from_utf8(bytes).ok()
}

/// The JSON pointer of the schema with this anchor.
fn anchored(schema: &Value, anchor: &str, depth: usize) -> Option<String> {
    if depth > MAX_DEPTH_LEVELS {
        return None;
    }
    let below = |key: String, value: &Value| Some(format!("/{key}{}", anchored(value, anchor, depth + 1)?));
    match schema {
        Value::Object(map) if map.get("$anchor").and_then(Value::as_str) == Some(anchor) => {
            Some(String::new())
        }
        Value::Object(map) => map.iter().find_map(|(key, value)| below(escaped(key), value)),
        Value::Array(items) => {
            items.iter().enumerate().find_map(|(index, value)| below(index.to_string(), value))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
