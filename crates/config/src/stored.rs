//! Finds checkpoints that other programs have stored on this machine, under the names that those programs use: Hugging
//! Face's hub cache, Ollama, LM Studio, llama.cpp. Reads directories and manifests, but no model files; downloads
//! nothing.
//!
//! Layouts: <https://huggingface.co/docs/huggingface_hub/guides/manage-cache>,
//! <https://github.com/ollama/ollama/blob/main/docs/faq.mdx> (`OLLAMA_MODELS`; a manifest for each tag, a blob for each layer),
//! <https://lmstudio.ai/docs/app/basics/import-model>, <https://github.com/ggml-org/llama.cpp> (`LLAMA_CACHE`).

mod files;
mod hub;
mod ollama;

use std::path::{Path, PathBuf};

use files::{EntryBudget, entries, gguf_files};

pub use files::LocalCheckpoint;

/// Maximum number of directory entries that one listing reads.
const MAX_ENTRIES: usize = 50_000;
/// Maximum number of models that an error names.
const NAMED: usize = 5;

/// The directories in which the programs store their models.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelFolders {
    hub: Vec<PathBuf>,
    ollama: Vec<PathBuf>,
    lm_studio: Vec<PathBuf>,
    llama_cpp: Vec<PathBuf>,
}

/// The result of a search by name.
#[derive(Debug, PartialEq, Eq)]
pub enum FoundCheckpoint {
    /// The only match.
    One(LocalCheckpoint),
    /// An error message that says why, and what to do.
    None(String),
}

impl ModelFolders {
    /// The directories for this process's environment.
    pub fn of_process() -> Self {
        Self::of(|name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from))
    }

    fn of(variable: impl Fn(&str) -> Option<PathBuf>) -> Self {
        let home = variable("HOME");
        let below = |rest: &str| home.as_ref().map(|home| home.join(rest));
        let cache = variable("XDG_CACHE_HOME").or_else(|| below(".cache"));
        let in_cache = |rest: &str| cache.as_ref().map(|cache| cache.join(rest));
        let hub = ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"].iter().find_map(|name| variable(name));
        let hub = hub.or_else(|| Some(variable("HF_HOME").or_else(|| in_cache("huggingface"))?.join("hub")));
        let ollama = match variable("OLLAMA_MODELS") {
            Some(own) => vec![own],
            // The second directory belongs to the system service.
            None => {
                let service = PathBuf::from("/usr/share/ollama/.ollama/models");
                below(".ollama/models").into_iter().chain([service]).collect()
            }
        };
        // LM Studio's home may be elsewhere; a pointer file names it.
        let pointed = below(".lmstudio-home-pointer").and_then(|file| std::fs::read_to_string(file).ok());
        let lm_studio = pointed.map(|text| Path::new(text.trim()).join("models"));
        let lm_studio = [lm_studio, below(".lmstudio/models"), below(".cache/lm-studio/models")];
        let llama_cpp = variable("LLAMA_CACHE").or_else(|| in_cache("llama.cpp"));
        let llama_cpp = [llama_cpp, below("Library/Caches/llama.cpp")];
        let unique = |places: Vec<PathBuf>| {
            let mut unique: Vec<PathBuf> = Vec::new();
            for place in places {
                if place.is_absolute() && !unique.contains(&place) {
                    unique.push(place);
                }
            }
            unique
        };
        Self {
            hub: unique(hub.into_iter().collect()),
            ollama: unique(ollama),
            lm_studio: unique(lm_studio.into_iter().flatten().collect()),
            llama_cpp: unique(llama_cpp.into_iter().flatten().collect()),
        }
    }

    /// All checkpoints, sorted by name.
    pub fn list(&self) -> Vec<LocalCheckpoint> {
        let mut budget = EntryBudget(MAX_ENTRIES);
        let mut found = Vec::new();
        for place in &self.hub {
            hub::list(place, &mut budget, &mut found);
        }
        for place in &self.ollama {
            ollama::list(place, &mut budget, &mut found);
        }
        for place in &self.lm_studio {
            lm_studio(place, &mut budget, &mut found);
        }
        for place in &self.llama_cpp {
            files(place, "llama.cpp", |stem| stem.to_owned(), &mut budget, &mut found);
        }
        found.sort_by(|a, b| (a.name.to_lowercase(), a.program).cmp(&(b.name.to_lowercase(), b.program)));
        found
    }

    /// Finds the checkpoint with that name. If several or none match, returns a message that says what to do.
    pub fn find(&self, name: &str) -> FoundCheckpoint {
        let all = self.list();
        let wanted = name.to_lowercase();
        let called = |test: &dyn Fn(&str) -> bool| -> Vec<&LocalCheckpoint> {
            all.iter().filter(|stored| test(&stored.name.to_lowercase())).collect()
        };
        let exact = called(&|name| name == wanted || name.strip_suffix(":latest") == Some(&wanted));
        let named = if exact.is_empty() { called(&|name| is_called(name, &wanted)) } else { exact };
        let (whole, broken): (Vec<&LocalCheckpoint>, Vec<&LocalCheckpoint>) =
            named.into_iter().partition(|stored| stored.fault.is_none());
        match (whole.as_slice(), broken.as_slice()) {
            ([one], _) => FoundCheckpoint::One((*one).clone()),
            ([], []) => FoundCheckpoint::None(self.how_to_get(name, &all)),
            ([], [broken, ..]) => FoundCheckpoint::None(format!(
                "{}'s {} at {} {}",
                broken.program,
                broken.name,
                broken.path.display(),
                broken.fault.unwrap_or_default()
            )),
            (several, _) => {
                let line = |stored: &&LocalCheckpoint| {
                    format!("\n  {} ({}): {}", stored.name, stored.program, stored.path.display())
                };
                let lines: String = several.iter().take(NAMED).map(line).collect();
                FoundCheckpoint::None(format!(
                    "`{name}` could be any of several; give the whole name, or the path:{lines}"
                ))
            }
        }
    }

    fn how_to_get(&self, name: &str, all: &[LocalCheckpoint]) -> String {
        let mut text = format!("`{name}` is no file or directory, and ");
        match all {
            [] => text.push_str("no model of another program is stored on this machine"),
            some => {
                let mut names: Vec<_> = some.iter().map(|stored| stored.name.as_str()).collect();
                names.sort_by_key(|known| std::cmp::Reverse(alike(known, name)));
                let more = names.len().saturating_sub(NAMED);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                let names = names.into_iter().take(NAMED).collect::<Vec<_>>().join(", ");
                text.push_str(&format!("none of the models that other programs have stored here is called so; there are {names}{more}"));
            }
        }
        let looked: Vec<_> = [&self.hub, &self.ollama, &self.lm_studio, &self.llama_cpp]
            .into_iter()
            .flatten()
            .map(|place| place.display().to_string())
            .collect();
        text.push_str(&format!("\n  looked in: {}", looked.join(", ")));
        text.push_str("\n  Headrace downloads nothing. To get it:");
        let last = name.rsplit('/').next().unwrap_or(name);
        if name.contains('/') && !name.contains(':') {
            text.push_str(&format!(
                "\n    pip install huggingface_hub && hf download {name}\n    then give the same name again, or a directory: hf download {name} --local-dir {last}"
            ));
        } else {
            text.push_str(&format!(
                "\n    ollama pull {name}, then give the same name again; or hf download ORGANISATION/{last}, then ORGANISATION/{last}"
            ));
        }
        text.push_str("\n  What can be loaded: Hugging Face directories and GGUF files of the architectures that headrace models families lists, and encoders; headrace models inspect PATH says why one cannot");
        text
    }
}

