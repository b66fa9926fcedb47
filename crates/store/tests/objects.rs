//! Compares the stores of objects, in a file and in a database, with the one in memory. They must give the same answers to
//! any requests, also after they were closed and reopened.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::sync::mpsc::channel;

use headrace_domain::{ProjectId, UnixNanos};
use headrace_objects::{
    ConversationRecord, HistoryOf, ItemRecord, ListOrder, MemoryObjects, ObjectError, ObjectLimits,
    ObjectStore, PageAsk, ResponseRecord, ResponseStatus, StoredLookup,
};
use headrace_store::objects::SqliteObjects;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};

#[allow(dead_code, reason = "other tests use the rest")]
mod shared;

use shared::{StoreBehaviour, TestPlace, check_all, servers};

const LIMITS: ObjectLimits = ObjectLimits {
    retention_seconds: 50,
    max_object_bytes: 700,
    max_responses_per_project: 4,
    max_response_bytes_per_project: 1_800,
    max_conversations_per_project: 3,
    max_conversation_bytes_per_project: 3_000,
    max_total_bytes: 1 << 30,
    max_items_per_conversation: 5,
    max_turns: 3,
    max_history_bytes: 400,
};

#[derive(Debug, Clone)]
enum Act {
    Put { id: u8, project: u8, previous: Option<u8>, conversation: Option<u8>, bytes: usize, ended: bool },
    Get { id: u8, project: u8 },
    Delete { id: u8, project: u8 },
    Turns { id: u8, project: u8 },
    Unfinished,
    Create { id: u8, project: u8, items: usize },
    Label { id: u8, project: u8 },
    DeleteConversation { id: u8, project: u8 },
    Add { id: u8, project: u8, items: usize },
    Items { id: u8, project: u8, descending: bool, after: Option<u8>, limit: usize },
    Item { id: u8, project: u8, item: u8 },
    DeleteItem { id: u8, project: u8, item: u8 },
    Sweep,
}

fn act() -> impl Strategy<Value = Act> {
    let some = || (0..6_u8, 0..2_u8);
    let maybe = || prop::option::of(0..6_u8);
    prop_oneof![
        4 => (some(), maybe(), maybe(), 0..500_usize, any::<bool>()).prop_map(
            |((id, project), previous, conversation, bytes, ended)| Act::Put {
                // A response continues only one with a lower number, so that no chain forms a cycle.
                id, project, previous: previous.filter(|previous| *previous < id), conversation, bytes, ended,
            }
        ),
        2 => some().prop_map(|(id, project)| Act::Get { id, project }),
        1 => some().prop_map(|(id, project)| Act::Delete { id, project }),
        2 => some().prop_map(|(id, project)| Act::Turns { id, project }),
        1 => Just(Act::Unfinished),
        3 => (some(), 0..3_usize).prop_map(|((id, project), items)| Act::Create { id, project, items }),
        1 => some().prop_map(|(id, project)| Act::Label { id, project }),
        1 => some().prop_map(|(id, project)| Act::DeleteConversation { id, project }),
        2 => (some(), 0..4_usize).prop_map(|((id, project), items)| Act::Add { id, project, items }),
        2 => (some(), any::<bool>(), maybe(), 1..4_usize).prop_map(
            |((id, project), descending, after, limit)| Act::Items { id, project, descending, after, limit }
        ),
        1 => (some(), 0..6_u8).prop_map(|((id, project), item)| Act::Item { id, project, item }),
        1 => (some(), 0..6_u8).prop_map(|((id, project), item)| Act::DeleteItem { id, project, item }),
        1 => Just(Act::Sweep),
    ]
}

fn project(number: u8) -> ProjectId {
    ProjectId::new(&format!("p{number}")).unwrap()
}

fn items(from: usize, count: usize) -> Vec<ItemRecord> {
    (from..from + count)
        .map(|at| ItemRecord {
            id: format!("i{}", at % 6),
            json: format!("{{\"id\":\"i{}\",\"n\":{at}}}", at % 6),
        })
        .collect()
}

