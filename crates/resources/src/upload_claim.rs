//! What an upload with an idempotency key needs of the gateway. Knows no ledger.

use std::pin::Pin;

use headrace_call_state::Rejection;

/// The idempotency key of an upload.
pub trait UploadClaim: Send + Sync {
    /// Whether the key was claimed before this upload arrived. Its caller then needs no funds for now: the same upload gets
    /// the same answer.
    fn is_known(&self) -> bool;

    /// Claims the key for an upload with this digest. The upload has arrived, and cannot be seen yet.
    ///
    /// # Errors
    /// The same upload is being stored or was stored, or the key belongs to another request. The upload is discarded.
    fn claim(&self, content: [u8; 32]) -> Pin<Box<dyn Future<Output = Result<(), Rejection>> + Send + '_>>;
}
