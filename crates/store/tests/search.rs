//! Compares the search in the file with the search in memory, which is the plain definition. Both must answer alike,
//! page by page, while calls are added and removed, and in files of older programs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use headrace_domain::{
    Attempt, AttemptOutcome, CallOutcome, ClientAddressPolicy, ContentVerdict, EndUser, Endpoint, KeyId,
    NanoDollars, OrgId, ProjectId, RequestId, Stage, StageSpan, TRACE_VERSION, TraceRecord, TracedRefusal,
    UnixNanos, Usage, WORKER_JOB_KEY, WorkerJob,
};
use headrace_store::trace::{SqliteTraceReader, SqliteTraceStore, TraceRetention, index};
use headrace_trace::{CallPage, CallQuery, MemoryTraces, TraceReader, TraceStore};
use sqlx::{Connection, SqliteConnection};

const SECOND: u64 = 1_000_000_000;
/// The maximum rows that one query examines.
const ROWS_PER_QUESTION: usize = 20_000;

/// Pseudorandom numbers with a fixed sequence.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

fn verdict(rule: &str, action: &str, dry_run: Option<&str>) -> ContentVerdict {
    ContentVerdict {
        rule: rule.to_owned(),
        action: action.to_owned(),
        kind: None,
        place: None,
        dry_run: dry_run.map(Into::into),
    }
}

/// A call of some kind. Several start in the same nanosecond.
fn record(n: u64, numbers: &mut Numbers) -> TraceRecord {
    let started = UnixNanos::new(1_795_000_000 * SECOND + n / 3 * SECOND);
    let ms = 1_000_000;
    let (queue, decode) = (numbers.below(2_000) * ms, numbers.below(2_500) * ms);
    let span = |stage, start_ns, duration_ns| StageSpan { stage, start_ns, duration_ns, inside: None };
    let stages = vec![
        span(Stage::Connect, 0, 7),
        span(Stage::Receive, 7, 300 * ms),
        span(Stage::Queue, 7 + 300 * ms, queue),
        span(Stage::Decode, 7 + 300 * ms + queue, decode),
    ];
    let duration_ns = 7 + 300 * ms + queue + decode;
    let org = numbers.below(4);
    let refusal = |stage, code: &str, message: &str| {
        CallOutcome::Refused(TracedRefusal {
            stage,
            rule: code.to_owned(),
            status: 429,
            code: code.to_owned(),
            message: message.to_owned(),
        })
    };
    let outcome = match numbers.below(8) {
        0 => refusal(Stage::Hold, "insufficient_balance", "The balance of org 100%_a is $0.00."),
        1 => refusal(Stage::Authenticate, "requests_per_minute", "Too many requests: 60 a minute."),
        7 => refusal(Stage::Moderate, "content_policy", "Not here."),
        2 => CallOutcome::Cancelled { why: "the client went away".to_owned() },
        3 => CallOutcome::Failed { stage: Stage::Upstream, message: "The UPSTREAM broke off.".to_owned() },
        _ => CallOutcome::Completed { finish: vec!["stop".to_owned()] },
    };
    let upstream = (numbers.below(3) == 0).then(|| "vllm".into());
    let worker = ["vllm/demo", "demo@local", "other@local"][numbers.below(3) as usize];
    let attempt = Attempt {
        prompt: 0,
        worker: worker.into(),
        model: None,
        start_ns: 7 + 300 * ms,
        duration_ns: queue + decode,
        outcome: AttemptOutcome::Answered,
        paid: None,
    };
    let policy = ClientAddressPolicy::ALL[(n % 3) as usize];
    let address = ["203.0.113.9", "203.0.113.8", "198.51.100.9", "2001:db8:7:8::9"][(n % 4) as usize];
    let client = policy.record(address.parse().unwrap());
    let verdicts = numbers.below(9);
    TraceRecord {
        version: TRACE_VERSION,
        request_id: RequestId::from_bits((u128::from(n) << 64) | u128::from(numbers.below(1 << 30))),
        trace_id: None,
        parent_span_id: None,
        started,
        duration_ns,
        first_token_ns: Some(7 + 300 * ms + queue),
        after_ns: 0,
        form_ns: 0,
        org: (org > 0).then(|| OrgId::new(&format!("org-{org}")).unwrap()),
        project: (org > 0).then(|| ProjectId::new(&format!("project-{}", org + numbers.below(2))).unwrap()),
        key: (org > 0).then(|| KeyId::new(&format!("key-{}", numbers.below(5))).unwrap()),
        token_user: None,
        region: None,
        client,
        user: EndUser::named(["", "eva@example.com", "b\n"][numbers.below(3) as usize]),
        endpoint: Some(Endpoint::ChatCompletions),
        model_asked: Some("best".to_owned()),
        model_served: (numbers.below(5) > 0).then(|| format!("model-{}", numbers.below(3))),
        numerics: None,
        stream: true,
        stages,
        price_tier: headrace_domain::PriceTier::Standard,
        usage_source: headrace_domain::UsageSource::Counted,
        why_estimated: None,
        answer_notes: Vec::new(),
        upstream,
        upstream_model: None,
        upstream_id: None,
        usage: Usage { input: n, output: 3, ..Usage::default() },
        engine: None,
        held: NanoDollars::ZERO,
        cost: NanoDollars::new(i64::try_from(numbers.below(30)).unwrap() * 1_000_000),
        loss: NanoDollars::ZERO,
        paid: None,
        attempts: if numbers.below(4) > 0 { vec![attempt] } else { Vec::new() },
        continued: Vec::new(),
        rounds: Vec::new(),
        moderation: (verdicts % 4 == 1).then(|| "old-rule".to_owned()),
        input_verdicts: if verdicts == 2 { vec![verdict("pii", "flag", None)] } else { Vec::new() },
        sent: None,
        output_verdicts: match verdicts {
            3 => vec![verdict("pii", "redact", None), verdict("threats", "block", None)],
            4 => vec![verdict("threats", "flag", Some("block"))],
            5 => vec![verdict("threats", "no_verdict", None), verdict("old-rule", "flag", None)],
            _ => Vec::new(),
        },
        judge_uses: Vec::new(),
        labels: None,
        outcome,
        failed_with: None,
        shadow_of: None,
        replay_of: None,
        worker_job: None,
        connection: None,
        billed: None,
        kept_answers: None,
        cache_diagnosis: None,
    }
}

