//! Converts ids to text, as far as the engine needs it. A trait, so that simulations have a vocabulary without a
//! tokenizer.

use std::sync::Arc;

use headrace_tokenizer::{TextDecoder, Tokenizer};

/// The text of a vocabulary.
pub trait TextOf: Send + Sync {
    /// Creates a decoder for the start of a text.
    fn decoder(&self) -> Box<dyn Decode>;

    /// Returns the bytes of an id in mid-text. Empty for an id without text.
    fn bytes(&self, id: u32) -> &[u8];
}

/// Decodes the ids of one text one by one.
pub trait Decode: Send {
    /// Accepts an id and returns the text that is complete by now.
    fn push(&mut self, id: u32) -> String;

    /// Ends the text and returns the rest of it.
    fn flush(&mut self) -> String;
}

/// A tokenizer as a [`TextOf`].
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
