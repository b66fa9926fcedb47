//! Rejections: the stage, the rule, the number that was reached and the remedy. Converts the errors of all crates
//! into rejections.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use headrace_domain::rfc3339::Rfc3339;
use headrace_domain::{
    Code, Dialect, ErrorKind, NanoDollars, Stage, TracedFailure, TracedRefusal, UnixNanos,
};
use headrace_engine_api::{JobError, SubmitRefusal};
use headrace_identity::AuthRefusal;
use headrace_ledger::{BudgetMeasure, BudgetWindow, ExceededBudget, FreeLeft, LedgerRefusal};
use headrace_limits::{LimitRefusal, RateStanding};
use headrace_wire::{BadRequest, ErrorFacts, LimitFacts, error_body};

use crate::answer::{Answer, AnsweredRequest};
use crate::memory::{NoMemory, mib};
use crate::rates::rate_headers;
use crate::render_gate::NoTurn;

mod body;
mod idempotency;

/// Why a request is rejected. `domain::Code` documents each code. This type carries the numbers.
#[derive(Debug, Clone)]
pub struct Rejection(Box<RejectionFacts>);

/// The facts of a rejection, before the request's id is added.
#[derive(Debug, Clone)]
pub struct RejectionFacts {
    /// The code.
    pub code: Code,
    /// The stage that rejects.
    pub stage: Stage,
    /// The HTTP status.
    pub status: u16,
    /// The kind, as dialects name it.
    pub kind: ErrorKind,
    /// The rule for the trace, if it is more specific than the code that the caller gets.
    pub rule: Option<Code>,
    /// The message for the caller.
    pub message: String,
    /// The message for the trace, if `message` repeats words of the caller.
    pub kept: Option<String>,
    /// The parameter at fault.
    pub param: Option<String>,
    /// When a retry may succeed.
    pub retry_after: Option<Duration>,
    /// The limit that was reached.
    pub limit: Option<LimitFacts>,
    /// Headers with the state of the counters, if a limit was reached.
    pub headers: Vec<(&'static str, String)>,
}

impl Deref for Rejection {
    type Target = RejectionFacts;

    fn deref(&self) -> &RejectionFacts {
        &self.0
    }
}

impl DerefMut for Rejection {
    fn deref_mut(&mut self) -> &mut RejectionFacts {
        &mut self.0
    }
}

impl Rejection {
    /// The name that was asked for has retired.
    pub fn retired(message: String) -> Self {
        Self::new(Code::ModelNotFound, message).with_param("model")
    }

    /// A rejection with the stage, status and kind of its code.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Box::new(RejectionFacts {
            code,
            stage: code.stage(),
            status: code.status(),
            kind: code.kind(),
            rule: None,
            message: message.into(),
            kept: None,
            param: None,
            retry_after: None,
            limit: None,
            headers: Vec::new(),
        }))
    }

    /// Sets a stage that differs from the code's usual one.
    pub fn at(mut self, stage: Stage) -> Self {
        self.stage = stage;
        self
    }

    /// Turns the rejection into a 400, because waiting, the code's usual remedy, cannot help.
    pub fn never(mut self) -> Self {
        self.status = 400;
        self.kind = ErrorKind::InvalidRequest;
        self
    }

    /// Names the parameter at fault.
    pub fn with_param(mut self, param: &str) -> Self {
        self.param = Some(param.to_owned());
        self
    }

    /// Sets the message that is stored instead of one that repeats the caller's words. A secret pasted in the wrong
    /// place would otherwise be kept for as long as traces are.
    pub fn keeping(mut self, kept: impl Into<String>) -> Self {
        self.kept = Some(kept.into());
        self
    }

    /// Says when a retry may succeed.
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Adds the limit that was reached, its value, and the value that the request would have led to.
    pub fn with_limit(
        mut self,
        rule: &'static str,
        scope: impl Into<String>,
        limit: u64,
        observed: u64,
    ) -> Self {
        self.limit = Some(LimitFacts { rule, scope: scope.into(), limit, observed });
        self
    }

    /// The facts as the answer to a request carries them.
    pub fn facts(&self, request: impl Into<AnsweredRequest>) -> ErrorFacts {
        ErrorFacts {
            status: self.status,
            kind: self.kind,
            code: self.code,
            message: self.message.clone(),
            param: self.param.clone(),
            stage: self.stage,
            request_id: request.into().id,
            retry_after_s: self.retry_after.map(whole_seconds),
            limit: self.limit.clone(),
        }
    }

    /// The answer to a request.
    pub fn answer(&self, request: impl Into<AnsweredRequest>) -> Answer {
        let request = request.into();
        let body = error_body(request.dialect, &self.facts(request));
        let answer = Answer::json(self.status, body).with_headers(request.id_headers());
        let answer = answer.with_headers(self.headers.iter().cloned());
        match self.retry_after {
            Some(wait) => answer.with_header("retry-after", whole_seconds(wait).to_string()),
            None => answer,
        }
    }

    /// The failure as the caller got it, for the trace.
    pub fn failure(&self) -> TracedFailure {
        TracedFailure { code: self.code.name().to_owned(), status: self.status }
    }

    /// The rejection as the trace records it.
    pub fn traced(&self) -> TracedRefusal {
        let limit = self.limit.as_ref().map(|limit| limit.rule);
        TracedRefusal {
            stage: self.stage,
            rule: self.rule.map(Code::name).or(limit).unwrap_or(self.code.name()).to_owned(),
            status: self.status,
            code: self.code.name().to_owned(),
            message: self.kept.as_ref().unwrap_or(&self.message).clone(),
        }
    }
}

