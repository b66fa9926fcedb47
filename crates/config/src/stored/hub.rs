//! Hugging Face's hub cache: `models--ORGANISATION--NAME`, with a snapshot per revision that links to blobs. Knows no
//! other program.

use std::path::{Path, PathBuf};

use super::files::{EntryBudget, LocalCheckpoint, entries, gguf_files};

const PROGRAM: &str = "Hugging Face";
/// Maximum size of a file that names a revision, in bytes.
const MAX_REF_BYTES: u64 = 256;

pub(super) fn list(place: &Path, budget: &mut EntryBudget, found: &mut Vec<LocalCheckpoint>) {
    for (directory, path) in entries(place, budget) {
        let Some(name) = directory.strip_prefix("models--") else { continue };
        let name = name.replacen("--", "/", 1);
        let Some(snapshot) = snapshot(&path, budget) else { continue };
        let ggufs = gguf_files(&snapshot, budget);
        if snapshot.join("config.json").exists() && (ggufs.is_empty() || has_safetensors(&snapshot, budget)) {
            found.push(directory_of(&name, &snapshot, budget));
        }
        for (stem, path, bytes) in ggufs {
            let name = format!("{name}:{stem}");
            found.push(LocalCheckpoint { name, program: PROGRAM, path, format: "GGUF", bytes, fault: None });
        }
    }
}

/// The snapshot that `main` pointed to at the last fetch, or else the newest snapshot.
fn snapshot(repository: &Path, budget: &mut EntryBudget) -> Option<PathBuf> {
    let snapshots = repository.join("snapshots");
    let main = repository.join("refs/main");
    let short = std::fs::metadata(&main).is_ok_and(|data| data.len() <= MAX_REF_BYTES);
    let named = short.then(|| std::fs::read_to_string(&main).ok()).flatten();
    let is_revision = |text: &&str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric());
    if let Some(path) = named.as_deref().map(str::trim).filter(is_revision).map(|name| snapshots.join(name))
        && path.is_dir()
    {
        return Some(path);
    }
    let changed = |path: &PathBuf| std::fs::metadata(path).and_then(|data| data.modified()).ok();
    entries(&snapshots, budget)
        .into_iter()
        .map(|(_, path)| path)
        .filter(|path| path.is_dir())
        .max_by_key(changed)
}

fn weights(snapshot: &Path, budget: &mut EntryBudget) -> Vec<(String, PathBuf)> {
    let files = entries(snapshot, budget).into_iter();
    files.filter(|(name, _)| name.ends_with(".safetensors")).collect()
}

fn has_safetensors(snapshot: &Path, budget: &mut EntryBudget) -> bool {
    !weights(snapshot, budget).is_empty()
}

fn directory_of(name: &str, snapshot: &Path, budget: &mut EntryBudget) -> LocalCheckpoint {
    let weights = weights(snapshot, budget);
    // A link is broken if its blob was deleted or has not been fetched yet.
    let sizes: Vec<_> =
        weights.iter().map(|(_, path)| std::fs::metadata(path).map(|data| data.len())).collect();
    let fault = if weights.is_empty() {
        Some("has no weights (*.safetensors): hf download NAME fetches the rest")
    } else if sizes.iter().any(Result::is_err) {
        Some("lacks a part of its weights: hf download NAME fetches the rest")
    } else if !snapshot.join("tokenizer.json").exists() {
        Some("has no tokenizer.json: hf download NAME fetches the rest, if its authors publish one")
    } else {
        None
    };
    let bytes = sizes.into_iter().flatten().fold(0_u64, u64::saturating_add);
    let path = snapshot.to_owned();
    LocalCheckpoint { name: name.to_owned(), program: PROGRAM, path, format: "safetensors", bytes, fault }
}
