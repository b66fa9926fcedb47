//! The parts of a conversation that can be located in a prompt. Must not know templates or positions in a prompt.

/// A part of a conversation. All indices count from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PromptPart {
    /// A message's text.
    Message(usize),
    /// The reasoning that a message returns to the model.
    Reasoning(usize),
    /// A call of a tool, including its arguments.
    Call {
        /// Index of the message.
        message: usize,
        /// Index of the call within the message.
        call: usize,
    },
    /// A tool: name, description and parameters.
    Tool(usize),
}

impl PromptPart {
    /// A name that is put in front of the part's text while the part is located in a prompt.
    pub(crate) fn tag(self) -> String {
        match self {
            Self::Message(at) => format!("m{at}"),
            Self::Reasoning(at) => format!("r{at}"),
            Self::Call { message, call } => format!("c{message}.{call}"),
            Self::Tool(at) => format!("t{at}"),
        }
    }

    /// Returns the part with this tag.
    pub(crate) fn of_tag(tag: &str) -> Option<Self> {
        let number = |digits: &str| digits.parse::<usize>().ok();
        Some(match (tag.get(..1)?, tag.get(1..)?) {
            ("m", at) => Self::Message(number(at)?),
            ("r", at) => Self::Reasoning(number(at)?),
            ("t", at) => Self::Tool(number(at)?),
            ("c", of) => {
                let (message, call) = of.split_once('.')?;
                Self::Call { message: number(message)?, call: number(call)? }
            }
            _ => return None,
        })
    }

    /// Whether the part is written as a JSON object.
    pub(crate) const fn is_object(self) -> bool {
        matches!(self, Self::Tool(_) | Self::Call { .. })
    }
}
