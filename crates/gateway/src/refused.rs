//! A refusal: where, by which rule, which number it hit and the way out; and how each room's error becomes one.

use std::time::Duration;

use headrace_domain::{NanoDollars, Outcome, Stage, TracedRefusal};
use headrace_engine_api::{JobError, SubmitRefusal};
use headrace_ledger::LedgerRefusal;
use headrace_limits::{LimitRefusal, RateStanding};
use headrace_wire::{ErrorFacts, ErrorKind, LimitFacts, error_body};

use crate::Answer;
use crate::dossier::Dossier;
use crate::hold::rate_headers;

/// A request that goes no further, with its dossier.
pub(crate) struct Refused {
    pub(crate) dossier: Dossier,
    pub(crate) why: Box<Why>,
}

/// The facts of a refusal before the request's id is put to them.
#[derive(Debug, Clone)]
pub(crate) struct Why {
    pub(crate) stage: Stage,
    pub(crate) status: u16,
    pub(crate) kind: ErrorKind,
    pub(crate) code: String,
    /// The rule, where the trace is to say more than the caller is told.
    pub(crate) rule: Option<&'static str>,
    pub(crate) message: String,
    /// What the trace keeps instead, where the message repeats words of the caller.
    pub(crate) kept: Option<String>,
    pub(crate) param: Option<String>,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) limit: Option<LimitFacts>,
    /// Of a limit: how its counters stand.
    pub(crate) headers: Vec<(&'static str, String)>,
}

impl Dossier {
    /// Ends the request here.
    pub(crate) fn refuse(mut self, why: Why) -> Refused {
        self.mark(why.stage);
        Refused { dossier: self, why: Box::new(why) }
    }
}

impl Refused {
    /// The answer to the caller, and the trace record.
    pub(crate) fn finish(self) -> (Answer, Box<headrace_domain::TraceRecord>) {
        let answer = self.why.answer(&self.dossier);
        let outcome = Outcome::Refused(self.why.traced());
        (answer, self.dossier.close(outcome))
    }
}

impl Why {
    pub(crate) fn new(
        stage: Stage,
        status: u16,
        kind: ErrorKind,
        code: &str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            stage,
            status,
            kind,
            code: code.to_owned(),
            rule: None,
            message: message.into(),
            kept: None,
            param: None,
            retry_after: None,
            limit: None,
            headers: Vec::new(),
        }
    }

    /// A request that is wrong in itself: 400.
    pub(crate) fn bad_request(stage: Stage, code: &str, param: &str, message: impl Into<String>) -> Self {
        Self::new(stage, 400, ErrorKind::InvalidRequest, code, message).with_param(param)
    }

    pub(crate) fn with_param(mut self, param: &str) -> Self {
        self.param = Some(param.to_owned());
        self
    }

    /// The message repeats what the caller wrote: `kept` stands for it wherever it is stored. A secret pasted in the wrong
    /// place would be kept for as long as traces are.
    pub(crate) fn keeping(mut self, kept: impl Into<String>) -> Self {
        self.kept = Some(kept.into());
        self
    }

    pub(crate) fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    pub(crate) fn facts(&self, dossier: &Dossier) -> ErrorFacts {
        ErrorFacts {
            status: self.status,
            kind: self.kind,
            code: self.code.clone(),
            message: self.message.clone(),
            param: self.param.clone(),
            stage: self.stage,
            request_id: dossier.id,
            retry_after_s: self.retry_after.map(whole_seconds),
            limit: self.limit.clone(),
        }
    }

    pub(crate) fn answer(&self, dossier: &Dossier) -> Answer {
        let body = error_body(dossier.dialect, &self.facts(dossier));
        let answer = Answer::json(self.status, body).with_headers(dossier.id_headers());
        let answer = answer.with_headers(self.headers.iter().cloned());
        match self.retry_after {
            Some(wait) => answer.with_header("retry-after", whole_seconds(wait).to_string()),
            None => answer,
        }
    }

    pub(crate) fn traced(&self) -> TracedRefusal {
        let limit = self.limit.as_ref().map(|limit| limit.rule.as_str());
        TracedRefusal {
            stage: self.stage,
            rule: self.rule.or(limit).unwrap_or(&self.code).to_owned(),
            status: self.status,
            code: self.code.clone(),
            message: self.kept.as_ref().unwrap_or(&self.message).clone(),
        }
    }
}

