//! Asks the judges on other servers about the passages of an answer, before the content rules read it. It divides the answer
//! as the rules do, so that they find a verdict for each passage. Must not know dialects, bytes or money.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use headrace_domain::ReplyEvent;
use headrace_moderation::{JudgedPassage, JudgedText, OutputRules, PassageVerdicts, TextRules};

use crate::judging::{JudgedCall, LateVerdicts};
use crate::request_context::RequestContext;

use super::answer_section::{AnswerSection, choice_of};

/// See the top of the file.
pub(super) struct AnswerJudges {
    rules: Arc<OutputRules>,
    call: JudgedCall,
    /// A client joins the texts before and behind a tool call.
    joins_sections: bool,
    /// On the passages of the answer's text, and on those of its reasoning.
    of_answer: Arc<PassageVerdicts>,
    of_reasoning: Arc<PassageVerdicts>,
    choices: Vec<JudgedChoice>,
}

/// One choice.
#[derive(Default)]
struct JudgedChoice {
    section: Option<AnswerSection>,
    answer: JudgedText,
    reasoning: JudgedText,
    /// Names and arguments of the tool calls that have no end yet.
    calls: String,
    /// For each group of tool calls that has ended and was not read yet: the rule that blocks it.
    judged_calls: VecDeque<Option<usize>>,
}

/// A passage that is to be judged.
struct EndedPassage {
    choice: usize,
    section: AnswerSection,
    passage: JudgedPassage,
}

impl AnswerJudges {
    /// The judges of an answer. `None` if no rule asks one.
    pub(super) fn of(
        rules: &Arc<OutputRules>,
        choices: u32,
        joins_sections: bool,
        context: &RequestContext,
    ) -> Option<Box<Self>> {
        let all = [&rules.answer, &rules.reasoning, &rules.tool_calls];
        if all.into_iter().flatten().all(|rules| rules.judges().is_empty()) {
            return None;
        }
        let late = Arc::clone(context.late_verdicts());
        let call = JudgedCall { request: context.id, late, clock: Arc::clone(&context.clock) };
        Some(Box::new(Self {
            rules: Arc::clone(rules),
            call,
            joins_sections,
            of_answer: Arc::default(),
            of_reasoning: Arc::default(),
            choices: (0..choices).map(|_| JudgedChoice::default()).collect(),
        }))
    }

    /// The verdicts on the passages of a section. Sections have rules of their own. `None` for tool calls.
    pub(super) const fn verdicts(&self, section: AnswerSection) -> Option<&Arc<PassageVerdicts>> {
        match section {
            AnswerSection::Answer => Some(&self.of_answer),
            AnswerSection::Reasoning => Some(&self.of_reasoning),
            AnswerSection::ToolCalls => None,
        }
    }

    /// The verdicts that the call does not wait for.
    pub(super) const fn late(&self) -> &Arc<LateVerdicts> {
        &self.call.late
    }

    /// Asks about each passage that ends with these events, and waits for the judges that the rules wait for. Nothing is
    /// asked about a choice that `is_over`.
    pub(super) async fn judge(&mut self, events: &[ReplyEvent], is_over: &(dyn Fn(u32) -> bool + Sync)) {
        let mut ended = Vec::new();
        for event in events.iter().filter(|event| !is_over(choice_of(event))) {
            self.read(event, &mut ended);
        }
        let mut texts = HashSet::new();
        ended.retain(|EndedPassage { section, passage, .. }| match self.verdicts(*section) {
            Some(known) => !known.has(passage) && texts.insert((*section, passage.clone())),
            None => true,
        });
        let asked = ended.into_iter().map(|passage| self.ask(passage));
        let judged = futures_util::future::join_all(asked).await;
        for (choice, blocked_by) in judged.into_iter().flatten() {
            if let Some(choice) = self.choices.get_mut(choice) {
                choice.judged_calls.push_back(blocked_by);
            }
        }
    }

    /// Takes the rule that blocks the next group of tool calls of a choice.
    pub(super) fn next_calls(&mut self, choice: usize) -> Option<usize> {
        self.choices.get_mut(choice)?.judged_calls.pop_front().flatten()
    }

