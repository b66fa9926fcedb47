//! The reasons for refusing a command: one enum with the numbers that a refusal must name. Knows no status codes; the
//! gateway maps them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{BudgetName, Code, HoldId, NanoDollars, OrgId, ProjectId, UnixNanos};

use crate::budget_rule::{BudgetMeasure, BudgetScope, BudgetWindow};
use crate::command::{ReleaseReason, StoredAnswer};
use crate::free_tier::FreeLeft;
use crate::lot::LotId;

/// The reason why a command was refused. A refused command changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LedgerRefusal {
    /// The balance does not cover the hold, even if all money in flight came back.
    OutOfMoney {
        /// The organisation's balance, including held money.
        balance: NanoDollars,
        /// The amount held by its calls in flight.
        held: NanoDollars,
        /// The amount that this call must hold.
        needed: NanoDollars,
        /// The amount that the balance, lots, contracts and free tiers cover of this call now.
        covered: NanoDollars,
        /// What is left of a free tier that covers the call, but not all of it. `None` without one.
        free: Option<Box<FreeLeft>>,
        /// Whether the project's calls may be cut to what the money covers.
        may_cap: bool,
    },
    /// The balance would cover the hold if the organisation's own calls in flight did not hold money. A retry can
    /// succeed.
    HeldInFlight {
        /// The organisation's balance, including held money.
        balance: NanoDollars,
        /// The amount held by its calls in flight.
        held: NanoDollars,
        /// The amount that this call must hold.
        needed: NanoDollars,
        /// The amount that the balance, lots, contracts and free tiers cover of this call now.
        covered: NanoDollars,
        /// What is left of a free tier that covers the call, but not all of it. `None` without one.
        free: Option<Box<FreeLeft>>,
        /// Whether the project's calls may be cut to what the money covers.
        may_cap: bool,
    },
    /// The project's budget does not cover the hold.
    BudgetExceeded {
        /// The project.
        project: ProjectId,
        /// The budget's limit.
        limit: NanoDollars,
        /// The amount spent in the budget's period.
        spent: NanoDollars,
        /// The amount held by the project's calls in flight.
        held: NanoDollars,
        /// The amount that this call must hold.
        needed: NanoDollars,
        /// The end of the period. `None` for a total budget.
        resets: Option<UnixNanos>,
    },
    /// A hard budget rule does not cover the hold.
    BudgetRuleExceeded(Box<ExceededBudget>),
    /// The calls in flight over all gateways have reached a limit.
    PlacesTaken {
        /// The kind of subject: `key`, `project`, `org` or `model`.
        kind: &'static str,
        /// The subject's id.
        subject: Box<str>,
        /// The limit.
        limit: u32,
    },
    /// No budget rule has this name.
    UnknownBudgetRule {
        /// The requested name.
        name: BudgetName,
    },
    /// A gateway of an older version shares the journal and could not read the change.
    OlderGateway {
        /// The journal format that the change needs.
        format: u32,
        /// The newest format that all live gateways read.
        known: u32,
    },
    /// No lot has this id, or it has ended.
    UnknownLot {
        /// The requested id.
        lot: LotId,
    },
    /// No free tier has this name.
    UnknownFreeTier {
        /// The requested name.
        name: BudgetName,
    },
    /// A refund exceeds what is left of its charge.
    RefundExceedsCharge {
        /// The hold.
        hold: HoldId,
        /// Its charge.
        charged: NanoDollars,
        /// The amount that was refunded before.
        refunded: NanoDollars,
        /// The requested amount.
        asked: NanoDollars,
    },
    /// The reference was used for another refund of the organisation.
    RefundReferenceUsed {
        /// The reference.
        reference: Arc<str>,
        /// The hold of that refund.
        hold: HoldId,
        /// The amount of that refund.
        amount: NanoDollars,
    },
    /// The project does not exist, or belongs to another organisation.
    UnknownProject {
        /// The requested project.
        project: ProjectId,
    },
    /// The organisation does not exist.
    UnknownOrg {
        /// The requested organisation.
        org: OrgId,
    },
    /// A project with this name belongs to another organisation.
    ProjectTaken {
        /// The project.
        project: ProjectId,
    },
    /// No hold with this id is known, or it was resolved long ago.
    UnknownHold {
        /// The requested hold.
        hold: HoldId,
    },
    /// The hold was already settled or released.
    AlreadyResolved {
        /// The hold.
        hold: HoldId,
        /// How the hold ended.
        how: HoldResolution,
    },
    /// A hold with this id exists or existed.
    DuplicateHold {
        /// The hold.
        hold: HoldId,
    },
    /// A call with this idempotency key is in progress.
    IdempotencyInFlight {
        /// The hold of that call.
        hold: HoldId,
    },
    /// The idempotency key was used with a different request.
    IdempotencyMismatch {
        /// The hold of the first call.
        hold: HoldId,
    },
    /// The call with this idempotency key has run and was charged. The stored answer should be returned.
    IdempotencyReplay {
        /// The hold of the first call. Its bits equal those of the call's request id.
        hold: HoldId,
        /// The stored answer. `None` if it was not kept, because the client cancelled the call or the answer was too
        /// long.
        answer: Option<Arc<StoredAnswer>>,
    },
    /// The project has used the maximum number of idempotency keys within the last 24 hours.
    TooManyKeys {
        /// The project.
        project: ProjectId,
        /// The maximum number of keys.
        limit: usize,
    },
    /// A field of the command is invalid.
    Invalid {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A sum would not fit 64-bit nano-dollars.
    Overflow,
    /// Too many changes wait for the disk. Only new work is refused for this reason, and never a settlement.
    Busy {
        /// The number of waiting changes.
        queued: usize,
        /// The maximum number of waiting changes.
        limit: usize,
    },
    /// The caller's key was revoked before its hold could be taken.
    CallerEnded,
    /// The journal cannot be written now, or the ledger is closed.
    Unavailable {
        /// The reason.
        why: Arc<str>,
    },
    /// A change that the ledger's own rules forbid, which is a bug in the ledger. Nothing was changed.
    Inconsistent {
        /// The rule.
        why: &'static str,
    },
}

