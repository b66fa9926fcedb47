//! Forgetting a user in the database of objects: where a name is found and which rows stay, totals that stay exact, and
//! callers that forget at once. How a name is found in bytes is tested in crate `domain`. Runs on each version of
//! PostgreSQL that `HEADRACE_POSTGRES_BIN` names.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, reason = "a test")]

#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use std::sync::Arc;

use headrace_domain::{Endpoint, ForgottenName, HoldId, KeyId, ProjectId, UnixNanos};
use headrace_objects::{
    AnswerRecord, AnswerStore, BatchCounts, BatchRecord, BatchState, BatchStatus, BatchStore, BatchTimes,
    ConversationRecord, FileDraft, FileLimits, FileRecord, FileStore, ItemRecord, LineRecord, ObjectError,
    ObjectLimits, ObjectStore, PartRecord, ResponseRecord, ResponseStatus, UploadRecord, UploadStatus,
};
use headrace_postgres::{PostgresAnswers, PostgresFiles, PostgresObjects, PostgresUrl, forget};
use support::{PostgresServer, versions};

const NOW: UnixNanos = UnixNanos::new(1_000);
const LATER: UnixNanos = UnixNanos::new(9_000_000);
const USER: &str = "eva@example.com";
/// Bytes of a chunk, as the store divides files.
const CHUNK_BYTES: usize = 256 << 10;

/// Everything that clients can see, by kind and id.
const OBJECTS: &str = "
    SELECT 'response ' || id FROM headrace.response WHERE state <> 2
    UNION ALL SELECT 'conversation ' || id FROM headrace.conversation
    UNION ALL SELECT 'file ' || id FROM headrace.file
    UNION ALL SELECT 'upload ' || id FROM headrace.upload
    UNION ALL SELECT 'batch ' || id FROM headrace.batch
    UNION ALL SELECT 'answer ' || project || ' ' || (get_byte(hold, 14) * 256 + get_byte(hold, 15)) FROM headrace.answer
    ORDER BY 1";
/// Totals that differ from what they count, and rows without their owner.
const FAULTS: &str = "
    SELECT held::text FROM headrace.held_objects held WHERE (responses, bytes, item_bytes) IS DISTINCT FROM (
        (SELECT count(*) FROM headrace.response WHERE project = held.project AND state <> 2),
        (SELECT coalesce(sum(bytes), 0) FROM headrace.response WHERE project = held.project),
        (SELECT coalesce(sum(octet_length(json)), 0) FROM headrace.item
            JOIN headrace.conversation ON conversation.id = item.conversation WHERE project = held.project))
    UNION ALL SELECT held::text FROM headrace.held_files held WHERE (files, bytes) IS DISTINCT FROM (
        (SELECT count(*) FROM headrace.file WHERE project = held.project),
        (SELECT coalesce(sum(bytes), 0) FROM headrace.file WHERE project = held.project)
        + (SELECT coalesce(sum(octet_length(state) + bytes + reserved + 256), 0) FROM headrace.batch
            WHERE project = held.project))
    UNION ALL SELECT 'chunk of ' || file FROM headrace.file_chunk WHERE file NOT IN (SELECT id FROM headrace.file)
    UNION ALL SELECT 'line of ' || batch FROM headrace.line WHERE batch NOT IN (SELECT id FROM headrace.batch)
    UNION ALL SELECT 'hidden ' || id FROM headrace.file WHERE state NOT IN (1, 2)";

/// The stores of one gateway.
struct TestStores {
    url: Arc<PostgresUrl>,
    /// The same URL as text.
    database: String,
    objects: PostgresObjects,
    files: PostgresFiles,
    answers: PostgresAnswers,
}

fn project(name: &str) -> ProjectId {
    ProjectId::new(name).unwrap()
}

fn user(name: &str) -> ForgottenName {
    ForgottenName::new(name).unwrap()
}

fn file(id: &str, of: &str, name: &str, bytes: usize) -> FileRecord {
    FileRecord {
        id: id.to_owned(),
        project: project(of),
        created: NOW,
        expires: None,
        bytes: bytes as u64,
        name: name.to_owned(),
        purpose: "user_data".to_owned(),
    }
}

impl TestStores {
    fn open(server: &PostgresServer) -> Self {
        let url: Arc<PostgresUrl> = Arc::new(server.url().parse().unwrap());
        Self {
            objects: PostgresObjects::open(Arc::clone(&url), ObjectLimits::default(), Arc::new(|| None))
                .unwrap(),
            files: PostgresFiles::open(Arc::clone(&url), FileLimits::default(), Arc::new(|| None)).unwrap(),
            answers: PostgresAnswers::open(Arc::clone(&url), 1 << 30).unwrap(),
            url,
            database: server.url(),
        }
    }

