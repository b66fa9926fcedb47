//! Tests that the file behaves like the store in memory, and refuses foreign and altered files.

use std::path::PathBuf;
use std::sync::Arc;

use headrace_domain::{Endpoint, ModelName, OrgId, ProjectId, RecordLevel, RecordRules, Region, TierName};
use headrace_identity::{
    AccountId, AccountKind, AccountRecord, AddressList, AuthRefusal, Directory, EndpointAccess, ExposeSecret,
    GroupProfile, GroupRecord, HashSecret, IdentityContents, IdentityError, KeyDetailStore, KeyDetails,
    KeyHash, KeyRecord, KeyUse, MemoryKeyStore, ModelAccess, NewKey, OperatorId, OperatorRecord,
    OperatorStore, Operators, Role, ScimCredentialRecord, ScimSubject, ServiceAccountRecord, StoredAccount,
    StoredOperator, TierHolder, TierRecord, TierRules, UserEmail, UserLogin, UserProfile, UserRecord,
};
use proptest::prelude::*;
use sqlx::Connection;
use tempfile::TempDir;

use super::*;

fn file() -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("identity.db");
    (dir, path)
}

fn entry(n: u64) -> AuditEntry {
    AuditEntry {
        at: UnixNanos::new(n),
        actor: "ops".to_owned(),
        act: "test".to_owned(),
        subject: format!("s{n}"),
        detail: "d'); DROP TABLE keys; --".to_owned(),
    }
}

fn org_record(n: u8) -> OrgRecord {
    let limits = RateLimits { requests_per_minute: Some(u32::from(n)), ..RateLimits::default() };
    let id = OrgId::new(&format!("org{}", n % 3)).unwrap();
    OrgRecord { id, limits, regions: regions(n), created: UnixNanos::new(5), tier: None }
}

fn regions(n: u8) -> Residency {
    let only = |names: &[&str]| Residency::only(names.iter().map(|name| Region::new(name).unwrap()));
    match n % 5 {
        0 => only(&["eu", "ch"]),
        1 => only(&[]),
        _ => Residency::Anywhere,
    }
}

fn project_record(n: u8) -> ProjectRecord {
    ProjectRecord {
        id: ProjectId::new(&format!("project{}", n % 4)).unwrap(),
        org: OrgId::new(&format!("org{}", n / 4 % 3)).unwrap(),
        limits: RateLimits { tokens_per_minute: Some(u64::MAX - u64::from(n)), ..RateLimits::default() },
        created: UnixNanos::new(6),
        tier: None,
        records: RecordRules {
            level: [None, Some(RecordLevel::Nothing), Some(RecordLevel::Full)][usize::from(n % 3)],
            keep_seconds: n.is_multiple_of(2).then_some(60 + u64::from(n)),
        },
    }
}

fn stored_key(n: u8) -> StoredKey {
    let ProjectRecord { id: project, org, .. } = project_record(n / 8);
    StoredKey {
        hash: KeyHash::from_bytes([n % 16; 32]),
        former: None,
        record: KeyRecord {
            id: KeyId::new(&format!("key{}", n % 32)).unwrap(),
            org,
            project,
            name: format!("näme '{n}' \"x\""),
            hint: "abcd".to_owned(),
            models: match n % 2 {
                0 => ModelAccess::All,
                _ => ModelAccess::Only([ModelName::new("m/\"1\"").unwrap()].into()),
            },
            endpoints: match n % 3 {
                0 => EndpointAccess::All,
                _ => EndpointAccess::Only(vec![Endpoint::Messages, Endpoint::Completions]),
            },
            limits: RateLimits { concurrency: Some(u32::MAX), ..RateLimits::default() },
            regions: regions(n / 3),
            secret_number: 1,
            former_until: None,
            created: UnixNanos::new(7),
            expires: n.is_multiple_of(5).then(|| UnixNanos::new(u64::from(n))),
            revoked: None,
            details: KeyDetails {
                owner: n.is_multiple_of(4).then(|| format!("team '{n}'")),
                allowed_ips: match n % 7 {
                    0 => AddressList::new(vec!["2001:db8::/32".parse().unwrap()]).unwrap(),
                    _ => AddressList::default(),
                },
            },
            tier: None,
            last_used: n.is_multiple_of(6).then(|| UnixNanos::new(u64::from(n) + 1)),
        },
    }
}

