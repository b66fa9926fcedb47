//! Why a checkpoint was refused: one enum whose messages name the file, the tensor or field, what was found and what
//! was expected. Untrusted text is escaped and clipped before it is shown. Must not know how files are read.

use std::fmt;

use crate::limits::MAX_SHOWN_CHARS;
use crate::missing::missing_feature;

/// What is supported instead of a field that the architecture does not read.
pub(crate) const NO_SUCH_OPTION: &str =
    "the architecture has no such option, and a model that needs it would answer otherwise";

/// Why a checkpoint, or one of its tensors, was refused.
#[derive(Debug)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The operating system refused to list, open, read or map a file.
    Io {
        /// File name in the model directory, or the directory itself.
        file: String,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A required file does not exist.
    MissingFile {
        /// File name in the model directory.
        file: String,
        /// Why the file is required, and what to do.
        remedy: String,
    },
    /// A file must not be used, because of its name, its kind, its size or its real location.
    File {
        /// File name as given, escaped and clipped.
        file: String,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// A file is not well-formed JSON: it is not UTF-8, is nested too deeply, has too many values, or has a duplicate
    /// key.
    Json {
        /// File name in the model directory.
        file: String,
        /// Dotted path of the value that could not be read. Empty for the document itself.
        field: String,
        /// The parser's message, with line and column.
        problem: String,
    },
    /// The container of a safetensors or GGUF file is broken, before any single tensor is at fault.
    Header {
        /// File name in the model directory.
        file: String,
        /// What was found and what was expected.
        problem: String,
    },
    /// A tensor is missing, broken, or contradicts the configuration.
    Tensor {
        /// File name in the model directory.
        file: String,
        /// Tensor name, escaped and clipped.
        tensor: String,
        /// The faulty property, such as `shape`, `dtype`, `data_offsets`, `name` or `presence`.
        field: &'static str,
        /// What was found and what was expected.
        problem: String,
    },
    /// A field of a configuration file has an invalid value.
    Field {
        /// File name in the model directory.
        file: String,
        /// Dotted path of the field.
        field: String,
        /// What was found and what was expected.
        problem: String,
    },
    /// The model's architecture is not supported.
    UnsupportedArchitecture {
        /// The architecture's name in `config.json`, escaped and clipped.
        found: String,
        /// The supported names.
        supported: &'static [&'static str],
    },
    /// The architecture is supported, but not with this setting.
    UnsupportedFeature {
        /// File name in the model directory.
        file: String,
        /// Dotted path of the field.
        field: String,
        /// What was found, escaped and clipped.
        found: String,
        /// What is supported.
        supported: String,
    },
}

/// Classes that a message names before it refers to the list of all.
const NAMED_CLASSES: usize = 12;

/// The first of the supported classes, and how to see the others.
fn class_names(classes: &[&str]) -> String {
    let (first, others) = classes.split_at(classes.len().min(NAMED_CLASSES));
    let named = first.join(", ");
    match others.len() {
        0 => named,
        more => format!("{named} and {more} more; `headrace models families` lists them"),
    }
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { file, source } => write!(f, "{file}: {source}"),
            Self::MissingFile { file, remedy } => write!(f, "{file}: no such file: {remedy}"),
            Self::File { file, problem } => write!(f, "{file}: {problem}"),
            Self::Json { file, field, problem } if field.is_empty() => {
                write!(f, "{file}: not the JSON it should be: {problem}")
            }
            Self::Json { file, field, problem } => {
                write!(f, "{file}: field \"{field}\": not the JSON it should be: {problem}")
            }
            Self::Header { file, problem } => write!(f, "{file}: {problem}"),
            Self::Tensor { file, tensor, field: "presence", problem } => {
                write!(f, "{file}: tensor \"{tensor}\": {problem}")
            }
            Self::Tensor { file, tensor, field, problem } => {
                write!(f, "{file}: tensor \"{tensor}\": {field} {problem}")
            }
            Self::Field { file, field, problem } => write!(f, "{file}: field \"{field}\": {problem}"),
            Self::UnsupportedArchitecture { found, supported } => write!(
                f,
                "config.json: field \"architectures\": {} is not supported; supported are {}",
                with_needs(found, found),
                class_names(supported)
            ),
            Self::UnsupportedFeature { file, field, found, supported } => {
                write!(f, "{file}: field \"{field}\": {found} is not supported; {supported}")
            }
        }
    }
}

impl std::error::Error for CheckpointError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Returns the text that shows an architecture, with what it needs and is not computed.
pub(crate) fn with_needs(text: &str, architecture: &str) -> String {
    match missing_feature(architecture) {
        Some(feature) => format!("{text} (it needs {feature})"),
        None => text.to_owned(),
    }
}

/// Returns untrusted text made safe to show: control characters escaped, at most [`MAX_SHOWN_CHARS`] characters.
pub(crate) fn shown(text: &str) -> String {
    let mut out: String = text.chars().take(MAX_SHOWN_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_SHOWN_CHARS).is_some() {
        out.push('…');
    }
    out
}

/// Returns the JSON parser's message made safe to show. The parser quotes untrusted strings whole, so a long message is
/// cut.
pub(crate) fn shown_reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let clean = |part: &str| part.replace(char::is_control, " ");
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        None => clean(&text),
        Some((cut, _)) => {
            let head = text.get(..cut).unwrap_or_default();
            format!("{}… at line {} column {}", clean(head), error.line(), error.column())
        }
    }
}

/// Returns a JSON value made safe to show.
pub(crate) fn shown_json(value: &serde_json::Value) -> String {
    use serde_json::Value;
    match value {
        Value::String(text) => format!("\"{}\"", shown(text)),
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(members) => format!("an object of {} members", members.len()),
        plain => plain.to_string(),
    }
}
