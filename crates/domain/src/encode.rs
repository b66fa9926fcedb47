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

impl ToEncode {
    /// The texts that are written out, in their order. A query that many pairs share comes once for all that follow each other.
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
    /// One text, with the model's usual special tokens around it; or ids, taken as they are.
    One(PromptItem),
    /// Two texts in one sequence: a query, and what is judged by it.
    Pair(Arc<str>, Arc<str>),
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
