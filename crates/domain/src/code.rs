//! The table of refusals: every name that an error, or a refusal in a trace, can have; where it arises, what it means and the
//! way out. The error page is written from it, and metrics are sized by it. Must not know who refuses, or what about.

mod table;

pub use table::Code;

use std::fmt;

use crate::Stage;

/// What kind of error: decides each dialect's `type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request itself is wrong (400, 409, 415, 422).
    InvalidRequest,
    /// Who calls is not known (401).
    Authentication,
    /// Who calls may not (403).
    Permission,
    /// There is no such thing, or none that the caller may know of (404).
    NotFound,
    /// Money: none left, or all of it held (402).
    Billing,
    /// A limit of the caller's (429).
    RateLimit,
    /// Too many bytes (413, 431).
    RequestTooLarge,
    /// It took too long (408, 504).
    Timeout,
    /// The service is full (503).
    Overloaded,
    /// We or an upstream failed (500, 502).
    Internal,
    /// A rule on content (400).
    ContentPolicy,
}

/// A row of the table.
struct Row {
    name: &'static str,
    stage: Stage,
    /// Status and kind; `None`: callers are told another name.
    answer: Option<(u16, ErrorKind)>,
    meaning: &'static str,
    way_out: &'static str,
}

impl Code {
    /// The name in errors, traces and metrics, which is an anchor on the error page.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// Where it arises; where it can at several stages, the first of them.
    pub const fn stage(self) -> Stage {
        self.row().stage
    }

    /// Whether callers are told this name; otherwise it stands in traces, logs and operators' errors only.
    pub const fn is_told(self) -> bool {
        self.row().answer.is_some()
    }

    /// The HTTP status of its answer: 500 where a name that nobody should be told is told all the same.
    pub const fn status(self) -> u16 {
        match self.row().answer {
            Some((status, _)) => status,
            None => 500,
        }
    }

    /// What kind of error its answer is.
    pub const fn kind(self) -> ErrorKind {
        match self.row().answer {
            Some((_, kind)) => kind,
            None => ErrorKind::Internal,
        }
    }

    /// What happened. Repeats nothing of a request.
    pub const fn meaning(self) -> &'static str {
        self.row().meaning
    }

    /// What a caller or an operator can do, and what else there is to know. May be empty.
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
                // 409: what has ended can be changed no more, as OpenAI says it of batches.
                ErrorKind::InvalidRequest => &[400, 405, 409, 415],
                ErrorKind::Authentication => &[401],
                ErrorKind::Permission => &[403],
                ErrorKind::NotFound => &[404],
                ErrorKind::Billing => &[402],
                ErrorKind::RateLimit => &[429],
                ErrorKind::RequestTooLarge => &[413, 431],
                ErrorKind::Timeout => &[408, 504],
                ErrorKind::Overloaded => &[503, 507],
                // A model without a price is the operator's fault, and mended without a restart.
                ErrorKind::Internal => &[500, 502, 503],
                ErrorKind::ContentPolicy => &[400],
            };
            assert!(statuses.contains(&code.status()), "{code}: {}", code.status());
        }
    }
}
