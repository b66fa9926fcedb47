//! The compiled list of rules: the words of all rules in two automata, and each regular expression by itself. Both take
//! time linear in the text, for any rules and any text.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};
use headrace_domain::ProjectId;
use regex::Regex;

use crate::classifier_rules::ClassifierRules;
use crate::compile::{compile_regex, masked_forms};
use crate::config::{JudgeMode, limits};
use crate::error::error;
use crate::fold;
use crate::judge_rules::{JudgeRule, JudgesByName};
use crate::output::OutputRules;
use crate::pii::{self, ValueCheck};
use crate::restore::{InputRedactions, check_input_redaction};
use crate::seam::{FoundPhrase, SplitPhrases};
use crate::{Action, Judge, RuleConfig, RuleDescription, RuleError, RuleKind, RulesError, Verdict};

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
    /// Recognisers, each with the index of its rule in `rules`.
    recognisers: Vec<(usize, Regex, Option<ValueCheck>)>,
    /// Rules that use the classifier.
    classifier: ClassifierRules,
    /// Rules that ask judges on other servers.
    judges: Vec<JudgeRule>,
    /// Some rule checks input.
    judges_input: bool,
    /// The rules that redact input.
    redactions: Option<Arc<InputRedactions>>,
    /// The rules on what models write.
    output: Option<Arc<OutputRules>>,
    /// The rules for calls of the projects that rules name.
    of_projects: BTreeMap<ProjectId, Arc<Self>>,
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
    description: RuleDescription,
    message: Arc<str>,
    whole_word: bool,
}

impl Rules {
    /// Compiles `configs`.
    ///
    /// # Errors
    /// All errors of all rules.
    pub fn compile(configs: &[RuleConfig]) -> Result<Self, RulesError> {
        Self::compile_with(configs, &JudgesByName::new())
    }

    /// Compiles `configs`, whose rules of kind `judge` ask `judges`.
    ///
    /// # Errors
    /// All errors of all rules.
    pub fn compile_with(configs: &[RuleConfig], judges: &JudgesByName) -> Result<Self, RulesError> {
        let mut errors = check(configs);
        errors.extend(configs.iter().filter_map(|config| unknown_judge(config, judges)));
        if !errors.is_empty() {
            return Err(RulesError(errors));
        }
        // Every rule, so that each error is reported once and a rule of a project does not hide one.
        let mut rules = Self::compile_for(configs, judges)?;
        let projects: BTreeSet<&ProjectId> = configs.iter().flat_map(|config| &config.projects).collect();
        if projects.is_empty() {
            return Ok(rules);
        }
        let of = |project: Option<&ProjectId>| {
            let configs: Vec<RuleConfig> =
                configs.iter().filter(|config| config.is_for(project)).cloned().collect();
            Self::compile_for(&configs, judges)
        };
        rules = of(None)?;
        for project in projects {
            rules.of_projects.insert(project.clone(), Arc::new(of(Some(project))?));
        }
        Ok(rules)
    }

    fn compile_for(configs: &[RuleConfig], judges: &JudgesByName) -> Result<Self, RulesError> {
        let mut errors = Vec::new();
        let output = OutputRules::compile(configs, judges, &mut errors).map(Arc::new);
        let (mut words, mut masked, mut regexes) = (Vec::new(), Vec::new(), Vec::new());
        let mut recognisers = Vec::new();
        for (at, config) in configs.iter().enumerate().filter(|(_, config)| config.applies_to.input) {
            if config.kind == RuleKind::Pii {
                for pii in pii::patterns_of(&config.entities) {
                    match compile_regex(pii.pattern) {
                        Ok(regex) => recognisers.push((at, regex, pii.check)),
                        Err(why) => errors.push(error(config, "entities", why)),
                    }
                }
            }
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
        let redactions = InputRedactions::compile(configs, &mut errors).map(Arc::new);
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
        let of_input = configs.iter().enumerate().filter(|(_, config)| config.applies_to.input);
        let classifier = ClassifierRules::of(of_input.clone());
        let judges = JudgeRule::of(of_input, judges);
        let judges_input = configs.iter().any(|config| config.applies_to.input);
        Ok(Self {
            rules,
            words,
            masked,
            phrases,
            masked_phrases,
            longest_phrase_chars,
            regexes,
            recognisers,
            classifier,
            judges,
            judges_input,
            redactions,
            output,
            of_projects: BTreeMap::new(),
        })
    }

    /// Returns `true` if there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.of_projects.is_empty()
    }

