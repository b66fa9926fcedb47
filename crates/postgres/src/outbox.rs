//! Events that wait for delivery, as tables that all gateways share. A gateway that delivers has a lease on the row, after
//! which another one takes over. Times are the database's. Must not know what an event says.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headrace_domain::UnixNanos;
use headrace_ledger::{
    DeliveryOutcome, DeliveryRecord, DeliveryState, DueDelivery, EventOutbox, OutboxError, OutboxEvent,
};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Row};

use crate::schema;
use crate::session::{DatabaseSession, locked};
use crate::url::PostgresUrl;
use crate::values::{integer, nanos};

/// How long a statement may take.
const LIMIT: Duration = Duration::from_secs(4);
/// How long it may take to read or write a whole outbox.
const COPY_LIMIT: Duration = Duration::from_secs(600);
/// Rows that one statement of a copy writes.
const PAGE_ROWS: usize = 1_000;
/// Tables beside the versioned ones, so that older programs, which do not know them, work with the database.
const TABLES: &str = "
CREATE TABLE IF NOT EXISTS headrace.webhook_position (
    id      int    PRIMARY KEY CHECK (id = 0),
    journal bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS headrace.webhook_event (
    id   text   PRIMARY KEY,
    kind text   NOT NULL,
    at   bigint NOT NULL,
    body text   NOT NULL
);
CREATE INDEX IF NOT EXISTS webhook_event_at ON headrace.webhook_event (at);
CREATE TABLE IF NOT EXISTS headrace.webhook_delivery (
    event    text   NOT NULL REFERENCES headrace.webhook_event (id) ON DELETE CASCADE,
    endpoint text   NOT NULL,
    state    text   NOT NULL,
    tries    int    NOT NULL,
    -- When a try is due, or the lease of the one in progress ends.
    next     bigint NOT NULL,
    tried    bigint,
    result   text,
    PRIMARY KEY (event, endpoint)
);
CREATE INDEX IF NOT EXISTS webhook_due ON headrace.webhook_delivery (next) WHERE state = 'pending';
CREATE TABLE IF NOT EXISTS headrace.webhook_gone (endpoint text PRIMARY KEY, at bigint NOT NULL);
";
/// Serializes programs that make the tables at the same time.
const LOCK: &str = "BEGIN; SELECT pg_advisory_xact_lock(1213363048)";
const BEGIN: &str = "BEGIN; SET LOCAL lock_timeout = '2s'; SET LOCAL synchronous_commit = 'on'";
/// The database's time in nanoseconds since 1970.
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000";
const COLUMNS: &str = "event.id, event.kind, event.at, event.body, delivery.endpoint, delivery.tries";

const NEWEST: &str = "SELECT id, kind, at, endpoint, state, tries, next, tried, result \
    FROM headrace.webhook_delivery JOIN headrace.webhook_event ON event = id \
    ORDER BY at DESC, id, endpoint LIMIT $1";
const CLEAR: &str = "DELETE FROM headrace.webhook_delivery; DELETE FROM headrace.webhook_event; \
    DELETE FROM headrace.webhook_gone; DELETE FROM headrace.webhook_position";
const PUT_EVENTS: &str = "INSERT INTO headrace.webhook_event (id, kind, at, body) \
    SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[])";
const PUT_DELIVERIES: &str = "INSERT INTO headrace.webhook_delivery \
    (event, endpoint, state, tries, next, tried, result) \
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::bigint[], $6::bigint[], $7::text[])";

/// What an outbox has, to copy it to another store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutboxContents {
    /// The last row of the journal whose events were taken in. `None` if the outbox was never used.
    pub position: Option<u64>,
    /// The events.
    pub events: Vec<OutboxEvent>,
    /// The deliveries. Each one's event is in `events`.
    pub deliveries: Vec<DeliveryRecord>,
    /// The endpoints that want no more events, with the time at which they said so.
    pub gone: Vec<(String, UnixNanos)>,
}

/// The outbox of a database, on a connection of its own.
#[derive(Debug)]
pub struct PostgresOutbox {
    state: Mutex<OutboxState>,
}

#[derive(Debug)]
struct OutboxState {
    session: DatabaseSession,
    /// Whether the tables were found.
    is_ready: bool,
}

impl PostgresOutbox {
    /// Names the database. No connection is opened yet.
    pub fn new(url: Arc<PostgresUrl>) -> Self {
        Self { state: Mutex::new(OutboxState { session: DatabaseSession::new(url), is_ready: false }) }
    }

