//! What the path knows of a call that is a request of a batch: which one, and by what the ledger knows it again, so that it is paid for
//! once however often it is begun. Knows no batch, and runs nothing.

use std::sync::{Arc, OnceLock};

use headrace_domain::HoldId;
use headrace_ledger::IdempotencyClaim;

/// See the top of the file.
pub(crate) struct BatchLine {
    /// Which batch.
    pub(crate) batch: String,
    /// Its place there.
    pub(crate) at: u64,
    claim: IdempotencyClaim,
    paid: Paid,
}

/// The hold of an earlier try that was paid for, once that is known.
pub(crate) type Paid = Arc<OnceLock<HoldId>>;

impl BatchLine {
    /// A request of a batch, with the body that is called with. Its client's id for it may be long: the ledger keeps a hash.
    pub(crate) fn new(batch: &str, at: u64, custom_id: &str, body: &[u8], paid: Paid) -> Self {
        let key = format!("{batch}/{}", blake3::hash(custom_id.as_bytes()).to_hex());
        let claim = IdempotencyClaim { key, request_hash: *blake3::hash(body).as_bytes() };
        Self { batch: batch.to_owned(), at, claim, paid }
    }

    /// What the ledger knows it by.
    pub(crate) fn claim(&self) -> IdempotencyClaim {
        self.claim.clone()
    }

    /// An earlier try was paid for: this one goes no further.
    pub(crate) fn was_paid(&self, hold: HoldId) {
        // The first one stands; there is no other.
        let _ = self.paid.set(hold);
    }
}