fn rotated(n: u8) -> RotatedSecret {
    RotatedSecret {
        // Some keys have such a hash.
        hash: KeyHash::from_bytes([8 + n % 16; 32]),
        hint: format!("h{n}"),
        number: 2 + u32::from(n),
        former: KeyHash::from_bytes([n; 32]),
        former_until: UnixNanos::new(u64::from(n)),
    }
}

fn tier(n: u8) -> TierRecord {
    let models = match n % 3 {
        0 => ModelAccess::All,
        _ => ModelAccess::Only([ModelName::new("m/\"2\"").unwrap()].into()),
    };
    let rules = TierRules {
        limits: org_record(n).limits,
        models,
        max_context_tokens: n.is_multiple_of(2).then_some(u32::MAX),
        max_output_tokens: None,
        reasoning: n.is_multiple_of(5),
    };
    let name = TierName::new(&format!("tier{}", n % 4)).unwrap();
    TierRecord { name, rules, created: UnixNanos::new(8) }
}

fn stored_operator(n: u8) -> StoredOperator {
    StoredOperator {
        hash: KeyHash::from_bytes([n % 8; 32]),
        record: OperatorRecord {
            id: operator_id(n),
            name: format!("Zoë '{n}' \"x\""),
            role: Role::ALL[usize::from(n) % Role::ALL.len()],
            org: n.is_multiple_of(3).then(|| org_record(n).id),
            user: n.is_multiple_of(6).then(|| account_id(n)),
            hint: "wxyz".to_owned(),
            created: UnixNanos::new(u64::from(n)),
            revoked: n.is_multiple_of(7).then(|| UnixNanos::new(u64::from(n))),
        },
    }
}

fn account_id(n: u8) -> AccountId {
    AccountId::new(&format!("{}{}", AccountKind::ALL[usize::from(n) % 4].prefix(), n % 8)).unwrap()
}

fn stored_account(n: u8) -> StoredAccount {
    let (id, org, version) = (account_id(n), org_record(n % 8).id, 1 + u64::from(n / 64));
    let (created, changed) = (UnixNanos::new(5), UnixNanos::new(u64::from(n) * 1_000));
    let removed = n.is_multiple_of(11).then_some(changed);
    let name = format!("Näme '{}'", n / 16 % 3);
    let record = match id.kind() {
        AccountKind::User => {
            let login = UserLogin { issuer: "https://i".to_owned(), subject: format!("s{}", n / 32 % 4) };
            let emails = vec![UserEmail { value: "a@b".to_owned(), kind: None, primary: true }];
            let profile = UserProfile {
                emails,
                external_id: Some("x".to_owned()),
                login: n.is_multiple_of(3).then_some(login),
                role: Some(Role::Billing),
                active: !n.is_multiple_of(5),
                ..UserProfile::new(&name)
            };
            let by_token = n.is_multiple_of(7);
            let user = UserRecord {
                version,
                changed,
                removed,
                by_token,
                ..UserRecord::new(id, org, profile, created)
            };
            AccountRecord::User(user)
        }
        AccountKind::ServiceAccount => {
            let (project, active) = (project_record(n).id, !n.is_multiple_of(5));
            let account =
                ServiceAccountRecord { id, org, project, name, active, version, created, changed, removed };
            AccountRecord::ServiceAccount(account)
        }
        AccountKind::Group => {
            let profile = GroupProfile {
                members: [AccountId::new("usr_1").unwrap()].into(),
                role: Some(Role::Viewer),
                tier: n.is_multiple_of(3).then(|| tier(n / 5).name),
                ..GroupProfile::new(&name)
            };
            AccountRecord::Group(GroupRecord { id, org, profile, version, created, changed, removed })
        }
        AccountKind::ScimCredential => {
            let revoked = (version == 2).then_some(changed);
            let (issuer, subject) = (Some("https://i".to_owned()), ScimSubject::UserName);
            let hint = "wxyz".to_owned();
            let of = ScimCredentialRecord { id, org, hint, issuer, subject, created, revoked };
            AccountRecord::ScimCredential(of)
        }
    };
    let is_credential = matches!(record, AccountRecord::ScimCredential(_));
    StoredAccount { hash: is_credential.then(|| KeyHash::from_bytes([n % 16; 32])), record }
}

