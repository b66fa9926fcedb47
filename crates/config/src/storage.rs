//! Settings of disk space for everything besides keys and ledger, and the bounds that follow from a disk's size. Knows
//! no store.

use std::path::{Path, PathBuf};

use headrace_objects::FileLimits;
use headrace_store::StorageUrl;
use headrace_store::disk::DiskSpace;

use super::field::{SettingField, field};
use super::kinds::{DAY, GIB, KIB, MIB, TIB, bytes, seconds};
use super::value::SettingKind;

/// The settings of disk space.
pub(super) const FIELDS: &[SettingField] = &[
    field(
        "storage.url",
        SettingKind::Url,
        "",
        "Place of keys, operators, audit log and ledger. `sqlite:` is the data directory, for one server. `postgres://USER:PASSWORD@HOST/DATABASE` is a PostgreSQL database (15 or later) that several servers share; `?sslrootcert=FILE` names its certificate authority. The data directory remembers the place. Default: the place that it remembers, or `sqlite:`.",
    ),
    field(
        "storage.secret_file",
        SettingKind::Path,
        "",
        "File with 32 or more random bytes, or their base64 or hexadecimal form, such as `openssl rand -hex 32` prints. With it, the secrets that hash keys and separate caches are stored encrypted, in the database and in the data directory. All gateways that share a database need the same file. Without the file, a server with encrypted secrets does not start. Keep a copy of the file apart from backups. `headrace secrets rewrap` changes the file. Default: the secrets are stored as they are.",
    ),
    field(
        "gateway.name",
        SettingKind::Text,
        "",
        "Name of this gateway, for people: `headrace status` lists the gateways that share a ledger. Default: the name of the machine.",
    ),
    field(
        "gateway.advertise",
        SettingKind::Url,
        "",
        "URL of this gateway's admin listener for the other gateways that share its database, such as `http://10.0.0.1:8081`. They ask it for calls when an operator searches. Without it, the calls of this gateway are found at this gateway alone.",
    ),
    field(
        "objects_dir",
        SettingKind::Path,
        "",
        "Directory of files, batches, stored responses and conversations, if not in `data_dir`. The directory may be on another disk than keys and ledger.",
    ),
    field(
        "objects.max_conversation_bytes_per_project",
        bytes(KIB, TIB),
        "\"1GiB\"",
        "Maximum bytes of the items of a project's conversations. Further items are refused.",
    ),
    field(
        "objects.max_total",
        bytes(MIB, 1024 * TIB),
        "",
        "Maximum size of the files and batches of all projects together. Stored responses and conversations may use the same size again. Default: half of the disk for each.",
    ),
    field(
        "objects.min_free_disk",
        bytes(0, 1024 * TIB),
        "",
        "Free disk space that is reserved for the ledger and the keys. Uploads, batches and stored responses that would use this space are refused, and traces are dropped. Default: a tenth of the disk, at most 512 MiB.",
    ),
    field(
        "idempotency.keep",
        seconds(0, DAY),
        "\"24h\"",
        "How long the answer to a request with an `Idempotency-Key` is stored, so that a repeated request gets it again. The key itself is remembered for 24 hours: later repeats get the error `idempotency_answer_gone`, and never run a second time. With `\"0s\"`, no answer is stored.",
    ),
    field(
        "idempotency.max_answer",
        bytes(KIB, GIB),
        "\"8MiB\"",
        "Maximum size of a stored answer. A longer answer is delivered, but not returned again.",
    ),
    field(
        "idempotency.max_total",
        bytes(MIB, TIB),
        "\"1GiB\"",
        "Maximum size of the stored answers of all projects together. The oldest answers of the projects with the most bytes are removed first.",
    ),
    field(
        "traces.max_size",
        bytes(MIB, 1024 * TIB),
        "\"4GiB\"",
        "Maximum size of the file of traces, and at most a quarter of its disk. The oldest traces are removed first.",
    ),
];

/// The directory of objects, and the bounds on disk space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageSettings {
    /// The place of keys and ledger. `None` for the one that the data directory remembers.
    pub url: Option<StorageUrl>,
    /// The file of the key that encrypts stored secrets. `None` to store them as they are.
    pub secret_file: Option<PathBuf>,
    /// The name of this gateway among those that share its stores.
    pub gateway_name: String,
    /// The URL of this gateway's admin listener for the others. `None` if they cannot ask it.
    pub gateway_address: Option<String>,
    /// `None` for the data directory.
    pub objects_dir: Option<PathBuf>,
    /// `None` for half of the disk.
    pub max_total_bytes: Option<u64>,
    /// `None` for a default share of the disk.
    pub min_free_bytes: Option<u64>,
    /// The bytes of the answers that repeated requests get again.
    pub max_answers_bytes: u64,
    pub(crate) max_trace_bytes: u64,
}

