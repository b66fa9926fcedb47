//! The memory of look-ups. The store reports the size of an object, memory is reserved for it, and only then the
//! object is read. The reservation lasts until the last byte of the answer is written. Knows no SQL and no path.

use bytes::Bytes;
use headrace_call_api::{BodySource, MemoryReservation};
use headrace_call_state::{KEPT_ANSWER_BYTES, NoMemory, Rejection, mib, reading_bytes, tree_bytes};
use headrace_domain::{Code, KeyId, Stage, UnixNanos};
use headrace_identity::Principal;
use headrace_objects::{ObjectError, ObjectStore, PageAsk};

use crate::resources::StoredResources;

/// A read takes at most this many times the object's size: the store's copies, the object, and its answer.
const READ_COPIES: u64 = 5;
/// Bytes of a row in a list of files or batches of messages, including its JSON.
pub(crate) const ROW_BYTES: u64 = 2 << 10;
/// Bytes of a row in a list of batches of files, which has labels and the faults of its lines.
pub(crate) const BATCH_ROW_BYTES: u64 = 64 << 10;

impl StoredResources {
    /// Reads an object of the caller's project. `size` returns the object's size in bytes, and `read` reads the
    /// object. `None` if it is missing.
    ///
    /// # Errors
    /// The key has no memory left for it, or the store failed.
    pub(crate) async fn read_stored<T: Send + 'static>(
        &self,
        principal: &Principal,
        size: impl FnOnce(&dyn ObjectStore, UnixNanos) -> Result<Option<u64>, ObjectError> + Send + 'static,
        read: impl FnOnce(&dyn ObjectStore, UnixNanos) -> Result<Option<T>, ObjectError> + Send + 'static,
    ) -> Result<Option<(T, MemoryReservation)>, Rejection> {
        let now = self.now();
        let Some(bytes) = self.objects().ask(move |store| size(store, now)).await? else { return Ok(None) };
        let memory = self.reserve_read(&principal.key, bytes)?;
        let reading = move |store: &dyn ObjectStore| Ok((read(store, now)?, memory));
        let (found, memory) = self.objects().ask(reading).await?;
        Ok(found.map(|found| (found, memory)))
    }

    /// Reserves the memory for a read of `bytes`.
    ///
    /// # Errors
    /// The key has no memory left for it.
    pub(crate) fn reserve_read(&self, key: &KeyId, bytes: u64) -> Result<MemoryReservation, Rejection> {
        let needed = bytes.saturating_mul(READ_COPIES).saturating_add(KEPT_ANSWER_BYTES);
        self.memory().reserve(key, needed).map_err(|full| match full {
            NoMemory::Never { needed, bound } => {
                let message = format!(
                    "What is asked for takes up to {} of memory while it is read, and the requests of a key may have {} at once \
                     (`gateway.max_key_memory`). Ask for fewer items by `limit`.",
                    mib(needed),
                    mib(bound)
                );
                Rejection::new(Code::CallTooLarge, message).at(Stage::Deliver)
            }
            other => other.at(Stage::Deliver),
        })
    }

    /// Reserves the memory for a page of a list.
    ///
    /// # Errors
    /// The key has no memory left for it.
    pub(crate) fn reserve_page(
        &self,
        principal: &Principal,
        page: &PageAsk,
        row_bytes: u64,
    ) -> Result<MemoryReservation, Rejection> {
        let rows = (page.rows() as u64).saturating_mul(row_bytes);
        self.reserve_read(&principal.key, rows / READ_COPIES)
    }

    /// Reads a body and reserves the memory for parsing it.
    ///
    /// # Errors
    /// The body did not arrive, or the key has no memory left for it.
    pub(crate) async fn body_of(
        &self,
        principal: &Principal,
        body: impl BodySource,
    ) -> Result<(Bytes, MemoryReservation), Rejection> {
        let body = body.read().await.map_err(|refusal| Rejection::of_body(&refusal))?;
        let needed = reading_bytes(body.len(), tree_bytes(&body));
        let memory = self.memory().reserve(&principal.key, needed);
        Ok((body, memory.map_err(|full| full.at(Stage::Parse))?))
    }
}
