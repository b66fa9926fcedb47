//! The splitting patterns of well-known tokenizers. Each is a function from the start of a word to its end: it finds
//! what the regular expression matches there, without the regex engine. Must not know how the words are used.

use super::chars::{Classes, HAN, LETTER, LOWER, MARK, NEWLINE, NUMBER, OTHER, SIGN, SPACE, TITLE, UPPER};

/// A known splitting pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern {
    /// GPT-2's, which `ByteLevel` has built in.
    Gpt2,
    /// Llama 3's: numbers in threes. It differs from cl100k's only in its possessive runs.
    Llama3,
    /// Qwen 2's: like Llama 3's, but numbers digit by digit.
    Qwen2,
    /// Qwen 3.5's: like Qwen 2's, but marks belong to letters.
    Qwen35,
    /// The pattern of o200k (GPT-4o, gpt-oss, Llama 4): words by letter case.
    O200k,
    /// The pattern of Mistral since Nemo: like o200k's, but without contractions, and numbers digit by digit.
    Tekken,
    /// Kimi K2's: like o200k's, but ideographs are words of their own, and no slash follows punctuation.
    KimiK2,
    /// The demonstration model's: words by letter case, no contractions.
    Demo,
}

/// The spelling of each pattern in `tokenizer.json`.
const SPELT: [(&str, Pattern); 9] = [
    (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", Pattern::Gpt2),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        Pattern::Llama3,
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        Pattern::Qwen2,
    ),
    (
        // Ling's spelling.
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        Pattern::Qwen2,
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        Pattern::Qwen35,
    ),
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        Pattern::O200k,
    ),
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        Pattern::Tekken,
    ),
    (
        r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        Pattern::KimiK2,
    ),
    (r" ?\p{Ll}+|\p{Lu}\p{Ll}+|\p{Lu}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|[^\S\r\n]+|\s+|\p{L}+", Pattern::Demo),
];

impl Pattern {
    /// Returns the pattern with this spelling, or `None` if it is not known.
    pub(super) fn of(regex: &str) -> Option<Self> {
        SPELT.iter().find(|(spelt, _)| *spelt == regex).map(|(_, pattern)| *pattern)
    }

    /// Calls `word` with the start and end of each word of `text`, in order and without gaps.
    ///
    /// The results equal those of the regular expressions, with one exception. The regex engine gives up on runs of a
    /// million white-space characters and leaves the rest of the text as one word. This code splits such runs like
    /// shorter ones.
    #[inline]
    pub(super) fn words(self, text: &str, classes: &Classes, word: impl FnMut(usize, usize)) {
        let scan = Scan { text: text.as_bytes(), classes };
        match self {
            Self::Gpt2 => scan.each(Scan::gpt2, word),
            Self::Llama3 => scan.each(Scan::llama3::<3, LETTER, OTHER>, word),
            Self::Qwen2 => scan.each(Scan::llama3::<1, LETTER, OTHER>, word),
            Self::Qwen35 => scan.each(Scan::llama3::<1, { LETTER | MARK }, SIGN>, word),
            Self::O200k => scan.each(Scan::o200k::<O200K>, word),
            Self::Tekken => scan.each(Scan::o200k::<TEKKEN>, word),
            Self::KimiK2 => scan.each(Scan::o200k::<KIMI_K2>, word),
            Self::Demo => scan.each(Scan::demo, word),
        }
    }
}

/// The patterns that distinguish letter case.
const O200K: u8 = 0;
const TEKKEN: u8 = 1;
const KIMI_K2: u8 = 2;

struct Scan<'a> {
    text: &'a [u8],
    classes: &'a Classes,
}

