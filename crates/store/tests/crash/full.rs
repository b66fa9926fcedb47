//! A full disk under the stores of identities and traces, simulated by the library that cuts the power
//! (`tests/powercut.c`). A call that meets it fails, and a key can still be revoked. Once there is room again, no
//! failure state remains.

use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::sync::Arc;

use headrace_domain::{KeyId, OrgId, ProjectId, RequestId, TraceRecord, UnixNanos};
use headrace_identity::{
    AuthRefusal, Directory, ExposeSecret, HashSecret, NewKey, RateLimits, Revocation, SecretString,
};
use headrace_store::identity::SqliteKeyStore;
use headrace_store::trace::{SqliteTraceReader, SqliteTraceStore, TraceRetention};
use headrace_trace::{TraceReader, TraceStore, decode_record};

use crate::power::{World, fresh_inside};

const DIRECTORY: &str = "HEADRACE_FULL_DIRECTORY";
const FLAG: &str = "HEADRACE_CUT_FULL";
const NOW: UnixNanos = UnixNanos::new(1_700_000_000_000_000_000);

#[test]
fn a_full_disk_leaves_no_store_wedged_and_revokes_keys() {
    let world = World::new();
    let (_keep, inside) = fresh_inside();
    let child = Process::new(std::env::current_exe().unwrap())
        .args(["--exact", "full::works_beside_a_full_disk", "--nocapture", "--test-threads=1"])
        .envs(world.environment(&inside))
        .env(DIRECTORY, &inside)
        .env(FLAG, world.outside.path().join("full"))
        .status();
    assert!(child.unwrap().success());
}

/// Not a test of its own. Without a directory it does nothing.
#[test]
fn works_beside_a_full_disk() {
    let Ok(inside) = std::env::var(DIRECTORY) else { return };
    let inside = PathBuf::from(inside);
    let mut stores = OpenStores::open(&inside);
    stores.directory.create_org(org(), RateLimits::default(), "ops", NOW).unwrap();
    stores.directory.create_project(project(), org(), RateLimits::default(), "ops", NOW).unwrap();
    for round in 0..3 {
        let (stays, _) = stores.key(&format!("sk-stays-{round}")).unwrap();
        let (goes, secret) = stores.key(&format!("sk-goes-{round}")).unwrap();
        stores.traces.append(&[record(3 * round)]).unwrap();
        full(true);
        assert!(stores.key("sk-new").is_err());
        assert!(stores.traces.append(&[record(3 * round + 1)]).is_err());
        stores.is_revoked_beside_a_full_disk(&goes, &secret);
        // A restart before there is room again.
        drop(stores);
        stores = OpenStores::open(&inside);
        assert_eq!(stores.presents(&secret), Err(AuthRefusal::Revoked));
        assert!(stores.directory.tend().is_err());
        assert!(stores.directory.failing().is_some());

        full(false);
        stores.directory.tend().unwrap();
        assert_eq!((stores.directory.revocations_waiting(), stores.directory.failing()), (0, None));
        stores.key(&format!("sk-new-{round}")).unwrap();
        stores.traces.append(&[record(3 * round + 1), record(3 * round + 2)]).unwrap();
        let seen = SqliteTraceReader::open(&inside.join("traces.sqlite")).unwrap().last(100).unwrap();
        assert_eq!(seen.len() as u64, 3 * (round + 1), "another connection sees them");
        drop(stores);
        stores = OpenStores::open(&inside);
        assert_eq!(stores.presents(&secret), Err(AuthRefusal::Revoked));
        assert!(stores.directory.key(&stays).unwrap().revoked.is_none());
        let log = stores.directory.audit(0, 1_000).unwrap();
        let listed =
            log.iter().filter(|row| row.entry.act == "key.revoke" && row.entry.subject == goes.as_str());
        assert_eq!(listed.count(), 1);
        assert_eq!(stores.directory.verify_audit().unwrap().rows, log.len() as u64);
    }
}

struct OpenStores {
    directory: Directory,
    traces: SqliteTraceStore,
}

impl OpenStores {
    fn open(inside: &Path) -> Self {
        let keys = SqliteKeyStore::open(&inside.join("identity.sqlite")).unwrap();
        let directory = Directory::open(Arc::new(keys), HashSecret::new([7; 32])).unwrap();
        let traces =
            SqliteTraceStore::open(&inside.join("traces.sqlite"), TraceRetention::default()).unwrap();
        Self { directory, traces }
    }

    fn key(&self, secret: &str) -> Result<(KeyId, SecretString), String> {
        let new =
            NewKey { secret: Some(SecretString::from(secret)), ..NewKey::new(org(), project(), "test") };
        let (key, secret) = self.directory.create_key(new, "ops", NOW).map_err(|error| error.to_string())?;
        Ok((key.id, secret))
    }

    fn presents(&self, secret: &SecretString) -> Result<KeyId, AuthRefusal> {
        self.directory.authenticate(secret.expose_secret(), NOW).map(|principal| principal.key.clone())
    }

    fn is_revoked_beside_a_full_disk(&self, id: &KeyId, secret: &SecretString) {
        assert_eq!(self.presents(secret).as_ref(), Ok(id));
        for _ in 0..2 {
            let how = self.directory.revoke(id, "ops", NOW).unwrap();
            assert!(matches!(&how, Revocation::Noted { why } if why.contains("full")), "{how:?}");
            assert_eq!(self.presents(secret), Err(AuthRefusal::Revoked));
            assert_eq!(self.directory.revocations_waiting(), 1);
        }
    }
}

fn full(yes: bool) {
    let flag = std::env::var(FLAG).unwrap();
    if yes { std::fs::write(flag, "").unwrap() } else { std::fs::remove_file(flag).unwrap() }
}

fn org() -> OrgId {
    OrgId::new("acme").unwrap()
}

fn project() -> ProjectId {
    ProjectId::new("web").unwrap()
}

fn record(n: u64) -> TraceRecord {
    let mut record = decode_record(include_str!("../../../trace/tests/data/completed.json")).unwrap();
    record.request_id = RequestId::from_bits(n.into());
    record
}