fn operator_id(n: u8) -> OperatorId {
    OperatorId::new(&format!("op_{}", n % 16)).unwrap()
}

fn act<S: KeyStore + OperatorStore>(store: &S, what: u8, n: u8) -> Result<(), StoreError> {
    let audit = entry(u64::from(n));
    match what {
        9 => store.insert_operator(&stored_operator(n), &audit),
        10 => store.set_operator_revoked(&operator_id(n), UnixNanos::new(u64::from(n)), &audit),
        0 => store.upsert_org(&org_record(n), &audit),
        1 => store.upsert_project(&project_record(n), &audit),
        2 => store.set_revoked(&stored_key(n).record.id, UnixNanos::new(u64::from(n)), &audit),
        3 => store.set_key_limits(&stored_key(n).record.id, org_record(n).limits, &audit),
        4 => store.announce(&audit, "{}").map(drop),
        11 => store.rotate_key(&stored_key(n).record.id, &rotated(n), &audit),
        8 => store.set_key_regions(&stored_key(n).record.id, &regions(n / 7), &audit),
        14 => store.put_tier(&tier(n), &audit),
        15 => store.remove_tier(&tier(n).name, &audit),
        16..=18 => {
            let to = match n % 3 {
                0 => TierHolder::Org(org_record(n / 3).id),
                1 => TierHolder::Project(project_record(n / 3).id),
                _ => TierHolder::Key(stored_key(n / 3).record.id),
            };
            store.assign_tier(&to, (!n.is_multiple_of(5)).then(|| tier(n / 7).name).as_ref(), &audit)
        }
        19..=21 => store.put_account(&stored_account(n), &audit),
        12 => store.set_key_details(&stored_key(n).record.id, &stored_key(n / 5).record.details, &audit),
        13 => {
            // Uses of keys, and of the tokens of users.
            let of_user = KeyId::new(account_id(n).as_str()).unwrap();
            let ids = [stored_key(n).record.id, of_user];
            store.put_key_uses(&ids.map(|key| KeyUse { key, at: UnixNanos::new(u64::from(n) + 1) }))
        }
        5 => store.conclude(u64::from(n), n.is_multiple_of(2).then_some(&audit)),
        _ => store.insert_key(&stored_key(n), &audit),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// For any sequence of changes, both stores give the same answers and keep the same data, also after reopening.
    #[test]
    fn it_keeps_what_the_one_in_memory_keeps(
        acts in proptest::collection::vec((0_u8..22, any::<u8>()), 1..60)
    ) {
        let (_dir, path) = file();
        let memory = MemoryKeyStore::new();
        let sqlite = SqliteKeyStore::open(&path).unwrap();
        for n in 0..3 {
            prop_assert_eq!(act(&memory, 0, n), act(&sqlite, 0, n));
        }
        for (what, n) in acts {
            prop_assert_eq!(act(&memory, what, n), act(&sqlite, what, n));
        }
        for _ in 0..2 {
            let sqlite = SqliteKeyStore::open(&path).unwrap();
            prop_assert_eq!(memory.load_all(), sqlite.load_all());
            prop_assert_eq!(memory.operators(), sqlite.operators());
            prop_assert_eq!(memory.audit(0, 1_000), sqlite.audit(0, 1_000));
            prop_assert_eq!(memory.audit(3, 2), sqlite.audit(3, 2));
            prop_assert_eq!(memory.audit_end(), sqlite.audit_end());
            prop_assert_eq!(memory.announced(), sqlite.announced());
            prop_assert_eq!(memory.audit_of("test", Some("s7"), 2), sqlite.audit_of("test", Some("s7"), 2));
            prop_assert_eq!(memory.audit_of("test", None, 5), sqlite.audit_of("test", None, 5));
            prop_assert_eq!(memory.verify_audit(), sqlite.verify_audit());
            let uses = |store: &dyn KeyDetailStore| {
                let mut uses = store.key_uses(UnixNanos::new(9)).unwrap();
                uses.sort_by(|a, b| a.key.cmp(&b.key));
                uses
            };
            prop_assert_eq!(uses(&memory), uses(&sqlite));
        }
        // A copy in an empty file has everything, and no file is filled twice.
        let contents = IdentityContents::read(&memory, &memory, &HashSecret::new([7; 32])).unwrap();
        let (_dir, path) = file();
        let copy = SqliteKeyStore::open(&path).unwrap();
        prop_assert_eq!(copy.fill(&contents), Ok(()));
        prop_assert_eq!(copy.fill(&contents), Err(StoreError::Duplicate { what: "set of identities" }));
        prop_assert_eq!(memory.load_all(), copy.load_all());
        prop_assert_eq!(memory.operators(), copy.operators());
        prop_assert_eq!(memory.audit(0, 1_000), copy.audit(0, 1_000));
        prop_assert_eq!(memory.verify_audit(), copy.verify_audit());
        prop_assert_eq!(memory.announced(), copy.announced());
        let again = IdentityContents::read(&copy, &copy, &HashSecret::new([7; 32])).unwrap();
        prop_assert_eq!(again.uses, contents.uses);
    }
}

#[test]
fn a_directory_over_it_survives_a_restart() {
    let (_dir, path) = file();
    let open = |secret| {
        Directory::open(Arc::new(SqliteKeyStore::open(&path).unwrap()), HashSecret::new([secret; 32]))
    };
    let now = UnixNanos::new(1_000);
    let (org, project) = (OrgId::new("acme").unwrap(), ProjectId::new("web").unwrap());
    let directory = open(1).unwrap();
    directory.create_org(org.clone(), RateLimits::default(), "ops", now).unwrap();
    directory.create_project(project.clone(), org.clone(), RateLimits::default(), "ops", now).unwrap();
    let new = |name| NewKey::new(org.clone(), project.clone(), name);
    let (kept, kept_secret) = directory.create_key(new("kept"), "ops", now).unwrap();
    let (gone, gone_secret) = directory.create_key(new("gone"), "ops", now).unwrap();
    directory.revoke(&gone.id, "ops", now).unwrap();
    drop(directory);

    let directory = open(1).unwrap();
    assert_eq!(directory.authenticate(kept_secret.expose_secret(), now).unwrap().key, kept.id);
    assert_eq!(directory.authenticate(gone_secret.expose_secret(), now), Err(AuthRefusal::Revoked));
    assert_eq!(directory.verify_audit().unwrap().rows, 5);
    drop(directory);
    assert_eq!(open(2).unwrap_err(), IdentityError::WrongSecret);

    let bytes = std::fs::read(&path).unwrap();
    let found = |needle: &str| bytes.windows(needle.len()).any(|part| part == needle.as_bytes());
    assert!(found("acme") && !found(kept_secret.expose_secret()), "no secret is in the file");
}

#[test]
fn operators_over_it_survive_a_restart() {
    let (_dir, path) = file();
    let open = || {
        let store = Arc::new(SqliteKeyStore::open(&path).unwrap());
        Operators::open(store, &HashSecret::new([1; 32])).unwrap()
    };
    let now = UnixNanos::new(1_000);
    let operators = open();
    let (owner, key) = operators.create("Ada", Role::Owner, "ops", now).unwrap();
    let (gone, gone_key) = operators.create("Bob", Role::Viewer, "ops", now).unwrap();
    operators.revoke(&gone.id, "ops", now.after(std::time::Duration::from_secs(1))).unwrap();
    let listed = operators.list();
    drop(operators);

    let operators = open();
    assert_eq!(operators.list(), listed);
    assert_eq!(operators.authenticate(key.expose_secret()).unwrap(), owner);
    assert_eq!(operators.authenticate(gone_key.expose_secret()), Err(AuthRefusal::Revoked));
    assert_eq!(operators.revoke(&owner.id, "ops", now), Err(IdentityError::LastOwner));

    let bytes = std::fs::read(&path).unwrap();
    let found = |needle: &str| bytes.windows(needle.len()).any(|part| part == needle.as_bytes());
    assert!(found(owner.id.as_str()) && !found(key.expose_secret()), "no key is in the file");
}

#[test]
fn it_answers_from_within_an_asynchronous_runtime() {
    let (_dir, path) = file();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let store = SqliteKeyStore::open(&path).unwrap();
        store.upsert_org(&org_record(0), &entry(1)).unwrap();
        assert_eq!(store.load_all().unwrap().orgs.len(), 1);
    });
}

