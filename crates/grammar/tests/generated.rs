//! Thousands of schemas of common kinds, each followed at random. Every answer is parsed and judged by third-party
//! code. `HEADRACE_SEEDS=n` runs more seeds. A failure prints its seed and schema.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support.rs"]
mod support;

use headrace_domain::{GrammarSyntax, ResponseFormat};
use headrace_grammar::{GrammarFault, calls_as_gbnf, loose_tool_schema, tool_schema};
use serde_json::{Map, Value, json};
use support::{Rng, compile, schema, walk};

const SEEDS: u64 = 3000;

/// A random schema with at most `depth` levels below it.
fn some_schema(rng: &mut Rng, depth: u64) -> Value {
    let kinds = if depth == 0 { 9 } else { 15 };
    let mut schema = match rng.below(kinds) {
        0 => json!({"type": "string"}),
        1 => {
            let least = rng.below(4);
            json!({"type": "string", "minLength": least, "maxLength": least + rng.below(12)})
        }
        2 => {
            let patterns =
                ["^[A-Z]{2,3}-[0-9]+$", "^\\d{3}$", "^(a|b)+c?$", "^#[0-9a-fA-F]{6}$", "^[^\\s]{1,8}$", "ab"];
            json!({"type": "string", "pattern": patterns[rng.below(6) as usize]})
        }
        3 => {
            let formats =
                ["date-time", "date", "time", "uuid", "ipv4", "email", "hostname", "ipv6", "uri", "duration"];
            json!({"type": "string", "format": formats[rng.below(10) as usize]})
        }
        4 => {
            let least = rng.below(2000) as i64 - 1000;
            json!({"type": "integer", "minimum": least, "maximum": least + rng.below(5000) as i64})
        }
        5 => json!({"type": "number", "minimum": -1.5, "exclusiveMaximum": rng.below(100)}),
        6 => json!({"type": if rng.one_in(2) { "integer" } else { "number" }}),
        7 => {
            let all = json!(["red", "green", "dark blue", 3, null, true, -1.5]);
            let some: Vec<Value> = all.as_array().unwrap()[..1 + rng.below(7) as usize].to_vec();
            json!({ "enum": some })
        }
        8 => json!({"type": ["boolean", "null"]}),
        9..=11 => object(rng, depth),
        12 => {
            let least = rng.below(3);
            json!({"type": "array", "items": some_schema(rng, depth - 1), "minItems": least, "maxItems": least + rng.below(4)})
        }
        13 => json!({"anyOf": [some_schema(rng, depth - 1), some_schema(rng, depth - 1)]}),
        _ => {
            json!({"type": "array", "prefixItems": [some_schema(rng, depth - 1), {"type": "integer"}], "items": false, "minItems": 1})
        }
    };
    if rng.one_in(6)
        && let Some(map) = schema.as_object_mut()
    {
        map.insert("description".to_owned(), "what it is".into());
    }
    schema
}

fn object(rng: &mut Rng, depth: u64) -> Value {
    const NAMES: [&str; 12] =
        ["name", "id", "zip code", "a\"b", "ünï", "email", "items", "x/y", "~", "created_at", "", "the-next"];
    let mut properties = Map::new();
    for _ in 0..rng.below(6) {
        let name = NAMES[rng.below(12) as usize];
        properties.insert(name.to_owned(), some_schema(rng, depth - 1));
    }
    let all = rng.one_in(2);
    let mut required: Vec<String> = properties.keys().filter(|_| all || rng.one_in(2)).cloned().collect();
    if rng.one_in(20) {
        required.push("also".to_owned());
    }
    let mut object = json!({"type": "object", "properties": properties, "required": required});
    let map = object.as_object_mut().unwrap();
    match rng.below(5) {
        0 => {}
        1 => drop(map.insert("additionalProperties".to_owned(), some_schema(rng, 0))),
        2 => {
            map.insert("patternProperties".to_owned(), json!({"^x-": some_schema(rng, 0)}));
            map.insert("additionalProperties".to_owned(), json!(false));
        }
        _ => drop(map.insert("additionalProperties".to_owned(), json!(false))),
    }
    object
}

