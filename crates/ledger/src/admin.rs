//! The ledger as operators use it: totals, holds, balances, decisions that they wait for, and its journal. Knows neither
//! where the ledger is kept nor who asks.

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{HoldId, NanoDollars, OrgId, ProjectId, UnixNanos};

use crate::budget_rule::{AlertRaised, BudgetReport};
use crate::command::{LedgerOperation, Owner};
use crate::free_tier::FreeTierReport;
use crate::journal::{JournalError, JournalRow, LedgerError};
use crate::lot::{HoldFunding, LotReport};
use crate::record::decode_row;
use crate::refund::{RefundMade, RefundableCharge};
use crate::service::{BatchResult, JournalHealth, Ledger};
use crate::standing::{LedgerTotals, SpendableBalance};
use crate::transaction::{HoldTaken, JournalEvent, Transaction};
use crate::verify::VerifyReport;

/// The number of rows that a search reads at a time.
const PAGE_ROWS: usize = 256;
/// The time by which a gateway's clock may be ahead of the ledger's, when the rows of a hold are searched for.
const CLOCK_DIFFERENCE_NS: u64 = 600 * 1_000_000_000;

/// The ledger for operators. Calls may block on a disk or a network, except [`LedgerAdmin::health`].
pub trait LedgerAdmin: Send + Sync {
    /// Decides a batch at `now`, each command on the outcome of the earlier ones. Either all of the batch is written or
    /// nothing.
    fn transact(&self, batch: Vec<LedgerOperation>, now: UnixNanos) -> BatchResult;

    /// Returns the totals over the whole ledger.
    fn totals(&self) -> LedgerTotals;

    /// Returns all open holds, oldest id first.
    fn open_holds(&self) -> Vec<HoldTaken>;

    /// Returns all projects with their organisations, sorted by both names.
    fn projects(&self) -> Vec<(OrgId, ProjectId)>;

    /// Returns the amounts that an organisation and a project can spend at `now`. `None` if the organisation has no such
    /// project.
    fn standing_at(&self, org: &OrgId, project: &ProjectId, now: UnixNanos) -> Option<SpendableBalance>;

    /// Returns all budget rules with the counters of their current windows at `now`, by name.
    fn budgets(&self, now: UnixNanos) -> Vec<BudgetReport>;

    /// Returns the newest alerts with the times at which they were raised, oldest first, at most 1,000.
    fn alerts(&self) -> Vec<(UnixNanos, AlertRaised)>;

    /// Returns the lots that have not ended at `now`, of an organisation or of all, in the order in which they were made.
    fn lots(&self, org: Option<&OrgId>, now: UnixNanos) -> Vec<LotReport>;

    /// Returns all free tiers with the counters of their current windows at `now`, by name.
    fn free_tiers(&self, now: UnixNanos) -> Vec<FreeTierReport>;

    /// Returns the refund of an organisation with this reference.
    fn refund_by_reference(&self, org: &OrgId, reference: &str) -> Option<RefundMade>;

    /// Returns the time of the newest transaction.
    fn time(&self) -> UnixNanos;

    /// Returns the health of the ledger, as it is known in this process.
    fn health(&self) -> JournalHealth;

    /// Returns the name under which this process takes holds now, if others may declare it dead. `None` otherwise.
    fn owner(&self) -> Option<Owner> {
        None
    }

    /// Returns the ledger's journal, to read beside its writer.
    fn history(&self) -> &dyn JournalHistory;

    /// Checks every invariant of the ledger from its first row. The server may be running.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be read. Faults in its content are in the report.
    fn verify(&self) -> Result<VerifyReport, JournalError> {
        self.history().verify()
    }

    /// Writes everything that is pending and refuses commands from now on. Other handles of the ledger refuse, too.
    ///
    /// # Errors
    /// Returns an error if pending changes could not be written.
    fn close(&self) -> Result<(), LedgerError>;
}

