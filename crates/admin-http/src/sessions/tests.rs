//! Links and sessions, on a clock of the tests.

use super::*;
use headrace_identity::{HashSecret, MemoryKeyStore, Role};

const NOW: UnixNanos = UnixNanos::new(1_000_000_000_000);

fn sessions() -> (OperatorSessions, OperatorRecord, OperatorRecord) {
    let store = Arc::new(MemoryKeyStore::new());
    let operators = Operators::open(store, &HashSecret::new([3; 32])).unwrap();
    let (ann, _) = operators.create("ann", Role::Owner, "test", NOW).unwrap();
    let (bob, _) = operators.create("bob", Role::Viewer, "test", NOW).unwrap();
    (OperatorSessions::new(Arc::new(operators)), ann, bob)
}

#[test]
fn a_link_works_once_and_for_ten_minutes() {
    let (sessions, ann, bob) = sessions();
    let (link, expires) = sessions.link(&ann.id, NOW).unwrap();
    assert_eq!(expires, NOW.after(LINK_LIFETIME));
    assert_eq!(sessions.enter("0", NOW), None);
    assert_eq!(sessions.enter(link.expose(), NOW), Some(ann.clone()));
    assert_eq!(sessions.enter(link.expose(), NOW), None, "used");
    let (late, expires) = sessions.link(&ann.id, NOW).unwrap();
    assert_eq!(sessions.enter(late.expose(), expires), None, "too late");
    let (revoked, _) = sessions.link(&bob.id, NOW).unwrap();
    sessions.operators().revoke(&bob.id, "ann", NOW).unwrap();
    assert_eq!(sessions.enter(revoked.expose(), NOW), None);
    assert!(sessions.link(&bob.id, NOW).is_err());
}

#[test]
fn a_forgotten_user_has_no_session() {
    let (sessions, ann, _) = sessions();
    let text = str::to_owned;
    let user = ProviderUser {
        provider: text("acme"),
        issuer: text("https://i"),
        subject: text("eva@example.com"),
        name: text("Eva"),
        role: Role::Viewer,
        rules: [4; 32],
    };
    sessions.begin_for_user((&ann, user), SESSION_LIFETIME, NOW).unwrap();
    sessions.begin(&ann, NOW).unwrap();
    assert_eq!(sessions.forget("ann"), Ok(0), "an operator is no provider's user");
    assert_eq!(sessions.forget("eva@example.com"), Ok(1));
    assert_eq!((sessions.forget("eva@example.com"), sessions.open.lock().sessions.len()), (Ok(0), 1));
}

#[test]
fn a_session_ends_by_itself_by_signing_out_and_with_its_operator() {
    let (sessions, ann, bob) = sessions();
    let begin = |who: &OperatorRecord| sessions.begin(who, NOW).unwrap().0;
    let idle = begin(&ann);
    assert!(sessions.find(idle.expose(), NOW.after(SESSION_IDLE)).is_none());
    assert!(sessions.find(idle.expose(), NOW).is_none(), "once over it stays over");
    let busy = begin(&ann);
    let mut now = NOW;
    while now.after(SESSION_IDLE / 2) < NOW.after(SESSION_LIFETIME) {
        now = now.after(SESSION_IDLE / 2);
        assert!(sessions.find(busy.expose(), now).is_some());
    }
    assert!(sessions.find(busy.expose(), NOW.after(SESSION_LIFETIME)).is_none());
    let out = begin(&ann);
    sessions.end(out.expose());
    assert!(sessions.find(out.expose(), NOW).is_none());
    let revoked = begin(&bob);
    assert!(sessions.lasts(revoked.expose(), NOW));
    sessions.operators().revoke(&bob.id, "ann", NOW).unwrap();
    assert!(!sessions.lasts(revoked.expose(), NOW));
    assert!(sessions.find(revoked.expose(), NOW).is_none());
}

/// A store in memory. Every write fails while an error is set.
#[derive(Clone, Default)]
struct MemoryStore(Arc<Mutex<Vec<StoredSession>>>, Arc<Mutex<Option<String>>>);

impl SessionStore for MemoryStore {
    fn replace(&self, sessions: &[StoredSession]) -> Result<(), String> {
        if let Some(why) = self.1.lock().clone() {
            return Err(why);
        }
        *self.0.lock() = sessions.to_vec();
        Ok(())
    }
}

fn restarted(operators: &Arc<Operators>, kept: &MemoryStore, now: UnixNanos) -> OperatorSessions {
    let stored = kept.0.lock().clone();
    OperatorSessions::continued(Arc::clone(operators), Arc::default(), stored, Box::new(kept.clone()), now)
}