fn put_then(
    store: &dyn ObjectStore,
    response: ResponseRecord,
    items: Vec<ItemRecord>,
) -> Result<(), ObjectError> {
    let (tell, told) = channel();
    store.put_response_then(response, items, Box::new(move |done| tell.send(done).unwrap()));
    told.recv().unwrap()
}

/// Reads a history and its size, and checks that they match. A lower limit must refuse it.
fn continued(store: &dyn ObjectStore, whose: u8, of: HistoryOf<'_>, now: UnixNanos) -> String {
    let whose = project(whose);
    let size = store.size(&whose, StoredLookup::History(of), now);
    let lists = store.history(&whose, of, u64::MAX, now);
    match (&size, &lists) {
        (Ok(Some(size)), Ok(Some(lists))) => {
            assert_eq!(*size, lists.iter().map(|list| list.len() as u64).sum::<u64>());
            if let Some(less) = size.checked_sub(1) {
                assert_eq!(store.history(&whose, of, less, now), Err(ObjectError::Grew));
            }
        }
        (Ok(None), Ok(None)) => {}
        (Err(one), Err(other)) => assert_eq!(one, other),
        both => panic!("{both:?}"),
    }
    format!("{lists:?}")
}

/// A store's answer as text. Real conversations have fresh ids, so a conversation that was created is not created
/// again.
fn done(store: &dyn ObjectStore, act: &Act, step: usize, made: &[String]) -> String {
    let now = UnixNanos::new(step as u64 * 1_000_000_000);
    let later = UnixNanos::new((step as u64 + LIMITS.retention_seconds) * 1_000_000_000);
    let resp = |id: u8| format!("resp_{id}");
    let conv = |id: u8| format!("conv_{id}");
    match act {
        Act::Put { id, project: whose, previous, conversation, bytes, ended } => {
            let response = ResponseRecord {
                // No other project's response has this id.
                id: format!("{}_{whose}", resp(*id)),
                project: project(*whose),
                created: now,
                expires: later,
                status: if *ended { ResponseStatus::Ended } else { ResponseStatus::InProgress },
                previous: previous.map(|previous| format!("{}_{whose}", resp(previous))),
                conversation: conversation.map(conv),
                input: "i".repeat(*bytes / 4),
                output: "o".repeat(*bytes / 4),
                body: "b".repeat(*bytes / 2),
                events: ended.then(|| "[]".to_owned()),
            };
            let known = store.response(&response.project, &response.id, now).unwrap().is_some();
            if known && !made.is_empty() && !*ended {
                // An ended response does not begin again.
                return "left".to_owned();
            }
            let items = items(step, usize::from(*ended));
            // Chooses one of both ways of storing.
            let waits = *bytes % 2 == 0;
            let put =
                if waits { store.put_response(&response, &items) } else { put_then(store, response, items) };
            format!("{put:?}")
        }
        Act::Get { id, project: whose } => {
            let found = store.response(&project(*whose), &format!("{}_{whose}", resp(*id)), now);
            let foreign = store.response(&project(1 - *whose), &format!("{}_{whose}", resp(*id)), now);
            assert_eq!(foreign, Ok(None), "nobody else finds it");
            let size =
                store.size(&project(*whose), StoredLookup::Response(&format!("{}_{whose}", resp(*id))), now);
            assert_eq!(
                size,
                found.as_ref().map(|found| found.as_ref().map(ResponseRecord::bytes)).map_err(Clone::clone)
            );
            // The times of creation and expiry are those of the first write.
            format!("{:?}", found.map(|found| found.map(|found| (found.status, found.body, found.events))))
        }
        Act::Delete { id, project: whose } => {
            format!("{:?}", store.delete_response(&project(*whose), &format!("{}_{whose}", resp(*id)), now))
        }
        Act::Turns { id, project: whose } => {
            let id = format!("{}_{whose}", resp(*id));
            continued(store, *whose, HistoryOf::Response(&id), now)
        }
        Act::Unfinished => {
            let mut ids: Vec<String> = store.unfinished(now).unwrap().into_iter().map(|(_, id)| id).collect();
            ids.sort();
            format!("{ids:?}")
        }
        Act::Create { id, project: whose, items: count } => {
            if made.contains(&conv(*id)) {
                return "made".to_owned();
            }
            let conversation = ConversationRecord {
                id: conv(*id),
                project: project(*whose),
                created: now,
                expires: later,
                metadata: "{}".to_owned(),
            };
            format!("{:?}", store.create_conversation(&conversation, &items(step, *count)))
        }
        Act::Label { id, project: whose } => {
            format!("{:?}", store.label_conversation(&project(*whose), &conv(*id), "{\"a\":\"b\"}", now))
        }
        Act::DeleteConversation { id, project: whose } => {
            format!("{:?}", store.delete_conversation(&project(*whose), &conv(*id), now))
        }
        Act::Add { id, project: whose, items: count } => {
            format!("{:?}", store.add_items(&project(*whose), &conv(*id), &items(step, *count), now))
        }
        Act::Items { id, project: whose, descending, after, limit } => {
            let order = if *descending { ListOrder::Descending } else { ListOrder::Ascending };
            let after = after.map(|after| format!("i{after}"));
            let ask = PageAsk { limit: *limit, order, after, ..PageAsk::default() };
            let size = store.size(&project(*whose), StoredLookup::Page(&conv(*id), &ask), now);
            let page = store.items(&project(*whose), &conv(*id), &ask, now);
            if let (Ok(Some(size)), Ok(Some(page))) = (&size, &page) {
                assert!(*size >= page.items.iter().map(|item| item.json.len() as u64).sum());
            }
            format!(
                "{size:?} {page:?} {}",
                continued(store, *whose, HistoryOf::Conversation(&conv(*id)), now)
            )
        }
        Act::Item { id, project: whose, item } => {
            let item = format!("i{item}");
            let size = store.size(&project(*whose), StoredLookup::Item(&conv(*id), &item), now);
            format!("{size:?} {:?}", store.item(&project(*whose), &conv(*id), &item, now))
        }
        Act::DeleteItem { id, project: whose, item } => {
            format!("{:?}", store.delete_item(&project(*whose), &conv(*id), &format!("i{item}"), now))
        }
        Act::Sweep => format!("{:?}", store.sweep(now)),
    }
}

