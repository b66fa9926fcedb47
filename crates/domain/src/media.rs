//! Message parts that are not text. Must not know a dialect's spelling or what a model can see or hear.

use serde::{Deserialize, Serialize};

/// The kind of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MediaKind {
    /// A picture.
    Image,
    /// A file, such as a PDF.
    Document,
    /// Sound.
    Audio,
    /// A video.
    Video,
}

impl MediaKind {
    /// Returns the name in messages to callers.
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
    /// At a URL. It may be a data URL, which contains the data itself.
    Url(String),
    /// Inline, as base64.
    Base64 {
        /// The type as the dialect names it: `image/png`, or `wav`.
        media_type: String,
        /// The data.
        data: String,
    },
    /// In an uploaded file, by its id.
    File(String),
}

impl MediaSource {
    /// Returns the length of the source as sent, in bytes.
    pub const fn bytes(&self) -> usize {
        match self {
            Self::Url(text) | Self::File(text) => text.len(),
            Self::Base64 { data, .. } => data.len(),
        }
    }
}

/// A message part that is not text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaPart {
    /// The kind of the part.
    pub kind: MediaKind,
    /// Where the part's data is.
    pub source: MediaSource,
    /// Level of detail (OpenAI's `detail`), if the client set it.
    pub detail: Option<String>,
    /// The file's name or the document's title, if the client sent it.
    pub name: Option<String>,
    /// Number of bytes of the message's text that precede the part.
    pub behind_bytes: usize,
    /// Path of the part within its message, as the dialect counts: `content[1]`.
    pub place: String,
}