/// Whole seconds, rounded up, at least one.
fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1)
}

impl Rejection {
    /// A limit was reached. The answer carries the state of the counters, as a successful one does.
    pub fn limited(refusal: LimitRefusal, standing: &RateStanding, dialect: Dialect, now: UnixNanos) -> Self {
        let mut why = Self::from(refusal);
        why.headers = rate_headers(standing, dialect, now);
        why
    }
}

impl From<LimitRefusal> for Rejection {
    fn from(refusal: LimitRefusal) -> Self {
        let message = match refusal.retry_after {
            Some(_) => format!("Limit reached: {refusal}."),
            None => format!("The call is larger than the limit: {refusal}."),
        };
        let scope = format!("{}:{}", refusal.scope.kind(), refusal.scope.id());
        let observed = refusal.used.saturating_add(refusal.requested);
        let why =
            Self::new(refusal.rule, message).with_limit(refusal.rule.name(), scope, refusal.limit, observed);
        match refusal.retry_after {
            Some(wait) => why.retry_after(wait),
            // The call exceeds the limit by itself, so waiting cannot help.
            None => why.never(),
        }
    }
}

impl From<BadRequest> for Rejection {
    fn from(bad: BadRequest) -> Self {
        let kept = bad.for_record();
        let mut why = Self::new(bad.code, bad.message).keeping(kept);
        why.param = bad.param;
        why
    }
}

/// How long a caller is asked to wait when the memory is full.
const MEMORY_WAIT: Duration = Duration::from_secs(1);

impl NoMemory {
    /// The rejection at `stage`.
    pub fn at(self, stage: Stage) -> Rejection {
        match self {
            Self::Never { needed, bound } => {
                let message = format!(
                    "The call takes up to {} of memory and no more than {} are ever given to the calls of a key \
                     (`gateway.max_key_memory`). Send less text at once.",
                    mib(needed),
                    mib(bound)
                );
                Rejection::new(Code::CallTooLarge, message).at(stage)
            }
            Self::Key { key, needed, taken, bound } => {
                let message = format!(
                    "The call takes up to {} of memory; other calls of this key have {} of the {} that its calls may \
                     have at once (`gateway.max_key_memory`). Wait for some to end, or ask for less.",
                    mib(needed),
                    mib(taken),
                    mib(bound)
                );
                let rule = Code::KeyMemoryFull;
                Rejection::new(rule, message)
                    .at(stage)
                    .with_limit(rule.name(), format!("key:{key}"), bound, taken.saturating_add(needed))
                    .retry_after(MEMORY_WAIT)
            }
            Self::All { needed, taken, bound } => {
                let message = format!(
                    "The call takes up to {} of memory; calls in flight have {} of the {} that all may have at once \
                     (`gateway.max_memory`). Try again.",
                    mib(needed),
                    mib(taken),
                    mib(bound)
                );
                Rejection::new(Code::MemoryFull, message).at(stage).retry_after(MEMORY_WAIT)
            }
        }
    }
}

