//! Why a checkpoint was refused: one enum whose messages name the file, the tensor or field, what was found and
//! what was expected. Untrusted text is escaped and clipped before it is shown. Must not know how files are read.

use std::fmt;

use crate::limits::MAX_SHOWN_CHARS;

/// Why a checkpoint, or one of its tensors, was refused.
#[derive(Debug)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The operating system refused to list, open, read or map a file.
    Io {
        /// File name in the model directory, or the directory itself.
        file: String,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file is needed and is not there.
    MissingFile {
        /// File name in the model directory.
        file: String,
        /// Who needs it, and what to do.
        remedy: String,
    },
    /// A file may not be used: its name, its kind, its size or the place that it really is.
    File {
        /// File name as given, escaped and clipped.
        file: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// A file is not well-formed JSON (or not UTF-8, too deep, too many values, a key twice).
    Json {
        /// File name in the model directory.
        file: String,
        /// Dotted path of the value that could not be read; empty for the document itself.
        field: String,
        /// What the parser said, with line and column.
        problem: String,
    },
    /// A safetensors file whose container is broken, before any one tensor is at fault.
    Header {
        /// File name in the model directory.
        file: String,
        /// What was found and what was expected.
        problem: String,
    },
    /// A tensor is missing, broken, or not what the configuration says.
    Tensor {
        /// File name in the model directory.
        file: String,
        /// Tensor name, escaped and clipped.
        tensor: String,
        /// What about it: `shape`, `dtype`, `data_offsets`, `name`, `presence`.
        field: &'static str,
        /// What was found and what was expected.
        problem: String,
    },
    /// A field of a configuration file has a value that makes no sense.
    Field {
        /// File name in the model directory.
        file: String,
        /// Dotted path of the field.
        field: String,
        /// What was found and what was expected.
        problem: String,
    },
    /// The model is of an architecture that is not supported.
    UnsupportedArchitecture {
        /// Its name in `config.json`, escaped and clipped.
        found: String,
        /// The names that are supported.
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
                "config.json: field \"architectures\": {found} is not supported; supported are {}",
                supported.join(", ")
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

/// Untrusted text made safe to show: control characters escaped, at most [`MAX_SHOWN_CHARS`] characters.
pub(crate) fn shown(text: &str) -> String {
    let mut out: String = text.chars().take(MAX_SHOWN_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_SHOWN_CHARS).is_some() {
        out.push('…');
    }
    out
}

/// What the JSON reader said, made safe to show: it quotes untrusted strings whole, so the middle may have to go.
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

/// A JSON value made safe to show.
pub(crate) fn shown_json(value: &serde_json::Value) -> String {
    use serde_json::Value;
    match value {
        Value::String(text) => format!("\"{}\"", shown(text)),
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(members) => format!("an object of {} members", members.len()),
        plain => plain.to_string(),
    }
}