/// Gives the same requests to the store in memory and to one at a place.
fn compare(place: &TestPlace, acts: &[Act]) -> Result<(), TestCaseError> {
    let memory = MemoryObjects::new(LIMITS);
    let mut store = place.objects(LIMITS);
    let mut made: Vec<String> = Vec::new();
    // No response takes the id of one that was deleted before its end. A database keeps such a response deleted, because
    // another gateway may still finish it.
    let mut deleted_early: Vec<(u8, u8)> = Vec::new();
    for (step, act) in acts.iter().enumerate() {
        match act {
            Act::Put { id, project, .. } if deleted_early.contains(&(*id, *project)) => continue,
            Act::Delete { id, project: whose } => {
                let now = UnixNanos::new(step as u64 * 1_000_000_000);
                let found = memory.response(&project(*whose), &format!("resp_{id}_{whose}"), now).unwrap();
                if found.is_some_and(|found| found.status == ResponseStatus::InProgress) {
                    deleted_early.push((*id, *whose));
                }
            }
            _ => {}
        }
        if step % 13 == 12 {
            drop(store);
            store = place.objects(LIMITS);
        }
        let (expected, found) = (done(&memory, act, step, &made), done(store.as_ref(), act, step, &made));
        prop_assert_eq!(found, expected, "step {} {:?}", step, act);
        if let Act::Create { id, .. } = act {
            made.push(format!("conv_{id}"));
        }
    }
    Ok(())
}

fn compare_each(cases: u32, place: impl Fn() -> TestPlace) {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) };
    let acts = prop::collection::vec(act(), 1..80);
    TestRunner::new(config).run(&acts, |acts| compare(&place(), &acts)).unwrap();
}

#[test]
fn the_file_and_the_memory_answer_alike() {
    compare_each(48, TestPlace::of_files);
}

