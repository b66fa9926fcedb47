//! Any answer within the masks fits its form. Random walks over the demo model's vocabulary are judged by third-party
//! parsers and validators.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support.rs"]
mod support;

use headrace_domain::{FormTag, GrammarSyntax, ResponseFormat, TaggedForm};
use headrace_engine_api::{FormThought, GrammarState};
use headrace_grammar::within_json;
use serde_json::{Value, json};
use support::{Rng, compile, demo, patient, schema, walk};

#[test]
fn json_objects_are_objects() {
    let grammar = compile(ResponseFormat::JsonObject).unwrap();
    for seed in 0..300 {
        let text = walk(&mut *grammar.begin(), &mut Rng(seed), 60).unwrap();
        let value: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{seed}: {error}: {text}"));
        assert!(value.is_object(), "{text}");
    }
}

#[test]
fn some_schemas() {
    let cases = [
        json!({}),
        json!({"type": "number"}),
        json!({"type": "integer", "minimum": 3, "maximum": 10_000}),
        json!({"type": "array", "items": {"type": "string", "maxLength": 5}, "minItems": 2, "maxItems": 4}),
        json!({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name", "age"], "additionalProperties": false}),
        json!({"type": "string", "format": "date-time"}),
    ];
    for schema_of in cases {
        let validator =
            jsonschema::draft202012::options().should_validate_formats(true).build(&schema_of).unwrap();
        let grammar = compile(schema(schema_of.clone())).unwrap();
        for seed in 0..50 {
            let text = walk(&mut *grammar.begin(), &mut Rng(seed), 60).unwrap();
            let value: Value =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{seed}: {error}: {text}"));
            assert!(validator.is_valid(&value), "{schema_of}: {text}");
        }
    }
}

/// Walks over a form 60 times. Returns the complete answers.
fn walks(form: ResponseFormat) -> Vec<String> {
    let grammar = compile(form.clone()).unwrap_or_else(|fault| panic!("{form:?}: {fault}"));
    (0..60).filter_map(|seed| walk(&mut *grammar.begin(), &mut Rng(seed), 40)).collect()
}

#[test]
fn texts_match_their_expression_as_a_whole() {
    for pattern in
        ["[0-9]{3}-[a-z]{4}", "(yes|no|yes please)", "a|ab|abc", "\\d\\d:[0-5]\\d( am| pm)?", "[^é]{2}é?"]
    {
        let all = walks(ResponseFormat::Regex(pattern.to_owned()));
        let judge = jsonschema::validator_for(&json!({"pattern": format!("^(?:{pattern})$")})).unwrap();
        assert!(all.len() > 30);
        for text in all {
            assert!(judge.is_valid(&json!(text)), "{pattern}: {text:?}");
        }
    }
}

#[test]
fn a_choice_is_one_of_the_texts_whole() {
    let choices = ["yes", "no", "yes please", "ye", "1+1 (or so)"].map(str::to_owned);
    let mut all = walks(ResponseFormat::Choice(choices.to_vec()));
    assert!(all.iter().all(|text| choices.contains(text)), "{all:?}");
    all.sort();
    all.dedup();
    assert_eq!(all.len(), choices.len(), "each of them can be chosen");
}

#[test]
fn grammars_of_both_notations_are_followed() {
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let lark = "start: term (\"+\" term)*\nterm: /[0-9]{1,3}/ | \"(\" start \")\"";
    let gbnf = "root ::= term (\"+\" term)* # a sum\nterm ::= [0-9]{1,3} |\n  \"(\" root \")\"\n";
    for (text, syntax) in
        [(lark, GrammarSyntax::Lark), (gbnf, GrammarSyntax::Gbnf), (gbnf, GrammarSyntax::Either)]
    {
        let all = walks(ResponseFormat::Grammar { text: text.to_owned(), syntax });
        assert!(all.len() > 20, "{syntax:?}: {all:?}");
        for sum in all {
            let open = sum.matches('(').count();
            assert_eq!(open, sum.matches(')').count(), "{sum}");
            let bare: String = sum.chars().filter(|c| !"()".contains(*c)).collect();
            assert!(bare.split('+').all(|term| !term.is_empty() && term.len() <= 3 && digits(term)), "{sum}");
        }
    }
}

#[test]
fn what_stands_in_tags_has_its_schema() {
    let tag = |name: &str, schema: Value| FormTag {
        begin: format!("<fn={name}>"),
        schema,
        end: "</fn>".to_owned(),
    };
    let tags = vec![
        tag(
            "add",
            json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false}),
        ),
        tag("say", json!({"type": "string", "maxLength": 3})),
    ];
    let grammar =
        compile(ResponseFormat::Tags(TaggedForm { tags, triggers: vec!["<fn=".to_owned()] })).unwrap();
    let tokenizer = &demo().tokenizer;
    let mut state = grammar.begin();
    for id in tokenizer.encode_plain("Let me: <fn=add>{\"n\": 12", false).unwrap() {
        state.accept(id).unwrap();
    }
    let mut mask = vec![0; 128];
    state.mask(&mut mask).unwrap();
    let may = |text: &str| {
        let ids = tokenizer.encode_plain(text, false).unwrap();
        mask[ids[0] as usize / 32] >> (ids[0] % 32) & 1 == 1
    };
    assert!(may("}") && may("3") && !may("x") && !may("\""));
    let mut other = grammar.begin();
    let wrong = tokenizer.encode_plain("<fn=sub>", false).unwrap();
    assert!(wrong.iter().any(|id| other.accept(*id).is_err()), "no such tag");
}

