//! The promises of `Directory`: which keys authenticate and which do not, and that every change is in the store and its
//! log first.

use std::sync::atomic::Ordering;

use headrace_domain::{Endpoint, ModelName, Region, TierName};
use proptest::prelude::*;

use super::*;
use crate::{
    AccountStore, AddressList, AuditRow, AuditSummary, DocumentStore, DocumentWriter, EndpointAccess,
    KeyDetailStore, KeyUse, MemoryKeyStore, ModelAccess, NewDocument, NumberedDocument, RotatedSecret,
    StoredAccount, StoredDirectory, TierHolder, TierRecord, TierStore,
};

use stores::Failing;

mod accounts;
mod details;
mod stores;
mod tiers;

const NOW: UnixNanos = UnixNanos::new(1_700_000_000_000_000_000);
const LATER: UnixNanos = UnixNanos::new(1_800_000_000_000_000_000);
const SECRET: &str = "sk-canary-0123456789-abcdefghij-XYZ";

fn org(name: &str) -> OrgId {
    OrgId::new(name).unwrap()
}

fn project(name: &str) -> ProjectId {
    ProjectId::new(name).unwrap()
}

fn open(store: &Arc<dyn KeyStore>) -> Directory {
    Directory::open(Arc::clone(store), HashSecret::new([7; 32])).unwrap()
}

/// A directory with `acme/web` and `other/app`.
fn directory(store: &Arc<dyn KeyStore>) -> Directory {
    let directory = open(store);
    for (o, p) in [("acme", "web"), ("other", "app")] {
        directory.create_org(org(o), RateLimits::default(), "ops", NOW).unwrap();
        directory.create_project(project(p), org(o), RateLimits::default(), "ops", NOW).unwrap();
    }
    directory
}

fn memory() -> Arc<dyn KeyStore> {
    Arc::new(MemoryKeyStore::new())
}

fn new_key() -> NewKey {
    NewKey::new(org("acme"), project("web"), "test")
}

fn chosen(secret: &str) -> NewKey {
    NewKey { secret: Some(SecretString::from(secret)), ..new_key() }
}

#[test]
fn who_gets_in_and_who_does_not() {
    let directory = directory(&memory());
    let (good, _) = directory.create_key(chosen(SECRET), "ops", NOW).unwrap();
    let (gone, _) = directory.create_key(chosen("sk-revoked-key"), "ops", NOW).unwrap();
    directory.revoke(&gone.id, "ops", NOW).unwrap();
    let ends = NewKey { expires: Some(LATER), ..chosen("sk-expiring-key") };
    let (ends, _) = directory.create_key(ends, "ops", NOW).unwrap();

    let just_before = UnixNanos::new(LATER.get() - 1);
    let long = format!("{SECRET}{}", "a".repeat(300));
    let rows = [
        (SECRET, NOW, Ok(&good.id)),
        (SECRET, UnixNanos::new(u64::MAX), Ok(&good.id)),
        ("sk-expiring-key", just_before, Ok(&ends.id)),
        ("sk-expiring-key", LATER, Err(AuthRefusal::Expired)),
        ("sk-revoked-key", NOW, Err(AuthRefusal::Revoked)),
        ("", NOW, Err(AuthRefusal::Missing)),
        ("sk-canary-0123456789-abcdefghij-XYz", NOW, Err(AuthRefusal::Unknown)),
        ("sk-canary-0123456789-abcdefghij-XY", NOW, Err(AuthRefusal::Unknown)),
        ("x' OR pg_sleep(8)--", NOW, Err(AuthRefusal::OtherKind(CredentialKind::Unknown))),
        ("hrop-0123456789", NOW, Err(AuthRefusal::OtherKind(CredentialKind::OperatorKey))),
        ("hrscim-0123456789", NOW, Err(AuthRefusal::OtherKind(CredentialKind::ScimCredential))),
        ("sk-x' OR pg_sleep(8)--", NOW, Err(AuthRefusal::Malformed)),
        ("sk-\0\0\0\0", NOW, Err(AuthRefusal::Malformed)),
        (&long, NOW, Err(AuthRefusal::Malformed)),
    ];
    for (presented, now, expected) in rows {
        let got = directory.authenticate(presented, now);
        assert_eq!(got.as_ref().map(|principal| &principal.key), expected.as_ref().copied(), "{presented}");
    }
}