impl Scan<'_> {
    #[inline(always)]
    fn each(&self, end: impl Fn(&Self, usize) -> usize, mut word: impl FnMut(usize, usize)) {
        let mut at = 0;
        while at < self.text.len() {
            // Every character is a letter, a number, white space or other, so every pattern matches at least one
            // character.
            let next = end(self, at).max(at + 1);
            word(at, next);
            at = next;
        }
    }

    #[inline(always)]
    fn gpt2(&self, at: usize) -> usize {
        let first = self.byte(at);
        if first == b'\'' {
            let len = match (self.byte(at + 1), self.byte(at + 2)) {
                (b's' | b't' | b'm' | b'd', _) => 2,
                (b'r' | b'v', b'e') | (b'l', b'l') => 3,
                _ => 0,
            };
            if len > 0 {
                return at + len;
            }
        }
        let start = at + usize::from(first == b' ');
        let (class, len) = self.class(start);
        for kind in [LETTER, NUMBER, OTHER] {
            if class & kind != 0 {
                return self.run(start + len, kind);
            }
        }
        self.spaces(at, self.run(at, SPACE))
    }

    /// Words of `LETTERS` and punctuation of `SIGNS`, with numbers of at most `DIGITS` digits.
    #[inline(always)]
    fn llama3<const DIGITS: usize, const LETTERS: u16, const SIGNS: u16>(&self, at: usize) -> usize {
        let first = self.byte(at);
        if let Some(end) = self.contraction(at) {
            return end;
        }
        let (class, len) = self.class(at);
        if class & LETTERS != 0 {
            return self.run(at + len, LETTERS);
        }
        if class & NUMBER != 0 {
            return self.numbers::<DIGITS>(at + len);
        }
        let (second, second_len) = self.class(at + len);
        if class & NEWLINE == 0 && second & LETTERS != 0 {
            return self.run(at + len + second_len, LETTERS);
        }
        if class & SIGNS != 0 || (first == b' ' && second & SIGNS != 0) {
            return self.run(self.run(at + len, SIGNS), NEWLINE);
        }
        self.spaces_and_newlines(at)
    }

    #[inline(always)]
    fn o200k<const KIND: u8>(&self, at: usize) -> usize {
        let first = self.byte(at);
        let (class, len) = self.class(at);
        if KIND == KIMI_K2 && class & HAN != 0 {
            return self.run(at + len, HAN);
        }
        if let Some(end) = self.cased_word::<KIND>(at, class, len) {
            return if KIND == TEKKEN { end } else { self.contraction(end).unwrap_or(end) };
        }
        if class & NUMBER != 0 {
            return if KIND == TEKKEN { at + len } else { self.numbers::<3>(at + len) };
        }
        if class & OTHER != 0 || (first == b' ' && self.class(at + len).0 & OTHER != 0) {
            let mut end = self.run(at + len, OTHER);
            while matches!(self.byte(end), b'\r' | b'\n') || (KIND != KIMI_K2 && self.byte(end) == b'/') {
                end += 1;
            }
            return end;
        }
        self.spaces_and_newlines(at)
    }

    /// Matches o200k's two kinds of word. Each is tried first with the character at `at` as the word's prefix, then
    /// with that character as part of the word.
    #[inline(always)]
    fn cased_word<const KIND: u8>(&self, at: usize, class: u16, len: usize) -> Option<usize> {
        let prefix = class & (NEWLINE | LETTER | NUMBER) == 0 && len > 0;
        let own = class & (LETTER | MARK) != 0;
        let starts = [prefix.then_some(at + len), own.then_some(at)];
        let starts = || starts.iter().flatten().copied();
        starts()
            .find_map(|start| self.ends_low::<KIND>(start))
            .or_else(|| starts().find_map(|start| self.starts_high::<KIND>(start)))
    }

    /// The end of `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+` at `start`. The first run is greedy. If
    /// it leaves nothing for the second run, it gives characters back, and the match ends after the last character that
    /// both runs accept.
    #[inline(always)]
    fn ends_low<const KIND: u8>(&self, start: usize) -> Option<usize> {
        let (mut at, mut last_low) = (start, None);
        loop {
            let (class, len) = self.class(at);
            if !is_high::<KIND>(class) {
                break;
            }
            at += len;
            if is_low::<KIND>(class) {
                last_low = Some(at);
            }
        }
        if is_low::<KIND>(self.class(at).0) { Some(self.low_run::<KIND>(at)) } else { last_low }
    }

    /// The end of `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*` at `start`.
    #[inline(always)]
    fn starts_high<const KIND: u8>(&self, start: usize) -> Option<usize> {
        let mut at = start;
        loop {
            let (class, len) = self.class(at);
            if !is_high::<KIND>(class) {
                break;
            }
            at += len;
        }
        (at > start).then(|| self.low_run::<KIND>(at))
    }

    #[inline(always)]
    fn low_run<const KIND: u8>(&self, mut at: usize) -> usize {
        loop {
            let (class, len) = self.class(at);
            if !is_low::<KIND>(class) {
                return at;
            }
            at += len;
        }
    }

    #[inline(always)]
    fn demo(&self, at: usize) -> usize {
        let first = self.byte(at);
        let (class, len) = self.class(at);
        let (second, _) = self.class(at + len);
        if class & LOWER != 0 || (first == b' ' && second & LOWER != 0) {
            return self.run(at + len, LOWER);
        }
        if class & UPPER != 0 {
            return self.run(at + len, if second & LOWER != 0 { LOWER } else { UPPER });
        }
        if class & NUMBER != 0 {
            return at + len;
        }
        if class & OTHER != 0 || (first == b' ' && second & OTHER != 0) {
            return self.run(self.run(at + len, OTHER), NEWLINE);
        }
        if class & LETTER != 0 {
            return self.run(at + len, LETTER);
        }
        if class & NEWLINE != 0 {
            return self.run(at + len, SPACE);
        }
        let mut end = at + len;
        loop {
            let (class, len) = self.class(end);
            if class & (SPACE | NEWLINE) != SPACE {
                return end;
            }
            end += len;
        }
    }

    /// The end of `(?i:'s|'t|'re|'ve|'m|'ll|'d)` at `at`. Without regard to case, `s` also matches `ſ` (U+017F).
    #[inline(always)]
    fn contraction(&self, at: usize) -> Option<usize> {
        if self.byte(at) != b'\'' {
            return None;
        }
        let len = match (self.byte(at + 1), self.byte(at + 2)) {
            (b's' | b'S' | b't' | b'T' | b'm' | b'M' | b'd' | b'D', _) => 2,
            (b'r' | b'R' | b'v' | b'V', b'e' | b'E') | (b'l' | b'L', b'l' | b'L') | (0xc5, 0xbf) => 3,
            _ => return None,
        };
        Some(at + len)
    }

    /// The end of a number of at most `DIGITS` digits whose first one ends at `end`.
    #[inline(always)]
    fn numbers<const DIGITS: usize>(&self, mut end: usize) -> usize {
        for _ in 1..DIGITS {
            let (class, len) = self.class(end);
            if class & NUMBER == 0 {
                break;
            }
            end += len;
        }
        end
    }

    /// The end of `\s*[\r\n]+|\s+(?!\S)|\s+` at `at`.
    #[inline]
    fn spaces_and_newlines(&self, at: usize) -> usize {
        let end = self.run(at, SPACE);
        let run = self.text.get(at..end).unwrap_or_default();
        match run.iter().rposition(|byte| matches!(byte, b'\r' | b'\n')) {
            Some(last) => at + last + 1,
            None => self.spaces(at, end),
        }
    }

    /// The end of `\s+(?!\S)|\s+` for white space from `at` to `end`. The last white-space character is left to the
    /// next word, unless it is the only one.
    #[inline(always)]
    fn spaces(&self, at: usize, end: usize) -> usize {
        if end >= self.text.len() {
            return end;
        }
        let mut last = end.saturating_sub(1);
        while last > at && self.byte(last) & 0xc0 == 0x80 {
            last -= 1;
        }
        if last > at { last } else { end }
    }

    /// Returns the byte at `at`, or 0 after the end of the text. No pattern names the byte 0.
    #[inline(always)]
    fn byte(&self, at: usize) -> u8 {
        self.text.get(at).copied().unwrap_or(0)
    }

    #[inline(always)]
    fn class(&self, at: usize) -> (u16, usize) {
        self.classes.at(self.text, at)
    }

    #[inline(always)]
    fn run(&self, at: usize, classes: u16) -> usize {
        self.classes.run(self.text, at, classes)
    }
}

/// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`, without ideographs in [`KIMI_K2`].
#[inline(always)]
fn is_high<const KIND: u8>(class: u16) -> bool {
    (class & MARK != 0 || class & (LETTER | LOWER) == LETTER) && !is_apart::<KIND>(class)
}

/// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`, without ideographs in [`KIMI_K2`].
#[inline(always)]
fn is_low<const KIND: u8>(class: u16) -> bool {
    (class & MARK != 0 || class & (LETTER | UPPER | TITLE) == LETTER) && !is_apart::<KIND>(class)
}

/// Whether a character is part of a run of ideographs.
#[inline(always)]
fn is_apart<const KIND: u8>(class: u16) -> bool {
    KIND == KIMI_K2 && class & HAN != 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::tokenizer::pattern::Pattern as _;
    use tokenizers::utils::SysRegex;

    use super::*;

    fn agree(text: &str) {
        static REGEXES: std::sync::LazyLock<Vec<SysRegex>> = std::sync::LazyLock::new(|| {
            SPELT.iter().map(|(regex, _)| SysRegex::new(regex).unwrap()).collect()
        });
        for ((_, pattern), regex) in SPELT.iter().zip(REGEXES.iter()) {
            let mut ours = Vec::new();
            pattern.words(text, Classes::shared().unwrap(), |start, end| ours.push(&text[start..end]));
            let theirs = if text.is_empty() { Vec::new() } else { regex.find_matches(text).unwrap() };
            let theirs: Vec<_> = theirs.into_iter().map(|((start, end), _)| &text[start..end]).collect();
            assert_eq!(ours, theirs, "{pattern:?}: {text:?}");
        }
    }

    #[test]
    fn characters_in_every_place_split_as_the_regular_expressions_do() {
        let odd = "ſKÅİıǅʰªⅧ²٣〇々⼀語\u{345}\u{301}\u{85}\u{a0}\u{2028}\u{3000}\u{200b}\u{feff}\u{1f}·_/\u{10ffff}";
        for c in ('\0'..'\u{250}').chain(odd.chars()) {
            for frame in [
                "@", "'@", "'@e", "'r@", "'l@", "a'@", "A'@b", " @", "@ ", "@a", "a@", "A@b", "1@2", ".@\n",
                "@@", "\n@ \n", " \t@", "  @", "\u{301}@", "@\u{301}", "!@a", "語@", "a語@", ".@/",
            ] {
                agree(&frame.replace('@', &c.to_string()));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn any_text_splits_as_the_regular_expressions_do(
            parts in prop::collection::vec(
                prop_oneof![
                    4 => "['a-dlmrstveA-DLMRSTVE .,/1-3\\n\\r\\t]{1,6}",
                    2 => "[ſǅʰªⅧ²٣〇々⼀語\u{345}\u{301}\u{85}\u{a0}\u{2028}\u{3000}\u{200b}你か한ж']{1,5}",
                    1 => "\\PC{1,4}",
                    1 => any::<String>(),
                ],
                0..8,
            )
        ) {
            agree(&parts.concat());
        }
    }

    #[test]
    fn every_byte_is_in_one_word() {
        for (spelt, pattern) in SPELT {
            assert_eq!(Pattern::of(spelt), Some(pattern), "{spelt}");
            let mut at = 0;
            pattern.words("a\u{0} \u{10ffff}é1\r\n ", Classes::shared().unwrap(), |start, end| {
                assert!(start == at && end > start);
                at = end;
            });
            assert_eq!(at, 13);
        }
        assert_eq!(Pattern::of(r"\s+"), None);
    }
}