#[test]
fn numbers_and_white_space_are_bounded() {
    for (schema_of, most) in
        [(json!({"type": "number"}), 25), (json!({"type": "integer"}), 17), (json!({}), 200)]
    {
        let grammar = compile(schema(schema_of.clone())).unwrap();
        let mut state = grammar.begin();
        let mut mask = vec![0; 128];
        let tokenizer = &demo().tokenizer;
        let digit = tokenizer.encode_plain("7", false).unwrap()[0];
        let mut digits = 0;
        loop {
            state.mask(&mut mask).unwrap();
            if mask[digit as usize / 32] >> (digit % 32) & 1 == 0 || digits > 300 {
                break;
            }
            state.accept(digit).unwrap();
            digits += 1;
        }
        assert!((15..=most).contains(&digits), "{schema_of}: {digits} digits");
    }
    // A number with a large minimum may be longer.
    let large = json!({"type": "integer", "minimum": 100_000_000_000_000_000u64, "maximum": 200_000_000_000_000_000u64});
    let grammar = compile(schema(large)).unwrap();
    let text = walk(&mut *grammar.begin(), &mut Rng(1), 60).unwrap();
    assert_eq!(text.len(), 18, "{text}");
    let object = compile(ResponseFormat::JsonObject).unwrap();
    let mut state = object.begin();
    let space = demo().tokenizer.encode_plain(" ", false).unwrap()[0];
    state.accept(demo().tokenizer.encode_plain("{", false).unwrap()[0]).unwrap();
    let spaces = (0..200).take_while(|_| state.accept(space).is_ok()).count();
    assert!(spaces <= 2, "{spaces} spaces");
}

/// Reasoning is free, and nothing in it counts for the form that applies after it.
#[test]
fn a_form_begins_behind_the_thought_that_stands_before_it() {
    let tokenizer = &demo().tokenizer;
    let id = |text: &str| tokenizer.encode_plain(text, false).unwrap()[0];
    let end = tokenizer.id_of("<|im_end|>").unwrap();
    let (open, close, line) = (2001, 2002, id("\n"));
    let form = || std::sync::Arc::new(schema(json!({"type": "integer", "minimum": 10, "maximum": 99})));
    let behind = |is_open: bool, most_ids: Option<u32>| {
        let thought = FormThought { open, close, is_open, between: vec![line], most_ids };
        demo()
            .compiler
            .compile_behind(Some(thought), &headrace_grammar::FormOwner::default(), &form(), &patient())
            .unwrap()
    };
    let may = |state: &mut dyn GrammarState| {
        let mut mask = vec![0; 128];
        state.mask(&mut mask).unwrap();
        move |id: u32| mask[id as usize / 32] >> (id % 32) & 1 == 1
    };
    let (brace, digit) = (id("{"), id("7"));
    // Opened by the prompt: every id except an end is allowed until the reasoning is closed.
    let grammar = behind(true, None);
    assert_eq!(grammar.thought().map(|thought| thought.is_open), Some(true));
    let mut state = grammar.begin();
    for _ in 0..100 {
        let may = may(&mut *state);
        assert!(may(brace) && may(digit) && may(close) && !may(end) && !may(open));
        state.accept(brace).unwrap();
    }
    assert!(state.forced().is_empty() && !state.is_over());
    state.accept(close).unwrap();
    let after = may(&mut *state);
    assert!(after(line) && after(digit) && !after(brace) && !after(end));
    state.accept(line).unwrap();
    assert!(!may(&mut *state)(line), "white space between them comes once");
    let text = walk(&mut *state, &mut Rng(3), 20).unwrap();
    assert!((10..100).contains(&text.trim().parse::<u32>().unwrap()), "{text}");
    // Not opened: reasoning may come, or the answer at once without any.
    let mut state = behind(false, None).begin();
    assert!(may(&mut *state)(open) && may(&mut *state)(digit) && !may(&mut *state)(brace));
    state.accept(digit).unwrap();
    assert!(!may(&mut *state)(open) && may(&mut *state)(digit));
    assert!(state.accept(open).is_err());
    // Reasoning that has used up its tokens is closed, which costs no step.
    let mut state = behind(true, Some(3)).begin();
    (0..3).for_each(|_| state.accept(brace).unwrap());
    assert_eq!(state.forced(), [close]);
    assert!(state.accept(brace).is_err());
}

