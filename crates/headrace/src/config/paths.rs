//! Whether a path can be a model, as far as one look tells. Must not know what it is opened for.

use std::path::Path;

/// Why a path cannot be a model, as far as one look tells.
pub(super) fn not_a_model(path: &Path) -> Option<String> {
    let shown = path.display();
    if !path.exists() {
        return Some(format!("{shown}: there is no such file or directory"));
    }
    let is_gguf =
        |path: &Path| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    if !path.is_dir() {
        let what = "is neither a directory nor a .gguf file; give a GGUF file or the directory that holds config.json";
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
