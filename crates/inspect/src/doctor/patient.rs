//! The checkpoint under examination, with the operations that several checks need. Must not know what the checks look
//! for.

use headrace_domain::{Conversation, Message, Role, UnixNanos};
use headrace_prompt::{ChatTemplate, RenderOptions, RenderedPrompt, TemplateError};

use crate::finding::{Examined, Facts};
use crate::words::Words;

/// The user's first message in test conversations. It consists of words that no template looks for.
pub(super) const QUESTION: &str = "Wherefore do seven quiet herons wade";
/// The model's answer.
pub(super) const ANSWER: &str = "Because the marsh beyond is shallow";
/// The user's second message.
pub(super) const NEXT: &str = "Then name whichever bird flies farthest";
/// The system message.
pub(super) const SYSTEM: &str = "Answer as an old ferryman would";

pub(super) struct Patient<'a> {
    pub(super) examined: &'a Examined<'a>,
    pub(super) words: &'a Words,
}

impl<'a> Patient<'a> {
    pub(super) const fn new(examined: &'a Examined<'a>, words: &'a Words) -> Self {
        Self { examined, words }
    }

    pub(super) fn template(&self) -> Option<&ChatTemplate> {
        self.words.template.as_deref()
    }

    /// Renders a conversation. `open` is whether the text that opens an answer is added.
    pub(super) fn render(
        &self,
        conversation: &Conversation,
        open: bool,
    ) -> Option<Result<RenderedPrompt, TemplateError>> {
        let options = RenderOptions { add_generation_prompt: open, now: UnixNanos::new(0), reasoning: None };
        Some(self.template()?.render(conversation, &options))
    }

    /// Like [`Self::render`], but returns the text, or `None` if the template rejects the messages.
    pub(super) fn text(&self, messages: Vec<Message>, open: bool) -> Option<String> {
        let conversation = Conversation { messages, ..Conversation::default() };
        self.render(&conversation, open)?.ok().map(RenderedPrompt::into_text)
    }

    /// Returns the ids of a conversation, exactly as it would be served.
    pub(super) fn ids(&self, messages: Vec<Message>, open: bool) -> Option<Vec<u32>> {
        let conversation = Conversation { messages, ..Conversation::default() };
        let rendered = self.render(&conversation, open)?.ok()?;
        self.words.tokenizer.encode_segments(&rendered.segments(), false).ok()
    }

    /// Returns the id of a token that the configuration names.
    pub(super) fn named(&self, token: &Option<String>) -> Option<u32> {
        self.words.tokenizer.id_of(token.as_deref()?)
    }

    /// Returns a description of a token for people.
    pub(super) fn show(&self, id: u32) -> String {
        match self.words.tokenizer.token_bytes(id) {
            Some(bytes) => format!("`{}` (id {id})", crate::token::escaped_bytes(bytes)),
            None => format!("id {id}, which has no text"),
        }
    }

    pub(super) fn show_all(&self, ids: &[u32]) -> String {
        ids.iter().map(|id| self.show(*id)).collect::<Vec<_>>().join(", ")
    }

    /// Returns the text after a question at the point at which an answer begins.
    pub(super) fn opening(&self) -> Option<String> {
        let text = self.text(vec![user(QUESTION)], true)?;
        Some(text.rsplit_once(QUESTION)?.1.to_owned())
    }

    pub(super) fn facts(&self) -> Facts {
        let tokenizer = &self.words.tokenizer;
        Facts {
            vocabulary: self.examined.vocab_size,
            tokenizer_ids: tokenizer.vocab_size(),
            context: self.examined.max_positions,
            family: self.words.replies.family.name(),
            thinks: self.words.replies.thinks(),
            shows_tools: self.template().is_some_and(ChatTemplate::shows_tools),
            ends: self.examined.eos.iter().map(|id| self.show(*id)).collect(),
            opens: self.opening(),
            before: tokenizer.prefix().iter().map(|id| self.show(*id)).collect(),
        }
    }
}

pub(super) fn user(text: &str) -> Message {
    Message::text(Role::User, text)
}

pub(super) fn assistant(text: &str) -> Message {
    Message::text(Role::Assistant, text)
}

pub(super) fn system(text: &str) -> Message {
    Message::text(Role::System, text)
}
