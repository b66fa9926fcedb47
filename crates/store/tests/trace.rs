//! The trace store in its file: records are read as written, and kept as long as the retention says.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use headrace_domain::{
    CallOutcome, Endpoint, KeyId, NanoDollars, OrgId, RequestId, RoundOutcome, RoundTimes, Stage, StageSpan,
    TRACE_VERSION, TraceRecord, TraceRound, TracedRefusal, UnixNanos, Usage, WORKER_JOB_KEY, WorkerJob,
};
use headrace_store::trace::{SqliteTraceReader, SqliteTraceStore, TraceRetention};
use headrace_trace::{TraceError, TraceReader, TraceStore};
use sqlx::{Connection, SqliteConnection};

const SECOND: u64 = 1_000_000_000;

/// Record `n` starts at second `n` and takes `n` milliseconds.
fn record(n: u64) -> TraceRecord {
    TraceRecord {
        version: TRACE_VERSION,
        request_id: RequestId::from_bits(n.into()),
        trace_id: None,
        parent_span_id: None,
        started: UnixNanos::new(n * SECOND),
        duration_ns: n * 1_000_000,
        first_token_ns: None,
        after_ns: 0,
        form_ns: 0,
        org: Some(OrgId::new("acme").unwrap()),
        project: None,
        key: None,
        token_user: None,
        region: None,
        client: None,
        user: None,
        endpoint: Some(Endpoint::ChatCompletions),
        model_asked: Some("demo".to_owned()),
        model_served: Some("demo".to_owned()),
        numerics: None,
        stream: true,
        stages: vec![StageSpan { stage: Stage::Connect, start_ns: 0, duration_ns: n, inside: None }],
        price_tier: headrace_domain::PriceTier::Standard,
        usage_source: headrace_domain::UsageSource::Counted,
        why_estimated: None,
        answer_notes: Vec::new(),
        upstream: None,
        upstream_model: None,
        upstream_id: None,
        usage: Usage { input: n, ..Usage::default() },
        engine: None,
        held: NanoDollars::ZERO,
        cost: NanoDollars::new(7),
        loss: NanoDollars::ZERO,
        paid: None,
        attempts: Vec::new(),
        continued: Vec::new(),
        rounds: Vec::new(),
        billed: None,
        connection: None,
        moderation: None,
        input_verdicts: Vec::new(),
        sent: None,
        output_verdicts: Vec::new(),
        judge_uses: Vec::new(),
        labels: None,
        outcome: CallOutcome::Completed { finish: vec!["stop".to_owned()] },
        kept_answers: None,
        cache_diagnosis: None,
        failed_with: None,
        shadow_of: None,
        replay_of: None,
        worker_job: None,
    }
}

fn records(numbers: impl IntoIterator<Item = u64>) -> Vec<TraceRecord> {
    numbers.into_iter().map(record).collect()
}

fn numbers(records: &[TraceRecord]) -> Vec<u64> {
    records.iter().map(|record| record.started.seconds()).collect()
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("traces.sqlite");
    (folder, path)
}

fn store(path: &Path, max_records: u64, max_age: Option<Duration>) -> SqliteTraceStore {
    SqliteTraceStore::open(path, TraceRetention { max_records, max_age }).unwrap()
}

#[test]
fn what_is_written_is_read_beside_the_writer_and_after_it() {
    let (_folder, path) = folder();
    let mut writer = store(&path, 1_000, None);
    let reader = SqliteTraceReader::open(&path).unwrap();
    assert_eq!(reader.last(5).unwrap(), []);
    // More rows than one statement takes, in an order that is neither by time nor by duration.
    writer.append(&records((1..=150).rev())).unwrap();
    let check = |reader: &SqliteTraceReader| {
        assert_eq!(reader.get(RequestId::from_bits(77)).unwrap(), Some(record(77)));
        assert_eq!(reader.get(RequestId::from_bits(9_999)).unwrap(), None);
        assert_eq!(numbers(&reader.last(3).unwrap()), [150, 149, 148]);
        assert_eq!(numbers(&reader.slowest(2, UnixNanos::new(0)).unwrap()), [150, 149]);
        assert_eq!(numbers(&reader.slowest(9, UnixNanos::new(149 * SECOND)).unwrap()), [150, 149]);
        assert_eq!(reader.last(0).unwrap(), []);
        assert_eq!(reader.last(usize::MAX).unwrap().len(), 150);
    };
    check(&reader);
    drop(reader);
    drop(writer);
    let files: Vec<_> =
        std::fs::read_dir(path.parent().unwrap()).unwrap().map(|f| f.unwrap().file_name()).collect();
    assert_eq!(files, ["traces.sqlite"], "closed whole, its write-ahead log folded in");
    check(&SqliteTraceReader::open(&path).unwrap());
    assert_eq!(store(&path, 1_000, None).stored(), 150);
}

