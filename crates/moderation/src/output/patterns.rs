//! Regular expressions over a text that arrives in pieces: which of its starts cannot match, which match, and which may
//! still match. Must not know how the text was folded.
//!
//! From each start that a pattern may have, an automaton runs until no match can follow. The automaton ignores
//! assertions such as `\b`, so it stops no earlier than the pattern would. Then the pattern itself decides, with the
//! text around the match. The decisions on a start depend on the text alone, never on how it was split.

use std::panic::{RefUnwindSafe, UnwindSafe};

use regex::Regex;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson;
use regex_automata::util::pool::Pool;
use regex_automata::{Anchored, Input, MatchKind};
use regex_syntax::hir::{Class, Hir, HirKind, Look};

use super::span::MatchSpan;
use crate::compile::compile_regex;
use crate::config::limits;
use crate::pii::{PiiEntity, PiiPattern, ValueCheck};

/// Bytes of the automaton's states that a thread keeps for one pattern.
const STATES_BYTES: usize = 128 * 1024;
/// The most bytes of a character.
const CHAR_BYTES: usize = 4;

type MakeCache = Box<dyn Fn() -> Cache + Send + Sync + UnwindSafe + RefUnwindSafe>;

/// A pattern of a rule.
pub(super) struct OutputPattern {
    rule: usize,
    entity: Option<PiiEntity>,
    regex: Regex,
    /// The pattern without its assertions.
    open: DFA,
    caches: Pool<Cache, MakeCache>,
    /// The bytes that a match may start with.
    first: [bool; 256],
    /// The longest match in characters, if the pattern itself has no bound.
    window: Option<usize>,
    /// The pattern has assertions, so only `regex` knows its matches.
    has_looks: bool,
    /// A match may contain characters that are not ASCII.
    sees_beyond_ascii: bool,
    /// A match starts where a word starts or ends.
    starts_at_boundary: bool,
    /// Checks a match.
    check: Option<ValueCheck>,
    /// Whether the rule withholds its matches. Other rules only note them.
    acts: bool,
    /// Whether the first match ends the text.
    blocks: bool,
}

impl std::fmt::Debug for OutputPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutputPattern").field("rule", &self.rule).field("regex", &self.regex).finish()
    }
}

/// What a pattern's rule does.
#[derive(Debug, Clone, Copy)]
pub(super) struct PatternUse {
    /// The index of the rule.
    pub(super) rule: usize,
    /// Whether the rule withholds its matches.
    pub(super) acts: bool,
    /// Whether the first match ends the text.
    pub(super) blocks: bool,
}

/// The text that a pattern looks at.
#[derive(Clone, Copy)]
pub(super) struct ScannedText<'t> {
    /// The part that is kept.
    pub(super) text: &'t str,
    /// Bytes of the text before it.
    pub(super) base: usize,
    /// Nothing follows.
    pub(super) is_whole: bool,
}

/// How far a pattern has come in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScanState {
    /// No match starts before this offset but those that were found.
    At(usize),
    /// A match of a rule that blocks was found, so the rest does not matter.
    Blocked,
}

/// How the automaton ended from one start.
enum OpenRun {
    /// No match is longer. `matched` is the end of the longest one, and `until` is the last offset that was seen.
    Closed { matched: Option<usize>, until: usize },
    /// A match may still follow.
    Open { matched: Option<usize> },
}

impl OutputPattern {
    /// Compiles the pattern of a rule.
    ///
    /// # Errors
    /// The field that is at fault, and why.
    pub(super) fn compile(
        used: PatternUse,
        pattern: &str,
        window: Option<u32>,
    ) -> Result<Self, (&'static str, String)> {
        let regex = compile_regex(pattern).map_err(|why| ("pattern", why))?;
        let hir = parse(pattern).map_err(|why| ("pattern", why))?;
        if hir.properties().minimum_len() == Some(0) {
            let why = "matches the empty text; a pattern for answers must match at least one character";
            return Err(("pattern", why.to_owned()));
        }
        let most = usize::try_from(limits::MAX_WINDOW_CHARS).unwrap_or(usize::MAX);
        let is_bounded =
            hir.properties().maximum_len().is_some_and(|bytes| bytes <= most.saturating_mul(CHAR_BYTES));
        if window.is_none() && !is_bounded {
            let why = format!(
                "is missing: the pattern can match texts of any length, and an answer is held back until a match is \
                 decided. Set it to the longest match to find, 1 to {most} characters"
            );
            return Err(("window", why));
        }
        let window = window.and_then(|window| usize::try_from(window).ok());
        Self::build(used, regex, &hir, window).map_err(|why| ("pattern", why))
    }

