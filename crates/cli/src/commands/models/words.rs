//! A vocabulary without training: byte-level BPE with merges that build common English words, one by one. Always the
//! same. Must not know models or files.

use std::collections::HashMap;

use serde_json::{Value, json};

/// Common words of English and of programs, more common ones first.
const WORDS: &str = include_str!("words.txt");
/// Regular endings of common words.
const ENDINGS: [&str; 5] = ["s", "ed", "ing", "er", "ly"];
/// Fragments that most words consist of, so that unlisted words need not be spelled out in bytes.
const FRAGMENTS: &str = "th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le ve co me \
    de hi ri ro ic ne ea ra ce li ch ll be ma si om ur ing ion tion ation ment ness able ible ful less ous ive est ers \
    ies ist ism ize ity ance ence ship ward ical ology graph un re pre pro con com dis mis sub super inter trans over \
    under out ex im";
/// Punctuation and operators between words.
const MARKS: [&str; 40] = [
    ", ", ". ", "? ", "! ", ": ", "; ", " (", ") ", "()", "();", " =", " ==", " !=", " +", " -", " *", " /",
    " <", " >", " {", " }", "},", "];", "\",", "\":", "'s", "'t", "'re", "'ve", "'ll", "'d", "n't", "...",
    "--", "->", "=>", "::", "//", "</", "/>",
];
/// Parts of syllables, which fill the rest of the vocabulary.
const ONSETS: &str = "b c d f g h j k l m n p r s t v w z bl br ch cl cr dr fl fr gl gr ph pl pr qu sc sh sk sl sm sn sp st str sw th tr";
const VOWELS: &str = "a e i o u ai ea ee io oa oo ou";
const CODAS: &str = "b ck d g l ll m n nd ng nt p r rd rk rm rn rt s sh ss st t th x";

/// Maximum number of tokens in the vocabulary. Further rows of a model are unused.
pub(super) const MOST_WORDS: usize = 32_000;
/// The control tokens. They have the last ids.
pub(super) const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// Minimum number of tokens in a vocabulary.
pub(super) const LEAST: usize = 256 + CONTROL.len() + 1;

/// A ChatML template, for a model without training.
pub(super) const TEMPLATE: &str = "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

/// A byte-level BPE vocabulary.
pub(super) struct VocabularyPlan {
    /// The tokens by id, with the control tokens last.
    pub(super) tokens: Vec<String>,
    /// Pairs of tokens, highest priority first.
    pub(super) merges: Vec<(String, String)>,
}

impl VocabularyPlan {
    /// Makes a vocabulary of `size` tokens, including the control tokens. `size` must be at least [`LEAST`].
    pub(super) fn of_size(size: usize) -> Self {
        let mut builder = VocabularyBuilder::new(size.saturating_sub(CONTROL.len()));
        builder.learn_all(candidates());
        // The candidates run out only if the caller asks for a far larger vocabulary than languages have.
        let mut filler = 0_usize;
        while builder.has_room() {
            builder.tokens.push(format!("[unused{filler}]"));
            filler += 1;
        }
        let merges = builder.merges.iter().map(|&(left, right)| (builder.text(left), builder.text(right)));
        let merges = merges.collect();
        let mut tokens = builder.tokens;
        tokens.extend(CONTROL.map(str::to_owned));
        Self { tokens, merges }
    }

    /// Returns the id of a control token.
    pub(super) fn control(&self, text: &str) -> u32 {
        let at = self.tokens.iter().rposition(|token| token == text);
        at.and_then(|at| u32::try_from(at).ok()).unwrap_or(0)
    }

    /// Returns the id of the first control token.
    pub(super) fn first_control(&self) -> usize {
        self.tokens.len().saturating_sub(CONTROL.len())
    }

    /// Returns the vocabulary as a `tokenizer.json`.
    pub(super) fn json(&self) -> Value {
        let ids = self.tokens.iter().enumerate().take(self.first_control());
        let vocab: serde_json::Map<String, Value> = ids.map(|(id, text)| (text.clone(), json!(id))).collect();
        let merges: Vec<Value> = self.merges.iter().map(|(left, right)| json!([left, right])).collect();
        let added = CONTROL.iter().enumerate().map(|(index, text)| {
            json!({
                "id": self.first_control() + index, "content": text, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true,
            })
        });
        let split = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
            "normalizer": null,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": false},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
            ]},
            "post_processor": null,
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {
                "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
                "vocab": vocab, "merges": merges,
            },
        })
    }
}

/// Candidates for tokens, the most useful first.
fn candidates() -> impl Iterator<Item = String> {
    let words = || WORDS.split_whitespace();
    let fragments = FRAGMENTS.split_whitespace().map(str::to_owned);
    let marks = MARKS.iter().map(|mark| (*mark).to_owned());
    let spaces = (2..=16).map(|count| " ".repeat(count));
    let breaks = (2..=4).map(|count| "\n".repeat(count));
    let plain = words().map(|word| format!(" {word}"));
    let capital = words().map(|word| format!(" {}", capitalized(word)));
    let numbers = (0..10).flat_map(|n| [format!("{n}0"), format!("{n}{n}")]);
    let numbers =
        numbers.chain((0..100).map(|n| format!("{n:02}"))).chain((0..1_000).map(|n| format!("{n:03}")));
    let forms =
        ENDINGS.iter().flat_map(move |ending| words().map(|word| format!(" {}", inflected(word, ending))));
    let bare = words().flat_map(|word| [word.to_owned(), capitalized(word)]);
    let parts = |text: &'static str| text.split_whitespace();
    let syllables = parts(ONSETS).flat_map(move |onset| {
        parts(VOWELS).flat_map(move |vowel| parts(CODAS).map(move |coda| format!("{onset}{vowel}{coda}")))
    });
    let first = fragments.chain(marks).chain(spaces).chain(breaks).chain(plain).chain(numbers).chain(capital);
    first.chain(forms).chain(bare).chain(syllables.flat_map(|text| [text.clone(), format!(" {text}")]))
}

