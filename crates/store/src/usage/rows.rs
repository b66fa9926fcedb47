//! The tables of the projection: hourly sums, statement lines by month, open holds, and settled calls whose traces are
//! still searched for. Knows neither journals nor traces.

use std::collections::HashMap;

use headrace_domain::{HoldId, NanoDollars, OrgId, ProjectId, TokenClass, UnixNanos, Usage};
use headrace_ledger::ChargeLine;
use headrace_trace::{HOUR_NS, Month, UsageSums};
use sqlx::QueryBuilder;
use sqlx::Row;
use sqlx::sqlite::{Sqlite, SqliteConnection, SqliteRow};

use crate::sqlite::FormatError;
use crate::trace::integer;

/// The table of hourly sums. An empty name means none, or unknown.
macro_rules! hours {
    () => {
        "
    CREATE TABLE hours (
        hour INTEGER NOT NULL,  -- since 1970
        org TEXT NOT NULL,
        project TEXT NOT NULL,
        key TEXT NOT NULL,
        model TEXT NOT NULL,
        upstream TEXT NOT NULL,
        user TEXT NOT NULL,
        tag TEXT NOT NULL,
        calls INTEGER NOT NULL,
        completed INTEGER NOT NULL,
        cancelled INTEGER NOT NULL,
        failed INTEGER NOT NULL,
        released INTEGER NOT NULL,
        refused INTEGER NOT NULL,
        input INTEGER NOT NULL, -- tokens, as all classes
        cached_input INTEGER NOT NULL,
        cache_write INTEGER NOT NULL,
        cache_write_1h INTEGER NOT NULL,
        output INTEGER NOT NULL,
        reasoning INTEGER NOT NULL,
        charged INTEGER NOT NULL, -- nano-dollars, as all amounts
        loss INTEGER NOT NULL,
        paid INTEGER NOT NULL,
        paid_calls INTEGER NOT NULL,
        paid_charged INTEGER NOT NULL,
        PRIMARY KEY (hour, org, project, key, model, upstream, user, tag)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX hours_project ON hours (project, hour, user);
    CREATE INDEX hours_tag ON hours (project, hour, tag);
"
    };
}

/// The table of refunds by month.
macro_rules! refunds {
    () => {
        "
    CREATE TABLE refunds (
        month INTEGER NOT NULL, -- its first moment, in nanoseconds since 1970
        project TEXT NOT NULL,
        amount INTEGER NOT NULL,
        PRIMARY KEY (project, month)
    ) STRICT, WITHOUT ROWID;
"
    };
}

pub(super) const SCHEMA: &str = concat!(
    hours!(),
    "
    CREATE TABLE lines (
        month INTEGER NOT NULL, -- its first moment, in nanoseconds since 1970
        project TEXT NOT NULL,
        model TEXT NOT NULL,
        class TEXT NOT NULL,
        price INTEGER NOT NULL, -- nano-dollars for a million tokens
        tokens INTEGER NOT NULL,
        amount INTEGER NOT NULL,
        PRIMARY KEY (project, month, model, class, price)
    ) STRICT, WITHOUT ROWID;
",
    refunds!(),
    "
    CREATE TABLE projects (project TEXT PRIMARY KEY, org TEXT NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE open (hold BLOB PRIMARY KEY, org TEXT NOT NULL, project TEXT NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE waiting (
        hold BLOB PRIMARY KEY,
        time INTEGER NOT NULL,
        hour INTEGER NOT NULL, org TEXT NOT NULL, project TEXT NOT NULL, model TEXT NOT NULL,
        calls INTEGER NOT NULL, completed INTEGER NOT NULL, cancelled INTEGER NOT NULL, failed INTEGER NOT NULL,
        released INTEGER NOT NULL, refused INTEGER NOT NULL,
        input INTEGER NOT NULL, cached_input INTEGER NOT NULL, cache_write INTEGER NOT NULL,
        cache_write_1h INTEGER NOT NULL, output INTEGER NOT NULL, reasoning INTEGER NOT NULL,
        charged INTEGER NOT NULL, loss INTEGER NOT NULL, paid INTEGER NOT NULL, paid_calls INTEGER NOT NULL,
        paid_charged INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX waiting_time ON waiting (time);
    CREATE TABLE reached (journal INTEGER NOT NULL, time INTEGER NOT NULL, trace INTEGER NOT NULL) STRICT;
    INSERT INTO reached VALUES (0, 0, 0);
"
);

/// Upgrades a file of version 1, which had no users.
const WITH_USERS: &str = concat!(
    "DROP INDEX hours_project; ALTER TABLE hours RENAME TO hours_1;",
    hours!(),
    "
    INSERT INTO hours SELECT hour, org, project, key, model, upstream, '', '', calls, completed, cancelled, failed, released, refused,
        input, cached_input, cache_write, cache_write_1h, output, reasoning, charged, loss, paid, paid_calls, paid_charged
        FROM hours_1;
    DROP TABLE hours_1;
    PRAGMA user_version = 3;
"
);

/// Upgrades a file of version 2, which had no tags.
const WITH_TAGS: &str = concat!(
    "DROP INDEX hours_project; ALTER TABLE hours RENAME TO hours_2;",
    hours!(),
    "
    INSERT INTO hours SELECT hour, org, project, key, model, upstream, user, '', calls, completed, cancelled, failed, released, refused,
        input, cached_input, cache_write, cache_write_1h, output, reasoning, charged, loss, paid, paid_calls, paid_charged
        FROM hours_2;
    DROP TABLE hours_2;
    PRAGMA user_version = 3;
"
);

/// Upgrades a file of version 3, which had no refunds. A program that knew none wrote none.
const WITH_REFUNDS: &str = concat!(refunds!(), "PRAGMA user_version = 4;");

/// Upgrades a file of an older program.
pub(super) async fn bring_up_to_date(open: &mut SqliteConnection) -> Result<(), FormatError> {
    let (found,): (i32,) = sqlx::query_as("PRAGMA user_version").fetch_one(&mut *open).await?;
    let upgrade = match found {
        ..2 => Some(WITH_USERS),
        2 => Some(WITH_TAGS),
        _ => None,
    };
    if let Some(upgrade) = upgrade {
        sqlx::raw_sql(upgrade).execute(&mut *open).await?;
    }
    if found < 4 {
        sqlx::raw_sql(WITH_REFUNDS).execute(open).await?;
    }
    Ok(())
}

/// Maximum users, and maximum tags, that are counted separately per project and hour.
const NAMES_AN_HOUR: i64 = 1_000;
/// The name under which further users or tags are counted.
const OTHER_NAMES: &str = "(others)";

/// The group under which sums are counted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct UsageGroup {
    pub(super) hour: i64,
    pub(super) org: String,
    pub(super) project: String,
    pub(super) key: String,
    pub(super) model: String,
    pub(super) upstream: String,
    pub(super) user: String,
    pub(super) tag: String,
}

impl UsageGroup {
    /// A group without a known key, upstream, user and tag.
    pub(super) fn new(time: UnixNanos, org: &str, project: &str, model: &str) -> Self {
        let (org, project, model) = (org.to_owned(), project.to_owned(), model.to_owned());
        let unknown = String::new;
        let (key, upstream, user, tag) = (unknown(), unknown(), unknown(), unknown());
        Self { hour: hour(time), org, project, key, model, upstream, user, tag }
    }
}

/// The group under which statement lines are counted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct LineGroup {
    month: i64,
    project: String,
    model: String,
    class: TokenClass,
    price: i64,
}

impl LineGroup {
    pub(super) fn new(time: UnixNanos, project: &str, line: &ChargeLine) -> Self {
        let month = integer(Month::of(time).start().get());
        let (project, model) = (project.to_owned(), line.model.to_string());
        Self { month, project, model, class: line.class, price: line.price.get() }
    }
}

/// The changes of one step through the journal.
#[derive(Default)]
pub(super) struct JournalStep {
    pub(super) hours: HashMap<UsageGroup, UsageSums>,
    pub(super) lines: HashMap<LineGroup, (u64, i64)>,
    /// Refunds by the month in which they were made, and by project.
    pub(super) refunds: HashMap<(i64, ProjectId), i64>,
    pub(super) opened: HashMap<HoldId, (OrgId, ProjectId)>,
    pub(super) closed: Vec<HoldId>,
    pub(super) settled: Vec<SettledCall>,
    /// Ledger time at the end of the step.
    pub(super) time: u64,
    pub(super) projects: Vec<(ProjectId, OrgId)>,
}

/// A settled call.
pub(super) struct SettledCall {
    pub(super) hold: HoldId,
    pub(super) time: u64,
    pub(super) group: UsageGroup,
    pub(super) sums: UsageSums,
}

/// The columns of the sums, in the order of [`numbers`].
pub(super) const SUMS: &str = "calls, completed, cancelled, failed, released, refused, input, cached_input, cache_write, \
    cache_write_1h, output, reasoning, charged, loss, paid, paid_calls, paid_charged";

/// The sums as column values.
fn numbers(sums: &UsageSums) -> [i64; 17] {
    // Web searches are not tokens. Only statement lines count them.
    let Usage { input, cached_input, cache_write, cache_write_1h, output, reasoning, web_searches: _ } =
        sums.tokens;
    [
        integer(sums.calls),
        integer(sums.completed),
        integer(sums.cancelled),
        integer(sums.failed),
        integer(sums.released),
        integer(sums.refused),
        integer(input),
        integer(cached_input),
        integer(cache_write),
        integer(cache_write_1h),
        integer(output),
        integer(reasoning),
        sums.charged.get(),
        sums.loss.get(),
        sums.paid.get(),
        integer(sums.paid_calls),
        sums.paid_charged.get(),
    ]
}

/// Reads the sums of a row.
pub(super) fn sums_of(row: &SqliteRow) -> Result<UsageSums, sqlx::Error> {
    let count = |name: &str| -> Result<u64, sqlx::Error> {
        let count: i64 = row.try_get(name)?;
        Ok(u64::try_from(count).unwrap_or(0))
    };
    let amount = |name: &str| -> Result<_, sqlx::Error> { Ok(money(row.try_get(name)?)) };
    Ok(UsageSums {
        calls: count("calls")?,
        completed: count("completed")?,
        cancelled: count("cancelled")?,
        failed: count("failed")?,
        released: count("released")?,
        refused: count("refused")?,
        tokens: Usage {
            input: count("input")?,
            cached_input: count("cached_input")?,
            cache_write: count("cache_write")?,
            cache_write_1h: count("cache_write_1h")?,
            output: count("output")?,
            reasoning: count("reasoning")?,
            web_searches: 0,
        },
        charged: amount("charged")?,
        loss: amount("loss")?,
        paid: amount("paid")?,
        paid_calls: count("paid_calls")?,
        paid_charged: amount("paid_charged")?,
    })
}

/// Usage of `tokens` tokens in one class.
pub(super) fn of_class(class: TokenClass, tokens: u64) -> Usage {
    let none = Usage::default();
    match class {
        TokenClass::Input => Usage { input: tokens, ..none },
        TokenClass::CachedInput => Usage { cached_input: tokens, ..none },
        TokenClass::CacheWrite => Usage { cache_write: tokens, ..none },
        TokenClass::CacheWrite1h => Usage { cache_write_1h: tokens, ..none },
        TokenClass::Output => Usage { output: tokens, ..none },
        TokenClass::Reasoning => Usage { reasoning: tokens, ..none },
        TokenClass::WebSearch => none,
    }
}

/// The last row of the journal that is in the sums.
pub(super) async fn journal_row(open: &mut SqliteConnection) -> Result<u64, sqlx::Error> {
    let (row,): (i64,) = sqlx::query_as("SELECT journal FROM reached").fetch_one(open).await?;
    Ok(u64::try_from(row).unwrap_or(0))
}

/// Ledger time at the last row in the sums.
pub(super) async fn ledger_time(open: &mut SqliteConnection) -> Result<UnixNanos, sqlx::Error> {
    let (time,): (i64,) = sqlx::query_as("SELECT time FROM reached").fetch_one(open).await?;
    Ok(UnixNanos::new(u64::try_from(time).unwrap_or(0)))
}

/// The last trace whose refusal is in the sums.
pub(super) async fn trace_row(open: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    let (row,): (i64,) = sqlx::query_as("SELECT trace FROM reached").fetch_one(open).await?;
    Ok(row)
}

pub(super) async fn reached(open: &mut SqliteConnection, row: u64, time: u64) -> Result<(), sqlx::Error> {
    let query = sqlx::query("UPDATE reached SET journal = ?, time = ?");
    query.bind(integer(row)).bind(integer(time)).execute(open).await.map(|_| ())
}

pub(super) async fn reached_trace(open: &mut SqliteConnection, row: i64) -> Result<(), sqlx::Error> {
    sqlx::query("UPDATE reached SET trace = ?").bind(row).execute(open).await.map(|_| ())
}

/// Returns those of the given holds that are open, with their organisation and project.
pub(super) async fn open_holds(
    open: &mut SqliteConnection,
    holds: &[HoldId],
) -> Result<HashMap<HoldId, (OrgId, ProjectId)>, sqlx::Error> {
    let mut found = HashMap::new();
    for hold in holds {
        let query = sqlx::query_as("SELECT org, project FROM open WHERE hold = ?").bind(bytes(*hold));
        let row: Option<(String, String)> = query.fetch_optional(&mut *open).await?;
        if let Some((org, project)) = row
            && let (Ok(org), Ok(project)) = (OrgId::new(&org), ProjectId::new(&project))
        {
            found.insert(*hold, (org, project));
        }
    }
    Ok(found)
}

/// Writes the changes of a step, and the calls whose traces are still to be found.
pub(super) async fn add(
    open: &mut SqliteConnection,
    step: &JournalStep,
    waiting: &[(HoldId, u64, UsageGroup, UsageSums)],
) -> Result<(), sqlx::Error> {
    for (project, org) in &step.projects {
        let query = sqlx::query("INSERT OR REPLACE INTO projects VALUES (?, ?)");
        query.bind(project.as_str()).bind(org.as_str()).execute(&mut *open).await?;
    }
    for hold in &step.closed {
        sqlx::query("DELETE FROM open WHERE hold = ?").bind(bytes(*hold)).execute(&mut *open).await?;
    }
    for (hold, (org, project)) in &step.opened {
        let query = sqlx::query("INSERT OR REPLACE INTO open VALUES (?, ?, ?)").bind(bytes(*hold));
        query.bind(org.as_str()).bind(project.as_str()).execute(&mut *open).await?;
    }
    for (group, sums) in &step.hours {
        add_sums(open, group, &numbers(sums)).await?;
    }
    for (group, (tokens, amount)) in &step.lines {
        let query = "INSERT INTO lines VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET \
                     tokens = tokens + excluded.tokens, amount = amount + excluded.amount";
        sqlx::query(query)
            .bind(group.month)
            .bind(group.project.as_str())
            .bind(group.model.as_str())
            .bind(group.class.name())
            .bind(group.price)
            .bind(integer(*tokens))
            .bind(*amount)
            .execute(&mut *open)
            .await?;
    }
    for ((month, project), amount) in &step.refunds {
        let query = "INSERT INTO refunds VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET amount = amount + excluded.amount";
        let query = sqlx::query(query).bind(*month).bind(project.as_str()).bind(*amount);
        query.execute(&mut *open).await?;
    }
    for (hold, time, group, sums) in waiting {
        let mut query = QueryBuilder::<Sqlite>::new("INSERT OR REPLACE INTO waiting VALUES (");
        let mut values = query.separated(", ");
        values.push_bind(bytes(*hold)).push_bind(integer(*time)).push_bind(group.hour);
        values
            .push_bind(group.org.as_str())
            .push_bind(group.project.as_str())
            .push_bind(group.model.as_str());
        for number in numbers(sums) {
            values.push_bind(number);
        }
        query.push(")").build().execute(&mut *open).await?;
    }
    Ok(())
}

/// The column of a name. A project may have too many of these names.
#[derive(Debug, Clone, Copy)]
enum NameColumn {
    User,
    Tag,
}

/// The user or tag under which a group is counted: its own, unless its project has too many in that hour.
async fn counted_as<'a>(
    open: &mut SqliteConnection,
    group: &'a UsageGroup,
    column: NameColumn,
) -> Result<&'a str, sqlx::Error> {
    let (name, known, count) = match column {
        NameColumn::User => (
            &group.user,
            "SELECT EXISTS (SELECT * FROM hours WHERE project = ? AND hour = ? AND user = ?)",
            "SELECT count(DISTINCT user) FROM hours WHERE project = ? AND hour = ? AND user NOT IN ('', ?)",
        ),
        NameColumn::Tag => (
            &group.tag,
            "SELECT EXISTS (SELECT * FROM hours WHERE project = ? AND hour = ? AND tag = ?)",
            "SELECT count(DISTINCT tag) FROM hours WHERE project = ? AND hour = ? AND tag NOT IN ('', ?)",
        ),
    };
    if name.is_empty() {
        return Ok("");
    }
    let known = sqlx::query_as(known).bind(group.project.as_str()).bind(group.hour).bind(name.as_str());
    let (known,): (bool,) = known.fetch_one(&mut *open).await?;
    if known {
        return Ok(name);
    }
    let count = sqlx::query_as(count).bind(group.project.as_str()).bind(group.hour).bind(OTHER_NAMES);
    let (count,): (i64,) = count.fetch_one(open).await?;
    Ok(if count < NAMES_AN_HOUR { name } else { OTHER_NAMES })
}

