//! Keys, operators and the audit log over real PostgreSQL servers, with two gateways: one suite for each version that
//! `HEADRACE_POSTGRES_BIN` names, as the step `postgres` of the test command does.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{
    Clock as _, KeyId, OrgId, ProjectId, Region, Residency, SystemClock, TierName, UnixNanos,
};
use headrace_identity::{
    AddressList, AuthRefusal, Directory, ExposeSecret as _, GroupProfile, HashSecret, IdentityContents,
    IdentityError, KeyChange, KeyDetailStore as _, KeyEnd, KeyStore as _, KeyUse, NewKey, OperatorScope,
    Operators, RateLimits, Revocation, Role, ScimSubject, SecretString, StoreError, TierHolder, TierRules,
    UserLogin, UserProfile, UserRecord,
};
use headrace_postgres::{PostgresKeyStore, PostgresSecrets, PostgresUrl, SetupLock};

use support::{PostgresServer, versions};

fn parsed(server: &PostgresServer) -> Arc<PostgresUrl> {
    Arc::new(server.url().parse().unwrap())
}

fn open(url: &Arc<PostgresUrl>) -> (Arc<PostgresKeyStore>, Directory, Operators) {
    let store = Arc::new(PostgresKeyStore::open(Arc::clone(url)).unwrap());
    let secret = || HashSecret::new([7; 32]);
    let directory = Directory::open(Arc::clone(&store) as _, secret()).unwrap();
    let operators = Operators::open(Arc::clone(&store) as _, &secret()).unwrap();
    (store, directory, operators)
}