fn capitalized(word: &str) -> String {
    let mut letters = word.chars();
    letters
        .next()
        .map_or(String::new(), |first| format!("{}{}", first.to_ascii_uppercase(), letters.as_str()))
}

fn inflected(word: &str, ending: &str) -> String {
    match (word.strip_suffix('e'), word.strip_suffix('y'), ending) {
        (Some(stem), _, "ed" | "ing" | "er") => format!("{stem}{ending}"),
        (_, Some(stem), "s") => format!("{stem}ies"),
        (_, Some(stem), "ed" | "er" | "ly") => format!("{stem}i{ending}"),
        _ => format!("{word}{ending}"),
    }
}

/// A vocabulary that grows by one merge at a time. A learned word stays one token. Later merges have lower priority,
/// and the word has become one token before any of them could apply.
struct VocabularyBuilder {
    tokens: Vec<String>,
    ids: HashMap<String, usize>,
    merges: Vec<(usize, usize)>,
    /// For each pair, the position in `merges` and the resulting token.
    ranks: HashMap<(usize, usize), (usize, usize)>,
    most: usize,
}

impl VocabularyBuilder {
    fn new(most: usize) -> Self {
        let tokens: Vec<String> = alphabet().iter().map(char::to_string).collect();
        let ids = tokens.iter().enumerate().map(|(id, text)| (text.clone(), id)).collect();
        Self { tokens, ids, merges: Vec::new(), ranks: HashMap::new(), most }
    }

    fn has_room(&self) -> bool {
        self.tokens.len() < self.most
    }

    fn text(&self, id: usize) -> String {
        self.tokens.get(id).cloned().unwrap_or_default()
    }

    fn learn_all(&mut self, words: impl Iterator<Item = String>) {
        for word in words {
            loop {
                if !self.has_room() {
                    return;
                }
                let pieces = self.pieces(&word);
                let [left, right, ..] = pieces[..] else { break };
                self.merge(left, right);
            }
        }
    }

    fn merge(&mut self, left: usize, right: usize) {
        let text = self.text(left) + &self.text(right);
        let made = match self.ids.get(&text) {
            Some(id) => *id,
            None => {
                self.tokens.push(text.clone());
                self.ids.insert(text, self.tokens.len() - 1);
                self.tokens.len() - 1
            }
        };
        self.ranks.insert((left, right), (self.merges.len(), made));
        self.merges.push((left, right));
    }

    /// Splits a word into tokens by the merges so far.
    fn pieces(&self, word: &str) -> Vec<usize> {
        // A byte is its own token id, because the alphabet is in byte order.
        let mut pieces: Vec<usize> = word.bytes().map(usize::from).collect();
        loop {
            let pairs = pieces.windows(2).enumerate().filter_map(|(at, pair)| match pair {
                [left, right] => self.ranks.get(&(*left, *right)).map(|(rank, made)| (*rank, at, *made)),
                _ => None,
            });
            let Some((_, at, made)) = pairs.min() else { return pieces };
            pieces.splice(at..at + 2, [made]);
        }
    }
}

/// GPT-2's characters for bytes, in byte order. Printable Latin-1 characters represent themselves.
fn alphabet() -> Vec<char> {
    let mut spare = (256u32..).filter_map(char::from_u32);
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    (0..=255u8)
        .map(|byte| match printable(byte) {
            true => char::from(byte),
            false => spare.next().unwrap_or(char::REPLACEMENT_CHARACTER),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use headrace_checkpoint::TokenizerConfig;
    use headrace_tokenizer::Tokenizer;

    #[test]
    fn a_vocabulary_has_its_size_and_common_words_are_one_token_each() {
        for size in [LEAST, 2_048, 32_000, 40_000] {
            let words = VocabularyPlan::of_size(size);
            assert_eq!(words.tokens.len(), size);
            let unique: std::collections::HashSet<&String> = words.tokens.iter().collect();
            assert_eq!(unique.len(), size, "tokens differ");
            assert_eq!(words.control("<|im_end|>") as usize, size - 1);
        }
        let words = VocabularyPlan::of_size(32_000);
        let unused = words.tokens.iter().filter(|token| token.starts_with("[unused")).count();
        assert_eq!(unused, 0);
        let json = serde_json::to_vec(&words.json()).unwrap();
        let tokenizer = Tokenizer::new(&json, &TokenizerConfig::default()).unwrap();
        let text = "The engineers started working on a faster server because many people were waiting for answers, \
            and the manager wanted better results before the end of the year 2024.";
        let ids = tokenizer.encode(text, false).unwrap();
        let count = text.split_whitespace().count();
        assert!(ids.len() <= count + 5, "{} tokens for {count} words", ids.len());
        assert_eq!(tokenizer.decode(&ids, false), text);
        let chat = tokenizer.encode("<|im_start|>user\nüberäß 你好<|im_end|>\n", false).unwrap();
        assert_eq!((chat[0], chat[chat.len() - 2]), (31_998, 31_999));
        assert_eq!(tokenizer.decode(&chat, true), "user\nüberäß 你好\n");
    }
}