impl From<NoTurn> for Rejection {
    fn from(full: NoTurn) -> Self {
        let (limit, seconds) = (mib(full.limit_bytes as u64), full.waited.as_secs());
        let why = if full.own {
            let message = format!(
                "Long requests of this key are being read already, {limit} of them at most at once \
                 (half of `gateway.max_render_bytes_at_once`); this one waited for {seconds} s. Send fewer at once."
            );
            Rejection::new(Code::KeyRenderingFull, message)
        } else {
            let message = format!(
                "Long requests are being read already, {limit} of them at most at once \
                 (`gateway.max_render_bytes_at_once`); this one waited for {seconds} s. Try again."
            );
            Rejection::new(Code::RenderingFull, message)
        };
        why.retry_after(full.waited)
    }
}

/// How long a caller is asked to wait while its own calls hold the money.
const HELD_IN_FLIGHT_WAIT: Duration = Duration::from_secs(1);

impl From<LedgerRefusal> for Rejection {
    fn from(refusal: LedgerRefusal) -> Self {
        let why = |message: String| Self::new(refusal.code(), message);
        match &refusal {
            LedgerRefusal::OutOfMoney { balance, held, needed, free, .. } => why(format!(
                "Out of money: this call can cost up to {needed}, the balance is {balance} ({held} of it held). \
                 {}Add credit (`headrace credit grant`) or ask for fewer tokens (`max_tokens`).",
                free_left(free.as_deref())
            ))
            .with_amounts("balance", *balance, *needed),
            LedgerRefusal::HeldInFlight { balance, held, needed, free, .. } => why(format!(
                "Held by your own calls in flight: this call can cost up to {needed}; of the balance of {balance}, \
                 {held} is held. {}Wait for calls to finish, add credit, or ask for fewer tokens (`max_tokens`).",
                free_left(free.as_deref())
            ))
            .retry_after(HELD_IN_FLIGHT_WAIT)
            .with_amounts("balance", *balance, *needed),
            LedgerRefusal::BudgetExceeded { project, limit, spent, held, needed, .. } => why(format!(
                "The budget of project `{project}` is {limit}; {spent} is spent and {held} held, and this call can \
                 cost up to {needed}. Raise the budget (`headrace budget set`) or ask for fewer tokens."
            ))
            .with_amounts("budget", *limit, *needed),
            LedgerRefusal::BudgetRuleExceeded(exceeded) => budget_exceeded(exceeded, refusal.code()),
            LedgerRefusal::PlacesTaken { kind, subject, limit } => why(format!(
                "Limit reached: concurrency of {kind} `{subject}`: {limit} of {limit} used over all gateways, 1 asked \
                 for; try again in {} s.",
                HELD_IN_FLIGHT_WAIT.as_secs()
            ))
            .with_limit("concurrency", format!("{kind}:{subject}"), (*limit).into(), u64::from(*limit) + 1)
            .retry_after(HELD_IN_FLIGHT_WAIT),
            LedgerRefusal::UnknownProject { .. } | LedgerRefusal::UnknownOrg { .. } => why(
                "This project has no account yet. Grant it credit (`headrace credit grant`).".to_owned(),
            ),
            LedgerRefusal::Busy { .. } | LedgerRefusal::Unavailable { .. } => {
                Self::journal_unavailable(&refusal.to_string())
            }
            LedgerRefusal::IdempotencyInFlight { .. }
            | LedgerRefusal::IdempotencyMismatch { .. }
            | LedgerRefusal::TooManyKeys { .. } => Self::of_claim(&refusal),
            LedgerRefusal::CallerEnded => unauthenticated(&AuthRefusal::Revoked),
            LedgerRefusal::Overflow => Self::new(
                Code::CostOverflow,
                "What this call could cost does not fit 64-bit nano-dollars. Ask for fewer tokens.",
            )
            .with_param("max_tokens"),
            _ => why(format!("The ledger refused the hold: {refusal}. Nothing was charged.")),
        }
    }
}

