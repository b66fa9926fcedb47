//! Adds the names of keys to their ids in the operators' views of calls. Must not know what else a row contains.

use std::sync::Arc;

use headrace_domain::{KeyId, ProjectId};
use headrace_identity::Directory;
use serde_json::Value;

use crate::playground;

/// Looks keys up by id. Clones share the directory.
#[derive(Clone)]
pub(crate) struct KeyNames {
    directory: Arc<Directory>,
}

/// What operators see of a key.
pub(crate) struct KnownKey {
    pub(crate) name: String,
    /// `None` for the playground, which makes calls for any project.
    pub(crate) project: Option<ProjectId>,
}

impl KeyNames {
    pub(crate) fn new(directory: &Arc<Directory>) -> Self {
        Self { directory: Arc::clone(directory) }
    }

    /// Returns a key's name and project. `None` if there is no such key.
    pub(crate) fn of(&self, key: &KeyId) -> Option<KnownKey> {
        if key.as_str() == playground::KEY {
            return Some(KnownKey { name: playground::KEY.to_owned(), project: None });
        }
        let record = self.directory.key(key)?;
        Some(KnownKey { name: record.name, project: Some(record.project) })
    }

    /// Adds `key_name` to an object that has a `key`. It is `null` if the key is unknown.
    pub(crate) fn added(&self, mut row: Value) -> Value {
        self.add(&mut row);
        row
    }

    /// Adds `key_name` to each object of the list `list` in `page`.
    pub(crate) fn add_to_rows(&self, page: &mut Value, list: &str) {
        let rows = page.get_mut(list).and_then(Value::as_array_mut);
        rows.into_iter().flatten().for_each(|row| self.add(row));
    }

    fn add(&self, row: &mut Value) {
        let Some(row) = row.as_object_mut() else { return };
        let Some(key) = row.get("key") else { return };
        let name = key.as_str().and_then(|key| KeyId::new(key).ok()).and_then(|key| self.of(&key));
        row.insert("key_name".to_owned(), name.map(|known| known.name).into());
    }
}
