//! Who can do something about a refusal, in words. Must not know codes.

/// Who can do something about a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Whoever makes the call.
    Caller,
    /// Whoever gives out the key: limits, rights, money.
    KeyOwner,
    /// Whoever runs the server.
    Operator,
    /// The caller, by asking for less, or the operator, by allowing more.
    Both,
    /// Nobody needs to: it passes, or nobody sees it.
    Nobody,
    /// The operator who asks for something.
    Asker,
    /// An operator who gives out roles.
    Owner,
    /// Whoever runs the machine and its configuration.
    Machine,
}

impl Who {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Caller => "Whoever makes the call, by changing the request or the client.",
            Self::KeyOwner => {
                "Whoever gives out the key: its project's owner, or the operator (`headrace keys`, `headrace orgs`, `headrace credit`, `headrace budget`)."
            }
            Self::Operator => "Whoever runs the server. For callers: report it, or try again later.",
            Self::Both => "The caller, by asking for less; the operator, by allowing more.",
            Self::Nobody => "Nobody needs to.",
            Self::Asker => "The operator who asks, by asking for something else.",
            Self::Owner => "An operator with the role owner (`headrace operators`).",
            Self::Machine => "Whoever runs the server: its disk, its files, its configuration.",
        }
    }
}
