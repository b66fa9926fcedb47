//! Checks an answer against the content rules, between its parsing and its encoding: each text of each choice by itself.
//! Events go in, and those that may leave come out. Must not know dialects, bytes or money.
//!
//! Text and reasoning are held back as far as they may still become a match. A tool call leaves whole, once all of it is
//! known: a part of its arguments is of no use to a client, and could not be replaced as JSON. Token ids and
//! log-probabilities repeat the text, so they leave behind it.

use std::sync::Arc;

use headrace_domain::{
    ContentPlace, ContentVerdict, Endpoint, FinishReason, ReplyEvent, ShownPrompt, TokenLogprob,
};
use headrace_moderation::{
    Action, OutputFilter, OutputRules, PassageVerdicts, RuleDescription, ScreenedText, TextRules,
    screen_arguments, screen_text,
};

use crate::request_context::RequestContext;
use crate::state::RenderedWork;

use super::answer_judges::AnswerJudges;
use super::answer_section::{AnswerSection, choice_of};
use super::held_tokens::{DecidedText, HeldTokens, LeftText};

/// The rules on the answer of a call. `None` if there are none.
pub(super) fn output_rules(work: &RenderedWork, context: &RequestContext) -> Option<Arc<OutputRules>> {
    let judge = work.terms.catalog.judge()?;
    let makes_text = match work.call.endpoint {
        Endpoint::ChatCompletions | Endpoint::Completions | Endpoint::Messages | Endpoint::Responses => true,
        Endpoint::Embeddings | Endpoint::Rerank | Endpoint::Score => false,
    };
    if !makes_text {
        return None;
    }
    match judge.of_project(context.record.project.as_ref()) {
        Some(judge) => judge.output().cloned(),
        None => judge.output().cloned(),
    }
}

/// See the top of the file.
pub(super) struct OutputScreen {
    rules: Arc<OutputRules>,
    /// A client joins the texts before and behind a tool call.
    joins_sections: bool,
    /// The answer contains the ids themselves.
    shows_ids: bool,
    choices: Vec<ScreenedChoice>,
    passed: Vec<ReplyEvent>,
    /// The judges on other servers, if a rule asks one.
    judges: Option<Box<AnswerJudges>>,
    /// The rules that matched, and where.
    verdicts: Vec<(usize, ContentPlace)>,
    /// Tokens whose ids are withheld although the tokens count as delivered, each with its choice.
    uncounted: Vec<(u32, u64)>,
    /// Bytes of text that came, and that were let out or replaced.
    came_bytes: u64,
    passed_bytes: u64,
    /// Ids whose tokens were let out or replaced.
    passed_ids: u64,
}

/// One choice.
struct ScreenedChoice {
    section: Option<AnswerSection>,
    answer: Option<ScreenedSection>,
    reasoning: Option<ScreenedSection>,
    /// The tool calls that are not complete.
    held_calls: Vec<HeldCall>,
    /// Ids of tokens that no event has shown yet.
    unseen_ids: u64,
    /// The choice has ended, by itself or by a rule.
    has_ended: bool,
    /// A rule ended it.
    is_blocked: bool,
}

/// A tool call whose end is not known.
struct HeldCall {
    index: u32,
    /// Id and name. `None` if the call's start has left.
    start: Option<(String, String)>,
    arguments: String,
}

/// The text of a choice, or its reasoning.
struct ScreenedSection {
    filter: OutputFilter,
    tokens: HeldTokens,
}

impl OutputScreen {
    /// The screen of a call. `None` if no rule applies to its answer.
    pub(super) fn of(work: &RenderedWork, context: &RequestContext) -> Option<Box<Self>> {
        let rules = output_rules(work, context)?;
        let joins_sections = matches!(work.call.endpoint, Endpoint::ChatCompletions | Endpoint::Completions);
        let judges = AnswerJudges::of(&rules, work.choices(), joins_sections, context);
        let section = |rules: &Option<Arc<TextRules>>, section| {
            let verdicts = judges.as_ref().and_then(|judges| judges.verdicts(section));
            rules.as_ref().map(|rules| ScreenedSection::new(rules, verdicts))
        };
        let choice = |_| ScreenedChoice {
            section: None,
            answer: section(&rules.answer, AnswerSection::Answer),
            reasoning: section(&rules.reasoning, AnswerSection::Reasoning),
            held_calls: Vec::new(),
            unseen_ids: 0,
            has_ended: false,
            is_blocked: false,
        };
        let choices = (0..work.choices()).map(choice).collect();
        Some(Box::new(Self {
            joins_sections,
            shows_ids: work.call.return_token_ids,
            choices,
            passed: Vec::new(),
            judges,
            verdicts: Vec::new(),
            uncounted: Vec::new(),
            came_bytes: 0,
            passed_bytes: 0,
            passed_ids: 0,
            rules,
        }))
    }