    /// Compiles a recogniser.
    ///
    /// # Errors
    /// The pattern does not compile, which a test excludes.
    pub(super) fn recogniser(used: PatternUse, pii: &PiiPattern) -> Result<Self, String> {
        let regex = compile_regex(pii.pattern)?;
        let hir = parse(pii.pattern)?;
        let mut built = Self::build(used, regex, &hir, Some(pii.window))?;
        built.entity = Some(pii.entity);
        built.check = pii.check;
        Ok(built)
    }

    fn build(used: PatternUse, regex: Regex, hir: &Hir, window: Option<usize>) -> Result<Self, String> {
        let too_big = |error: &dyn std::fmt::Display| format!("does not compile: {error}");
        let config = thompson::Config::new().nfa_size_limit(Some(limits::MAX_REGEX_PROGRAM_BYTES));
        let nfa = thompson::Compiler::new().configure(config).build_from_hir(&without_looks(hir));
        let config = DFA::config()
            .match_kind(MatchKind::LeftmostFirst)
            .cache_capacity(STATES_BYTES)
            .skip_cache_capacity_check(true);
        let nfa = nfa.map_err(|error| too_big(&error))?;
        let open = DFA::builder().configure(config).build_from_nfa(nfa).map_err(|error| too_big(&error))?;
        let first = first_bytes(&open);
        let made = open.clone();
        let caches: Pool<Cache, MakeCache> = Pool::new(Box::new(move || made.create_cache()));
        let looks = hir.properties().look_set();
        let prefix = hir.properties().look_set_prefix();
        Ok(Self {
            rule: used.rule,
            entity: None,
            regex,
            open,
            caches,
            first,
            window,
            has_looks: !looks.is_empty(),
            sees_beyond_ascii: !is_ascii(hir),
            starts_at_boundary: prefix.contains(Look::WordUnicode) || prefix.contains(Look::WordAscii),
            check: None,
            acts: used.acts,
            blocks: used.blocks,
        })
    }

    /// Whether the rule withholds its matches.
    pub(super) const fn acts(&self) -> bool {
        self.acts
    }

    /// Whether a match may contain characters that are not ASCII.
    pub(super) const fn sees_beyond_ascii(&self) -> bool {
        self.sees_beyond_ascii
    }

    /// Whether a match may start with this byte.
    pub(super) fn may_start_with(&self, byte: u8) -> bool {
        self.first.get(usize::from(byte)).copied().unwrap_or(true)
    }

    /// Decides all starts that the text decides, and adds the matches to `found`. Returns the first offset that may
    /// still belong to a match. `None` if no offset may.
    pub(super) fn scan(
        &self,
        scanned: ScannedText<'_>,
        state: &mut ScanState,
        found: &mut Vec<MatchSpan>,
    ) -> Option<usize> {
        let ScanState::At(at) = *state else { return None };
        let (bytes, base) = (scanned.text.as_bytes(), scanned.base);
        let mut from = at.saturating_sub(base);
        while let Some(start) = self.next_start(bytes, from) {
            match self.run(bytes, start, scanned.is_whole) {
                OpenRun::Open { matched } => {
                    if let (true, false, None, Some(end)) = (self.blocks, self.has_looks, self.check, matched)
                    {
                        found.push(self.span(base, start, end));
                        *state = ScanState::Blocked;
                        return None;
                    }
                    *state = ScanState::At(base.saturating_add(start));
                    return Some(base.saturating_add(start));
                }
                OpenRun::Closed { matched: None, .. } => from = start.saturating_add(1),
                OpenRun::Closed { matched: Some(end), until } => {
                    match self.decide(scanned.text, start, end, until) {
                        Some(end) => {
                            found.push(self.span(base, start, end));
                            if self.blocks {
                                *state = ScanState::Blocked;
                                return None;
                            }
                            from = end;
                        }
                        None => from = start.saturating_add(1),
                    }
                }
            }
        }
        *state = ScanState::At(base.saturating_add(bytes.len()));
        None
    }

    fn span(&self, base: usize, start: usize, end: usize) -> MatchSpan {
        let offset = |at: usize| base.saturating_add(at);
        MatchSpan { start: offset(start), end: offset(end), rule: self.rule, entity: self.entity }
    }

    /// The next byte that a match may start with.
    fn next_start(&self, bytes: &[u8], from: usize) -> Option<usize> {
        let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let mut before = from.checked_sub(1).and_then(|at| bytes.get(at)).copied();
        for (at, &byte) in bytes.iter().enumerate().skip(from) {
            if self.may_start_with(byte) {
                let within = self.starts_at_boundary && word(byte) && before.is_some_and(word);
                if !within {
                    return Some(at);
                }
            }
            before = Some(byte);
        }
        None
    }

