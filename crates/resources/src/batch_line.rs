//! Identifies a call as one request of a batch: its batch, its index, and the idempotency claim by which the ledger
//! recognizes it. The claim makes sure that a request is paid for once, however often it is started. Runs nothing.

use std::sync::{Arc, OnceLock};

use headrace_domain::HoldId;
use headrace_ledger::IdempotencyClaim;

/// The batch request that a call belongs to.
pub struct BatchLine {
    /// The batch's id.
    pub batch: String,
    /// Index of the request within the batch.
    pub at: u64,
    claim: IdempotencyClaim,
    paid: PaidHold,
}

/// The hold of an earlier attempt that was paid for. Empty until that is known.
pub type PaidHold = Arc<OnceLock<HoldId>>;

impl BatchLine {
    /// Creates the identity of a batch request with its body. A client's `custom_id` may be long, so the ledger keeps
    /// a hash of it.
    pub fn new(batch: &str, at: u64, custom_id: &str, body: &[u8], paid: PaidHold) -> Self {
        let key = format!("{batch}/{}", blake3::hash(custom_id.as_bytes()).to_hex());
        let claim = IdempotencyClaim { key, request_hash: *blake3::hash(body).as_bytes() };
        Self { batch: batch.to_owned(), at, claim, paid }
    }

    /// The idempotency claim under which the ledger recognizes this request.
    pub fn claim(&self) -> IdempotencyClaim {
        self.claim.clone()
    }

    /// Records that an earlier attempt was paid for. This attempt then stops.
    pub fn was_paid(&self, hold: HoldId) {
        // `set` fails only if a hold is recorded already. A request is paid for once, so both holds are the same.
        let _ = self.paid.set(hold);
    }
}
