//! A conversation as the client keeps it: its questions and answers so far, including the partial answer of a cancelled
//! call. Knows no connection.

use crate::chat_bodies::{ChatMessage, FunctionBody, ToolCallBody};

use crate::AssembledToolCall;

/// The messages of a conversation.
///
/// A turn is a question, the tool calls of the model with their results, and the answer. This type decides what happens
/// to a turn that does not end well:
///
/// - **Cancelled after some text**: the question and the partial answer stay. The user has seen the text and may refer
///   to it ("go on", "no, shorter"), and the server's prefix cache still has it.
/// - **Cancelled before any text, or failed**: the question is removed too. Nothing was answered, and templates often
///   refuse two questions in a row. After a failure it is also unknown whether the partial text is what the model meant
///   to say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConversationLog {
    system: Option<String>,
    /// Closed turns, each from its question to its answer.
    turns: Vec<Vec<ChatMessage>>,
    /// The question without an answer yet, with its tool calls and results. Empty if no turn is open.
    open: Vec<ChatMessage>,
}

impl ConversationLog {
    /// Creates an empty conversation.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the system message, the first message from the next request on. Blank text removes it.
    pub fn set_system(&mut self, text: impl Into<String>) {
        self.system = Some(text.into()).filter(|text| !text.trim().is_empty());
    }

    /// The system message.
    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Removes all turns. The system message stays.
    pub fn clear(&mut self) {
        self.turns.clear();
        self.open.clear();
    }

    /// Opens a turn with a question. Replaces a question that is still open.
    pub fn ask(&mut self, question: impl Into<String>) {
        self.open = vec![ChatMessage::new("user", question)];
    }

    /// Removes the last turn and the open one. Returns the question of the last turn, or `None` if there is none.
    pub fn take_back(&mut self) -> Option<String> {
        self.open.clear();
        self.turns.pop()?.into_iter().next().map(|question| question.content)
    }

    /// Adds the model's text and tool calls to the open turn. Their results must follow.
    pub fn called(&mut self, text: impl Into<String>, calls: &[AssembledToolCall]) {
        let calls = calls.iter().map(|call| ToolCallBody {
            id: call.id.clone(),
            kind: "function".to_owned(),
            function: FunctionBody { name: call.name.clone(), arguments: call.arguments.clone() },
        });
        let calls = calls.collect();
        self.open.push(ChatMessage { tool_calls: calls, ..ChatMessage::new("assistant", text) });
    }

    /// Adds a tool's result for the call with this id.
    pub fn result(&mut self, call_id: impl Into<String>, text: impl Into<String>) {
        let tool_call_id = Some(call_id.into());
        self.open.push(ChatMessage { tool_call_id, ..ChatMessage::new("tool", text) });
    }

    /// All messages for a request, oldest first. The open turn is last.
    pub fn messages(&self) -> Vec<ChatMessage> {
        let system = self.system.iter().map(|text| ChatMessage::new("system", text));
        system.chain(self.turns.iter().flatten().chain(&self.open).cloned()).collect()
    }

    /// Number of answered turns.
    pub fn turns(&self) -> usize {
        self.turns.len()
    }

    /// Closes the open turn with a complete answer.
    pub fn answer(&mut self, text: impl Into<String>) {
        if !self.open.is_empty() {
            self.open.push(ChatMessage::new("assistant", text));
            self.turns.push(std::mem::take(&mut self.open));
        }
    }

    /// Closes the open turn with the partial answer of a cancelled call. Returns whether the turn is kept.
    pub fn cancel(&mut self, partial: impl Into<String>) -> bool {
        let partial = partial.into();
        let stays = !self.open.is_empty() && !partial.trim().is_empty();
        if stays {
            self.answer(partial);
        }
        self.open.clear();
        stays
    }

    /// Removes the open turn after a failure.
    pub fn fail(&mut self) {
        self.open.clear();
    }
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
        // No turn is open, so an answer belongs to no question.
        log.answer("x");
        assert!(!log.cancel("x"));
        assert_eq!(log.turns(), 0);
    }

    #[test]
    fn calls_of_tools_belong_to_their_turn() {
        let mut log = ConversationLog::new();
        log.ask("weather?");
        let call = AssembledToolCall { id: "c1".into(), name: "f".into(), arguments: "{}".into() };
        log.called("", &[call]);
        log.result("c1", "21");
        assert_eq!(text(&log), "u:weather? a: t:21");
        log.answer("21 degrees");
        assert_eq!((log.turns(), log.messages().len()), (1, 4));
        assert_eq!(log.messages()[2].tool_call_id.as_deref(), Some("c1"));
        log.ask("b");
        log.answer("B");
        assert_eq!(log.take_back().as_deref(), Some("b"));
        assert_eq!(log.take_back().as_deref(), Some("weather?"), "with all that came of it");
        assert_eq!((log.take_back(), log.messages().len()), (None, 0));
    }
}
