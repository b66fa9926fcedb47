//! Users, service accounts, groups and SCIM credentials: what ends with them, and what is refused.

use headrace_domain::TokenUser;

use super::*;
use crate::{
    AccountId, AccountKind, AccountStore, GroupProfile, KeyChange, KeyEnd, OperatorScope, Operators, Role,
    ScimSubject, TierRules, UserGrant, UserLogin, UserProfile,
};

fn login(subject: &str) -> UserLogin {
    UserLogin { issuer: "https://login".to_owned(), subject: subject.to_owned() }
}

fn profile(name: &str) -> UserProfile {
    UserProfile { login: Some(login(name)), ..UserProfile::new(name) }
}

fn owned(owner: &AccountId, secret: &str) -> NewKey {
    let mut new = chosen(secret);
    new.details.owner = Some(owner.to_string());
    new
}

fn grant(subject: &str) -> UserGrant {
    UserGrant {
        user: Arc::new(TokenUser { issuer: "https://login".into(), subject: subject.into(), role: None }),
        org: None,
        project: project("web"),
        models: ModelAccess::All,
        limits: RateLimits::default(),
        expires: LATER,
    }
}

#[test]
fn keys_and_tokens_work_while_their_account_is_active() {
    let store = memory();
    let directory = directory(&store);
    let user = directory.create_user(org("acme"), profile("ann"), "ops", NOW).unwrap();
    let account = directory.create_service_account(project("web"), "ci", "ops", NOW).unwrap();
    assert_eq!((user.id.kind(), account.id.kind()), (AccountKind::User, AccountKind::ServiceAccount));
    let (users_key, _) = directory.create_key(owned(&user.id, SECRET), "ops", NOW).unwrap();
    let other = "sk-other-0123456789-abcdefghij-XYZ";
    let (programs_key, _) = directory.create_key(owned(&account.id, other), "ops", NOW).unwrap();
    let token = grant("ann");
    let works = |directory: &Directory| {
        let by_key = |secret: &str| directory.authenticate(secret, NOW).map(drop);
        (by_key(SECRET), by_key(other), directory.user_principal(&token).map(drop))
    };
    let presented = directory.authenticate(SECRET, NOW).unwrap();
    let by_token = directory.user_principal(&token).unwrap();
    let (seen, version) = (directory.revocations(), directory.principals_version());
    directory.set_account_active(&user.id, false, "ops", NOW).unwrap();
    assert!(directory.revocations() > seen && directory.principals_version() > version);
    let inactive = || Err(IdentityError::InactiveUser(user.id.to_string()));
    for directory in [&directory, &open(&store)] {
        assert_eq!(works(directory), (Err(AuthRefusal::OwnerInactive), Ok(()), inactive()));
        for key in [&users_key.id, &by_token.key] {
            assert_eq!(directory.key_end(key), Some(KeyEnd::Inactive), "calls in flight end");
        }
        assert!(!directory.is_current(&presented, NOW) && !directory.is_current(&by_token, NOW));
        assert_eq!(directory.principal(&users_key.id, NOW).unwrap_err(), AuthRefusal::OwnerInactive);
    }
    let fresh = owned(&user.id, "sk-third-0123456789-abcdefghij-XYZ");
    let refused = directory.create_key(fresh, "ops", NOW).unwrap_err();
    assert!(matches!(refused, IdentityError::Invalid { field: "owner", .. }), "{refused}");

    directory.set_account_active(&user.id, true, "ops", NOW).unwrap();
    assert_eq!(works(&directory), (Ok(()), Ok(()), Ok(())));
    assert_eq!(directory.key_end(&by_token.key), None);
    assert!(directory.is_current(&by_token, NOW));
    directory.remove_account(&account.id, "ops", NOW).unwrap();
    directory.remove_account(&user.id, "ops", NOW).unwrap();
    for directory in [&directory, &open(&store)] {
        let owner = AuthRefusal::OwnerInactive;
        assert_eq!(works(directory), (Err(owner), Err(owner), inactive()), "a removal is no way around");
        assert_eq!(directory.key_end(&programs_key.id), Some(KeyEnd::Inactive));
        assert_eq!((directory.users(None), directory.service_accounts(None)), (Vec::new(), Vec::new()));
    }
    // The name and the login are free again. Keys of the removed user stay refused.
    let again = directory
        .create_user(org("acme"), UserProfile { name: "Ann".to_owned(), ..profile("ann") }, "ops", NOW)
        .unwrap();
    assert_eq!(works(&directory), (Err(AuthRefusal::OwnerInactive), Err(AuthRefusal::OwnerInactive), Ok(())));
    assert_ne!(again.id, user.id);
    let gone = directory.set_account_active(&user.id, true, "ops", NOW).unwrap_err();
    assert_eq!(gone, IdentityError::UnknownAccount(user.id.to_string()));
    let acts: Vec<_> = directory.audit(0, 99).unwrap().into_iter().map(|row| row.entry.act).collect();
    let expected =
        ["user.deactivate", "user.activate", "service_account.remove", "user.remove", "user.create"];
    assert_eq!(acts[acts.len() - 5..], expected);
}

