//! Incremental decoding of ids to text: every piece is whole UTF-8, and the joined pieces are the text of all ids. Must
//! not know stop strings or readers.

use std::sync::Arc;

use crate::tokenizer::Tokenizer;
use crate::vocabulary::Joining;

/// Decodes one sequence of ids, piece by piece. The work per id does not grow with the length of the text.
#[derive(Debug)]
pub struct TextDecoder {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    /// `true` until the first id with text arrives.
    first: bool,
    /// The number of spaces that may still be cut from the beginning of the text.
    strip: usize,
    /// Decoded text that was not returned yet.
    ready: String,
    /// Bytes that are not text yet: the beginning of a character, or a run of byte tokens.
    bytes: Vec<u8>,
    /// `true` if the run of byte tokens can no longer become valid UTF-8.
    broken: bool,
    window: Window,
}

/// Recent ids, for decoders whose text cannot be put together token by token.
#[derive(Debug, Default)]
struct Window {
    ids: Vec<u32>,
    prefix: String,
    prefix_index: usize,
}

impl Tokenizer {
    /// Returns a decoder for ids that arrive one by one, at the beginning of a text.
    pub fn decoder(self: &Arc<Self>, skip_special: bool) -> TextDecoder {
        TextDecoder::new(Arc::clone(self), skip_special)
    }

    /// Returns a decoder for ids that continue a text, such as a completion's prompt. SentencePiece's and WordPiece's
    /// decoders cut a leading space at the beginning of a text; this decoder keeps it.
    pub fn decoder_in_text(self: &Arc<Self>, skip_special: bool) -> TextDecoder {
        TextDecoder::new(Arc::clone(self), skip_special).in_text()
    }
}

impl TextDecoder {
    fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        let strip = match tokenizer.vocabulary().joining {
            Joining::ByteFallback { strip } => strip,
            _ => 0,
        };
        Self {
            tokenizer,
            skip_special,
            first: true,
            strip,
            ready: String::new(),
            bytes: Vec::new(),
            broken: false,
            window: Window::default(),
        }
    }

    /// Marks this decoder as continuing a text.
    fn in_text(mut self) -> Self {
        self.first = false;
        self.strip = 0;
        self
    }

    /// Takes the next id and returns the text that is complete by now. The result is empty if the ids so far end inside
    /// a character. It is also empty if they end in a replacement character that the next id may still change. Ids
    /// without text, which a padded vocabulary has, return an empty string.
    pub fn push(&mut self, id: u32) -> String {
        let tokenizer = Arc::clone(&self.tokenizer);
        let vocabulary = tokenizer.vocabulary();
        let Some(bytes) = vocabulary.bytes(id) else { return String::new() };
        if self.skip_special && vocabulary.is_skipped(id) {
            return String::new();
        }
        match vocabulary.joining {
            Joining::Bytes => self.push_bytes(bytes),
            Joining::ByteFallback { .. } if vocabulary.is_byte(id) => self.push_fallback(bytes),
            Joining::ByteFallback { .. } => {
                self.close_fallback();
                self.push_text(&String::from_utf8_lossy(bytes));
            }
            Joining::FirstDiffers if self.first => self.ready = tokenizer.decode(&[id], false),
            Joining::FirstDiffers => self.ready.push_str(&String::from_utf8_lossy(bytes)),
            Joining::Window => return self.push_window(id),
        }
        self.first = false;
        if self.bytes.is_empty() && !self.ready.ends_with(char::REPLACEMENT_CHARACTER) {
            return std::mem::take(&mut self.ready);
        }
        String::new()
    }

    /// Ends the sequence: returns the remaining text, with broken bytes as replacement characters.
    pub fn flush(&mut self) -> String {
        match self.tokenizer.vocabulary().joining {
            Joining::Bytes => {
                let tail = std::mem::take(&mut self.bytes);
                self.ready.push_str(&String::from_utf8_lossy(&tail));
            }
            Joining::ByteFallback { .. } => self.close_fallback(),
            Joining::FirstDiffers => {}
            Joining::Window => {
                let window = std::mem::take(&mut self.window);
                let text = self.tokenizer.decode(&window.ids, self.skip_special);
                self.ready = text.strip_prefix(window.prefix.as_str()).unwrap_or("").to_owned();
            }
        }
        std::mem::take(&mut self.ready)
    }

    /// Handles a token of a byte alphabet: appends all decided text and keeps the unfinished character.
    fn push_bytes(&mut self, bytes: &[u8]) {
        let joined;
        let bytes = if self.bytes.is_empty() {
            bytes
        } else {
            self.bytes.extend_from_slice(bytes);
            joined = std::mem::take(&mut self.bytes);
            &joined
        };
        let mut rest = bytes.utf8_chunks().peekable();
        while let Some(chunk) = rest.next() {
            self.ready.push_str(chunk.valid());
            if chunk.invalid().is_empty() {
                continue;
            }
            let unfinished = std::str::from_utf8(chunk.invalid()).is_err_and(|e| e.error_len().is_none());
            if rest.peek().is_none() && unfinished {
                self.bytes = chunk.invalid().to_vec();
            } else {
                self.ready.push(char::REPLACEMENT_CHARACTER);
            }
        }
    }

    /// Handles a byte token: the run becomes text as soon as it is valid UTF-8.
    fn push_fallback(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        if self.broken {
            return;
        }
        match std::str::from_utf8(&self.bytes) {
            Ok(_) => self.close_fallback(),
            Err(error) => self.broken = error.error_len().is_some(),
        }
    }

    /// Ends the run of byte tokens and appends its text.
    fn close_fallback(&mut self) {
        self.broken = false;
        if self.bytes.is_empty() {
            return;
        }
        match String::from_utf8(std::mem::take(&mut self.bytes)) {
            Ok(text) => self.push_text(&text),
            Err(error) => {
                let lost = error.as_bytes().len();
                self.push_text(&char::REPLACEMENT_CHARACTER.to_string().repeat(lost));
            }
        }
    }

    fn push_text(&mut self, mut text: &str) {
        while self.strip > 0 && !text.is_empty() {
            match text.strip_prefix(' ') {
                Some(rest) => {
                    text = rest;
                    self.strip -= 1;
                }
                None => self.strip = 0,
            }
        }
        self.ready.push_str(text);
    }

    /// Decodes the recent ids with and without the new one, and returns the difference.
    fn push_window(&mut self, id: u32) -> String {
        let window = &mut self.window;
        window.ids.push(id);
        let text = self.tokenizer.decode(&window.ids, self.skip_special);
        if text.len() <= window.prefix.len() || text.ends_with(char::REPLACEMENT_CHARACTER) {
            return String::new();
        }
        let same = text.bytes().zip(window.prefix.bytes()).take_while(|(a, b)| a == b).count();
        let from = (0..=same).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let piece = text.get(from..).unwrap_or("").to_owned();
        let next_index = window.ids.len().saturating_sub(window.prefix_index);
        window.ids.drain(..window.prefix_index.min(window.ids.len()));
        window.prefix = self.tokenizer.decode(&window.ids, self.skip_special);
        window.prefix_index = next_index;
        piece
    }
}
