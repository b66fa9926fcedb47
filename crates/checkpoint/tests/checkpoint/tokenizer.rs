//! Tokenizer configuration, chat templates and generation defaults: every form that published models use.

use headrace_checkpoint::{GenerationDefaults, TokenizerConfig};
use serde_json::{Value, json};

use crate::support::{Files, TOKENIZER, check_refused};

fn tokenizer_config(text: Value) -> Files {
    Files::good().with("tokenizer_config.json", text.to_string())
}

fn generation(text: Value) -> Files {
    Files::good().with("generation_config.json", text.to_string())
}

#[test]
fn tokens_are_read_as_text_or_as_objects() {
    let checkpoint = tokenizer_config(json!({
        "bos_token": {"content": "<s>", "lstrip": false, "__type": "AddedToken"},
        "eos_token": "</s>",
        "pad_token": null,
        "additional_special_tokens": ["<a>", {"content": "<b>"}],
        "add_bos_token": true,
        "model_max_length": 1e30,
        "tokenizer_class": "LlamaTokenizerFast",
    }))
    .open()
    .unwrap();
    let expected = TokenizerConfig {
        bos_token: Some("<s>".to_owned()),
        eos_token: Some("</s>".to_owned()),
        additional_special_tokens: vec!["<a>".to_owned(), "<b>".to_owned()],
        add_bos_token: Some(true),
        tokenizer_class: Some("LlamaTokenizerFast".to_owned()),
        ..TokenizerConfig::default()
    };
    assert_eq!(*checkpoint.tokenizer_config(), expected);
    assert_eq!(checkpoint.tokenizer_json(), TOKENIZER);
}

#[test]
fn the_length_limit_is_a_length_or_none() {
    let big = "1000000000000000019884624838656";
    for (text, expected) in [("256", Some(256)), (big, None), ("null", None), ("1e30", None)] {
        let files = Files::good().with("tokenizer_config.json", format!("{{\"model_max_length\": {text}}}"));
        assert_eq!(files.open().unwrap().tokenizer_config().model_max_length, expected, "{text}");
    }
}

#[test]
fn the_template_file_wins_and_named_templates_are_kept() {
    let list = json!({"chat_template": [
        {"name": "default", "template": "D"},
        {"name": "tool_use", "template": "T"},
    ]});
    let no_default = json!({"chat_template": [{"name": "rag", "template": "R"}]});
    let rows = [
        (tokenizer_config(json!({"chat_template": "S"})), Some("S"), None),
        (tokenizer_config(list.clone()), Some("D"), Some("T")),
        (tokenizer_config(list).with("chat_template.jinja", "J"), Some("J"), Some("T")),
        (tokenizer_config(no_default), None, None),
        (tokenizer_config(json!({})), None, None),
        (Files::good().without("tokenizer_config.json"), None, None),
        (Files::good().without("tokenizer_config.json").with("chat_template.jinja", "J"), Some("J"), None),
    ];
    for (files, default, tool_use) in rows {
        let checkpoint = files.open().unwrap();
        assert_eq!(checkpoint.chat_template(), default);
        assert_eq!(checkpoint.chat_template_named("default"), default);
        assert_eq!(checkpoint.chat_template_named("tool_use"), tool_use);
    }
}

#[test]
fn generation_defaults_are_read() {
    let none = GenerationDefaults::default();
    let rows = [
        (json!({}), none.clone()),
        (
            json!({"temperature": 0.6, "do_sample": true}),
            GenerationDefaults { temperature: Some(0.6), ..none.clone() },
        ),
        (
            json!({"temperature": 0.6, "do_sample": false}),
            GenerationDefaults { temperature: Some(0.0), ..none.clone() },
        ),
        (json!({"do_sample": false}), GenerationDefaults { temperature: Some(0.0), ..none.clone() }),
        (json!({"top_k": 0}), none.clone()),
        (json!({"top_k": -1}), none.clone()),
        (json!({"top_k": 4_000_000_000u64}), GenerationDefaults { top_k: Some(1024), ..none.clone() }),
        (
            json!({"top_p": 0.95, "top_k": 20, "min_p": 0, "repetition_penalty": 1.05, "max_new_tokens": 64,
                "eos_token_id": [1, 2], "pad_token_id": 7, "transformers_version": "4.51.0"}),
            GenerationDefaults {
                top_p: Some(0.95),
                top_k: Some(20),
                min_p: Some(0.0),
                repetition_penalty: Some(1.05),
                max_new_tokens: Some(64),
                eos: Some(vec![1, 2]),
                ..none.clone()
            },
        ),
    ];
    for (text, expected) in rows {
        assert_eq!(*generation(text.clone()).open().unwrap().generation(), expected, "{text}");
    }
    assert_eq!(*Files::good().without("generation_config.json").open().unwrap().generation(), none);
}

#[test]
fn nonsense_is_refused_with_file_and_field() {
    let twice = json!({"chat_template": [{"name": "a", "template": ""}, {"name": "a", "template": ""}]});
    check_refused(vec![
        (
            "token",
            tokenizer_config(json!({"eos_token": 7})),
            &["tokenizer_config.json", "eos_token", "found 7"],
        ),
        (
            "token list",
            tokenizer_config(json!({"additional_special_tokens": [1]})),
            &["additional_special_tokens"],
        ),
        ("length", tokenizer_config(json!({"model_max_length": -5})), &["model_max_length", "found -5"]),
        ("template", tokenizer_config(json!({"chat_template": 5})), &["chat_template", "found 5"]),
        ("template item", tokenizer_config(json!({"chat_template": [{"name": "a"}]})), &["{name, template}"]),
        ("template twice", tokenizer_config(twice), &["chat_template", "names \"a\" twice"]),
        ("templates", tokenizer_config(json!({"chat_template": vec![0; 33]})), &["a list of 33"]),
        (
            "template size",
            tokenizer_config(json!({"chat_template": "x".repeat(2 << 20)})),
            &["chat_template", "2097152 bytes", "1048576"],
        ),
        (
            "template file",
            Files::good().with("chat_template.jinja", *b"\xff"),
            &["chat_template.jinja", "not UTF-8"],
        ),
        ("temperature", generation(json!({"temperature": -1})), &["generation_config.json", "temperature"]),
        ("top_p", generation(json!({"top_p": 0})), &["top_p", "found 0", "at most 1"]),
        ("top_k", generation(json!({"top_k": -2})), &["top_k", "found -2"]),
        ("min_p", generation(json!({"min_p": 1.5})), &["min_p", "found 1.5"]),
        ("penalty", generation(json!({"repetition_penalty": 0})), &["repetition_penalty", "found 0"]),
        ("length", generation(json!({"max_new_tokens": 1u64 << 50})), &["max_new_tokens"]),
        ("ids", generation(json!({"eos_token_id": [1024]})), &["eos_token_id", "found 1024"]),
        ("flag", generation(json!({"do_sample": 0})), &["do_sample", "found 0"]),
    ]);
}
