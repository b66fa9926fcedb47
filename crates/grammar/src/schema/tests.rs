//! Prepared schemas: which keywords are kept, which are refused, and the error messages.

use super::*;

fn fault(schema: Value) -> String {
    prepared(&schema).expect_err("a refusal").to_string()
}

#[test]
fn keys_keep_their_order_and_annotations_go() {
    // Internal `x-` keywords must not come from a caller, because they would enter the grammar as they are.
    let schema = json!({
        "title": "t", "type": "object", "x-guidance": {"lenient": true}, "x-text-grammar": "start: <[7]>",
        "properties": {"b": {"type": "string", "description": "d", "x-text-pattern": "/ | <[7]>"}, "a": {"default": 3}},
        "required": ["b", "a"], "additionalProperties": false,
    });
    let expected = json!({
        "type": "object", "properties": {"b": {"type": "string"}, "a": {}},
        "required": ["b", "a"], "additionalProperties": false,
    });
    assert_eq!(prepared(&schema).unwrap().to_string(), expected.to_string());
}

#[test]
fn what_cannot_be_held_to_is_refused_by_name_and_place() {
    let cases = [
        (json!({"not": {}}), "`not` is not supported"),
        (
            json!({"properties": {"a/b": {"type": "array", "uniqueItems": true}}}),
            "`uniqueItems` at `/properties/a~1b`",
        ),
        (json!({"anyOf": [{"type": "string"}, {"if": {}, "then": {}}]}), "`if` at `/anyOf/1`"),
        (json!({"items": {"format": "semver"}}), "`format` at `/items`"),
        (json!({"properties": {"a": {"pattern": "(?=x)"}}}), "`pattern` at `/properties/a/pattern`"),
        (json!({"$ref": "https://example.com/s.json"}), "`$ref` at `/$ref`"),
        (json!({"$ref": "#/$defs/a"}), "`/$ref`: `#/$defs/a` refers to nothing"),
        (json!({"properties": 3}), "at `/properties`: it must be an object"),
        (json!({"maxLength": -1}), "`/maxLength`"),
        (json!({"minItems": 200_000}), "200000 as a count at `/minItems`"),
        (json!([]), "a schema is an object"),
    ];
    for (schema, expected) in cases {
        let told = fault(schema.clone());
        assert!(told.contains(expected), "{schema}: {told}");
    }
}

#[test]
fn what_changes_nothing_is_left_out() {
    let schema = json!({"uniqueItems": false, "not": false, "then": {}, "maxContains": 2, "unevaluatedProperties": true, "x": 1});
    assert_eq!(prepared(&schema).unwrap(), json!({}));
}

