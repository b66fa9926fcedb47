//! A small real checkpoint in memory, helpers that damage it, and the function that checks a refusal.

use std::borrow::Cow;

use headrace_checkpoint::{Checkpoint, CheckpointError};
use serde_json::{Map, Value};

pub(crate) const CONFIG: &[u8] = include_bytes!("../data/qwen3-tied/config.json");
pub(crate) const CONFIG_V5: &[u8] = include_bytes!("../data/qwen3-tied/config.v5.json");
pub(crate) const GENERATION: &[u8] = include_bytes!("../data/qwen3-tied/generation_config.json");
pub(crate) const TOKENIZER: &[u8] = include_bytes!("../data/qwen3-tied/tokenizer.json");
pub(crate) const TOKENIZER_CONFIG: &[u8] = include_bytes!("../data/qwen3-tied/tokenizer_config.json");
pub(crate) const WEIGHTS: &[u8] = include_bytes!("../data/qwen3-tied/model.safetensors");

/// The files of a checkpoint, which a test may change.
#[derive(Clone)]
pub(crate) struct Files(pub(crate) Vec<(String, Cow<'static, [u8]>)>);

impl Files {
    pub(crate) fn good() -> Self {
        let file = |name: &str, bytes: &'static [u8]| (name.to_owned(), Cow::Borrowed(bytes));
        Self(vec![
            file("config.json", CONFIG),
            file("generation_config.json", GENERATION),
            file("tokenizer.json", TOKENIZER),
            file("tokenizer_config.json", TOKENIZER_CONFIG),
            file("model.safetensors", WEIGHTS),
        ])
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.0.retain(|(other, _)| other != name);
        self
    }

    pub(crate) fn with(self, name: &str, bytes: impl Into<Vec<u8>>) -> Self {
        let mut files = self.without(name);
        files.0.push((name.to_owned(), Cow::Owned(bytes.into())));
        files
    }

    pub(crate) fn bytes(&self, name: &str) -> &[u8] {
        &self.0.iter().find(|(other, _)| other == name).unwrap().1
    }

    /// Changes a JSON file.
    pub(crate) fn edit(self, name: &str, change: impl FnOnce(&mut Map<String, Value>)) -> Self {
        let mut members: Map<String, Value> = serde_json::from_slice(self.bytes(name)).unwrap();
        change(&mut members);
        self.with(name, serde_json::to_vec(&members).unwrap())
    }

    /// Sets one field of `config.json`.
    pub(crate) fn config(self, field: &str, value: Value) -> Self {
        self.edit("config.json", |config| {
            config.insert(field.to_owned(), value);
        })
    }

    /// Replaces one piece of text in a file.
    pub(crate) fn replace(self, name: &str, from: &str, to: &str) -> Self {
        let text = String::from_utf8(self.bytes(name).to_vec()).unwrap();
        assert!(text.contains(from), "{name} has no {from}");
        self.with(name, text.replacen(from, to, 1))
    }

    /// Changes the header of the weight file and keeps its data.
    pub(crate) fn header(self, change: impl FnOnce(&mut Map<String, Value>)) -> Self {
        let (header, data) = split(WEIGHTS);
        let mut members: Map<String, Value> = serde_json::from_slice(header).unwrap();
        change(&mut members);
        let file = safetensors_file(&serde_json::to_vec(&members).unwrap(), data);
        self.with("model.safetensors", file)
    }

    /// Replaces one piece of text in the weight file's header and keeps its data.
    pub(crate) fn header_text(self, from: &str, to: &str) -> Self {
        let (header, data) = split(WEIGHTS);
        let text = std::str::from_utf8(header).unwrap();
        assert!(text.contains(from), "the header has no {from}");
        let file = safetensors_file(text.replacen(from, to, 1).as_bytes(), data);
        self.with("model.safetensors", file)
    }

    pub(crate) fn open(self) -> Result<Checkpoint, CheckpointError> {
        Checkpoint::from_files(self.0)
    }

    pub(crate) fn write_to(&self, dir: &std::path::Path) {
        for (name, bytes) in &self.0 {
            std::fs::write(dir.join(name), bytes).unwrap();
        }
    }
}

/// Splits a safetensors file into header and data.
pub(crate) fn split(file: &[u8]) -> (&[u8], &[u8]) {
    let (length, rest) = file.split_first_chunk::<8>().unwrap();
    rest.split_at(u64::from_le_bytes(*length) as usize)
}

pub(crate) fn safetensors_file(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, data].concat()
}

/// One row of a table: the change, the files, and the pieces that the refusal must contain.
pub(crate) type Row = (&'static str, Files, &'static [&'static str]);

/// Checks that every row is refused with a message that contains all of its pieces and is short enough to read.
pub(crate) fn check_refused(rows: Vec<Row>) {
    for (what, files, pieces) in rows {
        let message = match files.open() {
            Ok(_) => panic!("{what}: was not refused"),
            Err(error) => error.to_string(),
        };
        for piece in pieces {
            assert!(message.contains(piece), "{what}: {message:?} does not say {piece:?}");
        }
        assert!(message.chars().count() < 800, "{what}: the message is {} long", message.len());
        assert!(!message.contains(char::is_control), "{what}: control characters in {message:?}");
    }
}
