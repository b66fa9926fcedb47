//! Translates a prepared schema into GBNF. Every text that the result allows fits the schema, but it may not allow
//! every text that fits. Must not know calls.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::literal::literal;
use super::numbers;
use super::pattern::{self, MOST_TIMES};
use crate::bounds::MAX_DEPTH_LEVELS;
use crate::fault::GrammarFault;

/// Keywords that are read elsewhere. A prepared schema has no annotations.
const SILENT: [&str; 4] = ["$schema", "$defs", "x-guidance", "required"];
const ANY: &str = "json-value";
/// Rules that schemas share, each with the names of the rules that it needs.
const SHARED: [(&str, &str, &[&str]); 7] = [
    (
        ANY,
        "json-object | json-array | json-string | json-number | \"true\" | \"false\" | \"null\"",
        &["json-object", "json-array", "json-string", "json-number"],
    ),
    (
        "json-object",
        "\"{\" (json-string \": \" json-value (\", \" json-string \": \" json-value)*)? \"}\"",
        &["json-string", ANY],
    ),
    ("json-array", "\"[\" (json-value (\", \" json-value)*)? \"]\"", &[ANY]),
    ("json-string", "\"\\\"\" json-char* \"\\\"\"", &["json-char"]),
    // No escapes for surrogates, because half of a pair is not text.
    ("json-char", r#"[^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u00" [01] [0-9a-f])"#, &[]),
    ("json-integer", "\"-\"? (\"0\" | [1-9] [0-9]{0,14})", &[]),
    ("json-number", "json-integer (\".\" [0-9]{1,15})?", &["json-integer"]),
];

/// Rules of the schemas written so far.
#[derive(Default)]
pub(super) struct SchemaRules {
    rules: String,
    shared: Vec<&'static str>,
}

impl SchemaRules {
    /// The expression of a schema. The names of its rules begin with `name`.
    pub(super) fn root(&mut self, name: &str, schema: &Value) -> Result<String, GrammarFault> {
        let known = schema.get("$defs").and_then(Value::as_object);
        let definitions = known.into_iter().flat_map(Map::keys).cloned().collect();
        let mut one = SchemaTranslation { name, next: 0, known, definitions, all: self };
        let expression = one.value(schema, "")?;
        // Named by number, because a definition's name may have characters that a rule name cannot.
        for (at, (key, definition)) in known.into_iter().flatten().enumerate() {
            let is = one.value(definition, &format!("/$defs/{key}"))?;
            let _ = writeln!(one.all.rules, "{name}-def-{at} ::= {is}");
        }
        Ok(expression)
    }

    /// All rules, except those that the callers of [`Self::root`] write themselves.
    pub(super) fn rules(mut self) -> String {
        let mut at = 0;
        while let Some(name) = self.shared.get(at).copied() {
            for (known, is, needs) in SHARED.iter().filter(|(known, ..)| *known == name) {
                let _ = writeln!(self.rules, "{known} ::= {is}");
                needs.iter().for_each(|name| self.share(name));
            }
            at += 1;
        }
        self.rules
    }

    fn share(&mut self, name: &'static str) {
        if !self.shared.contains(&name) {
            self.shared.push(name);
        }
    }
}

/// One schema being translated.
struct SchemaTranslation<'a> {
    name: &'a str,
    next: usize,
    known: Option<&'a Map<String, Value>>,
    /// Names of its definitions.
    definitions: Vec<String>,
    all: &'a mut SchemaRules,
}

type Expression = Result<String, GrammarFault>;

