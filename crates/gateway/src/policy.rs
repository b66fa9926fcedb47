//! What is done where a worker is lost or slow, as far as the operator of a model decides it. Knows no worker and no call.

use headrace_fleet::Hedge;

/// Of one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Policy {
    /// What follows where an answer breaks of which its client may have seen something.
    pub on_break: OnBreak,
    /// When a call that waits for its first word is put to a second worker; `None`: never.
    pub hedge: Option<Hedge>,
}

/// What follows where an answer breaks in its middle, and nobody can go on with it as if nothing had happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnBreak {
    /// It ends with an error.
    #[default]
    Error,
    /// Another worker goes on with it from the tokens that are there, in its own way, and that is told.
    Continue,
}

impl OnBreak {
    /// Every one, in the order of a list.
    pub const ALL: [Self; 2] = [Self::Error, Self::Continue];

    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Continue => "continue",
        }
    }
}
