//! [`ModelRefusal`]: why a model is refused, in the parts that every command shows alike. Must not know the commands.

use std::fmt;
use std::path::Path;

use serde::Serialize;

use crate::error::CheckpointError;

/// What to do about an architecture that no engine here computes.
const OTHER_SERVER: &str = "serve it with another server (vLLM, SGLang, llama.cpp) and put this one in front of it: \
                            `headrace up --upstream NAME=KIND:URL`";
/// What to do about a broken file.
const DOWNLOAD: &str = "download the file again";

/// Why a model is refused. [`fmt::Display`] shows the message and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModelRefusal {
    /// The code of the reason, which stays the same across versions of the program.
    pub code: &'static str,
    /// The file and the feature, what was found and what was expected.
    pub message: String,
    /// The file, and the field or tensor in it.
    pub feature: Box<str>,
    /// What was found there.
    pub found: Box<str>,
    /// The nearest that is supported, if something similar is.
    pub nearest: Option<String>,
    /// What to do.
    pub way_out: String,
}

impl ModelRefusal {
    /// Returns why the files at a path are refused, beginning with the path.
    pub fn of_path(path: &Path, error: &CheckpointError) -> Self {
        let refusal = Self::from(error);
        // The error of a single file begins with its name.
        if path.is_dir() { refusal.at(&path.display()) } else { refusal }
    }

    /// Puts the place of the model before the message.
    #[must_use]
    pub fn at(self, place: &impl fmt::Display) -> Self {
        Self { message: format!("{place}: {}", self.message), ..self }
    }
}

impl fmt::Display for ModelRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  try: {}", self.message, self.way_out)
    }
}

impl From<&CheckpointError> for ModelRefusal {
    fn from(error: &CheckpointError) -> Self {
        let message = error.to_string();
        let of = |code, feature: String, found: &str, way_out: String| Self {
            code,
            message: message.clone(),
            feature: feature.into(),
            found: found.into(),
            nearest: None,
            way_out,
        };
        let field = |file: &str, field: &str| {
            if field.is_empty() { file.to_owned() } else { format!("{file}: {field}") }
        };
        match error {
            CheckpointError::Io { file, source } => {
                let way_out = "name a directory with config.json, or a .gguf file, that this user may read";
                of("file_unreadable", file.clone(), &source.to_string(), way_out.to_owned())
            }
            CheckpointError::MissingFile { file, remedy } => {
                of("file_missing", file.clone(), "no such file", remedy.clone())
            }
            CheckpointError::File { file, problem } => {
                let way_out = "name the model's own directory or file, as its repository has it";
                of("file_refused", file.clone(), problem, way_out.to_owned())
            }
            CheckpointError::Json { file, field: path, problem } => {
                of("file_broken", field(file, path), problem, DOWNLOAD.to_owned())
            }
            CheckpointError::Header { file, problem } => {
                of("file_broken", file.clone(), problem, DOWNLOAD.to_owned())
            }
            CheckpointError::Tensor { file, tensor, problem, .. } => {
                let way_out = "take config.json and the weights from one repository; if they are, download the weights again";
                of("weights_contradict", field(file, tensor), problem, way_out.to_owned())
            }
            CheckpointError::Field { file, field: path, problem } => {
                let way_out = format!("take {file} from the model's repository, unchanged");
                of("setting_invalid", field(file, path), problem, way_out)
            }
            CheckpointError::UnsupportedArchitecture { found, supported } => {
                let nearest = nearest(found, supported.iter().copied());
                let way_out = match nearest {
                    Some(name) => {
                        format!("take a model of the nearest architecture, {name}, or {OTHER_SERVER}")
                    }
                    None => OTHER_SERVER.to_owned(),
                };
                let refusal =
                    of("architecture_unsupported", "config.json: architectures".to_owned(), found, way_out);
                Self { nearest: nearest.map(str::to_owned), ..refusal }
            }
            CheckpointError::UnsupportedFeature { file, field: path, found, supported } => {
                let mut way_out = OTHER_SERVER.to_owned();
                // A GGUF file names only some of the ways in which texts are split.
                if path.starts_with("tokenizer.") {
                    way_out = format!(
                        "serve the model's Hugging Face directory, in which tokenizer.json describes them, or {way_out}"
                    );
                }
                let near = nearest(found.trim_matches('"'), names(supported).into_iter());
                if let Some(name) = near {
                    way_out = format!("take a model with the nearest, {name}, or {way_out}");
                }
                let refusal = of("feature_unsupported", field(file, path), found, way_out);
                // Without a list of names, the description of what is supported is the nearest.
                let nearest = near.map_or_else(|| supported.clone(), str::to_owned);
                Self { nearest: Some(nearest), ..refusal }
            }
        }
    }
}

