//! The compiled list of rules: the words of all rules in two automata, and each regular expression by itself. Both take
//! time linear in the text, for any rules and any text.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};
use regex::{Regex, RegexBuilder};

use crate::config::limits;
use crate::fold;
use crate::seam::{FoundPhrase, SplitPhrases};
use crate::{Action, Judge, RuleConfig, RuleError, RuleKind, RulesError, Verdict};

/// A compiled list of rules. The first matching rule that blocks decides. If no rule blocks, the first matching rule
/// that flags decides.
#[derive(Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
    words: Words,
    /// Words of other scripts, with their look-alike letters replaced by Latin ones.
    masked: Words,
    /// Those of `words` that may be split over texts.
    phrases: SplitPhrases,
    /// Those of `masked`.
    masked_phrases: SplitPhrases,
    /// Number of characters of the longest word that contains a space, or 0 if no word does.
    longest_phrase_chars: usize,
    /// Regular expressions, each with the index of its rule in `rules`.
    regexes: Vec<(usize, Regex)>,
}

/// Words compiled into one automaton.
#[derive(Debug, Default)]
struct Words {
    automaton: Option<AhoCorasick>,
    /// For each word of the automaton, the index of its rule.
    rules: Vec<usize>,
}

impl Words {
    fn compile(words: Vec<(usize, String)>) -> Result<Self, String> {
        let (rules, words): (Vec<_>, Vec<_>) = words.into_iter().unzip();
        Ok(Self { automaton: compile_words(&words)?, rules })
    }

    fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

#[derive(Debug)]
struct Rule {
    name: Arc<str>,
    action: Action,
    message: Arc<str>,
    whole_word: bool,
}

impl Rules {
    /// Compiles `configs`.
    ///
    /// # Errors
    /// All errors of all rules.
    pub fn compile(configs: &[RuleConfig]) -> Result<Self, RulesError> {
        let errors = check(configs);
        if !errors.is_empty() {
            return Err(RulesError(errors));
        }
        let mut errors = Vec::new();
        let (mut words, mut masked, mut regexes) = (Vec::new(), Vec::new(), Vec::new());
        for (at, config) in configs.iter().enumerate() {
            for word in &config.words {
                words.push((at, fold::for_words(word).trim().to_owned()));
                masked.extend(masked_forms(word).into_iter().map(|form| (at, form)));
            }
            match config.pattern.as_deref().map(compile_regex) {
                None => {}
                Some(Ok(regex)) => regexes.push((at, regex)),
                Some(Err(why)) => errors.push(error(config, "pattern", why)),
            }
        }
        let phrases =
            words.iter().filter(|(_, word)| word.contains(' ')).map(|(_, word)| word.chars().count());
        let longest_phrase_chars = phrases.max().unwrap_or(0);
        let mut compiled = |words: Vec<(usize, String)>| {
            let phrases = SplitPhrases::compile(&words);
            phrases.and_then(|phrases| Ok((Words::compile(words)?, phrases))).unwrap_or_else(|why| {
                errors.push(RuleError { rule: "all of kind words".to_owned(), field: "words", why });
                Default::default()
            })
        };
        let ((words, phrases), (masked, masked_phrases)) = (compiled(words), compiled(masked));
        if !errors.is_empty() {
            return Err(RulesError(errors));
        }
        let rules = configs.iter().map(Rule::of).collect();
        Ok(Self { rules, words, masked, phrases, masked_phrases, longest_phrase_chars, regexes })
    }

    /// Returns `true` if there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Number of rules.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    fn verdict(&self, matched: &Matched) -> Verdict {
        let rule = |at: Option<usize>| at.and_then(|at| self.rules.get(at));
        if let Some(rule) = rule(matched.block) {
            return Verdict::Blocked { rule: Arc::clone(&rule.name), message: Arc::clone(&rule.message) };
        }
        rule(matched.flag).map_or(Verdict::Clean, |rule| Verdict::Flagged { rule: Arc::clone(&rule.name) })
    }

    /// Adds the rules whose words occur in `text`.
    fn match_words(&self, text: &str, matched: &mut Matched) {
        if self.words.is_empty() {
            return;
        }
        let (plain, unmasked) = (fold::for_words(text), fold::unmasked_for_words(text));
        self.match_in(&self.words, &plain, matched);
        if let Some(unmasked) = &unmasked {
            self.match_in(&self.words, unmasked, matched);
        }
        if !text.is_ascii() {
            // A caller may have replaced all Latin-looking letters of a word in another script.
            self.match_in(&self.masked, unmasked.as_deref().unwrap_or(&plain), matched);
        }
    }

