//! The checkpoints that the model's tests have, for the tests that load them.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use headrace_checkpoint::Checkpoint;

/// The files of a checkpoint, by their names.
pub(crate) type Files = Vec<(String, Cow<'static, [u8]>)>;

/// The directory of the model's tests.
pub(crate) fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data")
}

/// The directories of all decoders.
pub(crate) fn all() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = (std::fs::read_dir(data()).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|dir| dir.join("config.v5.json").exists())
        .collect();
    found.sort();
    found
}

/// The files of a directory that belong to its checkpoint, and an empty tokenizer if there is none.
pub(crate) fn files(dir: &Path) -> Files {
    let mut files: Files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !matches!(name.as_str(), "expected.json" | "config.v5.json") {
            files.push((name.clone(), Cow::Owned(std::fs::read(dir.join(&name)).unwrap())));
        }
    }
    if !dir.join("tokenizer.json").exists() {
        files.push(("tokenizer.json".to_owned(), Cow::Borrowed(b"{}".as_slice())));
    }
    files
}

/// Opens a directory. `None` if it has no decoder.
pub(crate) fn open(dir: &Path) -> Option<Checkpoint> {
    Checkpoint::from_files(files(dir)).ok()
}
