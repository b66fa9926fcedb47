//! The recorded tokenizers and their answers.

use std::sync::{Arc, LazyLock};

use headrace_checkpoint::TokenizerConfig;
use headrace_tokenizer::Tokenizer;
use serde::Deserialize;

pub(crate) const NAMES: [&str; 6] =
    ["bytebpe-llama3", "bytebpe-qwen", "spbpe-gemma", "spbpe-llama2", "unigram-xlmr", "wordpiece-uncased"];

/// One string and Hugging Face's results for it. `None` means "as the field before".
pub(crate) struct Row {
    pub(crate) text: String,
    pub(crate) ids: Vec<u32>,
    pub(crate) ids_special: Option<Vec<u32>>,
    pub(crate) decoded: String,
    pub(crate) decoded_skip: Option<String>,
    pub(crate) stream: Vec<Option<String>>,
    pub(crate) flush: String,
    pub(crate) stream_ok: bool,
    pub(crate) roundtrip: bool,
}

#[derive(Deserialize)]
struct Recorded {
    i: usize,
    ids: Vec<u32>,
    ids_special: Option<Vec<u32>>,
    decoded: String,
    decoded_skip: Option<String>,
    stream: Vec<Option<String>>,
    flush: String,
    stream_ok: bool,
    roundtrip: bool,
}

pub(crate) fn data(path: &str) -> Vec<u8> {
    let path = format!("{}/tests/data/{path}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub(crate) fn load(name: &str) -> Arc<Tokenizer> {
    static LOADED: LazyLock<Vec<Arc<Tokenizer>>> = LazyLock::new(|| {
        let json = |name: &&str| data(&format!("{name}/tokenizer.json"));
        let load = |json: Vec<u8>| Arc::new(Tokenizer::new(&json, &TokenizerConfig::default()).unwrap());
        NAMES.iter().map(json).map(load).collect()
    });
    Arc::clone(&LOADED[NAMES.iter().position(|known| *known == name).unwrap()])
}

pub(crate) fn strings() -> Vec<String> {
    serde_json::from_slice(&data("strings.json")).unwrap()
}

pub(crate) fn oracle(name: &str) -> Vec<Row> {
    let strings = strings();
    let rows: Vec<Recorded> = serde_json::from_slice(&data(&format!("{name}/expected.json"))).unwrap();
    rows.into_iter()
        .map(|r| Row {
            text: strings[r.i].clone(),
            ids: r.ids,
            ids_special: r.ids_special,
            decoded: r.decoded,
            decoded_skip: r.decoded_skip,
            stream: r.stream,
            flush: r.flush,
            stream_ok: r.stream_ok,
            roundtrip: r.roundtrip,
        })
        .collect()
}