fn records(count: u64, seed: u64) -> Vec<TraceRecord> {
    let mut numbers = Numbers(seed);
    // Not in the order of their start, because long calls are stored late.
    let mut all: Vec<_> = (0..count).map(|n| record(n, &mut numbers)).collect();
    all.sort_by_key(|record| record.started.get() + record.duration_ns);
    all
}

fn queries() -> Vec<CallQuery> {
    let all: &[&[(&str, &str)]] = &[
        &[],
        &[("org", "org-2")],
        &[("org", "nobody")],
        &[("project", "project-3")],
        &[("key", "key-1")],
        &[("key", "key-1"), ("org", "org-1")],
        &[("key", "worker-job")],
        &[("key", "worker-job"), ("outcome", "failed")],
        &[("user", "eva@example.com")],
        &[("user", "b\n"), ("org", "org-1")],
        &[("address", "203.0.113.9")],
        &[("address", "203.0.113.0/24"), ("org", "org-1")],
        &[("address", "2001:db8:7:8::9")],
        &[("address", "2001:db8:7::/48")],
        &[("address", "192.0.2.1")],
        &[("model", "model-1")],
        &[("model", "best")],
        &[("upstream", "vllm")],
        &[("outcome", "completed")],
        &[("outcome", "refused")],
        &[("outcome", "failed"), ("org", "org-1")],
        &[("outcome", "cancelled"), ("stage", "decode")],
        &[("stage", "hold")],
        &[("stage", "queue"), ("model", "model-2")],
        &[("stage", "moderate")],
        &[("slower_than_ms", "300")],
        &[("slower_than_ms", "1000")],
        &[("slower_than_ms", "4000"), ("outcome", "completed")],
        &[("dearer_than", "0.001")],
        &[("dearer_than", "0.01")],
        &[("dearer_than", "0.028"), ("slower_than_ms", "2000")],
        &[("text", "BALANCE")],
        &[("text", "100%_a")],
        &[("text", "0%a")],
        &[("text", "upstream broke")],
        &[("text", "requests_per_minute"), ("org", "org-3")],
        &[("text", "went away"), ("outcome", "refused")],
        &[("moderation", "any")],
        &[("moderation", "any"), ("outcome", "refused")],
        &[("moderation", "blocked")],
        &[("moderation", "redacted")],
        &[("moderation", "flagged"), ("project", "project-3")],
        &[("moderation", "dry_run")],
        &[("moderation", "no_verdict")],
        &[("content_rule", "pii")],
        &[("content_rule", "none-such")],
        &[("content_rule", "old-rule"), ("moderation", "blocked")],
        &[("content_rule", "threats"), ("moderation", "redacted")],
        &[("content_rule", "threats"), ("moderation", "dry_run"), ("org", "org-1")],
        &[("from", "2026-11-18T11:09:00Z")],
        &[("to", "2026-11-18T11:09:00Z")],
        &[("from", "2026-11-18T11:08:00Z"), ("to", "2026-11-18T11:09:30Z"), ("org", "org-1")],
        &[("from", "2030-01-01")],
    ];
    all.iter().map(|fields| query(fields)).collect()
}