#[test]
fn the_database_and_the_memory_answer_alike() {
    let cases = std::env::var("HEADRACE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(8);
    for server in servers() {
        compare_each(cases, || server.place());
    }
}

const BEHAVIOURS: &[StoreBehaviour] = &[
    (
        "concurrent writes keep their order",
        what_comes_at_once_is_stored_in_its_order_and_each_told_for_itself,
    ),
    ("long conversations", a_conversation_beyond_the_bound_of_histories_is_told_by_its_size),
    ("any text of a client is kept", any_text_of_a_client_is_kept),
    ("the total is bounded", the_objects_of_all_projects_are_bounded),
];

#[test]
fn objects_behave_alike_in_a_file_and_in_a_database() {
    check_all(BEHAVIOURS);
}

/// Ids and items of clients may have any characters, and ids in look-ups need not be ids.
fn any_text_of_a_client_is_kept(place: &TestPlace) {
    let store = place.objects(ObjectLimits::default());
    let now = UnixNanos::new(1);
    let conversation = ConversationRecord {
        id: "conv_1".to_owned(),
        project: project(0),
        created: now,
        expires: UnixNanos::new(9),
        metadata: "{\"a\":\"\u{1f980}\"}".to_owned(),
    };
    let item = |id: &str| ItemRecord { id: id.to_owned(), json: format!("{{\"id\":{id:?}}}\0") };
    let items = ["\0", "'", &"x".repeat(10_000), "\u{feff}"].map(item);
    store.create_conversation(&conversation, &items).unwrap();
    assert_eq!(store.conversation(&project(0), "conv_1", now).unwrap(), Some(conversation));
    for item in &items {
        assert_eq!(store.item(&project(0), "conv_1", &item.id, now).unwrap().as_ref(), Some(item));
    }
    let page = store.items(&project(0), "conv_1", &PageAsk::default(), now).unwrap().unwrap();
    assert!(page.items.iter().eq(items.iter().rev()));
    assert!(store.delete_item(&project(0), "conv_1", "\0", now).unwrap());
    for id in ["", "\0", "conv_1\0", "'"] {
        assert_eq!(store.conversation(&project(0), id, now).unwrap(), None);
        assert_eq!(store.response(&project(0), id, now).unwrap(), None);
        assert_eq!(store.history(&project(0), HistoryOf::Response(id), 9, now).unwrap(), None);
        assert_eq!(store.items(&project(0), id, &PageAsk::default(), now).unwrap(), None);
        assert!(!store.delete_response(&project(0), id, now).unwrap());
    }
}

/// The bound on all objects refuses one that goes beyond it, and none that is as large as one that it replaces.
fn the_objects_of_all_projects_are_bounded(place: &TestPlace) {
    let limits = ObjectLimits { max_total_bytes: 1 << 20, ..ObjectLimits::default() };
    let store = place.objects(limits);
    let large = |number, of: u8| {
        let body = "b".repeat(300 << 10);
        ResponseRecord { project: project(of), ..response(number, ResponseStatus::Ended, &body) }
    };
    store.put_response(&large(1, 0), &[]).unwrap();
    let mut stored = 1;
    let refused = loop {
        let one = large(stored + 1, u8::from(stored % 2 == 0));
        match if stored % 2 == 0 {
            put_then(store.as_ref(), one, Vec::new())
        } else {
            store.put_response(&one, &[])
        } {
            Ok(()) => stored += 1,
            Err(error) => break error,
        }
    };
    assert!((2..=3).contains(&stored), "{stored}");
    assert!(
        matches!(refused, ObjectError::Full { rule: "max_total", .. } | ObjectError::DiskFull { .. }),
        "{refused}"
    );
    store.put_response(&large(1, 0), &[]).unwrap();
    assert!(store.delete_response(&project(0), "resp_1", UnixNanos::new(2)).unwrap());
    store.sweep(UnixNanos::new(2)).unwrap();
    store.put_response(&large(9, 0), &[]).unwrap();
}

fn response(number: usize, status: ResponseStatus, body: &str) -> ResponseRecord {
    ResponseRecord {
        id: format!("resp_{number}"),
        project: project(0),
        created: UnixNanos::new(1),
        expires: UnixNanos::new(1_000_000_000_000),
        status,
        previous: None,
        conversation: None,
        input: "[]".to_owned(),
        output: "[]".to_owned(),
        body: body.to_owned(),
        events: None,
    }
}

/// Callers that do not wait each get their own result. Writes of one response are stored in order, and dropping the
/// store loses nothing.
fn what_comes_at_once_is_stored_in_its_order_and_each_told_for_itself(place: &TestPlace) {
    const EACH: usize = 100;
    let open = || place.objects(ObjectLimits { max_object_bytes: 1_000, ..ObjectLimits::default() });
    let store = open();
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (store, tell) = (&store, tell.clone());
            scope.spawn(move || {
                for number in (thread * EACH..).take(EACH) {
                    // Every tenth response ends with a body that is too large.
                    let end = if number % 10 == 0 { "e".repeat(1_000) } else { format!("end of {number}") };
                    for (status, body) in
                        [(ResponseStatus::InProgress, "begun"), (ResponseStatus::Ended, end.as_str())]
                    {
                        let (tell, response) = (tell.clone(), response(number, status, body));
                        let told = Box::new(move |done: Result<(), ObjectError>| {
                            tell.send((number, status, done.is_ok())).unwrap();
                        });
                        store.put_response_then(response, Vec::new(), told);
                    }
                }
            });
        }
    });
    drop((store, tell));
    let mut told: Vec<_> = told.into_iter().collect();
    told.sort_by_key(|(number, status, _)| (*number, *status == ResponseStatus::Ended));
    assert_eq!(told.len(), 16 * EACH, "all are told before the store is gone");
    let store = open();
    for (number, status, is_stored) in told {
        let ended = status == ResponseStatus::Ended;
        assert_eq!(is_stored, !ended || number % 10 != 0, "{number} {status:?}");
        let found =
            store.response(&project(0), &format!("resp_{number}"), UnixNanos::new(2)).unwrap().unwrap();
        let body = if number % 10 == 0 { "begun".to_owned() } else { format!("end of {number}") };
        assert_eq!(found.body, body);
    }
}