/// A budget rule that does not cover a hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExceededBudget {
    /// The rule's name.
    pub name: BudgetName,
    /// The kind of its subjects.
    pub scope: BudgetScope,
    /// The subject whose counter is at its limit.
    pub subject: Arc<str>,
    /// What is counted.
    pub measure: BudgetMeasure,
    /// The length of the window.
    pub window: BudgetWindow,
    /// The limit in force, in the unit of the measure.
    pub limit: u64,
    /// The amount that ended calls used in the window.
    pub used: u64,
    /// The amount that calls in flight have reserved.
    pub reserved: u64,
    /// The amount that this call must reserve.
    pub needed: u64,
    /// The end of the window. `None` for a total.
    pub resets: Option<UnixNanos>,
    /// The time from the refusal to the end of the window. `None` for a total.
    pub wait: Option<Duration>,
}

impl ExceededBudget {
    /// The amount that is left.
    pub const fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used).saturating_sub(self.reserved)
    }

    /// Whether the call would fit if the subject's own calls in flight did not reserve anything. A retry can succeed then.
    pub fn fits_later(&self) -> bool {
        self.used.checked_add(self.needed).is_some_and(|sum| sum <= self.limit)
    }

    /// Whether less is left than of `other`, as a part of the limit. If equally much is left, the later end counts.
    pub(crate) fn is_nearer_than(&self, other: &Self) -> bool {
        let part = |of: &Self, limit: u64| u128::from(of.left()) * u128::from(limit.max(1));
        let (own, others) = (part(self, other.limit), part(other, self.limit));
        let end = |of: &Self| of.resets.map_or(u64::MAX, UnixNanos::get);
        own < others || (own == others && end(self) > end(other))
    }
}

impl fmt::Display for ExceededBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, scope, subject, measure, limit, used, reserved, needed, .. } = self;
        let amount = |n: u64| measure.amount(n);
        let window = match self.window {
            BudgetWindow::Total => String::new(),
            window => format!(" a {}", window.name()),
        };
        write!(
            f,
            "budget `{name}` allows {} `{subject}` {}{window}: {} used, {} reserved by calls in flight, and this call needs up to {}",
            scope.name(),
            amount(*limit),
            amount(*used),
            amount(*reserved),
            amount(*needed),
        )
    }
}