#[test]
fn unknown_revoked_and_malformed_keys_look_alike() {
    use AuthRefusal::{Conflicting, Expired, Malformed, Missing, Revoked, Unknown};
    assert_eq!(Unknown.to_string(), Revoked.to_string());
    assert_eq!(Unknown.to_string(), Malformed.to_string());
    let all = [Missing, Malformed, Conflicting, Unknown, Revoked, Expired];
    let rules: std::collections::BTreeSet<_> = all.iter().map(|refusal| refusal.rule()).collect();
    assert_eq!(rules.len(), all.len(), "the trace tells them apart");
}

#[test]
fn a_principal_carries_what_its_key_project_and_org_say() {
    let directory = directory(&memory());
    let limits = |n| RateLimits { requests_per_minute: Some(n), ..RateLimits::default() };
    let new = NewKey {
        models: ModelAccess::Only([ModelName::new("m").unwrap()].into()),
        endpoints: EndpointAccess::Only(vec![Endpoint::Messages]),
        limits: limits(1),
        expires: Some(LATER),
        ..chosen(SECRET)
    };
    let (record, _) = directory.create_key(new, "ops", NOW).unwrap();
    directory.set_project_limits(&project("web"), limits(2), "ops", NOW).unwrap();
    directory.set_org_limits(&org("acme"), limits(3), "ops", NOW).unwrap();
    directory.set_org_limits(&org("other"), limits(4), "ops", NOW).unwrap();
    let principal = directory.authenticate(SECRET, NOW).unwrap();
    let expected = Principal {
        org: org("acme"),
        project: project("web"),
        key: record.id.clone(),
        name: "test".to_owned(),
        user: None,
        models: record.models.clone(),
        endpoints: record.endpoints.clone(),
        regions: Residency::Anywhere,
        org_regions: Residency::Anywhere,
        secret_number: 1,
        limits: limits(1),
        project_limits: limits(2),
        org_limits: limits(3),
        expires: Some(LATER),
        allowed_ips: AddressList::default(),
        tier: None,
        records: headrace_domain::RecordRules::default(),
    };
    assert_eq!(*principal, expected);
    assert_eq!(directory.key(&record.id), Some(record.clone()));
    assert_eq!(directory.list(), [record]);
    assert_eq!(directory.orgs().len(), 2);
    assert_eq!(directory.project(&project("web")).unwrap().limits, limits(2));
    assert_eq!(directory.org(&org("acme")).unwrap().created, NOW);
}

fn only(names: &str) -> Residency {
    Residency::only(names.split_whitespace().map(|name| Region::new(name).unwrap()))
}