/// Whether the text could be a model name of another program, rather than a path: `Qwen/Qwen3-0.6B`, `llama3.2:1b`.
pub fn could_be_a_name(path: &Path) -> bool {
    let Some(text) = path.to_str() else { return false };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/');
    let parts: Vec<_> = text.split('/').collect();
    parts.len() <= 4
        && text.chars().all(plain)
        && parts.iter().all(|part| part.starts_with(|c: char| c.is_ascii_alphanumeric()))
        && !text.ends_with(".gguf")
}

/// Whether part of a name matches a stored model: without the organisation, without the tag, or by a tag within a
/// file's name.
fn is_called(name: &str, wanted: &str) -> bool {
    let (base, tag) = name.split_once(':').unwrap_or((name, ""));
    let (wanted_base, wanted_tag) = wanted.split_once(':').unwrap_or((wanted, ""));
    let same = base == wanted_base || base.rsplit('/').next() == Some(wanted_base);
    let own = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    same && (wanted_tag.is_empty() || tag == wanted_tag || tag.split(own).any(|part| part == wanted_tag))
}

/// Similarity of two names: the length of their common prefix, with or without the organisation.
fn alike(known: &str, name: &str) -> usize {
    let common =
        |a: &str, b: &str| a.chars().zip(b.chars()).take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count();
    let last = |text: &str| text.rsplit('/').next().unwrap_or_default().to_owned();
    common(known, name).max(common(&last(known), &last(name)))
}

/// Layout: `PUBLISHER/REPOSITORY/FILE.gguf`.
fn lm_studio(place: &Path, budget: &mut EntryBudget, found: &mut Vec<LocalCheckpoint>) {
    for (publisher, path) in entries(place, budget) {
        for (repository, path) in entries(&path, budget) {
            files(&path, "LM Studio", |stem| format!("{publisher}/{repository}:{stem}"), budget, found);
        }
    }
}

fn files(
    dir: &Path,
    program: &'static str,
    name: impl Fn(&str) -> String,
    budget: &mut EntryBudget,
    found: &mut Vec<LocalCheckpoint>,
) {
    for (stem, path, bytes) in gguf_files(dir, budget) {
        found.push(LocalCheckpoint { name: name(&stem), program, path, format: "GGUF", bytes, fault: None });
    }
}

#[cfg(test)]
mod tests;