/// Reads a journal beside its writer, or without one.
pub trait JournalHistory: Send + Sync {
    /// Returns whether a transaction after row `after` passes `is_it`.
    ///
    /// # Errors
    /// Returns an error if the journal or one of its rows cannot be read.
    fn has_after(&self, after: u64, is_it: &dyn Fn(&Transaction) -> bool) -> Result<bool, JournalError> {
        let mut after = after;
        loop {
            let rows = self.rows_after(after, PAGE_ROWS)?;
            let Some(last) = rows.last() else { return Ok(false) };
            after = last.sequence;
            for row in &rows {
                if decode_row(row)?.iter().any(is_it) {
                    return Ok(true);
                }
            }
        }
    }

    /// Returns the charge of a settled hold. `None` if the journal has no settlement of it, or nothing was charged.
    ///
    /// # Errors
    /// Returns an error if the journal or one of its rows cannot be read.
    fn charge_of(&self, hold: HoldId) -> Result<Option<RefundableCharge>, JournalError> {
        let likely = UnixNanos::new(hold.request_time().get().saturating_sub(CLOCK_DIFFERENCE_NS));
        match charge_after(self, self.last_row_before(likely)?, hold)? {
            Some(charge) => Ok(Some(charge)),
            // The clock may have been set back since, or the gateway's was far ahead.
            None => charge_after(self, 0, hold),
        }
    }

    /// Returns the number of the last row before `time`, if the clock was never set back. 0 if there is none.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be read.
    fn last_row_before(&self, time: UnixNanos) -> Result<u64, JournalError> {
        let is_next_late = |after: u64| -> Result<bool, JournalError> {
            Ok(self.rows_after(after, 1)?.first().is_none_or(|row| row.time >= time))
        };
        if is_next_late(0)? {
            return Ok(0);
        }
        // Doubles the distance until a row is late enough, or there are no more rows. Then halves it.
        let (mut before, mut distance) = (0_u64, 1_u64);
        while !is_next_late(before.saturating_add(distance))? {
            before = before.saturating_add(distance);
            distance = distance.saturating_mul(2);
        }
        let mut late = before.saturating_add(distance);
        while late.saturating_sub(before) > 1 {
            let middle = before + (late - before) / 2;
            if is_next_late(middle)? {
                late = middle;
            } else {
                before = middle;
            }
        }
        Ok(late)
    }

    /// Returns the rows after row `after`, in order and at most `limit`. Empty if there is no journal yet.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be read.
    fn rows_after(&self, after: u64, limit: usize) -> Result<Vec<JournalRow>, JournalError>;

    /// Returns the gateways that share the journal and are live, or ended within the last hour, by name. Empty if the
    /// journal has one writer.
    ///
    /// # Errors
    /// Returns an error if they cannot be read.
    fn gateways(&self) -> Result<Vec<GatewayRecord>, JournalError> {
        Ok(Vec::new())
    }

    /// Checks every invariant of the ledger from its first row, as of one moment.
    ///
    /// # Errors
    /// Returns an error if the journal cannot be read. Faults in its content are in the report.
    fn verify(&self) -> Result<VerifyReport, JournalError>;
}

/// Returns the charge of a hold whose events come after row `after`.
fn charge_after(
    history: &(impl JournalHistory + ?Sized),
    mut after: u64,
    hold: HoldId,
) -> Result<Option<RefundableCharge>, JournalError> {
    let mut taken: Option<HoldTaken> = None;
    loop {
        let rows = history.rows_after(after, PAGE_ROWS)?;
        let Some(last) = rows.last() else { return Ok(None) };
        after = last.sequence;
        for row in &rows {
            for transaction in decode_row(row)? {
                match transaction.event {
                    JournalEvent::Held(held) if held.hold == hold => {
                        taken = Some(held);
                    }
                    JournalEvent::Extended { hold: extended, amount, funding, .. } if extended == hold => {
                        if let Some(held) = &mut taken {
                            let before = held.funding.as_deref();
                            let more = funding.as_deref();
                            held.funding =
                                HoldFunding::extended(before, held.amount, more, amount).map(Box::new);
                            held.amount = held.amount.checked_add(amount).unwrap_or(NanoDollars::MAX);
                        }
                    }
                    JournalEvent::Settled(settled) if settled.hold == hold => {
                        let charged = settled.charged;
                        let taken = taken.filter(|_| charged > NanoDollars::ZERO);
                        return Ok(taken.map(|held| {
                            let HoldTaken { org, project, funding, .. } = held;
                            let shares = funding.map_or_else(Vec::new, |funding| funding.charged(charged));
                            RefundableCharge { hold, org, project, charged, shares }
                        }));
                    }
                    JournalEvent::Released { hold: released, .. } if released == hold => return Ok(None),
                    _ => {}
                }
            }
        }
    }
}