/// Definitions, recursion and merging, which [`some_schema`] does not generate.
fn with_definitions(rng: &mut Rng) -> Value {
    let node = json!({
        "type": "object", "additionalProperties": false, "required": ["value"],
        "properties": {"value": some_schema(rng, 1), "next": {"$ref": "#/$defs/node"}, "all": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
    });
    json!({
        "$defs": {"node": node, "base": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
        "anyOf": [{"$ref": "#/$defs/node"}, {"allOf": [{"$ref": "#/$defs/base"}, {"properties": {"b": some_schema(rng, 1)}}]}],
    })
}

#[test]
fn every_answer_fits_its_schema() {
    let seeds = std::env::var("HEADRACE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(SEEDS);
    let (mut complete, mut refused, mut endless) = (0, 0, 0);
    for seed in 0..seeds {
        let rng = &mut Rng(seed);
        let asked = if rng.one_in(10) { with_definitions(rng) } else { some_schema(rng, 3) };
        let grammar = match compile(schema(asked.clone())) {
            Ok(grammar) => grammar,
            Err(
                GrammarFault::Unsupported { .. }
                | GrammarFault::Unsatisfiable { .. }
                | GrammarFault::TooCostly { .. },
            ) => {
                refused += 1;
                continue;
            }
            Err(fault) => panic!("seed {seed}: {fault:?}: {asked}"),
        };
        let validator =
            jsonschema::draft202012::options().should_validate_formats(true).build(&asked).unwrap();
        for again in 0..2 {
            let Some(text) = walk(&mut *grammar.begin(), &mut Rng(seed ^ again << 40), 80) else {
                endless += 1;
                continue;
            };
            let value: Value = serde_json::from_str(&text)
                .unwrap_or_else(|error| panic!("seed {seed}: {error}\n{asked}\n{text}"));
            let faults: Vec<String> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
            assert!(faults.is_empty(), "seed {seed}: {faults:?}\n{asked}\n{text}");
            complete += 1;
        }
    }
    println!(
        "{seeds} schemas: {complete} answers fit, {refused} schemas refused, {endless} walks found no end"
    );
    // A random walk may go deeper and deeper. Two walks run per schema.
    assert!(
        complete > seeds && refused * 10 < seeds && endless * 20 < complete,
        "{complete} {refused} {endless}"
    );
}

/// Arguments of a call in GBNF, for servers that know only that. The answers must fit the schema all the same.
#[test]
fn every_call_in_gbnf_fits_its_schema() {
    let seeds = std::env::var("HEADRACE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(SEEDS / 3);
    let (mut complete, mut refused, mut endless) = (0, 0, 0);
    for seed in 0..seeds {
        let rng = &mut Rng(seed);
        let asked = if rng.one_in(10) { with_definitions(rng) } else { some_schema(rng, 3) };
        let Ok(prepared) = tool_schema(&asked) else { continue };
        let text =
            match calls_as_gbnf(&format!("args_0: %json {prepared}\nstart: \"<call>\" args_0 \"</call>\"\n"))
            {
                Ok(text) => text,
                Err(GrammarFault::Unsupported { .. } | GrammarFault::Unsatisfiable { .. }) => {
                    refused += 1;
                    continue;
                }
                Err(fault) => panic!("seed {seed}: {fault:?}: {asked}"),
            };
        let grammar =
            match compile(ResponseFormat::Grammar { text: text.clone(), syntax: GrammarSyntax::Gbnf }) {
                Ok(grammar) => grammar,
                Err(GrammarFault::TooCostly { .. }) => {
                    refused += 1;
                    continue;
                }
                Err(fault) => panic!("seed {seed}: {fault:?}\n{asked}\n{text}"),
            };
        let validator =
            jsonschema::draft202012::options().should_validate_formats(true).build(&asked).unwrap();
        for again in 0..2 {
            let Some(said) = walk(&mut *grammar.begin(), &mut Rng(seed ^ again << 40), 80) else {
                endless += 1;
                continue;
            };
            let json = said.strip_prefix("<call>").and_then(|rest| rest.strip_suffix("</call>")).unwrap();
            let value: Value = serde_json::from_str(json)
                .unwrap_or_else(|error| panic!("seed {seed}: {error}\n{asked}\n{json}"));
            let faults: Vec<String> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
            assert!(faults.is_empty(), "seed {seed}: {faults:?}\n{asked}\n{text}\n{json}");
            complete += 1;
        }
    }
    println!("{seeds} schemas: {complete} calls fit, {refused} refused, {endless} walks found no end");
    assert!(complete > seeds && refused * 20 < seeds, "{complete} {refused} {endless}");
}

/// Tools as schema generators write them compile for calls, within a server's limits.
#[test]
fn tools_of_generators_compile() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../prompt/tests/data/generated-tools.json");
    let tools: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert!(tools.len() > 50);
    for tool in tools {
        let name = format!("{} {}", tool["generator"], tool["name"]);
        let prepared = loose_tool_schema(&tool["schema"]).unwrap_or_else(|fault| panic!("{name}: {fault}"));
        let text = format!("start: \"<call>\" args \"</call>\"\nargs: %json {prepared}\n");
        let compiled = compile(ResponseFormat::Grammar { text, syntax: GrammarSyntax::Lark });
        assert!(compiled.is_ok(), "{name}: {:?}", compiled.err());
    }
}
