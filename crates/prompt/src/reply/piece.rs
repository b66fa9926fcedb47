//! What a machine makes of an answer's text. Must not know events, or the ids that calls get.

/// A piece of an answer, as far as it is decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Text of the answer.
    Text(String),
    /// Text of a thought.
    Thought(String),
    /// A call begins.
    Call {
        /// Its id, where the model gives one.
        id: Option<String>,
        name: String,
    },
    /// More of the last call's arguments.
    Arguments(String),
}

/// Pieces in their order, neighbours of a kind joined.
#[derive(Debug, Default)]
pub(crate) struct Pieces(Vec<Piece>);

impl Pieces {
    pub(crate) fn text(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Text(last)) => last.push_str(text),
            _ => self.0.push(Piece::Text(text.to_owned())),
        }
    }

    pub(crate) fn thought(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Thought(last)) => last.push_str(text),
            _ => self.0.push(Piece::Thought(text.to_owned())),
        }
    }

    pub(crate) fn call(&mut self, id: Option<String>, name: String) {
        self.0.push(Piece::Call { id, name });
    }

    pub(crate) fn arguments(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Piece::Arguments(last)) => last.push_str(text),
            _ => self.0.push(Piece::Arguments(text.to_owned())),
        }
    }

    pub(crate) fn take(&mut self) -> Vec<Piece> {
        std::mem::take(&mut self.0)
    }
}

/// A call being read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Draft {
    /// Its id, where the model gives one.
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    /// The arguments as far as they are read: JSON.
    pub(crate) arguments: String,
    /// Name and arguments are whole.
    pub(crate) whole: bool,
}
