//! [`ModelRefusal`]: why a model is refused, in the parts that every command shows alike. Must not know the commands.

use std::fmt;
use std::path::Path;

use serde::Serialize;

use crate::decoder::Architecture;
use crate::error::{CheckpointError, NO_SUCH_OPTION};
use crate::gguf::ARCHITECTURE_KEY;

/// What to do about an architecture that no engine here computes.
const OTHER_SERVER: &str = "serve it with another server (vLLM, SGLang, llama.cpp) and put this one in front of it: \
                            `headrace up --upstream NAME=KIND:URL`";
/// The text between a type of weights and the types that are read, in messages.
const NOT_SUPPORTED: &str = " is not supported; ";
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
            CheckpointError::Tensor { file, tensor, field: "dtype", problem }
                if problem.contains(NOT_SUPPORTED) =>
            {
                let (found, supported) = problem.split_once(NOT_SUPPORTED).unwrap_or((problem.as_str(), ""));
                let nearest = NearestValue::of(found, supported);
                let way_out =
                    format!("take the model with weights of a type that is read, or {OTHER_SERVER}");
                let refusal = of("feature_unsupported", field(file, tensor), found, way_out);
                Self { nearest: nearest.shown(), ..refusal }
            }
            CheckpointError::Tensor { file, tensor, field: "dtype", problem } => {
                of("weights_unsupported", field(file, tensor), problem, OTHER_SERVER.to_owned())
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
                let way_out = nearest.map_or_else(
                    || OTHER_SERVER.to_owned(),
                    |name| format!("take a model of the nearest architecture, {name}, or {OTHER_SERVER}"),
                );
                let refusal =
                    of("architecture_unsupported", "config.json: architectures".to_owned(), found, way_out);
                Self { nearest: nearest.map(str::to_owned), ..refusal }
            }
            CheckpointError::UnsupportedFeature { file, field: path, found, supported } => {
                let nearest = NearestValue::of(found, supported);
                let refusal = of(
                    "feature_unsupported",
                    field(file, path),
                    found,
                    way_out(path, found, supported, &nearest),
                );
                Self { nearest: nearest.shown(), ..refusal }
            }
        }
    }
}

/// Returns what to do about a value of a configuration or of metadata that is not supported.
fn way_out(path: &str, found: &str, supported: &str, nearest: &NearestValue<'_>) -> String {
    let plain = plain(found);
    let computed = Architecture::all().find(|architecture| architecture.gguf_name() == plain);
    let first = match (path, computed) {
        (ARCHITECTURE_KEY, Some(architecture)) => format!(
            "serve the model's Hugging Face directory, as {} is computed from config.json and safetensors",
            architecture.hf_name()
        ),
        // A GGUF file names only some of the ways in which texts are split.
        _ if path.starts_with("tokenizer.") => {
            "serve the model's Hugging Face directory, in which tokenizer.json describes them".to_owned()
        }
        _ if supported == NO_SUCH_OPTION => {
            "take config.json from the model's repository, unchanged, if it is not".to_owned()
        }
        _ => match nearest {
            NearestValue::Name(name) => format!("take a model with the nearest, {name}"),
            NearestValue::Description(_) | NearestValue::None => return OTHER_SERVER.to_owned(),
        },
    };
    format!("{first}; or {OTHER_SERVER}")
}