#[test]
fn a_key_narrows_its_organisations_pin_and_never_widens_it() {
    let store = memory();
    let directory = directory(&store);
    directory.set_org_regions(&org("acme"), only("eu ch"), "ops", NOW).unwrap();
    let wide = directory.create_key(NewKey { regions: only("eu us"), ..new_key() }, "ops", NOW).unwrap_err();
    assert_eq!(wide, IdentityError::Widens { key: only("eu us"), org: only("ch eu") });
    assert!(wide.to_string().contains("pinned to ch, eu") && wide.to_string().contains("eu, us"), "{wide}");
    let (inherits, inheriting) = directory.create_key(new_key(), "ops", NOW).unwrap();
    let narrow = NewKey { regions: only("ch"), ..new_key() };
    let (narrows, narrowing) = directory.create_key(narrow, "ops", NOW).unwrap();
    let regions = |secret: &SecretString| {
        let principal = directory.authenticate(secret.expose_secret(), NOW).unwrap();
        (principal.regions.clone(), principal.org_regions.clone())
    };
    assert_eq!(regions(&inheriting), (only("eu ch"), only("eu ch")));
    assert_eq!(regions(&narrowing), (only("ch"), only("eu ch")));
    let rows = store.audit_end().unwrap().rows;
    assert!(directory.set_key_regions(&inherits.id, only("jp"), "ops", NOW).is_err());
    assert!(directory.set_key_regions(&KeyId::new("nobody").unwrap(), only("eu"), "ops", NOW).is_err());
    assert!(directory.set_org_regions(&org("nobody"), only("eu"), "ops", NOW).is_err());
    assert_eq!(store.audit_end().unwrap().rows, rows, "what is refused leaves no row");
    directory.set_key_regions(&inherits.id, only("eu"), "ops", NOW).unwrap();
    assert_eq!(regions(&inheriting).0, only("eu"));
    // The organisation's regions change. The intersection is in force at once, even if it is empty.
    directory.set_org_regions(&org("acme"), only("eu us"), "ops", NOW).unwrap();
    assert_eq!((regions(&inheriting).0, regions(&narrowing).0), (only("eu"), only("")));
    directory.set_org_regions(&org("acme"), Residency::Anywhere, "ops", NOW).unwrap();
    assert_eq!((regions(&inheriting).0, regions(&narrowing).0), (only("eu"), only("ch")));
    // Changing the limits leaves the regions as they are.
    directory.set_key_limits(&narrows.id, RateLimits::default(), "ops", NOW).unwrap();
    directory.set_org_limits(&org("acme"), RateLimits::default(), "ops", NOW).unwrap();
    assert_eq!(regions(&narrowing), (only("ch"), Residency::Anywhere));
    let newest = directory.audit_of("key.regions", None, 1).unwrap();
    assert_eq!((&*newest[0].entry.subject, &*newest[0].entry.detail), (inherits.id.as_str(), "eu"));
    assert_eq!(open(&store).list(), directory.list());
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_no_trace() {
    let store = memory();
    let directory = directory(&store);
    directory.create_key(chosen(SECRET), "ops", NOW).unwrap();
    let before = (store.load_all(), store.verify_audit());
    let rows: [(NewKey, &str); 9] = [
        (NewKey { org: org("nobody"), ..new_key() }, "there is no organisation `nobody`"),
        (NewKey { project: project("nothing"), ..new_key() }, "there is no project `nothing`"),
        (NewKey { project: project("app"), ..new_key() }, "project `app` does not belong"),
        (NewKey { name: String::new(), ..new_key() }, "`name` must have"),
        (NewKey { name: "a\nb".to_owned(), ..new_key() }, "`name` must have"),
        (NewKey { expires: Some(NOW), ..new_key() }, "`expires` must be later"),
        (chosen("sk-a"), "`secret` must be"),
        (chosen("password"), "`secret` must be"),
        (chosen(SECRET), "a key with this secret is there already"),
    ];
    for (new, expected) in rows {
        let error = directory.create_key(new, "ops", NOW).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
        assert!(!error.contains("canary") && !error.contains("password"), "{error}");
    }
    assert!(directory.create_key(new_key(), "", NOW).is_err(), "an act has an actor");
    let unlimited = RateLimits::default();
    assert!(directory.create_org(org("acme"), unlimited, "ops", NOW).is_err());
    assert!(directory.create_project(project("web"), org("other"), unlimited, "ops", NOW).is_err());
    assert!(directory.create_project(project("new"), org("nobody"), unlimited, "ops", NOW).is_err());
    assert!(directory.set_org_limits(&org("nobody"), unlimited, "ops", NOW).is_err());
    assert!(directory.set_project_limits(&project("nothing"), unlimited, "ops", NOW).is_err());
    assert!(directory.revoke(&KeyId::new("key_none").unwrap(), "ops", NOW).is_err());
    assert_eq!((store.load_all(), store.verify_audit()), before);
}

#[test]
fn every_admin_act_has_exactly_one_audit_row() {
    let store = memory();
    let directory = directory(&store);
    let (key, _) = directory.create_key(new_key(), "alice", NOW).unwrap();
    directory.set_org_limits(&org("acme"), RateLimits::default(), "bob", NOW).unwrap();
    directory.set_project_limits(&project("web"), RateLimits::default(), "bob", NOW).unwrap();
    directory.revoke(&key.id, "carol", LATER).unwrap();
    directory.revoke(&key.id, "dave", LATER).unwrap();
    let rows = directory.audit(0, 100).unwrap();
    let listed: Vec<_> = rows.iter().map(|row| (row.entry.act.as_str(), row.entry.actor.as_str())).collect();
    let expected = [
        ("org.create", "ops"),
        ("project.create", "ops"),
        ("org.create", "ops"),
        ("project.create", "ops"),
        ("key.create", "alice"),
        ("org.limits", "bob"),
        ("project.limits", "bob"),
        ("key.revoke", "carol"),
    ];
    assert_eq!(listed, expected, "revoking what is revoked changes nothing");
    assert_eq!(rows.last().unwrap().entry.subject, key.id.as_str());
    assert_eq!(directory.verify_audit().unwrap().rows, 8);
}

#[test]
fn no_secret_appears_in_anything_that_can_be_shown() {
    let store = memory();
    let directory = directory(&store);
    let (record, secret) = directory.create_key(chosen(SECRET), "ops", NOW).unwrap();
    directory.revoke(&record.id, "ops", NOW).unwrap();
    let shown = format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} {:?}",
        directory,
        record,
        secret,
        chosen(SECRET),
        store.load_all(),
        store.audit(0, 99),
        directory.authenticate(SECRET, NOW),
    );
    assert!(!shown.contains("canary") && !shown.contains("0123456789"), "{shown}");
    assert_eq!(record.hint, "-XYZ");
}