#[test]
fn a_session_survives_a_restart_and_ends_as_it_would_have() {
    let (memory, ann, bob) = sessions();
    let (operators, kept) = (Arc::clone(&memory.operators), MemoryStore::default());
    let first = restarted(&operators, &kept, NOW);
    let begin = |who: &OperatorRecord| first.begin(who, NOW).unwrap();
    let (stays, found) = begin(&ann);
    let (out, _) = begin(&ann);
    let (idle, _) = begin(&ann);
    let (revoked, _) = begin(&bob);
    let link = first.link(&ann.id, NOW).unwrap().0;
    let later = NOW.after(SESSION_IDLE / 2);
    assert!(first.find(stays.expose(), later).is_some() && first.find(out.expose(), later).is_some());
    first.end(out.expose());
    first.store().unwrap();
    let text = format!("{:?}", kept.0.lock());
    assert!(!text.contains(stays.expose()) && !text.contains(found.csrf.expose()), "nothing stored signs in");
    operators.revoke(&bob.id, "ann", NOW).unwrap();

    let now = NOW.after(SESSION_IDLE);
    let second = restarted(&operators, &kept, now);
    let again = second.find(stays.expose(), now).unwrap();
    assert_eq!(
        (again.csrf.expose(), again.expires),
        (found.csrf.expose(), found.expires),
        "an open page stays signed in"
    );
    for (token, what) in [(&out, "signed out"), (&idle, "idle"), (&revoked, "revoked")] {
        assert!(second.find(token.expose(), now).is_none(), "{what}");
    }
    assert!(second.enter(link.expose(), later).is_none(), "a link ends with the process");
    second.store().unwrap();
    assert_eq!(kept.0.lock().len(), 1);
    // At the session's end, and with a clock that was set back.
    assert!(restarted(&operators, &kept, found.expires).find(stays.expose(), found.expires).is_none());
    let back = restarted(&operators, &kept, UnixNanos::new(0));
    let most = UnixNanos::new(0).after(SESSION_LIFETIME);
    assert!(back.find(stays.expose(), most).is_none());
}

#[test]
fn the_store_learns_of_uses_now_and_then_and_never_of_an_older_list() {
    let (memory, ann, _) = sessions();
    let (operators, kept) = (Arc::clone(&memory.operators), MemoryStore::default());
    let sessions = restarted(&operators, &kept, NOW);
    let (token, _) = sessions.begin(&ann, NOW).unwrap();
    sessions.find(token.expose(), NOW.after(USE_STORED_EVERY / 2)).unwrap();
    assert!(!sessions.is_store_behind(token.expose()));
    sessions.find(token.expose(), NOW.after(USE_STORED_EVERY)).unwrap();
    assert!(sessions.is_store_behind(token.expose()));
    assert!(!sessions.is_store_behind(token.expose()), "once");
    sessions.end(token.expose());
    sessions.store().unwrap();
    assert!(kept.0.lock().is_empty(), "what is written is what is true when it is written");
    *kept.1.lock() = Some("the disk is full".to_owned());
    assert_eq!(sessions.store(), Err("the disk is full".to_owned()));
    assert!(!memory.is_store_behind(token.expose()) && memory.store().is_ok(), "without a store");
}

#[test]
fn stored_sessions_are_bounded_too() {
    let (memory, ann, _) = sessions();
    let kept = MemoryStore::default();
    let of = |n: u16| StoredSession {
        token: [u8::try_from(n % 256).unwrap(); 32],
        operator: ann.id.clone(),
        expires: NOW.after(SESSION_LIFETIME),
        used: UnixNanos::new(NOW.get() - u64::from(n)),
        user: None,
    };
    *kept.0.lock() = (0..200).map(of).collect();
    let sessions = restarted(&memory.operators, &kept, NOW);
    assert_eq!(sessions.open.lock().sessions.len(), MAX_SESSIONS_PER_OPERATOR);
}

#[test]
fn sessions_and_links_are_bounded_and_the_oldest_give_way() {
    let (sessions, ann, bob) = sessions();
    let at = |n: u64| UnixNanos::new(NOW.get() + n);
    let bobs = sessions.begin(&bob, at(0)).unwrap().0;
    let anns: Vec<_> = (1..40).map(|n| sessions.begin(&ann, at(n)).unwrap().0).collect();
    let live = anns.iter().filter(|token| sessions.find(token.expose(), at(50)).is_some()).count();
    assert_eq!(live, MAX_SESSIONS_PER_OPERATOR);
    assert!(sessions.find(anns[38].expose(), at(50)).is_some());
    assert!(sessions.find(bobs.expose(), at(50)).is_some(), "the sessions of other operators stay");
    let first = sessions.link(&ann.id, at(0)).unwrap().0;
    (1..=MAX_LINKS).for_each(|n| drop(sessions.link(&ann.id, at(n as u64)).unwrap()));
    assert_eq!(sessions.enter(first.expose(), at(99)), None);
    assert_eq!(sessions.open.lock().links.len(), MAX_LINKS);
}
