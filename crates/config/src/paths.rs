//! Checks at a glance whether a path can be a model. Must not know what the model is opened for.

use std::path::Path;

use headrace_checkpoint::is_gguf;

use crate::stored;

/// Returns why a path cannot be a model, as far as a glance at the files shows.
pub(super) fn not_a_model(path: &Path) -> Option<String> {
    let shown = path.display();
    if !path.exists() {
        let hint = if stored::could_be_a_name(path) {
            ". Programs that download models may have it: headrace models list, and headrace up --model NAME"
        } else {
            ""
        };
        return Some(format!("{shown}: there is no such file or directory{hint}"));
    }
    if !path.is_dir() {
        let what = "is neither a directory nor a GGUF file; give a GGUF file or the directory that holds config.json";
        return (!is_gguf(path)).then(|| format!("{shown}: {what}"));
    }
    let holds_gguf = || {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| is_gguf(&entry.path()))
    };
    (!path.join("config.json").exists() && !holds_gguf()).then(|| {
        format!("{shown}: holds neither config.json nor a .gguf file; give a model directory or a GGUF file")
    })
}
