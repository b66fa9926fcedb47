//! Facts about every character, in one look-up each: the classes that the splitting patterns use, and whether
//! composition leaves the character alone. Must not know patterns.

use std::iter::once;
use std::sync::LazyLock;

use regex_syntax::hir::{Class, HirKind};
use unicode_normalization_alignments::char::canonical_combining_class;
use unicode_normalization_alignments::{IsNormalized, is_nfc_quick};

/// `\p{L}`.
pub(super) const LETTER: u16 = 1;
/// `\p{N}`.
pub(super) const NUMBER: u16 = 2;
/// `\s`.
pub(super) const SPACE: u16 = 4;
/// `[\r\n]`.
pub(super) const NEWLINE: u16 = 8;
/// `[^\s\p{L}\p{N}]`.
pub(super) const OTHER: u16 = 16;
/// `\p{Lu}`.
pub(super) const UPPER: u16 = 32;
/// `\p{Ll}`.
pub(super) const LOWER: u16 = 64;
/// `\p{Lt}`.
pub(super) const TITLE: u16 = 128;
/// `\p{M}`.
pub(super) const MARK: u16 = 256;
/// `[^\s\p{L}\p{M}\p{N}]`.
pub(super) const SIGN: u16 = 512;
/// `\p{Han}`.
pub(super) const HAN: u16 = 1024;

/// A value per character, in blocks of 256 characters. All blocks that hold only the default share one copy.
#[derive(Debug)]
pub(super) struct CharTable<T> {
    default: T,
    /// The index in `values` at which each block of 256 characters begins.
    blocks: Vec<u32>,
    values: Vec<T>,
}

impl<T: Copy> CharTable<T> {
    pub(super) fn new(default: T) -> Self {
        Self { default, blocks: vec![0; 0x1100], values: vec![default; 256] }
    }

    #[inline]
    pub(super) fn get(&self, code: u32) -> T {
        let block = self.blocks.get((code >> 8) as usize).copied().unwrap_or(0);
        self.values.get((block | (code & 0xff)) as usize).copied().unwrap_or(self.default)
    }

    /// Returns the entry of `code` for writing.
    pub(super) fn slot(&mut self, code: u32) -> Option<&mut T> {
        let block = self.blocks.get_mut((code >> 8) as usize)?;
        if *block == 0 {
            *block = u32::try_from(self.values.len()).ok()?;
            self.values.resize(self.values.len() + 256, self.default);
        }
        self.values.get_mut((*block | (code & 0xff)) as usize)
    }
}

/// The classes of all characters, from the same tables that the regular expressions are compiled with.
#[derive(Debug)]
pub(super) struct Classes {
    ascii: [u16; 128],
    all: CharTable<u16>,
}

impl Classes {
    /// Returns the tables, which are built once. `None` if the regular-expression library lacks one of the classes.
    pub(super) fn shared() -> Option<&'static Self> {
        static SHARED: LazyLock<Option<Classes>> = LazyLock::new(Classes::new);
        SHARED.as_ref()
    }

    fn new() -> Option<Self> {
        let mut all = CharTable::new(OTHER | SIGN);
        let classes = [
            (r"\p{L}", LETTER),
            (r"\p{N}", NUMBER),
            (r"\s", SPACE),
            (r"[\r\n]", NEWLINE),
            (r"\p{Lu}", UPPER),
            (r"\p{Ll}", LOWER),
            (r"\p{Lt}", TITLE),
            (r"\p{M}", MARK),
            (r"\p{Han}", HAN),
        ];
        for (class, bit) in classes {
            let parsed = regex_syntax::parse(class).ok()?;
            let HirKind::Class(Class::Unicode(ranges)) = parsed.kind() else { return None };
            for code in ranges.iter().flat_map(|range| u32::from(range.start())..=u32::from(range.end())) {
                *all.slot(code)? |= bit;
            }
        }
        for value in &mut all.values {
            if *value & (LETTER | NUMBER | SPACE) != 0 {
                *value &= !(OTHER | SIGN);
            } else if *value & MARK != 0 {
                *value &= !SIGN;
            }
        }
        let ascii = std::array::from_fn(|code| u32::try_from(code).map_or(0, |code| all.get(code)));
        Some(Self { ascii, all })
    }

    /// Returns the classes of the character at `at` and its length in bytes, or zeros at the end of the text. `text` is
    /// UTF-8.
    #[inline(always)]
    pub(super) fn at(&self, text: &[u8], at: usize) -> (u16, usize) {
        match text.get(at) {
            None => (0, 0),
            Some(byte) if *byte < 0x80 => {
                (self.ascii.get(usize::from(*byte & 0x7f)).copied().unwrap_or(0), 1)
            }
            Some(_) => {
                let (code, len) = decode(text, at);
                (self.all.get(code), len)
            }
        }
    }

    /// Returns the end of the run of characters that are in any of `classes`.
    #[inline(always)]
    pub(super) fn run(&self, text: &[u8], mut at: usize, classes: u16) -> usize {
        loop {
            let (class, len) = self.at(text, at);
            if class & classes == 0 {
                return at;
            }
            at += len;
        }
    }
}