#[test]
fn what_one_gateway_changes_another_one_loads_and_the_audit_log_stays_one_chain() {
    for bin in versions() {
        println!("{}", bin.display());
        let server = PostgresServer::start(&bin);
        let url = parsed(&server);
        let (store, here, operators_here) = open(&url);
        let (_, there, operators_there) = open(&url);
        let now = SystemClock::new().now();
        let (org, project) = (OrgId::new("o").unwrap(), ProjectId::new("p").unwrap());
        let none = RateLimits::default();
        here.create_org(org.clone(), none, "test", now).unwrap();
        here.create_project(project.clone(), org.clone(), none, "test", now).unwrap();
        let (key, secret) =
            here.create_key(NewKey::new(org.clone(), project.clone(), "first"), "test", now).unwrap();
        let secret = secret.expose_secret();
        assert_eq!(there.authenticate(secret, now).unwrap_err(), AuthRefusal::Unknown);
        assert!(there.refresh().unwrap());
        assert!(!there.refresh().unwrap(), "nothing changed since");
        assert_eq!(there.authenticate(secret, now).unwrap().project, project);

        let limits = RateLimits { requests_per_minute: Some(9), ..none };
        let regions = Residency::only([Region::new("eu").unwrap()]);
        there.set_key_limits(&key.id, limits, "test", now).unwrap();
        there.set_key_regions(&key.id, regions.clone(), "test", now).unwrap();
        assert!(here.refresh().unwrap());
        assert_eq!(here.key(&key.id).map(|key| (key.limits, key.regions)), Some((limits, regions)));

        // Details reach the other gateway. Uses do too, and are no change that gateways load.
        let only: AddressList = AddressList::new(vec!["10.0.0.0/8".parse().unwrap()]).unwrap();
        let change = KeyChange { owner: Some("ci".to_owned()), allowed_ips: Some(only.clone()) };
        here.change_key_details(&key.id, change, "test", now).unwrap();
        assert!(there.refresh().unwrap());
        let details = there.key(&key.id).unwrap().details;
        assert_eq!((details.owner.as_deref(), &details.allowed_ips), (Some("ci"), &only));
        let from = |gateway: &Directory, address: &str, at| {
            gateway.authenticate_from(secret, address.parse().unwrap(), at).map(drop)
        };
        assert_eq!(from(&there, "11.0.0.1", now), Err(AuthRefusal::Address));
        // Its own change is loaded, too.
        here.refresh().unwrap();
        let later = now.after(Duration::from_secs(300));
        from(&there, "10.0.0.1", later).unwrap();
        from(&here, "10.0.0.1", now).unwrap();
        there.sync_key_uses(now).unwrap();
        here.sync_key_uses(UnixNanos::new(0)).unwrap();
        assert_eq!(here.key(&key.id).unwrap().last_used, Some(later), "the greatest counts");
        assert!(!here.refresh().unwrap(), "a use is no change");
        assert_eq!(open(&url).1.key(&key.id).unwrap().last_used, Some(later));

        let seen = there.revocations();
        assert_eq!(here.revoke(&key.id, "test", now).unwrap(), Revocation::Written);
        assert!(there.refresh().unwrap());
        assert_eq!(there.authenticate(secret, now).unwrap_err(), AuthRefusal::Revoked);
        assert!(there.revocations() > seen, "calls in flight check their keys again");

        // Rotations reach the other gateway, and end the secrets before.
        let (key, first) =
            here.create_key(NewKey::new(org.clone(), project.clone(), "turning"), "test", now).unwrap();
        let (_, second) = here.rotate_key(&key.id, Duration::from_secs(60), "test", now).unwrap();
        assert!(there.refresh().unwrap());
        let number = |secret: &SecretString| {
            there.authenticate(secret.expose_secret(), now).map(|principal| principal.secret_number)
        };
        assert_eq!((number(&first), number(&second)), (Ok(1), Ok(2)));
        let presented = there.authenticate(first.expose_secret(), now).unwrap();
        let (_, third) = here.rotate_key(&key.id, Duration::ZERO, "test", now).unwrap();
        assert!(there.is_current(&presented, now), "the change is not loaded yet");
        assert!(there.refresh().unwrap());
        assert_eq!((number(&first), number(&third)), (Err(AuthRefusal::Unknown), Ok(3)));
        assert_eq!(number(&second), Err(AuthRefusal::Expired));
        assert!(!there.is_current(&presented, now));

        let (operator, operator_key) = operators_here.create("kim", Role::Owner, "test", now).unwrap();
        assert!(operators_there.authenticate(operator_key.expose_secret()).is_err());
        operators_there.refresh().unwrap();
        assert_eq!(operators_there.authenticate(operator_key.expose_secret()).unwrap().id, operator.id);

        // Tiers, their rules and their assignments reach the other gateway, and so does a removal.
        let basic = TierName::new("basic").unwrap();
        let rules = |tokens| TierRules { max_context_tokens: Some(tokens), ..TierRules::default() };
        let project_of = TierHolder::Project(project.clone());
        here.create_tier(basic.clone(), rules(10), "test", now).unwrap();
        assert!(there.refresh().unwrap());
        there.assign_tier(&project_of, Some(&basic), "test", now).unwrap();
        let context = |gateway: &Directory| {
            let principal = gateway.authenticate(third.expose_secret(), now).unwrap();
            principal.tier.as_deref().and_then(|tiers| tiers.context.clone()).map(|bound| bound.tokens)
        };
        assert_eq!((context(&there), context(&here)), (Some(10), None));
        // A gateway that did not load the assignment yet cannot remove the tier.
        let refused = here.remove_tier(&basic, "test", now).unwrap_err();
        assert!(matches!(refused, IdentityError::TierInUse { .. }), "{refused}");
        assert!(here.refresh().unwrap());
        assert_eq!(context(&here), Some(10));
        here.change_tier(&basic, rules(20), "test", now).unwrap();
        assert!(there.refresh().unwrap());
        assert_eq!((context(&there), context(&open(&url).1)), (Some(20), Some(20)));
        there.assign_tier(&project_of, None, "test", now).unwrap();
        assert!(here.refresh().unwrap());
        here.remove_tier(&basic, "test", now).unwrap();
        let late = there.assign_tier(&project_of, Some(&basic), "test", now).unwrap_err();
        assert!(matches!(late, IdentityError::Store(StoreError::NotFound { what: "tier" })), "{late}");
        assert!(there.refresh().unwrap());
        assert_eq!((there.tiers(), open(&url).1.tiers(), context(&there)), (Vec::new(), Vec::new(), None));
        here.create_tier(basic.clone(), rules(30), "test", now).unwrap();
        assert!(there.refresh().unwrap());
        assert_eq!(there.tier(&basic).map(|tier| tier.rules), Some(rules(30)), "the name is free again");

        // Both write at once.
        std::thread::scope(|scope| {
            for (directory, name) in [(&here, "a"), (&there, "b")] {
                let (org, project) = (&org, &project);
                scope.spawn(move || {
                    for n in 0..20 {
                        let new = NewKey::new(org.clone(), project.clone(), &format!("{name}{n}"));
                        directory.create_key(new, "test", now).unwrap();
                    }
                });
            }
        });
        here.refresh().unwrap();
        assert_eq!(here.list().len(), 42);
        let end = here.verify_audit().unwrap();
        assert_eq!((end.rows, end), (57, there.verify_audit().unwrap()));
        assert_eq!(here.audit_of("key.create", None, 100).unwrap().len(), 42);

        let row = here.announce(&store.audit(0, 1).unwrap()[0].entry, "an act").unwrap();
        assert_eq!(there.announced().unwrap(), [(row, "an act".to_owned())]);
        there.conclude(row, None).unwrap();
        assert_eq!(here.announced().unwrap(), []);

        let other = Arc::new(PostgresKeyStore::open(Arc::clone(&url)).unwrap());
        let refused = Directory::open(other, HashSecret::new([8; 32]));
        assert!(matches!(refused, Err(IdentityError::WrongSecret)));
        secrets_are_changed_together_or_not_at_all(&url);
    }
}