/// The sentence about what is left of a free tier that does not cover the call. Empty without one.
fn free_left(free: Option<&FreeLeft>) -> String {
    let Some(FreeLeft { name, measure, window, limit, left, resets }) = free else { return String::new() };
    let left = match measure {
        BudgetMeasure::Dollars => measure.amount(*left),
        BudgetMeasure::Tokens | BudgetMeasure::Requests => left.to_string(),
    };
    let per = match window {
        BudgetWindow::Total => String::new(),
        window => format!(" a {}", window.name()),
    };
    let again = resets.map_or_else(String::new, |at| format!(", which begins anew at {}", Rfc3339(at)));
    format!("Of free tier `{name}`, {left} of {}{per} are left{again}. ", measure.amount(*limit))
}

/// A budget rule does not cover the call.
fn budget_exceeded(exceeded: &ExceededBudget, code: Code) -> Rejection {
    let ExceededBudget { name, scope, subject, measure, limit, used, reserved, needed, resets, wait, .. } =
        exceeded;
    let in_flight = exceeded.fits_later();
    let begins = resets.map_or_else(String::new, |at| format!(" It begins anew at {}.", Rfc3339(at)));
    let way_out = match measure {
        _ if in_flight => "Wait for calls in flight to finish",
        BudgetMeasure::Dollars | BudgetMeasure::Tokens => "Ask for fewer tokens (`max_tokens`)",
        BudgetMeasure::Requests if resets.is_some() => "Wait until then",
        BudgetMeasure::Requests => "Use another key or project",
    };
    let text = exceeded.to_string();
    let message = format!(
        "B{}.{begins} {way_out}, or have the budget raised (`headrace budgets raise {name}`).",
        text.strip_prefix('b').unwrap_or(&text)
    );
    let observed = used.saturating_add(*reserved).saturating_add(*needed);
    let rejection = Rejection::new(code, message).with_limit(
        code.name(),
        format!("{}:{subject}", scope.name()),
        *limit,
        observed,
    );
    match wait {
        _ if in_flight => rejection.retry_after(HELD_IN_FLIGHT_WAIT),
        Some(wait) => rejection.retry_after(*wait),
        None => rejection,
    }
}

impl Rejection {
    /// No money is left, not even for the cheapest call.
    pub fn nothing_to_spend(balance: NanoDollars, held: NanoDollars) -> Self {
        let why = if held > NanoDollars::ZERO {
            let message = format!(
                "Held by your own calls in flight: {held}, and nothing is left for another call; the balance is \
                 {balance}. Wait for calls to finish, or add credit (`headrace credit grant`)."
            );
            Self::new(Code::HeldInFlight, message).retry_after(HELD_IN_FLIGHT_WAIT)
        } else {
            let message =
                format!("Out of money: the balance is {balance}. Add credit (`headrace credit grant`).");
            Self::new(Code::OutOfMoney, message)
        };
        why.with_amounts("balance", balance, held)
    }

    /// The ledger's journal cannot be written, so no call may run.
    pub fn journal_unavailable(detail: &str) -> Self {
        let message = format!(
            "The ledger cannot be written now, so nothing runs and nothing is charged: {detail}. Try again."
        );
        Self::new(Code::JournalUnavailable, message).retry_after(Duration::from_secs(2))
    }

    /// The engine ended the job without an answer.
    pub fn job_failed(error: &JobError) -> Self {
        let code = match error {
            // The name of the engine and its message are for operators only.
            JobError::Refused(SubmitRefusal::Unavailable { .. }) => {
                let message =
                    "The engine of the model is not available. What was not delivered is not charged.";
                let why = Self::new(Code::EngineUnavailable, message).at(Stage::Place);
                return why.retry_after(Duration::from_secs(1));
            }
            JobError::Refused(refusal) => return Self::from(refusal.clone()),
            JobError::Expired { .. } => Code::QueueExpired,
            JobError::ShuttingDown => Code::ShuttingDown,
            JobError::NotFinite { .. } => Code::NotFinite,
            JobError::Form { .. } => Code::FormLost,
            JobError::Cancelled | JobError::Panicked { .. } | JobError::Internal { .. } => Code::EngineFailed,
        };
        let charged = match error {
            JobError::Form { why } => format!(
                "{error}: {why}. What was computed until then is charged. Use a form with fewer alternatives, shorter patterns \
                 and lists, or less ambiguity."
            ),
            _ => format!("{error}. What was not delivered is not charged."),
        };
        let mut why = Self::new(code, charged).at(Stage::Decode);
        if let JobError::Form { .. } = error {
            // The reason may repeat text of the answer.
            why = why.keeping(format!("{error}."));
        }
        match error {
            JobError::Expired { retry_after } => why.retry_after(*retry_after),
            JobError::ShuttingDown => why.retry_after(Duration::from_secs(1)),
            _ => why,
        }
    }

