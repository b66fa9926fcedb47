//! A conversation as the client keeps it: what was asked and answered so far, and what a cancelled answer leaves.
//! Knows no connection.

use headrace_wire::client::ChatMessage;

/// The messages of a conversation.
///
/// What becomes of a turn that does not end well is decided here:
///
/// - **Cancelled after some text**: question and partial answer stay. The user has seen the text and may refer to it
///   ("go on", "no, shorter"), and the server's prefix cache still has it.
/// - **Cancelled before any text, or failed**: the question goes too. Nothing was answered; templates often refuse
///   two questions in a row; and a failure's partial text is not known to be what the model meant to say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConversationLog {
    system: Option<String>,
    /// Alternating: user, assistant, user, assistant.
    turns: Vec<ChatMessage>,
    /// A question without an answer yet.
    open: Option<String>,
}

impl ConversationLog {
    /// An empty conversation.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the system message, which leads the conversation from the next request on; empty text removes it.
    pub fn set_system(&mut self, text: impl Into<String>) {
        self.system = Some(text.into()).filter(|text| !text.trim().is_empty());
    }

    /// The system message.
    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Forgets all turns; the system message stays.
    pub fn clear(&mut self) {
        self.turns.clear();
        self.open = None;
    }

    /// Opens a turn. A question that is still open is replaced.
    pub fn ask(&mut self, question: impl Into<String>) {
        self.open = Some(question.into());
    }

    /// All messages for a request, oldest first, with the open question last.
    pub fn messages(&self) -> Vec<ChatMessage> {
        let system = self.system.iter().map(|text| message("system", text.clone()));
        let open = self.open.iter().map(|text| message("user", text.clone()));
        system.chain(self.turns.iter().cloned()).chain(open).collect()
    }

    /// Answered turns.
    pub fn turns(&self) -> usize {
        self.turns.len() / 2
    }

    /// Closes the open turn with a whole answer.
    pub fn answer(&mut self, text: impl Into<String>) {
        if let Some(question) = self.open.take() {
            self.turns.extend([message("user", question), message("assistant", text.into())]);
        }
    }

    /// Closes the open turn with what came before it was cancelled. Whether the turn stays.
    pub fn cancel(&mut self, partial: impl Into<String>) -> bool {
        let partial = partial.into();
        let stays = self.open.is_some() && !partial.trim().is_empty();
        if stays {
            self.answer(partial);
        }
        self.open = None;
        stays
    }

    /// Drops the open turn: it failed.
    pub fn fail(&mut self) {
        self.open = None;
    }
}

fn message(role: &str, content: String) -> ChatMessage {
    ChatMessage { role: role.to_owned(), content }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(log: &ConversationLog) -> String {
        let lines = log.messages().into_iter().map(|m| format!("{}:{}", m.role.get(..1).unwrap(), m.content));
        lines.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn turns_that_end_in_every_way() {
        let mut log = ConversationLog::new();
        log.set_system("be brief");
        log.ask("a");
        assert_eq!(text(&log), "s:be brief u:a");
        log.answer("A");
        log.ask("b");
        assert!(log.cancel("B, par"));
        assert_eq!(text(&log), "s:be brief u:a a:A u:b a:B, par");
        log.ask("c");
        assert!(!log.cancel(" \n"));
        log.ask("d");
        log.fail();
        assert_eq!(text(&log), "s:be brief u:a a:A u:b a:B, par");
        assert_eq!(log.turns(), 2);
        log.ask("e");
        log.ask("f");
        assert_eq!(text(&log), "s:be brief u:a a:A u:b a:B, par u:f");
        log.clear();
        assert_eq!(text(&log), "s:be brief");
        log.set_system("  ");
        assert_eq!((text(&log).as_str(), log.system()), ("", None));
        // Nothing is open: an answer belongs to no question.
        log.answer("x");
        assert!(!log.cancel("x"));
        assert_eq!(log.turns(), 0);
    }
}