fn secrets_are_changed_together_or_not_at_all(url: &Arc<PostgresUrl>) {
    let read = || {
        let mut read = Vec::new();
        let mut secrets = PostgresSecrets::open(Arc::clone(url)).unwrap();
        let seen = secrets.change(|rows| -> Result<_, StoreError> {
            read = rows.to_vec();
            Ok(Vec::new())
        });
        seen.map(|()| read).unwrap()
    };
    let row = |name: &str, byte| (name.to_owned(), vec![byte; 32]);
    let refused = || StoreError::Duplicate { what: "secret" };
    let mut secrets = PostgresSecrets::open(Arc::clone(url)).unwrap();
    assert_eq!(secrets.change(|_| Err(refused())), Err(refused()));
    assert_eq!(read(), []);
    // Of programs that start at the same time, the first one decides.
    let fresh = |byte| {
        let mut secrets = PostgresSecrets::open(Arc::clone(url)).unwrap();
        secrets.change(|rows| -> Result<_, StoreError> {
            std::thread::sleep(std::time::Duration::from_millis(20));
            Ok(if rows.is_empty() { vec![row("one", byte), row("two", byte)] } else { Vec::new() })
        })
    };
    std::thread::scope(|scope| (1..5).for_each(|byte| drop(scope.spawn(move || fresh(byte).unwrap()))));
    let first = read();
    assert!((1..5).any(|byte| first == [row("one", byte), row("two", byte)]), "{first:?}");
    secrets.change(|_| -> Result<_, StoreError> { Ok(vec![row("two", 9)]) }).unwrap();
    assert_eq!(read(), [first[0].clone(), row("two", 9)]);
}

