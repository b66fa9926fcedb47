//! The stores of answers, in a file and in a database: a body comes back as it was stored, to its project and until it
//! expires, and the projects with the most bytes give way.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]

use headrace_domain::{HoldId, ProjectId, UnixNanos};
use headrace_objects::{ANSWER_PART_BYTES, AnswerRecord, AnswerStore};

#[allow(dead_code, reason = "other tests use the rest")]
mod shared;

use shared::{TestPlace, check_all};

fn answer(id: u128, project: &str, at: u64, bytes: usize) -> AnswerRecord {
    AnswerRecord {
        hold: HoldId::from_bits(id),
        project: ProjectId::new(project).unwrap(),
        created: UnixNanos::new(at),
        expires: UnixNanos::new(at + 100),
        body: (0..bytes).map(|at| u8::try_from(at % 251).unwrap()).collect(),
    }
}

fn body(store: &dyn AnswerStore, project: &str, id: u128, now: u64) -> Option<Vec<u8>> {
    store.body(&ProjectId::new(project).unwrap(), HoldId::from_bits(id), UnixNanos::new(now)).unwrap()
}

fn bodies_come_back(place: &TestPlace) {
    let store = place.answers(1 << 30);
    assert_eq!((body(&*store, "web", 1, 1), store.sweep(UnixNanos::new(1)).unwrap()), (None, 0));
    let sizes = [0, 1, ANSWER_PART_BYTES, ANSWER_PART_BYTES + 1, 3 * ANSWER_PART_BYTES + 7];
    for (id, bytes) in (1..).zip(sizes) {
        store.put(&answer(id, "web", 1, bytes)).unwrap();
    }
    for store in [store, place.answers(1 << 30)] {
        for (id, bytes) in (1..).zip(sizes) {
            assert_eq!(body(&*store, "web", id, 100).unwrap(), answer(id, "web", 1, bytes).body.to_vec());
            assert_eq!((body(&*store, "app", id, 100), body(&*store, "web", id, 101)), (None, None));
        }
        assert_eq!(body(&*store, "web", u128::MAX, 1), None);
    }
}

fn expired_answers_are_removed(place: &TestPlace) {
    let store = place.answers(1 << 30);
    for id in 0..600 {
        store.put(&answer(id, "web", u64::try_from(id).unwrap(), 10)).unwrap();
    }
    assert_eq!(store.sweep(UnixNanos::new(500)).unwrap(), 401, "those that expire at 500 and before");
    assert_eq!(store.sweep(UnixNanos::new(500)).unwrap(), 0);
    assert_eq!((body(&*store, "web", 400, 499), body(&*store, "web", 401, 500).is_some()), (None, true));
}

fn the_largest_project_gives_way(place: &TestPlace) {
    let store = place.answers(100_000);
    store.put(&answer(1, "small", 1, 10_000)).unwrap();
    for id in 2..20 {
        store.put(&answer(id, "large", 1, 10_000)).unwrap();
    }
    store.sweep(UnixNanos::new(2)).unwrap();
    assert!(body(&*store, "small", 1, 2).is_some(), "another project's answers do not push it out");
    let left: Vec<u128> = (2..20).filter(|id| body(&*store, "large", *id, 2).is_some()).collect();
    assert_eq!(left, (12..20).collect::<Vec<_>>(), "the newest ones, within what the small one leaves");
}

#[test]
fn all_stores_of_answers_behave_alike() {
    check_all(&[
        ("bodies come back", bodies_come_back),
        ("expired answers are removed", expired_answers_are_removed),
        ("the largest project gives way", the_largest_project_gives_way),
    ]);
}
