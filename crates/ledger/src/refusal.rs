//! Why the ledger refused a command: one enum with the numbers that a refusal must name.
//! Knows nothing of status codes; the gateway maps these.

use std::fmt;
use std::sync::Arc;

use headrace_domain::{Code, HoldId, NanoDollars, OrgId, ProjectId, UnixNanos};

use crate::command::{ReleaseReason, StoredAnswer};

/// A command that changed nothing, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LedgerRefusal {
    /// The balance does not cover the hold, not even with everything in flight given back.
    OutOfMoney {
        /// The organisation's balance, money held included.
        balance: NanoDollars,
        /// What its calls in flight hold.
        held: NanoDollars,
        /// What this call must hold.
        needed: NanoDollars,
    },
    /// The balance would cover the hold but for the caller's own calls in flight: worth trying again.
    HeldInFlight {
        /// The organisation's balance, money held included.
        balance: NanoDollars,
        /// What its calls in flight hold.
        held: NanoDollars,
        /// What this call must hold.
        needed: NanoDollars,
    },
    /// The project's budget does not cover the hold.
    BudgetExceeded {
        /// The project.
        project: ProjectId,
        /// Its budget.
        limit: NanoDollars,
        /// Spent in the budget's period.
        spent: NanoDollars,
        /// What its calls in flight hold.
        held: NanoDollars,
        /// What this call must hold.
        needed: NanoDollars,
        /// When the period ends; `None` for a total budget.
        resets: Option<UnixNanos>,
    },
    /// No such project, or it belongs to another organisation.
    UnknownProject {
        /// The project asked for.
        project: ProjectId,
    },
    /// No such organisation.
    UnknownOrg {
        /// The organisation asked for.
        org: OrgId,
    },
    /// A project of that name belongs to another organisation.
    ProjectTaken {
        /// The project.
        project: ProjectId,
    },
    /// No hold of that id is known (or it was resolved long ago).
    UnknownHold {
        /// The hold asked for.
        hold: HoldId,
    },
    /// The hold was settled or released before.
    AlreadyResolved {
        /// The hold.
        hold: HoldId,
        /// How it ended.
        how: Resolution,
    },
    /// A hold of that id exists or existed.
    DuplicateHold {
        /// The hold.
        hold: HoldId,
    },
    /// A call with this idempotency key is running.
    IdempotencyInFlight {
        /// Its hold.
        hold: HoldId,
    },
    /// The idempotency key was used with another request.
    IdempotencyMismatch {
        /// The hold of the first call.
        hold: HoldId,
    },
    /// The call with this idempotency key has run and was charged: answer with what it answered.
    IdempotencyReplay {
        /// The hold of the first call, whose bits are its request id's.
        hold: HoldId,
        /// The stored answer; `None` if it was not kept (cancelled by the client, or too long).
        answer: Option<Arc<StoredAnswer>>,
    },
    /// The project has as many idempotency keys of the last 24 hours as are remembered.
    TooManyKeys {
        /// The project.
        project: ProjectId,
        /// How many are remembered.
        limit: usize,
    },
    /// A field of the command makes no sense.
    Invalid {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A sum would not fit 64-bit nano-dollars.
    Overflow,
    /// More changes wait for the disk than the queue takes. New work only; settling is never refused for this.
    Busy {
        /// How many wait.
        queued: usize,
        /// How many may.
        limit: usize,
    },
    /// The journal cannot be written now, or the ledger is closed.
    Unavailable {
        /// Why.
        why: Arc<str>,
    },
    /// A change that the ledger's own rules forbid: a fault in the ledger. Nothing was changed.
    Inconsistent {
        /// The rule.
        why: &'static str,
    },
}

/// How a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// It was settled.
    Settled {
        /// For so much.
        charged: NanoDollars,
    },
    /// It was released without a charge.
    Released {
        /// Why.
        why: ReleaseReason,
    },
}

