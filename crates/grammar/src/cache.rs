//! A cache of compiled forms, keyed by their source. It bounds the number of forms and their bytes. The least recently
//! used form is evicted first.

use std::collections::HashMap;
use std::sync::Arc;

use crate::bounds::{CACHE_BYTES, CACHE_FORMS};
use crate::state::CompiledForm;

/// Hash of a form's text.
pub(crate) type Key = [u8; 32];

/// The compiled forms of one vocabulary.
#[derive(Default)]
pub(crate) struct FormCache {
    forms: HashMap<Key, CachedForm>,
    bytes: usize,
    /// Logical clock: counts the calls to `get` and `put`.
    now: u64,
}

struct CachedForm {
    compiled: Arc<CompiledForm>,
    asked: u64,
}

impl FormCache {
    pub(crate) fn get(&mut self, key: &Key) -> Option<Arc<CompiledForm>> {
        self.now += 1;
        let kept = self.forms.get_mut(key)?;
        kept.asked = self.now;
        Some(Arc::clone(&kept.compiled))
    }

    pub(crate) fn put(&mut self, key: Key, compiled: Arc<CompiledForm>) {
        self.now += 1;
        self.bytes = self.bytes.saturating_add(compiled.bytes());
        if let Some(former) = self.forms.insert(key, CachedForm { compiled, asked: self.now }) {
            self.bytes = self.bytes.saturating_sub(former.compiled.bytes());
        }
        while self.forms.len() > CACHE_FORMS || self.bytes > CACHE_BYTES {
            let oldest = self.forms.iter().min_by_key(|(_, kept)| kept.asked).map(|(key, _)| *key);
            let Some(gone) = oldest.and_then(|key| self.forms.remove(&key)) else { return };
            self.bytes = self.bytes.saturating_sub(gone.compiled.bytes());
        }
    }

    /// Number of forms, and their bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.forms.len(), self.bytes)
    }
}
