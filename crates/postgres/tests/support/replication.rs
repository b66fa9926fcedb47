//! A primary and its synchronous standby, and failovers between them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::postgres::{OTHER_USER, PostgresServer, is_root};

/// How long a standby may take to start, to connect, or to be promoted.
const PATIENCE: Duration = Duration::from_secs(60);
/// The log that a primary keeps for a standby that is not connected yet.
const KEPT_LOG: &str = "wal_keep_size=256MB";

/// Two servers. The standby has every row that the primary acknowledged.
pub(crate) struct ReplicatedServers {
    bin: PathBuf,
    primary: PostgresServer,
    standby: Option<PostgresServer>,
    ports: [u16; 2],
}

impl ReplicatedServers {
    /// Makes both, on two ports that they keep.
    pub(crate) fn start(bin: &Path) -> Self {
        let primary = PostgresServer::start_with(bin, |_| vec![KEPT_LOG.to_owned()]);
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let ports = [primary.port(), free];
        let mut servers = Self { bin: bin.to_owned(), primary, standby: None, ports };
        servers.add_standby();
        servers
    }

    /// A URL that names both. A client uses the one that accepts writes.
    pub(crate) fn url(&self) -> String {
        let [one, other] = self.ports;
        format!(
            "postgres://headrace@127.0.0.1:{one},127.0.0.1:{other}/postgres?target_session_attrs=read-write"
        )
    }

    /// Copies the primary while it runs, starts the copy as a standby, and waits until commits wait for it.
    pub(crate) fn add_standby(&mut self) {
        let port = self.ports.into_iter().find(|port| *port != self.primary.port()).unwrap();
        let folder = tempfile::Builder::new().prefix("headrace-postgres-").tempdir_in("/tmp").unwrap();
        let data = folder.path().join("data");
        let session = SqlSession::open(self.primary.port());
        session.run("SELECT pg_backup_start('standby', true)");
        copy_folder(&self.primary.data(), &data);
        let label = session.value("SELECT labelfile FROM pg_backup_stop(false)");
        std::fs::write(data.join("backup_label"), label).unwrap();
        std::fs::write(data.join("standby.signal"), "").unwrap();
        let source = self.primary.port();
        let follows = format!(
            "primary_conninfo = 'host=127.0.0.1 port={source} user=headrace application_name=standby'\n"
        );
        std::fs::write(data.join("postgresql.auto.conf"), follows).unwrap();
        let _ = std::fs::remove_file(data.join("postmaster.pid"));
        give_away(folder.path());
        let standby = PostgresServer::start_on(
            &self.bin,
            folder,
            port,
            vec![KEPT_LOG.to_owned(), "hot_standby=on".to_owned()],
        );
        self.standby = Some(standby);
        session.run("ALTER SYSTEM SET synchronous_standby_names = 'standby'");
        session.run("SELECT pg_reload_conf()");
        let until = Instant::now() + PATIENCE;
        let attached = "SELECT count(*)::text FROM pg_stat_replication WHERE sync_state = 'sync'";
        while session.value(attached) != "1" {
            assert!(Instant::now() < until, "the standby does not connect");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Stops the replication, kills the primary a moment later, and promotes the standby. What the primary committed
    /// in that moment was never acknowledged, and is lost. Returns when the new primary accepts writes.
    pub(crate) fn fail_over(&mut self, moment: Duration) {
        for sender in self.primary.processes("walsender") {
            signal("-STOP", sender);
        }
        std::thread::sleep(moment);
        self.primary.kill_all();
        let standby = self.standby.take().unwrap();
        std::fs::write(standby.data().join("promote"), "").unwrap();
        standby.signal("-USR1");
        let until = Instant::now() + PATIENCE;
        while standby.data().join("standby.signal").exists() {
            assert!(Instant::now() < until, "the standby is not promoted");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.primary = standby;
    }
}

fn signal(name: &str, pid: u32) {
    let _ = Command::new("kill").arg(name).arg(pid.to_string()).status();
}

/// Copies a folder whose files may vanish meanwhile.
fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    std::fs::set_permissions(to, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => copy_folder(&from, &to),
            Ok(_) => match std::fs::copy(&from, &to) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => panic!("{}: {error}", from.display()),
            },
            Err(error) => panic!("{}: {error}", from.display()),
        }
    }
}

/// Gives a folder and all in it to the server's user.
fn give_away(path: &Path) {
    if !is_root() {
        return;
    }
    chown(path, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    if path.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            give_away(&entry.unwrap().path());
        }
    }
}

/// A connection for statements of a test.
struct SqlSession {
    runtime: tokio::runtime::Runtime,
    client: tokio_postgres::Client,
}

impl SqlSession {
    fn open(port: u16) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let url = format!("postgres://headrace@127.0.0.1:{port}/postgres");
        let client = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            client
        });
        Self { runtime, client }
    }

    fn run(&self, statement: &str) {
        self.runtime.block_on(self.client.batch_execute(statement)).unwrap();
    }

    /// The text in the first column of the first row.
    fn value(&self, query: &str) -> String {
        self.runtime.block_on(self.client.query_one(query, &[])).unwrap().get(0)
    }
}
