//! Compiled forms by what they were compiled of: a bounded number of them, in a bounded number of bytes; the one that was asked for
//! longest ago goes first.

use std::collections::HashMap;
use std::sync::Arc;

use crate::bounds::{CACHE_BYTES, CACHE_FORMS};
use crate::state::Compiled;

/// What a form's text hashes to.
pub(crate) type Key = [u8; 32];

/// The compiled forms of one vocabulary.
#[derive(Default)]
pub(crate) struct Cache {
    forms: HashMap<Key, Kept>,
    bytes: usize,
    /// Counts look-ups.
    now: u64,
}

struct Kept {
    compiled: Arc<Compiled>,
    asked: u64,
}

impl Cache {
    pub(crate) fn get(&mut self, key: &Key) -> Option<Arc<Compiled>> {
        self.now += 1;
        let kept = self.forms.get_mut(key)?;
        kept.asked = self.now;
        Some(Arc::clone(&kept.compiled))
    }

    pub(crate) fn put(&mut self, key: Key, compiled: Arc<Compiled>) {
        self.now += 1;
        self.bytes = self.bytes.saturating_add(compiled.bytes());
        if let Some(former) = self.forms.insert(key, Kept { compiled, asked: self.now }) {
            self.bytes = self.bytes.saturating_sub(former.compiled.bytes());
        }
        while self.forms.len() > CACHE_FORMS || self.bytes > CACHE_BYTES {
            let oldest = self.forms.iter().min_by_key(|(_, kept)| kept.asked).map(|(key, _)| *key);
            let Some(gone) = oldest.and_then(|key| self.forms.remove(&key)) else { return };
            self.bytes = self.bytes.saturating_sub(gone.compiled.bytes());
        }
    }

    /// Forms, and bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.forms.len(), self.bytes)
    }
}
