//! The pieces into which a machine splits an answer's text. Must not know events or the ids that calls get.

/// A decided piece of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReplyPiece {
    /// Text of the answer.
    Text(String),
    /// Text of the model's reasoning.
    Thought(String),
    /// The beginning of a call.
    Call {
        /// The call's id, if the model gives one.
        id: Option<String>,
        name: String,
    },
    /// More of the arguments of the last call.
    Arguments(String),
}

/// Pieces in order. Neighbours of the same kind are joined.
#[derive(Debug, Default)]
pub(crate) struct ReplyPieces(Vec<ReplyPiece>);

impl ReplyPieces {
    pub(crate) fn text(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(ReplyPiece::Text(last)) => last.push_str(text),
            _ => self.0.push(ReplyPiece::Text(text.to_owned())),
        }
    }

    pub(crate) fn thought(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(ReplyPiece::Thought(last)) => last.push_str(text),
            _ => self.0.push(ReplyPiece::Thought(text.to_owned())),
        }
    }

    pub(crate) fn call(&mut self, id: Option<String>, name: String) {
        self.0.push(ReplyPiece::Call { id, name });
    }

    pub(crate) fn arguments(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(ReplyPiece::Arguments(last)) => last.push_str(text),
            _ => self.0.push(ReplyPiece::Arguments(text.to_owned())),
        }
    }

    pub(crate) fn take(&mut self) -> Vec<ReplyPiece> {
        std::mem::take(&mut self.0)
    }
}

/// A call that is being read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CallDraft {
    /// The call's id, if the model gives one.
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    /// The arguments read so far, as JSON.
    pub(crate) arguments: String,
    /// Whether name and arguments are complete.
    pub(crate) whole: bool,
}
