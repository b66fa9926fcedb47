//! Translates forms into llguidance's notation, and llguidance's errors into faults with a place. Knows no vocabulary.

use std::fmt::Write;

use headrace_domain::{GrammarSyntax, JsonForm, ResponseFormat, TaggedForm};
use headrace_engine_api::is_gbnf;
use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use crate::bounds::{
    COMPILE_FUEL_UNITS, FormLimits, MAX_CHOICES, MAX_DEPTH_LEVELS, MAX_GRAMMAR_SYMBOLS, MAX_TAGS, WHITE_SPACE,
};
use crate::cache::Key;
use crate::fault::GrammarFault;
use crate::gbnf;
use crate::regex;
use crate::schema::{escaped, guided, prepared, with_white_space};
use crate::tools::tool_schema;

const CONTEXT: &str = "headrace 2026-11 form v1";

/// A form in llguidance's notation.
pub(crate) struct TranslatedForm {
    pub(crate) grammar: TopLevelGrammar,
    /// Whether it generates JSON, whose numbers need a limit on their digits.
    pub(crate) bounds_numbers: bool,
    /// The regular expression, if the form is nothing else.
    pub(crate) expression: Option<String>,
    /// The schema, for the places of faults.
    schema: Option<Value>,
}

/// The cache key of a form: a hash of its text. The order of keys counts, because it is the order of keys in the
/// answer.
///
/// # Errors
/// [`GrammarFault::TooLarge`] if its text is too long.
pub(crate) fn key(form: &ResponseFormat, bounds: &FormLimits) -> Result<Key, GrammarFault> {
    let text = serde_json::to_vec(form).map_err(|error| GrammarFault::invalid("", error.to_string()))?;
    if text.len() > bounds.form_bytes {
        return Err(too_large("bytes", text.len(), bounds.form_bytes));
    }
    Ok(blake3::derive_key(CONTEXT, &text))
}

/// Translates a form.
///
/// # Errors
/// The part of the form that cannot be enforced.
pub(crate) fn written(form: &ResponseFormat) -> Result<TranslatedForm, GrammarFault> {
    match form {
        ResponseFormat::JsonObject => json_form(&json!({"type": "object"}), false, None),
        ResponseFormat::JsonSchema(JsonForm { schema, compact, white_space, .. }) => {
            json_form(schema, *compact, white_space.as_deref())
        }
        ResponseFormat::Regex(pattern) => {
            regex::check(pattern, "")?;
            Ok(matching(pattern))
        }
        ResponseFormat::Choice(choices) => choice(choices),
        ResponseFormat::Grammar { text, syntax } => grammar(text, *syntax),
        ResponseFormat::Tags(tagged) => tags(tagged),
    }
}

/// Text that an expression matches as a whole. As in JSON Schema, `\d` and `\w` are ASCII.
fn matching(pattern: &str) -> TranslatedForm {
    let pattern = llguidance::regex_to_lark(pattern, "dw");
    let grammar = TopLevelGrammar::from_lark(format!("start: /{pattern}/"));
    TranslatedForm { expression: Some(pattern), ..plain(grammar) }
}

fn plain(grammar: TopLevelGrammar) -> TranslatedForm {
    TranslatedForm { grammar, bounds_numbers: false, expression: None, schema: None }
}

fn json_form(
    schema: &Value,
    compact: bool,
    white_space: Option<&str>,
) -> Result<TranslatedForm, GrammarFault> {
    let prepared = prepared(schema)?;
    if let Some(pattern) = white_space {
        regex::check(pattern, "")?;
    }
    if prepared == Value::Bool(false) {
        return Err(GrammarFault::Unsatisfiable { why: "the schema is `false`".to_owned() });
    }
    let prepared = match compact {
        true => guided(prepared, json!({"whitespace_flexible": false})),
        false => with_white_space(prepared, white_space.unwrap_or(WHITE_SPACE)),
    };
    let grammar = TopLevelGrammar::from_json_schema(prepared);
    Ok(TranslatedForm { grammar, bounds_numbers: true, expression: None, schema: Some(schema.clone()) })
}

fn choice(choices: &[String]) -> Result<TranslatedForm, GrammarFault> {
    if choices.is_empty() || choices.iter().any(String::is_empty) {
        return Err(GrammarFault::invalid("", "there must be a text to choose, and none may be empty"));
    }
    if choices.len() > MAX_CHOICES {
        return Err(too_large("choices", choices.len(), MAX_CHOICES));
    }
    // One expression. As separate texts, a choice that is the beginning of another one would end the answer early.
    let each: Vec<String> = choices.iter().map(|choice| regex_syntax::escape(choice)).collect();
    Ok(matching(&format!("({})", each.join("|"))))
}

fn grammar(text: &str, syntax: GrammarSyntax) -> Result<TranslatedForm, GrammarFault> {
    nesting(text)?;
    let text = match syntax {
        GrammarSyntax::Gbnf => gbnf::to_lark(text)?,
        GrammarSyntax::Either if is_gbnf(text) => gbnf::to_lark(text)?,
        GrammarSyntax::Lark | GrammarSyntax::Either => text.to_owned(),
    };
    Ok(plain(TopLevelGrammar::from_lark(text)))
}

