//! Scopes and their configured limits. Plain data: the counters are elsewhere.

use std::fmt;

use headrace_domain::{KeyId, ModelName, OrgId, ProjectId};
use serde::{Deserialize, Serialize};

/// What a limit applies to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// One key.
    Key(KeyId),
    /// All keys of a project.
    Project(ProjectId),
    /// All projects of an organisation.
    Org(OrgId),
    /// All callers of a model.
    Model(ModelName),
}

impl Scope {
    /// The scope's kind: `key`, `project`, `org` or `model`.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Key(_) => "key",
            Self::Project(_) => "project",
            Self::Org(_) => "org",
            Self::Model(_) => "model",
        }
    }

    /// The id or name of the key, project, organisation or model.
    pub fn id(&self) -> &str {
        match self {
            Self::Key(id) => id.as_str(),
            Self::Project(id) => id.as_str(),
            Self::Org(id) => id.as_str(),
            Self::Model(name) => name.as_str(),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`", self.kind(), self.id())
    }
}

/// The limits of one scope. `None` means no limit; zero lets nothing through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitSpec {
    /// Requests per minute. A minute's worth may come at once.
    pub requests_per_minute: Option<u32>,
    /// Tokens per minute, input and output together. A minute's worth may come at once.
    pub tokens_per_minute: Option<u64>,
    /// Requests in flight.
    pub concurrency: Option<u32>,
}

impl LimitSpec {
    /// No limit at all.
    pub const UNLIMITED: Self =
        Self { requests_per_minute: None, tokens_per_minute: None, concurrency: None };

    /// Returns `true` if no limit is set.
    pub const fn is_unlimited(&self) -> bool {
        self.requests_per_minute.is_none() && self.tokens_per_minute.is_none() && self.concurrency.is_none()
    }

    /// The lower of each pair of limits.
    pub(crate) fn tighter(self, other: Self) -> Self {
        fn lower<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
            match (a, b) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (one, None) | (None, one) => one,
            }
        }
        Self {
            requests_per_minute: lower(self.requests_per_minute, other.requests_per_minute),
            tokens_per_minute: lower(self.tokens_per_minute, other.tokens_per_minute),
            concurrency: lower(self.concurrency, other.concurrency),
        }
    }
}
