//! Secrets that `storage.secret_file` encrypts: in a directory, and in a database that two gateways share. Runs on the
//! last version of PostgreSQL that `HEADRACE_POSTGRES_BIN` names, as the step `postgres` of the test command does.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[path = "common/server.rs"]
mod common;
#[path = "../../postgres/tests/support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod postgres;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{Server, program, question, said};
use headrace_identity::StoreError;
use headrace_postgres::PostgresSecrets;
use postgres::{PostgresServer, versions};
use serde_json::json;

const KEY: &str = "sk-integration-test-0123456789abcdef";

fn key_file(root: &Path, name: &str, byte: u8) -> PathBuf {
    let path = root.join(name);
    std::fs::write(&path, [byte; 40]).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// The secrets in the database, as they are stored.
fn stored(url: &str) -> Vec<Vec<u8>> {
    let mut stored = Vec::new();
    let mut secrets = PostgresSecrets::open(Arc::new(url.parse().unwrap())).unwrap();
    let read = secrets.change(|rows| -> Result<_, StoreError> {
        stored = rows.iter().map(|(_, value)| value.clone()).collect();
        Ok(Vec::new())
    });
    read.unwrap();
    stored
}

/// A gateway's data directory with its settings.
struct Place<'a> {
    dir: PathBuf,
    database: Option<&'a str>,
}

