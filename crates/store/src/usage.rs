//! Hourly usage sums, made from the ledger's journal and the traces. The journal says who was charged how much for
//! which model. The traces add the key and the upstream. The file is a projection, which can be deleted and is then
//! rebuilt.
//!
//! Every query first catches up with the journal, so that sums match the ledger at that moment. A call without a stored
//! trace counts under no key, and its trace is searched for again for some time.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headrace_domain::{HoldId, NanoDollars, OrgId, ProjectId, UnixNanos, Usage};
use headrace_ledger::{
    HoldSettled, HoldTaken, JournalError, JournalEvent, JournalHistory, SettleOutcome, Transaction,
    decode_row,
};
use headrace_trace::{Month, MonthStatement, TraceError, UsageQuery, UsageReader, UsageReport, UsageSums};
use sqlx::SqliteConnection;

use self::rows::{JournalStep, LineGroup, SettledCall, UsageGroup};
use crate::sqlite::{CommitDurability, FileFormat, FormatError, SqliteFile};
use crate::trace::integer;

pub(crate) mod forget;
mod report;
mod rows;
mod traced;

/// The file's format.
pub(crate) const FORMAT: FileFormat = FileFormat {
    what: "usage projection",
    application_id: i32::from_be_bytes(*b"HRus"),
    version: 4,
    newest: 4,
    schema: rows::SCHEMA,
    upgrade: "",
    shrinks: false,
};

/// Journal rows that are processed at a time.
const JOURNAL_ROWS_PER_STEP: usize = 256;
/// Ledger time during which the trace of a settled call is searched for.
const TRACE_WAIT_NS: u64 = 600 * 1_000_000_000;
/// Maximum settled calls without a trace that are remembered. Beyond this, the oldest stay without a key.
const WAITING_CALLS: i64 = 50_000;

/// The projection of usage. See the top of the file.
pub struct SqliteUsage {
    path: PathBuf,
    inner: Mutex<UsageInner>,
}

struct UsageInner {
    database: SqliteFile,
    journal: Arc<dyn JournalHistory>,
    traces: PathBuf,
    /// Whether the file has this program's format.
    is_ready: bool,
}

impl SqliteUsage {
    /// Opens the projection of the given journal and traces, and creates it if it is missing. Other processes may write
    /// to all three files at the same time.
    ///
    /// If the disk currently prevents opening or creating the file, the first query opens it.
    ///
    /// # Errors
    /// Fails if the file has another content or comes from a newer program.
    pub fn open(path: &Path, journal: Arc<dyn JournalHistory>, traces: &Path) -> Result<Self, TraceError> {
        let database = SqliteFile::closed(path, CommitDurability::Normal, FORMAT, None);
        let traces = traces.to_owned();
        let mut inner = UsageInner { database, journal, traces, is_ready: false };
        match inner.prepare() {
            Err(error @ FormatError::Sqlite(_)) => {
                tracing::warn!(%error, "usage cannot be kept now; trying again");
            }
            prepared => prepared.map_err(|error| failed("open", path, &error))?,
        }
        Ok(Self { path: path.to_owned(), inner: Mutex::new(inner) })
    }

    fn lock(&self) -> MutexGuard<'_, UsageInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, error: UsageError) -> TraceError {
        match error {
            UsageError::Traces(error) => error,
            UsageError::Journal(why) => {
                TraceError::Store { doing: "cannot read the journal".to_owned(), why }
            }
            UsageError::File(error) => failed("use", &self.path, &error),
        }
    }
}

impl UsageReader for SqliteUsage {
    fn usage(&self, query: &UsageQuery) -> Result<UsageReport, TraceError> {
        let mut inner = self.lock();
        inner.catch_up().map_err(|error| self.failed(error))?;
        let read = inner.database.read(async |open| Ok::<_, FormatError>(report::report(open, query).await?));
        report::bounded(query, read.map_err(|error| failed("read", &self.path, &error))?)
    }

    fn statement(&self, project: &ProjectId, month: Month) -> Result<Option<MonthStatement>, TraceError> {
        let mut inner = self.lock();
        inner.catch_up().map_err(|error| self.failed(error))?;
        let read = async |open: &mut SqliteConnection| {
            Ok::<_, FormatError>(report::statement(open, project, month).await?)
        };
        inner.database.read(read).map_err(|error| failed("read", &self.path, &error))
    }

