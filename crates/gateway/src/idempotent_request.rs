//! The idempotency key of a request, and what is known of the request that ran first under it. Decides nothing.

mod key;

use std::sync::Arc;

use headrace_call_api::IdempotencyHeader;
use headrace_call_state::Rejection;
use headrace_domain::{HoldId, ProjectId, UnixNanos};
use headrace_ledger::{DurableFuture, IdempotencyClaim, LedgerClient, LedgerRefusal, StoredAnswer};

/// The idempotency key of a request, and what became of it.
pub(crate) struct IdempotentRequest {
    header: IdempotencyHeader,
    /// What the request claims. `None` until its body has arrived.
    claim: Option<IdempotencyClaim>,
    /// The request that ran before under the same key.
    first: Option<FirstRequest>,
    /// The answer, once it is stored and until it is settled.
    answer: Option<StoredAnswer>,
}

/// A request that has run, and was charged.
pub(crate) struct FirstRequest {
    pub(crate) hold: HoldId,
    /// `None` if the answer was not stored.
    pub(crate) answer: Option<Arc<StoredAnswer>>,
}

impl IdempotentRequest {
    pub(crate) const fn new(header: IdempotencyHeader) -> Self {
        Self { header, claim: None, first: None, answer: None }
    }

    /// The name under which the ledger knows the key.
    ///
    /// # Errors
    /// The header is no key.
    pub(crate) fn ledger_key(&self) -> Result<String, Rejection> {
        key::ledger_key(&self.header)
    }

    /// Whether a request of the project claimed this key.
    pub(crate) fn is_known(&self, ledger: &dyn LedgerClient, project: &ProjectId) -> bool {
        self.ledger_key().is_ok_and(|key| ledger.knows_key(project, &key))
    }

    /// What the request claims. `None` until its body has arrived.
    pub(crate) const fn claim(&self) -> Option<&IdempotencyClaim> {
        self.claim.as_ref()
    }

    /// Whether another request ran before under the same key.
    pub(crate) const fn has_first(&self) -> bool {
        self.first.is_some()
    }

    /// Takes the request that ran before under the same key.
    pub(crate) fn take_first(&mut self) -> Option<FirstRequest> {
        self.first.take()
    }

    /// Keeps what the settlement is to keep of the answer.
    pub(crate) fn keep(&mut self, answer: Option<StoredAnswer>) {
        self.answer = answer;
    }

    /// Takes what the settlement is to keep of the answer.
    pub(crate) fn take_answer(&mut self) -> Option<StoredAnswer> {
        self.answer.take()
    }

    /// Claims the key for a request with this body. `content` is the digest of the body, or of what it means if equal
    /// requests may have different bodies.
    pub(crate) fn claims(&mut self, content: [u8; 32]) -> Result<IdempotencyClaim, Rejection> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.header.target.as_bytes()).update(&[0]).update(&content);
        let claim = IdempotencyClaim { key: self.ledger_key()?, request_hash: *hasher.finalize().as_bytes() };
        self.claim = Some(claim.clone());
        Ok(claim)
    }

    /// The rejection of a claim that the ledger refused. Keeps what is needed to return the first answer again.
    pub(crate) async fn refused(
        &mut self,
        refusal: LedgerRefusal,
        now: UnixNanos,
        durable: DurableFuture,
    ) -> Rejection {
        match refusal {
            LedgerRefusal::IdempotencyReplay { hold, answer } => {
                // An answer that a crash could still undo must not be returned again.
                if let Err(failed) = durable.await {
                    return Rejection::journal_unavailable(&failed.why);
                }
                self.first = Some(FirstRequest { hold, answer });
                Rejection::answer_gone(hold)
            }
            LedgerRefusal::IdempotencyInFlight { hold } => Rejection::from(refusal).wait_for(hold, now),
            refusal => refusal.into(),
        }
    }
}