    fn with_amounts(self, rule: &'static str, limit: NanoDollars, needed: NanoDollars) -> Self {
        let nanos = |amount: NanoDollars| u64::try_from(amount.get()).unwrap_or(0);
        self.with_limit(rule, "nano-dollars", nanos(limit), nanos(needed))
    }
}

impl From<SubmitRefusal> for Rejection {
    fn from(refusal: SubmitRefusal) -> Self {
        let why = |code, message| Self::new(code, message).at(Stage::Place);
        let uncharged = format!("{refusal}. Nothing was charged.");
        match &refusal {
            SubmitRefusal::QueueFull { retry_after, .. } => {
                why(Code::QueueFull, uncharged).retry_after(*retry_after)
            }
            SubmitRefusal::TooLate { retry_after: Some(wait), .. } => {
                why(Code::DeadlineTooShort, uncharged).retry_after(*wait)
            }
            // The prompt alone takes longer than the call has, so waiting cannot help.
            SubmitRefusal::TooLate { retry_after: None, .. } => why(
                Code::DeadlineTooShort,
                format!("{refusal}. Allow more time or shorten the prompt. Nothing was charged."),
            )
            .never()
            .with_param("timeout"),
            SubmitRefusal::Unavailable { .. } => {
                why(Code::EngineUnavailable, uncharged).retry_after(Duration::from_secs(1))
            }
            SubmitRefusal::DoesNotFit { .. } => {
                why(Code::ContextLengthExceeded, refusal.to_string()).with_param("max_tokens")
            }
            SubmitRefusal::Invalid { .. } => why(Code::InvalidValue, refusal.to_string()),
        }
    }
}

/// The rejection of a credential.
pub fn unauthenticated(refusal: &AuthRefusal) -> Rejection {
    let code = match refusal {
        AuthRefusal::Missing => Code::MissingApiKey,
        AuthRefusal::Conflicting => Code::ConflictingCredentials,
        AuthRefusal::Expired => Code::ExpiredApiKey,
        AuthRefusal::Address => Code::AddressNotAllowed,
        _ => Code::InvalidApiKey,
    };
    let mut why = Rejection::new(code, refusal.to_string());
    why.rule = Some(refusal.rule());
    why
}

#[cfg(test)]
mod tests {
    use headrace_domain::KeyId;

    use super::*;

    #[test]
    fn full_memory_is_the_callers_or_ours() {
        let key = KeyId::new("a").unwrap();
        for (full, status, retry_after) in [
            (NoMemory::Never { needed: 2, bound: 1 }, 400, None),
            (NoMemory::Key { key, needed: 2, taken: 1, bound: 2 }, 429, Some(MEMORY_WAIT)),
            (NoMemory::All { needed: 2, taken: 1, bound: 2 }, 503, Some(MEMORY_WAIT)),
        ] {
            let why = full.at(Stage::Parse);
            assert_eq!((why.stage, why.status, why.retry_after), (Stage::Parse, status, retry_after));
        }
    }

    #[test]
    fn who_may_try_again_is_told_when() {
        let seconds = |n| Some(Duration::from_secs(n));
        for (error, status, retry_after) in [
            (JobError::Expired { retry_after: Duration::from_secs(42) }, 503, seconds(42)),
            (JobError::ShuttingDown, 503, seconds(1)),
            (JobError::NotFinite { position: 3 }, 500, None),
            (
                JobError::Refused(SubmitRefusal::Unavailable { why: "far:1 knows no ticket of ours".into() }),
                503,
                seconds(1),
            ),
            (
                JobError::Refused(SubmitRefusal::QueueFull {
                    what: "tokens",
                    limit: 1,
                    retry_after: Duration::from_secs(7),
                }),
                503,
                seconds(7),
            ),
        ] {
            let why = Rejection::job_failed(&error);
            assert_eq!((why.status, why.retry_after), (status, retry_after), "{error}");
        }
    }
}
