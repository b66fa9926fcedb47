//! WordPiece tokenization: the longest token first, with the library's results. The library tries every end of a word
//! and allocates for each try, so a word of a hundred characters costs five thousand tries. This code tries only the
//! ends that a token can have.

use std::collections::HashMap;

use tokenizers::models::ModelWrapper;
use tokenizers::{Token, Tokenizer as Inner};

/// A WordPiece vocabulary.
#[derive(Debug)]
pub(crate) struct WordPiece {
    first: Pieces,
    /// Tokens that continue a word, without their continuation prefix.
    behind: Pieces,
    unknown: u32,
    most_characters: usize,
}

#[derive(Debug)]
struct Pieces {
    ids: HashMap<Box<str>, u32>,
    longest_bytes: usize,
}

impl Pieces {
    fn new(pieces: impl Iterator<Item = (Box<str>, u32)>) -> Self {
        let ids: HashMap<Box<str>, u32> = pieces.collect();
        let longest_bytes = ids.keys().map(|piece| piece.len()).max().unwrap_or(0);
        Self { ids, longest_bytes }
    }

    /// Returns the id and the byte length of the longest piece at the start of `word`.
    fn longest(&self, word: &str) -> Option<(u32, usize)> {
        let mut end = word.floor_char_boundary(self.longest_bytes);
        while end > 0 {
            let piece = word.get(..end)?;
            if let Some(id) = self.ids.get(piece) {
                return Some((*id, end));
            }
            end = word.floor_char_boundary(end - 1);
        }
        None
    }
}

impl WordPiece {
    /// Reads the vocabulary of a tokenizer. Returns `None` if its model is not WordPiece.
    pub(crate) fn new(inner: &Inner) -> Option<Self> {
        let ModelWrapper::WordPiece(model) = inner.get_model() else { return None };
        let vocabulary = inner.get_vocab(false);
        let unknown = vocabulary.get(&model.unk_token).copied()?;
        let behind = vocabulary.iter().filter_map(|(token, id)| {
            Some((Box::from(token.strip_prefix(model.continuing_subword_prefix.as_str())?), *id))
        });
        let behind = Pieces::new(behind);
        let first = Pieces::new(vocabulary.iter().map(|(token, id)| (Box::from(token.as_str()), *id)));
        Some(Self { first, behind, unknown, most_characters: model.max_input_chars_per_word })
    }

    /// Returns the tokens of a word, without their texts. A word that cannot be written completely becomes one unknown
    /// token.
    pub(crate) fn tokenize(&self, word: &str) -> Vec<Token> {
        let unknown = || vec![Token::new(self.unknown, String::new(), (0, word.len()))];
        if word.chars().count() > self.most_characters {
            return unknown();
        }
        let (mut tokens, mut start) = (Vec::new(), 0);
        while let Some(rest) = word.get(start..).filter(|rest| !rest.is_empty()) {
            let pieces = if start == 0 { &self.first } else { &self.behind };
            let Some((id, bytes)) = pieces.longest(rest) else { return unknown() };
            tokens.push(Token::new(id, String::new(), (start, start + bytes)));
            start += bytes;
        }
        tokens
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use tokenizers::Model;

    use super::*;

    static INNER: LazyLock<Inner> = LazyLock::new(|| {
        Inner::from_bytes(include_bytes!("../tests/data/wordpiece-uncased/tokenizer.json")).unwrap()
    });
    static OURS: LazyLock<WordPiece> = LazyLock::new(|| WordPiece::new(&INNER).unwrap());

    proptest! {
        #[test]
        fn words_are_written_as_the_library_writes_them(
            word in prop_oneof![
                "[a-z]{0,12}", "[a-h]{90,110}", "[a-z0-9#\\[\\]]{0,8}", "(the|ing|un|able|word|##|é|🙂|漢){0,6}",
            ],
        ) {
            let ours = OURS.tokenize(&word);
            let theirs = INNER.get_model().tokenize(&word).unwrap();
            let parts = |tokens: &[Token]| tokens.iter().map(|token| (token.id, token.offsets)).collect::<Vec<_>>();
            prop_assert_eq!(parts(&ours), parts(&theirs));
        }
    }
}