#[cfg(unix)]
#[test]
fn only_its_owner_can_read_the_file() {
    use std::os::unix::fs::PermissionsExt;
    let (dir, path) = file();
    let store = SqliteKeyStore::open(&path).unwrap();
    store.upsert_org(&org_record(0), &entry(1)).unwrap();
    for file in std::fs::read_dir(dir.path()).unwrap() {
        let file = file.unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o077, 0, "{:?}", file.path());
    }
}

fn alter(path: &Path, sql: &'static str) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut connection = crate::sqlite::open(path, CommitDurability::Full, false).await.unwrap();
        let done = sqlx::raw_sql(sql).execute(&mut connection).await;
        connection.close().await.unwrap();
        done.map(drop).map_err(|error| error.to_string())
    })
}

#[test]
fn alterations_of_the_audit_log_are_refused_or_found() {
    let free = "DROP TRIGGER audit_rows_are_never_changed; DROP TRIGGER audit_rows_are_never_deleted;";
    let rows = [
        ("UPDATE audit SET actor = 'nobody' WHERE seq = 2;", "audit row 2"),
        ("UPDATE audit SET at = 9 WHERE seq = 4;", "audit row 4"),
        ("DELETE FROM audit WHERE seq = 1;", "audit row 1"),
        ("DELETE FROM audit WHERE seq = 3;", "audit row 3"),
        ("DELETE FROM audit WHERE seq = 4;", "the end of the audit log"),
        ("UPDATE audit SET seq = 9 WHERE seq = 4;", "audit row 4"),
    ];
    for (sql, expected) in rows {
        let (_dir, path) = file();
        let store = SqliteKeyStore::open(&path).unwrap();
        for n in 0..4 {
            store.upsert_org(&org_record(n), &entry(u64::from(n))).unwrap();
        }
        drop(store);
        assert!(alter(&path, sql).unwrap_err().contains("audit rows are never"), "{sql}");
        alter(&path, free).unwrap();
        alter(&path, sql).unwrap();
        match SqliteKeyStore::open(&path).unwrap().verify_audit() {
            Err(StoreError::Corrupt { what, .. }) => assert_eq!(what, expected, "{sql}"),
            other => panic!("{sql}: {other:?}"),
        }
    }
}

