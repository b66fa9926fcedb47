//! Usage and statements, made from a real ledger's journal and real traces. They must match the ledger's own sums to
//! the nano-dollar.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use headrace_domain::{
    CallLabels, CallOutcome, EndUser, KeyId, ModelName, NanoDollars, NanoDollarsPerMillion, OrgId, ProjectId,
    RequestId, Rounding, Stage, TokenClass, TraceRecord, TracedRefusal, UnixNanos,
};
use headrace_ledger::{
    ChargeLine, GrantKind, JournalEvent, Ledger, LedgerOperation, Owner, ReleaseReason, SettleOutcome,
    decode_row,
};
use headrace_store::journal::{SqliteJournal, SqliteJournalHistory, load_file};
use headrace_store::trace::{SqliteTraceStore, TraceRetention};
use headrace_store::usage::SqliteUsage;
use headrace_trace::{Month, TraceStore, UsageBy, UsageInterval, UsageQuery, UsageReader, decode_record};
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};

const SECOND: u64 = 1_000_000_000;
/// 2026-11-30T20:00:00Z: the month changes during the test.
const START: u64 = 1_796_068_800;

/// Pseudorandom numbers with a fixed sequence.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

struct World {
    _folder: tempfile::TempDir,
    dir: PathBuf,
    ledger: Ledger,
    traces: SqliteTraceStore,
    numbers: Numbers,
    calls: u64,
}

fn project(n: u64) -> ProjectId {
    ProjectId::new(&format!("project-{n}")).unwrap()
}

/// Each organisation has two projects.
fn org(n: u64) -> OrgId {
    OrgId::new(&format!("org-{}", n / 2)).unwrap()
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().to_owned();
        let journal = SqliteJournal::open(&dir.join("ledger.sqlite")).unwrap();
        let (ledger, _) =
            Ledger::open(Box::new(journal), Owner::new(1), UnixNanos::new(START * SECOND)).unwrap();
        let retention = TraceRetention { max_records: 100_000, max_age: None };
        let traces = SqliteTraceStore::open(&dir.join("traces.sqlite"), retention).unwrap();
        let mut world = Self { _folder: folder, dir, ledger, traces, numbers: Numbers(5), calls: 0 };
        for n in 0..4 {
            world.commit(vec![LedgerOperation::OpenProject { org: org(n), project: project(n) }], START);
            world.commit(
                vec![LedgerOperation::Grant {
                    org: org(n),
                    amount: NanoDollars::new(1_000_000_000_000),
                    kind: GrantKind::Paid,
                    reference: format!("{n}"),
                }],
                START,
            );
        }
        world
    }

    fn commit(&mut self, commands: Vec<LedgerOperation>, second: u64) {
        let done = self.ledger.transact(commands, UnixNanos::new(second * SECOND));
        assert!(done.verdicts.into_iter().all(|verdict| verdict.into_result().is_ok()));
        done.durable.wait().unwrap();
    }

    fn usage(&self) -> SqliteUsage {
        let at = |name: &str| self.dir.join(name);
        {
            let journal = Arc::new(SqliteJournalHistory::new(&at("ledger.sqlite")));
            SqliteUsage::open(&at("usage.sqlite"), journal, &at("traces.sqlite")).unwrap()
        }
    }

    /// Makes a call with a hold, and settles it some time later in one of the possible ways. Returns its trace, if it
    /// leaves one.
    fn call(&mut self, second: u64) -> Option<TraceRecord> {
        self.calls += 1;
        let id = RequestId::from_bits(u128::from(self.calls) << 64 | u128::from(self.numbers.below(1 << 30)));
        let n = self.numbers.below(4);
        let model =
            ModelName::new(["small", "large", "has,comma\"and quote"][self.numbers.below(3) as usize])
                .unwrap();
        let amount = NanoDollars::new(50_000);
        self.commit(
            vec![LedgerOperation::Hold {
                hold: id.hold(),
                org: org(n),
                project: project(n),
                amount,
                owner: Owner::new(1),
                expires: UnixNanos::new((second + 90_000) * SECOND),
                demand: None,
                idempotency: None,
            }],
            second,
        );
        let later = second + self.numbers.below(3);
        let how = self.numbers.below(10);
        if how == 0 {
            self.commit(
                vec![LedgerOperation::Release { hold: id.hold(), why: ReleaseReason::Refused }],
                later,
            );
            return Some(trace(id, n, second, &model, None, true));
        }
        let classes =
            [TokenClass::Input, TokenClass::CachedInput, TokenClass::Output, TokenClass::CacheWrite1h];
        let lines: Vec<ChargeLine> = classes
            .into_iter()
            .enumerate()
            .filter(|(at, _)| how > 1 && (*at < 3 || how == 9))
            .map(|(at, class)| {
                // Two prices: the second applies from December on.
                let price = NanoDollarsPerMillion::new(if later < START + 14_400 {
                    150_000_001
                } else {
                    170_000_003
                })
                .unwrap();
                let tokens = self.numbers.below(200) + at as u64;
                let amount = price.cost(tokens, Rounding::Nearest).unwrap();
                ChargeLine { model: model.clone(), class, tokens, price, amount }
            })
            .collect();
        let outcome = [SettleOutcome::Completed, SettleOutcome::Cancelled, SettleOutcome::Failed]
            [self.numbers.below(3) as usize];
        let loss = NanoDollars::new(i64::try_from(self.numbers.below(900)).unwrap());
        self.commit(
            vec![LedgerOperation::Settle { hold: id.hold(), lines, loss, outcome, answer: None }],
            later,
        );
        let paid = (how.is_multiple_of(2))
            .then(|| NanoDollars::new(i64::try_from(self.numbers.below(20_000)).unwrap()));
        (self.numbers.below(8) > 0).then(|| trace(id, n, second, &model, paid, false))
    }
}