#[test]
fn a_file_of_something_else_is_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("objects.sqlite");
    drop(headrace_store::trace::SqliteTraceStore::open(
        &path,
        headrace_store::trace::TraceRetention::default(),
    ));
    let refused = SqliteObjects::open(&path, LIMITS).unwrap_err();
    assert!(refused.to_string().contains("not a Headrace store of objects"), "{refused}");
}

fn a_conversation_beyond_the_bound_of_histories_is_told_by_its_size(place: &TestPlace) {
    let limits = ObjectLimits { max_items_per_conversation: 1_000, ..LIMITS };
    let file = place.objects(limits);
    let memory = MemoryObjects::new(limits);
    let now = UnixNanos::new(1);
    let conversation = ConversationRecord {
        id: "c".to_owned(),
        project: project(0),
        created: now,
        expires: UnixNanos::new(9),
        metadata: "{}".to_owned(),
    };
    let of = HistoryOf::Conversation("c");
    for store in [file.as_ref(), &memory as &dyn ObjectStore] {
        store.create_conversation(&conversation, &[]).unwrap();
        assert_eq!(store.history(&project(0), of, 0, now), Ok(Some(Vec::new())));
        let bound = limits.max_history_bytes;
        for step in 0.. {
            store.add_items(&project(0), "c", &items(step, 1), now).unwrap();
            match store.size(&project(0), StoredLookup::History(of), now) {
                Ok(Some(bytes)) => assert!(bytes <= bound),
                Err(ObjectError::Full { rule: "max_history_bytes", limit, observed }) => {
                    assert!(limit == bound && observed > bound);
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(store.history(&project(0), of, u64::MAX, now).is_err());
    }
    // Long histories come as several lists of the same items.
    let long =
        ObjectLimits { max_history_bytes: 1 << 20, max_conversation_bytes_per_project: 1 << 20, ..limits };
    drop(file);
    let file = place.objects(long);
    for step in 0..30 {
        file.add_items(&project(0), "c", &items(step * 10, 10), now).unwrap();
    }
    let size = file.size(&project(0), StoredLookup::History(of), now).unwrap().unwrap();
    let lists = file.history(&project(0), of, size, now).unwrap().unwrap();
    assert_eq!((lists.len(), lists.iter().map(|list| list.len() as u64).sum()), (4, size));
}