#[test]
fn a_user_that_one_gateway_deactivates_ends_on_the_others_and_no_change_is_lost() {
    for bin in versions() {
        println!("{}", bin.display());
        let server = PostgresServer::start(&bin);
        let url = parsed(&server);
        let (store, here, operators_here) = open(&url);
        let (_, there, operators_there) = open(&url);
        let (here, there) = (Arc::new(here), Arc::new(there));
        let operators_here = operators_here.with_users(Arc::clone(&here));
        let operators_there = operators_there.with_users(Arc::clone(&there));
        let now = SystemClock::new().now();
        let (org, project) = (OrgId::new("o").unwrap(), ProjectId::new("p").unwrap());
        here.create_org(org.clone(), RateLimits::default(), "test", now).unwrap();
        here.create_project(project.clone(), org.clone(), RateLimits::default(), "test", now).unwrap();
        assert!(there.refresh().unwrap());
        let login = UserLogin { issuer: "https://login".to_owned(), subject: "ann".to_owned() };
        let profile = |name: &str| UserProfile {
            login: Some(login.clone()),
            role: Some(Role::Admin),
            ..UserProfile::new(name)
        };
        let ann = here.create_user(org.clone(), profile("ann"), "test", now).unwrap();
        // A gateway that did not load the user yet takes neither its name nor its login.
        for other in [UserProfile::new("ANN"), profile("bob")] {
            let taken = there.create_user(org.clone(), other, "test", now).unwrap_err();
            assert!(matches!(taken, IdentityError::Exists { .. }), "{taken}");
        }
        let mut new = NewKey::new(org.clone(), project.clone(), "k");
        new.details.owner = Some(ann.id.to_string());
        let (key, secret) = here.create_key(new, "test", now).unwrap();
        let scope = OperatorScope::User(ann.id.clone());
        let (_, operator_key) = operators_here.create_within("ann", Role::Owner, scope, "test", now).unwrap();
        assert!(there.refresh().unwrap());
        operators_there.refresh().unwrap();
        assert_eq!(there.users(None), std::slice::from_ref(&ann));
        let works = || {
            let by_key = there.authenticate(secret.expose_secret(), now).is_ok();
            (by_key, operators_there.authenticate(operator_key.expose_secret()).is_ok())
        };
        assert_eq!(works(), (true, true));
        let seen = there.revocations();
        here.set_account_active(&ann.id, false, "test", now).unwrap();
        assert!(there.refresh().unwrap());
        assert_eq!((works(), there.key_end(&key.id)), ((false, false), Some(KeyEnd::Inactive)));
        assert!(there.revocations() > seen, "calls in flight check their keys again");

        // Both gateways add members to one group at the same time, and none is lost.
        let group = here.create_group(org.clone(), GroupProfile::new("g"), "test", now).unwrap();
        let users: Vec<_> = (0..12)
            .map(|n| {
                here.create_user(org.clone(), UserProfile::new(&format!("u{n}")), "test", now).unwrap().id
            })
            .collect();
        assert!(there.refresh().unwrap());
        std::thread::scope(|scope| {
            for (directory, part) in [(&here, 0), (&there, 1)] {
                let (users, group) = (&users, &group);
                scope.spawn(move || {
                    for user in users.iter().skip(part).step_by(2) {
                        let add = |profile: &mut GroupProfile| {
                            profile.members.insert(user.clone());
                            Ok(())
                        };
                        directory.change_group(&group.id, "test", now, add).unwrap();
                    }
                });
            }
        });
        here.refresh().unwrap();
        there.refresh().unwrap();
        let members = |directory: &Directory| directory.group(&group.id).unwrap().profile.members.len();
        assert_eq!((members(&here), members(&there)), (12, 12));
        let basic = TierName::new("basic").unwrap();
        here.create_tier(basic.clone(), TierRules::default(), "test", now).unwrap();
        assert!(there.refresh().unwrap());
        let tier = |profile: &mut GroupProfile| {
            profile.tier = Some(basic.clone());
            Ok(())
        };
        there.change_group(&group.id, "test", now, tier).unwrap();
        let in_use = here.remove_tier(&basic, "test", now).unwrap_err();
        assert!(matches!(in_use, IdentityError::TierInUse { .. }), "not loaded yet: {in_use}");
        let subject = ScimSubject::ExternalId;
        let (scim, secret) = here.create_scim_credential(org, None, subject, "test", now).unwrap();
        assert!(there.refresh().unwrap());
        there.authenticate_scim(secret.expose_secret()).unwrap();
        there.revoke_scim_credential(&scim.id, "test", now).unwrap();
        assert!(here.refresh().unwrap());
        assert_eq!(here.authenticate_scim(secret.expose_secret()).unwrap_err(), AuthRefusal::Revoked);

        // A copy has all of it, with the last use of a user's token.
        let used = KeyUse { key: KeyId::new(ann.id.as_str()).unwrap(), at: now };
        store.put_key_uses(std::slice::from_ref(&used)).unwrap();
        let contents =
            IdentityContents::read(store.as_ref(), store.as_ref(), &HashSecret::new([7; 32])).unwrap();
        let other = PostgresServer::start(&bin);
        let copy = Arc::new(PostgresKeyStore::open(parsed(&other)).unwrap());
        copy.fill(&contents).unwrap();
        let uses = copy.key_uses(UnixNanos::new(0)).unwrap();
        assert!(uses.contains(&used) && uses.len() == contents.uses.len(), "{uses:?}");
        let copied = Directory::open(copy, HashSecret::new([7; 32])).unwrap();
        let seen = copied.users(None).into_iter().find(|user| user.id == ann.id).unwrap();
        assert_eq!(seen.last_seen, Some(now));
        // Only the store knows the last use yet, so the first directory does not.
        let unseen = |directory: &Directory| -> Vec<UserRecord> {
            let users = directory.users(None).into_iter();
            users.map(|user| UserRecord { last_seen: None, ..user }).collect()
        };
        assert_eq!((unseen(&copied), copied.groups(None)), (unseen(&here), here.groups(None)));
    }
}