    /// Runs the automaton from `start`, until no match can follow or the text or the window ends.
    fn run(&self, bytes: &[u8], start: usize, is_whole: bool) -> OpenRun {
        let mut cache = self.caches.get();
        let input = Input::new(bytes).anchored(Anchored::Yes).range(start..);
        let Ok(mut state) = self.open.start_state_forward(&mut cache, &input) else {
            return OpenRun::Open { matched: None };
        };
        let (mut matched, mut chars) = (None, 0_usize);
        for (at, &byte) in bytes.iter().enumerate().skip(start) {
            if !is_continuation(byte) {
                if self.window.is_some_and(|window| chars >= window) {
                    return self.at_end(&mut cache, state, matched, at);
                }
                chars = chars.saturating_add(1);
            }
            match self.open.next_state(&mut cache, state, byte) {
                Ok(next) => state = next,
                Err(_) => return OpenRun::Open { matched },
            }
            if state.is_match() {
                matched = Some(at);
            }
            if state.is_dead() || state.is_quit() {
                return OpenRun::Closed { matched, until: char_end(bytes, at) };
            }
        }
        match self.at_end(&mut cache, state, matched, bytes.len()) {
            OpenRun::Closed { matched, .. } if !is_whole => OpenRun::Open { matched },
            end => end,
        }
    }

    fn at_end(
        &self,
        cache: &mut Cache,
        state: regex_automata::hybrid::LazyStateID,
        matched: Option<usize>,
        end: usize,
    ) -> OpenRun {
        let is_match = self.open.next_eoi_state(cache, state).is_ok_and(|state| state.is_match());
        OpenRun::Closed { matched: if is_match { Some(end) } else { matched }, until: end }
    }

    /// The end of the match that starts at `start`. `None` if there is none.
    fn decide(&self, text: &str, start: usize, matched: usize, until: usize) -> Option<usize> {
        let end = if self.has_looks {
            let seen = text.get(..until)?;
            let found = self.regex.find_at(seen, start).filter(|found| found.start() == start)?;
            found.end()
        } else {
            matched
        };
        let matched = text.get(start..end).filter(|matched| !matched.is_empty())?;
        match self.check {
            None => Some(end),
            Some(check) => check(matched).map(|bytes| start.saturating_add(bytes)),
        }
    }
}

const fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

/// The end of the character that the byte at `at` belongs to.
fn char_end(bytes: &[u8], at: usize) -> usize {
    let rest = bytes.iter().skip(at.saturating_add(1)).take_while(|byte| is_continuation(**byte)).count();
    at.saturating_add(1).saturating_add(rest)
}

fn parse(pattern: &str) -> Result<Hir, String> {
    let mut parser = regex_syntax::ParserBuilder::new().nest_limit(limits::MAX_REGEX_NESTING).build();
    parser.parse(pattern).map_err(|error| format!("does not compile: {error}"))
}

/// The pattern without assertions and groups. It matches everything that the pattern matches.
fn without_looks(hir: &Hir) -> Hir {
    match hir.kind() {
        HirKind::Look(_) => Hir::empty(),
        HirKind::Capture(capture) => without_looks(&capture.sub),
        HirKind::Repetition(repeated) => {
            let mut repeated = repeated.clone();
            repeated.sub = Box::new(without_looks(&repeated.sub));
            Hir::repetition(repeated)
        }
        HirKind::Concat(parts) => Hir::concat(parts.iter().map(without_looks).collect()),
        HirKind::Alternation(parts) => Hir::alternation(parts.iter().map(without_looks).collect()),
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) => hir.clone(),
    }
}

/// Whether all characters that the pattern can match are ASCII.
fn is_ascii(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Literal(literal) => literal.0.is_ascii(),
        HirKind::Class(Class::Unicode(class)) => class.is_ascii(),
        HirKind::Class(Class::Bytes(class)) => class.is_ascii(),
        HirKind::Capture(capture) => is_ascii(&capture.sub),
        HirKind::Repetition(repeated) => is_ascii(&repeated.sub),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().all(is_ascii),
        HirKind::Empty | HirKind::Look(_) => true,
    }
}

/// The bytes that do not end the automaton at once.
fn first_bytes(open: &DFA) -> [bool; 256] {
    let mut cache = open.create_cache();
    let input = Input::new("").anchored(Anchored::Yes);
    std::array::from_fn(|byte| {
        let (Ok(byte), Ok(start)) = (u8::try_from(byte), open.start_state_forward(&mut cache, &input)) else {
            return true;
        };
        open.next_state(&mut cache, start, byte).map_or(true, |state| !state.is_dead())
    })
}