fn query(fields: &[(&str, &str)]) -> CallQuery {
    let mut query = CallQuery::default();
    for (name, value) in fields {
        query.set(name, value, UnixNanos::new(0)).unwrap();
    }
    query
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("traces.sqlite");
    (folder, path)
}

fn store(path: &Path) -> SqliteTraceStore {
    SqliteTraceStore::open(path, TraceRetention { max_records: 1_000_000, max_age: None }).unwrap()
}

/// Reads all pages of an answer in order.
fn pages(reader: &dyn TraceReader, query: &CallQuery, limit: usize) -> Vec<CallPage> {
    let mut pages = Vec::new();
    let mut after = None;
    loop {
        let page = reader.search(query, after, limit).unwrap();
        after = page.next;
        pages.push(page);
        if after.is_none() {
            return pages;
        }
    }
}

fn ids(pages: &[CallPage]) -> Vec<RequestId> {
    pages.iter().flat_map(|page| &page.calls).map(|row| row.id).collect()
}

#[test]
fn memory_and_the_file_find_the_same_calls_in_the_same_order_and_on_the_same_pages() {
    let (_folder, path) = folder();
    let mut all = records(900, 7);
    for job in all.iter_mut().step_by(9) {
        job.worker_job = Some(Box::new(WorkerJob { call: RequestId::from_bits(1) }));
        (job.org, job.project, job.key) = (None, None, KeyId::new(WORKER_JOB_KEY).ok());
    }
    let (mut memory, mut file) = (MemoryTraces::new(), store(&path));
    for batch in all.chunks(250) {
        memory.append(batch).unwrap();
        file.append(batch).unwrap();
    }
    let reader = SqliteTraceReader::open(&path).unwrap();
    let mut found = 0;
    for query in queries() {
        for limit in [1, 7, 100, 500] {
            let pages_of = |reader: &dyn TraceReader| -> Vec<CallPage> {
                if limit == 1 {
                    return vec![reader.search(&query, None, 1).unwrap()];
                }
                pages(reader, &query, limit)
            };
            let (in_memory, in_file) = (pages_of(&memory), pages_of(&reader));
            assert_eq!(in_memory, in_file, "{query:?} by {limit}");
            if limit == 500 {
                let expected: Vec<_> =
                    all.iter().filter(|record| query.matches(&headrace_trace::CallRow::of(record))).collect();
                assert_eq!(ids(&in_file).len(), expected.len(), "{query:?}");
                assert!(
                    in_file.iter().flat_map(|page| &page.calls).is_sorted_by(|a, b| a.started >= b.started)
                );
                found += usize::from(!expected.is_empty());
            }
        }
    }
    assert!(found > 25, "only {found} questions find anything");
    let jobs = |fields: &[(&str, &str)]| {
        let pages = pages(&reader, &query(fields), 500);
        let (all, jobs): (Vec<_>, Vec<_>) = pages
            .iter()
            .flat_map(|page| &page.calls)
            .map(|row| row.job_of.is_some())
            .partition(|is_job| !is_job);
        (all.len(), jobs.len())
    };
    assert_eq!((jobs(&[]), jobs(&[("key", "worker-job")])), ((800, 0), (0, 100)));
    for id in [all[5].request_id, all[300].request_id, RequestId::from_bits(1)] {
        for limit in [3, 100] {
            assert_eq!(memory.beside(id, limit).unwrap(), reader.beside(id, limit).unwrap(), "{id}");
        }
    }
}