/// How a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldResolution {
    /// The hold was settled.
    Settled {
        /// The charged amount.
        charged: NanoDollars,
    },
    /// The hold was released without a charge.
    Released {
        /// The reason.
        why: ReleaseReason,
    },
}

impl LedgerRefusal {
    /// Returns the code for errors, traces and metrics.
    pub const fn code(&self) -> Code {
        match self {
            Self::OutOfMoney { .. } => Code::OutOfMoney,
            Self::HeldInFlight { .. } => Code::HeldInFlight,
            Self::BudgetExceeded { .. } => Code::BudgetExceeded,
            Self::BudgetRuleExceeded(exceeded) => match exceeded.measure {
                BudgetMeasure::Dollars => Code::BudgetRuleExceeded,
                BudgetMeasure::Tokens | BudgetMeasure::Requests => Code::QuotaExceeded,
            },
            Self::PlacesTaken { .. } => Code::Concurrency,
            Self::UnknownBudgetRule { .. } => Code::UnknownBudgetRule,
            Self::OlderGateway { .. } => Code::OlderGateway,
            Self::UnknownLot { .. } => Code::UnknownLot,
            Self::UnknownFreeTier { .. } => Code::UnknownFreeTier,
            Self::RefundExceedsCharge { .. } => Code::RefundExceedsCharge,
            Self::RefundReferenceUsed { .. } => Code::RefundReferenceUsed,
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
            Self::CallerEnded => Code::InvalidApiKey,
            Self::Busy { .. } => Code::LedgerBusy,
            Self::Unavailable { .. } => Code::LedgerUnavailable,
            Self::Inconsistent { .. } => Code::LedgerInconsistent,
        }
    }
}

impl fmt::Display for LedgerRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMoney { balance, held, needed, .. } => {
                write!(
                    f,
                    "this call can cost up to {needed}, and the balance is {balance} ({held} of it held by calls in flight): add credit"
                )
            }
            Self::HeldInFlight { balance, held, needed, .. } => {
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
            Self::BudgetRuleExceeded(exceeded) => {
                write!(f, "{exceeded}")?;
                match exceeded.resets {
                    Some(at) => write!(f, ". It begins anew at {}", headrace_domain::rfc3339::Rfc3339(at)),
                    None => f.write_str(": raise the budget"),
                }
            }
            Self::PlacesTaken { kind, subject, limit } => write!(
                f,
                "{kind} {subject} has {limit} calls in flight over all gateways, its limit: try again when one has ended"
            ),
            Self::UnknownBudgetRule { name } => {
                write!(f, "no budget {name}: `headrace budgets list` shows all")
            }
            Self::OlderGateway { format, known } => write!(
                f,
                "this needs journal format {format}, and a live gateway reads formats up to {known}: update all gateways (`headrace status` lists them), then try again"
            ),
            Self::UnknownLot { lot } => {
                write!(f, "no lot {lot}: `headrace lots list` shows those that have not ended")
            }
            Self::UnknownFreeTier { name } => {
                write!(f, "no free tier {name}: `headrace free-tiers list` shows all")
            }
            Self::RefundExceedsCharge { hold, charged, refunded, asked } => write!(
                f,
                "{hold} was charged {charged}, and {refunded} are refunded: {asked} more cannot be refunded"
            ),
            Self::RefundReferenceUsed { reference, hold, amount } => {
                write!(f, "reference {reference:?} is used by the refund of {amount} of {hold}")
            }
            Self::UnknownProject { project } => write!(f, "no project {project} in this organisation"),
            Self::UnknownOrg { org } => write!(f, "no organisation {org}"),
            Self::ProjectTaken { project } => {
                write!(f, "a project {project} belongs to another organisation: choose another name")
            }
            Self::UnknownHold { hold } => write!(f, "no hold {hold}"),
            Self::AlreadyResolved { hold, how: HoldResolution::Settled { charged } } => {
                write!(f, "{hold} was settled before, for {charged}")
            }
            Self::AlreadyResolved { hold, how: HoldResolution::Released { why } } => {
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
            Self::CallerEnded => f.write_str("the key of this call was revoked"),
            Self::Unavailable { why } => write!(f, "the ledger cannot be written: {why}"),
            Self::Inconsistent { why } => write!(f, "the ledger refused to break its own rule: {why}"),
        }
    }
}

impl std::error::Error for LedgerRefusal {}