/// Free text up to a trigger, then one of the tags that begin with the trigger, repeatedly.
fn tags(tagged: &TaggedForm) -> Result<TranslatedForm, GrammarFault> {
    let TaggedForm { tags, triggers } = tagged;
    if tags.is_empty() || tags.len() > MAX_TAGS || triggers.len() > MAX_TAGS {
        return Err(too_large("tags", tags.len().max(triggers.len()), MAX_TAGS));
    }
    if triggers.is_empty() || triggers.iter().any(String::is_empty) {
        return Err(GrammarFault::invalid("/triggers", "there must be a text, and none may be empty"));
    }
    let mut rules = String::new();
    let mut names = Vec::new();
    for (at, tag) in tags.iter().enumerate() {
        let path = format!("/structures/{at}");
        let trigger = triggers.iter().position(|trigger| tag.begin.starts_with(trigger.as_str()));
        let trigger = trigger
            .ok_or_else(|| GrammarFault::invalid(&path, "its `begin` begins with none of the triggers"))?;
        let begin =
            triggers.get(trigger).and_then(|text| tag.begin.strip_prefix(text.as_str())).unwrap_or_default();
        let schema = tool_schema(&tag.schema).map_err(|fault| fault.below(&format!("{path}/schema")))?;
        let (begin, end) = (json!(begin), json!(tag.end));
        names.push(format!("tag_{at}"));
        // Writing to a string cannot fail.
        let _ =
            writeln!(rules, "tag_{at}: trigger_{trigger} {begin} json_{at} {end}\njson_{at}: %json {schema}");
    }
    for (at, trigger) in triggers.iter().enumerate() {
        let _ = writeln!(rules, "trigger_{at}[lazy]: TEXT {}", json!(trigger));
    }
    let text = format!("start: ({})* rest\nrest: TEXT\nTEXT: /(?s:.*)/\n{rules}", names.join(" | "));
    Ok(plain(TopLevelGrammar::from_lark(text)))
}

/// Refuses a grammar that is nested too deep, before it is parsed by recursion. Brackets in quotes count too, because
/// no real grammar needs that many.
fn nesting(text: &str) -> Result<(), GrammarFault> {
    let (mut depth, mut deepest) = (0usize, 0usize);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b'\n' if deepest <= MAX_DEPTH_LEVELS => {}
            _ => continue,
        }
        deepest = deepest.max(depth);
    }
    let limit = MAX_DEPTH_LEVELS * 2;
    if deepest > limit { Err(too_large("levels of nesting", deepest, limit)) } else { Ok(()) }
}

fn too_large(what: &'static str, has: usize, limit: usize) -> GrammarFault {
    GrammarFault::TooLarge { what, has: has as u64, limit: limit as u64, path: String::new() }
}

impl TranslatedForm {
    /// Translates an error of llguidance about this form.
    pub(crate) fn fault(&self, said: &str) -> GrammarFault {
        let first: String = said.lines().next().unwrap_or_default().chars().take(300).collect();
        let at = |keyword: &str| {
            self.schema.as_ref().and_then(|schema| place_of(schema, keyword, 0)).unwrap_or_default()
        };
        let unsupported = |keyword: &str, why: &str| GrammarFault::unsupported(keyword, &at(keyword), why);
        if said.contains("Unsatisfiable schema") {
            let why = first.trim_start_matches("Unsatisfiable schema: ").to_owned();
            return GrammarFault::Unsatisfiable { why };
        }
        if said.contains("oneOf constraints") {
            return unsupported(
                "oneOf",
                "its cases are not known to exclude each other; write them as `anyOf`",
            );
        }
        if said.contains("min/maxProperties only") {
            let keyword = if at("minProperties").is_empty() { "maxProperties" } else { "minProperties" };
            return unsupported(keyword, "it needs every name under `properties` to be required");
        }
        if said.contains("patternProperty regexes") {
            return unsupported("patternProperties", "its patterns must not match the same name");
        }
        if said.contains("circular references with sibling") {
            return unsupported("$ref", "a reference that leads back to itself must stand alone");
        }
        if said.contains("fuel") || said.contains("too big") || said.contains("too complex") {
            return GrammarFault::TooCostly { what: "units of work", limit: COMPILE_FUEL_UNITS };
        }
        if said.contains("too large") || said.contains("too many") {
            return GrammarFault::TooCostly { what: "symbols", limit: MAX_GRAMMAR_SYMBOLS as u64 };
        }
        if said.starts_with("panic") {
            return GrammarFault::Broke { detail: first };
        }
        GrammarFault::invalid("", first)
    }
}

/// The first place of a keyword in a schema, as a JSON pointer.
fn place_of(schema: &Value, keyword: &str, depth: usize) -> Option<String> {
    if depth > MAX_DEPTH_LEVELS {
        return None;
    }
    let below = |key: String, value: &Value| Some(format!("/{key}{}", place_of(value, keyword, depth + 1)?));
    match schema {
        Value::Object(map) if map.contains_key(keyword) => Some(String::new()),
        Value::Object(map) => map.iter().find_map(|(key, value)| below(escaped(key), value)),
        Value::Array(items) => {
            items.iter().enumerate().find_map(|(index, item)| below(index.to_string(), item))
        }
        _ => None,
    }
}
