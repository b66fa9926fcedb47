//! Parts of a message that are no text. Knows no dialect's spelling, and nothing of what a model can see or hear.

use serde::{Deserialize, Serialize};

/// What a part is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MediaKind {
    /// A picture.
    Image,
    /// A file to be read, such as a PDF.
    Document,
    /// Sound.
    Audio,
    /// A film.
    Video,
}

impl MediaKind {
    /// As messages to callers name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Document => "document",
            Self::Audio => "audio",
            Self::Video => "video",
        }
    }
}

/// Where a part's data is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MediaSource {
    /// At an address. It may be a data URL, and so the data itself.
    Url(String),
    /// Here, in base64.
    Base64 {
        /// Its type as the dialect names it: `image/png`, or `wav`.
        media_type: String,
        /// The data.
        data: String,
    },
    /// In a file that was uploaded before, by its id.
    File(String),
}

impl MediaSource {
    /// How long it is as it was sent, in bytes.
    pub const fn bytes(&self) -> usize {
        match self {
            Self::Url(text) | Self::File(text) => text.len(),
            Self::Base64 { data, .. } => data.len(),
        }
    }
}

/// A part of a message that is no text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Media {
    /// What it is.
    pub kind: MediaKind,
    /// Where its data is.
    pub source: MediaSource,
    /// How closely it is to be looked at (OpenAI's `detail`), where said.
    pub detail: Option<String>,
    /// The file's name or the document's title, where said.
    pub name: Option<String>,
    /// Behind so many bytes of its message's text.
    pub behind_bytes: usize,
    /// Where it stands in its message, as its dialect counts: `content[1]`.
    pub place: String,
}