#[test]
fn another_secret_does_not_open_the_store() {
    let store = memory();
    directory(&store);
    let error = Directory::open(Arc::clone(&store), HashSecret::new([8; 32])).unwrap_err();
    assert_eq!(error, IdentityError::WrongSecret);
}

#[test]
fn nothing_is_visible_that_the_store_did_not_take() {
    let failing = Arc::new(Failing::default());
    let store: Arc<dyn KeyStore> = failing.clone();
    let directory = directory(&store);
    let (key, _) = directory.create_key(chosen(SECRET), "ops", NOW).unwrap();
    failing.broken.store(true, Ordering::SeqCst);
    let unlimited = RateLimits::default();
    let tight = RateLimits { concurrency: Some(1), ..unlimited };
    assert!(directory.create_key(chosen("sk-other"), "ops", NOW).is_err());
    assert!(directory.create_org(org("new"), unlimited, "ops", NOW).is_err());
    assert!(directory.create_project(project("new"), org("acme"), unlimited, "ops", NOW).is_err());
    assert!(directory.set_org_limits(&org("acme"), tight, "ops", NOW).is_err());
    assert!(directory.set_project_limits(&project("web"), tight, "ops", NOW).is_err());
    assert!(directory.set_key_limits(&key.id, tight, "ops", NOW).is_err());
    assert_eq!(directory.authenticate("sk-other", NOW), Err(AuthRefusal::Unknown));
    assert_eq!(directory.authenticate(SECRET, NOW).unwrap().org_limits, unlimited);
    assert_eq!((directory.orgs().len(), directory.projects().len(), directory.list().len()), (2, 2, 1));

    failing.broken.store(false, Ordering::SeqCst);
    assert_eq!(directory.revoke(&key.id, "ops", NOW), Ok(Revocation::Written));
    assert_eq!(directory.authenticate(SECRET, NOW), Err(AuthRefusal::Revoked));
}

#[test]
fn a_key_is_revoked_whether_the_store_can_write_it_or_not() {
    for no_reserve in [false, true] {
        let failing = Arc::new(Failing::default());
        let store: Arc<dyn KeyStore> = failing.clone();
        let directory = directory(&store);
        let (key, _) = directory.create_key(chosen(SECRET), "ops", NOW).unwrap();
        let rows = directory.verify_audit().unwrap().rows;
        failing.no_reserve.store(no_reserve, Ordering::SeqCst);
        failing.broken.store(true, Ordering::SeqCst);
        for _ in 0..2 {
            let how = directory.revoke(&key.id, "ops", NOW).unwrap();
            assert_eq!(matches!(how, Revocation::InMemory { .. }), no_reserve, "{how:?}");
            assert_eq!(directory.authenticate(SECRET, NOW), Err(AuthRefusal::Revoked));
            assert!(directory.tend().is_err());
            assert_eq!(directory.revocations_waiting(), 1);
        }
        // What a restart finds now: the revocation from the reserve, or the key as it was.
        failing.broken.store(false, Ordering::SeqCst);
        let restarted = open(&store).authenticate(SECRET, NOW);
        assert_eq!(restarted.is_ok(), no_reserve);

        directory.tend().unwrap();
        assert_eq!(directory.revocations_waiting(), 0);
        assert_eq!(directory.revoke(&key.id, "ops", LATER), Ok(Revocation::Written));
        assert_eq!(directory.verify_audit().unwrap().rows, rows + 1, "told once");
        let restarted = open(&store);
        assert_eq!(restarted.authenticate(SECRET, NOW), Err(AuthRefusal::Revoked));
        assert_eq!(restarted.key(&key.id).unwrap().revoked, Some(NOW));
        assert_eq!(restarted.revocations_waiting(), 0);
    }
}

#[test]
fn a_store_that_contradicts_itself_is_refused() {
    let homeless: Arc<dyn KeyStore> = Arc::new(Scripted(|all| all.orgs.clear()));
    let twice: Arc<dyn KeyStore> = Arc::new(Scripted(|all| all.keys.extend(all.keys.clone())));
    for store in [homeless, twice] {
        let error = Directory::open(store, HashSecret::new([7; 32])).unwrap_err();
        assert!(matches!(error, IdentityError::Store(StoreError::Corrupt { .. })), "{error}");
    }
}