    fn forget(&self, name: &str, of: Option<&str>) -> Result<u64, ObjectError> {
        forget(&self.url, &user(name), of.map(project).as_ref())
    }

    /// The texts in the first column of a query.
    fn texts(&self, query: &str) -> Vec<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let connected = tokio_postgres::connect(&self.database, tokio_postgres::NoTls).await;
            let (client, connection) = connected.unwrap();
            tokio::spawn(connection);
            client.query(query, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
        })
    }

    fn put_response(
        &self,
        id: &str,
        of: &str,
        texts: [&str; 3],
        events: Option<&str>,
        status: ResponseStatus,
    ) {
        let [input, output, body] = texts.map(str::to_owned);
        let response = ResponseRecord {
            id: id.to_owned(),
            project: project(of),
            created: NOW,
            expires: LATER,
            status,
            previous: None,
            conversation: None,
            input,
            output,
            body,
            events: events.map(str::to_owned),
        };
        self.objects.put_response(&response, &[]).unwrap();
    }

    fn put_conversation(&self, id: &str, of: &str, metadata: &str, items: &[&str]) {
        let conversation = ConversationRecord {
            id: id.to_owned(),
            project: project(of),
            created: NOW,
            expires: LATER,
            metadata: metadata.to_owned(),
        };
        let item = |(at, json): (usize, &&str)| ItemRecord { id: format!("i{at}"), json: (*json).to_owned() };
        let items: Vec<_> = items.iter().enumerate().map(item).collect();
        self.objects.create_conversation(&conversation, &items).unwrap();
    }

    /// Stores a file that is written in some pieces.
    fn put_file(&self, id: &str, of: &str, name: &str, pieces: &[&[u8]]) {
        let bytes = pieces.concat().len();
        self.put_draft(&FileDraft::File(file(id, of, name, bytes)), pieces);
    }

    fn put_draft(&self, draft: &FileDraft, pieces: &[&[u8]]) {
        self.files.begin(draft).unwrap();
        let mut at = 0;
        for piece in pieces {
            self.files.append(draft.id(), at, piece).unwrap();
            at += piece.len() as u64;
        }
        assert!(self.files.finish(draft, NOW).unwrap());
    }

    /// Stores an upload with one part.
    fn put_upload(&self, id: &str, of: &str, name: &str, mime: &str, part: &[u8]) {
        let upload = UploadRecord {
            id: id.to_owned(),
            project: project(of),
            created: NOW,
            expires: LATER,
            status: UploadStatus::Pending,
            bytes: part.len() as u64,
            name: name.to_owned(),
            purpose: "user_data".to_owned(),
            mime: mime.to_owned(),
            kept_seconds: None,
            file: None,
        };
        self.files.create_upload(&upload).unwrap();
        let bytes = part.len() as u64;
        let record = PartRecord { id: format!("{id}-part"), upload: id.to_owned(), created: NOW, bytes };
        self.put_draft(&FileDraft::Part { project: project(of), part: record }, &[part]);
    }

    /// Stores a batch with one request, its custom id, body and answer. It has ended, or still runs.
    fn put_batch(&self, id: &str, of: &str, tag: &str, line: [&str; 3], is_over: bool) {
        let [custom_id, body, answer] = line;
        let batch = BatchRecord {
            id: id.to_owned(),
            project: project(of),
            counts: BatchCounts::default(),
            state: BatchState {
                key: KeyId::new("k").unwrap(),
                endpoint: Endpoint::ChatCompletions,
                created: NOW,
                expires: LATER,
                status: BatchStatus::InProgress,
                times: BatchTimes::default(),
                input: None,
                window: "24h".to_owned(),
                metadata: Some(format!(r#"{{"tag":"{tag}"}}"#)),
                kept_seconds: None,
                faults: Vec::new(),
                output: None,
                errors: None,
            },
        };
        self.files.create_batch(&batch).unwrap();
        let line = LineRecord { at: 0, custom_id: custom_id.to_owned(), body: body.to_owned(), noted: None };
        self.files.add_lines(id, &[line]).unwrap();
        self.files.note_answer(id, 0, "req_0", answer).unwrap();
        if is_over {
            self.end_batch(id);
        }
    }

    fn end_batch(&self, id: &str) {
        // Its requests stay as they are, so that they have their bodies.
        let end = |state: &mut BatchState| state.status = BatchStatus::Completed;
        self.files.change_batch(id, LATER, &mut { end }).unwrap();
    }

    fn put_answer(&self, hold: u128, of: &str, body: &[u8]) {
        let answer = AnswerRecord {
            hold: HoldId::from_bits(hold),
            project: project(of),
            created: NOW,
            expires: LATER,
            body: body.into(),
        };
        self.answers.put(&answer).unwrap();
    }

    /// What is left, and no total is wrong.
    fn left(&self) -> Vec<String> {
        assert_eq!(self.texts(FAULTS), Vec::<String>::new());
        self.texts(OBJECTS)
    }
}

const STREAM: &str =
    "data: {\"delta\":{\"content\":\"mail eva@exa\"}}\n\ndata: {\"delta\":{\"content\":\"mple.com\"}}\n\n";
const EVENTS: &str = r#"[{"type":"d","delta":"eva@exa"},{"type":"d","delta":"mple.com"}]"#;
const OTHER_STREAM: &str =
    "data: {\"delta\":{\"content\":\"mail evb@exa\"}}\n\ndata: {\"delta\":{\"content\":\"mple.com\"}}\n\n";

/// Stores objects with the name in every place. Returns their number. The ids begin with the project and `named`.
fn put_named(stores: &TestStores, of: &str) -> u64 {
    let id = |number: usize| format!("{of}-named{number}");
    let escaped = r#"{"user":"\u0065va@example.com"}"#;
    let nested = r#"[{"arguments":"{\"to\":\"\\u0065va@ex\\u0061mple.com\"}"}]"#;
    let responses = [
        ([r#"[{"text":"to eva@example.com"}]"#, "[]", "{}"], None),
        (["[]", nested, "{}"], None),
        (["[]", "[]", escaped], None),
        (["[]", "[]", "{}"], Some(STREAM)),
        (["[]", "[]", "{}"], Some(EVENTS)),
        (["[]", "[]", "{}"], Some(escaped)),
    ];
    for (at, (texts, events)) in responses.iter().enumerate() {
        stores.put_response(&id(at), of, *texts, *events, ResponseStatus::Ended);
    }
    stores.put_response(&id(99), of, [escaped, "[]", "{}"], None, ResponseStatus::InProgress);

    let plain = r#"{"user":"eva@example.com"}"#;
    let conversations: [(&str, &[&str]); 4] =
        [(plain, &[]), (escaped, &["{}"]), ("{}", &["{}", plain, plain]), ("{}", &["{}", nested])];
    for (at, (metadata, items)) in conversations.iter().enumerate() {
        stores.put_conversation(&id(at), of, metadata, items);
    }

    let mut across = vec![b'x'; CHUNK_BYTES - 4];
    across.extend_from_slice(b"eva@example.com and more");
    let mut escaped_across = vec![b'x'; CHUNK_BYTES - 15];
    escaped_across.extend_from_slice(escaped.as_bytes());
    let by_bytes: Vec<&[u8]> = plain.as_bytes().chunks(1).collect();
    let files: [(&str, &[&[u8]]); 6] = [
        ("eva@example.com.txt", &[]),
        ("n", &[plain.as_bytes()]),
        ("n", &[escaped.as_bytes()]),
        ("n", &[&across]),
        ("n", &[&escaped_across]),
        ("n", &by_bytes),
    ];
    for (at, (name, pieces)) in files.iter().enumerate() {
        stores.put_file(&id(at), of, name, pieces);
    }
    stores.put_upload(&format!("{of}-named-a"), of, "eva@example.com.txt", "text/plain", b"part");
    stores.put_upload(&format!("{of}-named-b"), of, "n", "text/plain; by=eva@example.com", b"part");

    let batches = [
        ("eva@example.com", ["c", "{}", "{}"]),
        ("t", ["eva@example.com", "{}", "{}"]),
        ("t", ["c", escaped, "{}"]),
        ("t", ["c", "{}", nested]),
    ];
    for (at, (tag, line)) in batches.iter().enumerate() {
        stores.put_batch(&id(at), of, tag, *line, true);
    }

    let first = if of == "p" { 100 } else { 200 };
    for (hold, body) in (first..).zip([across.as_slice(), STREAM.as_bytes(), escaped.as_bytes()]) {
        stores.put_answer(hold, of, body);
    }
    (responses.len() + 1 + conversations.len() + files.len() + 2 + batches.len() + 3) as u64
}

/// Stores objects that resemble those of the user.
fn put_others(stores: &TestStores, of: &str) {
    let id = format!("{of}-other");
    let hinted = r#"{"user":"\u0065vb@example.com"}"#;
    stores.put_response(&id, of, [hinted, hinted, hinted], Some(OTHER_STREAM), ResponseStatus::Ended);
    stores.put_conversation(&id, of, hinted, &[hinted, "{}"]);
    stores.put_file(&id, of, "evb@example.com.txt", &[hinted.as_bytes(), b"eva@", b"elsewhere.com"]);
    stores.put_upload(&id, of, "evb@example.com", "text/plain", hinted.as_bytes());
    stores.put_batch(&id, of, "evb@example.com", [hinted, hinted, hinted], true);
    stores.put_batch(&format!("{id}-runs"), of, "t", ["c", hinted, hinted], false);
    stores.put_answer(if of == "p" { 1 } else { 2 }, of, OTHER_STREAM.as_bytes());
}

#[test]
fn a_name_is_removed_from_every_place_and_what_resembles_it_stays() {
    for bin in versions() {
        let server = PostgresServer::start(&bin);
        let stores = TestStores::open(&server);
        put_others(&stores, "p");
        put_others(&stores, "q");
        let others = stores.left();
        let named = put_named(&stores, "q");
        let of_q = stores.left();
        assert_eq!(put_named(&stores, "p"), named);
        assert!(stores.left().len() > of_q.len() && of_q.len() > others.len());

        assert_eq!(stores.forget(USER, Some("elsewhere")), Ok(0));
        assert_eq!(stores.forget(USER, Some("p")), Ok(named));
        assert_eq!(stores.left(), of_q, "what project q has stays");
        assert_eq!(stores.forget(USER, None), Ok(named));
        assert_eq!(stores.left(), others);
        assert_eq!(stores.forget(USER, None), Ok(0));

        // A gateway that still answered does not bring a response back.
        stores.put_response("p-named99", "p", [USER, "[]", "{}"], None, ResponseStatus::Ended);
        assert_eq!(stores.left(), others);
    }
}

#[test]
fn a_short_name_is_removed_as_a_whole_string_and_stays_in_other_words() {
    for bin in versions() {
        let server = PostgresServer::start(&bin);
        let stores = TestStores::open(&server);
        let part_of_words = r#"{"text":"u12 menu1 u1","id":"xu1"}"#;
        stores.put_response("other", "p", [part_of_words; 3], Some(part_of_words), ResponseStatus::Ended);
        stores.put_conversation("other", "p", part_of_words, &[part_of_words]);
        stores.put_file("other", "p", "u12", &[part_of_words.as_bytes()]);
        stores.put_upload("other", "p", "menu1", "text/u1", b"part");
        stores.put_batch("other", "p", "u12", ["u12", part_of_words, part_of_words], true);
        stores.put_answer(1, "p", part_of_words.as_bytes());
        let others = stores.left();

        let escaped = r#"{"user":"\u00751"}"#;
        stores.put_response("named", "p", ["[]", "[]", r#"{"user":"u1"}"#], None, ResponseStatus::Ended);
        stores.put_response("named2", "p", ["[]", escaped, "{}"], None, ResponseStatus::Ended);
        stores.put_conversation("named", "p", "{}", &[r#"{"arguments":"{\"to\":\"u1\"}"}"#]);
        stores.put_file("named", "p", "u1", &[b"{}"]);
        stores.put_file("named2", "p", "n", &[br#"{"user":"u"#, br#"1"}"#]);
        stores.put_upload("named", "p", "u1", "text/plain", b"part");
        stores.put_batch("named", "p", "t", ["u1", "{}", "{}"], true);
        stores.put_batch("named2", "p", "u1", ["c", "{}", "{}"], true);
        stores.put_answer(2, "p", escaped.as_bytes());
        assert_eq!(stores.forget("u1", None), Ok(9));
        assert_eq!(stores.left(), others);
    }
}

#[test]
fn a_running_batch_with_the_name_stays_and_is_reported() {
    for bin in versions() {
        let server = PostgresServer::start(&bin);
        let stores = TestStores::open(&server);
        stores.put_batch("runs", "p", USER, ["c", "{}", "{}"], false);
        stores.put_batch("ended", "p", USER, ["c", "{}", "{}"], true);
        stores.put_file("file", "p", USER, &[b"{}"]);
        let refused = stores.forget(USER, None);
        let Err(ObjectError::Unavailable { why }) = refused else { panic!("{refused:?}") };
        assert!(why.contains("2 records were removed; 1 running batches"), "{why}");
        assert_eq!(stores.left(), ["batch runs"]);
        assert_eq!(stores.forget(USER, Some("elsewhere")), Ok(0));
        stores.end_batch("runs");
        assert_eq!(stores.forget(USER, None), Ok(1));
        assert_eq!(stores.left(), Vec::<String>::new());
    }
}

#[test]
fn many_and_large_rows_are_read_page_by_page() {
    for bin in versions() {
        let server = PostgresServer::start(&bin);
        let stores = TestStores::open(&server);
        let text = |number: usize| {
            if number.is_multiple_of(2) { r#""eva@example.com""# } else { r#""evb\u0040example.com""# }
        };
        for number in 0..150 {
            let text = text(number);
            stores.put_response(
                &format!("r{number:03}"),
                "p",
                ["[]", text, "{}"],
                None,
                ResponseStatus::Ended,
            );
            stores.put_conversation(&format!("c{number:03}"), "p", text, &[]);
            stores.put_conversation(&format!("d{number:03}"), "p", "{}", &[text, text]);
            stores.put_answer(number as u128, "p", text.as_bytes());
        }
        let lines = (0..150).map(|at| format!(r#"{{"at":{at},"to":{}}}"#, text(1)));
        let lines = lines.chain([r#"{"to":"eva@example.com"}"#.to_owned()]);
        let record = |(at, body)| LineRecord { at, custom_id: at.to_string(), body, noted: None };
        let lines: Vec<LineRecord> = (1..).zip(lines).map(record).collect();
        stores.put_batch("b", "p", "t", ["c", "{}", "{}"], false);
        stores.files.add_lines("b", &lines).unwrap();
        stores.end_batch("b");
        // Each is larger than a page, or two are.
        let filler = "x".repeat(6 << 20);
        for number in 0..4 {
            let large = format!("{filler}{}", text(number));
            stores.put_response(
                &format!("s{number}"),
                "p",
                ["[]", &large, "{}"],
                None,
                ResponseStatus::Ended,
            );
            stores.put_file(&format!("f{number}"), "p", "n", &[filler.as_bytes(), large.as_bytes()]);
            stores.put_answer(1_000 + number as u128, "p", large.as_bytes());
        }
        assert_eq!(stores.forget(USER, None), Ok(4 * 75 + 3 * 2 + 1));
        let left = stores.left();
        assert_eq!(left.len(), 4 * 75 + 3 * 2);
        let is_named = |id: &String| id.ends_with(['0', '2', '4', '6', '8', 'b']);
        assert!(!left.iter().any(is_named), "{left:?}");
    }
}

#[test]
fn callers_that_forget_at_once_count_each_object_once() {
    for bin in versions() {
        let server = PostgresServer::start(&bin);
        let stores = TestStores::open(&server);
        for number in 0..60 {
            let id = format!("named{number}");
            stores.put_response(&id, "p", ["[]", r#""eva@example.com""#, "{}"], None, ResponseStatus::Ended);
            stores.put_conversation(&id, "p", "{}", &[r#""eva@example.com""#]);
            stores.put_file(&id, "p", USER, &[b"{}"]);
            stores.put_answer(number, "p", br#""eva@example.com""#);
        }
        for number in 0..20 {
            let id = format!("named{number}");
            stores.put_upload(&id, "p", USER, "text/plain", b"part");
            stores.put_batch(&id, "p", USER, ["c", "{}", "{}"], true);
        }
        let counts = std::thread::scope(|scope| {
            let forgetting = [0, 1].map(|_| scope.spawn(|| stores.forget(USER, None).unwrap()));
            // Meanwhile, a client stores and deletes others.
            for number in 0..60 {
                let id = format!("other{number}");
                stores.put_response(&id, "p", ["[]", "[]", "{}"], None, ResponseStatus::Ended);
                stores.put_file(&id, "p", "n", &[b"{}"]);
                if number % 2 == 0 {
                    assert!(stores.objects.delete_response(&project("p"), &id, NOW).unwrap());
                    assert!(stores.files.delete_file(&project("p"), &id, NOW).unwrap());
                }
            }
            forgetting.map(|forgotten| forgotten.join().unwrap())
        });
        assert_eq!(counts.iter().sum::<u64>(), 4 * 60 + 2 * 20, "{counts:?}");
        assert_eq!(stores.left().len(), 2 * 30);
    }
}
