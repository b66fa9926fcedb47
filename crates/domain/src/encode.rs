//! What is asked of an encoder: texts, and whether vectors or scores are made of them.

use std::sync::Arc;

/// One raw prompt: of a completions call, or to be encoded.
#[derive(Debug, Clone, PartialEq)]
pub enum PromptItem {
    /// Text, to be tokenized with the model's usual special tokens around it; none inside it.
    Text(String),
    /// Ids, taken as they are.
    Ids(Vec<u32>),
}

/// Texts to be encoded, each answered with a vector or a score.
#[derive(Debug, Clone, PartialEq)]
pub struct ToEncode {
    /// At least one.
    pub texts: Vec<EncodeText>,
    /// What is made of them.
    pub wish: EncodeWish,
}

/// What is encoded as one sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum EncodeText {
    /// One text, with the model's usual special tokens around it; or ids, taken as they are.
    One(PromptItem),
    /// Two texts in one sequence: a query, and what is judged by it.
    Pair(Arc<str>, Arc<str>),
}

impl EncodeText {
    /// Its texts: none for ids.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let (first, second) = match self {
            Self::One(PromptItem::Text(text)) => (Some(text.as_str()), None),
            Self::One(PromptItem::Ids(_)) => (None, None),
            Self::Pair(query, document) => (Some(&**query), Some(&**document)),
        };
        first.into_iter().chain(second)
    }
}

/// What is made of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EncodeWish {
    /// A vector of each.
    Vectors(VectorWish),
    /// A score of each pair.
    Scores(ScoreWish),
}

/// How vectors are given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VectorWish {
    /// As base64 of little-endian 32-bit floats, instead of a list of numbers.
    pub base64: bool,
    /// The first so many numbers of each, brought to length 1 again.
    pub dimensions: Option<u32>,
    /// The name of the model's own prompt that is put before each text.
    pub prompt_name: Option<String>,
}

/// How scores are given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScoreWish {
    /// The best first, and at most so many of them; `None`: all.
    pub top_n: Option<u32>,
    /// With the text that each is of.
    pub return_documents: bool,
}