#[test]
fn a_program_that_knows_no_regions_does_not_pass_over_them() {
    let (_dir, path) = file();
    let version = |path: &Path| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut connection = crate::sqlite::open(path, CommitDurability::Full, true).await.unwrap();
            let (version,): (i32,) =
                sqlx::query_as("PRAGMA user_version").fetch_one(&mut connection).await.unwrap();
            connection.close().await.unwrap();
            version
        })
    };
    let store = SqliteKeyStore::open(&path).unwrap();
    let anywhere = OrgRecord { regions: Residency::Anywhere, ..org_record(0) };
    store.upsert_org(&anywhere, &entry(1)).unwrap();
    store.probe().unwrap();
    drop(store);
    assert_eq!(version(&path), 1, "nobody is pinned: programs from before may go on");
    let store = SqliteKeyStore::open(&path).unwrap();
    store.upsert_org(&org_record(0), &entry(2)).unwrap();
    store.probe().unwrap();
    drop(store);
    assert_eq!(version(&path), changes::PINNED, "it stays so, whatever is tried on the file");
    assert_eq!(SqliteKeyStore::open(&path).unwrap().load_all().unwrap().orgs, [org_record(0)]);
}

/// Makes a file as the program before had it: without the tables of accounts, operators' scopes and record policies.
const DOWNGRADE: &str = "DROP TABLE accounts; DROP TABLE operator_scopes; DROP TABLE project_records;";

