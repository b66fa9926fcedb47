//! Input for an encoder: texts, and whether to return vectors or scores.

use std::sync::Arc;

/// One raw prompt: of a completions call, or to be encoded.
#[derive(Debug, Clone, PartialEq)]
pub enum PromptItem {
    /// Text, tokenized with the model's usual special tokens around it and none inside it.
    Text(String),
    /// Token ids, used unchanged.
    Ids(Vec<u32>),
}

/// Texts to encode. Each is answered with a vector or a score.
#[derive(Debug, Clone, PartialEq)]
pub struct ToEncode {
    /// The texts, at least one.
    pub texts: Vec<EncodeText>,
    /// What to compute from the texts.
    pub wish: EncodeWish,
}

impl ToEncode {
    /// Iterates over the texts in order, without items that are token ids. A query that consecutive pairs share is
    /// returned once.
    pub fn written(&self) -> impl Iterator<Item = &str> {
        let mut last = None;
        self.texts.iter().flat_map(move |text| {
            let (first, second) = match text {
                EncodeText::One(PromptItem::Text(text)) => (Some(text.as_str()), None),
                EncodeText::One(PromptItem::Ids(_)) => (None, None),
                EncodeText::Pair(query, document) => {
                    let is_new = last.replace(query).is_none_or(|last| !Arc::ptr_eq(last, query));
                    (is_new.then_some(&**query), Some(&**document))
                }
            };
            first.into_iter().chain(second)
        })
    }
}

/// What is encoded as one sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum EncodeText {
    /// One text with the model's usual special tokens around it, or token ids, used unchanged.
    One(PromptItem),
    /// Two texts in one sequence: a query, and the document that is scored against it.
    Pair(Arc<str>, Arc<str>),
}

/// What to compute from the texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EncodeWish {
    /// One vector per text.
    Vectors(VectorWish),
    /// One score per pair.
    Scores(ScoreWish),
}

/// Format of the vectors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VectorWish {
    /// Return base64 of little-endian 32-bit floats instead of a list of numbers.
    pub base64: bool,
    /// Keep only this many leading numbers of each vector, normalized to length 1 again.
    pub dimensions: Option<u32>,
    /// Name of the model's own prompt that is prepended to each text.
    pub prompt_name: Option<String>,
}

/// Format of the scores.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScoreWish {
    /// Return only this many best scores, best first. `None` returns all.
    pub top_n: Option<u32>,
    /// Return the text beside each score.
    pub return_documents: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_comes_once_for_the_pairs_that_share_it() {
        let (one, other): (Arc<str>, Arc<str>) = (Arc::from("q"), Arc::from("r"));
        let pair =
            |query: &Arc<str>, document: &str| EncodeText::Pair(Arc::clone(query), Arc::from(document));
        let texts = vec![
            pair(&one, "a"),
            pair(&one, "b"),
            pair(&other, "c"),
            EncodeText::One(PromptItem::Ids(vec![1])),
            EncodeText::One(PromptItem::Text("t".to_owned())),
            pair(&other, "d"),
            pair(&one, "e"),
        ];
        let all = ToEncode { texts, wish: EncodeWish::Scores(ScoreWish::default()) };
        assert_eq!(all.written().collect::<Vec<_>>(), ["q", "a", "b", "r", "c", "t", "d", "q", "e"]);
    }
}