fn trace(
    id: RequestId,
    n: u64,
    second: u64,
    model: &ModelName,
    paid: Option<NanoDollars>,
    refused: bool,
) -> TraceRecord {
    let mut record = decode_record(include_str!("../../trace/tests/data/completed.json")).unwrap();
    record.request_id = id;
    record.started = UnixNanos::new(second * SECOND);
    (record.org, record.project) = (Some(org(n)), Some(project(n)));
    record.key = Some(KeyId::new(&format!("key-{}", n % 3)).unwrap());
    record.model_served = Some(model.to_string());
    record.upstream = paid.map(|_| "vllm".into());
    record.user = EndUser::named(["", "eva@example.com", "b"][(second % 3) as usize]);
    record.paid = paid;
    if refused {
        record.outcome = CallOutcome::Refused(TracedRefusal {
            stage: Stage::Place,
            rule: "queue_full".to_owned(),
            status: 503,
            code: "queue_full".to_owned(),
            message: "full".to_owned(),
        });
    }
    record
}

/// The journal's own sums, added up separately: charges by project and day, all charges, and all losses.
fn by_the_journal(path: &Path) -> (BTreeMap<(String, u64), i64>, i64, i64) {
    let (mut whose, mut days, mut charged, mut lost) = (BTreeMap::new(), BTreeMap::new(), 0, 0);
    for row in load_file(path).unwrap().rows {
        for transaction in decode_row(&row).unwrap() {
            match transaction.event {
                JournalEvent::Held(held) => {
                    whose.insert(held.hold, held.project.to_string());
                }
                JournalEvent::Settled(settled) => {
                    let day = transaction.time.seconds() / 86_400;
                    *days.entry((whose[&settled.hold].clone(), day)).or_insert(0) += settled.charged.get();
                    charged += settled.charged.get();
                    lost += settled.loss.get();
                }
                _ => {}
            }
        }
    }
    (days, charged, lost)
}

fn query(fields: &[(&str, &str)]) -> UsageQuery {
    let mut query = UsageQuery::default();
    for (name, value) in fields {
        query.set(name, value, UnixNanos::new(0)).unwrap();
    }
    query
}