#[test]
fn a_change_copies_a_small_part_of_the_keys() {
    const KEYS: usize = 4_000;
    let directory = directory(&memory());
    for n in 0..KEYS {
        directory.create_key(chosen(&format!("sk-key-{n:05}")), "ops", NOW).unwrap();
    }
    let copied = directory.entries.copied.load(Ordering::Relaxed);
    // Copying all entries at each change would copy KEYS²/2 = eight million.
    assert!(copied < KEYS * KEYS / 2 / 100, "{copied} entries were copied");
    let before = directory.entries.copied.load(Ordering::Relaxed);
    directory.set_org_limits(&org("other"), RateLimits::default(), "ops", NOW).unwrap();
    assert_eq!(directory.entries.copied.load(Ordering::Relaxed), before, "no key of this one");
}

#[test]
fn the_newest_rows_of_the_log_are_read_without_the_others() {
    let directory = directory(&memory());
    let newest = |count| -> Vec<u64> {
        directory.audit_newest(count).unwrap().into_iter().map(|row| row.seq).collect()
    };
    assert_eq!(newest(2), [3, 4]);
    assert_eq!((newest(0), newest(9)), (vec![], vec![1, 2, 3, 4]));
}

#[test]
fn a_revoked_key_is_dead_once_revoke_returns() {
    let directory = Arc::new(directory(&memory()));
    let keys: Vec<_> = (0..40)
        .map(|n| directory.create_key(chosen(&format!("sk-key-{n:04}")), "ops", NOW).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for half in keys.chunks(20) {
            let directory = &directory;
            scope.spawn(move || {
                for (record, secret) in half {
                    assert!(directory.authenticate(secret.expose_secret(), NOW).is_ok());
                    directory.revoke(&record.id, "ops", NOW).unwrap();
                    let after = directory.authenticate(secret.expose_secret(), NOW);
                    assert_eq!(after, Err(AuthRefusal::Revoked));
                }
            });
        }
    });
    assert_eq!(directory.verify_audit().unwrap().rows, 4 + 40 + 40);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// After any sequence of administrative acts, a directory that is opened afterwards equals the one that made the
    /// changes.
    #[test]
    fn memory_and_store_never_disagree(acts in proptest::collection::vec((0_u8..7, 0_u8..8), 0..40)) {
        let store = memory();
        let directory = open(&store);
        let name = |n: u8| format!("n{}", n % 4);
        let mut secrets = Vec::new();
        for (what, n) in acts {
            let limits = RateLimits { concurrency: Some(u32::from(n)), ..RateLimits::default() };
            let (o, p) = (org(&name(n / 2)), project(&name(n)));
            // Refusals are part of the property: they must not change anything.
            let _done = match what {
                0 => directory.create_org(o, limits, "ops", NOW).map(drop),
                1 => directory.create_project(p, o, limits, "ops", NOW).map(drop),
                2 => directory.set_org_limits(&o, limits, "ops", NOW),
                3 => directory.set_project_limits(&p, limits, "ops", NOW),
                4 => directory.create_key(NewKey { limits, ..NewKey::new(o, p, "k") }, "ops", NOW).map(|made| {
                    secrets.push(made.1);
                }),
                5 => match directory.list().get(usize::from(n)) {
                    Some(key) => directory.set_key_limits(&key.id, limits, "ops", NOW).map(drop),
                    None => Ok(()),
                },
                _ => match directory.list().get(usize::from(n)) {
                    Some(key) => directory.revoke(&key.id, "ops", NOW).map(drop),
                    None => Ok(()),
                },
            };
            let again = open(&store);
            prop_assert_eq!(directory.orgs(), again.orgs());
            prop_assert_eq!(directory.projects(), again.projects());
            prop_assert_eq!(directory.list(), again.list());
            for secret in &secrets {
                let secret = secret.expose_secret();
                prop_assert_eq!(directory.authenticate(secret, NOW), again.authenticate(secret, NOW));
            }
            prop_assert!(directory.verify_audit().is_ok());
        }
    }
}

/// A store with one key that a function has altered.
struct Scripted(fn(&mut StoredDirectory));

