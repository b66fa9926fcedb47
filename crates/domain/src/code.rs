//! The error table: every name that an error, or a refusal in a trace, can have, with its stage, its meaning and the
//! way out. The error page is written from it, and metrics are sized by it. Must not know which code refuses, or the
//! request.

mod table;

pub use table::Code;

use std::fmt;

use crate::Stage;

/// The kind of an error. It decides each dialect's `type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request itself is wrong (400, 405, 409, 415, 422).
    InvalidRequest,
    /// The caller is unknown (401).
    Authentication,
    /// The caller is not allowed to do this (403).
    Permission,
    /// The thing does not exist, or the caller may not know that it exists (404).
    NotFound,
    /// No money is left, or all of it is held (402).
    Billing,
    /// A limit of the caller (429).
    RateLimit,
    /// Too many bytes (413, 431).
    RequestTooLarge,
    /// The request took too long (408, 504).
    Timeout,
    /// The service has no capacity (503, 507).
    Overloaded,
    /// This server or an upstream failed (500, 502, 503).
    Internal,
    /// A content rule (400).
    ContentPolicy,
}

/// A row of the table.
struct CodeRow {
    name: &'static str,
    stage: Stage,
    /// HTTP status and kind. `None` if callers are given another name instead.
    answer: Option<(u16, ErrorKind)>,
    meaning: &'static str,
    way_out: &'static str,
}

impl Code {
    /// Returns the name in errors, traces and metrics. It is also an anchor on the error page.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns the stage at which the error arises. If it can arise at several, returns the first.
    pub const fn stage(self) -> Stage {
        self.row().stage
    }

    /// Returns whether callers see this name. Otherwise it appears only in traces, logs and operators' errors.
    pub const fn is_public(self) -> bool {
        self.row().answer.is_some()
    }

    /// Returns the HTTP status. A name that callers should never see has 500, in case one is sent anyway.
    pub const fn status(self) -> u16 {
        match self.row().answer {
            Some((status, _)) => status,
            None => 500,
        }
    }

    /// Returns the kind of the error.
    pub const fn kind(self) -> ErrorKind {
        match self.row().answer {
            Some((_, kind)) => kind,
            None => ErrorKind::Internal,
        }
    }

    /// Returns what happened. The text repeats nothing of a request.
    pub const fn meaning(self) -> &'static str {
        self.row().meaning
    }

    /// Returns what a caller or an operator can do, and further background. May be empty.
    pub const fn way_out(self) -> &'static str {
        self.row().way_out
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_name_is_one_word_and_stands_there_once() {
        let names: BTreeSet<_> = Code::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(names.len(), Code::ALL.len());
        for code in Code::ALL {
            let word = |b: u8| b.is_ascii_lowercase() || b == b'_';
            assert!(code.name().bytes().all(word), "{code}");
            assert!(code.meaning().ends_with('.') && !code.way_out().ends_with(' '), "{code}");
        }
    }

    #[test]
    fn kinds_and_statuses_belong_together() {
        for code in Code::ALL {
            let statuses: &[u16] = match code.kind() {
                // 409: an ended batch can no longer be changed. OpenAI uses the same status.
                // 422: another request has the idempotency key, as draft-ietf-httpapi-idempotency-key-header-07 says.
                ErrorKind::InvalidRequest => &[400, 405, 409, 415, 422],
                ErrorKind::Authentication => &[401],
                ErrorKind::Permission => &[403],
                ErrorKind::NotFound => &[404],
                ErrorKind::Billing => &[402],
                ErrorKind::RateLimit => &[429],
                ErrorKind::RequestTooLarge => &[413, 431],
                ErrorKind::Timeout => &[408, 504],
                ErrorKind::Overloaded => &[503, 507],
                // 503: a model without a price is the operator's mistake, and can be fixed without a restart.
                ErrorKind::Internal => &[500, 502, 503],
                ErrorKind::ContentPolicy => &[400],
            };
            assert!(statuses.contains(&code.status()), "{code}: {}", code.status());
        }
    }
}