#[test]
fn usage_sums_to_the_ledger_whatever_it_is_told_apart_by_and_whenever_it_is_looked_at() {
    let mut world = World::new();
    let usage = world.usage();
    let mut late = Vec::new();
    for n in 0..400_u64 {
        // Some traces come late, and some never. Queries in between see the same charges.
        let trace = world.call(START + n * 97);
        late.extend(trace);
        if n % 3 == 0 {
            world.traces.append(&late).unwrap();
            late.clear();
        }
        if n % 50 == 7 {
            usage.catch_up().unwrap();
        }
    }
    world.traces.append(&late).unwrap();
    let totals = world.ledger.totals();
    let (days, charged, lost) = by_the_journal(&world.dir.join("ledger.sqlite"));
    assert_eq!(totals.revenue.get(), charged + lost);
    let intervals = ["hour", "day", "month"];
    for by in
        ["", "org", "project", "key", "model", "upstream", "user", "org,project,key,model,upstream,user"]
    {
        for interval in intervals {
            let report = usage.usage(&query(&[("by", by), ("interval", interval)])).unwrap();
            let total = report.total();
            assert_eq!((total.charged.get(), total.loss.get()), (charged, lost), "{by} {interval}");
            assert_eq!((total.calls, total.released), (totals.settled, totals.released), "{by} {interval}");
            assert_eq!(total.completed + total.cancelled + total.failed, total.calls);
            assert!(
                total.refused > 10 && total.refused == total.released,
                "those that were traced as refused"
            );
            assert!(report.rows.is_sorted_by_key(|row| row.start));
        }
    }
    let by_day = usage.usage(&query(&[("by", "project"), ("interval", "day")])).unwrap();
    let found: BTreeMap<(String, u64), i64> = by_day
        .rows
        .iter()
        .map(|row| {
            ((row.of[0].clone().unwrap(), row.start.unwrap().seconds() / 86_400), row.sums.charged.get())
        })
        .collect();
    assert_eq!(found, days);
    // The last hour of a key is the last one with a call or a refusal of that key.
    let by_hour = usage.usage(&query(&[("by", "key"), ("interval", "hour")])).unwrap();
    let mut last = BTreeMap::new();
    for row in by_hour.rows.iter().filter(|row| row.sums.calls > 0 || row.sums.refused > 0) {
        assert_eq!(row.last_hour, row.start);
        last.insert(row.of[0].clone(), row.start);
    }
    let by_key = usage.usage(&query(&[("by", "key")])).unwrap();
    assert!(by_key.rows.len() > 2);
    for row in &by_key.rows {
        assert_eq!(row.last_hour, last.get(&row.of[0]).copied().flatten(), "{:?}", row.of);
    }
    // Rebuilt from the files, the projection is the same except for keys whose traces are gone. Here all traces exist.
    drop(usage);
    let all = query(&[("by", "org,project,key,model,upstream,user"), ("interval", "hour")]);
    let before = world.usage().usage(&all).unwrap();
    std::fs::remove_file(world.dir.join("usage.sqlite")).unwrap();
    assert_eq!(world.usage().usage(&all).unwrap(), before);
}

#[test]
fn keys_and_what_upstreams_charge_come_from_the_traces_and_the_rest_stands_under_no_key() {
    let mut world = World::new();
    let usage = world.usage();
    let (mut by_key, mut paid, mut untraced) = (BTreeMap::new(), 0, 0);
    for n in 0..120_u64 {
        let settled = world.ledger.totals().settled;
        let trace = world.call(START + n);
        if world.ledger.totals().settled == settled {
            continue;
        }
        match trace {
            Some(trace) => {
                *by_key.entry(trace.key.as_ref().map(ToString::to_string)).or_insert(0) += 1;
                paid += trace.paid.map_or(0, NanoDollars::get);
                // Queried between the settlement and the arrival of its trace.
                usage.catch_up().unwrap();
                world.traces.append(&[trace]).unwrap();
            }
            None => untraced += 1,
        }
    }
    by_key.insert(None, untraced);
    let report = usage.usage(&UsageQuery { by: vec![UsageBy::Key], ..UsageQuery::default() }).unwrap();
    let found: BTreeMap<_, _> = report.rows.iter().map(|row| (row.of[0].clone(), row.sums.calls)).collect();
    assert_eq!(found, by_key);
    assert_eq!(report.total().paid.get(), paid);
    let total = report.total();
    assert_eq!(total.margin().get(), total.paid_charged.get() - paid);
    let upstreams = usage.usage(&query(&[("by", "upstream")])).unwrap();
    let vllm = upstreams.rows.iter().find(|row| row.of[0].as_deref() == Some("vllm")).unwrap();
    assert_eq!((vllm.sums.paid.get(), vllm.sums.paid_calls > 10), (paid, true));
}