/// A row of a program that did not record rounds.
const ROW_WITHOUT_ROUNDS: &str = r#"UPDATE trace SET record = '{"version":2,"request_id":"req_00000000000000000000000000000001","trace_id":null,"parent_span_id":null,"started":1000000000,"duration_ns":1000000,"first_token_ns":null,"org":"acme","project":null,"key":null,"endpoint":"chat_completions","model_asked":"demo","model_served":"demo","numerics":null,"stream":true,"stages":[{"stage":"connect","start_ns":0,"duration_ns":1}],"usage":{"input":1,"cached_input":0,"cache_write":0,"output":0,"reasoning":0},"engine":null,"held":0,"cost":7,"loss":0,"moderation":null,"outcome":{"kind":"completed","finish":["stop"]}}' WHERE seq = 1"#;

#[tokio::test(flavor = "multi_thread")]
async fn rows_without_rounds_stay_readable_beside_rows_with_rounds() {
    let (_folder, path) = folder();
    let round = TraceRound {
        model: Some("large".into()),
        upstream: Some("vllm".into()),
        worker: Some("vllm/large".into()),
        start_ns: 1,
        duration_ns: 2,
        usage: Usage { input: 3, output: 4, ..Usage::default() },
        engine: None,
        outcome: RoundOutcome::Failed { code: "answer_off_form".into() },
    };
    let last = TraceRound {
        model: None,
        upstream: None,
        engine: Some(RoundTimes { queue_ns: 5, prefill_ns: 6, decode_ns: 7 }),
        outcome: RoundOutcome::Answered { finish: Some("stop".into()) },
        ..round.clone()
    };
    let several = TraceRecord { rounds: vec![round, last], ..record(2) };
    let mut writer = store(&path, 1_000, None);
    writer.append(&[TraceRecord { rounds: several.rounds.clone(), ..record(1) }, several.clone()]).unwrap();
    drop(writer);
    let mut connection = SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap();
    let done = sqlx::raw_sql(ROW_WITHOUT_ROUNDS).execute(&mut connection).await.unwrap();
    assert_eq!(done.rows_affected(), 1);
    connection.close().await.unwrap();
    let reader = SqliteTraceReader::open(&path).unwrap();
    assert_eq!(reader.get(RequestId::from_bits(1)).unwrap(), Some(record(1)));
    assert_eq!(reader.get(RequestId::from_bits(2)).unwrap(), Some(several));
}

/// The same as a worker job of a call.
fn worker_job(record: TraceRecord, call: u128) -> TraceRecord {
    let worker_job = Some(Box::new(WorkerJob { call: RequestId::from_bits(call) }));
    TraceRecord { org: None, key: Some(KeyId::new(WORKER_JOB_KEY).unwrap()), worker_job, ..record }
}

#[test]
fn worker_jobs_are_none_of_the_calls_in_the_file_as_in_memory() {
    let (_folder, path) = folder();
    let all: Vec<_> = records(1..41)
        .into_iter()
        .map(|record| if n_is_odd(&record) { worker_job(record, 1) } else { record })
        .collect();
    let (mut memory, mut file) = (headrace_trace::MemoryTraces::new(), store(&path, 100, None));
    memory.append(&all).unwrap();
    file.append(&all).unwrap();
    let reader = SqliteTraceReader::open(&path).unwrap();
    for reader in [&reader as &dyn TraceReader, &memory] {
        assert_eq!(numbers(&reader.last(3).unwrap()), [40, 38, 36]);
        assert_eq!(numbers(&reader.slowest(3, UnixNanos::new(0)).unwrap()), [40, 38, 36]);
        let (from, to) = (UnixNanos::new(0), UnixNanos::new(u64::MAX >> 1));
        let (mut each, mut newest) = (Vec::new(), Vec::new());
        reader.each(from, to, &mut |record| each.push(record.clone())).unwrap();
        assert!(reader.newest(from, to, 2, &mut |record| newest.push(record.clone())).unwrap());
        assert_eq!((each.len(), numbers(&newest)), (20, vec![40, 38]));
        let job = reader.get(RequestId::from_bits(39)).unwrap().unwrap();
        assert_eq!(job.worker_job, Some(Box::new(WorkerJob { call: RequestId::from_bits(1) })));
    }
}