/// Whether a form accepts a text as a whole answer.
fn takes(form: &ResponseFormat, text: &str) -> bool {
    let ids = demo().tokenizer.encode_plain(text, false).unwrap();
    let mut state = compile(form.clone()).unwrap().begin();
    ids.iter().all(|id| state.accept(*id).is_ok()) && state.is_over() || may_end(&mut *state)
}

fn may_end(state: &mut dyn GrammarState) -> bool {
    let mut mask = vec![0; demo().tokenizer.vocab_size().div_ceil(32)];
    let end = demo().tokenizer.id_of("<|im_end|>").unwrap();
    state.mask(&mut mask).is_ok() && support::allowed(&mask).contains(&end)
}

/// Grammars of custom tools: OpenAI's own examples, Codex's `apply_patch` with short lines, and characters that JSON
/// escapes.
const TEXTS: [&str; 6] = [
    "start: expr\nexpr: term (SP ADD SP term)* -> add\n| term\nterm: factor (SP MUL SP factor)* -> mul\n| factor\nfactor: INT\nSP: \" \"\nADD: \"+\"\n\
     MUL: \"*\"\n%import common.INT\n",
    "start: begin_patch hunk{1,2} end_patch\nbegin_patch: \"*** Begin Patch\" LF\nend_patch: \"*** End Patch\" LF?\n\nhunk: add_hunk | delete_hunk | update_hunk\n\
     add_hunk: \"*** Add File: \" filename LF add_line{1,2}\ndelete_hunk: \"*** Delete File: \" filename LF\n\
     update_hunk: \"*** Update File: \" filename LF change_move? change?\n\nfilename: /.{1,4}/\nadd_line: \"+\" /.{0,3}/ LF -> line\n\n\
     change_move: \"*** Move to: \" filename LF\nchange: (change_context | change_line){1,2} eof_line?\nchange_context: (\"@@\" | \"@@ \" /.{1,4}/) LF\n\
     change_line: (\"+\" | \"-\" | \" \") /.{0,3}/ LF\neof_line: \"*** End of File\" LF\n\n%import common.LF\n",
    "start: \"SELECT \" NAME (\", \" NAME)* \" = \" VALUE \";\" // a query\nNAME: /[a-z_]{1,8}/\nVALUE: /\"[^\"\\\\]{0,6}\"/ | /[0-9]{1,4}/\n",
    "start: list\nlist: \"[\" (item (\",\" item)*)? \"]\"\nitem: list | STR\nSTR: \"\\\"\" /[a-z\\\\\\t]{0,3}/ \"\\\"\"\n",
    "start: DIGIT (CR DIGIT E){0,2} \"end\"i \"a\"..\"f\"\n%import common (CR, DIGIT)\n%import common.LF -> E\n",
    "start: \"a\" \"b\"+ \"c\"\n%ignore /[ \\t\\n]+/\n",
];

#[test]
fn a_text_within_json_is_one_of_its_grammar() {
    for lark in TEXTS {
        let inner = within_json(lark).unwrap_or_else(|fault| panic!("{lark}: {fault}"));
        let whole =
            format!("start: \"{{\\\"input\\\": \\\"\" text \"\\\"}}\"\ntext: %lark {{\n {inner}\n }}\n");
        let said = walks(ResponseFormat::Grammar { text: whole, syntax: GrammarSyntax::Lark });
        assert!(said.len() > 30, "{lark}: {} walks came to an end", said.len());
        let alone = ResponseFormat::Grammar { text: lark.to_owned(), syntax: GrammarSyntax::Lark };
        for json in said {
            let value: Value =
                serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}\n{lark}"));
            let text = value["input"].as_str().unwrap();
            assert!(takes(&alone, text), "{text:?} is none of\n{lark}");
        }
    }
    let yes = ResponseFormat::Grammar { text: "start: \"yes\"".to_owned(), syntax: GrammarSyntax::Lark };
    assert!(takes(&yes, "yes") && !takes(&yes, "no") && !takes(&yes, "ye"));
}