    /// Asks the judges on other servers about what the events complete. Comes before [`Self::apply`] of the same events.
    pub(super) async fn judge(&mut self, events: &[ReplyEvent]) {
        if let Some(judges) = &mut self.judges {
            let choices = &self.choices;
            let is_over = |choice: u32| choices.get(choice as usize).is_none_or(|choice| choice.has_ended);
            judges.judge(events, &is_over).await;
        }
    }

    /// Replaces the events by those that may leave.
    pub(super) fn apply(&mut self, events: &mut Vec<ReplyEvent>) {
        self.end_by_late_verdict();
        for event in events.drain(..) {
            self.take(event);
        }
        std::mem::swap(events, &mut self.passed);
    }

    /// Whether a judge that the call does not wait for has found the answer unfit.
    pub(super) fn is_unfit(&self) -> bool {
        self.late_rule().is_some()
    }

    fn late_rule(&self) -> Option<(usize, ContentPlace)> {
        self.judges.as_ref()?.late().blocked_by()
    }

    /// Ends all choices if a judge that the call does not wait for has found the answer unfit.
    fn end_by_late_verdict(&mut self) {
        let Some(late) = self.late_rule() else { return };
        for choice in 0..self.choices.len() {
            self.block(u32::try_from(choice).unwrap_or(u32::MAX), late);
        }
    }

    /// Whether a rule ended a choice and all choices have ended.
    pub(super) fn has_ended(&self) -> bool {
        self.has_blocked() && self.choices.iter().all(|choice| choice.has_ended)
    }

    /// Whether a rule ended a choice.
    pub(super) fn has_blocked(&self) -> bool {
        self.choices.iter().any(|choice| choice.is_blocked)
    }

    /// Whether a rule ended this choice.
    pub(super) fn is_blocked(&self, choice: usize) -> bool {
        self.choices.get(choice).is_some_and(|choice| choice.is_blocked)
    }

    /// The tokens that left, of `came` tokens in all. A server that sends no ids has sent as large a part of its tokens
    /// as of its text.
    pub(super) fn delivered_tokens(&self, came: u64, has_ids: bool) -> u64 {
        if has_ids {
            return self.passed_ids.min(came);
        }
        if self.came_bytes == 0 {
            return if self.has_blocked() { 0 } else { came };
        }
        let part = u128::from(came) * u128::from(self.passed_bytes) / u128::from(self.came_bytes);
        u64::try_from(part).unwrap_or(came).min(came)
    }

    /// Bytes of tool calls that are held back.
    pub(super) fn held_bytes(&self) -> usize {
        let held = self.choices.iter().flat_map(|choice| &choice.held_calls);
        held.fold(0, |sum: usize, call| sum.saturating_add(call.arguments.len()))
    }

    /// Takes the tokens whose ids were withheld although they count as delivered, each with its choice.
    pub(super) fn take_uncounted(&mut self) -> Vec<(u32, u64)> {
        std::mem::take(&mut self.uncounted)
    }

    /// The rules that matched, for the trace: the one that blocked first.
    pub(super) fn verdicts(&self) -> Vec<ContentVerdict> {
        let mut matched = self.verdicts.clone();
        for choice in &self.choices {
            let sections =
                [(&choice.answer, ContentPlace::Answer), (&choice.reasoning, ContentPlace::Reasoning)];
            for (section, place) in sections {
                let found = section.iter().flat_map(|section| section.filter.matched());
                matched.extend(found.map(|rule| (*rule, place)));
            }
        }
        matched.sort_unstable();
        matched.dedup();
        let named = matched.into_iter().filter_map(|(rule, place)| Some((self.rules.rule(rule)?, place)));
        let mut named: Vec<(&RuleDescription, ContentPlace)> = named.collect();
        named.sort_by_key(|(rule, _)| rule.action != Action::Block);
        named.into_iter().map(|(rule, place)| rule.matched(place)).collect()
    }

