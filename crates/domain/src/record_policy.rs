//! What is recorded of a project's calls, and for how long. Plain data. Must not know where it is stored.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What is recorded of a call. Each level includes the levels before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordLevel {
    /// Times, counts and charges. No label that names a person.
    Nothing,
    /// Also the labels that the caller sends: the end user and `metadata`.
    #[default]
    Metadata,
    /// Also request and answer, with personal data replaced.
    Redacted,
    /// Also request and answer as they were sent.
    Full,
}

impl RecordLevel {
    /// All levels, from the least to the most.
    pub const ALL: [Self; 4] = [Self::Nothing, Self::Metadata, Self::Redacted, Self::Full];

    /// The name in settings and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Metadata => "metadata",
            Self::Redacted => "redacted",
            Self::Full => "full",
        }
    }

    /// Whether labels of the caller are recorded.
    pub const fn has_labels(self) -> bool {
        !matches!(self, Self::Nothing)
    }

    /// Whether request and answer are recorded.
    pub const fn has_content(self) -> bool {
        matches!(self, Self::Redacted | Self::Full)
    }
}

impl fmt::Display for RecordLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for RecordLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|level| level.name() == text);
        found.ok_or_else(|| format!("it must be one of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// The policy of a server, or the one in force for a project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordPolicy {
    /// What is recorded.
    pub level: RecordLevel,
    /// How many seconds requests and answers are kept.
    pub keep_seconds: u64,
}

impl Default for RecordPolicy {
    /// Labels, and no content. Content of projects that record it is kept for 30 days.
    fn default() -> Self {
        Self { level: RecordLevel::Metadata, keep_seconds: 30 * 24 * 3600 }
    }
}

impl RecordPolicy {
    /// Returns this policy with the rules of a project in place of its own.
    #[must_use]
    pub fn with(self, rules: RecordRules) -> Self {
        Self {
            level: rules.level.unwrap_or(self.level),
            keep_seconds: rules.keep_seconds.unwrap_or(self.keep_seconds),
        }
    }
}

/// What a project sets of its policy. The server's policy applies to the rest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RecordRules {
    /// What is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<RecordLevel>,
    /// How many seconds requests and answers are kept: 1 to [`RecordRules::MAX_KEEP_SECONDS`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_seconds: Option<u64>,
}

impl RecordRules {
    /// Maximum time that requests and answers are kept, in seconds: ten years.
    pub const MAX_KEEP_SECONDS: u64 = 3650 * 24 * 3600;

    /// Whether the server's policy applies to everything.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the kept time is within its bounds.
    pub fn is_valid(&self) -> bool {
        self.keep_seconds.is_none_or(|seconds| (1..=Self::MAX_KEEP_SECONDS).contains(&seconds))
    }
}

impl fmt::Display for RecordRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.level {
            Some(level) => write!(f, "records {level}")?,
            None => f.write_str("records what the server does")?,
        }
        self.keep_seconds.map_or(Ok(()), |seconds| write!(f, ", kept {seconds} s"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_include_those_before_them() {
        let has = |level: RecordLevel| (level.has_labels(), level.has_content());
        assert_eq!(RecordLevel::ALL.map(has), [(false, false), (true, false), (true, true), (true, true)]);
        for level in RecordLevel::ALL {
            assert_eq!(level.name().parse(), Ok(level));
            assert_eq!(serde_json::to_value(level).unwrap(), level.name());
        }
        assert!("all".parse::<RecordLevel>().unwrap_err().contains("nothing, metadata, redacted, full"));
    }

    #[test]
    fn a_project_overrides_a_part_of_the_policy() {
        let server = RecordPolicy { level: RecordLevel::Full, keep_seconds: 60 };
        let rules = RecordRules { level: Some(RecordLevel::Nothing), keep_seconds: None };
        assert_eq!(server.with(rules), RecordPolicy { level: RecordLevel::Nothing, keep_seconds: 60 });
        assert_eq!(server.with(RecordRules::default()), server);
        let keeps =
            |seconds| RecordRules { keep_seconds: Some(seconds), ..RecordRules::default() }.is_valid();
        assert!(keeps(1) && keeps(RecordRules::MAX_KEEP_SECONDS));
        assert!(!keeps(0) && !keeps(RecordRules::MAX_KEEP_SECONDS + 1));
    }
}