/// Added calls do not shift a page, and nothing is shown twice. Removed calls disappear from it, and no others do.
#[test]
fn cursors_stay_right_while_calls_are_added_and_removed() {
    let (_folder, path) = folder();
    let mut all = records(600, 11);
    let later = all.split_off(400);
    let mut file = store(&path);
    file.append(&all).unwrap();
    let reader = SqliteTraceReader::open(&path).unwrap();
    let before = ids(&pages(&reader, &CallQuery::default(), 500));
    let first = reader.search(&CallQuery::default(), None, 50).unwrap();
    let mut seen: Vec<_> = first.calls.iter().map(|row| row.id).collect();
    let mut after = first.next;
    for batch in later.chunks(40) {
        file.append(batch).unwrap();
        let page = reader.search(&CallQuery::default(), after, 50).unwrap();
        seen.extend(page.calls.iter().map(|row| row.id));
        after = page.next;
    }
    while let Some(cursor) = after {
        // Cursors are passed as text.
        let cursor = cursor.to_string().parse().unwrap();
        let page = reader.search(&CallQuery::default(), Some(cursor), 50).unwrap();
        seen.extend(page.calls.iter().map(|row| row.id));
        after = page.next;
    }
    let mut once = seen.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), seen.len(), "nothing is shown twice");
    let old: Vec<_> = seen.iter().filter(|id| before.contains(id)).copied().collect();
    assert_eq!(old, before, "nothing that was there is passed over");
    // The oldest calls are removed. The rest is found as before.
    drop(file);
    let retention = TraceRetention { max_records: 300, max_age: None };
    let mut file = SqliteTraceStore::open(&path, retention).unwrap();
    file.append(&records(1, 99)).unwrap();
    let kept = ids(&pages(&reader, &CallQuery::default(), 500));
    assert_eq!(kept.len(), 300);
    for id in kept {
        assert!(reader.get(id).unwrap().is_some());
    }
}

/// Calls that one query cannot examine are found by the next, which continues where it ended.
#[test]
fn a_question_looks_through_a_bounded_number_of_calls_and_the_next_one_goes_on() {
    let (_folder, path) = folder();
    let mut numbers = Numbers(3);
    let mut file = store(&path);
    let count = 2 * ROWS_PER_QUESTION as u64 + 5_000;
    let mut sample = record(0, &mut numbers);
    sample.outcome = CallOutcome::Completed { finish: Vec::new() };
    sample.org = Some(OrgId::new("acme").unwrap());
    let make = |n: u64| TraceRecord {
        request_id: RequestId::from_bits(n.into()),
        started: UnixNanos::new(n * SECOND),
        model_served: Some(if n == 4_000 { "rare" } else { "usual" }.to_owned()),
        ..sample.clone()
    };
    let all: Vec<_> = (0..count).map(make).collect();
    for batch in all.chunks(1_000) {
        file.append(batch).unwrap();
    }
    let reader = SqliteTraceReader::open(&path).unwrap();
    let both = query(&[("org", "acme"), ("model", "usual"), ("stage", "prefill")]);
    let pages_of = pages(&reader, &both, 10);
    assert_eq!((pages_of.len(), ids(&pages_of).len()), (3, 0));
    let searched_to: Vec<_> = pages_of.iter().map(|page| page.searched_to.map(UnixNanos::seconds)).collect();
    let bound = ROWS_PER_QUESTION as u64;
    assert_eq!(searched_to, [Some(count - bound - 1), Some(count - 2 * bound - 1), None]);
    // For a stage in which few calls stay, the search finds them without examining the others.
    let aside = query(&[("org", "acme"), ("model", "usual"), ("stage", "authorize")]);
    assert_eq!(pages(&reader, &aside, 10), [CallPage::default()]);
    let rare = query(&[("org", "acme"), ("model", "rare")]);
    assert_eq!(ids(&pages(&reader, &rare, 10)), [RequestId::from_bits(4_000)]);
    // With a time range only, every examined row is a result, however old it is.
    let old = query(&[("to", "1970-01-01T00:00:05Z"), ("org", "acme")]);
    let page = reader.search(&old, None, 3).unwrap();
    assert_eq!((page.calls.len(), page.searched_to), (3, None));
}