/// A gateway that shares a journal with others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayRecord {
    /// The name under which it takes holds.
    pub owner: Owner,
    /// The name that its operator gave it.
    pub name: String,
    /// The version of its program.
    pub version: String,
    /// When it joined, by the journal's clock.
    pub joined: UnixNanos,
    /// How long ago it renewed its presence, by the journal's clock.
    pub unseen: Duration,
    /// Whether it takes turns.
    pub state: GatewayState,
}

/// Whether a gateway takes turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatewayState {
    /// It takes turns.
    Live,
    /// It ended, and holds nothing.
    Left,
    /// Others declared it dead, and released its holds.
    Dead,
}

impl GatewayState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Live, Self::Left, Self::Dead];

    /// The word for operators and in databases.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Left => "left",
            Self::Dead => "dead",
        }
    }
}

/// A ledger of this process, with its journal to read.
#[derive(Clone)]
pub struct LocalLedgerAdmin {
    ledger: Ledger,
    history: Arc<dyn JournalHistory>,
}

impl LocalLedgerAdmin {
    /// Joins a ledger with a reader of its journal.
    pub fn new(ledger: Ledger, history: Arc<dyn JournalHistory>) -> Self {
        Self { ledger, history }
    }
}

impl std::fmt::Debug for LocalLedgerAdmin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalLedgerAdmin").field("ledger", &self.ledger).finish_non_exhaustive()
    }
}

impl LedgerAdmin for LocalLedgerAdmin {
    fn transact(&self, batch: Vec<LedgerOperation>, now: UnixNanos) -> BatchResult {
        self.ledger.transact(batch, now)
    }

    fn totals(&self) -> LedgerTotals {
        self.ledger.totals()
    }

    fn open_holds(&self) -> Vec<HoldTaken> {
        self.ledger.open_holds()
    }

    fn projects(&self) -> Vec<(OrgId, ProjectId)> {
        self.ledger.projects()
    }

    fn standing_at(&self, org: &OrgId, project: &ProjectId, now: UnixNanos) -> Option<SpendableBalance> {
        self.ledger.standing_at(org, project, now)
    }

    fn budgets(&self, now: UnixNanos) -> Vec<BudgetReport> {
        self.ledger.budgets(now)
    }

    fn alerts(&self) -> Vec<(UnixNanos, AlertRaised)> {
        self.ledger.alerts()
    }

    fn lots(&self, org: Option<&OrgId>, now: UnixNanos) -> Vec<LotReport> {
        self.ledger.lots(org, now)
    }

    fn free_tiers(&self, now: UnixNanos) -> Vec<FreeTierReport> {
        self.ledger.free_tiers(now)
    }

    fn refund_by_reference(&self, org: &OrgId, reference: &str) -> Option<RefundMade> {
        self.ledger.refund_by_reference(org, reference)
    }

    fn time(&self) -> UnixNanos {
        self.ledger.time()
    }

    fn health(&self) -> JournalHealth {
        self.ledger.health()
    }

    fn history(&self) -> &dyn JournalHistory {
        self.history.as_ref()
    }

    fn close(&self) -> Result<(), LedgerError> {
        self.ledger.clone().close()
    }
}