impl SchemaTranslation<'_> {
    fn shared(&mut self, name: &'static str) -> String {
        self.all.share(name);
        name.to_owned()
    }

    /// Adds a rule of its own, and returns the rule's name.
    fn rule(&mut self, is: &str) -> String {
        let name = format!("{}-{}", self.name, self.next);
        self.next += 1;
        let _ = writeln!(self.all.rules, "{name} ::= {is}");
        name
    }

    fn value(&mut self, schema: &Value, path: &str) -> Expression {
        let map = match schema {
            Value::Object(map) => map,
            Value::Bool(true) => return Ok(self.shared(ANY)),
            _ => {
                let why = format!("nothing fits the schema at `{path}`");
                return Err(GrammarFault::Unsatisfiable { why });
            }
        };
        let together = self.together(map, path)?;
        let map = together.as_ref().unwrap_or(map);
        let said: Vec<&str> = map.keys().map(String::as_str).filter(|key| !SILENT.contains(key)).collect();
        let alone = |key: &str| match said.iter().find(|other| **other != key && **other != "type") {
            Some(other) => Err(unsupported(other, path, &format!("it is beside `{key}`"))),
            None => Ok(()),
        };
        if let Some(to) = map.get("$ref").and_then(Value::as_str) {
            alone("$ref")?;
            let key =
                to.strip_prefix("#/$defs/").ok_or_else(|| unsupported("$ref", path, "it leads elsewhere"))?;
            let at = self.definitions.iter().position(|name| name == key);
            let at = at.ok_or_else(|| unsupported("$ref", path, "it leads nowhere"))?;
            return Ok(format!("{}-def-{at}", self.name));
        }
        let one = map.get("const").map(std::slice::from_ref);
        if let Some(all) = one.or_else(|| Some(map.get("enum")?.as_array()?.as_slice())) {
            alone(if one.is_some() { "const" } else { "enum" })?;
            return choice(all.iter().filter(|value| fits(value, map.get("type"))), path);
        }
        for key in ["anyOf", "oneOf"] {
            let Some(parts) = map.get(key).and_then(Value::as_array) else { continue };
            alone(key)?;
            if map.contains_key("type") {
                return Err(unsupported(key, path, "all of it would have to hold at once"));
            }
            let parts =
                parts.iter().enumerate().map(|(at, part)| self.value(part, &format!("{path}/{key}/{at}")));
            return Ok(format!("({})", parts.collect::<Result<Vec<_>, _>>()?.join(" | ")));
        }
        let kinds: Vec<&str> = match map.get("type") {
            Some(Value::String(kind)) => vec![kind],
            Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
            // A keyword for one type implies that type.
            _ => match said.iter().find_map(|key| kind_of(key)) {
                Some(kind) => vec![kind],
                None if said.is_empty() => return Ok(self.shared(ANY)),
                None => return Err(unsupported(said.first().unwrap_or(&""), path, "it has no `type`")),
            },
        };
        let kinds = kinds.iter().map(|kind| self.kind(kind, map, path)).collect::<Result<Vec<_>, _>>()?;
        match kinds.as_slice() {
            [only] => Ok(only.clone()),
            kinds => Ok(format!("({})", kinds.join(" | "))),
        }
    }

    /// Merges a schema with the parts of its `allOf`. Fails if two parts disagree about a keyword. Returns `None` if
    /// there is no `allOf`.
    fn together(
        &self,
        map: &Map<String, Value>,
        path: &str,
    ) -> Result<Option<Map<String, Value>>, GrammarFault> {
        let Some(parts) = map.get("allOf").and_then(Value::as_array) else { return Ok(None) };
        let at_once = || unsupported("allOf", path, "all of it would have to hold at once");
        let mut all = map.clone();
        all.shift_remove("allOf");
        let mut followed = 0;
        let mut todo: Vec<&Value> = parts.iter().rev().collect();
        while let Some(part) = todo.pop() {
            let Some(part) = part.as_object() else {
                if *part == Value::Bool(true) { continue } else { return Err(at_once()) }
            };
            // A part that refers to itself would be followed for ever.
            followed += 1;
            if followed > MAX_DEPTH_LEVELS {
                return Err(at_once());
            }
            todo.extend(part.get("allOf").and_then(Value::as_array).into_iter().flatten().rev());
            if let Some(to) =
                part.get("$ref").and_then(Value::as_str).filter(|_| !all.is_empty() || parts.len() > 1)
            {
                let key = to.strip_prefix("#/$defs/").and_then(|key| self.known?.get(key));
                todo.push(key.ok_or_else(at_once)?);
            }
            add(&mut all, part).ok_or_else(at_once)?;
        }
        Ok(Some(all))
    }

    fn kind(&mut self, kind: &str, map: &Map<String, Value>, path: &str) -> Expression {
        let refuse = |keys: &[&str]| match keys.iter().find(|key| map.contains_key(**key)) {
            Some(key) => Err(unsupported(key, path, "a grammar for its server has no words for it")),
            None => Ok(()),
        };
        match kind {
            "string" => {
                if let Some(key) = ["pattern", "format"].into_iter().find(|key| map.contains_key(*key)) {
                    return self.pattern(key, map, path);
                }
                let times = times(map, ("minLength", "maxLength"), path)?;
                match times.as_str() {
                    "*" => return Ok(self.shared("json-string")),
                    "" => return Ok(r#""\"\"""#.to_owned()),
                    _ => self.all.share("json-char"),
                }
                Ok(format!("\"\\\"\" json-char{times} \"\\\"\""))
            }
            "integer" | "number" => {
                refuse(&["multipleOf"])?;
                let whole = kind == "integer";
                let name = if whole { "json-integer" } else { "json-number" };
                match numbers::between(map, whole) {
                    Some(numbers::NumberRange::Any) => Ok(self.shared(name)),
                    Some(numbers::NumberRange::These(is)) => Ok(is),
                    None => {
                        Err(unsupported("minimum", path, "no number of few digits is between its bounds"))
                    }
                }
            }
            "boolean" => Ok(r#"("true" | "false")"#.to_owned()),
            "null" => Ok("\"null\"".to_owned()),
            "object" => {
                refuse(&["minProperties", "maxProperties"])?;
                self.object(map, path)
            }
            "array" => {
                refuse(&["additionalItems"])?;
                self.array(map, path)
            }
            _ => Err(unsupported("type", path, "it is no kind of JSON")),
        }
    }

    /// A string that matches a pattern or a format.
    fn pattern(&mut self, key: &str, map: &Map<String, Value>, path: &str) -> Expression {
        if let Some(other) = ["format", "minLength", "maxLength"]
            .iter()
            .find(|other| **other != key && map.contains_key(**other))
        {
            return Err(unsupported(other, path, &format!("it is beside `{key}`")));
        }
        let said = map.get(key).and_then(Value::as_str).unwrap_or_default();
        let is = if key == "pattern" { pattern::of(said) } else { pattern::of_format(said) };
        let is = is.ok_or_else(|| unsupported(key, path, "a grammar for its server has no words for it"))?;
        self.all.share(pattern::CHAR);
        Ok(format!(r#""\"" {} "\"""#, self.rule(&is)))
    }

    fn object(&mut self, map: &Map<String, Value>, path: &str) -> Expression {
        let empty = Map::new();
        let named = map.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let required: Vec<&str> = map
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let others = match map.get("additionalProperties") {
            Some(schema) => schema,
            None => &Value::Bool(true),
        };
        let unnamed = required.iter().filter(|key| !named.contains_key(**key));
        let mut members: Vec<(String, bool)> = Vec::new();
        for (key, schema) in named {
            let is = self.member(key, schema, &format!("{path}/properties/{key}"))?;
            members.push((is, required.contains(&key.as_str())));
        }
        for key in unnamed {
            let is = self.member(key, others, &format!("{path}/additionalProperties"))?;
            members.push((is, true));
        }
        let patterns = map.get("patternProperties").and_then(Value::as_object).unwrap_or(&empty);
        let mut names = named.keys().map(String::as_str).chain(required.iter().copied());
        if names.any(|name| patterns.keys().any(|pattern| pattern::may_match(pattern, name))) {
            return Err(unsupported("patternProperties", path, "a name under `properties` matches it, too"));
        }
        if !members.is_empty() {
            return Ok(format!("\"{{\" {} \"}}\"", self.members(&members)));
        }
        if let Some((name, schema)) = patterns.iter().next() {
            if patterns.len() > 1 {
                return Err(unsupported("patternProperties", path, "a name could match several"));
            }
            let value = self.value(schema, &format!("{path}/patternProperties/{name}"))?;
            let name = pattern::of(name).ok_or_else(|| {
                unsupported("patternProperties", path, "a grammar for its server has no words for it")
            })?;
            self.all.share(pattern::CHAR);
            let member = self.rule(&format!(r#""\"" {name} "\": " {value}"#));
            return Ok(format!("\"{{\" ({member} (\", \" {member})*)? \"}}\""));
        }
        if *others == Value::Bool(false) || map.contains_key("properties") {
            return Ok("\"{}\"".to_owned());
        }
        let value = self.value(others, &format!("{path}/additionalProperties"))?;
        self.all.share("json-string");
        let member = self.rule(&format!("json-string \": \" {value}"));
        Ok(format!("\"{{\" ({member} (\", \" {member})*)? \"}}\""))
    }

    fn member(&mut self, key: &str, schema: &Value, path: &str) -> Expression {
        let value = self.value(schema, path)?;
        let key = literal(&format!("{}: ", Value::from(key)));
        Ok(self.rule(&format!("{key} {value}")))
    }

    /// Members in their order. Whichever comes first has no comma before it.
    fn members(&mut self, members: &[(String, bool)]) -> String {
        let (mut first, mut later) = (String::new(), String::new());
        for (at, (member, required)) in members.iter().enumerate().rev() {
            let begun = if later.is_empty() { member.clone() } else { format!("{member} {later}") };
            let may_be_first = members.iter().take(at).all(|(_, required)| !required);
            if may_be_first {
                first = match (required, first.is_empty()) {
                    (true, _) => begun,
                    (false, true) => format!("({begun})?"),
                    (false, false) => format!("({begun} | {first})"),
                };
            }
            let comma = format!("\", \" {member}");
            let next = if *required { comma } else { format!("({comma})?") };
            let is = if later.is_empty() { next } else { format!("{next} {later}") };
            later = if may_be_first && at > 0 { self.rule(&is) } else { is };
        }
        first
    }

    fn array(&mut self, map: &Map<String, Value>, path: &str) -> Expression {
        let first = map.get("prefixItems").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let (least, most) = counts(map, ("minItems", "maxItems"), path)?;
        let mut fixed = Vec::new();
        for (at, schema) in first.iter().enumerate() {
            fixed.push(self.value(schema, &format!("{path}/prefixItems/{at}"))?);
        }
        let known = fixed.len() as u64;
        let item = match map.get("items") {
            Some(Value::Bool(false)) => None,
            Some(schema) => Some(self.value(schema, &format!("{path}/items"))?),
            None if first.is_empty() => Some(self.shared(ANY)),
            None => None,
        };
        if known > 0 {
            // All of the first items and no more. Further items are allowed but never needed.
            let (enough, fits) = (known >= least, most.is_none_or(|most| known <= most));
            if !enough || !fits {
                return Err(unsupported("prefixItems", path, "it is beside bounds of another number"));
            }
            return Ok(format!("\"[\" {} \"]\"", fixed.join(" \", \" ")));
        }
        let Some(item) = item.filter(|_| most != Some(0)) else { return Ok("\"[]\"".to_owned()) };
        let item = self.rule(&item);
        let further = |times: String| format!("{item} (\", \" {item}){times}");
        let items = match most {
            Some(1) => item.clone(),
            Some(most) => further(format!("{{{},{}}}", least.saturating_sub(1), most.saturating_sub(1))),
            None if least <= 1 => further("*".to_owned()),
            None => further(format!("{{{},}}", least.saturating_sub(1))),
        };
        Ok(if least == 0 { format!("\"[\" ({items})? \"]\"") } else { format!("\"[\" {items} \"]\"") })
    }
}

/// Merges a part into `all`. Returns `None` if they disagree about a keyword.
fn add(all: &mut Map<String, Value>, part: &Map<String, Value>) -> Option<()> {
    // These keywords refer to the keywords beside them, not to those of the other part.
    let closed = |map: &Map<String, Value>| {
        map.contains_key("items")
            || map.get("additionalProperties").is_some_and(|others| *others != Value::Bool(true))
    };
    let named = |map: &Map<String, Value>| {
        map.contains_key("properties") || map.contains_key("prefixItems") || map.contains_key("required")
    };
    if closed(all) && named(part) || closed(part) && named(all) {
        return None;
    }
    for (key, value) in part.iter().filter(|(key, _)| !["allOf", "$ref"].contains(&key.as_str())) {
        match (key.as_str(), all.get_mut(key), value) {
            (_, None, value) => drop(all.insert(key.clone(), value.clone())),
            (_, Some(said), value) if said == value => {}
            ("required", Some(Value::Array(said)), Value::Array(more)) => said.extend(more.iter().cloned()),
            ("properties", Some(Value::Object(said)), Value::Object(more)) => {
                for (name, schema) in more {
                    if said.get(name).is_some_and(|known| known != schema) {
                        return None;
                    }
                    said.insert(name.clone(), schema.clone());
                }
            }
            _ => return None,
        }
    }
    Some(())
}

/// The type that a keyword applies to.
fn kind_of(keyword: &str) -> Option<&'static str> {
    match keyword {
        "properties" | "additionalProperties" => Some("object"),
        "items" | "prefixItems" | "minItems" | "maxItems" => Some("array"),
        "minLength" | "maxLength" | "pattern" | "format" => Some("string"),
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => Some("number"),
        _ => None,
    }
}

fn fits(value: &Value, kind: Option<&Value>) -> bool {
    let is = |kind: &str| match (kind, value) {
        ("string", Value::String(_)) | ("boolean", Value::Bool(_)) | ("null", Value::Null) => true,
        ("object", Value::Object(_)) | ("array", Value::Array(_)) | ("number", Value::Number(_)) => true,
        ("integer", Value::Number(number)) => number.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => false,
    };
    match kind {
        Some(Value::String(kind)) => is(kind),
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).any(is),
        _ => true,
    }
}

fn choice<'v>(values: impl Iterator<Item = &'v Value>, path: &str) -> Expression {
    let texts: Vec<String> = values.map(|value| literal(&value.to_string())).collect();
    if texts.is_empty() {
        return Err(GrammarFault::Unsatisfiable { why: format!("no value at `{path}` is of its type") });
    }
    Ok(format!("({})", texts.join(" | ")))
}

/// The least and the most number of items or characters.
fn counts(
    map: &Map<String, Value>,
    keys: (&str, &str),
    path: &str,
) -> Result<(u64, Option<u64>), GrammarFault> {
    let count = |key: &str| map.get(key).and_then(Value::as_f64).map(|count| count as u64);
    let least = count(keys.0).unwrap_or(0);
    let most = count(keys.1).map(|most| most.min(MOST_TIMES));
    if least > MOST_TIMES {
        return Err(unsupported(
            keys.0,
            path,
            &format!("more than {MOST_TIMES} are too many for its server"),
        ));
    }
    if most.is_some_and(|most| most < least) {
        return Err(GrammarFault::Unsatisfiable { why: format!("`{}` is above `{}`", keys.0, keys.1) });
    }
    Ok((least, most))
}

fn times(map: &Map<String, Value>, keys: (&str, &str), path: &str) -> Expression {
    Ok(match counts(map, keys, path)? {
        (0, None) => "*".to_owned(),
        (_, Some(0)) => String::new(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    })
}

fn unsupported(keyword: &str, path: &str, why: &str) -> GrammarFault {
    GrammarFault::unsupported(keyword, path, why)
}
