//! The rules list, compiled: all words of all rules in one automaton, each regular expression by itself.
//! Both take time linear in the text, whatever the rules and the text are.

use std::collections::BTreeSet;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};
use regex::{Regex, RegexBuilder};

use crate::config::limits;
use crate::fold;
use crate::{Action, Judge, RuleConfig, RuleError, RuleKind, RulesError, Verdict};

/// A compiled list of rules. The first blocking rule that matches blocks; otherwise the first flagging one
/// flags.
#[derive(Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
    words: Option<AhoCorasick>,
    /// For each word of the automaton, its rule's place in `rules`.
    word_rules: Vec<usize>,
    /// Regular expressions, each with its rule's place in `rules`.
    regexes: Vec<(usize, Regex)>,
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
    /// Everything that is wrong with every rule.
    pub fn compile(configs: &[RuleConfig]) -> Result<Self, RulesError> {
        let errors = check(configs);
        if !errors.is_empty() {
            return Err(RulesError(errors));
        }
        let mut errors = Vec::new();
        let mut words = Vec::new();
        let mut word_rules = Vec::new();
        let mut regexes = Vec::new();
        for (at, config) in configs.iter().enumerate() {
            for word in &config.words {
                words.push(fold::for_words(word).trim().to_owned());
                word_rules.push(at);
            }
            match config.pattern.as_deref().map(compile_regex) {
                None => {}
                Some(Ok(regex)) => regexes.push((at, regex)),
                Some(Err(why)) => errors.push(error(config, "pattern", why)),
            }
        }
        let words = match compile_words(&words) {
            Ok(words) => words,
            Err(why) => {
                errors.push(RuleError { rule: "all of kind words".to_owned(), field: "words", why });
                None
            }
        };
        if !errors.is_empty() {
            return Err(RulesError(errors));
        }
        Ok(Self { rules: configs.iter().map(Rule::of).collect(), words, word_rules, regexes })
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Number of rules.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Adds the rules whose words are in `text`.
    fn match_words(&self, text: &str, matched: &mut Matched) {
        let Some(words) = &self.words else { return };
        let text = fold::for_words(text);
        for found in words.find_overlapping_iter(text.as_ref()) {
            let Some(&at) = self.word_rules.get(found.pattern().as_usize()) else { continue };
            let Some(rule) = self.rules.get(at) else { continue };
            if matched.would_change(at, rule.action)
                && (!rule.whole_word || stands_alone(&text, found.start(), found.end()))
            {
                matched.add(at, rule.action);
            }
        }
    }

    /// Adds the rules whose regular expressions match `text`, as it was written or in the one writing for what reads alike.
    fn match_regexes(&self, text: &str, matched: &mut Matched) {
        if self.regexes.is_empty() {
            return;
        }
        let plain = fold::for_patterns(text);
        for (at, regex) in &self.regexes {
            let Some(rule) = self.rules.get(*at) else { continue };
            let matches =
                || [Some(text), plain.as_deref()].into_iter().flatten().any(|text| regex.is_match(text));
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
        let rule = |at: Option<usize>| at.and_then(|at| self.rules.get(at));
        if let Some(rule) = rule(matched.block) {
            return Verdict::Blocked { rule: Arc::clone(&rule.name), message: Arc::clone(&rule.message) };
        }
        rule(matched.flag).map_or(Verdict::Clean, |rule| Verdict::Flagged { rule: Arc::clone(&rule.name) })
    }
}

/// The first matching rule of each action, by its place in the list.
#[derive(Debug, Default)]
struct Matched {
    block: Option<usize>,
    flag: Option<usize>,
}

impl Matched {
    /// Whether a match of the rule at `at` could change the verdict.
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

/// Everything that can be told to be wrong without compiling.
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

fn compile_words(words: &[String]) -> Result<Option<AhoCorasick>, String> {
    if words.is_empty() {
        return Ok(None);
    }
    let automaton = AhoCorasick::builder().match_kind(MatchKind::Standard).build(words);
    automaton.map(Some).map_err(|error| format!("do not compile: {error}"))
}

/// Whether no letter or digit touches `text[start..end]`. An underscore is none: it emphasises words as well as joining them.
fn stands_alone(text: &str, start: usize, end: usize) -> bool {
    let part_of_word = char::is_alphanumeric;
    let before = text.get(..start).and_then(|before| before.chars().next_back());
    let after = text.get(end..).and_then(|after| after.chars().next());
    !before.is_some_and(part_of_word) && !after.is_some_and(part_of_word)
}

#[cfg(test)]
mod tests;
