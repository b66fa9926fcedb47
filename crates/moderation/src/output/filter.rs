//! Reads one text of an answer piece by piece and lets out what no rule withholds. Holds back the longest suffix that may
//! still become a match. What is let out in all does not depend on how the text is split. Must not know where the text
//! comes from.

use std::ops::Range;
use std::sync::Arc;

use super::pattern_text::{PatternText, stays};
use super::patterns::{ScanState, ScannedText};
use super::span::MatchSpan;
use super::text_rules::TextRules;
use super::word_text::WordText;
use crate::Action;
use crate::classifier::{PassageEnd, PassageReader};
use crate::judge_rules::PassageVerdicts;
use crate::look_alike;

/// Bytes that are dropped from the start of the kept text at a time.
const DROPPED_BYTES: usize = 2048;

/// See the top of the file.
#[derive(Debug, Clone)]
pub struct OutputFilter {
    rules: Arc<TextRules>,
    /// The end of the text: what is held back, and the characters before it that patterns look at.
    text: String,
    /// Bytes of the text before `text`.
    base: usize,
    /// The offset up to which the text is decided: let out, or replaced.
    decided: usize,
    /// The offset up to which earlier sections of the text were let out, before all of their matches were known.
    sections_end: usize,
    last: Option<char>,
    words: WordText,
    /// The text with look-alike letters replaced. `None` while the text is ASCII.
    unmasked_words: Option<WordText>,
    /// The same, for words of other scripts. `None` if there are none.
    masked_words: Option<WordText>,
    /// The text as the classifier and judges see it. `None` if no rule uses them.
    passages: Option<PassageReader>,
    /// The verdicts of judges on other servers. `None` if none is asked.
    verdicts: Option<Arc<PassageVerdicts>>,
    scans: Vec<ScanState>,
    /// The text as patterns see it. `None` while folding has not changed it.
    folded: Option<FoldedScan>,
    /// The same with look-alike letters replaced. `None` before the first such letter.
    unmasked: Option<FoldedScan>,
    /// Matches behind `decided`.
    spans: Vec<MatchSpan>,
    blocked_by: Option<usize>,
    /// The rules that matched, by index, without the one that blocked.
    matched: Vec<usize>,
    /// What was replaced since [`Self::take_redacted`].
    redacted: Vec<MatchSpan>,
}

/// A folded text, and how far each pattern has come in it.
#[derive(Debug, Clone)]
struct FoldedScan {
    text: PatternText,
    scans: Vec<ScanState>,
}

impl FoldedScan {
    /// Scans what is decided. Returns the first byte of the source that may still belong to a match.
    fn scan(&mut self, rules: &TextRules, is_whole: bool, found: &mut Vec<MatchSpan>) -> Option<usize> {
        if is_whole {
            self.text.end_segment();
        }
        let before = found.len();
        let (kept, base) = self.text.kept();
        let scanned = ScannedText { text: kept, base, is_whole };
        let (mut held, mut needed) = (None, base.saturating_add(kept.len()));
        for (pattern, state) in rules.patterns().iter().zip(&mut self.scans) {
            let open = pattern.scan(scanned, state, found);
            if let Some(open) = open {
                needed = needed.min(open);
                if pattern.acts() {
                    held = Some(held.map_or(open, |held: usize| held.min(open)));
                }
            }
        }
        for span in found.iter_mut().skip(before) {
            (span.start, span.end) = self.text.source(span.start, span.end);
        }
        let held = held.map(|held| self.text.source(held, held.saturating_add(1)).0);
        let undecided = self.text.undecided().filter(|(text, _)| rules.may_start_with(text));
        let undecided = undecided.map(|(_, start)| start);
        if needed.saturating_sub(base) > DROPPED_BYTES {
            self.text.forget(needed);
        }
        held.into_iter().chain(undecided).min()
    }
}

impl OutputFilter {
    /// Starts a text that is checked by `rules`.
    pub fn new(rules: &Arc<TextRules>) -> Self {
        Self {
            text: String::new(),
            base: 0,
            decided: 0,
            sections_end: 0,
            last: None,
            words: WordText::new(rules.words(), false),
            unmasked_words: None,
            masked_words: (!rules.masked().is_empty()).then(|| WordText::new(rules.masked(), true)),
            passages: rules.has_passages().then(PassageReader::default),
            verdicts: None,
            scans: vec![ScanState::At(0); rules.patterns().len()],
            folded: None,
            unmasked: None,
            spans: Vec::new(),
            blocked_by: None,
            matched: Vec::new(),
            redacted: Vec::new(),
            rules: Arc::clone(rules),
        }
    }

    /// Reads the verdicts of judges on other servers from `verdicts`, where each passage must be before the filter reads it.
    #[must_use]
    pub fn with_verdicts(mut self, verdicts: &Arc<PassageVerdicts>) -> Self {
        self.verdicts = Some(Arc::clone(verdicts));
        self
    }

