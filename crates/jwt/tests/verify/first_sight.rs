//! The first token of a user: whether it is accepted, and the record that is made later.

use std::time::Duration;

use headrace_domain::{Clock as _, OrgId};
use headrace_identity::{AccountId, AuditEntry, UserLogin, UserProfile, UserRecord};
use headrace_jwt::{IssuerConfig, TokenRefusal, UnknownUsers};
use serde_json::{Value, json};

use crate::provider::{ISSUER, SigningKey, World, claims_with, issuer, rule};

const SECOND: Duration = Duration::from_secs(1);

fn world(unknown_users: UnknownUsers, key: &SigningKey) -> World {
    World::of(IssuerConfig { unknown_users, ..issuer(vec![rule("lab")]) }, &[key])
}

fn token(key: &SigningKey, subject: &str, more: Value) -> String {
    let mut claims = claims_with("sub", json!(subject));
    for (name, value) in more.as_object().unwrap() {
        claims[name] = value.clone();
    }
    key.token("EdDSA", &claims)
}

impl World {
    /// Makes the records that are due, and returns all users.
    fn users_after_a_second(&self) -> Vec<UserRecord> {
        self.clock.advance(SECOND);
        self.directory.make_token_users(self.clock.now()).unwrap();
        self.directory.users(None)
    }
}

#[tokio::test]
async fn the_first_token_makes_one_record_and_later_ones_say_when_it_was_used() {
    let key = SigningKey::new("k", "EdDSA");
    let world = world(UnknownUsers::Create, &key);
    let ann = token(&key, "ann", json!({"name": "Ann Lee", "email": "ann@example.com"}));
    let first = world.sign_in(&ann).await.unwrap();
    assert_eq!(world.directory.users(None), [], "a request writes nothing");
    assert!(world.directory.has_first_tokens());
    let users = world.users_after_a_second();
    let [user] = users.as_slice() else { panic!("{users:?}") };
    assert_eq!((user.org.as_str(), user.profile.name.as_str()), ("acme", "ann at login.example.com"));
    assert_eq!(user.profile.display_name.as_deref(), Some("Ann Lee"));
    let login = UserLogin { issuer: ISSUER.to_owned(), subject: "ann".to_owned() };
    assert_eq!((&user.profile.login, user.by_token, user.last_seen), (&Some(login), true, None));
    // The record gives and takes nothing.
    let again = world.sign_in(&ann).await.unwrap();
    assert_eq!(again, first);
    let seen = world.clock.now();
    assert!(!world.directory.has_first_tokens());
    let users = world.users_after_a_second();
    assert_eq!((users.len(), users[0].last_seen), (1, Some(seen)));
    // A token that is found in the cache counts as a use, too.
    world.clock.advance(Duration::from_secs(5));
    world.sign_in(&ann).await.unwrap();
    assert_eq!(world.directory.users(None)[0].last_seen, Some(world.clock.now()));
    let audit = world.directory.audit_of("user.create", None, 9).unwrap();
    let made: Vec<&AuditEntry> = audit.iter().map(|row| &row.entry).collect();
    assert_eq!((made.len(), made[0].actor.as_str()), (1, "first token"));
    // The operator deactivates and removes it: no token makes another one.
    let id = users[0].id.clone();
    world.directory.set_account_active(&id, false, "ops", world.clock.now()).unwrap();
    assert_eq!(world.sign_in(&ann).await.unwrap_err(), TokenRefusal::InactiveUser);
    world.directory.remove_account(&id, "ops", world.clock.now()).unwrap();
    assert_eq!(world.sign_in(&ann).await.unwrap_err(), TokenRefusal::InactiveUser);
    assert_eq!(world.users_after_a_second(), []);
}

#[tokio::test]
async fn settings_decide_whether_unknown_users_are_accepted() {
    let key = SigningKey::new("k", "EdDSA");
    let ann = token(&key, "ann", json!({}));
    let accepting = world(UnknownUsers::Accept, &key);
    accepting.sign_in(&ann).await.unwrap();
    assert_eq!(accepting.users_after_a_second(), []);
    let refusing = world(UnknownUsers::Refuse, &key);
    for _ in 0..2 {
        assert_eq!(refusing.sign_in(&ann).await.unwrap_err(), TokenRefusal::UnknownUser);
    }
    assert_eq!(refusing.users_after_a_second(), []);
    let login = Some(UserLogin { issuer: ISSUER.to_owned(), subject: "ann".to_owned() });
    let profile = UserProfile { login, ..UserProfile::new("ann") };
    let org = OrgId::new("acme").unwrap();
    refusing.directory.create_user(org, profile, "ops", refusing.clock.now()).unwrap();
    refusing.sign_in(&ann).await.unwrap();
}

#[tokio::test]
async fn many_first_tokens_are_bounded_and_none_is_lost_for_good() {
    let key = SigningKey::new("k", "EdDSA");
    let world = world(UnknownUsers::Create, &key);
    let tokens: Vec<String> = (0..130).map(|n| token(&key, &format!("job-{n}"), json!({}))).collect();
    for token in &tokens {
        world.sign_in(token).await.unwrap();
    }
    for expected in [64, 128, 130, 130] {
        assert_eq!(world.users_after_a_second().len(), expected, "at most 64 at once");
    }
    // Data that is not valid gives no record, and the call is served.
    let long = "x".repeat(200);
    let odd = token(&key, &long, json!({"name": "a\u{7}b", "email": "y".repeat(300)}));
    world.sign_in(&odd).await.unwrap();
    let users = world.users_after_a_second();
    let found = users.iter().find(|user| user.profile.login.as_ref().unwrap().subject == long).unwrap();
    assert_eq!(found.profile.display_name, None);
}

#[tokio::test]
async fn an_identity_provider_takes_the_record_of_its_user_over() {
    let key = SigningKey::new("k", "EdDSA");
    let world = world(UnknownUsers::Create, &key);
    let (ann, bob) = (token(&key, "ann", json!({})), token(&key, "bob", json!({})));
    world.sign_in(&ann).await.unwrap();
    world.sign_in(&bob).await.unwrap();
    let users = world.users_after_a_second();
    let id = |subject: &str| -> AccountId {
        let is_it = |user: &&UserRecord| user.profile.login.as_ref().unwrap().subject == subject;
        users.iter().find(is_it).unwrap().id.clone()
    };
    let now = world.clock.now();
    let profile = |subject: &str| {
        let login = Some(UserLogin { issuer: ISSUER.to_owned(), subject: subject.to_owned() });
        UserProfile { login, ..UserProfile::new(&format!("{subject}@example.com")) }
    };
    let org = || OrgId::new("acme").unwrap();
    world.directory.set_account_active(&id("bob"), false, "ops", now).unwrap();
    for subject in ["ann", "bob"] {
        let taken = world.directory.create_user(org(), profile(subject), "scim", now).unwrap();
        assert_eq!((taken.id, taken.by_token), (id(subject), false));
        assert_eq!(taken.profile.active, subject == "ann", "what the operator decided stays");
        let twice = world.directory.create_user(org(), profile(subject), "scim", now);
        assert!(twice.is_err(), "only records that tokens made are given away");
    }
    assert_eq!(world.directory.users(None).len(), 2);
    world.sign_in(&ann).await.unwrap();
    assert_eq!(world.sign_in(&bob).await.unwrap_err(), TokenRefusal::InactiveUser);
    // The user of another organisation with the same login is another one.
    let other =
        world.directory.create_user(OrgId::new("other").unwrap(), profile("ann"), "scim", now).unwrap();
    assert_ne!(other.id, id("ann"));
}
