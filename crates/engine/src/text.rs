//! Ids to text, as far as the engine needs it. A seam, so that simulations have a vocabulary without a tokenizer.

use std::sync::Arc;

use headrace_tokenizer::{TextDecoder, Tokenizer};

/// A vocabulary.
pub trait TextOf: Send + Sync {
    /// A decoder at the beginning of a text.
    fn decoder(&self) -> Box<dyn Decode>;

    /// The bytes that an id stands for in mid-text; empty for an id without text.
    fn bytes(&self, id: u32) -> &[u8];
}

/// Decodes the ids of one text as they come.
pub trait Decode: Send {
    /// Takes an id and gives the text that is whole by now.
    fn push(&mut self, id: u32) -> String;

    /// The text has ended: gives what is left.
    fn flush(&mut self) -> String;
}

/// A tokenizer as the engine sees it.
pub struct TokenizerText {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
}

impl TokenizerText {
    /// With `skip_special`, special tokens have no text.
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        Self { tokenizer, skip_special }
    }
}

impl TextOf for TokenizerText {
    fn decoder(&self) -> Box<dyn Decode> {
        Box::new(self.tokenizer.decoder(self.skip_special))
    }

    fn bytes(&self, id: u32) -> &[u8] {
        self.tokenizer.token_bytes(id).unwrap_or(&[])
    }
}

impl Decode for TextDecoder {
    fn push(&mut self, id: u32) -> String {
        TextDecoder::push(self, id)
    }

    fn flush(&mut self) -> String {
        TextDecoder::flush(self)
    }
}
