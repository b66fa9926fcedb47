//! Puts values back for the placeholders in an answer: the last step before the answer is encoded for the client. Content
//! rules and records see placeholders. Text is held back only while its end may become a placeholder of the call.
//! Must not know dialects, bytes or money.

use std::sync::Arc;

use headrace_domain::{Endpoint, Prompt, ReplyEvent, ResponseFormat, ShownPrompt, TokenLogprob};
use headrace_moderation::{PlaceholderMap, PlaceholderReader, RestoredForm};
use headrace_relay::form_asked;

use crate::request_context::RequestContext;
use crate::state::RenderedWork;

use super::answer_section::{AnswerSection, choice_of};
use super::held_tokens::{DecidedText, HeldTokens, LeftText};
use headrace_wire::WireLimits;

/// The placeholders of a call whose answer is made of texts. `None` if nothing is to be put back.
pub(super) fn placeholders<'c>(
    work: &RenderedWork,
    context: &'c RequestContext,
) -> Option<&'c Arc<PlaceholderMap>> {
    context.placeholders.as_ref().filter(|_| makes_text(work.call.endpoint))
}

const fn makes_text(endpoint: Endpoint) -> bool {
    match endpoint {
        Endpoint::ChatCompletions | Endpoint::Completions | Endpoint::Messages | Endpoint::Responses => true,
        Endpoint::Embeddings | Endpoint::Rerank | Endpoint::Score => false,
    }
}

/// The placeholders of a call whose answer may only repeat its texts. `None` if nothing is to be put back.
pub(super) fn repeated_placeholders(
    work: &RenderedWork,
    context: &RequestContext,
) -> Option<Arc<PlaceholderMap>> {
    context.placeholders.clone().filter(|_| !makes_text(work.call.endpoint))
}

/// A whole JSON answer with its values put back.
pub(super) fn restored_body(map: &Arc<PlaceholderMap>, body: &[u8]) -> Option<String> {
    PlaceholderReader::whole(map, RestoredForm::Json, std::str::from_utf8(body).ok()?)
}

/// See the top of the file.
pub(super) struct AnswerRestore {
    map: Arc<PlaceholderMap>,
    /// How values are written into the text of the answer.
    form: RestoredForm,
    /// The answer contains the ids themselves.
    shows_ids: bool,
    choices: Vec<RestoredChoice>,
    passed: Vec<ReplyEvent>,
    /// Tokens whose ids are withheld although the tokens count as delivered, each with its choice.
    uncounted: Vec<(u32, u64)>,
}

/// One choice.
struct RestoredChoice {
    section: Option<AnswerSection>,
    answer: RestoredSection,
    reasoning: RestoredSection,
    /// The arguments of tool calls, by their index.
    calls: Vec<(u32, PlaceholderReader)>,
}

/// The text of a choice, or its reasoning.
struct RestoredSection {
    reader: PlaceholderReader,
    tokens: HeldTokens,
}

impl RestoredSection {
    fn new(map: &Arc<PlaceholderMap>, form: RestoredForm) -> Self {
        Self { reader: PlaceholderReader::new(Arc::clone(map), form), tokens: HeldTokens::default() }
    }

    fn leave(&mut self, text: String, before: usize, is_end: bool) -> LeftText {
        let (decided, replaced) = (self.reader.decided(), self.reader.take_restored());
        self.tokens.leave(DecidedText { text, before, decided, replaced, is_end })
    }
}

impl AnswerRestore {
    /// What puts the values of a call back. `None` if there are none.
    pub(super) fn of(work: &RenderedWork, context: &RequestContext) -> Option<Box<Self>> {
        let map = placeholders(work, context)?;
        let form = if is_json(work) { RestoredForm::Json } else { RestoredForm::Plain };
        let choice = |_| RestoredChoice {
            section: None,
            answer: RestoredSection::new(map, form),
            reasoning: RestoredSection::new(map, RestoredForm::Plain),
            calls: Vec::new(),
        };
        Some(Box::new(Self {
            map: Arc::clone(map),
            form,
            shows_ids: work.call.return_token_ids,
            choices: (0..work.choices()).map(choice).collect(),
            passed: Vec::new(),
            uncounted: Vec::new(),
        }))
    }

    /// Replaces the events by those that leave.
    pub(super) fn apply(&mut self, events: &mut Vec<ReplyEvent>) {
        for event in events.drain(..) {
            self.take(event);
        }
        std::mem::swap(events, &mut self.passed);
    }

    /// Takes the tokens whose ids were withheld although they count as delivered, each with its choice.
    pub(super) fn take_uncounted(&mut self) -> Vec<(u32, u64)> {
        std::mem::take(&mut self.uncounted)
    }