fn n_is_odd(record: &TraceRecord) -> bool {
    record.request_id.bits() % 2 == 1
}

#[test]
fn a_call_is_found_by_the_names_that_others_gave_it() {
    let (_folder, path) = folder();
    let mut writer = store(&path, 10, None);
    let named = |number: u64, answer: Option<&str>, trace: Option<&str>| {
        let (upstream_id, trace_id) = (answer.map(str::to_owned), trace.map(str::to_owned));
        TraceRecord { upstream_id, trace_id, ..record(number) }
    };
    let w3c = "4bf92f3577b34da6a3ce929d0e0e4736";
    writer
        .append(&[
            named(1, Some("chatcmpl-qf70"), None),
            named(2, Some("msg_01"), Some(w3c)),
            named(3, None, Some(w3c)),
            named(4, None, None),
            named(5, Some(""), None),
            // Worker jobs of that trace, and of a call that has none of its caller's.
            worker_job(TraceRecord { trace_id: Some(w3c.to_owned()), ..record(6) }, 0xabc),
            worker_job(record(7), 0xabc),
        ])
        .unwrap();
    let reader = SqliteTraceReader::open(&path).unwrap();
    let found = |name: &str| numbers(&reader.named(name).unwrap());
    assert_eq!(found("chatcmpl-qf70"), [1]);
    assert_eq!(found("msg_01"), [2]);
    assert_eq!(found(w3c), [3, 2, 6], "the newest first, jobs behind calls");
    let call = headrace_trace::trace_name(RequestId::from_bits(0xabc));
    assert_eq!(found(&call), [7, 6]);
    assert!(found("").is_empty() && found("chatcmpl").is_empty() && found("%").is_empty());
    let all = headrace_trace::MemoryTraces::new();
    let mut memory = all.clone();
    let ids = (1..=7).map(RequestId::from_bits);
    memory.append(&ids.map(|id| reader.get(id).unwrap().unwrap()).collect::<Vec<_>>()).unwrap();
    assert_eq!(numbers(&all.named(w3c).unwrap()), [3, 2, 6]);
    assert_eq!(numbers(&all.named(&call).unwrap()), [7, 6]);
    // Names are removed with their calls.
    writer.append(&records(100..200)).unwrap();
    assert!(found("chatcmpl-qf70").is_empty() && found(w3c).is_empty() && found(&call).is_empty());
    let left: Vec<(i64,)> = {
        let file = path.to_str().unwrap().to_owned();
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async move {
            use sqlx::Connection;
            let mut file = sqlx::SqliteConnection::connect(&file).await.unwrap();
            sqlx::query_as("SELECT count(*) FROM call_name").fetch_all(&mut file).await.unwrap()
        })
    };
    assert_eq!(left, [(0,)]);
}

#[test]
fn the_oldest_go_where_the_file_is_longer_than_it_may_be() {
    const MOST_BYTES: u64 = 1 << 20;
    let (_folder, path) = folder();
    let mut writer = store(&path, 1_000_000, None).within(MOST_BYTES);
    for from in 0..200 {
        writer.append(&records((from * 100..).take(100))).unwrap();
    }
    let reader = SqliteTraceReader::open(&path).unwrap();
    assert_eq!(numbers(&reader.last(1).unwrap()), [19_999], "the newest stay");
    assert!((100..20_000).contains(&writer.stored()), "{}", writer.stored());
    drop((reader, writer));
    let found = std::fs::metadata(&path).unwrap().len();
    // The size is checked only once in several writes.
    assert!(found < 6 * MOST_BYTES, "{found}");
}

#[test]
fn copies_of_calls_are_found_by_the_key_that_they_are_traced_under() {
    let (_folder, path) = folder();
    let mut writer = store(&path, 1_000, None);
    let of = |key: &str, n| TraceRecord { key: Some(KeyId::new(key).unwrap()), ..record(n) };
    let shadows: Vec<_> = [2, 5, 9].map(|n| of("shadow", n)).into();
    writer.append(&[of("key_a", 3), record(7)]).unwrap();
    writer.append(&shadows).unwrap();
    let reader = SqliteTraceReader::open(&path).unwrap();
    assert_eq!(numbers(&reader.shadows(9, UnixNanos::new(0)).unwrap()), [9, 5, 2]);
    assert_eq!(numbers(&reader.shadows(9, UnixNanos::new(5 * SECOND)).unwrap()), [9, 5]);
    assert_eq!(numbers(&reader.shadows(1, UnixNanos::new(0)).unwrap()), [9]);
}