/// Returns the names in a description of what is supported: `supported are a, b and c`.
fn names(supported: &str) -> Vec<&str> {
    let list = supported.strip_prefix("supported are ").unwrap_or("");
    let names = list.split([',', ' ']).map(|name| name.trim_matches('"'));
    names.filter(|name| !matches!(*name, "" | "and" | "or")).collect()
}

/// Returns the name that is most like `found`. `None` if more than half of it would have to change.
fn nearest<'s>(found: &str, supported: impl Iterator<Item = &'s str>) -> Option<&'s str> {
    let stem = |name: &str| name.trim_end_matches("ForCausalLM").to_lowercase();
    let found = stem(found);
    let distances = supported.map(|name| (distance(&found, &stem(name)), name));
    let (distance, name) = distances.min_by_key(|(distance, _)| *distance)?;
    (2 * distance <= found.chars().count()).then_some(name)
}

/// Returns the number of characters that differ between two names: inserted, left out or replaced.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (at, c) in left.chars().enumerate() {
        let mut diagonal = at;
        let mut last = at.saturating_add(1);
        let above = std::mem::take(&mut row);
        row.push(last);
        for (other, up) in right.iter().zip(above.iter().skip(1)) {
            let replaced = diagonal.saturating_add(usize::from(c != *other));
            last = replaced.min(last.saturating_add(1)).min(up.saturating_add(1));
            row.push(last);
            diagonal = *up;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_the_most_similar() {
        let known = ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"];
        for (found, expected) in [
            ("Llama4ForCausalLM", Some("LlamaForCausalLM")),
            ("Qwen3NextMoeForCausalLM", Some("Qwen3MoeForCausalLM")),
            ("Qwen4ForCausalLM", Some("Qwen2ForCausalLM")),
            ("Gpt9ForCausalLM", None),
            ("", None),
        ] {
            assert_eq!(nearest(found, known.into_iter()), expected, "{found}");
        }
        for (left, right, expected) in
            [("", "", 0), ("a", "", 1), ("", "ab", 2), ("kitten", "sitting", 3), ("flaw", "lawn", 2)]
        {
            assert_eq!(distance(left, right), expected, "{left} {right}");
        }
    }

    #[test]
    fn every_refusal_says_what_to_do() {
        let unsupported = |field: &str, found: &str, supported: &str| CheckpointError::UnsupportedFeature {
            file: "a".to_owned(),
            field: field.to_owned(),
            found: found.to_owned(),
            supported: supported.to_owned(),
        };
        let text = || "b".to_owned();
        for (error, code, nearest, way_out) in [
            (
                CheckpointError::UnsupportedArchitecture {
                    found: "Qwen9ForCausalLM".to_owned(),
                    supported: &["LlamaForCausalLM", "Qwen3ForCausalLM"],
                },
                "architecture_unsupported",
                Some("Qwen3ForCausalLM"),
                "the nearest architecture, Qwen3ForCausalLM",
            ),
            (
                unsupported("tokenizer.ggml.pre", "\"qwen9\"", "supported are gpt-2, \"qwen2\" and qwen35"),
                "feature_unsupported",
                Some("qwen2"),
                "tokenizer.json",
            ),
            (
                unsupported("hidden_act", "\"gelu\"", "\"silu\" is"),
                "feature_unsupported",
                Some("\"silu\" is"),
                "--upstream",
            ),
            (
                CheckpointError::MissingFile { file: text(), remedy: "fetch it".to_owned() },
                "file_missing",
                None,
                "fetch it",
            ),
            (
                CheckpointError::Tensor { file: text(), tensor: text(), field: "shape", problem: text() },
                "weights_contradict",
                None,
                "one repository",
            ),
            (CheckpointError::Header { file: text(), problem: text() }, "file_broken", None, "download"),
        ] {
            let refusal = ModelRefusal::from(&error);
            assert_eq!((refusal.code, refusal.nearest.as_deref()), (code, nearest), "{refusal:?}");
            assert!(refusal.way_out.contains(way_out), "{refusal:?}");
            assert_eq!(refusal.message, error.to_string());
            let shown = refusal.at(&"place").to_string();
            assert!(shown.starts_with("place: ") && shown.contains("\n  try: "), "{shown}");
        }
    }
}