async fn add_sums(
    open: &mut SqliteConnection,
    group: &UsageGroup,
    numbers: &[i64; 17],
) -> Result<(), sqlx::Error> {
    let user = counted_as(open, group, NameColumn::User).await?;
    let tag = counted_as(open, group, NameColumn::Tag).await?;
    let mut query = QueryBuilder::<Sqlite>::new("INSERT INTO hours VALUES (");
    let mut values = query.separated(", ");
    values.push_bind(group.hour);
    for name in [&group.org, &group.project, &group.key, &group.model, &group.upstream] {
        values.push_bind(name.as_str());
    }
    values.push_bind(user);
    values.push_bind(tag);
    for number in numbers {
        values.push_bind(*number);
    }
    query.push(") ON CONFLICT DO UPDATE SET ");
    let mut changes = query.separated(", ");
    for name in SUMS.split(", ") {
        changes.push(format!("{name} = {name} + excluded.{name}"));
    }
    query.build().execute(open).await.map(|_| ())
}

/// The calls whose traces are still to be found.
pub(super) async fn waiting(
    open: &mut SqliteConnection,
) -> Result<Vec<(HoldId, UsageGroup, UsageSums)>, sqlx::Error> {
    let rows = sqlx::query("SELECT * FROM waiting ORDER BY time").fetch_all(open).await?;
    let read = |row: &SqliteRow| {
        let (hold, hour, org, project, model): (Vec<u8>, i64, String, String, String) = (
            row.try_get("hold")?,
            row.try_get("hour")?,
            row.try_get("org")?,
            row.try_get("project")?,
            row.try_get("model")?,
        );
        let (key, upstream, user, tag) = (String::new(), String::new(), String::new(), String::new());
        let group = UsageGroup { hour, org, project, key, model, upstream, user, tag };
        Ok((hold_of(&hold), group, sums_of(row)?))
    };
    rows.iter().map(read).collect()
}