/// Seconds, rounded up, at least one.
fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1)
}

impl Why {
    /// A limit is reached; the answer says how its counters stand, as a success does.
    pub(crate) fn limited(refusal: LimitRefusal, standing: &RateStanding) -> Self {
        Self { headers: rate_headers(standing), ..refusal.into() }
    }
}

impl From<LimitRefusal> for Why {
    fn from(refusal: LimitRefusal) -> Self {
        let message = match refusal.retry_after {
            Some(_) => format!("Limit reached: {refusal}."),
            None => format!("The call is larger than the limit: {refusal}."),
        };
        let mut why = Self::new(Stage::Hold, 429, ErrorKind::RateLimit, refusal.rule, message);
        // A call that can never fit is wrong in itself: waiting would not help.
        if refusal.retry_after.is_none() {
            why.status = 400;
            why.kind = ErrorKind::InvalidRequest;
        }
        why.retry_after = refusal.retry_after;
        why.limit = Some(LimitFacts {
            rule: refusal.rule.to_owned(),
            scope: format!("{}:{}", refusal.scope.kind(), refusal.scope.id()),
            limit: refusal.limit,
            observed: refusal.used.saturating_add(refusal.requested),
        });
        why
    }
}

/// How long a caller whose own calls hold the money is asked to wait.
const HELD_IN_FLIGHT_WAIT: Duration = Duration::from_secs(1);

impl From<LedgerRefusal> for Why {
    fn from(refusal: LedgerRefusal) -> Self {
        let billing =
            |message: String| Self::new(Stage::Hold, 402, ErrorKind::Billing, refusal.code(), message);
        match &refusal {
            LedgerRefusal::OutOfMoney { balance, held, needed } => billing(format!(
                "Out of money: this call can cost up to {needed}, the balance is {balance} ({held} of it held). \
                 Add credit (`headrace credit grant`) or ask for fewer tokens (`max_tokens`)."
            ))
            .with_amounts("balance", *balance, *needed),
            LedgerRefusal::HeldInFlight { balance, held, needed } => billing(format!(
                "Held by your own calls in flight: this call can cost up to {needed}; of the balance of {balance}, \
                 {held} is held. Wait for calls to finish, add credit, or ask for fewer tokens (`max_tokens`)."
            ))
            .retry_after(HELD_IN_FLIGHT_WAIT)
            .with_amounts("balance", *balance, *needed),
            LedgerRefusal::BudgetExceeded { project, limit, spent, held, needed, .. } => billing(format!(
                "The budget of project `{project}` is {limit}; {spent} is spent and {held} held, and this call can \
                 cost up to {needed}. Raise the budget (`headrace budget set`) or ask for fewer tokens."
            ))
            .with_amounts("budget", *limit, *needed),
            LedgerRefusal::UnknownProject { .. } | LedgerRefusal::UnknownOrg { .. } => billing(
                "This project has no account yet. Grant it credit (`headrace credit grant`).".to_owned(),
            ),
            LedgerRefusal::Busy { .. } | LedgerRefusal::Unavailable { .. } => {
                Self::journal_unavailable(&refusal.to_string())
            }
            LedgerRefusal::Overflow => Self::bad_request(
                Stage::Hold,
                "cost_overflow",
                "max_tokens",
                "What this call could cost does not fit 64-bit nano-dollars. Ask for fewer tokens.",
            ),
            _ => Self::new(
                Stage::Hold,
                500,
                ErrorKind::Internal,
                refusal.code(),
                format!("The ledger refused the hold: {refusal}. Nothing was charged."),
            ),
        }
    }
}