/// Decodes the non-ASCII character that begins at `at` in UTF-8. Returns the character and its length in bytes.
#[inline]
pub(super) fn decode(text: &[u8], at: usize) -> (u32, usize) {
    let bits = |offset: usize| u32::from(text.get(at + offset).copied().unwrap_or(0));
    let tail = |offset: usize| bits(offset) & 0x3f;
    match bits(0) {
        first @ ..0xe0 => ((first & 0x1f) << 6 | tail(1), 2),
        first @ 0xe0..0xf0 => ((first & 0x0f) << 12 | tail(1) << 6 | tail(2), 3),
        first => ((first & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3), 4),
    }
}

/// Whether `text` is certainly in form C already, by the tables that `tokenizers` composes with. No character of such a
/// text changes or moves, regardless of its neighbours.
pub(super) fn is_composed(text: &str) -> bool {
    /// The planes from here on hold no characters that occur in text.
    const KNOWN: u32 = 0x3_0000;
    static STABLE: LazyLock<CharTable<bool>> = LazyLock::new(|| {
        let mut stable = CharTable::new(false);
        for c in (0x80..KNOWN).filter_map(char::from_u32) {
            let keeps = canonical_combining_class(c) == 0 && is_nfc_quick(once(c)) == IsNormalized::Yes;
            if let Some(slot) = stable.slot(u32::from(c)) {
                *slot = keeps;
            }
        }
        stable
    });
    if text.is_ascii() {
        return true;
    }
    let stable = &*STABLE;
    text.chars().all(|c| c < '\u{300}' || stable.get(u32::from(c)))
}

#[cfg(test)]
mod tests {
    use tokenizers::utils::SysRegex;
    use unicode_normalization_alignments::UnicodeNormalization;

    use super::*;

    #[test]
    fn classes_are_those_of_the_regular_expressions() {
        let classes = Classes::shared().unwrap();
        let text: String = ('\0'..=char::MAX).collect();
        for (pattern, bit) in [
            (r"\p{L}", LETTER),
            (r"\p{N}", NUMBER),
            (r"\s", SPACE),
            (r"[\r\n]", NEWLINE),
            (r"[^\s\p{L}\p{N}]", OTHER),
            (r"\p{Lu}", UPPER),
            (r"\p{Ll}", LOWER),
            (r"\p{Lt}", TITLE),
            (r"\p{M}", MARK),
            (r"[^\s\p{L}\p{M}\p{N}]", SIGN),
            (r"\p{Han}", HAN),
        ] {
            let (mut ours, mut at) = (Vec::new(), 0);
            while at < text.len() {
                let (class, len) = classes.at(text.as_bytes(), at);
                if class & bit != 0 {
                    let end = classes.run(text.as_bytes(), at, bit);
                    ours.push((at, end));
                    at = end;
                } else {
                    at += len;
                }
            }
            let theirs: Vec<_> = SysRegex::new(&format!("{pattern}+")).unwrap().find_iter(&text).collect();
            assert_eq!(ours, theirs, "{pattern}");
        }
    }

    #[test]
    fn stable_characters_are_left_alone() {
        for c in ('\0'..=char::MAX).filter(|c| is_composed(&c.to_string())) {
            let text = c.to_string();
            assert!(text.nfc().map(|(c, _)| c).eq(text.chars()), "{c:?}");
        }
        assert!(!is_composed("e\u{301}") && !is_composed("\u{1100}\u{1161}") && !is_composed("\u{2126}"));
        assert!(is_composed("日本語 🙂\u{200d}\u{fe0f} né 각"));
    }
}