    /// Adds the rules whose words occur in the normalised `text`.
    fn match_in(&self, words: &Words, text: &str, matched: &mut Matched) {
        let Some(automaton) = &words.automaton else { return };
        for found in automaton.find_overlapping_iter(text) {
            let Some(&at) = words.rules.get(found.pattern().as_usize()) else { continue };
            let Some(rule) = self.rules.get(at) else { continue };
            if matched.would_change(at, rule.action)
                && (!rule.whole_word || stands_alone(text, found.start(), found.end()))
            {
                matched.add(at, rule.action);
            }
        }
    }

    /// Adds the rule of a phrase that is split over texts.
    fn match_split(&self, found: &FoundPhrase, matched: &mut Matched) {
        let Some(rule) = self.rules.get(found.rule) else { return };
        if matched.would_change(found.rule, rule.action) && (!rule.whole_word || found.is_alone) {
            matched.add(found.rule, rule.action);
        }
    }

    /// Adds the rules whose regular expressions match `text` or one of its two normalised forms.
    fn match_regexes(&self, text: &str, matched: &mut Matched) {
        if self.regexes.is_empty() {
            return;
        }
        let (plain, unmasked) = (fold::for_patterns(text), fold::unmasked_for_patterns(text));
        for (at, regex) in &self.regexes {
            let Some(rule) = self.rules.get(*at) else { continue };
            let writings = [Some(text), plain.as_deref(), unmasked.as_deref()];
            let matches = || writings.into_iter().flatten().any(|text| regex.is_match(text));
            if matched.would_change(*at, rule.action) && matches() {
                matched.add(*at, rule.action);
            }
        }
    }
}

impl Judge for Rules {
    fn judge(&self, text: &str) -> Verdict {
        let mut matched = Matched::default();
        self.match_words(text, &mut matched);
        self.match_regexes(text, &mut matched);
        self.verdict(&matched)
    }

    fn longest_phrase_chars(&self) -> usize {
        self.longest_phrase_chars
    }

    fn judge_seam(&self, before: &[String], after: &str) -> Verdict {
        let mut matched = Matched::default();
        let mut add = |found: FoundPhrase| self.match_split(&found, &mut matched);
        let plain: Vec<Cow<'_, str>> = before.iter().map(|text| fold::for_words(text)).collect();
        self.phrases.find(&plain, &fold::for_words(after), &mut add);
        if !after.is_ascii() || !before.iter().all(|text| text.is_ascii()) {
            let unmasked =
                |text| fold::unmasked_for_words(text).map_or_else(|| fold::for_words(text), Cow::Owned);
            let before: Vec<Cow<'_, str>> = before.iter().map(|text| unmasked(text)).collect();
            let after = unmasked(after);
            self.phrases.find(&before, &after, &mut add);
            self.masked_phrases.find(&before, &after, &mut add);
        }
        self.verdict(&matched)
    }
}

/// The first matching rule of each action, by its index in the list.
#[derive(Debug, Default)]
struct Matched {
    block: Option<usize>,
    flag: Option<usize>,
}

impl Matched {
    /// Returns `true` if a match of the rule at `at` could change the verdict.
    fn would_change(&self, at: usize, action: Action) -> bool {
        let earlier = |known: Option<usize>| known.is_none_or(|known| at < known);
        match action {
            Action::Block => earlier(self.block),
            Action::Flag => self.block.is_none() && earlier(self.flag),
        }
    }

    fn add(&mut self, at: usize, action: Action) {
        match action {
            Action::Block => self.block = Some(at),
            Action::Flag => self.flag = Some(at),
        }
    }
}

impl Rule {
    fn of(config: &RuleConfig) -> Self {
        let default = || format!("The request matches the content rule `{}`.", config.name);
        Self {
            name: config.name.as_str().into(),
            action: config.action,
            message: config.message.clone().unwrap_or_else(default).into(),
            whole_word: config.whole_word,
        }
    }
}

