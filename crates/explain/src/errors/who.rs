//! The people who can do something about a refusal, in words. Must not know codes.

/// The person who can do something about a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// The developer who makes the call.
    Caller,
    /// The person who issues the key: limits, rights, money.
    KeyOwner,
    /// The person who runs the server.
    Operator,
    /// The caller, by asking for less, or the operator, by allowing more.
    Both,
    /// No action is needed: it passes, or no caller sees it.
    Nobody,
    /// The operator who sends the request.
    Asker,
    /// An operator who assigns roles.
    Owner,
    /// The person who runs the machine and its configuration.
    Machine,
}

impl Who {
    /// The description in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Caller => "The caller, by changing the request or the client.",
            Self::KeyOwner => {
                "The person who issues the key: the project's owner, or the operator (`headrace keys`, `headrace orgs`, `headrace credit`, `headrace budget`)."
            }
            Self::Operator => "The operator of the server. Callers: report the error, or try again later.",
            Self::Both => "The caller, by requesting less, or the operator, by allowing more.",
            Self::Nobody => "No action is needed.",
            Self::Asker => "The operator who sends the request, by changing the request.",
            Self::Owner => "An operator with the role owner (`headrace operators`).",
            Self::Machine => "The person who runs the server: its disk, its files, its configuration.",
        }
    }
}