#[test]
fn what_one_organisation_decides_about_a_login_concerns_no_other() {
    let store = memory();
    let directory = directory(&store);
    let in_other = UserGrant { project: project("app"), ..grant("ann") };
    let [here, there] = [&grant("ann"), &in_other].map(|grant| directory.user_principal(grant).unwrap());
    assert_ne!(here.key, there.key);
    // The other organisation claims the login first, and deactivates its user.
    let taken = directory.create_user(org("other"), profile("ann"), "ops", NOW).unwrap();
    let own = directory.create_user(org("acme"), profile("ann"), "ops", NOW).unwrap();
    directory.set_account_active(&taken.id, false, "ops", NOW).unwrap();
    for directory in [&directory, &open(&store)] {
        assert!(directory.user_principal(&grant("ann")).is_ok() && directory.is_current(&here, NOW));
        assert_eq!(directory.key_end(&here.key), None, "calls in flight continue");
        let refused = directory.user_principal(&in_other).unwrap_err();
        assert_eq!(refused, IdentityError::InactiveUser(taken.id.to_string()));
        assert_eq!(
            (directory.key_end(&there.key), directory.is_current(&there, NOW)),
            (Some(KeyEnd::Inactive), false)
        );
    }
    directory.set_account_active(&own.id, false, "ops", NOW).unwrap();
    assert!(!directory.is_current(&here, NOW));
}

#[test]
fn names_and_logins_are_unique_and_owners_belong_to_the_key() {
    let directory = directory(&memory());
    let ann = directory.create_user(org("acme"), profile("ann"), "ops", NOW).unwrap();
    let exists = |error| matches!(error, IdentityError::Exists { .. });
    assert!(exists(directory.create_user(org("acme"), UserProfile::new("ANN"), "ops", NOW).unwrap_err()));
    let login = UserProfile { login: Some(login("ann")), ..UserProfile::new("ann2") };
    assert!(exists(directory.create_user(org("acme"), login, "ops", NOW).unwrap_err()), "the login");
    let same = directory.create_user(org("other"), UserProfile::new("ann"), "ops", NOW).unwrap();
    let unknown = directory.create_user(org("none"), UserProfile::new("x"), "ops", NOW).unwrap_err();
    assert_eq!(unknown, IdentityError::UnknownOrg(org("none")));
    let long = "x".repeat(257);
    for name in ["", "  ", "a\nb", &long] {
        let refused = directory.create_user(org("acme"), UserProfile::new(name), "ops", NOW).unwrap_err();
        assert!(matches!(refused, IdentityError::Invalid { field: "name", .. }), "{name:?}");
    }
    let (key, _) = directory.create_key(owned(&ann.id, SECRET), "ops", NOW).unwrap();
    let app = directory.create_service_account(project("app"), "ci", "ops", NOW).unwrap();
    for owner in [&same.id, &app.id] {
        let change = KeyChange { owner: Some(owner.to_string()), allowed_ips: None };
        let refused = directory.change_key_details(&key.id, change, "ops", NOW).unwrap_err();
        assert!(matches!(refused, IdentityError::Invalid { field: "owner", .. }), "of another organisation");
    }
    let change = KeyChange { owner: Some("team usr_x".to_owned()), allowed_ips: None };
    directory.change_key_details(&key.id, change, "ops", NOW).unwrap();
    directory.set_account_active(&ann.id, false, "ops", NOW).unwrap();
    assert!(directory.authenticate(SECRET, NOW).is_ok(), "the key has another owner");
}