#[test]
fn of_very_many_users_in_an_hour_of_a_project_the_first_are_told_apart() {
    const USERS_LISTED: usize = 1_000;
    let mut world = World::new();
    let usage = world.usage();
    let model = ModelName::new("small").unwrap();
    // Two refusals each. The second ones arrive after the first are counted.
    for round in 0..2_u64 {
        let refused = |user: u64| {
            let id = RequestId::from_bits(u128::from(round) << 64 | u128::from(user));
            let user = EndUser::named(&format!("user {user:04}"));
            TraceRecord { user, ..trace(id, 0, START, &model, None, true) }
        };
        world.traces.append(&(0..1_100).map(refused).collect::<Vec<_>>()).unwrap();
        usage.catch_up().unwrap();
    }
    // Another project has its own thousand users.
    let id = RequestId::from_bits(u128::from(u64::MAX));
    let user = EndUser::named("user 1099");
    world.traces.append(&[TraceRecord { user, ..trace(id, 1, START, &model, None, true) }]).unwrap();
    let report = usage.usage(&query(&[("project", "project-0"), ("by", "user")])).unwrap();
    let named: BTreeMap<_, _> = report.rows.iter().map(|row| (row.of[0].clone(), row.sums.refused)).collect();
    let told = |user: &str| named.get(&Some(user.to_owned())).copied();
    assert_eq!((named.len(), told("(others)")), (USERS_LISTED + 1, Some(200)));
    let apart = named.values().filter(|refused| **refused == 2).count();
    assert_eq!((apart, report.total().refused), (USERS_LISTED, 2_200));
    let other = usage.usage(&query(&[("project", "project-1"), ("by", "user")])).unwrap();
    assert_eq!(other.rows[0].of, [Some("user 1099".to_owned())]);
}

#[test]
fn a_file_that_knew_no_users_keeps_its_sums() {
    let mut world = World::new();
    for n in 0..60_u64 {
        let trace = world.call(START + n * 97);
        world.traces.append(&trace.into_iter().collect::<Vec<_>>()).unwrap();
    }
    let all = query(&[("by", "org,project,key,model,upstream"), ("interval", "hour")]);
    let before = world.usage().usage(&all).unwrap();
    // The table as in the first version.
    let path = world.dir.join("usage.sqlite");
    let columns = "hour, org, project, key, model, upstream, sum(calls) AS calls, sum(completed) AS completed, \
                   sum(cancelled) AS cancelled, sum(failed) AS failed, sum(released) AS released, sum(refused) AS refused, \
                   sum(input) AS input, sum(cached_input) AS cached_input, sum(cache_write) AS cache_write, \
                   sum(cache_write_1h) AS cache_write_1h, sum(output) AS output, sum(reasoning) AS reasoning, \
                   sum(charged) AS charged, sum(loss) AS loss, sum(paid) AS paid, sum(paid_calls) AS paid_calls, \
                   sum(paid_charged) AS paid_charged";
    let first = format!(
        "CREATE TABLE first AS SELECT {columns} FROM hours GROUP BY 1, 2, 3, 4, 5, 6; DROP TABLE hours; \
         ALTER TABLE first RENAME TO hours; CREATE INDEX hours_project ON hours (project, hour); \
         DROP TABLE refunds; PRAGMA user_version = 1;"
    );
    edit(&path, &first);
    for _ in 0..2 {
        assert_eq!(world.usage().usage(&all).unwrap(), before);
    }
    let by_user = world.usage().usage(&query(&[("by", "user")])).unwrap();
    assert_eq!(by_user.rows.iter().map(|row| row.of[0].as_deref()).collect::<Vec<_>>(), [None]);
    let trace = std::iter::from_fn(|| Some(world.call(START + 9_001))).flatten().next().unwrap();
    world.traces.append(&[trace]).unwrap();
    let after = world.usage().usage(&query(&[("by", "user")])).unwrap();
    assert_eq!(after.rows.len(), 2, "{after:?}");
}

