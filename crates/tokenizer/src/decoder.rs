//! Ids to text as they come: every piece is whole UTF-8, and the pieces joined are the text of all ids.
//! Must not know stop strings or who reads.

use std::sync::Arc;

use crate::tokenizer::Tokenizer;
use crate::vocabulary::Joining;

/// Decodes one sequence of ids, piece by piece. The work per id does not grow with the length of the text.
#[derive(Debug)]
pub struct TextDecoder {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    /// No id with text has come yet.
    first: bool,
    /// Spaces that may still be cut from the beginning of the text.
    strip: usize,
    /// Text that is whole but not given out yet.
    ready: String,
    /// Bytes that are not text yet: the beginning of a character, or a run of byte tokens.
    bytes: Vec<u8>,
    /// The run of byte tokens can no longer become valid.
    broken: bool,
    window: Window,
}

/// Recent ids, for decoders that are not put together token by token.
#[derive(Debug, Default)]
struct Window {
    ids: Vec<u32>,
    prefix: String,
    prefix_index: usize,
}

impl Tokenizer {
    /// A decoder for ids that come one by one, at the beginning of a text.
    pub fn decoder(self: &Arc<Self>, skip_special: bool) -> TextDecoder {
        TextDecoder::new(Arc::clone(self), skip_special)
    }

    /// A decoder for ids that continue a text (a completion's prompt): a leading space of the first token, which
    /// SentencePiece's and WordPiece's decoders cut at the beginning of a text, is kept.
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

    /// The same, but text stands before the first id.
    fn in_text(mut self) -> Self {
        self.first = false;
        self.strip = 0;
        self
    }

    /// Takes the next id and gives out the text that is whole by now: nothing while the ids so far end inside a
    /// character, or in a replacement character that the next id may still turn into something else. Ids without
    /// text (a padded vocabulary has such) give nothing.
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

    /// The sequence has ended: gives out what is left, broken bytes as replacement characters.
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

    /// Byte alphabet: text as far as it is decided, the unfinished character kept.
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

    /// A byte token: the run becomes text as soon as it is valid.
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

    /// The run of byte tokens is over.
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

    /// Decodes the last piece's ids with and without the new one, and gives out the difference.
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
