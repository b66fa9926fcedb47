//! The record policy of a project in requests and answers.

use headrace_domain::{RecordLevel, RecordRules};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a project records of its calls.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProjectRecords {
    /// What is recorded. `null` for what the server records.
    #[serde(default)]
    level: Option<RecordLevelName>,
    /// For how many seconds requests and answers are kept. `null` for the server's time.
    #[serde(default)]
    #[schemars(range(min = 1, max = 315_360_000))]
    keep_seconds: Option<u64>,
}

/// What is recorded. Each level includes the levels before it. `nothing`: times, counts and charges. `metadata`: labels
/// that callers send. `redacted`: requests and answers, with personal data replaced. `full`: requests and answers as
/// they were sent.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "RecordLevel")]
pub(crate) enum RecordLevelName {
    Nothing,
    Metadata,
    Redacted,
    Full,
}

impl From<RecordLevel> for RecordLevelName {
    fn from(level: RecordLevel) -> Self {
        match level {
            RecordLevel::Nothing => Self::Nothing,
            RecordLevel::Metadata => Self::Metadata,
            RecordLevel::Redacted => Self::Redacted,
            RecordLevel::Full => Self::Full,
        }
    }
}

impl From<RecordLevelName> for RecordLevel {
    fn from(level: RecordLevelName) -> Self {
        match level {
            RecordLevelName::Nothing => Self::Nothing,
            RecordLevelName::Metadata => Self::Metadata,
            RecordLevelName::Redacted => Self::Redacted,
            RecordLevelName::Full => Self::Full,
        }
    }
}

impl From<RecordRules> for ProjectRecords {
    fn from(rules: RecordRules) -> Self {
        let RecordRules { level, keep_seconds } = rules;
        Self { level: level.map(Into::into), keep_seconds }
    }
}

impl From<ProjectRecords> for RecordRules {
    fn from(records: ProjectRecords) -> Self {
        let ProjectRecords { level, keep_seconds } = records;
        Self { level: level.map(Into::into), keep_seconds }
    }
}