    fn take(&mut self, event: ReplyEvent) {
        let choice = choice_of(&event);
        let Some(state) = self.choices.get(choice as usize) else { return };
        if state.has_ended {
            return;
        }
        match event {
            ReplyEvent::Prompt { prompt, .. } => self.prompt(choice, prompt),
            ReplyEvent::Text { text, ids, logprobs, .. } => {
                self.text(choice, AnswerSection::Answer, text, ids, logprobs);
            }
            ReplyEvent::Reasoning { text, ids, logprobs, .. } => {
                self.text(choice, AnswerSection::Reasoning, text, ids, logprobs);
            }
            ReplyEvent::ReasoningSignature { signature, .. } => self.signature(choice, signature),
            ReplyEvent::RedactedReasoning { .. } | ReplyEvent::Encoded { .. } => {
                self.enter(choice, None);
                self.pass_unless_ended(choice, event);
            }
            ReplyEvent::ToolCallStart { index, id, name, .. } => {
                self.enter(choice, Some(AnswerSection::ToolCalls));
                self.came_bytes += name.len() as u64;
                self.hold_call(choice, index, Some((id, name)), "");
            }
            ReplyEvent::ToolCallArguments { index, fragment, .. } => {
                self.enter(choice, Some(AnswerSection::ToolCalls));
                self.came_bytes += fragment.len() as u64;
                self.hold_call(choice, index, None, &fragment);
            }
            ReplyEvent::Finish { reason, .. } => self.finish(choice, reason),
        }
    }

    fn pass_unless_ended(&mut self, choice: u32, event: ReplyEvent) {
        if self.choices.get(choice as usize).is_some_and(|state| !state.has_ended) {
            self.passed.push(event);
        }
    }

    /// A prompt that the answer repeats.
    fn prompt(&mut self, choice: u32, prompt: Arc<ShownPrompt>) {
        let Some(rules) = self.rules.answer.clone().filter(|_| !prompt.text.is_empty()) else {
            return self.passed.push(ReplyEvent::Prompt { choice, prompt });
        };
        let ScreenedText { changed, blocked_by, matched } = screen_text(&rules, &prompt.text);
        let place = ContentPlace::Answer;
        self.verdicts.extend(matched.into_iter().map(|rule| (rule, place)));
        if let Some(rule) = blocked_by {
            return self.block(choice, (rule, place));
        }
        // The ids and log-probabilities repeat what was replaced.
        let without = |text| Arc::new(ShownPrompt { text, ids: Arc::new([]), logprobs: Vec::new() });
        let prompt = changed.map_or(prompt, without);
        self.passed.push(ReplyEvent::Prompt { choice, prompt });
    }

    fn text(
        &mut self,
        choice: u32,
        section: AnswerSection,
        text: String,
        ids: Vec<u32>,
        logprobs: Vec<TokenLogprob>,
    ) {
        // Tokens of a tool call come as texts without characters.
        if !text.is_empty() {
            self.enter(choice, Some(section));
        }
        self.came_bytes += text.len() as u64;
        let shows_ids = self.shows_ids;
        let Some(state) = self.choices.get_mut(choice as usize).filter(|state| !state.has_ended) else {
            return;
        };
        let Some(screened) = state.section_mut(section) else {
            return self.pass_text(choice, section, (text, ids, logprobs), 0);
        };
        let mut out = String::new();
        let before = screened.filter.decided();
        screened.tokens.hold(&text, ids, logprobs, shows_ids);
        screened.filter.push(&text, &mut out);
        let left = screened.leave(out, before, false);
        self.pass_section(choice, section, left);
    }

    /// Passes on what left a section, and ends the choice if a rule ended the section.
    fn pass_section(&mut self, choice: u32, section: AnswerSection, left: LeftText) {
        let LeftText { text, ids, logprobs, withheld_ids, bytes } = left;
        self.passed_bytes += bytes;
        if withheld_ids > 0 {
            self.uncounted.push((choice, withheld_ids));
        }
        if !text.is_empty() || !ids.is_empty() || !logprobs.is_empty() || withheld_ids > 0 {
            self.pass_text(choice, section, (text, ids, logprobs), withheld_ids);
        }
        let state = self.choices.get_mut(choice as usize);
        let blocked = state.and_then(|state| state.section_mut(section)?.filter.blocked_by());
        if let Some(rule) = blocked {
            self.block(choice, (rule, section.place()));
        }
    }

