//! Characters that readers cannot see. Must not know rules or dialects.

/// Returns whether `c` is drawn as nothing: Unicode's property `Default_Ignorable_Code_Point`
/// (DerivedCoreProperties.txt, 16.0).
pub const fn is_ignorable(c: char) -> bool {
    matches!(
        c,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fff8}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Returns whether a reader sees nothing of `text`: it is empty, or holds only white space, control characters and
/// other characters without ink. Stops at the first visible character.
pub fn is_blank(text: &str) -> bool {
    // U+2800 is Braille without dots; U+FFF9 to U+FFFB mark annotations.
    let has_no_ink = |c: char| {
        c.is_whitespace()
            || c.is_control()
            || is_ignorable(c)
            || matches!(c, '\u{2800}' | '\u{fff9}'..='\u{fffb}')
    };
    text.chars().all(has_no_ink)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_texts_have_no_ink() {
        for blank in [
            "",
            " ",
            "\n\t\r\u{b}\u{c}",
            "\u{a0}\u{3000}\u{2028}\u{2029}\u{85}",
            "\u{200b}",
            "\u{200c}\u{200d}\u{2060}\u{feff}",
            "\u{ad}\u{34f}\u{61c}\u{180e}",
            "\u{115f}\u{1160}\u{3164}\u{ffa0}",
            "\u{fe0f}\u{e0041}\u{e0100}",
            "\0\u{1b}\u{7f}\u{80}",
            "\u{2800}",
            "\u{fff9}\u{fffa}\u{fffb}",
            " \u{200b}\n\u{feff} ",
        ] {
            assert!(is_blank(blank), "{blank:?}");
        }
        for seen in [".", " a", "\u{200b}0", "\u{301}", "\u{2801}", "👩\u{200d}", "\u{fffd}", "\u{fffc}", "ᅡ"]
        {
            assert!(!is_blank(seen), "{seen:?}");
        }
    }
}
