//! Letters of other scripts that look like Latin ones. Knows no rules.
//!
//! From Unicode's table of confusables (UTS #39, confusables.txt): single letters of the Latin, Greek, Cyrillic,
//! Armenian, Cherokee, Coptic and Lisu scripts. Omits letters that look alike only in some fonts. Adds small capitals
//! and letters with a stroke. Omits digits and groups of letters (`0` and `O`, `rn` and `m`), since plain English would
//! match.

/// The Latin letter that `c` looks like, in the case of `c`. `None` if `c` is Latin or looks like no Latin letter.
pub(crate) fn latin(c: char) -> Option<char> {
    if !may_look_latin(c) {
        return None;
    }
    let small = small_latin(c)?;
    Some(if c.is_uppercase() { small.to_ascii_uppercase() } else { small })
}

/// Returns `true` if `c`, or a letter of its compatibility decomposition, may be in the table, judging by its Unicode
/// block.
pub(crate) const fn may_look_latin(c: char) -> bool {
    matches!(
        c,
        '\u{d8}' | '\u{f8}'
            | '\u{100}'..='\u{58f}'
            | '\u{13a0}'..='\u{13f5}'
            | '\u{1d00}'..='\u{1fff}'
            | '\u{2c80}'..='\u{2cff}'
            | '\u{a4d0}'..='\u{a4ff}'
            | '\u{a640}'..='\u{a7ff}'
            | '\u{ab30}'..='\u{abbf}'
            | '\u{1d6a8}'..='\u{1d7cb}'
    )
}

#[rustfmt::skip]
const fn small_latin(c: char) -> Option<char> {
    Some(match c {
        'ɑ' | 'Α' | 'α' | 'А' | 'а' | 'Ꭺ' | 'ᴀ' | 'ꓮ' => 'a',
        'ƀ' | 'ʙ' | 'Β' | 'В' | 'Ь' | 'Ꮟ' | 'Ᏼ' | 'ꓐ' | 'Ꞵ' => 'b',
        'С' | 'с' | 'Ꮯ' | 'ᴄ' | 'Ⲥ' | 'ⲥ' | 'ꓚ' | 'ꮯ' => 'c',
        'Đ' | 'đ' | 'ԁ' | 'Ꭰ' | 'Ꮷ' | 'ᴅ' | 'ꓒ' | 'ꓓ' => 'd',
        'Ε' | 'ε' | 'Е' | 'е' | 'є' | 'ҽ' | 'Ꭼ' | 'ᴇ' | 'ꓰ' | 'ꬲ' => 'e',
        'Ϝ' | 'ք' | 'ẝ' | 'ꓝ' | 'ꜰ' | 'Ꞙ' | 'ꞙ' | 'ꬵ' => 'f',
        'ɡ' | 'ɢ' | 'Ԍ' | 'ց' | 'Ꮐ' | 'Ᏻ' | 'ᶃ' | 'ꓖ' => 'g',
        'Ħ' | 'ħ' | 'ʜ' | 'Η' | 'Н' | 'һ' | 'հ' | 'Ꮋ' | 'Ꮒ' | 'Ⲏ' | 'ꓧ' => 'h',
        'ı' | 'Ɩ' | 'ɨ' | 'ɩ' | 'ɪ' | 'Ι' | 'ι' | 'І' | 'і' | 'Ӏ' | 'ӏ' | 'Ꭵ' | 'Ⲓ' | 'ꓲ' | 'ꙇ' | 'ꭵ' => 'i',
        'Ϳ' | 'ϳ' | 'Ј' | 'ј' | 'Ꭻ' | 'ᴊ' | 'ꓙ' | 'Ʝ' => 'j',
        'ĸ' | 'Κ' | 'κ' | 'К' | 'к' | 'Ꮶ' | 'ᴋ' | 'Ⲕ' | 'ꓗ' => 'k',
        'Ł' | 'ł' | 'ǀ' | 'ʟ' | 'Ꮮ' | 'Ⳑ' | 'ꓡ' => 'l',
        'Μ' | 'Ϻ' | 'М' | 'Ꮇ' | 'ᴍ' | 'Ⲙ' | 'ꓟ' => 'm',
        'ɴ' | 'Ν' | 'ո' | 'ռ' | 'Ⲛ' | 'ꓠ' => 'n',
        'Ø' | 'ø' | 'Ο' | 'ο' | 'σ' | 'О' | 'о' | 'Օ' | 'օ' | 'ᴏ' | 'ᴑ' | 'Ⲟ' | 'ⲟ' | 'ꓳ' | 'ꬽ' => 'o',
        'Ρ' | 'ρ' | 'Р' | 'р' | 'Ꮲ' | 'ᴘ' | 'Ⲣ' | 'ⲣ' | 'ꓑ' => 'p',
        'ԛ' | 'զ' => 'q',
        'Ʀ' | 'ʀ' | 'Ꭱ' | 'Ꮢ' | 'ⲅ' | 'ꓣ' | 'ꭇ' | 'ꭈ' | 'ꮁ' => 'r',
        'ƽ' | 'Ѕ' | 'ѕ' | 'Տ' | 'Ꮥ' | 'Ꮪ' | 'ꓢ' | 'ꜱ' | 'ꮪ' => 's',
        'Ŧ' | 'ŧ' | 'Τ' | 'τ' | 'Т' | 'Ꭲ' | 'ᴛ' | 'Ⲧ' | 'ꓔ' => 't',
        'ʋ' | 'υ' | 'Ս' | 'ս' | 'ᴜ' | 'ꓴ' | 'ꞟ' | 'ꭎ' | 'ꭒ' => 'u',
        'ν' | 'Ѵ' | 'ѵ' | 'Ꮩ' | 'ᴠ' | 'ꓦ' | 'ꮩ' => 'v',
        'ѡ' | 'Ԝ' | 'ԝ' | 'ա' | 'Ꮃ' | 'Ꮤ' | 'ᴡ' | 'ꓪ' | 'ꮃ' => 'w',
        'Χ' | 'Х' | 'х' | 'Ⲭ' | 'ꓫ' | 'Ꭓ' => 'x',
        'ɣ' | 'ʏ' | 'Υ' | 'γ' | 'У' | 'у' | 'Ү' | 'ү' | 'Ꭹ' | 'Ꮍ' | 'ᶌ' | 'ỿ' | 'Ⲩ' | 'ꓬ' | 'ꭚ' => 'y',
        'Ζ' | 'Ꮓ' | 'ᴢ' | 'ꓜ' | 'ꮓ' => 'z',
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use unicode_normalization_alignments::UnicodeNormalization;

    use super::*;

    #[test]
    fn each_letter_of_the_table_is_found_and_stays_itself_when_decomposed() {
        let mut letters = 0;
        for c in '\u{80}'..='\u{10ffff}' {
            let Some(small) = small_latin(c) else { continue };
            letters += 1;
            assert!(small.is_ascii_lowercase() && may_look_latin(c), "{c:?}");
            assert!(latin(c).is_some_and(|found| found.eq_ignore_ascii_case(&small)), "{c:?}");
            assert!(c.to_string().nfkd().map(|(c, _)| c).eq([c]), "{c:?}");
        }
        assert_eq!(letters, 227);
        assert_eq!(
            (latin('А'), latin('а'), latin('a'), latin('ж'), latin('中')),
            (Some('A'), Some('a'), None, None, None)
        );
    }
}
