//! Tokenizer assets of a model whose weights are elsewhere: the same as with weights, for any architecture.

use std::path::Path;

use headrace_checkpoint::{Checkpoint, Wording};
use serde_json::{Value, json};

use crate::gguf::model;
use crate::support::Files;

fn read(files: Files) -> Result<Wording, String> {
    Wording::from_files(files.0).map_err(|error| error.to_string())
}

/// Checks that both readers return the same tokenizer assets.
fn check_same(whole: &Checkpoint, words: &Wording) {
    assert_eq!(words.vocab_size(), whole.config().vocab_size);
    assert_eq!(words.max_positions(), Some(whole.config().max_positions));
    let eos = whole.generation().eos.as_ref().unwrap_or(&whole.config().eos);
    assert_eq!(words.eos(), eos);
    assert_eq!(words.generation(), whole.generation());
    assert!(words.tokenizer_json() == whole.tokenizer_json());
    assert_eq!(words.tokenizer_config(), whole.tokenizer_config());
    assert_eq!(words.chat_template(), whole.chat_template());
}

#[test]
fn words_are_the_same_with_and_without_weights() {
    let without = read(Files::good().without("model.safetensors")).unwrap();
    check_same(&Files::good().open().unwrap(), &without);
    let with = read(Files::good()).unwrap();
    assert_eq!(with.fingerprint(), without.fingerprint(), "no weight was looked at");
    for name in ["qwen3", "gguf/qwen3.gguf", "gguf/llama-yarn.gguf"] {
        let whole = Checkpoint::open(&model(name)).unwrap();
        check_same(&whole, &Wording::open(&model(name)).unwrap());
        // From the exported files, without weights, for both source formats.
        let files = whole.wording_files().into_iter().map(|(name, contents)| (name, contents.into()));
        check_same(&whole, &Wording::from_files(files.collect()).unwrap());
    }
}

#[test]
fn words_of_any_architecture_are_read() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/configs");
    let mut read_so_far = 0;
    for entry in std::fs::read_dir(data).unwrap() {
        let path = entry.unwrap().path();
        let config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let within = config.get("text_config").filter(|_| config.get("vocab_size").is_none());
        let vocab = within.unwrap_or(&config)["vocab_size"].as_u64().unwrap();
        let files = Files::good().without("generation_config.json").with("config.json", config.to_string());
        let words = read(files).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(words.vocab_size() as u64, vocab, "{}", path.display());
        read_so_far += 1;
    }
    assert_eq!(read_so_far, 70);
}

/// GPT-2 and its descendants name the longest context differently.
#[test]
fn the_longest_context_has_several_names() {
    for (members, expected) in [
        (json!({"n_positions": 64}), Some(64)),
        (json!({"n_ctx": 32}), Some(32)),
        (json!({"n_ctx": 32, "n_positions": 64}), Some(64)),
        (json!({"n_ctx": 32, "n_positions": 64, "max_position_embeddings": 16}), Some(16)),
        (json!({}), None),
    ] {
        let mut config = json!({"architectures": ["GPT2LMHeadModel"], "vocab_size": 300});
        config.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        let files = Files::good().without("generation_config.json").with("config.json", config.to_string());
        assert_eq!(read(files).unwrap().max_positions(), expected, "{config}");
    }
}

#[test]
fn sizes_may_stand_within_those_of_the_text() {
    let text = json!({"vocab_size": 300, "max_position_embeddings": 77, "eos_token_id": [3, 4]});
    let config = json!({"architectures": ["Seeing"], "text_config": text}).to_string();
    let files = || Files::good().without("generation_config.json");
    let words = read(files().with("config.json", config)).unwrap();
    assert_eq!((words.vocab_size(), words.max_positions(), words.eos()), (300, Some(77), &[3, 4][..]));
    let unsaid = json!({"vocab_size": 300}).to_string();
    let words = read(files().with("config.json", unsaid)).unwrap();
    assert_eq!((words.max_positions(), words.eos()), (None, &[][..]));
    for (name, files, told) in [
        ("no sizes", files().with("config.json", "{}"), "vocab_size"),
        ("a bad one", files().with("config.json", r#"{"vocab_size": -1}"#), "vocab_size"),
        ("no configuration", Files::good().without("config.json"), "config.json"),
        ("no tokenizer", Files::good().without("tokenizer.json"), "tokenizer.json"),
    ] {
        let error = read(files).err().unwrap();
        assert!(error.contains(told), "{name}: {error}");
    }
}

#[test]
fn another_word_gives_another_fingerprint() {
    let first = read(Files::good()).unwrap().fingerprint().to_owned();
    for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json"] {
        let text = String::from_utf8(Files::good().bytes(file).to_vec()).unwrap();
        let changed = read(Files::good().with(file, text + "\n")).unwrap();
        assert_ne!(changed.fingerprint(), first, "{file}");
    }
    let (a, b) = ("gguf/qwen3.gguf", "gguf/qwen2.gguf");
    let fingerprint = |name| Wording::open(&model(name)).unwrap().fingerprint().to_owned();
    assert_eq!(fingerprint(a), fingerprint(a));
    assert_ne!(fingerprint(a), fingerprint(b));
}