impl StorageSettings {
    /// The bytes that each object store may take on its disk: the configured bound, or half of the disk.
    pub fn total_on(&self, disk: Option<DiskSpace>) -> u64 {
        let half = disk.filter(|disk| disk.total > 0).map(|disk| disk.total / 2);
        self.max_total_bytes.or(half).unwrap_or(u64::MAX >> 1)
    }

    /// The bytes that traces may take on their disk: the configured bound, at most a quarter of the disk.
    pub fn traces_on(&self, disk: Option<DiskSpace>) -> u64 {
        let quarter = disk.filter(|disk| disk.total > 0).map_or(u64::MAX, |disk| disk.total / 4);
        self.max_trace_bytes.min(quarter)
    }

    /// Describes each configured bound that exceeds what the disk offers.
    pub fn beyond_the_disk(&self, files: &FileLimits, data_dir: &Path) -> Vec<String> {
        let dir = self.objects_dir.as_deref().unwrap_or(data_dir);
        // A directory that does not exist yet will be on the disk of its nearest existing ancestor.
        let Some(there) = dir.ancestors().map(at_least_here).find(|dir| dir.exists()) else {
            return Vec::new();
        };
        let Ok(disk) = DiskSpace::of(there) else { return Vec::new() };
        let kept = self.min_free_bytes.unwrap_or(disk.default_min_free());
        let most = disk.total.saturating_sub(kept);
        let bounds = [
            ("objects.max_total", self.max_total_bytes),
            ("objects.max_file_bytes_per_project", Some(files.max_file_bytes_per_project)),
        ];
        let told = |(setting, bound): (&str, Option<u64>)| {
            let bound = bound.filter(|bound| disk.total > 0 && *bound > most)?;
            Some(format!(
                "{setting} is {bound} bytes, and the disk of {} has {} with {kept} of them left free: uploads are refused before the bound is reached",
                dir.display(),
                disk.total
            ))
        };
        bounds.into_iter().filter_map(told).collect()
    }
}

/// The last ancestor of a relative path is empty and means the current directory.
fn at_least_here(dir: &Path) -> &Path {
    if dir.as_os_str().is_empty() { Path::new(".") } else { dir }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_beyond_the_disk_are_named_and_those_within_are_not() {
        let mut storage = StorageSettings {
            url: None,
            secret_file: None,
            gateway_name: String::new(),
            gateway_address: None,
            objects_dir: None,
            max_total_bytes: None,
            min_free_bytes: Some(0),
            max_answers_bytes: 1,
            max_trace_bytes: 1,
        };
        let mut files = FileLimits { max_file_bytes_per_project: 1, ..FileLimits::default() };
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("not/there/yet");
        assert_eq!(storage.beyond_the_disk(&files, &missing), Vec::<String>::new());
        files.max_file_bytes_per_project = u64::MAX;
        storage.max_total_bytes = Some(u64::MAX);
        let warnings = storage.beyond_the_disk(&files, &missing);
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings.iter().all(|line| line.starts_with("objects.max_")), "{warnings:?}");
    }

    #[test]
    fn without_a_bound_objects_take_half_of_their_disk_and_traces_a_quarter() {
        let storage = StorageSettings {
            url: None,
            secret_file: None,
            gateway_name: String::new(),
            gateway_address: None,
            objects_dir: None,
            max_total_bytes: None,
            min_free_bytes: None,
            max_answers_bytes: 1,
            max_trace_bytes: 1 << 30,
        };
        let disk = Some(DiskSpace { free: 1, total: 64 << 20 });
        assert_eq!((storage.total_on(disk), storage.traces_on(disk)), (32 << 20, 16 << 20));
        let bounded = StorageSettings { max_total_bytes: Some(5), max_trace_bytes: 7, ..storage };
        assert_eq!((bounded.total_on(disk), bounded.traces_on(disk)), (5, 7));
        assert_eq!((bounded.total_on(None), bounded.traces_on(None)), (5, 7));
    }
}