impl KeyStore for Scripted {
    fn load_all(&self) -> Result<StoredDirectory, StoreError> {
        let store = memory();
        directory(&store).create_key(new_key(), "ops", NOW).unwrap();
        let mut all = store.load_all()?;
        (self.0)(&mut all);
        Ok(all)
    }
    fn secret_check(&self, check: [u8; 32]) -> Result<[u8; 32], StoreError> {
        Ok(check)
    }
    fn insert_key(&self, _: &StoredKey, _: &AuditEntry) -> Result<(), StoreError> {
        Ok(())
    }
    fn set_revoked(&self, _: &KeyId, _: UnixNanos, _: &AuditEntry) -> Result<(), StoreError> {
        Ok(())
    }
    fn upsert_org(&self, _: &OrgRecord, _: &AuditEntry) -> Result<(), StoreError> {
        Ok(())
    }
    fn upsert_project(&self, _: &ProjectRecord, _: &AuditEntry) -> Result<(), StoreError> {
        Ok(())
    }
    fn note(&self, _: &AuditEntry) -> Result<(), StoreError> {
        Ok(())
    }
    fn rotate_key(&self, _: &KeyId, _: &RotatedSecret, _: &AuditEntry) -> Result<(), StoreError> {
        Ok(())
    }
    fn set_key_limits(&self, _: &KeyId, _: RateLimits, _: &AuditEntry) -> Result<(), StoreError> {
        Ok(())
    }
    fn set_key_regions(&self, _: &KeyId, _: &Residency, _: &AuditEntry) -> Result<(), StoreError> {
        Ok(())
    }
    fn audit_end(&self) -> Result<AuditSummary, StoreError> {
        Ok(AuditSummary::EMPTY)
    }
    fn announce(&self, _: &AuditEntry, _: &str) -> Result<u64, StoreError> {
        Ok(1)
    }
    fn conclude(&self, _: u64, _: Option<&AuditEntry>) -> Result<(), StoreError> {
        Ok(())
    }
    fn announced(&self) -> Result<Vec<(u64, String)>, StoreError> {
        Ok(Vec::new())
    }
    fn audit_of(&self, _: &str, _: Option<&str>, _: usize) -> Result<Vec<AuditRow>, StoreError> {
        Ok(Vec::new())
    }
    fn note_revocations(&self, _: &[NotedRevocation]) -> Result<(), StoreError> {
        Ok(())
    }
    fn failing(&self) -> Option<String> {
        None
    }
    fn probe(&self) -> Result<(), StoreError> {
        Ok(())
    }
    fn audit(&self, _: u64, _: usize) -> Result<Vec<AuditRow>, StoreError> {
        Ok(Vec::new())
    }
    fn verify_audit(&self) -> Result<AuditSummary, StoreError> {
        Ok(AuditSummary::EMPTY)
    }
}

impl KeyDetailStore for Scripted {
    fn set_key_details(&self, _: &KeyId, _: &KeyDetails, _: &AuditEntry) -> Result<(), StoreError> {
        Ok(())
    }
    fn put_key_uses(&self, _: &[KeyUse]) -> Result<(), StoreError> {
        Ok(())
    }
    fn key_uses(&self, _: UnixNanos) -> Result<Vec<KeyUse>, StoreError> {
        Ok(Vec::new())
    }
}

impl AccountStore for Scripted {
    fn put_account(&self, _: &StoredAccount, _: &AuditEntry) -> Result<(), StoreError> {
        Ok(())
    }
}

impl DocumentStore for Scripted {
    fn number_document(
        &self,
        _new: &NewDocument,
        _write: DocumentWriter<'_>,
    ) -> Result<NumberedDocument, StoreError> {
        Err(StoreError::NotFound { what: "document" })
    }

    fn documents(&self) -> Result<Vec<NumberedDocument>, StoreError> {
        Err(StoreError::NotFound { what: "document" })
    }

    fn document(&self, _series: &str, _number: u64) -> Result<Option<NumberedDocument>, StoreError> {
        Err(StoreError::NotFound { what: "document" })
    }
}

impl TierStore for Scripted {
    fn put_tier(&self, _: &TierRecord, _: &AuditEntry) -> Result<(), StoreError> {
        Ok(())
    }
    fn remove_tier(&self, _: &TierName, _: &AuditEntry) -> Result<(), StoreError> {
        Ok(())
    }
    fn assign_tier(&self, _: &TierHolder, _: Option<&TierName>, _: &AuditEntry) -> Result<(), StoreError> {
        Ok(())
    }
}