impl Why {
    /// Nothing is left for any call, whatever it would cost.
    pub(crate) fn nothing_to_spend(balance: NanoDollars, held: NanoDollars) -> Self {
        let billing = |code, message: String| Self::new(Stage::Hold, 402, ErrorKind::Billing, code, message);
        if held > NanoDollars::ZERO {
            billing(
                "held_in_flight",
                format!(
                    "Held by your own calls in flight: {held} of the balance of {balance}, and nothing is left for \
                     another call. Wait for calls to finish, or add credit (`headrace credit grant`)."
                ),
            )
            .retry_after(HELD_IN_FLIGHT_WAIT)
        } else {
            let message = format!("Out of money: the balance is {balance}. Add credit (`headrace credit grant`).");
            billing("out_of_money", message)
        }
        .with_amounts("balance", balance, held)
    }

    /// The ledger's journal cannot be written: no call may run.
    pub(crate) fn journal_unavailable(detail: &str) -> Self {
        Self::new(
            Stage::Hold,
            503,
            ErrorKind::Overloaded,
            "journal_unavailable",
            format!("The ledger cannot be written now, so nothing runs and nothing is charged: {detail}. Try again."),
        )
        .retry_after(Duration::from_secs(2))
    }

    /// The engine ended the job without an answer.
    pub(crate) fn job_failed(error: &JobError) -> Self {
        let (status, kind, code) = match error {
            JobError::Expired { .. } => (503, ErrorKind::Overloaded, "queue_expired"),
            JobError::ShuttingDown => (503, ErrorKind::Overloaded, "shutting_down"),
            JobError::NotFinite { .. } => (500, ErrorKind::Internal, "not_finite"),
            JobError::Cancelled | JobError::Panicked { .. } | JobError::Internal { .. } => {
                (500, ErrorKind::Internal, "engine_failed")
            }
        };
        let why = Self::new(
            Stage::Decode,
            status,
            kind,
            code,
            format!("{error}. What was not delivered is not charged."),
        );
        match error {
            JobError::Expired { retry_after } => why.retry_after(*retry_after),
            JobError::ShuttingDown => why.retry_after(Duration::from_secs(1)),
            _ => why,
        }
    }

    fn with_amounts(mut self, rule: &str, limit: NanoDollars, needed: NanoDollars) -> Self {
        self.limit = Some(LimitFacts {
            rule: rule.to_owned(),
            scope: "nano-dollars".to_owned(),
            limit: u64::try_from(limit.get()).unwrap_or(0),
            observed: u64::try_from(needed.get()).unwrap_or(0),
        });
        self
    }
}

impl From<SubmitRefusal> for Why {
    fn from(refusal: SubmitRefusal) -> Self {
        let overloaded = |code| {
            Self::new(
                Stage::Place,
                503,
                ErrorKind::Overloaded,
                code,
                format!("{refusal}. Nothing was charged."),
            )
        };
        match &refusal {
            SubmitRefusal::QueueFull { retry_after, .. } => {
                overloaded("queue_full").retry_after(*retry_after)
            }
            SubmitRefusal::TooLate { retry_after: Some(wait), .. } => {
                overloaded("deadline_too_short").retry_after(*wait)
            }
            // Its own prompt takes longer than it has: waiting would not help.
            SubmitRefusal::TooLate { retry_after: None, .. } => Self::bad_request(
                Stage::Place,
                "deadline_too_short",
                "timeout",
                format!("{refusal}. Allow more time or shorten the prompt. Nothing was charged."),
            ),
            SubmitRefusal::Unavailable { .. } => {
                overloaded("engine_unavailable").retry_after(Duration::from_secs(1))
            }
            SubmitRefusal::DoesNotFit { .. } => {
                Self::bad_request(Stage::Place, "context_length_exceeded", "max_tokens", refusal.to_string())
            }
            SubmitRefusal::Invalid { .. } => {
                Self::new(Stage::Place, 400, ErrorKind::InvalidRequest, "invalid_value", refusal.to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_try_again_is_told_when() {
        let seconds = |n| Some(Duration::from_secs(n));
        for (error, status, retry_after) in [
            (JobError::Expired { retry_after: Duration::from_secs(42) }, 503, seconds(42)),
            (JobError::ShuttingDown, 503, seconds(1)),
            (JobError::NotFinite { position: 3 }, 500, None),
        ] {
            let why = Why::job_failed(&error);
            assert_eq!((why.status, why.retry_after), (status, retry_after), "{error}");
        }
    }
}
