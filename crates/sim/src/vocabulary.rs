//! A vocabulary without a tokenizer. Most ids are one or two letters; some are part of a multi-byte character.

use headrace_engine::{Decode, TextOf};

/// Text pieces, repeated over the ids. The last four are the two halves of "é" and of "€", in any order.
const PIECES: [&[u8]; 16] = [
    b"a",
    b"b",
    b"ab",
    b" ",
    b"ba",
    b"c",
    b"the",
    b"\n",
    b"x",
    b"yz",
    b"0",
    b"!",
    b"\xc3",
    b"\xa9",
    b"\xe2\x82",
    b"\xac",
];

/// Maps ids to text.
#[derive(Debug, Clone, Copy, Default)]
pub struct ToyVocabulary;

#[derive(Debug, Default)]
struct ToyDecoder {
    pending: Vec<u8>,
}

impl TextOf for ToyVocabulary {
    fn decoder(&self) -> Box<dyn Decode> {
        Box::new(ToyDecoder::default())
    }

    fn bytes(&self, id: u32) -> &[u8] {
        PIECES.get(id as usize % PIECES.len()).copied().unwrap_or(b"")
    }
}

impl Decode for ToyDecoder {
    fn push(&mut self, id: u32) -> String {
        self.pending.extend_from_slice(ToyVocabulary.bytes(id));
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.pending) {
                Ok(whole) => {
                    text.push_str(whole);
                    self.pending.clear();
                    return text;
                }
                Err(error) => {
                    let whole: Vec<u8> = self.pending.drain(..error.valid_up_to()).collect();
                    text.push_str(&String::from_utf8_lossy(&whole));
                    let Some(broken) = error.error_len() else { return text };
                    self.pending.drain(..broken);
                    text.push(char::REPLACEMENT_CHARACTER);
                }
            }
        }
    }

    fn flush(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_whole_at_every_step_and_in_the_end_that_of_the_bytes() {
        for seed in 0..200u64 {
            let ids: Vec<u32> = (0..30).map(|i| (crate::hash::mix(seed * 100 + i) % 16) as u32).collect();
            let bytes: Vec<u8> = ids.iter().flat_map(|&id| ToyVocabulary.bytes(id)).copied().collect();
            let mut decoder = ToyVocabulary.decoder();
            let mut text: String = ids.iter().map(|&id| decoder.push(id)).collect();
            text.push_str(&decoder.flush());
            assert_eq!(text, String::from_utf8_lossy(&bytes), "seed {seed}");
        }
    }
}