    /// Number of rules.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    fn verdict(&self, matched: &Matched) -> Verdict {
        let rule = |at: Option<usize>| at.and_then(|at| self.rules.get(at));
        if let Some(rule) = rule(matched.block) {
            return Verdict::Blocked {
                rule: Arc::clone(&rule.description.name),
                message: Arc::clone(&rule.message),
            };
        }
        rule(matched.flag)
            .map_or(Verdict::Clean, |rule| Verdict::Flagged { rule: Arc::clone(&rule.description.name) })
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
            if matched.would_change(at, rule.description.action)
                && (!rule.whole_word || stands_alone(text, found.start(), found.end()))
            {
                matched.add(at, rule.description.action);
            }
        }
    }

    /// Adds the rule of a phrase that is split over texts.
    fn match_split(&self, found: &FoundPhrase, matched: &mut Matched) {
        let Some(rule) = self.rules.get(found.rule) else { return };
        if matched.would_change(found.rule, rule.description.action) && (!rule.whole_word || found.is_alone) {
            matched.add(found.rule, rule.description.action);
        }
    }

    /// Adds the rules whose regular expressions or recognisers match `text` or one of its two normalised forms.
    fn match_regexes(&self, text: &str, matched: &mut Matched) {
        if self.regexes.is_empty() && self.recognisers.is_empty() {
            return;
        }
        let (plain, unmasked) = (fold::for_patterns(text), fold::unmasked_for_patterns(text));
        for (at, regex) in &self.regexes {
            let Some(rule) = self.rules.get(*at) else { continue };
            let writings = [Some(text), plain.as_deref(), unmasked.as_deref()];
            let matches = || writings.into_iter().flatten().any(|text| regex.is_match(text));
            if matched.would_change(*at, rule.description.action) && matches() {
                matched.add(*at, rule.description.action);
            }
        }
        for (at, regex, check) in &self.recognisers {
            let Some(rule) = self.rules.get(*at) else { continue };
            let writings = [Some(text), plain.as_deref(), unmasked.as_deref()];
            let is_value =
                |found: regex::Match<'_>| check.is_none_or(|check| check(found.as_str()).is_some());
            let matches = || writings.into_iter().flatten().any(|text| regex.find_iter(text).any(is_value));
            if matched.would_change(*at, rule.description.action) && matches() {
                matched.add(*at, rule.description.action);
            }
        }
    }
}

impl Judge for Rules {
    fn of_project(&self, project: Option<&ProjectId>) -> Option<Arc<dyn Judge>> {
        let rules = self.of_projects.get(project?)?;
        Some(Arc::clone(rules) as Arc<dyn Judge>)
    }

    fn judges_input(&self) -> bool {
        self.judges_input
    }

    fn input_judges(&self) -> &[JudgeRule] {
        &self.judges
    }

    fn input_redactions(&self) -> Option<&Arc<InputRedactions>> {
        self.redactions.as_ref()
    }

    fn message(&self, rule: usize) -> Option<&Arc<str>> {
        self.rules.get(rule).map(|rule| &rule.message)
    }

    fn rule_named(&self, name: &str) -> Option<&RuleDescription> {
        self.rules.iter().map(|rule| &rule.description).find(|rule| &*rule.name == name)
    }

    fn output(&self) -> Option<&Arc<OutputRules>> {
        self.output.as_ref()
    }

    fn judge(&self, text: &str) -> Verdict {
        let mut matched = Matched::default();
        self.match_words(text, &mut matched);
        self.match_regexes(text, &mut matched);
        self.classifier.judge_all(text, &mut |at| {
            let Some(rule) = self.rules.get(at) else { return };
            if matched.would_change(at, rule.description.action) {
                matched.add(at, rule.description.action);
            }
        });
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
            Action::Flag | Action::Redact => self.block.is_none() && earlier(self.flag),
        }
    }

    fn add(&mut self, at: usize, action: Action) {
        match action {
            Action::Block => self.block = Some(at),
            Action::Flag | Action::Redact => self.flag = Some(at),
        }
    }
}

impl Rule {
    fn of(config: &RuleConfig) -> Self {
        let default = || format!("The request matches the content rule `{}`.", config.name);
        Self {
            description: RuleDescription::of(config),
            message: config.message.clone().unwrap_or_else(default).into(),
            whole_word: config.whole_word,
        }
    }
}

