//! What the operator of a model decides of its calls: what is done where a worker is lost or slow, and how tools are shown to it.
//! Knows no worker and no call.

use headrace_fleet::Hedge;

/// Of one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Policy {
    /// What follows where an answer breaks of which its client may have seen something.
    pub on_break: OnBreak,
    /// When a call that waits for its first word is put to a second worker; `None`: never.
    pub hedge: Option<Hedge>,
    /// In which order tools' schemas name properties.
    pub tools_order: ToolsOrder,
}

/// In which order the schemas of tools name properties, where a model is shown them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolsOrder {
    /// As their caller sent them.
    #[default]
    AsSent,
    /// Sorted, so that callers who name them in different orders share cached prefixes.
    Canonical,
}

impl ToolsOrder {
    /// Every one, in the order of a list.
    pub const ALL: [Self; 2] = [Self::AsSent, Self::Canonical];

    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AsSent => "sent",
            Self::Canonical => "canonical",
        }
    }
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