/// A slow upload is the client's own time, so such a call is not slow.
#[test]
fn the_slowest_are_those_that_took_the_server_longest() {
    let (_folder, path) = folder();
    let mut writer = store(&path, 1_000, None);
    let mut uploaded = record(9);
    let upload = 8_500_000;
    uploaded.stages =
        vec![StageSpan { stage: Stage::Receive, start_ns: 0, duration_ns: upload, inside: None }];
    writer.append(&[record(3), uploaded, record(2)]).unwrap();
    let reader = SqliteTraceReader::open(&path).unwrap();
    assert_eq!(numbers(&reader.slowest(9, UnixNanos::new(0)).unwrap()), [3, 2, 9]);
}

#[test]
fn a_record_written_twice_stays_as_it_was_first() {
    let (_folder, path) = folder();
    let mut writer = store(&path, 1_000, None);
    writer.append(&records([1, 2])).unwrap();
    let mut again = record(1);
    again.stream = false;
    writer.append(&[again, record(3)]).unwrap();
    assert_eq!(writer.stored(), 3);
    let reader = SqliteTraceReader::open(&path).unwrap();
    assert_eq!(reader.get(RequestId::from_bits(1)).unwrap(), Some(record(1)));
}

#[test]
fn retention_by_count_and_by_age() {
    let (_folder, path) = folder();
    let mut writer = store(&path, 10, None);
    for n in 1..=40 {
        writer.append(&[record(n)]).unwrap();
    }
    let reader = SqliteTraceReader::open(&path).unwrap();
    assert_eq!(numbers(&reader.last(100).unwrap()), (31..=40).rev().collect::<Vec<_>>());
    assert_eq!(writer.stored(), 10);
    drop(writer);

    let mut writer = store(&path, 1_000, Some(Duration::from_secs(5)));
    writer.append(&[record(41)]).unwrap();
    assert_eq!(numbers(&reader.last(100).unwrap()), [41, 40, 39, 38, 37, 36]);
    assert_eq!(writer.stored(), 6);
    writer.append(&[]).unwrap();
    assert_eq!(writer.stored(), 6, "an empty batch says nothing of the time");
}

#[test]
fn a_flood_of_refusals_pushes_out_no_call_that_ran() {
    let (_folder, path) = folder();
    let mut writer = store(&path, 160, None);
    writer.append(&records(1..=50)).unwrap();
    let refusal = |n: u64, org: Option<&str>| {
        let refused = TracedRefusal {
            stage: Stage::Authenticate,
            rule: "key_unknown".to_owned(),
            status: 401,
            code: "invalid_api_key".to_owned(),
            message: "The API key is not valid.".to_owned(),
        };
        let org = org.map(|org| OrgId::new(org).unwrap());
        TraceRecord { org, outcome: CallOutcome::Refused(refused), ..record(n) }
    };
    let count = |reader: &SqliteTraceReader| {
        let kept = reader.last(1_000).unwrap();
        let refused = kept.iter().filter(|record| matches!(record.outcome, CallOutcome::Refused(_)));
        let strangers = kept.iter().filter(|record| record.org.is_none()).count();
        (kept.len(), refused.count() - strangers, strangers)
    };
    let reader = SqliteTraceReader::open(&path).unwrap();
    for batch in 0..20 {
        let flood = (0..100).map(|n| refusal(1_000 + batch * 100 + n, (n % 2 == 0).then_some("acme")));
        writer.append(&flood.collect::<Vec<_>>()).unwrap();
    }
    assert_eq!(count(&reader), (50 + 40 + 10, 40, 10));
    drop(writer);
    // The records are counted again on opening. Calls that ran may use the whole file.
    let mut writer = store(&path, 160, None);
    assert_eq!(writer.stored(), 100);
    writer.append(&records(5_000..5_200)).unwrap();
    assert_eq!(writer.stored(), 160);
    assert_eq!(count(&reader), (160, 0, 0), "the oldest went");
}

