//! Finds phrases that are split over texts. A position where two texts meet counts as a space or as none, as the phrase
//! needs. Must not know rules.

use std::borrow::Cow;

use aho_corasick::{AhoCorasick, MatchKind};

/// The phrases (words that contain a space), as one automaton over their letters without spaces.
#[derive(Debug, Default)]
pub(crate) struct SplitPhrases {
    automaton: Option<AhoCorasick>,
    /// The phrase of each pattern of the automaton.
    phrases: Vec<PhrasePattern>,
}

#[derive(Debug)]
struct PhrasePattern {
    /// The index of its rule in the list.
    rule: usize,
    /// Byte offsets in the pattern before which the phrase has a space, in ascending order.
    spaces: Vec<usize>,
}

/// A phrase that crosses the last position where two texts meet.
pub(crate) struct FoundPhrase {
    /// The index of its rule in the list.
    pub(crate) rule: usize,
    /// Whether no letter or digit touches it.
    pub(crate) is_alone: bool,
}

impl SplitPhrases {
    /// Compiles the phrases among the normalised `words`, each with the index of its rule.
    pub(crate) fn compile(words: &[(usize, String)]) -> Result<Self, String> {
        let of = |(rule, word): &(usize, String)| {
            let (letters, spaces) = without_spaces(word);
            (!spaces.is_empty()).then_some((PhrasePattern { rule: *rule, spaces }, letters))
        };
        let (phrases, letters): (Vec<PhrasePattern>, Vec<String>) = words.iter().filter_map(of).unzip();
        if letters.is_empty() {
            return Ok(Self::default());
        }
        let automaton = AhoCorasick::builder().match_kind(MatchKind::Standard).build(letters);
        let automaton = automaton.map_err(|error| format!("do not compile: {error}"))?;
        Ok(Self { automaton: Some(automaton), phrases })
    }

    /// Calls `each` with every phrase that starts in one of `before` and ends in `after`. The texts are normalised.
    pub(crate) fn find(&self, before: &[Cow<'_, str>], after: &str, each: &mut dyn FnMut(FoundPhrase)) {
        let Some(automaton) = &self.automaton else { return };
        let mut joined = JoinedTexts::default();
        before.iter().for_each(|text| joined.push(text));
        let seam = joined.letters.len();
        joined.push(after);
        for found in automaton.find_overlapping_iter(&joined.letters) {
            let Some(phrase) = self.phrases.get(found.pattern().as_usize()) else { continue };
            let (start, end) = (found.start(), found.end());
            if start < seam && seam < end && joined.has_spaces_as(phrase, start, end) {
                each(FoundPhrase { rule: phrase.rule, is_alone: joined.stands_alone(start, end) });
            }
        }
    }
}

/// Texts without spaces, concatenated.
#[derive(Default)]
struct JoinedTexts {
    letters: String,
    /// Byte offsets before which a text has a space, in ascending order.
    spaces: Vec<usize>,
    /// Byte offsets at which two texts meet, in ascending order.
    seams: Vec<usize>,
}

impl JoinedTexts {
    fn push(&mut self, text: &str) {
        let (letters, spaces) = without_spaces(text);
        let before = self.letters.len();
        if before > 0 {
            self.seams.push(before);
        }
        self.spaces.extend(spaces.into_iter().map(|at| before.saturating_add(at)));
        self.letters.push_str(&letters);
    }

    fn is_seam(&self, at: usize) -> bool {
        self.seams.binary_search(&at).is_ok()
    }

    fn is_space(&self, at: usize) -> bool {
        self.spaces.binary_search(&at).is_ok()
    }

    /// Returns whether `letters[start..end]` has spaces where `phrase` has them. A position where two texts meet fits both.
    fn has_spaces_as(&self, phrase: &PhrasePattern, start: usize, end: usize) -> bool {
        let expected = |at: usize| phrase.spaces.binary_search(&at.saturating_sub(start)).is_ok();
        let is_gap = |at: usize| self.is_space(at) || self.is_seam(at);
        let first = self.spaces.partition_point(|at| *at <= start);
        let within = self.spaces.iter().skip(first).take_while(|at| **at < end);
        within.copied().all(|at| self.is_seam(at) || expected(at))
            && phrase.spaces.iter().all(|at| is_gap(start.saturating_add(*at)))
    }

    /// Returns whether no letter or digit touches `letters[start..end]`.
    fn stands_alone(&self, start: usize, end: usize) -> bool {
        let is_gap = |at: usize| self.is_space(at) || self.is_seam(at);
        let part_of_word = char::is_alphanumeric;
        let before = self.letters.get(..start).and_then(|before| before.chars().next_back());
        let after = self.letters.get(end..).and_then(|after| after.chars().next());
        (is_gap(start) || !before.is_some_and(part_of_word))
            && (is_gap(end) || !after.is_some_and(part_of_word))
    }
}

/// Returns a normalised text without its spaces, and the byte offsets before which they were. Ignores spaces at its
/// ends.
fn without_spaces(text: &str) -> (String, Vec<usize>) {
    let text = text.trim();
    let (mut letters, mut spaces) = (String::with_capacity(text.len()), Vec::new());
    for piece in text.split(' ').filter(|piece| !piece.is_empty()) {
        if !letters.is_empty() {
            spaces.push(letters.len());
        }
        letters.push_str(piece);
    }
    (letters, spaces)
}