/// The nearest supported value.
enum NearestValue<'s> {
    /// One of the names that are supported.
    Name(&'s str),
    /// What is supported, if it has no names or none is similar.
    Description(&'s str),
    /// Nothing similar.
    None,
}

impl<'s> NearestValue<'s> {
    /// Finds the nearest in a description of what is supported: `supported are a, b and c`, or `"silu" is`.
    fn of(found: &str, supported: &'s str) -> Self {
        if supported == NO_SUCH_OPTION {
            return Self::None;
        }
        if let Some(name) = nearest(plain(found), names(supported).into_iter()) {
            return Self::Name(name);
        }
        let described = supported.split(';').next().unwrap_or_default();
        let described = described.strip_prefix("supported are ").unwrap_or(described);
        let ends = [" are read", " is read", " are", " is"];
        let described = ends.iter().find_map(|end| described.strip_suffix(end)).unwrap_or(described);
        let alone = described.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        Self::Description(alone.filter(|name| !name.contains('"')).unwrap_or(described))
    }

    fn shown(&self) -> Option<String> {
        match self {
            Self::Name(text) | Self::Description(text) => Some((*text).to_owned()),
            Self::None => None,
        }
    }
}

/// Returns a name as it is found, without quotes and without what it needs.
fn plain(found: &str) -> &str {
    found.split(" (").next().unwrap_or_default().trim_matches('"')
}

/// Returns the names in a description of what is supported: `supported are a, b and c`.
fn names(supported: &str) -> Vec<&str> {
    let list = supported.split("supported are ").nth(1).unwrap_or("");
    let names = list.split([',', ' ']).map(|name| name.trim_matches('"'));
    names.filter(|name| !matches!(*name, "" | "and" | "or")).collect()
}

/// Returns the name that is most like `found`. `None` if more than half of it would have to change.
fn nearest<'s>(found: &str, supported: impl Iterator<Item = &'s str>) -> Option<&'s str> {
    let stem = |name: &str| {
        let name = name.strip_suffix("ForConditionalGeneration").unwrap_or(name);
        name.strip_suffix("ForCausalLM").unwrap_or(name).to_lowercase()
    };
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
    use crate::missing::missing_feature;

    #[test]
    fn the_nearest_name_is_the_most_similar() {
        let known = ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"];
        for (found, expected) in [
            ("Llama4ForCausalLM", Some("LlamaForCausalLM")),
            ("Llama4ForConditionalGeneration", Some("LlamaForCausalLM")),
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
                unsupported(
                    "general.architecture",
                    "\"gemma3n\"",
                    "supported are \"llama\", \"gemma3\" and \"gpt2\"",
                ),
                "feature_unsupported",
                Some("gemma3"),
                "the nearest, gemma3; or serve it with another server",
            ),
            (
                unsupported("hidden_act", "\"gelu\"", "\"silu\" is"),
                "feature_unsupported",
                Some("silu"),
                "--upstream",
            ),
            (
                unsupported(
                    "rope_scaling.type",
                    "\"dynamic\"",
                    "supported are default, linear, llama3, yarn",
                ),
                "feature_unsupported",
                Some("default, linear, llama3, yarn"),
                "--upstream",
            ),
            (
                unsupported("quant_method", "\"exl3\"", "\"fp8\" (e4m3) and \"awq\" are read; take a copy"),
                "feature_unsupported",
                Some("\"fp8\" (e4m3) and \"awq\""),
                "--upstream",
            ),
            (
                unsupported("num_experts", "8", NO_SUCH_OPTION),
                "feature_unsupported",
                None,
                "config.json from the model's repository",
            ),
            (
                unsupported(
                    ARCHITECTURE_KEY,
                    "\"cohere2\"",
                    "supported are \"llama\", \"qwen2\" and \"qwen3\"",
                ),
                "feature_unsupported",
                Some("\"llama\", \"qwen2\" and \"qwen3\""),
                "Cohere2ForCausalLM is computed",
            ),
            (
                unsupported(
                    ARCHITECTURE_KEY,
                    "\"llama4\" (it needs chunks)",
                    "supported are \"llama\" and \"qwen2\"",
                ),
                "feature_unsupported",
                Some("llama"),
                "take a model with the nearest, llama",
            ),
            (
                CheckpointError::Tensor {
                    file: text(),
                    tensor: text(),
                    field: "dtype",
                    problem: "Q1_0 is not supported; supported are F32, Q4_0 and Q4_K".to_owned(),
                },
                "feature_unsupported",
                Some("Q4_0"),
                "weights of a type that is read",
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
            (
                CheckpointError::Tensor { file: text(), tensor: text(), field: "dtype", problem: text() },
                "weights_unsupported",
                None,
                "--upstream",
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

    #[test]
    fn what_is_computed_is_not_known_as_missing() {
        for architecture in Architecture::all() {
            for name in [architecture.hf_name(), architecture.gguf_name()] {
                assert_eq!(missing_feature(name), None, "{name}");
            }
        }
        for class in Architecture::classes_with_text_model() {
            assert_eq!(missing_feature(class), None, "{class}");
        }
    }
}