/// Finds all errors that need no compilation.
fn check(configs: &[RuleConfig]) -> Vec<RuleError> {
    let mut errors = Vec::new();
    if configs.len() > limits::MAX_RULES {
        let why = format!("has {} entries; at most {} are allowed", configs.len(), limits::MAX_RULES);
        errors.push(RuleError { rule: "the list".to_owned(), field: "rules", why });
    }
    let mut names = BTreeSet::new();
    for (at, config) in configs.iter().enumerate() {
        let name = &config.name;
        let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if name.is_empty() || name.len() > limits::MAX_NAME_BYTES || !name.bytes().all(fits) {
            let why = format!("must be 1 to {} letters, digits, `.`, `_` or `-`", limits::MAX_NAME_BYTES);
            errors.push(RuleError { rule: format!("number {}", at + 1), field: "name", why });
        }
        if !names.insert(name) {
            errors.push(error(config, "name", "is used twice".to_owned()));
        }
        if config.message.as_ref().is_some_and(|m| m.is_empty() || m.len() > limits::MAX_MESSAGE_BYTES) {
            let why = format!("must have 1 to {} bytes", limits::MAX_MESSAGE_BYTES);
            errors.push(error(config, "message", why));
        }
        match config.kind {
            RuleKind::Words => check_words(config, &mut errors),
            RuleKind::Regex => check_pattern(config, &mut errors),
        }
    }
    let bytes: usize = configs.iter().flat_map(|config| &config.words).map(String::len).sum();
    if bytes > limits::MAX_ALL_WORDS_BYTES {
        let why = format!("have {bytes} bytes; at most {} are allowed", limits::MAX_ALL_WORDS_BYTES);
        errors.push(RuleError { rule: "all of kind words".to_owned(), field: "words", why });
    }
    errors
}

fn check_words(config: &RuleConfig, errors: &mut Vec<RuleError>) {
    if config.words.is_empty() || config.words.len() > limits::MAX_WORDS {
        let why = format!("must hold 1 to {} words, and holds {}", limits::MAX_WORDS, config.words.len());
        errors.push(error(config, "words", why));
    }
    let blank = |word: &String| fold::for_words(word).trim().is_empty();
    if config.words.iter().any(|word| blank(word) || word.len() > limits::MAX_WORD_BYTES) {
        let why = format!("holds a word that is blank or longer than {} bytes", limits::MAX_WORD_BYTES);
        errors.push(error(config, "words", why));
    }
    if config.pattern.is_some() {
        errors.push(error(config, "pattern", "belongs to rules of kind `regex`".to_owned()));
    }
}

fn check_pattern(config: &RuleConfig, errors: &mut Vec<RuleError>) {
    match config.pattern.as_deref() {
        None | Some("") => errors.push(error(config, "pattern", "is missing".to_owned())),
        Some(pattern) if pattern.len() > limits::MAX_REGEX_BYTES => {
            let why = format!("has {} bytes; at most {} are allowed", pattern.len(), limits::MAX_REGEX_BYTES);
            errors.push(error(config, "pattern", why));
        }
        Some(_) => {}
    }
    if !config.words.is_empty() {
        errors.push(error(config, "words", "belongs to rules of kind `words`".to_owned()));
    }
    if config.whole_word {
        let why = "belongs to rules of kind `words`; write `\\b` in the pattern".to_owned();
        errors.push(error(config, "whole_word", why));
    }
}

fn error(config: &RuleConfig, field: &'static str, why: String) -> RuleError {
    RuleError { rule: config.name.clone(), field, why }
}

fn compile_regex(pattern: &str) -> Result<Regex, String> {
    RegexBuilder::new(pattern)
        .size_limit(limits::MAX_REGEX_PROGRAM_BYTES)
        .dfa_size_limit(limits::MAX_REGEX_CACHE_BYTES)
        .nest_limit(limits::MAX_REGEX_NESTING)
        .build()
        .map_err(|error| match error {
            regex::Error::CompiledTooBig(limit) => format!("compiles to more than {limit} bytes"),
            other => format!("does not compile: {other}"),
        })
}

/// The forms of a word in another script after its look-alike letters are replaced by Latin ones, in either case. Omits
/// forms that become entirely Latin, since English texts would match them.
fn masked_forms(word: &str) -> BTreeSet<String> {
    let forms = [word.to_owned(), word.to_lowercase(), word.to_uppercase()];
    let forms = forms.iter().filter_map(|form| fold::unmasked_for_words(form));
    forms.map(|form| form.trim().to_owned()).filter(|form| !form.is_ascii()).collect()
}

fn compile_words(words: &[String]) -> Result<Option<AhoCorasick>, String> {
    if words.is_empty() {
        return Ok(None);
    }
    let automaton = AhoCorasick::builder().match_kind(MatchKind::Standard).build(words);
    automaton.map(Some).map_err(|error| format!("do not compile: {error}"))
}

/// Returns `true` if no letter or digit touches `text[start..end]`. An underscore does not count, since it emphasises
/// words as well as joining them.
fn stands_alone(text: &str, start: usize, end: usize) -> bool {
    let part_of_word = char::is_alphanumeric;
    let before = text.get(..start).and_then(|before| before.chars().next_back());
    let after = text.get(end..).and_then(|after| after.chars().next());
    !before.is_some_and(part_of_word) && !after.is_some_and(part_of_word)
}

#[cfg(test)]
mod tests;