#[test]
fn groups_give_roles_and_tiers_to_their_members() {
    let store = memory();
    let directory = directory(&store);
    let ann = directory.create_user(org("acme"), profile("ann"), "ops", NOW).unwrap();
    directory.create_key(owned(&ann.id, SECRET), "ops", NOW).unwrap();
    let small = TierName::new("small").unwrap();
    let rules = |tokens| TierRules {
        limits: RateLimits { concurrency: Some(3), ..RateLimits::default() },
        max_context_tokens: Some(tokens),
        ..TierRules::default()
    };
    directory.create_tier(small.clone(), rules(7), "ops", NOW).unwrap();
    let group = GroupProfile {
        members: [ann.id.clone()].into(),
        role: Some(Role::Billing),
        tier: Some(small.clone()),
        ..GroupProfile::new("finance")
    };
    let context = |directory: &Directory| {
        let bound = |principal: &crate::Principal| {
            let tier = principal.tier.as_deref()?.context.clone()?;
            Some((tier.tokens, principal.limits.concurrency))
        };
        let by_token = directory.user_principal(&grant("ann")).unwrap();
        let by_key = directory.authenticate(SECRET, NOW).unwrap();
        assert_eq!(bound(&by_token), bound(&by_key));
        bound(&by_key)
    };
    let group = directory.create_group(org("acme"), group, "ops", NOW).unwrap();
    for directory in [&directory, &open(&store)] {
        assert_eq!(directory.role_of_user(&ann.id), Some(Role::Billing));
        assert_eq!(context(directory), Some((7, Some(3))));
    }
    directory.change_tier(&small, rules(5), "ops", NOW).unwrap();
    assert_eq!(context(&directory), Some((5, Some(3))));
    let in_use = directory.remove_tier(&small, "ops", NOW).unwrap_err();
    assert!(in_use.to_string().contains("group `finance`"), "{in_use}");
    let own = |profile: &mut UserProfile| {
        profile.role = Some(Role::Admin);
        Ok(())
    };
    directory.change_user(&ann.id, "ops", NOW, own).unwrap();
    assert_eq!(directory.role_of_user(&ann.id), Some(Role::Admin), "the most powerful role counts");
    let leave = |profile: &mut GroupProfile| {
        profile.members.clear();
        Ok(())
    };
    directory.change_group(&group.id, "ops", NOW, leave).unwrap();
    for directory in [&directory, &open(&store)] {
        assert_eq!((context(directory), directory.groups_of_user(&ann.id)), (None, Vec::new()));
    }
    let stranger = directory.create_user(org("other"), UserProfile::new("eve"), "ops", NOW).unwrap();
    let add = |profile: &mut GroupProfile| {
        profile.members.insert(stranger.id.clone());
        Ok(())
    };
    let refused = directory.change_group(&group.id, "ops", NOW, add).unwrap_err();
    assert_eq!(refused, IdentityError::UnknownAccount(stranger.id.to_string()));
    directory.remove_account(&group.id, "ops", NOW).unwrap();
    directory.remove_tier(&small, "ops", NOW).unwrap();
    assert_eq!(directory.groups(None), []);
}

#[test]
fn a_scim_credential_works_until_it_is_revoked() {
    let store = memory();
    let directory = directory(&store);
    let create = |issuer| {
        directory.create_scim_credential(org("acme"), issuer, ScimSubject::ExternalId, "ops", NOW).unwrap()
    };
    let (credential, secret) = create(Some("https://login".to_owned()));
    let (other, _) = create(None);
    let secret = secret.expose_secret();
    assert!(secret.ends_with(&credential.hint) && secret.starts_with("hrscim-"));
    for directory in [&directory, &open(&store)] {
        assert_eq!(directory.authenticate_scim(secret).unwrap(), credential);
        for (wrong, refusal) in [
            ("", AuthRefusal::Malformed),
            (SECRET, AuthRefusal::Malformed),
            (&secret[..secret.len() - 1], AuthRefusal::Unknown),
        ] {
            assert_eq!(directory.authenticate_scim(wrong).unwrap_err(), refusal);
        }
    }
    directory.revoke_scim_credential(&credential.id, "ops", NOW).unwrap();
    directory.revoke_scim_credential(&credential.id, "ops", NOW).unwrap();
    for directory in [&directory, &open(&store)] {
        assert_eq!(directory.authenticate_scim(secret).unwrap_err(), AuthRefusal::Revoked);
        assert_eq!(directory.scim_credentials(Some(&org("acme"))).len(), 2);
    }
    assert_eq!(directory.audit_of("scim.revoke", None, 9).unwrap().len(), 1);
    let text = format!("{:?} {:?}", store.audit(0, 99).unwrap(), store.load_all().unwrap());
    assert!(!text.contains(secret), "no secret is stored");
    assert!(other.revoked.is_none());
}

