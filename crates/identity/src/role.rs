//! The roles of operators and users. Must not know what a role may do.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An operator's role. The administrative interface decides what each role may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Everything, including operators.
    Owner,
    /// Everything except operators.
    Admin,
    /// Everything about money.
    Billing,
    /// Keys and the playground.
    Developer,
    /// Read-only access.
    Viewer,
}

impl Role {
    /// All roles, the most powerful first.
    pub const ALL: [Self; 5] = [Self::Owner, Self::Admin, Self::Billing, Self::Developer, Self::Viewer];

    /// The role's name in configuration and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Admin => "admin",
            Self::Billing => "billing",
            Self::Developer => "developer",
            Self::Viewer => "viewer",
        }
    }

    /// The role with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