    /// Returns what the outbox has. Gateways may use it meanwhile: events that are taken in later may be missing, and the
    /// rows of the journal after the position have them.
    ///
    /// # Errors
    /// Returns an error if the database cannot be reached.
    pub fn contents(&self) -> Result<OutboxContents, OutboxError> {
        self.run_within(COPY_LIMIT, async |client| {
            let position = client.query_typed("SELECT journal FROM headrace.webhook_position", &[]).await?;
            let deliveries = client.query_typed(NEWEST, &[(&i64::MAX, Type::INT8)]).await?;
            let gone = client.query_typed("SELECT endpoint, at FROM headrace.webhook_gone", &[]).await?;
            let events = "SELECT id, kind, at, body FROM headrace.webhook_event ORDER BY id";
            let events: Vec<OutboxEvent> =
                client.query_typed(events, &[]).await?.iter().map(stored_event).collect();
            // An event that was removed between the statements takes its deliveries along.
            let known: BTreeSet<&str> = events.iter().map(|event| event.id.as_str()).collect();
            let mut deliveries: Vec<DeliveryRecord> = deliveries.iter().map(stored_delivery).collect();
            deliveries.retain(|delivery| known.contains(delivery.event.as_str()));
            Ok(OutboxContents {
                position: position.first().map(|row| row.get::<_, i64>(0).unsigned_abs()),
                events,
                deliveries,
                gone: gone.iter().map(|row| (row.get(0), nanos(row.get(1)))).collect(),
            })
        })
    }

    /// Stores contents in place of the ones that the outbox has: all or nothing.
    ///
    /// # Errors
    /// Returns an error if the database cannot be reached.
    pub fn restore(&self, contents: &OutboxContents) -> Result<(), OutboxError> {
        self.run_within(COPY_LIMIT, async |client| {
            client.batch_execute(CLEAR).await?;
            for events in contents.events.chunks(PAGE_ROWS) {
                put_events(client, events).await?;
            }
            for deliveries in contents.deliveries.chunks(PAGE_ROWS) {
                put_deliveries(client, deliveries).await?;
            }
            for (endpoint, at) in &contents.gone {
                let put = "INSERT INTO headrace.webhook_gone VALUES ($1, $2)";
                let at = integer(at.get());
                let values = [(endpoint as _, Type::TEXT), (&at as _, Type::INT8)];
                client.execute_typed(put, &values).await?;
            }
            if let Some(position) = contents.position {
                let put = "INSERT INTO headrace.webhook_position VALUES (0, $1)";
                client.execute_typed(put, &[(&integer(position), Type::INT8)]).await?;
            }
            Ok(())
        })
    }

    /// Runs statements as one transaction.
    fn run<T: Send>(
        &self,
        statements: impl AsyncFnOnce(&Client) -> Result<T, Error> + Send,
    ) -> Result<T, OutboxError> {
        self.run_within(LIMIT, statements)
    }

    /// Runs statements as one transaction, within `limit`.
    fn run_within<T: Send>(
        &self,
        limit: Duration,
        statements: impl AsyncFnOnce(&Client) -> Result<T, Error> + Send,
    ) -> Result<T, OutboxError> {
        let mut state = locked(&self.state);
        let OutboxState { session, is_ready } = &mut *state;
        if !*is_ready {
            schema::ensure(session).map_err(|error| OutboxError(error.to_string()))?;
            let made = session.run(LIMIT, async |client| {
                client.batch_execute(LOCK).await?;
                client.batch_execute(TABLES).await?;
                client.batch_execute("COMMIT").await
            });
            if let Err(fault) = made {
                session.close();
                return Err(OutboxError(fault.why()));
            }
            *is_ready = true;
        }
        let done = session.run(limit, async |client| {
            client.batch_execute(BEGIN).await?;
            let done = statements(client).await?;
            client.batch_execute("COMMIT").await?;
            Ok(done)
        });
        done.map_err(|fault| {
            // Ends a transaction that failed.
            session.close();
            OutboxError(fault.why())
        })
    }
}

async fn put_events(client: &Client, events: &[OutboxEvent]) -> Result<(), Error> {
    let ids: Vec<&str> = events.iter().map(|event| event.id.as_str()).collect();
    let kinds: Vec<&str> = events.iter().map(|event| event.kind.as_str()).collect();
    let times: Vec<i64> = events.iter().map(|event| integer(event.at.get())).collect();
    let bodies: Vec<&str> = events.iter().map(|event| event.body.as_str()).collect();
    let values = [
        (&ids as _, Type::TEXT_ARRAY),
        (&kinds as _, Type::TEXT_ARRAY),
        (&times as _, Type::INT8_ARRAY),
        (&bodies as _, Type::TEXT_ARRAY),
    ];
    client.execute_typed(PUT_EVENTS, &values).await.map(drop)
}