    /// Takes the next piece of the text, and adds what may leave to `out`. After a match of a rule that blocks, nothing
    /// leaves.
    pub fn push(&mut self, piece: &str, out: &mut String) {
        if self.blocked_by.is_some() || piece.is_empty() {
            return;
        }
        let mut added = 0;
        let has_patterns = !self.rules.patterns().is_empty();
        for (at, c) in piece.char_indices() {
            let start = self.end().saturating_add(at.saturating_sub(added));
            let end = start.saturating_add(c.len_utf8());
            self.push_word_char(c, start, end);
            if let Some(passages) = &mut self.passages {
                passages.push(c, end, &mut |end| {
                    judge(&self.rules, self.verdicts.as_deref(), &end, &mut self.spans)
                });
            }
            if has_patterns {
                if self.folded.is_none() && !stays(c, self.last) {
                    self.text.push_str(piece.get(added..at).unwrap_or_default());
                    added = at;
                    let text = PatternText::starting(&self.text, self.base);
                    self.folded = Some(FoldedScan { text, scans: self.scans.clone() });
                }
                if let Some(folded) = &mut self.folded {
                    if self.unmasked.is_none() && look_alike::may_look_latin(c) {
                        let text = folded.text.unmasked();
                        self.unmasked = Some(FoldedScan { text, scans: folded.scans.clone() });
                    }
                    folded.text.push(c, start, end);
                }
                if let Some(unmasked) = &mut self.unmasked {
                    unmasked.text.push(c, start, end);
                }
                self.last = Some(c);
            }
        }
        self.text.push_str(piece.get(added..).unwrap_or_default());
        let held = self.scan(false);
        self.settle(held, out);
        self.forget();
    }

    fn push_word_char(&mut self, c: char, start: usize, end: usize) {
        let sets = self.rules.words();
        if !sets.is_empty() {
            if !c.is_ascii() && self.unmasked_words.is_none() {
                self.unmasked_words = Some(self.words.unmasked());
            }
            self.words.push(sets, c, start, end, &mut self.spans);
            if let Some(words) = &mut self.unmasked_words {
                words.push(sets, c, start, end, &mut self.spans);
            }
        }
        if let Some(words) = &mut self.masked_words {
            words.push(self.rules.masked(), c, start, end, &mut self.spans);
        }
    }

    /// Takes the end of the text, and adds the rest of what may leave to `out`.
    pub fn finish(&mut self, out: &mut String) {
        if self.blocked_by.is_some() {
            return;
        }
        self.words.finish(self.rules.words(), &mut self.spans);
        if let Some(words) = &mut self.unmasked_words {
            words.finish(self.rules.words(), &mut self.spans);
        }
        if let Some(words) = &mut self.masked_words {
            words.finish(self.rules.masked(), &mut self.spans);
        }
        if let Some(passages) = &mut self.passages {
            passages.finish(&mut |end| judge(&self.rules, self.verdicts.as_deref(), &end, &mut self.spans));
        }
        self.scan(true);
        self.settle(self.end(), out);
    }

    /// Takes the end of a section of the text, such as the text before a tool call, and adds the rest of what may leave
    /// to `out`. If the client may join the next section to it, a match that spans both is found when it is complete,
    /// and its part in the next section is withheld.
    pub fn end_section(&mut self, is_joined: bool, out: &mut String) {
        if self.blocked_by.is_some() {
            return;
        }
        if !is_joined {
            self.finish(out);
            let rules = Arc::clone(&self.rules);
            let mut next = Self::new(&rules);
            next.verdicts.clone_from(&self.verdicts);
            let ended = std::mem::replace(self, next);
            (self.matched, self.blocked_by, self.redacted) =
                (ended.matched, ended.blocked_by, ended.redacted);
            return;
        }
        let mut ended = self.clone();
        ended.finish(out);
        (self.matched, self.blocked_by, self.redacted) = (ended.matched, ended.blocked_by, ended.redacted);
        (self.decided, self.sections_end) = (ended.decided, self.end());
    }

    /// The index of the rule that ended the text. `None` if no rule did.
    pub const fn blocked_by(&self) -> Option<usize> {
        self.blocked_by
    }

    /// The indices of the rules that matched and did not block.
    pub fn matched(&self) -> &[usize] {
        &self.matched
    }

    /// The number of bytes of the text that were let out or replaced. In a text of separate sections: of this section.
    pub const fn decided(&self) -> usize {
        self.decided
    }

    /// Takes the places in the text that were replaced since the last call, as byte offsets.
    pub fn take_redacted(&mut self) -> Vec<Range<usize>> {
        self.redacted.drain(..).map(|span| span.start..span.end).collect()
    }

