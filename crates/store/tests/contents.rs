//! The store of recorded requests and answers: search, removal by time, size and user, scores and datasets.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::path::Path;

use headrace_domain::{EndUser, Endpoint, ForgottenName, ProjectId, RecordLevel, RequestId, UnixNanos};
use headrace_store::contents::SqliteContents;
use headrace_trace::{
    AnswerPart, AnswerPartKind, CallDataset, CallScore, ContentArchive, ContentQuery, ContentStore,
    RecordName, StoredContent,
};

const SECOND: u64 = 1_000_000_000;

fn content(n: u64, user: &str, text: &str) -> StoredContent {
    StoredContent {
        id: RequestId::from_bits(u128::from(n)),
        started: UnixNanos::new(n * SECOND),
        expires: UnixNanos::new((n + 100) * SECOND),
        org: Some("acme".parse().unwrap()),
        project: ProjectId::new(if n.is_multiple_of(2) { "even" } else { "odd" }).unwrap(),
        key: Some("key_1".parse().unwrap()),
        user: EndUser::named(user),
        model: Some("demo".to_owned()),
        endpoint: Endpoint::ChatCompletions,
        level: RecordLevel::Full,
        request: format!(r#"{{"messages":[{{"role":"user","content":"question {n} {text}"}}]}}"#),
        request_cut: false,
        answer: vec![AnswerPart {
            choice: 0,
            kind: AnswerPartKind::Text,
            name: None,
            text: format!("Answer {n}"),
        }],
        answer_cut: n == 3,
    }
}

fn open(dir: &Path, max_bytes: u64) -> SqliteContents {
    SqliteContents::new(&dir.join("contents.sqlite"), max_bytes, None)
}

fn found(store: &SqliteContents, query: &ContentQuery) -> Vec<u64> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = store.search(query, after, 2).unwrap();
        all.extend(page.contents.iter().map(|content| content.started.get() / SECOND));
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
}

#[test]
fn contents_are_found_by_their_fields_and_their_text() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 1 << 30);
    assert_eq!(found(&store, &ContentQuery::default()), [0; 0], "there is no file yet");
    let all: Vec<_> =
        (1..=7).map(|n| content(n, "u", if n == 4 { "Grüße aus \\\"X\\\"" } else { "x" })).collect();
    store.append(&all).unwrap();
    store.append(&all[..2]).unwrap();
    assert_eq!(found(&store, &ContentQuery::default()), [7, 6, 5, 4, 3, 2, 1]);
    let by = |set: &[(&str, &str)]| {
        let mut query = ContentQuery::default();
        set.iter().for_each(|(name, value)| query.set(name, value, UnixNanos::new(10 * SECOND)).unwrap());
        found(&store, &query)
    };
    assert_eq!(by(&[("project", "odd")]), [7, 5, 3, 1]);
    assert_eq!(by(&[("project", "odd"), ("from", "6s"), ("to", "4s")]), [5]);
    assert_eq!(by(&[("text", "QUESTION 5")]), [5]);
    assert_eq!(by(&[("text", "answer")]), [7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(by(&[("text", "grüße AUS \"x\"")]), [4], "escapes and case make no difference");
    assert_eq!(by(&[("model", "other")]), [0; 0]);
    assert_eq!(by(&[("user", "u"), ("org", "acme"), ("text", "question 2")]), [2]);
    let third = store.get(RequestId::from_bits(3)).unwrap().unwrap();
    assert_eq!(third, all[2]);
    assert_eq!(store.get(RequestId::from_bits(99)).unwrap(), None);
    let mut query = ContentQuery::default();
    assert!(query.set("colour", "red", UnixNanos::new(0)).unwrap_err().contains("from, to, org"));
}

#[test]
fn a_search_ends_at_its_bound_and_continues_from_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 1 << 30);
    let all: Vec<_> = (1..=5_100).map(|n| content(n, "u", "x")).collect();
    store.append(&all).unwrap();
    let query = ContentQuery { text: Some("question 7 ".to_owned()), ..ContentQuery::default() };
    let first = store.search(&query, None, 10).unwrap();
    assert!(first.contents.is_empty() && first.next.is_some());
    assert_eq!(first.searched_to, Some(UnixNanos::new(101 * SECOND)));
    let second = store.search(&query, first.next, 10).unwrap();
    assert_eq!((second.contents.len(), second.next), (1, None));
}

#[test]
fn contents_are_removed_by_age_and_by_size() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 4 << 20);
    let long = "y".repeat(10_000);
    store.append(&(1..=50).map(|n| content(n, "u", &long)).collect::<Vec<_>>()).unwrap();
    assert_eq!(store.sweep(UnixNanos::new(101 * SECOND)).unwrap(), 1, "the first one expires at 101 s");
    store.append(&(51..=1_000).map(|n| content(n, "u", &long)).collect::<Vec<_>>()).unwrap();
    assert!(store.sweep(UnixNanos::new(101 * SECOND)).unwrap() > 0);
    let left = found(&store, &ContentQuery::default());
    assert!((100..400).contains(&left.len()) && left[0] == 1_000, "the newest stay: {left:?}");
    assert_eq!(store.sweep(UnixNanos::new(101 * SECOND)).unwrap(), 0);
    assert_eq!(store.sweep(UnixNanos::new(10_000 * SECOND)).unwrap(), left.len() as u64);
}