    /// Asks about one passage. Returns the verdict on a group of tool calls, with its choice.
    async fn ask(&self, ended: EndedPassage) -> Option<(usize, Option<usize>)> {
        let EndedPassage { choice, section, passage } = ended;
        let judges = self.rules_of(section).map_or(&[][..], |rules| rules.judges());
        let matched = match judges {
            [] => Vec::new(),
            judges => self.call.ask(judges, &passage.text, section.place()).await,
        };
        if section == AnswerSection::ToolCalls {
            return Some((choice, matched.first().copied()));
        }
        if let Some(verdicts) = self.verdicts(section) {
            verdicts.set(passage, matched);
        }
        None
    }

    fn rules_of(&self, section: AnswerSection) -> Option<&Arc<TextRules>> {
        match section {
            AnswerSection::Answer => self.rules.answer.as_ref(),
            AnswerSection::Reasoning => self.rules.reasoning.as_ref(),
            AnswerSection::ToolCalls => self.rules.tool_calls.as_ref(),
        }
    }

    fn read(&mut self, event: &ReplyEvent, ended: &mut Vec<EndedPassage>) {
        let choice = choice_of(event) as usize;
        match event {
            ReplyEvent::Prompt { .. } => {}
            ReplyEvent::Text { text, .. } => self.text(choice, AnswerSection::Answer, text, ended),
            ReplyEvent::Reasoning { text, .. } => self.text(choice, AnswerSection::Reasoning, text, ended),
            ReplyEvent::ReasoningSignature { .. } => {
                self.enter(choice, Some(AnswerSection::Reasoning), ended);
                self.enter(choice, None, ended);
            }
            ReplyEvent::RedactedReasoning { .. } | ReplyEvent::Encoded { .. } => {
                self.enter(choice, None, ended);
            }
            ReplyEvent::ToolCallStart { name, .. } => self.calls(choice, &["\n", name, " "], ended),
            ReplyEvent::ToolCallArguments { fragment, .. } => self.calls(choice, &[fragment], ended),
            ReplyEvent::Finish { .. } => {
                self.enter(choice, None, ended);
                for section in [AnswerSection::Reasoning, AnswerSection::Answer] {
                    self.end_section(choice, section, true, ended);
                }
            }
        }
    }

    fn text(&mut self, choice: usize, section: AnswerSection, text: &str, ended: &mut Vec<EndedPassage>) {
        if text.is_empty() {
            return;
        }
        self.enter(choice, Some(section), ended);
        let Some(state) = self.choices.get_mut(choice) else { return };
        let mut passages = Vec::new();
        if let Some(judged) = state.text_mut(section) {
            judged.push(text, &mut passages);
        }
        ended.extend(passages.into_iter().map(|passage| EndedPassage { choice, section, passage }));
    }

    fn calls(&mut self, choice: usize, pieces: &[&str], ended: &mut Vec<EndedPassage>) {
        self.enter(choice, Some(AnswerSection::ToolCalls), ended);
        if let Some(state) = self.choices.get_mut(choice) {
            state.calls.extend(pieces.iter().copied());
        }
    }

    /// Ends the present section of a choice, if it is another one.
    fn enter(&mut self, choice: usize, next: Option<AnswerSection>, ended: &mut Vec<EndedPassage>) {
        let Some(state) = self.choices.get_mut(choice).filter(|state| state.section != next) else { return };
        match std::mem::replace(&mut state.section, next) {
            None => {}
            Some(AnswerSection::ToolCalls) => {
                let passage = JudgedPassage::alone(std::mem::take(&mut state.calls));
                ended.push(EndedPassage { choice, section: AnswerSection::ToolCalls, passage });
            }
            Some(section) => self.end_section(choice, section, false, ended),
        }
    }

    fn end_section(
        &mut self,
        choice: usize,
        section: AnswerSection,
        is_last: bool,
        ended: &mut Vec<EndedPassage>,
    ) {
        let is_joined = self.joins_sections && !is_last;
        let Some(judged) = self.choices.get_mut(choice).and_then(|state| state.text_mut(section)) else {
            return;
        };
        let mut passages = Vec::new();
        // The rules also read the part of a passage before a section, and later the whole passage.
        judged.clone().finish(&mut passages);
        if !is_joined {
            *judged = JudgedText::default();
        }
        ended.extend(passages.into_iter().map(|passage| EndedPassage { choice, section, passage }));
    }
}

impl JudgedChoice {
    fn text_mut(&mut self, section: AnswerSection) -> Option<&mut JudgedText> {
        match section {
            AnswerSection::Answer => Some(&mut self.answer),
            AnswerSection::Reasoning => Some(&mut self.reasoning),
            AnswerSection::ToolCalls => None,
        }
    }
}