async fn put_deliveries(client: &Client, deliveries: &[DeliveryRecord]) -> Result<(), Error> {
    let events: Vec<&str> = deliveries.iter().map(|record| record.event.as_str()).collect();
    let endpoints: Vec<&str> = deliveries.iter().map(|record| record.endpoint.as_str()).collect();
    let states: Vec<&str> = deliveries.iter().map(|record| record.state.name()).collect();
    let tries: Vec<i32> =
        deliveries.iter().map(|record| i32::try_from(record.tries).unwrap_or(i32::MAX)).collect();
    let next = |record: &DeliveryRecord| integer(record.next.map_or(0, UnixNanos::get));
    let next: Vec<i64> = deliveries.iter().map(next).collect();
    let last = |record: &DeliveryRecord| record.last.as_ref().map(|(at, _)| integer(at.get()));
    let tried: Vec<Option<i64>> = deliveries.iter().map(last).collect();
    let results: Vec<Option<&str>> =
        deliveries.iter().map(|record| record.last.as_ref().map(|(_, result)| result.as_str())).collect();
    let values = [
        (&events as _, Type::TEXT_ARRAY),
        (&endpoints as _, Type::TEXT_ARRAY),
        (&states as _, Type::TEXT_ARRAY),
        (&tries as _, Type::INT4_ARRAY),
        (&next as _, Type::INT8_ARRAY),
        (&tried as _, Type::INT8_ARRAY),
        (&results as _, Type::TEXT_ARRAY),
    ];
    client.execute_typed(PUT_DELIVERIES, &values).await.map(drop)
}

/// The event of a row: its id, kind, time and body, in this order.
fn stored_event(row: &Row) -> OutboxEvent {
    OutboxEvent { id: row.get(0), kind: row.get(1), at: nanos(row.get(2)), body: row.get(3) }
}

/// The delivery of a row of [`NEWEST`].
fn stored_delivery(row: &Row) -> DeliveryRecord {
    let state: &str = row.get(4);
    let state = DeliveryState::ALL.into_iter().find(|known| known.name() == state);
    let state = state.unwrap_or(DeliveryState::Failed);
    let (tried, result): (Option<i64>, Option<String>) = (row.get(7), row.get(8));
    DeliveryRecord {
        event: row.get(0),
        kind: row.get(1),
        at: nanos(row.get(2)),
        endpoint: row.get(3),
        state,
        tries: row.get::<_, i32>(5).unsigned_abs(),
        last: tried.map(nanos).zip(result),
        next: (state == DeliveryState::Pending).then(|| nanos(row.get(6))),
    }
}

impl EventOutbox for PostgresOutbox {
    fn position(&self, start: u64) -> Result<u64, OutboxError> {
        let start = integer(start);
        self.run(async |client| {
            let put = "INSERT INTO headrace.webhook_position VALUES (0, $1) ON CONFLICT DO NOTHING";
            client.execute_typed(put, &[(&start, Type::INT8)]).await?;
            let row = client.query_typed_one("SELECT journal FROM headrace.webhook_position", &[]).await?;
            Ok(row.get::<_, i64>(0).unsigned_abs())
        })
    }

    fn take_in(
        &self,
        from: u64,
        to: u64,
        events: &[OutboxEvent],
        endpoints: &[String],
    ) -> Result<(), OutboxError> {
        let (from, to) = (integer(from), integer(to));
        self.run(async |client| {
            let moved = "UPDATE headrace.webhook_position SET journal = $2 WHERE journal = $1";
            if client.execute_typed(moved, &[(&from, Type::INT8), (&to, Type::INT8)]).await? == 0 {
                return Ok(());
            }
            for OutboxEvent { id, kind, at, body } in events {
                let at = integer(at.get());
                let put = "INSERT INTO headrace.webhook_event VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";
                let values = [
                    (id as _, Type::TEXT),
                    (kind as _, Type::TEXT),
                    (&at as _, Type::INT8),
                    (body as _, Type::TEXT),
                ];
                client.execute_typed(put, &values).await?;
                let put = "INSERT INTO headrace.webhook_delivery (event, endpoint, state, tries, next) \
                           SELECT $1, endpoint, 'pending', 0, 0 FROM unnest($2::text[]) AS endpoint \
                           ON CONFLICT DO NOTHING";
                let values = [(id as _, Type::TEXT), (&endpoints as _, Type::TEXT_ARRAY)];
                client.execute_typed(put, &values).await?;
            }
            Ok(())
        })
    }