/// The error of a rule that names a judge that is not there.
fn unknown_judge(config: &RuleConfig, judges: &JudgesByName) -> Option<RuleError> {
    let named = config.judge.as_deref().filter(|named| !judges.contains_key(*named))?;
    let known: Vec<&str> = judges.keys().map(String::as_str).collect();
    let why = match known.is_empty() {
        true => format!("`{named}` is unknown: there are no `[[moderation.judges]]`"),
        false => format!("`{named}` is unknown; `[[moderation.judges]]` has {}", known.join(", ")),
    };
    Some(error(config, "judge", why))
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
            RuleKind::Pii | RuleKind::Classifier | RuleKind::Judge => check_without_text(config, &mut errors),
        }
        check_output(config, &mut errors);
    }
    let projects = configs.iter().flat_map(|config| &config.projects).collect::<BTreeSet<_>>().len();
    if projects > limits::MAX_PROJECTS {
        let why = format!("name {projects} projects; at most {} are allowed", limits::MAX_PROJECTS);
        errors.push(RuleError { rule: "all rules".to_owned(), field: "projects", why });
    }
    let bytes: usize = configs.iter().flat_map(|config| &config.words).map(String::len).sum();
    if bytes > limits::MAX_ALL_WORDS_BYTES {
        let why = format!("have {bytes} bytes; at most {} are allowed", limits::MAX_ALL_WORDS_BYTES);
        errors.push(RuleError { rule: "all of kind words".to_owned(), field: "words", why });
    }
    errors
}

/// Checks that a rule has no words and no pattern.
fn check_without_text(config: &RuleConfig, errors: &mut Vec<RuleError>) {
    let wrong = [
        ("pattern", config.pattern.is_some(), "belongs to rules of kind `regex`"),
        ("words", !config.words.is_empty(), "belongs to rules of kind `words`"),
        ("whole_word", config.whole_word, "belongs to rules of kind `words`"),
    ];
    for (field, _, why) in wrong.into_iter().filter(|(_, is_set, _)| *is_set) {
        errors.push(error(config, field, why.to_owned()));
    }
}

/// Checks the fields about answers.
fn check_output(config: &RuleConfig, errors: &mut Vec<RuleError>) {
    let mut add = |field, why: String| errors.push(error(config, field, why));
    if config.kind != RuleKind::Pii && !config.entities.is_empty() {
        add("entities", "belongs to rules of kind `pii`".to_owned());
    }
    if config.kind != RuleKind::Judge {
        if config.judge.is_some() {
            add("judge", "belongs to rules of kind `judge`".to_owned());
        }
        if config.mode != JudgeMode::Sync {
            add("mode", "belongs to rules of kind `judge`".to_owned());
        }
    } else if config.judge.is_none() {
        add("judge", "is missing: name a table of `[[moderation.judges]]`".to_owned());
    }
    if matches!(config.kind, RuleKind::Classifier | RuleKind::Judge) && config.action == Action::Redact {
        let why = "`redact` would replace whole sentences; use `block` or `flag`";
        add("action", why.to_owned());
    }
    if config.kind != RuleKind::Classifier {
        if !config.labels.is_empty() {
            add("labels", "belongs to rules of kind `classifier`".to_owned());
        }
        if config.threshold.is_some() {
            add("threshold", "belongs to rules of kind `classifier`".to_owned());
        }
    }
    if let Some(window) = config.window {
        let finds_ends = config.applies_to.is_output() || config.action == Action::Redact;
        if config.kind != RuleKind::Regex || !finds_ends {
            add("window", "belongs to rules of kind `regex` that check answers or redact".to_owned());
        }
        if window == 0 || window > limits::MAX_WINDOW_CHARS {
            add("window", format!("must be 1 to {} characters", limits::MAX_WINDOW_CHARS));
        }
    }
    check_input_redaction(config, &mut add);
    if let Some(replacement) = &config.replacement {
        if config.action != Action::Redact {
            add("replacement", "belongs to rules with `action = \"redact\"`".to_owned());
        }
        if replacement.len() > limits::MAX_REPLACEMENT_BYTES {
            add("replacement", format!("must have at most {} bytes", limits::MAX_REPLACEMENT_BYTES));
        }
    }
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