    fn pass_text(
        &mut self,
        choice: u32,
        section: AnswerSection,
        (text, ids, logprobs): (String, Vec<u32>, Vec<TokenLogprob>),
        withheld_ids: u64,
    ) {
        let Some(state) = self.choices.get_mut(choice as usize) else { return };
        let is_screened = state.section_mut(section).is_some();
        if !is_screened {
            self.passed_bytes += text.len() as u64;
        }
        let state = self.choices.get_mut(choice as usize);
        state.into_iter().for_each(|state| {
            state.unseen_ids += ids.len() as u64 + withheld_ids;
            if !text.is_empty() {
                self.passed_ids += std::mem::take(&mut state.unseen_ids);
            }
        });
        self.passed.push(match section {
            AnswerSection::Reasoning => ReplyEvent::Reasoning { choice, text, ids, logprobs },
            AnswerSection::Answer | AnswerSection::ToolCalls => {
                ReplyEvent::Text { choice, text, ids, logprobs }
            }
        });
    }

    /// The end of a reasoning section. A signature is of the whole text, so it does not fit to a changed one.
    fn signature(&mut self, choice: u32, signature: String) {
        self.enter(choice, Some(AnswerSection::Reasoning));
        self.enter(choice, None);
        let state = self.choices.get(choice as usize);
        let is_changed = state
            .and_then(|state| state.reasoning.as_ref())
            .is_some_and(|section| section.tokens.was_redacted());
        if !is_changed {
            self.pass_unless_ended(choice, ReplyEvent::ReasoningSignature { choice, signature });
        }
    }

    /// Ends the present section of a choice, if it is another one.
    fn enter(&mut self, choice: u32, next: Option<AnswerSection>) {
        let Some(state) = self.choices.get_mut(choice as usize) else { return };
        let ended = state.section;
        if state.has_ended || ended == next {
            return;
        }
        state.section = next;
        match ended {
            None => {}
            Some(AnswerSection::ToolCalls) => self.release_calls(choice),
            Some(section) => self.end_section(choice, section, false),
        }
    }

    fn end_section(&mut self, choice: u32, section: AnswerSection, is_last: bool) {
        let is_joined = self.joins_sections && !is_last;
        let Some(state) = self.choices.get_mut(choice as usize) else { return };
        let Some(screened) = state.section_mut(section) else { return };
        let mut out = String::new();
        let before = screened.filter.decided();
        match is_last {
            true => screened.filter.finish(&mut out),
            false => screened.filter.end_section(is_joined, &mut out),
        }
        let came = screened.tokens.came();
        let mut left = screened.leave(out, before, true);
        screened.tokens.end();
        if !is_joined {
            // The filter counts from the start of the next section.
            if screened.filter.blocked_by().is_none() {
                left.bytes = came.saturating_sub(before) as u64;
            }
            if !is_last {
                screened.tokens.begin();
            }
        }
        self.pass_section(choice, section, left);
    }

    fn hold_call(&mut self, choice: u32, index: u32, start: Option<(String, String)>, fragment: &str) {
        if self.rules.tool_calls.is_none() {
            let state = self.choices.get_mut(choice as usize).filter(|state| !state.has_ended);
            let Some(state) = state else { return };
            self.passed_ids += std::mem::take(&mut state.unseen_ids);
            self.passed_bytes += start.as_ref().map_or(fragment.len(), |(_, name)| name.len()) as u64;
            self.passed.push(match start {
                Some((id, name)) => ReplyEvent::ToolCallStart { choice, index, id, name },
                None => ReplyEvent::ToolCallArguments { choice, index, fragment: fragment.to_owned() },
            });
            return;
        }
        let Some(state) = self.choices.get_mut(choice as usize).filter(|state| !state.has_ended) else {
            return;
        };
        match state.held_calls.iter_mut().find(|held| held.index == index && start.is_none()) {
            Some(held) => held.arguments.push_str(fragment),
            None => state.held_calls.push(HeldCall { index, start, arguments: fragment.to_owned() }),
        }
    }

