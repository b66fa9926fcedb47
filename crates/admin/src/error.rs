//! Errors: a refused command with a remedy, or a server that cannot be reached. Must not contain secrets.

use std::fmt;
use std::path::PathBuf;

use headrace_domain::AdminCode;
use headrace_identity::IdentityError;
use headrace_ledger::{JournalFailed, LedgerRefusal};
use serde::{Deserialize, Serialize};

/// Why a command was not executed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdminError {
    /// A stable code for programs. Each code has a page in the documentation.
    pub code: AdminCode,
    /// What is wrong.
    pub message: String,
    /// What to do about it. Empty if the message says it.
    pub remedy: String,
}

impl AdminError {
    /// Makes an error.
    pub fn new(code: AdminCode, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { code, message: message.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "\n  try: {}", self.remedy) }
    }
}

impl std::error::Error for AdminError {}

impl From<IdentityError> for AdminError {
    fn from(error: IdentityError) -> Self {
        let (code, remedy) = match &error {
            IdentityError::UnknownAccount(_) | IdentityError::InactiveUser(_) => {
                (AdminCode::UnknownAccount, "headrace users list, or headrace service-accounts list")
            }
            IdentityError::UnknownTier(_) => {
                (AdminCode::UnknownTier, "headrace tiers list, or headrace tiers create NAME")
            }
            IdentityError::TierInUse { .. } => (AdminCode::TierInUse, "headrace tiers unassign"),
            IdentityError::UnknownKey(_) => (AdminCode::UnknownKey, "headrace keys list"),
            IdentityError::UnknownOperator(_) => (AdminCode::UnknownOperator, "headrace operators list"),
            IdentityError::LastOwner => (
                AdminCode::LastOwner,
                "headrace operators create --name NAME --role owner makes another first",
            ),
            IdentityError::UnknownOrg(_) => {
                (AdminCode::UnknownOrg, "headrace orgs list, or headrace orgs create ID")
            }
            IdentityError::UnknownProject(_) => (
                AdminCode::UnknownProject,
                "headrace projects list, or headrace projects create ID --org ORG",
            ),
            IdentityError::ProjectOfAnotherOrg { .. } => {
                (AdminCode::ProjectOfAnotherOrg, "headrace projects list")
            }
            IdentityError::Exists { .. } => {
                (AdminCode::Exists, "choose another name, or use the one that is there")
            }
            IdentityError::Invalid { .. } | IdentityError::Rotated { .. } => (AdminCode::Invalid, ""),
            IdentityError::Widens { .. } => {
                (AdminCode::Widens, "headrace orgs list shows where an organisation's calls may be")
            }
            IdentityError::WrongSecret => (AdminCode::WrongSecret, ""),
            IdentityError::Randomness => (AdminCode::Randomness, ""),
            IdentityError::Store(_) => (
                AdminCode::StoreFailed,
                "see that the disk has space and the data directory is yours, then try again",
            ),
        };
        Self::new(code, error.to_string(), remedy)
    }
}

impl From<LedgerRefusal> for AdminError {
    fn from(refusal: LedgerRefusal) -> Self {
        let remedy = match &refusal {
            LedgerRefusal::UnknownOrg { .. } => {
                "headrace orgs list; an organisation has an account once it has a project: headrace projects create ID --org ORG"
            }
            LedgerRefusal::UnknownProject { .. } => "headrace projects list",
            LedgerRefusal::Unavailable { .. } => "see that the disk has space, then try again",
            _ => "",
        };
        Self::new(code_of(&refusal), refusal.to_string(), remedy)
    }
}

/// The operator's error code for a refusal by the ledger.
const fn code_of(refusal: &LedgerRefusal) -> AdminCode {
    match refusal {
        LedgerRefusal::UnknownProject { .. } => AdminCode::UnknownProject,
        LedgerRefusal::UnknownOrg { .. } => AdminCode::UnknownOrg,
        LedgerRefusal::ProjectTaken { .. } => AdminCode::ProjectTaken,
        LedgerRefusal::Invalid { .. } => AdminCode::Invalid,
        LedgerRefusal::Overflow => AdminCode::Overflow,
        LedgerRefusal::Busy { .. } => AdminCode::LedgerBusy,
        LedgerRefusal::Unavailable { .. } => AdminCode::LedgerUnavailable,
        LedgerRefusal::Inconsistent { .. } => AdminCode::LedgerInconsistent,
        LedgerRefusal::UnknownBudgetRule { .. } => AdminCode::UnknownBudget,
        LedgerRefusal::OlderGateway { .. } => AdminCode::OlderGateway,
        LedgerRefusal::UnknownLot { .. } => AdminCode::UnknownLot,
        LedgerRefusal::UnknownFreeTier { .. } => AdminCode::UnknownFreeTier,
        LedgerRefusal::RefundExceedsCharge { .. } => AdminCode::RefundExceedsCharge,
        LedgerRefusal::RefundReferenceUsed { .. } => AdminCode::ReferenceUsed,
        // These refusals concern calls only. No admin command holds, settles or has an idempotency key.
        LedgerRefusal::OutOfMoney { .. }
        | LedgerRefusal::CallerEnded
        | LedgerRefusal::HeldInFlight { .. }
        | LedgerRefusal::BudgetExceeded { .. }
        | LedgerRefusal::BudgetRuleExceeded(_)
        | LedgerRefusal::PlacesTaken { .. }
        | LedgerRefusal::UnknownHold { .. }
        | LedgerRefusal::AlreadyResolved { .. }
        | LedgerRefusal::DuplicateHold { .. }
        | LedgerRefusal::IdempotencyInFlight { .. }
        | LedgerRefusal::IdempotencyMismatch { .. }
        | LedgerRefusal::IdempotencyReplay { .. }
        | LedgerRefusal::TooManyKeys { .. } => AdminCode::Internal,
    }
}

impl From<JournalFailed> for AdminError {
    fn from(failed: JournalFailed) -> Self {
        Self::new(
            AdminCode::LedgerUnavailable,
            failed.to_string(),
            "see that the disk has space, then try again",
        )
    }
}

/// Why the control socket could not be used.
#[derive(Debug)]
pub enum ControlError {
    /// No server runs on this data directory.
    NotRunning {
        /// The directory.
        data_dir: PathBuf,
    },
    /// The socket's path is longer than the operating system allows.
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Maximum length, in bytes.
        limit_bytes: usize,
    },
    /// The socket could not be created, opened, read or written.
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The socket's path.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The other side's answer does not fit the protocol, for example because it runs another version.
    Protocol {
        /// What was wrong.
        why: String,
    },
    /// The server refused the command.
    Refused(AdminError),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRunning { data_dir } => {
                write!(f, "no server runs on {}: start it with `headrace up`", data_dir.display())
            }
            Self::PathTooLong { path, limit_bytes } => write!(
                f,
                "the control socket's path {} is longer than the {limit_bytes} bytes that this system takes: choose a shorter data directory",
                path.display()
            ),
            Self::Io { doing, path, source } => write!(f, "cannot {doing} {}: {source}", path.display()),
            Self::Protocol { why } => write!(
                f,
                "the running server answered in another way than this program expects ({why}): use the same version for both"
            ),
            Self::Refused(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ControlError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Refused(error) => Some(error),
            _ => None,
        }
    }
}
