//! Connections to real PostgreSQL servers: verified TLS, and a pooler in transaction mode. One suite for each version that
//! `HEADRACE_POSTGRES_BIN` names; `HEADRACE_PGBOUNCER` names the pooler. The step `postgres` of the test command sets
//! both.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use headrace_domain::{Clock, HoldId, NanoDollars, OrgId, ProjectId, SystemClock};
use headrace_identity::{Directory, HashSecret, RateLimits};
use headrace_ledger::{
    CommandResult, GrantKind, JournalHistory as _, LedgerAdmin as _, LedgerOperation, Owner, SharedLedger,
    SharedLedgerOptions,
};
use headrace_postgres::{
    PostgresJournal, PostgresJournalHistory, PostgresKeyStore, PostgresPresence, PostgresUrl,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use support::{PostgresServer, command, versions, write_private};

fn url(text: &str) -> Arc<PostgresUrl> {
    Arc::new(text.parse().unwrap_or_else(|error| panic!("{text}: {error:?}")))
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Starts a server that accepts TLS alone, with a certificate for `host`.
fn tls_server(bin: &Path, authority: &CertifiedIssuer<'static, KeyPair>, host: &str) -> PostgresServer {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new([host.to_owned()]).unwrap().signed_by(&key, authority).unwrap();
    PostgresServer::start_with(bin, |folder| {
        let [certificate_file, key_file, access] =
            ["server.pem", "server.key", "access"].map(|name| folder.join(name));
        write_private(&certificate_file, &certificate.pem());
        write_private(&key_file, &key.serialize_pem());
        write_private(&access, "hostssl all all 127.0.0.1/32 trust\n");
        vec![
            "ssl=on".to_owned(),
            format!("ssl_cert_file={}", certificate_file.display()),
            format!("ssl_key_file={}", key_file.display()),
            format!("hba_file={}", access.display()),
        ]
    })
}

#[test]
fn the_certificate_must_come_from_the_named_authority_and_name_the_host() {
    for bin in versions() {
        println!("{}", bin.display());
        let files = tempfile::tempdir().unwrap();
        let (ours, others) = (authority("ours"), authority("others"));
        let file = |name: &str, pem: String| {
            let path = files.path().join(name);
            std::fs::write(&path, pem).unwrap();
            path.display().to_string()
        };
        let (ours_file, others_file) = (file("ours.pem", ours.pem()), file("others.pem", others.pem()));
        let no_certificate = file("none.pem", "not a certificate".to_owned());
        let right = tls_server(&bin, &ours, "127.0.0.1");
        let elsewhere = tls_server(&bin, &ours, "db.example.com");
        let rows = [
            (&right, format!("sslmode=verify-full&sslrootcert={ours_file}"), None),
            (&right, format!("sslrootcert={ours_file}"), None),
            (&right, "sslmode=disable".to_owned(), Some("pg_hba")),
            (
                &right,
                format!("sslmode=verify-full&sslrootcert={others_file}"),
                Some("invalid peer certificate"),
            ),
            (&right, "sslmode=verify-full".to_owned(), Some("invalid peer certificate")),
            (&elsewhere, format!("sslmode=verify-full&sslrootcert={ours_file}"), Some("not valid for name")),
            (&right, format!("sslmode=verify-full&sslrootcert={no_certificate}"), Some("no certificate")),
        ];
        for (server, parameters, refusal) in rows {
            let opened = PostgresKeyStore::open(url(&format!("{}?{parameters}", server.url())));
            match (opened, refusal) {
                (Ok(_), None) => {}
                (Err(error), Some(expected)) => {
                    let error = error.to_string();
                    assert!(error.contains(expected), "{parameters}: {error}");
                }
                (opened, expected) => panic!("{parameters}: {opened:?}, and {expected:?} was expected"),
            }
        }
    }
}

/// A pooler in transaction mode, with fewer connections to the server than clients have to it.
struct Pooler {
    process: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Pooler {
    fn start(program: &str, server: &PostgresServer) -> Self {
        let folder = tempfile::Builder::new().prefix("headrace-pooler-").tempdir_in("/tmp").unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = folder.path().join("pgbouncer.ini");
        let settings = format!(
            "[databases]\npostgres = user=headrace host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             auth_type = any\npool_mode = transaction\ndefault_pool_size = 4\nunix_socket_dir =\n",
            server.port()
        );
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        write_private(&config, &settings);
        let process = command(program.into()).arg(&config).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "the pooler did not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { process, port, _folder: folder }
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn gateways_work_through_a_pooler_in_transaction_mode() {
    let Ok(program) = std::env::var("HEADRACE_PGBOUNCER") else {
        println!(
            "not run: HEADRACE_PGBOUNCER names no pooler (cargo run --release -p xtask -- test --only postgres)"
        );
        return;
    };
    for bin in versions() {
        println!("{}", bin.display());
        let server = PostgresServer::start(&bin);
        let pooler = Pooler::start(&program, &server);
        let pooled = url(&format!("postgres://headrace@127.0.0.1:{}/postgres", pooler.port));
        let open = |owner: u128| {
            let store = Arc::new(PostgresKeyStore::open(Arc::clone(&pooled)).unwrap());
            let directory = Directory::open(store, HashSecret::new([7; 32])).unwrap();
            let ledger = SharedLedger::open(
                Box::new(PostgresJournal::new(Arc::clone(&pooled))),
                Box::new(PostgresPresence::new(Arc::clone(&pooled))),
                Owner::new(owner),
                Box::new(move || Owner::new(owner + 100)),
                Arc::new(SystemClock::new()),
                SharedLedgerOptions::default(),
            );
            (directory, ledger.unwrap().0)
        };
        let gateways = [open(1), open(2), open(3)];
        let now = SystemClock::new().now();
        let (org, project) = (OrgId::new("o").unwrap(), ProjectId::new("p").unwrap());
        let none = RateLimits::default();
        gateways[0].0.create_org(org.clone(), none, "test", now).unwrap();
        gateways[0].0.create_project(project.clone(), org.clone(), none, "test", now).unwrap();
        assert!(gateways[1].0.refresh().unwrap());
        assert_eq!(gateways[1].0.projects().len(), 1);
        let (amount, reference) = (NanoDollars::new(1_000_000), "a test".into());
        let opened = LedgerOperation::OpenProject { org: org.clone(), project: project.clone() };
        let granted = LedgerOperation::Grant { org: org.clone(), amount, kind: GrantKind::Paid, reference };
        let done = gateways[0].1.transact(vec![opened, granted], now);
        assert!(done.verdicts.iter().all(CommandResult::is_done));
        std::thread::scope(|scope| {
            for (first, (_, ledger)) in gateways.iter().enumerate() {
                let (org, project) = (&org, &project);
                scope.spawn(move || {
                    for n in 0..100_u128 {
                        let now = SystemClock::new().now();
                        let hold = LedgerOperation::Hold {
                            hold: HoldId::from_bits(first as u128 * 1_000 + n + 1),
                            org: org.clone(),
                            project: project.clone(),
                            amount: NanoDollars::new(10),
                            owner: Owner::new(0),
                            expires: now.after(Duration::from_secs(60)),
                            demand: None,
                            idempotency: None,
                        };
                        let held = ledger.transact(vec![hold], now);
                        assert!(held.verdicts[0].is_done(), "{:?}", held.verdicts);
                    }
                });
            }
        });
        let direct = PostgresJournalHistory::new(url(&server.url()));
        let report = direct.verify().unwrap();
        assert!(report.ok(), "{:?}", report.findings);
        assert_eq!((report.totals.open_holds, report.totals.held.get()), (300, 3_000));
        let through = PostgresJournalHistory::new(pooled);
        assert_eq!(through.verify().unwrap().totals, report.totals);
        let names = through.gateways().unwrap();
        assert_eq!(names.len(), 3);
        for (_, ledger) in &gateways {
            ledger.close().unwrap();
        }
        assert_eq!(direct.verify().unwrap().totals.held.get(), 0);
    }
}