impl LedgerRefusal {
    /// Its name in errors, traces and metrics.
    pub const fn code(&self) -> Code {
        match self {
            Self::OutOfMoney { .. } => Code::OutOfMoney,
            Self::HeldInFlight { .. } => Code::HeldInFlight,
            Self::BudgetExceeded { .. } => Code::BudgetExceeded,
            Self::UnknownProject { .. } => Code::UnknownProject,
            Self::UnknownOrg { .. } => Code::UnknownOrg,
            Self::ProjectTaken { .. } => Code::ProjectTaken,
            Self::UnknownHold { .. } => Code::UnknownHold,
            Self::AlreadyResolved { .. } => Code::AlreadyResolved,
            Self::DuplicateHold { .. } => Code::DuplicateHold,
            Self::IdempotencyInFlight { .. } => Code::IdempotencyInFlight,
            Self::IdempotencyMismatch { .. } => Code::IdempotencyMismatch,
            Self::IdempotencyReplay { .. } => Code::IdempotencyReplay,
            Self::TooManyKeys { .. } => Code::TooManyIdempotencyKeys,
            Self::Invalid { .. } => Code::Invalid,
            Self::Overflow => Code::Overflow,
            Self::Busy { .. } => Code::LedgerBusy,
            Self::Unavailable { .. } => Code::LedgerUnavailable,
            Self::Inconsistent { .. } => Code::LedgerInconsistent,
        }
    }
}

impl fmt::Display for LedgerRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMoney { balance, held, needed } => {
                write!(
                    f,
                    "this call can cost up to {needed}, and the balance is {balance} ({held} of it held by calls in flight): add credit"
                )
            }
            Self::HeldInFlight { balance, held, needed } => {
                write!(
                    f,
                    "this call can cost up to {needed}, and your own calls in flight hold {held} of the balance of {balance}: try again when they have ended"
                )
            }
            Self::BudgetExceeded { project, limit, spent, held, needed, resets } => {
                write!(
                    f,
                    "this call can cost up to {needed}, and project {project} has spent {spent} and holds {held} of its budget of {limit}"
                )?;
                match resets {
                    Some(at) => write!(f, ", which begins anew at {}", crate::calendar::date(*at)),
                    None => f.write_str(": raise the budget"),
                }
            }
            Self::UnknownProject { project } => write!(f, "no project {project} in this organisation"),
            Self::UnknownOrg { org } => write!(f, "no organisation {org}"),
            Self::ProjectTaken { project } => {
                write!(f, "a project {project} belongs to another organisation: choose another name")
            }
            Self::UnknownHold { hold } => write!(f, "no hold {hold}"),
            Self::AlreadyResolved { hold, how: Resolution::Settled { charged } } => {
                write!(f, "{hold} was settled before, for {charged}")
            }
            Self::AlreadyResolved { hold, how: Resolution::Released { why } } => {
                write!(f, "{hold} was released before ({why:?})")
            }
            Self::DuplicateHold { hold } => write!(f, "{hold} exists"),
            Self::IdempotencyInFlight { hold } => {
                write!(f, "a call with this idempotency key is running ({hold}): try again in a second")
            }
            Self::IdempotencyMismatch { hold } => {
                write!(f, "this idempotency key was used with another request ({hold}): use a new key")
            }
            Self::IdempotencyReplay { hold, .. } => {
                write!(f, "the call with this idempotency key has run ({hold})")
            }
            Self::TooManyKeys { project, limit } => {
                write!(
                    f,
                    "project {project} has used {limit} idempotency keys within 24 hours, the most that are remembered: send fewer keys"
                )
            }
            Self::Invalid { field, why } => write!(f, "{field}: {why}"),
            Self::Overflow => f.write_str("a sum does not fit 64-bit nano-dollars (±9.2 billion dollars)"),
            Self::Busy { queued, limit } => {
                write!(f, "{queued} changes wait for the disk and {limit} may: try again in a moment")
            }
            Self::Unavailable { why } => write!(f, "the ledger cannot be written: {why}"),
            Self::Inconsistent { why } => write!(f, "the ledger refused to break its own rule: {why}"),
        }
    }
}

impl std::error::Error for LedgerRefusal {}
