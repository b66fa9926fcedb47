//! The places where stores of objects may be: a folder, or a database of each version of PostgreSQL that
//! `HEADRACE_POSTGRES_BIN` names, as the step `postgres` of the test command does.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use headrace_ledger::EventOutbox;
use headrace_objects::{AnswerStore, BatchStore, FileLimits, ObjectLimits, ObjectStore};
use headrace_store::{IdentityStores, Storage, StorageUrl};

#[path = "../../../postgres/tests/support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod postgres;

/// A place of stores. Dropping it removes a folder.
pub(crate) struct TestPlace {
    storage: Storage,
    folder: tempfile::TempDir,
}

impl TestPlace {
    /// An empty folder.
    pub(crate) fn of_files() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { storage: Storage::open(StorageUrl::of_folder(folder.path()), None), folder }
    }

    /// Opens the store of responses and conversations, which may exist.
    pub(crate) fn objects(&self, limits: ObjectLimits) -> Arc<dyn ObjectStore> {
        let shared = self.storage.shared_objects(limits, Arc::new(|| None)).unwrap();
        shared.unwrap_or_else(|| self.storage.objects(limits, None).unwrap())
    }

    /// Opens the store of answers, which may exist.
    pub(crate) fn answers(&self, max_total_bytes: u64) -> Arc<dyn AnswerStore> {
        self.storage.answers(max_total_bytes, None).unwrap()
    }

    /// Opens the stores of identities, which may exist.
    pub(crate) fn identities(&self) -> IdentityStores {
        self.storage.identities().unwrap()
    }

    /// Opens the outbox of webhooks, which may exist.
    pub(crate) fn outbox(&self) -> Arc<dyn EventOutbox> {
        self.storage.outbox()
    }

    /// Copies the outbox of webhooks to another place. Returns the number of events.
    pub(crate) fn copy_outbox_to(&self, to: &Self) -> u64 {
        self.storage.transfer_outbox_to(&to.storage).unwrap()
    }

    /// The names of the files in the folder.
    pub(crate) fn files_in_folder(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Opens the store of files and batches, which may exist.
    pub(crate) fn files(&self, limits: FileLimits) -> Arc<dyn BatchStore> {
        let shared = self.storage.shared_batches(limits, Arc::new(|| None)).unwrap();
        shared.unwrap_or_else(|| self.storage.batches(limits, None).unwrap())
    }
}

/// A server whose databases are places.
pub(crate) struct TestServer {
    server: postgres::PostgresServer,
    databases: AtomicU32,
}

/// One server for each version of PostgreSQL.
pub(crate) fn servers() -> Vec<TestServer> {
    let start = |bin: PathBuf| {
        println!("{}", bin.display());
        TestServer { server: server(&bin), databases: AtomicU32::new(0) }
    };
    postgres::versions().into_iter().map(start).collect()
}

/// Not durable: no test here ends it.
fn server(bin: &std::path::Path) -> postgres::PostgresServer {
    postgres::PostgresServer::start_with(bin, |_| vec!["fsync=off".to_owned()])
}

impl TestServer {
    /// An empty database.
    pub(crate) fn place(&self) -> TestPlace {
        let name = format!("place{}", self.databases.fetch_add(1, Ordering::SeqCst));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let url = self.server.url();
            let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
            let connection = tokio::spawn(connection);
            client.batch_execute(&format!("CREATE DATABASE {name} STRATEGY = file_copy")).await.unwrap();
            drop(client);
            connection.await.unwrap().unwrap();
        });
        let folder = tempfile::tempdir().unwrap();
        let url = format!("postgres://headrace@127.0.0.1:{}/{name}", self.server.port());
        let url = StorageUrl::parse_in(&url, folder.path()).unwrap();
        TestPlace { storage: Storage::open(url, None), folder }
    }
}

/// The name of a behaviour, and its check at a place.
pub(crate) type StoreBehaviour = (&'static str, fn(&TestPlace));

/// Runs behaviours in a folder of their own, and in a database of their own on each server.
pub(crate) fn check_all(behaviours: &[StoreBehaviour]) {
    let servers = servers();
    for (name, behaviour) in behaviours {
        println!("{name}");
        behaviour(&TestPlace::of_files());
        for server in &servers {
            behaviour(&server.place());
        }
    }
}
