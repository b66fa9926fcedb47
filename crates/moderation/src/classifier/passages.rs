//! Divides a text into the passages that the classifier judges: sentences, and parts of long ones. The division depends on
//! the characters alone, not on how the text is split into pieces. Must not know labels.

/// Most bytes of a passage. It then ends at the next space, or at once after [`MAX_BYTES`].
const USUAL_BYTES: usize = 600;
const MAX_BYTES: usize = 800;
/// Bytes of the text before a passage that are judged together with it.
const CARRIED_BYTES: usize = 200;

/// Reads a text character by character.
#[derive(Debug, Clone, Default)]
pub(crate) struct PassageReader {
    /// The end of the text before the passage, and the passage.
    text: String,
    /// Bytes of `text` before the passage.
    carried: usize,
    /// The offset of the passage in the whole text.
    start: usize,
    /// The offset after the last character.
    end: usize,
    /// The last character that is no quote or bracket ends a sentence.
    may_end: bool,
    /// The passage has a letter or digit.
    has_words: bool,
}

/// A passage that has ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PassageEnd<'t> {
    /// The passage.
    pub(crate) passage: &'t str,
    /// The passage with the end of the text before it. `None` if there is no such text.
    pub(crate) with_context: Option<&'t str>,
    /// The bytes of the whole text that the passage is, from `start` to `end`.
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl PassageReader {
    /// Takes the next character, whose offset after it is `end`. Calls `judge` if a passage ended with it.
    pub(crate) fn push(&mut self, c: char, end: usize, judge: &mut dyn FnMut(PassageEnd<'_>)) {
        self.text.push(c);
        self.end = end;
        self.has_words |= c.is_alphanumeric();
        let length = self.text.len().saturating_sub(self.carried);
        let ends_sentence = c == '\n' || (self.may_end && c.is_whitespace());
        let is_long = length >= MAX_BYTES || (length >= USUAL_BYTES && c.is_whitespace());
        match c {
            '.' | '!' | '?' | '…' | '。' | '！' | '？' => self.may_end = true,
            '"' | '\'' | ')' | ']' | '»' | '”' | '’' | '*' | '_' => {}
            _ => self.may_end = false,
        }
        if (ends_sentence && self.has_words) || is_long {
            self.finish(judge);
        }
    }

    /// Ends the passage, and calls `judge` unless it has no letters and digits.
    pub(crate) fn finish(&mut self, judge: &mut dyn FnMut(PassageEnd<'_>)) {
        if self.has_words {
            let passage = self.text.get(self.carried..).unwrap_or_default();
            let with_context = (self.carried > 0).then_some(self.text.as_str());
            judge(PassageEnd { passage, with_context, start: self.start, end: self.end });
        }
        let mut from = self.text.len().saturating_sub(CARRIED_BYTES);
        while !self.text.is_char_boundary(from) {
            from = from.saturating_add(1);
        }
        self.text.drain(..from);
        self.carried = self.text.len();
        (self.start, self.may_end, self.has_words) = (self.end, false, false);
    }

    /// The offset of the first character of the present passage.
    pub(crate) const fn held_from(&self) -> usize {
        self.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passages(text: &str) -> Vec<(String, Option<String>)> {
        let (mut reader, mut found) = (PassageReader::default(), Vec::new());
        let mut judge = |end: PassageEnd<'_>| {
            assert_eq!(&text[end.start..end.end], end.passage);
            found.push((end.passage.to_owned(), end.with_context.map(str::to_owned)));
        };
        for (at, c) in text.char_indices() {
            reader.push(c, at + c.len_utf8(), &mut judge);
        }
        reader.finish(&mut judge);
        found
    }

    #[test]
    fn sentences_end_before_white_space_and_long_ones_at_a_space() {
        let ends = |text: &str| passages(text).into_iter().map(|(passage, _)| passage).collect::<Vec<_>>();
        assert_eq!(ends("One. Two! \"Three?\" four"), ["One. ", "Two! ", "\"Three?\" ", "four"]);
        assert_eq!(ends("3.14 is pi\nand more"), ["3.14 is pi\n", "and more"]);
        assert_eq!(ends("... ?! "), Vec::<String>::new());
        assert_eq!(ends("... ?! a"), ["... ?! a"]);
        let long = "word ".repeat(200);
        assert_eq!(ends(&long).iter().map(String::len).collect::<Vec<_>>(), [600, 400]);
        assert_eq!(ends(&"é".repeat(1000)).iter().map(String::len).collect::<Vec<_>>(), [800, 800, 400]);
    }

    #[test]
    fn a_passage_is_judged_with_the_end_of_the_text_before_it() {
        assert_eq!(passages("One. Two.")[1], ("Two.".to_owned(), Some("One. Two.".to_owned())));
        let text = format!("{} End.", "é".repeat(300));
        let (passage, context) = passages(&text).pop().unwrap();
        assert_eq!(passage, "End.");
        assert_eq!(context.unwrap().len(), 199 + 4, "as many whole characters as fit");
    }
}