/// Whether any file of a directory has these bytes.
fn occurs(dir: &Path, needle: &str) -> bool {
    std::fs::read_dir(dir).unwrap().any(|entry| {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        bytes.windows(needle.len()).any(|window| window == needle.as_bytes())
    })
}

fn calls(contents: &[StoredContent]) -> Vec<RequestId> {
    contents.iter().map(|content| content.id).collect()
}

#[test]
fn a_forgotten_user_is_in_no_byte_of_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 1 << 30);
    let name = "canary-4f1c@example.com";
    let mut all: Vec<_> = (1..=40).map(|n| content(n, "other", "x")).collect();
    all.extend((41..=60).map(|n| content(n, name, "x")));
    // The name in the text alone, and escaped.
    all.push(content(61, "other", name));
    all.push(content(62, "other", "zo\\u00eb canary-4f1c@example.com"));
    store.append(&all).unwrap();
    let dataset = |name: &str| CallDataset {
        name: RecordName::new(name).unwrap(),
        org: None,
        from: "all contents".to_owned(),
        actor: "test".to_owned(),
        created: UnixNanos::new(1),
        items: 0,
    };
    assert_eq!(store.create_dataset(&dataset("d"), &calls(&all[30..50])).unwrap(), Some(20));
    let score = CallScore {
        id: RequestId::from_bits(1),
        name: RecordName::new("quality").unwrap(),
        value: "0.5".parse().unwrap(),
        comment: format!("asked by {name}"),
        actor: "test".to_owned(),
        at: UnixNanos::new(1),
    };
    store.put_score(&score).unwrap();
    assert!(occurs(dir.path(), name));
    let user = ForgottenName::new(name).unwrap();
    let odd = ProjectId::new("odd").unwrap();
    assert_eq!(store.forget(&user, Some(&odd)).unwrap(), 10 + 5 + 1 + 1, "of one project, with its score");
    assert!(occurs(dir.path(), name));
    assert_eq!(store.forget(&user, None).unwrap(), 10 + 5 + 1, "the rest");
    assert!(!occurs(dir.path(), name));
    assert_eq!(found(&store, &ContentQuery::default()).len(), 40);
    assert_eq!(store.datasets().unwrap()[0].items, 10);
    assert_eq!(store.forget(&user, None).unwrap(), 0);
}

#[test]
fn a_call_has_one_score_of_each_name() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 1 << 30);
    let id = RequestId::from_bits(7);
    assert_eq!(store.scores(id).unwrap(), []);
    let score = |name: &str, value: &str| CallScore {
        id,
        name: RecordName::new(name).unwrap(),
        value: value.parse().unwrap(),
        comment: String::new(),
        actor: "test".to_owned(),
        at: UnixNanos::new(5),
    };
    for (name, value) in [("quality", "0.25"), ("age", "-3"), ("quality", "0.8")] {
        store.put_score(&score(name, value)).unwrap();
    }
    assert_eq!(store.scores(id).unwrap(), [score("age", "-3"), score("quality", "0.8")]);
}

#[test]
fn the_items_of_a_dataset_outlive_their_calls() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path(), 1 << 30);
    let all: Vec<_> = (1..=5).map(|n| content(n, "u", "x")).collect();
    store.append(&all).unwrap();
    let name = RecordName::new("golden").unwrap();
    let dataset = CallDataset {
        name: name.clone(),
        org: None,
        from: "project odd".to_owned(),
        actor: "test".to_owned(),
        created: UnixNanos::new(9),
        items: 3,
    };
    let mut chosen = calls(&all[..2]);
    chosen.push(RequestId::from_bits(999));
    chosen.extend(calls(&all[2..3]));
    assert_eq!(store.create_dataset(&dataset, &chosen).unwrap(), Some(3), "one content is gone");
    assert_eq!(store.create_dataset(&dataset, &calls(&all)).unwrap(), None, "the name is taken");
    store.sweep(UnixNanos::new(10_000 * SECOND)).unwrap();
    assert_eq!(found(&store, &ContentQuery::default()), [0; 0]);
    assert_eq!(store.datasets().unwrap(), [dataset]);
    let page = store.dataset_items(&name, 0, 2).unwrap().unwrap();
    assert_eq!(page, [(1, all[0].clone()), (2, all[1].clone())]);
    assert_eq!(store.dataset_items(&name, 2, 2).unwrap().unwrap(), [(3, all[2].clone())]);
    assert!(store.remove_dataset(&name).unwrap() && !store.remove_dataset(&name).unwrap());
    assert_eq!(store.dataset_items(&name, 0, 2).unwrap(), None);
}