/// Removes a call from the waiting ones. Returns whether it was waiting.
pub(super) async fn no_longer_waits(open: &mut SqliteConnection, hold: HoldId) -> Result<bool, sqlx::Error> {
    let done = sqlx::query("DELETE FROM waiting WHERE hold = ?").bind(bytes(hold)).execute(open).await?;
    Ok(done.rows_affected() > 0)
}

/// Moves sums from one group to another, completed by the trace.
pub(super) async fn move_sums(
    open: &mut SqliteConnection,
    (from, sums): (&UsageGroup, &UsageSums),
    (to, completed): (&UsageGroup, &UsageSums),
) -> Result<(), sqlx::Error> {
    add_sums(open, from, &numbers(sums).map(i64::wrapping_neg)).await?;
    add_sums(open, to, &numbers(completed)).await?;
    let empty = "DELETE FROM hours WHERE hour = ? AND org = ? AND project = ? AND key = '' AND model = ? AND upstream = '' \
                 AND user = '' AND tag = '' AND calls = 0 AND released = 0 AND refused = 0";
    let query = sqlx::query(empty).bind(from.hour).bind(from.org.as_str());
    query.bind(from.project.as_str()).bind(from.model.as_str()).execute(open).await.map(|_| ())
}

/// Stops searching for traces of calls that were settled more than `wait_ns` ago, and of the oldest calls beyond
/// `most`.
pub(super) async fn give_up(open: &mut SqliteConnection, wait_ns: u64, most: i64) -> Result<(), sqlx::Error> {
    let late = "DELETE FROM waiting WHERE time < (SELECT time FROM reached) - ?";
    sqlx::query(late).bind(integer(wait_ns)).execute(&mut *open).await?;
    let many =
        "DELETE FROM waiting WHERE hold IN (SELECT hold FROM waiting ORDER BY time DESC LIMIT -1 OFFSET ?)";
    sqlx::query(many).bind(most).execute(&mut *open).await.map(|_| ())
}

/// An id as stored in the files.
pub(super) fn bytes(hold: HoldId) -> Vec<u8> {
    hold.bits().to_be_bytes().to_vec()
}

pub(super) fn hold_of(bytes: &[u8]) -> HoldId {
    HoldId::from_bits(bytes.try_into().map_or(0, u128::from_be_bytes))
}

/// A row of a statement: model, class, price, tokens, amount.
pub(super) type LineRow = (String, String, i64, i64, i64);

/// The hour of a time, counted from 1970.
pub(super) fn hour(time: UnixNanos) -> i64 {
    i64::try_from(time.get() / HOUR_NS).unwrap_or(i64::MAX)
}

/// Converts a sum to an amount of money.
pub(super) fn money(nanos: i64) -> NanoDollars {
    NanoDollars::new(nanos)
}