impl Place<'_> {
    fn command(&self, key: Option<&Path>) -> std::process::Command {
        let mut command = program();
        command.env_remove("HEADRACE_STORAGE__SECRET_FILE");
        if let Some(database) = self.database {
            command.env("HEADRACE_STORAGE__URL", database);
        }
        if let Some(key) = key {
            command.env("HEADRACE_STORAGE__SECRET_FILE", key);
        }
        command
    }

    fn start(&self, key: Option<&Path>) -> Server {
        let mut command = self.command(key);
        command.env("HEADRACE_BOOTSTRAP_KEY", KEY).arg("up");
        Server::begin(command, &self.dir, &["--admin-listen", "off"], KEY)
    }

    /// Starts a gateway whose key works.
    async fn serves(&self, key: Option<&Path>) -> Server {
        let server = self.start(key);
        let (status, body) = server.chat(KEY, question(json!({ "max_tokens": 2 }))).await;
        assert_eq!(status, 200, "{body}");
        server
    }

    fn runs(&self, key: Option<&Path>, args: &[&str]) -> (bool, String) {
        let done = self.command(key).args(args).arg("--data-dir").arg(&self.dir).output().unwrap();
        (done.status.success(), said(&done))
    }

    fn refuses(&self, key: Option<&Path>, parts: &[&str]) {
        let starts: [&[&str]; 2] =
            [&["up", "--listen", "127.0.0.1:0", "--admin-listen", "off"], &["keys", "list"]];
        for start in starts {
            let (ok, text) = self.runs(key, start);
            assert!(!ok && parts.iter().all(|part| text.contains(part)), "{start:?}: {text}");
            assert!(!text.contains("panicked"), "{text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_encrypted_at_its_next_start_and_its_backup_says_what_it_needs() {
    let root = tempfile::tempdir().unwrap();
    let [own, other, next] =
        [("own", 1), ("other", 2), ("next", 3)].map(|(name, byte)| key_file(root.path(), name, byte));
    let place = Place { dir: root.path().join("data"), database: None };
    place.serves(None).await.stop();
    let mut server = place.serves(Some(&own)).await;
    let copy = root.path().join("copy");
    let (ok, text) = place.runs(Some(&own), &["backup", copy.to_str().unwrap()]);
    assert!(
        ok && text.contains("its secrets are encrypted: a server on it needs storage.secret_file"),
        "{text}"
    );
    server.stop();
    place.refuses(None, &["storage.secret_file is not set", "key-hash"]);
    place.refuses(Some(&other), &["storage.secret_file", "other", "has the key"]);
    place.refuses(Some(&root.path().join("missing")), &["storage.secret_file", "missing"]);
    let (ok, text) = place.runs(Some(&own), &["secrets", "rewrap", next.to_str().unwrap()]);
    assert!(ok && text.contains("3 files of secrets are encrypted"), "{text}");
    place.refuses(Some(&own), &["storage.secret_file", "own", "has the key"]);
    place.serves(Some(&next)).await.stop();
    let copy = Place { dir: copy, database: None };
    copy.refuses(None, &["storage.secret_file is not set"]);
    copy.serves(Some(&own)).await.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_share_encrypted_secrets_while_the_file_is_introduced_and_changed() {
    let Some(bin) = versions().pop() else { return };
    let database = PostgresServer::start(&bin);
    let root = tempfile::tempdir().unwrap();
    let [own, other, next] =
        [("own", 1), ("other", 2), ("next", 3)].map(|(name, byte)| key_file(root.path(), name, byte));
    let url = database.url();
    let place = |name: &str| Place { dir: root.path().join(name), database: Some(&url) };
    let (first, second, third) = (place("first"), place("second"), place("third"));

    // The plain secrets of a running gateway are encrypted when another one starts with the file.
    let mut running = first.serves(None).await;
    let plain = stored(&url);
    assert!(plain.len() == 3 && plain.iter().all(|secret| secret.len() == 32), "{plain:?}");
    let mut joined = second.serves(Some(&own)).await;
    let sealed = stored(&url);
    assert!(sealed.len() == 3 && sealed.iter().all(|secret| secret.len() == 72), "{sealed:?}");
    for secret in &plain {
        assert!(
            sealed
                .iter()
                .all(|sealed| !sealed.windows(4).any(|part| secret.windows(4).any(|own| own == part)))
        );
    }
    let (status, body) = running.chat(KEY, question(json!({ "max_tokens": 2 }))).await;
    assert_eq!(status, 200, "{body}");
    running.stop();

    first.refuses(None, &["storage.secret_file is not set", "postgres://127.0.0.1"]);
    first.refuses(Some(&other), &["storage.secret_file", "other", "has the key"]);
    third.refuses(None, &["storage.secret_file is not set"]);
    assert_eq!(stored(&url), sealed, "nothing is made anew");

    // A backup is encrypted, too, and a server starts on it with the file.
    let copy = Place { dir: root.path().join("copy"), database: None };
    let to = copy.dir.to_str().unwrap();
    let (ok, text) = second.runs(None, &["backup", to]);
    assert!(!ok && text.contains("storage.secret_file is not set"), "{text}");
    std::fs::remove_dir_all(&copy.dir).unwrap();
    let (ok, text) = second.runs(Some(&own), &["backup", to]);
    assert!(ok && text.contains("its secrets are encrypted"), "{text}");
    copy.refuses(None, &["storage.secret_file is not set"]);
    copy.serves(Some(&own)).await.stop();

    // The file changes while a gateway runs.
    let (ok, text) = second.runs(Some(&own), &["secrets", "rewrap", next.to_str().unwrap()]);
    assert!(ok && text.contains("3 secrets in the database"), "{text}");
    assert_ne!(stored(&url), sealed);
    let (status, body) = joined.chat(KEY, question(json!({ "max_tokens": 2 }))).await;
    assert_eq!(status, 200, "{body}");
    joined.stop();
    second.refuses(Some(&own), &["storage.secret_file", "own", "has the key"]);
    first.serves(Some(&next)).await.stop();
    third.serves(Some(&next)).await.stop();
    let files = ["key-hash", "cache-salt"].map(|name| first.dir.join("secrets").join(name));
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(
            text.starts_with("sealed:"),
            "no plain copy is left in the first gateway's directory: {text}"
        );
    }

    // Keys and ledger move to a directory, and their secrets stay encrypted.
    let (ok, text) = third.runs(Some(&next), &["move", "--to", "sqlite:"]);
    assert!(ok, "{text}");
    let alone = Place { dir: third.dir.clone(), database: None };
    alone.refuses(Some(&own), &["storage.secret_file"]);
    alone.serves(Some(&next)).await.stop();
}
