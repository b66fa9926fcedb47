//! Stores the cost of shadow copies in a small file of the data directory, so that a restart does not reset their
//! budgets.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use headrace_domain::ModelName;
use headrace_rollout::{ShadowSpend, ShadowSpending, ShadowSpent};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use headrace_terminal::output;

/// Name of the file in the data directory.
const FILE: &str = "shadows.json";

/// The file of shadow spending.
pub(crate) struct SpendingFile {
    path: PathBuf,
    rows: Mutex<BTreeMap<(String, String), SpendingRow>>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct SpendingRow {
    name: String,
    model: String,
    period_s: u64,
    period: u64,
    nano_dollars: i64,
}

/// Opens the spending file of a data directory. If it cannot be read, no copies are made, because their budget may be
/// exhausted.
pub(crate) fn of(dir: &Path) -> Arc<dyn ShadowSpending> {
    match SpendingFile::open(dir) {
        Ok(file) => Arc::new(file),
        Err(why) => {
            output::note(&format!(
                "warning: no copies of calls are made, since what they have cost cannot be read: {why}\n  try: remove the file if it is \
                 damaged (budgets begin anew), then start again"
            ));
            Arc::new(UnreadableFile(why))
        }
    }
}

/// Replaces a file that cannot be read. Refuses all spending.
struct UnreadableFile(String);

impl ShadowSpending for UnreadableFile {
    fn kept(&self) -> Vec<ShadowSpent> {
        Vec::new()
    }

    fn keep(&self, _: &ShadowSpent) -> Result<(), String> {
        Err(self.0.clone())
    }
}

impl SpendingFile {
    /// Reads the file, if it exists.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is damaged.
    pub(crate) fn open(dir: &Path) -> Result<Self, String> {
        let path = dir.join(FILE);
        let cannot = |error: String| format!("{}: {error}", path.display());
        let rows: Vec<SpendingRow> = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| cannot(error.to_string()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(cannot(error.to_string())),
        };
        let rows = rows.into_iter().map(|row| ((row.name.clone(), row.model.clone()), row)).collect();
        Ok(Self { path, rows: Mutex::new(rows) })
    }

    /// Writes the file completely or not at all, even across a power cut.
    fn write(&self, rows: &BTreeMap<(String, String), SpendingRow>) -> std::io::Result<()> {
        let bytes = serde_json::to_vec(&rows.values().collect::<Vec<_>>()).map_err(std::io::Error::other)?;
        let part = self.path.with_extension("part");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        std::fs::rename(&part, &self.path)?;
        match self.path.parent() {
            Some(dir) => File::open(dir)?.sync_all(),
            None => Ok(()),
        }
    }
}

impl ShadowSpending for SpendingFile {
    fn kept(&self) -> Vec<ShadowSpent> {
        let spent = |row: &SpendingRow| {
            let (name, model) = (ModelName::new(&row.name).ok()?, ModelName::new(&row.model).ok()?);
            let spent = ShadowSpend { period_s: row.period_s, period: row.period, amount: row.nano_dollars };
            Some(ShadowSpent { name, model, spent })
        };
        self.rows.lock().values().filter_map(spent).collect()
    }

    fn keep(&self, spent: &ShadowSpent) -> Result<(), String> {
        let ShadowSpent { name, model, spent } = spent;
        let ShadowSpend { period_s, period, amount } = *spent;
        let row = SpendingRow {
            name: name.to_string(),
            model: model.to_string(),
            period_s,
            period,
            nano_dollars: amount,
        };
        // Locked until the file is written, so that an older state never replaces a newer one.
        let mut rows = self.rows.lock();
        let key = (row.name.clone(), row.model.clone());
        let before = rows.insert(key.clone(), row);
        if let Err(error) = self.write(&rows) {
            match before {
                Some(before) => rows.insert(key, before),
                None => rows.remove(&key),
            };
            return Err(format!("{}: {error}", self.path.display()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let name = |text: &str| ModelName::new(text).unwrap();
        let spent = |to: &str, amount| ShadowSpent {
            name: name("a/b c"),
            model: name(to),
            spent: ShadowSpend { period_s: 3600, period: 480_000, amount },
        };
        let file = SpendingFile::open(dir.path()).unwrap();
        assert!(file.kept().is_empty());
        for row in [spent("x", 1), spent("y", 2), spent("x", 3)] {
            file.keep(&row).unwrap();
        }
        let again = SpendingFile::open(dir.path()).unwrap();
        assert_eq!(again.kept(), [spent("x", 3), spent("y", 2)]);
        std::fs::write(dir.path().join(FILE), "no JSON").unwrap();
        assert!(SpendingFile::open(dir.path()).is_err());
    }
}