#[test]
fn a_file_that_knew_no_tags_keeps_its_sums_by_user() {
    let mut world = World::new();
    for n in 0..60_u64 {
        let trace = world.call(START + n * 97);
        world.traces.append(&trace.into_iter().collect::<Vec<_>>()).unwrap();
    }
    let all = query(&[("by", "org,project,key,model,upstream,user"), ("interval", "hour")]);
    let before = world.usage().usage(&all).unwrap();
    // The table as in the second version.
    let path = world.dir.join("usage.sqlite");
    let second = "CREATE TABLE second AS SELECT hour, org, project, key, model, upstream, user, calls, completed, cancelled, \
                  failed, released, refused, input, cached_input, cache_write, cache_write_1h, output, reasoning, charged, \
                  loss, paid, paid_calls, paid_charged FROM hours; DROP TABLE hours; \
                  ALTER TABLE second RENAME TO hours; CREATE INDEX hours_project ON hours (project, hour); \
                  DROP TABLE refunds; PRAGMA user_version = 2;";
    edit(&path, second);
    for _ in 0..2 {
        assert_eq!(world.usage().usage(&all).unwrap(), before);
    }
    let by_tag = world.usage().usage(&query(&[("by", "tag")])).unwrap();
    assert_eq!(by_tag.rows.iter().map(|row| row.of[0].as_deref()).collect::<Vec<_>>(), [None]);
    let mut trace = std::iter::from_fn(|| Some(world.call(START + 9_001))).flatten().next().unwrap();
    trace.labels = CallLabels::of([("tag", "checkout")]).map(Box::new);
    world.traces.append(&[trace]).unwrap();
    let by_tag = world.usage().usage(&query(&[("by", "tag")])).unwrap();
    let tags: Vec<_> = by_tag.rows.iter().map(|row| (row.of[0].as_deref(), row.sums.calls)).collect();
    assert!(tags.contains(&(Some("checkout"), 1)), "{tags:?}");
    assert_eq!(by_tag.total().charged, world.usage().usage(&all).unwrap().total().charged);
}

#[test]
fn a_statement_is_what_the_ledger_charged_a_project_in_a_month() {
    let mut world = World::new();
    for n in 0..300_u64 {
        world.call(START + n * 130);
    }
    let usage = world.usage();
    let (days, ..) = by_the_journal(&world.dir.join("ledger.sqlite"));
    for name in (0..4).map(project) {
        let mut both = 0;
        for (month, closed) in [("2026-11", true), ("2026-12", false)] {
            let month: Month = month.parse().unwrap();
            let statement = usage.statement(&name, month).unwrap().unwrap();
            let within =
                |day: &u64| (month.start().seconds()..month.end().seconds()).contains(&(day * 86_400));
            let expected: i64 = days
                .iter()
                .filter(|((of, day), _)| *of == name.to_string() && within(day))
                .map(|(_, sum)| sum)
                .sum();
            assert!(expected > 0);
            assert_eq!((statement.sums.charged.get(), statement.is_closed), (expected, closed));
            let lines: i64 = statement.lines.iter().map(|line| line.amount.get()).sum();
            assert_eq!(lines + statement.not_charged().get(), expected);
            assert_eq!(statement.days.iter().map(|(_, sum)| sum.get()).sum::<i64>(), expected);
            let json = statement.json();
            assert_eq!(json["total"]["nano_dollars"], expected.to_string());
            let csv = statement.csv();
            let total = csv.lines().find(|line| line.contains(",total,")).unwrap();
            assert!(csv.contains("\"has,comma\"\"and quote\""), "{csv}");
            assert!(total.starts_with(&format!("{name},{month},total,,,,0.")), "{total}");
            assert!(statement.text().contains(&NanoDollars::new(expected).to_string()));
            both += expected;
        }
        let all = usage.usage(&query(&[("project", name.as_str())])).unwrap().total().charged;
        assert_eq!(all.get(), both);
    }
    assert_eq!(
        usage.statement(&ProjectId::new("nobody").unwrap(), "2026-11".parse().unwrap()).unwrap(),
        None
    );
    let month = UsageQuery { interval: Some(UsageInterval::Month), ..UsageQuery::default() };
    let starts: Vec<_> =
        usage.usage(&month).unwrap().rows.iter().map(|row| row.start.unwrap().seconds()).collect();
    assert_eq!(starts, ["2026-11", "2026-12"].map(|text| text.parse::<Month>().unwrap().start().seconds()));
}

/// Changes a file in a way that this project's programs never do.
fn edit(path: &Path, sql: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut connection =
            SqliteConnection::connect(&format!("sqlite://{}", path.display())).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    });
}