    /// Passes on the tool calls that are complete. A name that a rule would change names no tool, so that rule blocks.
    fn release_calls(&mut self, choice: u32) {
        let Some(state) = self.choices.get_mut(choice as usize) else { return };
        let held = std::mem::take(&mut state.held_calls);
        let Some(rules) = self.rules.tool_calls.clone() else { return };
        let judged = self.judges.as_mut().and_then(|judges| judges.next_calls(choice as usize));
        let place = ContentPlace::ToolCalls;
        if let Some(rule) = judged {
            return self.block(choice, (rule, place));
        }
        for HeldCall { index, start, arguments } in held {
            let name = start.as_ref().map(|(_, name)| screen_text(&rules, name)).unwrap_or_default();
            let screened = screen_arguments(&rules, &arguments);
            self.verdicts.extend(name.matched.iter().chain(&screened.matched).map(|rule| (*rule, place)));
            let renamed_by = name.matched.first().filter(|_| name.changed.is_some()).copied();
            if let Some(rule) = name.blocked_by.or(renamed_by).or(screened.blocked_by) {
                return self.block(choice, (rule, place));
            }
            self.passed_bytes += start.as_ref().map_or(0, |(_, name)| name.len()) as u64;
            self.passed_bytes += arguments.len() as u64;
            if let Some((id, name)) = start {
                self.passed.push(ReplyEvent::ToolCallStart { choice, index, id, name });
            }
            let fragment = screened.changed.unwrap_or(arguments);
            if !fragment.is_empty() {
                self.passed.push(ReplyEvent::ToolCallArguments { choice, index, fragment });
            }
        }
        if let Some(state) = self.choices.get_mut(choice as usize) {
            self.passed_ids += std::mem::take(&mut state.unseen_ids);
        }
    }

    fn finish(&mut self, choice: u32, reason: FinishReason) {
        self.enter(choice, None);
        for section in [AnswerSection::Reasoning, AnswerSection::Answer] {
            if self.choices.get(choice as usize).is_some_and(|state| !state.has_ended) {
                self.end_section(choice, section, true);
            }
        }
        let Some(state) = self.choices.get_mut(choice as usize).filter(|state| !state.has_ended) else {
            return;
        };
        state.has_ended = true;
        self.passed_ids += std::mem::take(&mut state.unseen_ids);
        self.passed.push(ReplyEvent::Finish { choice, reason });
    }

    /// Ends a choice because of a rule. What is held back of it never leaves.
    fn block(&mut self, choice: u32, rule: (usize, ContentPlace)) {
        let Some(state) = self.choices.get_mut(choice as usize).filter(|state| !state.has_ended) else {
            return;
        };
        (state.has_ended, state.is_blocked) = (true, true);
        state.held_calls = Vec::new();
        for section in [&mut state.answer, &mut state.reasoning].into_iter().flatten() {
            section.tokens.clear();
        }
        self.verdicts.push(rule);
        self.passed.push(ReplyEvent::Finish { choice, reason: FinishReason::ContentFilter });
    }
}

impl ScreenedChoice {
    fn section_mut(&mut self, section: AnswerSection) -> Option<&mut ScreenedSection> {
        match section {
            AnswerSection::Answer => self.answer.as_mut(),
            AnswerSection::Reasoning => self.reasoning.as_mut(),
            AnswerSection::ToolCalls => None,
        }
    }
}

impl ScreenedSection {
    fn new(rules: &Arc<TextRules>, verdicts: Option<&Arc<PassageVerdicts>>) -> Self {
        let filter = OutputFilter::new(rules);
        let filter = match verdicts {
            Some(verdicts) => filter.with_verdicts(verdicts),
            None => filter,
        };
        Self { filter, tokens: HeldTokens::default() }
    }

    /// Takes what leaves with `text`. `before` is what was decided before it. With `is_end`, everything leaves.
    fn leave(&mut self, text: String, before: usize, is_end: bool) -> LeftText {
        let replaced = self.filter.take_redacted();
        let is_end = is_end && self.filter.blocked_by().is_none();
        self.tokens.leave(DecidedText { text, before, decided: self.filter.decided(), replaced, is_end })
    }
}