#[test]
fn a_lowered_limit_is_reached_in_steps() {
    let (_folder, path) = folder();
    store(&path, 10_000, None).append(&records(1..=2_000)).unwrap();
    let mut writer = store(&path, 100, None);
    writer.append(&[record(2_001)]).unwrap();
    assert_eq!(writer.stored(), 2_001 - 513);
    for n in 2_002..2_010 {
        writer.append(&[record(n)]).unwrap();
    }
    assert_eq!(writer.stored(), 100);
}

#[test]
fn files_that_are_not_ours_to_read_are_refused() {
    let (folder, path) = folder();
    let said = |path: &Path| SqliteTraceReader::open(path).unwrap_err().to_string();
    assert!(said(&path).contains("traces.sqlite"), "missing: {}", said(&path));
    let text = folder.path().join("text");
    std::fs::write(&text, "not a database, but longer than a header of one hundred bytes: ".repeat(20))
        .unwrap();
    assert!(said(&text).contains("not a database"), "{}", said(&text));

    drop(store(&path, 10, None));
    // The header's user_version is the big-endian word at offset 60, and its application_id the one at 68.
    let header = |at: usize, value: u8| {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[at + 3] = value;
        let copy = folder.path().join(format!("header-{at}"));
        std::fs::write(&copy, bytes).unwrap();
        copy
    };
    let newer = header(60, 9);
    for error in [
        SqliteTraceReader::open(&newer).unwrap_err(),
        SqliteTraceStore::open(&newer, TraceRetention::default()).unwrap_err(),
    ] {
        assert!(matches!(error, TraceError::NewerFormat { found: 9, known: 1, .. }), "{error}");
    }
    assert!(said(&header(68, 0)).contains("not a Headrace trace store"), "{}", said(&header(68, 0)));
    let none = TraceRetention { max_records: 0, max_age: None };
    assert!(matches!(
        SqliteTraceStore::open(&path, none),
        Err(TraceError::Config { field: "max_records", .. })
    ));
}

/// A file of format 1 as the first version wrote it. `HEADRACE_BLESS=1` rewrites it.
#[test]
fn a_file_of_format_1_stays_readable() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/traces-v1.sqlite");
    if std::env::var_os("HEADRACE_BLESS").is_some() {
        let _ = std::fs::remove_file(&golden);
        store(&golden, 10, None).append(&records([1, 2, 3])).unwrap();
    }
    // Uses a copy, so that reading leaves nothing beside the original.
    let (_folder, path) = folder();
    std::fs::copy(&golden, &path).unwrap();
    let reader = SqliteTraceReader::open(&path).unwrap();
    let old = |n| TraceRecord { version: 1, ..record(n) }.upgraded();
    assert_eq!(reader.last(9).unwrap(), [3, 2, 1].map(old));
    drop(reader);
    let mut writer = store(&path, 10, None);
    writer.append(&[record(4)]).unwrap();
    assert_eq!(writer.stored(), 4);
}

/// A log is folded into its file in one go, on a core for which calls may wait.
#[test]
fn the_log_beside_a_file_stays_short_whatever_the_size_of_its_pages() {
    let log_bytes = |path: &Path| {
        let mut name = path.as_os_str().to_owned();
        name.push("-wal");
        std::fs::metadata(name).unwrap().len()
    };
    let page_bytes = |path: &Path| {
        let head = std::fs::read(path).unwrap();
        u16::from_be_bytes([head[16], head[17]])
    };
    let (folder, new) = folder();
    let old = folder.path().join("old.sqlite");
    std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/traces-v1.sqlite"), &old).unwrap();
    for (path, expected_bytes) in [(new, 16 << 10), (old, 4 << 10)] {
        let mut store = store(&path, 1_000_000, None);
        for batch in 0..100_u64 {
            store.append(&records(1_000 + batch * 100..1_100 + batch * 100)).unwrap();
            // The limit is the part that is folded in at once, plus the write that triggered it.
            assert!(log_bytes(&path) < 2 << 20, "{} bytes", log_bytes(&path));
        }
        drop(store);
        assert_eq!(page_bytes(&path), expected_bytes);
        assert!(std::fs::metadata(&path).unwrap().len() > 4 << 20, "more than one log's worth was written");
    }
}

#[test]
fn a_store_works_inside_an_async_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (_folder, path) = folder();
        let mut writer = store(&path, 10, None);
        writer.append(&records([1])).unwrap();
        assert_eq!(SqliteTraceReader::open(&path).unwrap().last(1).unwrap().len(), 1);
    });
}
