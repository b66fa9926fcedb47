//! The parts of a conversation that a prompt is asked about.
//! Must not know templates, or where in a prompt a part stands.

/// A part of a conversation. Everything counts from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// A message's text.
    Message(usize),
    /// The reasoning that a message gives back.
    Reasoning(usize),
    /// A call of a tool, arguments included.
    Call {
        /// In which message.
        message: usize,
        /// Which of its calls.
        call: usize,
    },
    /// A tool: name, description and parameters.
    Tool(usize),
}

impl Part {
    /// A name that stands in front of its text while it is looked for.
    pub(crate) fn tag(self) -> String {
        match self {
            Self::Message(at) => format!("m{at}"),
            Self::Reasoning(at) => format!("r{at}"),
            Self::Call { message, call } => format!("c{message}.{call}"),
            Self::Tool(at) => format!("t{at}"),
        }
    }

    /// The part of that tag.
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

    /// Whether it is written as a JSON object.
    pub(crate) const fn is_object(self) -> bool {
        matches!(self, Self::Tool(_) | Self::Call { .. })
    }
}