    fn catch_up(&self) -> Result<(), TraceError> {
        self.lock().catch_up().map_err(|error| self.failed(error))
    }
}

impl UsageInner {
    /// Upgrades the file to this program's format, once.
    fn prepare(&mut self) -> Result<(), FormatError> {
        if !self.is_ready {
            self.database.write(rows::bring_up_to_date)?;
            self.is_ready = true;
        }
        Ok(())
    }

    fn catch_up(&mut self) -> Result<(), UsageError> {
        self.prepare()?;
        while self.step()? {}
        self.find_traces()?;
        self.count_refusals()
    }

    /// Processes some rows of the journal. Returns whether there may be more.
    fn step(&mut self) -> Result<bool, UsageError> {
        let from = self.database.read(async |open| Ok::<_, FormatError>(rows::journal_row(open).await?))?;
        let page = self.journal.rows_after(from, JOURNAL_ROWS_PER_STEP)?;
        let Some(last) = page.last().map(|row| row.sequence) else { return Ok(false) };
        let mut transactions = Vec::new();
        for row in &page {
            transactions.extend(decode_row(row)?);
        }
        let mut step = JournalStep::default();
        let ended = transactions.iter().filter_map(hold_of).collect::<Vec<_>>();
        let known =
            async |open: &mut SqliteConnection| Ok::<_, FormatError>(rows::open_holds(open, &ended).await?);
        let known = self.database.read(known)?;
        for transaction in transactions {
            step.take(transaction, &known);
        }
        let traced = traced::look_up(&self.traces, step.settled.iter().map(|call| call.hold))?;
        let mut waiting = Vec::new();
        for mut call in std::mem::take(&mut step.settled) {
            match traced.get(&call.hold) {
                Some(trace) => trace.complete(&mut call.group, &mut call.sums),
                None => waiting.push((call.hold, call.time, call.group.clone(), call.sums)),
            }
            step.add(call.group, &call.sums);
        }
        self.database.write(async |open| {
            // Another process may have processed these rows in the meantime.
            if rows::journal_row(open).await? == from {
                rows::add(open, &step, &waiting).await?;
                rows::reached(open, last, step.time).await?;
            }
            Ok::<_, FormatError>(())
        })?;
        Ok(true)
    }

    /// Searches again for the traces of calls that had none.
    fn find_traces(&mut self) -> Result<(), UsageError> {
        let waiting = self.database.read(async |open| Ok::<_, FormatError>(rows::waiting(open).await?))?;
        let traced = traced::look_up(&self.traces, waiting.iter().map(|(hold, ..)| *hold))?;
        if waiting.is_empty() {
            return Ok(());
        }
        self.database.write(async |open| {
            for (hold, group, sums) in &waiting {
                let Some(trace) = traced.get(hold) else { continue };
                // Another process may have found the trace in the meantime.
                if rows::no_longer_waits(open, *hold).await? {
                    let (mut moved, mut to) = (*sums, group.clone());
                    trace.complete(&mut to, &mut moved);
                    rows::move_sums(open, (group, sums), (&to, &moved)).await?;
                }
            }
            rows::give_up(open, TRACE_WAIT_NS, WAITING_CALLS).await?;
            Ok::<_, FormatError>(())
        })?;
        Ok(())
    }

    /// Counts refused calls, as far as they were traced.
    fn count_refusals(&mut self) -> Result<(), UsageError> {
        loop {
            let from = self.database.read(async |open| Ok::<_, FormatError>(rows::trace_row(open).await?))?;
            let (last, refused) = traced::refusals_after(&self.traces, from)?;
            if last <= from {
                return Ok(());
            }
            self.database.write(async |open| {
                if rows::trace_row(open).await? == from {
                    let step = JournalStep { hours: refused, ..JournalStep::default() };
                    rows::add(open, &step, &[]).await?;
                    rows::reached_trace(open, last).await?;
                }
                Ok::<_, FormatError>(())
            })?;
        }
    }
}

impl JournalStep {
    fn add(&mut self, group: UsageGroup, sums: &UsageSums) {
        let entry = self.hours.entry(group).or_default();
        *entry = entry.plus(sums);
    }