#[test]
fn an_older_file_takes_accounts_and_programs_that_do_not_know_them_refuse_it_from_then_on() {
    let (_dir, path) = file();
    let version = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut connection = crate::sqlite::open(&path, CommitDurability::Full, true).await.unwrap();
            let (version,): (i32,) =
                sqlx::query_as("PRAGMA user_version").fetch_one(&mut connection).await.unwrap();
            connection.close().await.unwrap();
            version
        })
    };
    let anywhere = OrgRecord { regions: Residency::Anywhere, ..org_record(0) };
    SqliteKeyStore::open(&path).unwrap().upsert_org(&anywhere, &entry(1)).unwrap();
    alter(&path, DOWNGRADE).unwrap();
    let store = SqliteKeyStore::open(&path).unwrap();
    assert_eq!(store.load_all().unwrap().accounts, []);
    drop(store);
    assert_eq!(version(), 1, "there is no account: older programs may read the file");
    let store = SqliteKeyStore::open(&path).unwrap();
    let profile = UserProfile::new("ann");
    let id = AccountId::new("usr_1").unwrap();
    let user = UserRecord::new(id, anywhere.id, profile, UnixNanos::new(5));
    let account = StoredAccount { hash: None, record: AccountRecord::User(user) };
    headrace_identity::AccountStore::put_account(&store, &account, &entry(2)).unwrap();
    drop(store);
    assert_eq!(version(), account_rows::WITH_ACCOUNTS);
    assert_eq!(SqliteKeyStore::open(&path).unwrap().load_all().unwrap().accounts, [account]);
}

#[test]
fn newer_foreign_and_damaged_files_are_refused() {
    type Row = (&'static str, fn(&StoreError) -> bool);
    let rows: [Row; 3] = [
        ("PRAGMA user_version = 5;", |e| *e == StoreError::Newer { found: 5, known: 4 }),
        ("PRAGMA application_id = 1;", |e| matches!(e, StoreError::Corrupt { .. })),
        ("UPDATE orgs SET limits = '{\"speed\":1}';", |e| matches!(e, StoreError::Corrupt { .. })),
    ];
    for (sql, expected) in rows {
        let (_dir, path) = file();
        SqliteKeyStore::open(&path).unwrap().upsert_org(&org_record(0), &entry(1)).unwrap();
        alter(&path, sql).unwrap();
        let error = SqliteKeyStore::open(&path).and_then(|store| store.load_all()).unwrap_err();
        assert!(expected(&error), "{sql}: {error}");
    }
    let (_dir, path) = file();
    std::fs::write(&path, "this is a diary, not a database, and it is long enough to look like one").unwrap();
    assert!(matches!(SqliteKeyStore::open(&path), Err(StoreError::Unavailable { .. })));
}

#[test]
fn a_copy_has_both_secrets_of_a_rotated_key() {
    let ((_dir, path), (_other, copied)) = (file(), file());
    let secret = || HashSecret::new([7; 32]);
    let store = Arc::new(SqliteKeyStore::open(&path).unwrap());
    let directory = Directory::open(Arc::clone(&store) as _, secret()).unwrap();
    let (org, project) = (OrgId::new("acme").unwrap(), ProjectId::new("web").unwrap());
    let (now, none) = (UnixNanos::new(1_000), RateLimits::default());
    directory.create_org(org.clone(), none, "ops", now).unwrap();
    directory.create_project(project.clone(), org.clone(), none, "ops", now).unwrap();
    let (key, first) = directory.create_key(NewKey::new(org, project, "k"), "ops", now).unwrap();
    let (_, second) = directory.rotate_key(&key.id, std::time::Duration::from_secs(60), "ops", now).unwrap();

    let contents = IdentityContents::read(store.as_ref(), store.as_ref(), &secret()).unwrap();
    let copy = SqliteKeyStore::open(&copied).unwrap();
    copy.fill(&contents).unwrap();
    let copy = Directory::open(Arc::new(copy), secret()).unwrap();
    assert_eq!(copy.list(), directory.list());
    for (number, secret) in [(1, first), (2, second)] {
        assert_eq!(copy.authenticate(secret.expose_secret(), now).unwrap().secret_number, number);
    }
    let other = IdentityContents::read(store.as_ref(), store.as_ref(), &HashSecret::new([8; 32]));
    assert_eq!(other, Err(IdentityError::WrongSecret));
}
