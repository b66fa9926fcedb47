//! A model's tokens for llguidance: a trie of their bytes, and which tokens are not text.

use std::sync::Arc;

use headrace_tokenizer::Tokenizer;
use llguidance::toktrie::{INVALID_TOKEN, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

/// Texts that are tokenized and decoded, to see whether the result is the same.
const PROBES: [&str; 4] = ["{\"a\": [1, true]}", "name", " \n  x", "é\u{1f600}"];

/// Tokens and their bytes.
pub(crate) struct Vocabulary {
    trie: TokTrie,
    tokenizer: Arc<Tokenizer>,
    /// Whether a tokenized text decodes to the same text, so that forced text can be tokenized ahead.
    is_exact: bool,
}

impl Vocabulary {
    /// Creates the vocabulary of `size` ids, where the ids in `ends` end an answer. A grammar can name ids that are not
    /// text (special tokens, markup), and they match no text in it.
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, ends: &[u32], size: u32) -> Self {
        let word = |id: u32| {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            let is_text = !(tokenizer.is_control(id) || tokenizer.is_markup(id) || ends.contains(&id));
            match (is_text, bytes) {
                (_, []) => Vec::new(),
                (true, bytes) => bytes.to_vec(),
                (false, bytes) => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
            }
        };
        let words: Vec<Vec<u8>> = (0..size).map(word).collect();
        let ends: Vec<u32> = ends.iter().copied().filter(|end| *end < size).collect();
        let info = TokRxInfo::new(size, ends.first().copied().unwrap_or(INVALID_TOKEN));
        let mut trie = TokTrie::from(&info, &words);
        if !ends.is_empty() {
            trie = trie.with_eos_tokens(&ends);
        }
        let mut vocabulary = Self { trie, tokenizer, is_exact: false };
        vocabulary.is_exact = PROBES.iter().all(|text| vocabulary.exactly(text).is_some());
        vocabulary
    }

    /// The ids of a text. `None` if they do not decode to exactly its bytes.
    fn exactly(&self, text: &str) -> Option<Vec<TokenId>> {
        let ids = self.tokenizer.encode_plain(text, false).ok()?;
        (self.trie.decode_raw(&ids) == text.as_bytes()).then_some(ids)
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let greedy = |text: &str| self.trie.greedy_tokenize(text.as_bytes());
        self.trie
            .tokenize_with_greedy_fallback(bytes, |text| self.exactly(text).unwrap_or_else(|| greedy(text)))
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.is_exact
    }
}