/// A second directory over the same store, as another gateway has it, whose changes the first one did not load.
#[test]
fn a_change_that_another_process_overtook_is_made_again_on_the_newer_record() {
    let store = memory();
    let directory = directory(&store);
    let ann = directory.create_user(org("acme"), profile("ann"), "ops", NOW).unwrap();
    let newer = crate::AccountRecord::User(crate::UserRecord { version: 9, ..ann.clone() });
    let stale = crate::StoredAccount { hash: None, record: newer };
    let audit = entry(NOW, "ops", "test", ann.id.as_str(), String::new());
    let conflict = AccountStore::put_account(store.as_ref(), &stale, &audit).unwrap_err();
    assert_eq!(conflict, StoreError::Conflict { what: "user" });
}

#[test]
fn an_operator_that_is_a_user_has_the_users_role_and_ends_with_the_user() {
    let memory = Arc::new(MemoryKeyStore::new());
    let store: Arc<dyn KeyStore> = Arc::clone(&memory) as _;
    let directory = Arc::new(Directory::open(store, HashSecret::new([7; 32])).unwrap());
    let acme = || org("acme");
    directory.create_org(acme(), RateLimits::default(), "ops", NOW).unwrap();
    let operators = || {
        let operators = Operators::open(Arc::clone(&memory) as _, &HashSecret::new([7; 32])).unwrap();
        operators.with_users(Arc::clone(&directory))
    };
    let ann = directory.create_user(acme(), UserProfile::new("ann"), "ops", NOW).unwrap();
    let all = operators();
    let scope = || OperatorScope::User(ann.id.clone());
    let refused = all.create_within("ann", Role::Owner, scope(), "ops", NOW).unwrap_err();
    assert!(matches!(refused, IdentityError::Invalid { field: "user", .. }), "a user without a role");
    let set = |role: Option<Role>| {
        let set = move |profile: &mut UserProfile| {
            profile.role = role;
            Ok(())
        };
        directory.change_user(&ann.id, "ops", NOW, set).unwrap();
    };
    set(Some(Role::Developer));
    let (operator, key) = all.create_within("ann", Role::Owner, scope(), "ops", NOW).unwrap();
    assert_eq!(
        (operator.role, &operator.org, &operator.user),
        (Role::Developer, &Some(acme()), &Some(ann.id.clone()))
    );
    let role = |operators: &Operators| operators.authenticate(key.expose_secret()).map(|found| found.role);
    set(Some(Role::Admin));
    assert_eq!((role(&all), role(&operators())), (Ok(Role::Admin), Ok(Role::Admin)));
    set(None);
    assert_eq!(role(&all), Err(AuthRefusal::Revoked));
    set(Some(Role::Owner));
    directory.set_account_active(&ann.id, false, "ops", NOW).unwrap();
    assert_eq!((role(&all), all.active(&operator.id)), (Err(AuthRefusal::Revoked), None));
    directory.set_account_active(&ann.id, true, "ops", NOW).unwrap();
    assert_eq!(all.active(&operator.id).map(|found| found.role), Some(Role::Owner));
    assert_eq!(all.first_owner(), None, "an owner of one organisation is none of the server");
    let (scoped, _) = all.create_within("bob", Role::Owner, OperatorScope::Org(acme()), "ops", NOW).unwrap();
    all.revoke(&scoped.id, "ops", NOW).unwrap();
    let unknown = all
        .create_within("x", Role::Owner, OperatorScope::Org(OrgId::new("none").unwrap()), "ops", NOW)
        .unwrap_err();
    assert_eq!(unknown, IdentityError::UnknownOrg(OrgId::new("none").unwrap()));
}
