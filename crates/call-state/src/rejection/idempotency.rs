//! The refusals of idempotency keys, as rejections.

use std::time::Duration;

use headrace_domain::{Code, HoldId, RequestId, UnixNanos};
use headrace_ledger::LedgerRefusal;

use super::Rejection;

/// The longest time that a client is asked to wait for a running request.
const MOST_WAIT: Duration = Duration::from_secs(30);
/// OpenAI's and Anthropic's SDKs repeat a 409 unless this header says that it is useless.
const NO_RETRY: (&str, &str) = ("x-should-retry", "false");

impl Rejection {
    /// The rejection for a claim that the ledger refused. `refusal` is one of an idempotency key.
    pub(super) fn of_claim(refusal: &LedgerRefusal) -> Self {
        let why = |message: String| Self::new(refusal.code(), message);
        match refusal {
            LedgerRefusal::IdempotencyInFlight { hold } => why(format!(
                "A request with this `Idempotency-Key` is still running ({}). Wait, then send the same request again: it \
                 gets the answer of the first one.",
                request(*hold)
            ))
            .retry_after(Duration::from_secs(1)),
            LedgerRefusal::IdempotencyMismatch { hold } => why(format!(
                "This `Idempotency-Key` was used for another request of this project ({}), with another path, query or \
                 body. Use a new key for each new request.",
                request(*hold)
            ))
            .unrepeatable(),
            LedgerRefusal::TooManyKeys { project, limit } => why(format!(
                "Project `{project}` has used {limit} idempotency keys within 24 hours, the most that are remembered. Send \
                 the request without a key, or try again later."
            ))
            .retry_after(Duration::from_secs(60)),
            other => why(format!("The ledger refused the hold: {other}. Nothing was charged.")),
        }
    }

    /// The request with the idempotency key has run, and its answer is not stored.
    pub fn answer_gone(first: HoldId) -> Self {
        let message = format!(
            "The request with this `Idempotency-Key` has run ({}) and was charged, but its answer is not stored. It does \
             not run again. Use a new key to run it again.",
            request(first)
        );
        Self::new(Code::IdempotencyAnswerGone, message).unrepeatable()
    }

    /// The idempotency key of a request is no key.
    pub fn invalid_idempotency_key(why: &str) -> Self {
        let message = format!(
            "`Idempotency-Key`: it must have 1 to 255 printable ASCII characters, bare or in double quotes; this one {why}."
        );
        Self::new(Code::InvalidIdempotencyKey, message).with_param("Idempotency-Key")
    }

    /// Asks the client to wait for the running request as long as that has run so far: at least a second, at most
    /// [`MOST_WAIT`].
    pub fn wait_for(self, running: HoldId, now: UnixNanos) -> Self {
        self.retry_after(now.since(running.request_time()).clamp(Duration::from_secs(1), MOST_WAIT))
    }

    /// Asks SDKs not to repeat the request.
    fn unrepeatable(mut self) -> Self {
        self.headers.push((NO_RETRY.0, NO_RETRY.1.to_owned()));
        self
    }
}

/// The id of the request that took the hold.
fn request(hold: HoldId) -> RequestId {
    RequestId::from_bits(hold.bits())
}