/// A question for calls ends after as many rows, also where nearly all of them are of worker jobs.
#[test]
fn a_question_for_calls_looks_through_a_bounded_number_of_worker_jobs() {
    let (_folder, path) = folder();
    let mut file = store(&path);
    let sample = record(0, &mut Numbers(3));
    let count = ROWS_PER_QUESTION as u64 + 1_000;
    let make = |n: u64| TraceRecord {
        request_id: RequestId::from_bits(u128::from(n) + 1),
        started: UnixNanos::new(n * SECOND),
        org: None,
        project: None,
        key: KeyId::new(if n == 0 { "key-1" } else { WORKER_JOB_KEY }).ok(),
        worker_job: (n > 0).then(|| Box::new(WorkerJob { call: RequestId::from_bits(1) })),
        ..sample.clone()
    };
    for batch in (0..count).map(make).collect::<Vec<_>>().chunks(1_000) {
        file.append(batch).unwrap();
    }
    let reader = SqliteTraceReader::open(&path).unwrap();
    let found = pages(&reader, &CallQuery::default(), 10);
    let searched_to: Vec<_> = found.iter().map(|page| page.searched_to.map(UnixNanos::seconds)).collect();
    assert_eq!(searched_to, [Some(count - ROWS_PER_QUESTION as u64 - 1), None]);
    assert_eq!(ids(&found), [RequestId::from_bits(1)]);
}

async fn execute(path: &Path, sql: &'static str) -> Vec<String> {
    let mut connection = SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap();
    let rows: Vec<(String,)> = if sql.starts_with("SELECT") {
        sqlx::query_as(sql).fetch_all(&mut connection).await.unwrap()
    } else {
        sqlx::raw_sql(sql).execute(&mut connection).await.unwrap();
        Vec::new()
    };
    connection.close().await.unwrap();
    rows.into_iter().map(|(row,)| row).collect()
}

/// Removes everything that programs without search did not have.
const AS_BEFORE: &str = "DROP TRIGGER call_gone; DROP TABLE call; DROP TABLE unfilled;";

#[tokio::test]
async fn a_file_of_an_older_program_is_indexed_behind_its_back_and_found_whole() {
    let (_folder, path) = folder();
    let all = records(1_400, 5);
    let mut memory = MemoryTraces::new();
    memory.append(&all).unwrap();
    let mut file = store(&path);
    file.append(&all[..1_300]).unwrap();
    drop(file);
    execute(&path, AS_BEFORE).await;
    // Without a writer, the file cannot be searched, and the page reports that.
    let reader = SqliteTraceReader::open(&path).unwrap();
    let page = reader.search(&CallQuery::default(), None, 10).unwrap();
    assert_eq!((page.calls.len(), page.unindexed), (0, 1_300));
    // A server that opens the file indexes it while new calls arrive.
    let mut file = store(&path);
    file.append(&all[1_300..]).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while pages(&reader, &CallQuery::default(), 500).last().unwrap().unindexed > 0 {
        assert!(Instant::now() < deadline, "it is never done");
        std::thread::sleep(Duration::from_millis(5));
    }
    for query in queries() {
        assert_eq!(pages(&memory, &query, 90), pages(&reader, &query, 90), "{query:?}");
    }
    // An older program writes to the file, so it is indexed again.
    drop(file);
    execute(&path, "DELETE FROM call WHERE seq % 7 = 0;").await;
    index(&path).unwrap();
    assert_eq!(ids(&pages(&reader, &CallQuery::default(), 500)).len(), 1_400);
    assert_eq!(execute(&path, "SELECT CAST(traces AS TEXT) FROM unfilled").await, ["0"]);
}

/// The file of the first format that the first program wrote.
#[test]
fn the_first_format_can_be_searched() {
    let (_folder, path) = folder();
    std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/traces-v1.sqlite"), &path).unwrap();
    index(&path).unwrap();
    let reader = SqliteTraceReader::open(&path).unwrap();
    let newest = reader.last(500).unwrap();
    let page = reader.search(&CallQuery::default(), None, 500).unwrap();
    assert!(!newest.is_empty());
    assert_eq!(ids(&[page]), newest.iter().map(|record| record.request_id).collect::<Vec<_>>());
}
