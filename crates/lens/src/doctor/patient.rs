//! A checkpoint under examination: what several checks ask of it. Must not know what any of them looks for.

use headrace_domain::{Conversation, Message, Role, UnixNanos};
use headrace_prompt::{ChatTemplate, RenderOptions, Rendered, TemplateError};

use crate::finding::{Examined, Facts};
use crate::words::Words;

/// What a user says in conversations that are tried: words that no template looks for.
pub(super) const QUESTION: &str = "Wherefore do seven quiet herons wade";
/// What a model said.
pub(super) const ANSWER: &str = "Because the marsh beyond is shallow";
/// What a user says next.
pub(super) const NEXT: &str = "Then name whichever bird flies farthest";
/// Instructions.
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

    /// Renders a conversation, with what opens an answer or without it.
    pub(super) fn render(
        &self,
        conversation: &Conversation,
        open: bool,
    ) -> Option<Result<Rendered, TemplateError>> {
        let options = RenderOptions { add_generation_prompt: open, now: UnixNanos::new(0), reasoning: None };
        Some(self.template()?.render(conversation, &options))
    }

    /// The same as text, where the template takes it.
    pub(super) fn text(&self, messages: Vec<Message>, open: bool) -> Option<String> {
        let conversation = Conversation { messages, ..Conversation::default() };
        self.render(&conversation, open)?.ok().map(Rendered::into_text)
    }

    /// The ids of a conversation, as they would be served.
    pub(super) fn ids(&self, messages: Vec<Message>, open: bool) -> Option<Vec<u32>> {
        let conversation = Conversation { messages, ..Conversation::default() };
        let rendered = self.render(&conversation, open)?.ok()?;
        self.words.tokenizer.encode_segments(&rendered.segments(), false).ok()
    }

    /// The id of a token that the configuration names.
    pub(super) fn named(&self, token: &Option<String>) -> Option<u32> {
        self.words.tokenizer.id_of(token.as_deref()?)
    }

    /// A token for people.
    pub(super) fn show(&self, id: u32) -> String {
        match self.words.tokenizer.token_bytes(id) {
            Some(bytes) => format!("`{}` (id {id})", crate::token::escaped_bytes(bytes)),
            None => format!("id {id}, which has no text"),
        }
    }

    pub(super) fn show_all(&self, ids: &[u32]) -> String {
        ids.iter().map(|id| self.show(*id)).collect::<Vec<_>>().join(", ")
    }

    /// What stands behind a question where an answer begins.
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
