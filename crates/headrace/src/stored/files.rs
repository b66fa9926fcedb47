//! A checkpoint that was found, and the directories that it is looked for in, read within bounds. Knows no program.

use std::path::{Path, PathBuf};

/// A checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    /// What its program calls it.
    pub(crate) name: String,
    /// Which program's.
    pub(crate) program: &'static str,
    /// What can be served: a directory, or a GGUF file.
    pub(crate) path: PathBuf,
    pub(crate) format: &'static str,
    /// Of its weights.
    pub(crate) bytes: u64,
    /// Why it cannot be served as it is.
    pub(crate) fault: Option<&'static str>,
}

/// How many entries may still be looked at.
pub(super) struct Budget(pub(super) usize);

/// The entries of a directory by name; none where it cannot be read.
pub(super) fn entries(dir: &Path, budget: &mut Budget) -> Vec<(String, PathBuf)> {
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

/// The GGUF files of a directory that can be given by themselves: of one in parts the first, and no projectors of images.
pub(super) fn gguf_files(dir: &Path, budget: &mut Budget) -> Vec<(String, PathBuf, u64)> {
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