#[test]
fn one_gateway_at_a_time_makes_the_first_keys() {
    for bin in versions() {
        let server = PostgresServer::start(&bin);
        let url = parsed(&server);
        let inside = std::sync::atomic::AtomicUsize::new(0);
        let acts = open(&url).1.lock_acts().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let lock = SetupLock::acquire(Arc::clone(&url)).unwrap();
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    drop(lock);
                });
            }
        });
        let waiting = std::thread::spawn({
            let url = Arc::clone(&url);
            move || open(&url).1.lock_acts().map(drop)
        });
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(!waiting.is_finished(), "one act on money at a time");
        drop(acts);
        waiting.join().unwrap().unwrap();
    }
}

#[test]
fn a_database_that_is_away_is_an_error_and_a_revocation_counts_in_memory() {
    for bin in versions() {
        let mut server = PostgresServer::start(&bin);
        let url = parsed(&server);
        let (_, here, _) = open(&url);
        let now = SystemClock::new().now();
        let (org, project) = (OrgId::new("o").unwrap(), ProjectId::new("p").unwrap());
        let none = RateLimits::default();
        here.create_org(org.clone(), none, "test", now).unwrap();
        here.create_project(project.clone(), org.clone(), none, "test", now).unwrap();
        let (key, secret) = here.create_key(NewKey::new(org, project, "first"), "test", now).unwrap();
        server.crash();
        assert!(here.refresh().is_err());
        assert!(matches!(here.revoke(&key.id, "test", now).unwrap(), Revocation::InMemory { .. }));
        assert_eq!(here.authenticate(secret.expose_secret(), now).unwrap_err(), AuthRefusal::Revoked);
        assert!(here.failing().is_some());
        server.resume();
        here.tend().unwrap();
        let (_, there, _) = open(&url);
        assert_eq!(there.authenticate(secret.expose_secret(), now).unwrap_err(), AuthRefusal::Revoked);
    }
}

/// Makes the tables of this version those of version 1 again.
const DOWNGRADE: &str = "
    DROP TABLE headrace.accounts, headrace.org_operators;
    ALTER TABLE headrace.orgs DROP COLUMN tier;
    ALTER TABLE headrace.projects DROP COLUMN tier, DROP COLUMN records;
    ALTER TABLE headrace.keys DROP COLUMN details, DROP COLUMN tier;
    DROP TABLE headrace.tiers, headrace.key_uses;
    UPDATE headrace.schema_version SET version = 1";

#[test]
fn the_tables_of_an_older_version_are_brought_to_this_one() {
    for bin in versions() {
        let server = PostgresServer::start(&bin);
        let url = parsed(&server);
        let (_, before, _) = open(&url);
        let now = SystemClock::new().now();
        let (org, project) = (OrgId::new("o").unwrap(), ProjectId::new("p").unwrap());
        before.create_org(org.clone(), RateLimits::default(), "test", now).unwrap();
        before.create_project(project.clone(), org.clone(), RateLimits::default(), "test", now).unwrap();
        let (key, secret) = before.create_key(NewKey::new(org, project, "old"), "test", now).unwrap();
        drop(before);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (client, connection) =
                tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            client.batch_execute(DOWNGRADE).await.unwrap();
        });
        // Two gateways of this version start at the same time.
        let (here, there) = std::thread::scope(|scope| {
            let other = scope.spawn(|| open(&url).1);
            (open(&url).1, other.join().unwrap())
        });
        let change = KeyChange { owner: Some("ci".to_owned()), allowed_ips: None };
        here.change_key_details(&key.id, change, "test", now).unwrap();
        assert!(there.refresh().unwrap());
        assert_eq!(there.key(&key.id).unwrap().details.owner.as_deref(), Some("ci"));
        there.authenticate(secret.expose_secret(), now).unwrap();
    }
}
