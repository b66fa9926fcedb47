//! Foreign text on a terminal: which characters would do something other than show themselves. Must not know a
//! terminal.

/// Returns whether a character controls a terminal, is invisible, or changes the text direction: control characters
/// (escape sequences begin with one), line and paragraph separators, direction marks and overrides, characters without
/// a width.
///
/// Source: Unicode's `Cc`, `Bidi_Control` and `Default_Ignorable_Code_Point` (DerivedCoreProperties.txt), without
/// variation selectors, which emoji use.
pub fn steers_terminals(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180e}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}'
            | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_shows_itself_stays_and_what_steers_or_hides_does_not() {
        for c in "aZ 0é漢字عربىעברית😀…–\u{fe0f}".chars() {
            assert!(!steers_terminals(c), "{c:?}");
        }
        let steering = "\0\u{7}\u{8}\t\n\r\u{1b}\u{7f}\u{80}\u{85}\u{9b}\u{9f}\u{ad}\u{200b}\u{200e}\u{2028}\u{202e}\u{2066}\u{feff}\u{e0041}";
        for c in steering.chars() {
            assert!(steers_terminals(c), "{c:?}");
        }
    }
}