    /// Takes the matches that were replaced since the last call.
    pub(crate) fn take_replaced(&mut self) -> Vec<MatchSpan> {
        std::mem::take(&mut self.redacted)
    }

    fn end(&self) -> usize {
        self.base.saturating_add(self.text.len())
    }

    /// Finds matches. Returns the offset before which all starts are decided.
    fn scan(&mut self, is_whole: bool) -> usize {
        let Self { rules, text, base, .. } = self;
        let end = base.saturating_add(text.len());
        let mut held = end;
        let mut hold = |from: Option<usize>| held = held.min(from.unwrap_or(held));
        hold(self.words.held_from(rules.words()));
        hold(self.unmasked_words.as_ref().and_then(|words| words.held_from(rules.words())));
        hold(self.masked_words.as_ref().and_then(|words| words.held_from(rules.masked())));
        let passages = self.passages.as_ref().filter(|_| rules.holds_passages() && !is_whole);
        hold(passages.map(PassageReader::held_from));
        // A mark that follows may compose with the last letter.
        let is_open = self.folded.is_none() && rules.sees_beyond_ascii() && !is_whole;
        let decided = if is_open { text.len().saturating_sub(1) } else { text.len() };
        hold(Some(base.saturating_add(decided)));
        let scanned = ScannedText { text: text.get(..decided).unwrap_or(text), base: *base, is_whole };
        for (pattern, state) in rules.patterns().iter().zip(&mut self.scans) {
            let open = pattern.scan(scanned, state, &mut self.spans);
            hold(open.filter(|_| pattern.acts()));
        }
        for folded in self.folded.iter_mut().chain(&mut self.unmasked) {
            hold(folded.scan(rules, is_whole, &mut self.spans));
        }
        held
    }

    /// Lets out what is decided: everything before `held`.
    fn settle(&mut self, held: usize, out: &mut String) {
        if !self.spans.is_empty() {
            self.spans.sort_unstable();
            let known = self.spans.partition_point(|span| span.start < held);
            let spans: Vec<MatchSpan> = self.spans.drain(..known).collect();
            for span in spans {
                self.take(span, out);
                if self.blocked_by.is_some() {
                    self.text = String::new();
                    self.spans = Vec::new();
                    return;
                }
            }
        }
        self.let_out(held, out);
    }

    fn take(&mut self, span: MatchSpan, out: &mut String) {
        if span.end <= self.sections_end {
            return;
        }
        let action = self.rules.action(span.rule);
        if action == Action::Block {
            self.let_out(span.start, out);
            self.blocked_by = Some(span.rule);
            return;
        }
        if !self.matched.contains(&span.rule) {
            self.matched.push(span.rule);
        }
        if action == Action::Flag {
            return;
        }
        let is_new = span.start >= self.decided
            || (self.decided <= self.sections_end && span.start < self.sections_end);
        if is_new {
            self.let_out(span.start, out);
            out.push_str(self.rules.replacement(span.rule, span.entity));
        }
        self.redacted.push(span);
        self.decided = self.decided.max(span.end);
    }

    fn let_out(&mut self, to: usize, out: &mut String) {
        if to <= self.decided {
            return;
        }
        let at = |offset: usize| offset.saturating_sub(self.base);
        out.push_str(self.text.get(at(self.decided)..at(to)).unwrap_or_default());
        self.decided = to;
    }

    /// Drops text that neither is held back nor needed by a pattern, but for one character.
    fn forget(&mut self) {
        let needed = self.scans.iter().filter_map(|state| match state {
            ScanState::At(at) => Some(*at),
            ScanState::Blocked => None,
        });
        let needed = needed.chain([self.decided, self.end()]).min().unwrap_or(0);
        let before = needed.saturating_sub(self.base);
        if before <= DROPPED_BYTES {
            return;
        }
        let last = self.text.get(..before).and_then(|before| before.char_indices().next_back());
        if let Some((at, _)) = last {
            self.text.drain(..at);
            self.base = self.base.saturating_add(at);
        }
    }
}

/// Adds a match for each rule that finds a passage.
fn judge(
    rules: &TextRules,
    verdicts: Option<&PassageVerdicts>,
    end: &PassageEnd<'_>,
    spans: &mut Vec<MatchSpan>,
) {
    let mut found = |rule| spans.push(MatchSpan { start: end.start, rule, end: end.end, entity: None });
    rules.classifier().judge(end, &mut found);
    if let Some(verdicts) = verdicts.filter(|_| rules.waits()) {
        // A passage without a verdict must not pass.
        let waiting = || rules.judges().iter().filter(|judge| judge.waits).map(|judge| judge.rule).collect();
        verdicts.of(end).unwrap_or_else(waiting).into_iter().for_each(found);
    }
}

#[cfg(test)]
mod tests;
