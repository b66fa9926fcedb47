//! Finds the caller's stop strings in text that arrives in pieces, and holds back text that may become part of one.
//! Must not know tokens.

/// Watches a text for stop strings.
///
/// The first stop string that is *complete* ends the text. If several are complete at the same character, the longest
/// wins, and among equal ones the first listed. A stop therefore never waits for text that may not come, and the result
/// does not depend on how the text was cut into pieces. Empty stop strings are ignored.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<Pattern>,
    held: String,
    done: bool,
}

/// The result of one piece of text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopStep {
    /// Text that can no longer be part of a stop string.
    pub deliver: String,
    /// Index, in the given list, of the stop string that ended the text. The stop string and the text after it are not
    /// delivered.
    pub matched: Option<usize>,
}

/// A stop string with its Knuth-Morris-Pratt table.
#[derive(Debug, Clone)]
struct Pattern {
    index: usize,
    bytes: Vec<u8>,
    /// `fallback[n]` is the length of the longest proper prefix that is also a suffix of the first `n + 1` bytes.
    fallback: Vec<usize>,
    /// The length of the longest prefix that the text so far ends with, in bytes.
    matched: usize,
}

impl StopMatcher {
    /// Creates a matcher for `stops`, at the beginning of a text.
    pub fn new(stops: &[String]) -> Self {
        let stops = stops
            .iter()
            .enumerate()
            .filter(|(_, stop)| !stop.is_empty())
            .map(|(index, stop)| Pattern::new(index, stop))
            .collect();
        Self { stops, held: String::new(), done: false }
    }

    /// Takes the next piece of text. After a match, all further pieces are dropped.
    pub fn push(&mut self, text: &str) -> StopStep {
        if self.done {
            return StopStep::default();
        }
        if self.stops.is_empty() {
            return StopStep { deliver: text.to_owned(), matched: None };
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (offset, byte) in text.bytes().enumerate() {
            let mut winner: Option<(usize, usize)> = None;
            for stop in &mut self.stops {
                if stop.advance(byte) && winner.is_none_or(|(_, length)| stop.bytes.len() > length) {
                    winner = Some((stop.index, stop.bytes.len()));
                }
            }
            if let Some((index, length)) = winner {
                self.done = true;
                let end = before.saturating_add(offset).saturating_add(1);
                let mut deliver = std::mem::take(&mut self.held);
                deliver.truncate(end.saturating_sub(length));
                return StopStep { deliver, matched: Some(index) };
            }
        }
        let keep = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len().saturating_sub(keep));
        StopStep { deliver: std::mem::replace(&mut self.held, rest), matched: None }
    }

    /// Ends the text and returns the held-back text, which is no stop string.
    pub fn flush(&mut self) -> String {
        self.stops.iter_mut().for_each(|stop| stop.matched = 0);
        std::mem::take(&mut self.held)
    }
}

impl Pattern {
    fn new(index: usize, stop: &str) -> Self {
        let bytes = stop.as_bytes().to_vec();
        let mut fallback = vec![0; bytes.len()];
        let mut length = 0;
        for (at, byte) in bytes.iter().enumerate().skip(1) {
            while length > 0 && bytes.get(length) != Some(byte) {
                length = fallback.get(length - 1).copied().unwrap_or(0);
            }
            if bytes.get(length) == Some(byte) {
                length += 1;
            }
            if let Some(slot) = fallback.get_mut(at) {
                *slot = length;
            }
        }
        Self { index, bytes, fallback, matched: 0 }
    }

    /// Takes one byte. Returns `true` if the pattern is now complete.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes.get(self.matched) != Some(&byte) {
            self.matched = self.fallback.get(self.matched - 1).copied().unwrap_or(0);
        }
        if self.bytes.get(self.matched) == Some(&byte) {
            self.matched += 1;
        }
        self.matched == self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let stops: Vec<String> = stops.iter().map(|s| (*s).to_owned()).collect();
        let mut matcher = StopMatcher::new(&stops);
        let mut text = String::new();
        let mut matched = None;
        for piece in pieces {
            let step = matcher.push(piece);
            text += &step.deliver;
            matched = matched.or(step.matched);
        }
        text += &matcher.flush();
        (text, matched)
    }

    #[test]
    fn table() {
        type Row<'a> = (&'a [&'a str], &'a [&'a str], &'a str, Option<usize>);
        let rows: &[Row<'_>] = &[
            (&[], &["abc"], "abc", None),
            (&[""], &["abc"], "abc", None),
            (&["\n\n"], &["a\n", "b"], "a\nb", None),
            (&["\n\n"], &["a\n", "\nb"], "a", Some(0)),
            (&["END"], &["x EN", "DING"], "x ", Some(0)),
            (&["END"], &["x EN", "EN", "D"], "x EN", Some(0)),
            (&["END"], &["x E", "N"], "x EN", None),
            (&["ab", "a"], &["xab"], "x", Some(1)),
            (&["abcd", "bc"], &["abcd"], "a", Some(1)),
            (&["bc", "abc"], &["xabc"], "x", Some(1)),
            (&["abc", "abc"], &["abc"], "", Some(0)),
            (&["aab"], &["aa", "aab"], "aa", Some(0)),
            (&["é"], &["caf", "é!"], "caf", Some(0)),
            (&["🙂🙂"], &["🙂", "🙃🙂🙂z"], "🙂🙃", Some(0)),
        ];
        for (stops, pieces, text, matched) in rows {
            assert_eq!(run(stops, pieces), ((*text).to_owned(), *matched), "{stops:?} {pieces:?}");
        }
    }

    #[test]
    fn nothing_after_a_match() {
        let mut matcher = StopMatcher::new(&["x".to_owned()]);
        assert_eq!(matcher.push("ax"), StopStep { deliver: "a".into(), matched: Some(0) });
        assert_eq!(matcher.push("more"), StopStep::default());
        assert_eq!(matcher.flush(), "");
    }

    fn naive(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in 1..=text.len() {
            let mut best: Option<(usize, usize)> = None;
            for (index, stop) in stops.iter().enumerate() {
                let ends = !stop.is_empty() && text.as_bytes()[..end].ends_with(stop.as_bytes());
                if ends && best.is_none_or(|(_, length)| stop.len() > length) {
                    best = Some((index, stop.len()));
                }
            }
            if let Some((index, length)) = best {
                return (text[..end - length].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    proptest! {
        #[test]
        fn splitting_changes_nothing(
            stops in prop::collection::vec("[abé]{0,4}", 0..4),
            pieces in prop::collection::vec("[abcé]{0,5}", 0..8),
        ) {
            let whole: String = pieces.concat();
            let borrowed: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let listed: Vec<&str> = stops.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&listed, &borrowed), naive(&stops, &whole));
        }
    }
}
