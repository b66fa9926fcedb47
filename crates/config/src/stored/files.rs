//! A stored checkpoint, and bounded reads of the directories that may hold one. Knows no program.

use std::path::{Path, PathBuf};

/// A stored checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalCheckpoint {
    /// The name that its program uses.
    pub name: String,
    /// The program that stored it.
    pub program: &'static str,
    /// The path to serve: a directory or a GGUF file.
    pub path: PathBuf,
    /// The format of its files.
    pub format: &'static str,
    /// Size of its weights.
    pub bytes: u64,
    /// Why it cannot be served as it is. `None` if it can.
    pub fault: Option<&'static str>,
}

/// The number of directory entries that may still be read.
pub(super) struct EntryBudget(pub(super) usize);

/// The entries of a directory, sorted by name. Empty if the directory cannot be read.
pub(super) fn entries(dir: &Path, budget: &mut EntryBudget) -> Vec<(String, PathBuf)> {
    let Ok(read) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in read.flatten() {
        if budget.0 == 0 {
            break;
        }
        budget.0 -= 1;
        if let Ok(name) = entry.file_name().into_string() {
            found.push((name, entry.path()));
        }
    }
    found.sort();
    found
}

/// The GGUF files of a directory that can be loaded by themselves. Of a split file only the first part; image
/// projectors are left out.
pub(super) fn gguf_files(dir: &Path, budget: &mut EntryBudget) -> Vec<(String, PathBuf, u64)> {
    let mut files = Vec::new();
    for (name, path) in entries(dir, budget) {
        let Some(stem) = name.strip_suffix(".gguf") else { continue };
        let part =
            stem.rsplit_once("-of-").and_then(|(rest, _)| rest.rsplit_once('-')).map(|(_, number)| number);
        let later = part.is_some_and(|number| number.parse::<u32>().is_ok_and(|number| number > 1));
        if later || stem.to_lowercase().starts_with("mmproj") {
            continue;
        }
        if let Ok(data) = std::fs::metadata(&path).map(|data| data.len()) {
            files.push((stem.to_owned(), path, data));
        }
    }
    files
}
