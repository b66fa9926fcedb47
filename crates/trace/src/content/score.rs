//! Scores that people and programs give to calls: a name, a number, and a comment. Plain data.

use std::fmt;

use headrace_domain::rfc3339;
use headrace_domain::{RequestId, UnixNanos};
use serde::{Deserialize, Serialize};

/// Maximum bytes of a score's name.
const MAX_NAME_BYTES: usize = 64;
/// Maximum bytes of a comment.
const MAX_COMMENT_BYTES: usize = 1024;
/// Largest absolute value.
const MAX_VALUE: f64 = 1e9;

/// The name of a score or a dataset: 1 to 64 letters, digits, `.`, `_` and `-`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RecordName(String);

impl RecordName {
    /// Checks a name.
    ///
    /// # Errors
    /// A message that says what a name must be.
    pub fn new(text: &str) -> Result<Self, String> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let starts = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if starts && text.len() <= MAX_NAME_BYTES && text.bytes().all(fits) {
            return Ok(Self(text.to_owned()));
        }
        Err(format!(
            "it must have 1 to {MAX_NAME_BYTES} letters, digits, `.`, `_` and `-`, and start with a letter or digit"
        ))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for RecordName {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        Self::new(&text)
    }
}

impl From<RecordName> for String {
    fn from(name: RecordName) -> Self {
        name.0
    }
}

impl std::str::FromStr for RecordName {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::new(text)
    }
}

impl fmt::Display for RecordName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The value of a score, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct ScoreValue(i64);

impl ScoreValue {
    /// The value of this many millionths.
    pub const fn of_millionths(millionths: i64) -> Self {
        Self(millionths)
    }

    /// The value in millionths.
    pub const fn millionths(self) -> i64 {
        self.0
    }
}

impl TryFrom<f64> for ScoreValue {
    type Error = String;

    fn try_from(value: f64) -> Result<Self, String> {
        if !value.is_finite() || value.abs() > MAX_VALUE {
            return Err(format!("it must be a number from -{MAX_VALUE} to {MAX_VALUE}"));
        }
        Ok(Self((value * 1e6).round() as i64))
    }
}

impl From<ScoreValue> for f64 {
    fn from(value: ScoreValue) -> Self {
        value.0 as Self / 1e6
    }
}

impl std::str::FromStr for ScoreValue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let value: f64 = text.parse().map_err(|_| "it must be a number, such as 0.8".to_owned())?;
        Self::try_from(value)
    }
}

impl fmt::Display for ScoreValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f64::from(*self).fmt(f)
    }
}

/// A score of a call. A call has at most one score of each name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallScore {
    /// The call.
    pub id: RequestId,
    /// What is scored, such as `quality`.
    pub name: RecordName,
    /// The value.
    pub value: ScoreValue,
    /// A remark. Empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub comment: String,
    /// Who gave the score.
    pub actor: String,
    /// When it was given.
    #[serde(with = "rfc3339")]
    pub at: UnixNanos,
}

impl CallScore {
    /// Checks the comment.
    ///
    /// # Errors
    /// A message that says how long a comment may be.
    pub fn check(&self) -> Result<(), String> {
        if self.comment.len() > MAX_COMMENT_BYTES {
            return Err(format!("the comment must have at most {MAX_COMMENT_BYTES} bytes"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_checked() {
        for good in ["quality", "a.b_c-1", "7"] {
            assert_eq!(RecordName::new(good).unwrap().as_str(), good);
        }
        for bad in ["", ".a", "a b", "é", "a/b", &"x".repeat(65)] {
            assert!(RecordName::new(bad).is_err(), "{bad}");
        }
        let value: ScoreValue = "0.8".parse().unwrap();
        assert_eq!((value.millionths(), value.to_string()), (800_000, "0.8".to_owned()));
        assert_eq!(serde_json::from_str::<ScoreValue>("-1").unwrap().millionths(), -1_000_000);
        for bad in ["NaN", "inf", "1e10", "x", ""] {
            assert!(bad.parse::<ScoreValue>().is_err(), "{bad}");
        }
    }
}