    fn take(&mut self, event: ReplyEvent) {
        let choice = choice_of(&event);
        match event {
            ReplyEvent::Prompt { prompt, .. } => self.prompt(choice, prompt),
            ReplyEvent::Text { text, ids, logprobs, .. } => {
                self.text(choice, AnswerSection::Answer, text, ids, logprobs);
            }
            ReplyEvent::Reasoning { text, ids, logprobs, .. } => {
                self.text(choice, AnswerSection::Reasoning, text, ids, logprobs);
            }
            // It signs what the model wrote, and so does the text once the client sends it back and it is redacted again.
            ReplyEvent::ReasoningSignature { .. } => {
                self.enter(choice, None);
                self.end_section(choice, AnswerSection::Reasoning);
                self.passed.push(event);
            }
            ReplyEvent::RedactedReasoning { .. } | ReplyEvent::Encoded { .. } => {
                self.enter(choice, None);
                self.passed.push(event);
            }
            ReplyEvent::ToolCallStart { index, .. } => {
                self.enter(choice, Some(AnswerSection::ToolCalls));
                self.end_calls(choice);
                let reader = PlaceholderReader::new(Arc::clone(&self.map), RestoredForm::Arguments);
                if let Some(state) = self.choices.get_mut(choice as usize) {
                    state.calls.retain(|(known, _)| *known != index);
                    state.calls.push((index, reader));
                }
                self.passed.push(event);
            }
            ReplyEvent::ToolCallArguments { index, fragment, .. } => {
                self.enter(choice, Some(AnswerSection::ToolCalls));
                let Some(state) = self.choices.get_mut(choice as usize) else { return };
                let known = state.calls.iter().position(|(known, _)| *known == index);
                let at = known.unwrap_or_else(|| {
                    let reader = PlaceholderReader::new(Arc::clone(&self.map), RestoredForm::Arguments);
                    state.calls.push((index, reader));
                    state.calls.len().saturating_sub(1)
                });
                let Some((_, reader)) = state.calls.get_mut(at) else { return };
                let mut out = String::with_capacity(fragment.len());
                reader.push(&fragment, &mut out);
                if !out.is_empty() {
                    self.passed.push(ReplyEvent::ToolCallArguments { choice, index, fragment: out });
                }
            }
            ReplyEvent::Finish { .. } => {
                self.enter(choice, None);
                self.end_section(choice, AnswerSection::Reasoning);
                self.end_section(choice, AnswerSection::Answer);
                self.passed.push(event);
            }
        }
    }

    /// A prompt that the answer repeats.
    fn prompt(&mut self, choice: u32, prompt: Arc<ShownPrompt>) {
        let restored = PlaceholderReader::whole(&self.map, RestoredForm::Plain, &prompt.text);
        // The ids and log-probabilities repeat the placeholders.
        let without = |text| Arc::new(ShownPrompt { text, ids: Arc::new([]), logprobs: Vec::new() });
        let prompt = restored.map_or(prompt, without);
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
        let shows_ids = self.shows_ids;
        let Some(restored) = self.section_mut(choice, section) else { return };
        let mut out = String::with_capacity(text.len());
        let before = restored.reader.decided();
        restored.tokens.hold(&text, ids, logprobs, shows_ids);
        restored.reader.push(&text, &mut out);
        let left = restored.leave(out, before, false);
        self.pass(choice, section, left);
    }

    fn section_mut(&mut self, choice: u32, section: AnswerSection) -> Option<&mut RestoredSection> {
        let state = self.choices.get_mut(choice as usize)?;
        match section {
            AnswerSection::Answer => Some(&mut state.answer),
            AnswerSection::Reasoning => Some(&mut state.reasoning),
            AnswerSection::ToolCalls => None,
        }
    }

    /// Ends the present section of a choice, if it is another one.
    fn enter(&mut self, choice: u32, next: Option<AnswerSection>) {
        let Some(state) = self.choices.get_mut(choice as usize).filter(|state| state.section != next) else {
            return;
        };
        match std::mem::replace(&mut state.section, next) {
            None => {}
            Some(AnswerSection::ToolCalls) => self.end_calls(choice),
            Some(section) => self.end_section(choice, section),
        }
    }

    /// Passes on what is held back of a section.
    fn end_section(&mut self, choice: u32, section: AnswerSection) {
        let form = if section == AnswerSection::Answer { self.form } else { RestoredForm::Plain };
        let map = Arc::clone(&self.map);
        let Some(restored) = self.section_mut(choice, section) else { return };
        let mut out = String::new();
        let before = restored.reader.decided();
        restored.reader.finish(&mut out);
        let left = restored.leave(out, before, true);
        restored.tokens.begin();
        restored.reader = PlaceholderReader::new(map, form);
        self.pass(choice, section, left);
    }

    /// Passes on what is held back of tool calls.
    fn end_calls(&mut self, choice: u32) {
        let Some(state) = self.choices.get_mut(choice as usize) else { return };
        for (index, reader) in &mut state.calls {
            let mut fragment = String::new();
            reader.finish(&mut fragment);
            if !fragment.is_empty() {
                self.passed.push(ReplyEvent::ToolCallArguments { choice, index: *index, fragment });
            }
        }
    }

    fn pass(&mut self, choice: u32, section: AnswerSection, left: LeftText) {
        let LeftText { text, ids, logprobs, withheld_ids, .. } = left;
        if withheld_ids > 0 {
            self.uncounted.push((choice, withheld_ids));
        }
        if text.is_empty() && ids.is_empty() && logprobs.is_empty() {
            return;
        }
        self.passed.push(match section {
            AnswerSection::Reasoning => ReplyEvent::Reasoning { choice, text, ids, logprobs },
            AnswerSection::Answer | AnswerSection::ToolCalls => {
                ReplyEvent::Text { choice, text, ids, logprobs }
            }
        });
    }
}

/// Whether the text of the answer is JSON, because the call asks for that.
fn is_json(work: &RenderedWork) -> bool {
    let is_json =
        |form: &ResponseFormat| matches!(form, ResponseFormat::JsonObject | ResponseFormat::JsonSchema(_));
    match (&work.call.form, &work.call.prompt) {
        (Some(form), _) => is_json(form),
        (None, Prompt::Relayed(relayed)) => {
            form_asked(work.call.endpoint, relayed, &WireLimits::default()).as_ref().is_some_and(is_json)
        }
        (None, _) => false,
    }
}