#[test]
fn references_lead_to_definitions_of_their_own() {
    let schema = json!({
        "$defs": {"a b": {"$anchor": "here", "type": "string"}, "c~d": {"$ref": "#here"}},
        "anyOf": [{"$ref": "#/$defs/a%20b"}, {"$ref": "#/$defs/c~0d"}, {"$ref": "#here"}],
    });
    let expected = json!({
        "anyOf": [{"$ref": "#/$defs/0"}, {"$ref": "#/$defs/1"}, {"$ref": "#/$defs/0"}],
        "$defs": {"0": {"type": "string"}, "1": {"$ref": "#/$defs/0"}},
    });
    assert_eq!(prepared(&schema).unwrap(), expected);
    let old = json!({"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {}}, "$ref": "#/definitions/a", "not": {}});
    assert_eq!(prepared(&old).unwrap()["$ref"], "#/$defs/0");
}

#[test]
fn what_requires_itself_is_refused_and_recursion_that_ends_is_not() {
    let endless = [
        json!({"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}),
        json!({"$ref": "#"}),
        json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}),
        json!({"type": "array", "minItems": 1, "items": {"$ref": "#"}}),
    ];
    for schema in endless {
        assert!(matches!(prepared(&schema), Err(GrammarFault::Unsatisfiable { .. })), "{schema}");
    }
    let fine = [
        json!({"type": "object", "properties": {"a": {"$ref": "#"}}}),
        json!({"type": "object", "required": ["a"], "properties": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}}),
        json!({"type": "array", "items": {"$ref": "#"}}),
    ];
    for schema in fine {
        assert!(prepared(&schema).is_ok(), "{schema}");
    }
}

#[test]
fn a_deep_schema_is_refused() {
    let mut schema = json!({});
    for _ in 0..100 {
        schema = json!({"items": schema});
    }
    assert!(fault(schema).contains("levels of nesting"));
}

/// For a tool that is not strict, keywords that no grammar can enforce are left out. The result allows everything the
/// schema allows.
#[test]
fn a_loose_schema_leaves_out_what_cannot_be_enforced() {
    for (schema, expected) in [
        (
            json!({"type": "array", "uniqueItems": true, "items": {"type": "string"}}),
            json!({"type": "array", "items": {"type": "string"}}),
        ),
        (json!({"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}), json!({"type": "string"})),
        (json!({"type": "string", "format": "binary"}), json!({"type": "string"})),
        (json!({"oneOf": [{"const": 1}, {"const": 2}]}), json!({"anyOf": [{"const": 1}, {"const": 2}]})),
        (
            json!({"type": "object", "propertyNames": {"pattern": "a"}, "additionalProperties": {"type": "number"}}),
            json!({"type": "object", "additionalProperties": {"type": "number"}}),
        ),
        (
            json!({"type": "object", "patternProperties": {"(?=a)": {}}, "additionalProperties": false}),
            json!({"type": "object"}),
        ),
        (json!({"$ref": "1/other"}), json!({})),
        (json!({"type": "string", "maxLength": 5_000_000}), json!({"type": "string"})),
        (json!({"type": "object", "minProperties": 3}), json!({"type": "object"})),
        (json!({"not": {"type": "null"}}), json!({})),
        (
            json!({"type": "number", "minimum": -3.4e38, "maximum": 1e19}),
            json!({"type": "number", "maximum": 1e19}),
        ),
    ] {
        assert_eq!(prepared_loosely(&schema).as_ref(), Ok(&expected), "{schema}");
    }
}

#[test]
fn what_is_no_schema_is_refused_with_its_path() {
    for (schema, path) in [
        (json!({"type": "objekt"}), "/type"),
        (json!({"type": ["string", 1]}), "/type"),
        (json!({"properties": {"a": 5}}), "/properties/a"),
        (json!({"properties": {"a": {"type": "strnig"}}}), "/properties/a/type"),
        (json!({"properties": {"a": {"enum": []}}}), "/properties/a/enum"),
        (json!({"properties": {"a": {"enum": "x"}}}), "/properties/a/enum"),
        (json!({"properties": {"a": {"required": true}}}), "/properties/a/required"),
        (json!({"required": ["a", 1]}), "/required"),
        (json!({"properties": {"a": {"$ref": "#/$defs/missing"}}}), "/properties/a/$ref"),
        (json!({"items": [{"type": "string"}, "x"]}), "/items/1"),
        (json!({"anyOf": {}}), "/anyOf"),
        (json!({"minLength": "3"}), "/minLength"),
        (json!({"maximum": "3"}), "/maximum"),
        (json!({"pattern": "(a"}), "/pattern"),
        (json!({"pattern": 3}), "/pattern"),
        (json!({"additionalProperties": "no"}), "/additionalProperties"),
    ] {
        let fault = prepared_loosely(&schema).expect_err("no schema");
        assert!(matches!(fault, GrammarFault::Invalid { .. }), "{schema}: {fault}");
        assert_eq!(fault.path(), Some(path), "{schema}");
    }
}

#[test]
fn a_wrong_keyword_is_shown_beside_what_it_takes() {
    let fault = prepared_loosely(&json!({"type": "strnig"})).expect_err("no schema").to_string();
    assert!(
        fault.starts_with("it is not valid at `/type`: it must be one of the types `string`,"),
        "{fault}"
    );
    assert!(fault.ends_with("and it is `\"strnig\"`"), "{fault}");
}