    fn take(&mut self, transaction: Transaction, known: &HashMap<HoldId, (OrgId, ProjectId)>) {
        let Transaction { time, event, .. } = transaction;
        self.time = time.get();
        match event {
            JournalEvent::Held(HoldTaken { hold, org, project, .. }) => {
                self.opened.insert(hold, (org, project));
            }
            JournalEvent::Settled(settled) => {
                let Some((org, project)) = self.close(settled.hold, known) else { return };
                self.settle(time, (org, project), &settled);
            }
            JournalEvent::Released { hold, .. } => {
                let Some((org, project)) = self.close(hold, known) else { return };
                let group = UsageGroup::new(time, org.as_str(), project.as_str(), "");
                self.add(group, &UsageSums { released: 1, ..UsageSums::default() });
            }
            JournalEvent::Refunded(refund) => {
                let month = integer(Month::of(time).start().get());
                let sum = self.refunds.entry((month, refund.project)).or_default();
                *sum = sum.saturating_add(refund.amount.get());
            }
            JournalEvent::ProjectOpened { org, project } => self.projects.push((project, org)),
            JournalEvent::Granted { .. }
            | JournalEvent::BudgetSet { .. }
            | JournalEvent::Extended { .. }
            | JournalEvent::BudgetRuleSet { .. }
            | JournalEvent::BudgetRuleRemoved { .. }
            | JournalEvent::BudgetRaised { .. }
            | JournalEvent::AlertRaised(_)
            | JournalEvent::LotMade(_)
            | JournalEvent::LotEnded { .. }
            | JournalEvent::DebtPaid { .. }
            | JournalEvent::LowBalanceSet { .. }
            | JournalEvent::FreeTierSet { .. }
            | JournalEvent::FreeTierRemoved { .. }
            | JournalEvent::ClockSet { .. } => {}
        }
    }

    /// Closes a hold and returns its organisation and project.
    fn close(
        &mut self,
        hold: HoldId,
        known: &HashMap<HoldId, (OrgId, ProjectId)>,
    ) -> Option<(OrgId, ProjectId)> {
        self.opened.remove(&hold).or_else(|| {
            self.closed.push(hold);
            known.get(&hold).cloned()
        })
    }

    fn settle(&mut self, time: UnixNanos, (org, project): (OrgId, ProjectId), settled: &HoldSettled) {
        if ends_claim_only(settled) {
            return;
        }
        let mut tokens = Usage::default();
        for line in &settled.lines {
            tokens = tokens.plus(&rows::of_class(line.class, line.tokens));
            let group = LineGroup::new(time, project.as_str(), line);
            let sum = self.lines.entry(group).or_default();
            sum.0 = sum.0.saturating_add(line.tokens);
            sum.1 = sum.1.saturating_add(line.amount.get());
        }
        let is = |outcome| u64::from(settled.outcome == outcome);
        let sums = UsageSums {
            calls: 1,
            completed: is(SettleOutcome::Completed),
            cancelled: is(SettleOutcome::Cancelled),
            failed: is(SettleOutcome::Failed),
            tokens,
            charged: settled.charged,
            loss: settled.loss,
            ..UsageSums::default()
        };
        // A call has one model, the same in all of its lines.
        let model = settled.lines.first().map_or("", |line| line.model.as_str());
        let group = UsageGroup::new(time, org.as_str(), project.as_str(), model);
        self.settled.push(SettledCall { hold: settled.hold, time: time.get(), group, sums });
    }
}

/// Whether the hold only claimed an idempotency key, for a request that is no call. A call has prompt tokens, and so a line.
fn ends_claim_only(settled: &HoldSettled) -> bool {
    let HoldSettled { lines, loss, outcome, .. } = settled;
    lines.is_empty() && *loss == NanoDollars::ZERO && *outcome == SettleOutcome::Completed
}

/// The hold that a transaction ends.
fn hold_of(transaction: &Transaction) -> Option<HoldId> {
    match &transaction.event {
        JournalEvent::Settled(settled) => Some(settled.hold),
        JournalEvent::Released { hold, .. } => Some(*hold),
        _ => None,
    }
}

/// Errors of the three files.
enum UsageError {
    File(FormatError),
    Journal(String),
    Traces(TraceError),
}

impl From<FormatError> for UsageError {
    fn from(error: FormatError) -> Self {
        Self::File(error)
    }
}

impl From<JournalError> for UsageError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error.to_string())
    }
}

impl From<TraceError> for UsageError {
    fn from(error: TraceError) -> Self {
        Self::Traces(error)
    }
}

fn failed(doing: &str, path: &Path, error: &FormatError) -> TraceError {
    TraceError::Store { doing: format!("cannot {doing} {}", path.display()), why: error.to_string() }
}
