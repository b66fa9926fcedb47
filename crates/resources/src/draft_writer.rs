//! Writes bytes into a stored object that is invisible until it is complete. An incomplete one is discarded. Knows no
//! form and no disk.

use bytes::BytesMut;
use headrace_call_state::Rejection;
use headrace_objects::{BatchStore, FileDraft};

use crate::resources::StoredResources;

/// Bytes that are written together, because each write waits for the disk.
const WRITTEN_AT_ONCE: usize = 1 << 20;

/// A stored object that is being written.
pub(crate) struct DraftWriter<'g> {
    resources: &'g StoredResources,
    draft: FileDraft,
    written: u64,
    held: BytesMut,
    /// The hash of all bytes so far, if it is needed.
    hasher: Option<Box<blake3::Hasher>>,
    is_done: bool,
}

impl<'g> DraftWriter<'g> {
    /// Starts a new object. `is_hashed`: [`Self::content`] will be asked for.
    ///
    /// # Errors
    /// There is no space for it.
    pub(crate) async fn begin(
        resources: &'g StoredResources,
        draft: FileDraft,
        is_hashed: bool,
    ) -> Result<Self, Rejection> {
        let begun = draft.clone();
        resources.objects().ask_files(move |store| store.begin(&begun)).await?;
        Ok(Self {
            resources,
            draft,
            written: 0,
            held: BytesMut::new(),
            hasher: is_hashed.then(Box::default),
            is_done: false,
        })
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// There is no space for them.
    pub(crate) async fn add(&mut self, bytes: &[u8]) -> Result<(), Rejection> {
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
        }
        self.held.extend_from_slice(bytes);
        if self.held.len() >= WRITTEN_AT_ONCE { self.write().await } else { Ok(()) }
    }

    /// A digest of the bytes, the name and `fields`. Equal uploads have equal digests, however their forms are written.
    pub(crate) fn content(&self, fields: &[&[u8]]) -> [u8; 32] {
        let name = match &self.draft {
            FileDraft::File(file) => file.name.as_bytes(),
            FileDraft::Part { .. } => &[],
        };
        let mut digest = blake3::Hasher::new();
        if let Some(hasher) = &self.hasher {
            digest.update(hasher.finalize().as_bytes());
        }
        for field in [&[name], fields].concat() {
            digest.update(&(field.len() as u64).to_le_bytes()).update(field);
        }
        *digest.finalize().as_bytes()
    }

    async fn write(&mut self) -> Result<(), Rejection> {
        if self.held.is_empty() {
            return Ok(());
        }
        let (id, at, bytes) = (self.draft.id().to_owned(), self.written, self.held.split().freeze());
        self.written += bytes.len() as u64;
        let written = self.resources.objects().ask_files(move |store| store.append(&id, at, &bytes)).await;
        if written.is_err() {
            self.give_up().await;
        }
        written
    }

    /// Frees the space that was used, before the client gets the refusal. If that fails now, dropping the value tries
    /// again.
    async fn give_up(&mut self) {
        let id = self.draft.id().to_owned();
        self.is_done = self.resources.objects().ask_files(move |store| store.give_up(&id)).await.is_ok();
    }

    /// Completes the object and returns it. `None` if it was a part of an upload that no longer accepts parts.
    ///
    /// # Errors
    /// There is no space for the last bytes.
    pub(crate) async fn finish(
        mut self,
        name: impl FnOnce(&mut FileDraft),
    ) -> Result<Option<FileDraft>, Rejection> {
        self.write().await?;
        let written = self.written;
        name(&mut self.draft);
        self.draft.set_bytes(written);
        let (draft, now) = (self.draft.clone(), self.resources.now());
        let is_whole = self.resources.objects().ask_files(move |store| store.finish(&draft, now)).await?;
        self.is_done = is_whole;
        Ok(is_whole.then(|| self.draft.clone()))
    }
}

impl Drop for DraftWriter<'_> {
    fn drop(&mut self) {
        let Some(store) = self.resources.objects().files().filter(|_| !self.is_done) else { return };
        let id = self.draft.id().to_owned();
        let give_up = move |store: &dyn BatchStore| {
            if let Err(error) = store.give_up(&id) {
                tracing::warn!(%error, "a file that was not written to its end is left until the next start");
            }
        };
        // A client that goes away also leads here. Then this runs on the event loop, which must not wait for a disk.
        tokio::task::spawn_blocking(move || give_up(&*store));
    }
}