    fn claim(
        &self,
        endpoints: &[String],
        _now: UnixNanos,
        lease: Duration,
        limit: u32,
    ) -> Result<Vec<DueDelivery>, OutboxError> {
        let claim = format!(
            "WITH due AS (SELECT event, endpoint FROM headrace.webhook_delivery \
                 WHERE state = 'pending' AND next <= {NOW} AND endpoint = ANY($1) \
                 AND endpoint NOT IN (SELECT endpoint FROM headrace.webhook_gone) \
                 ORDER BY next, event LIMIT $2 FOR UPDATE SKIP LOCKED) \
             UPDATE headrace.webhook_delivery AS delivery SET next = {NOW} + $3 \
             FROM due JOIN headrace.webhook_event AS event ON event.id = due.event \
             WHERE delivery.event = due.event AND delivery.endpoint = due.endpoint RETURNING {COLUMNS}"
        );
        let (limit, lease) = (i64::from(limit), integer(u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX)));
        self.run(async |client| {
            let values =
                [(&endpoints as _, Type::TEXT_ARRAY), (&limit as _, Type::INT8), (&lease as _, Type::INT8)];
            let rows = client.query_typed(&claim, &values).await?;
            let due = |row: &Row| DueDelivery {
                event: stored_event(row),
                endpoint: row.get(4),
                tries: row.get::<_, i32>(5).unsigned_abs(),
            };
            Ok(rows.iter().map(due).collect())
        })
    }

    fn record(
        &self,
        delivery: &DueDelivery,
        now: UnixNanos,
        result: &str,
        outcome: DeliveryOutcome,
    ) -> Result<(), OutboxError> {
        // Waiting times count by the database's clock.
        let (state, wait) = match outcome {
            DeliveryOutcome::Delivered => (DeliveryState::Delivered, 0),
            DeliveryOutcome::Retry(next) => (DeliveryState::Pending, next.get().saturating_sub(now.get())),
            DeliveryOutcome::Failed => (DeliveryState::Failed, 0),
            DeliveryOutcome::EndpointGone => (DeliveryState::Pending, 0),
        };
        let (state, wait) = (state.name(), integer(wait));
        self.run(async |client| {
            if outcome == DeliveryOutcome::EndpointGone {
                let gone =
                    format!("INSERT INTO headrace.webhook_gone VALUES ($1, {NOW}) ON CONFLICT DO NOTHING");
                client.execute_typed(&gone, &[(&delivery.endpoint, Type::TEXT)]).await?;
            }
            let set = format!(
                "UPDATE headrace.webhook_delivery SET state = $3, tries = tries + 1, next = {NOW} + $4, \
                 tried = {NOW}, result = $5 WHERE event = $1 AND endpoint = $2 AND state = 'pending'"
            );
            let values = [
                (&delivery.event.id as _, Type::TEXT),
                (&delivery.endpoint as _, Type::TEXT),
                (&state as _, Type::TEXT),
                (&wait as _, Type::INT8),
                (&result as _, Type::TEXT),
            ];
            client.execute_typed(&set, &values).await.map(drop)
        })
    }

    fn deliveries(&self, limit: u32) -> Result<Vec<DeliveryRecord>, OutboxError> {
        let limit = i64::from(limit);
        self.run(async |client| {
            let rows = client.query_typed(NEWEST, &[(&limit, Type::INT8)]).await?;
            Ok(rows.iter().map(stored_delivery).collect())
        })
    }

    fn gone(&self) -> Result<Vec<(String, UnixNanos)>, OutboxError> {
        self.run(async |client| {
            let all = "SELECT endpoint, at FROM headrace.webhook_gone ORDER BY endpoint";
            let rows = client.query_typed(all, &[]).await?;
            Ok(rows.iter().map(|row| (row.get(0), nanos(row.get(1)))).collect())
        })
    }

    fn resume(&self, endpoint: &str) -> Result<(), OutboxError> {
        self.run(async |client| {
            let resume = "DELETE FROM headrace.webhook_gone WHERE endpoint = $1";
            client.execute_typed(resume, &[(&endpoint, Type::TEXT)]).await.map(drop)
        })
    }

    fn sweep(&self, before: UnixNanos) -> Result<(), OutboxError> {
        let before = integer(before.get());
        self.run(async |client| {
            let old = "DELETE FROM headrace.webhook_event WHERE at < $1";
            client.execute_typed(old, &[(&before, Type::INT8)]).await.map(drop)
        })
    }
}
