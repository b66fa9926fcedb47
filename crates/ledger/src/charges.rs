//! What an organisation was charged in a period, by project, model, class of tokens and price, from the journal. Must not
//! know months, taxes or invoices.

use std::collections::{BTreeMap, HashMap, HashSet};

use headrace_domain::{
    HoldId, ModelName, NanoDollars, NanoDollarsPerMillion, OrgId, ProjectId, TokenClass, UnixNanos,
};

use crate::admin::JournalHistory;
use crate::budget_rule::WindowBounds;
use crate::journal::JournalError;
use crate::record::decode_row;
use crate::refund::ChargeRefunded;
use crate::settlement::last_row_before;
use crate::transaction::{HoldSettled, HoldTaken, JournalEvent};

/// Rows that are read at a time.
const PAGE_ROWS: usize = 1_024;
/// A journal of at most this number of rows is read from its first row. In a longer one, the times of rows lead to the
/// period.
const READ_WHOLE_ROWS: u64 = 200_000;
/// How long before the period holds may have been taken that are settled in it, in nanoseconds.
const LEAD_NS: u64 = 3 * 86_400 * 1_000_000_000;

/// What a line counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChargeGroup {
    /// The project.
    pub project: ProjectId,
    /// The model that served the calls.
    pub model: ModelName,
    /// The class of tokens, by its name.
    class: &'static str,
    /// The price of a million tokens.
    pub price: NanoDollarsPerMillion,
}

impl ChargeGroup {
    /// The class of tokens.
    pub fn class(&self) -> TokenClass {
        TokenClass::BILLED.into_iter().find(|class| class.name() == self.class).unwrap_or(TokenClass::Input)
    }
}

/// The charges of an organisation in a period.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OrgCharges {
    /// Tokens and their amount, by group.
    pub lines: BTreeMap<ChargeGroup, (u64, NanoDollars)>,
    /// What was not charged of the lines, by project: zero or negative. A call is charged at most its hold.
    pub not_charged: BTreeMap<ProjectId, NanoDollars>,
    /// Refunds of these charges, each with the number of its row. They may be later than the period.
    pub refunds: Vec<(u64, ChargeRefunded)>,
    /// What the organisation was charged. Lines and `not_charged` sum to it. Refunds are not taken off.
    pub charged: NanoDollars,
    /// The number of settled calls.
    pub calls: u64,
    /// The number of the last row that was read.
    pub last_row: u64,
    /// The checksum of that row, which covers all rows before it.
    pub last_checksum: [u8; 32],
}

/// Reads the charges of an organisation from `period.start` until before `period.end`, by ledger time of the settlements.
///
/// # Errors
/// Returns an error if the journal cannot be read, or a sum does not fit.
pub fn charges_of(
    history: &dyn JournalHistory,
    org: &OrgId,
    period: WindowBounds,
) -> Result<OrgCharges, JournalError> {
    let whole = last_row_before(history, UnixNanos::new(u64::MAX))? <= READ_WHOLE_ROWS;
    let from = UnixNanos::new(period.start.get().saturating_sub(LEAD_NS));
    let mut after = if whole { 0 } else { last_row_before(history, from)? };
    let (open, settled) = (HashMap::new(), HashSet::new());
    let mut reader = ChargeReader { org, period, open, settled, charges: OrgCharges::default() };
    loop {
        let rows = history.rows_after(after, PAGE_ROWS)?;
        let Some(last) = rows.last() else { return Ok(reader.charges) };
        after = last.sequence;
        reader.charges.last_row = last.sequence;
        reader.charges.last_checksum = last.checksum;
        for row in &rows {
            let overflow = || JournalError::Corrupt {
                sequence: row.sequence,
                why: "the charges of the period do not fit 64 bits".to_owned(),
            };
            for transaction in decode_row(row)? {
                reader.read(row.sequence, transaction.time, transaction.event).ok_or_else(overflow)?;
            }
        }
    }
}

struct ChargeReader<'a> {
    org: &'a OrgId,
    period: WindowBounds,
    /// The projects of the organisation's open holds.
    open: HashMap<HoldId, ProjectId>,
    /// Holds that were settled in the period.
    settled: HashSet<HoldId>,
    charges: OrgCharges,
}

impl ChargeReader<'_> {
    /// Reads an event. Returns `None` if a sum does not fit.
    fn read(&mut self, row: u64, time: UnixNanos, event: JournalEvent) -> Option<()> {
        match event {
            JournalEvent::Held(HoldTaken { hold, org, project, .. }) if org == *self.org => {
                self.open.insert(hold, project);
            }
            JournalEvent::Released { hold, .. } => {
                self.open.remove(&hold);
            }
            JournalEvent::Settled(settled) => {
                let project = self.open.remove(&settled.hold);
                let WindowBounds { start, end } = self.period;
                if let Some(project) = project.filter(|_| start <= time && time < end) {
                    self.settled.insert(settled.hold);
                    self.settle(&project, &settled)?;
                }
            }
            JournalEvent::Refunded(refund) if self.settled.contains(&refund.hold) => {
                self.charges.refunds.push((row, *refund));
            }
            _ => {}
        }
        Some(())
    }

    fn settle(&mut self, project: &ProjectId, settled: &HoldSettled) -> Option<()> {
        let mut of_lines = NanoDollars::ZERO;
        for line in &settled.lines {
            let group = ChargeGroup {
                project: project.clone(),
                model: line.model.clone(),
                class: line.class.name(),
                price: line.price,
            };
            let (tokens, amount) = self.charges.lines.entry(group).or_default();
            *tokens = tokens.checked_add(line.tokens)?;
            *amount = amount.checked_add(line.amount).ok()?;
            of_lines = of_lines.checked_add(line.amount).ok()?;
        }
        let missing = settled.charged.checked_sub(of_lines).ok()?;
        if missing != NanoDollars::ZERO {
            let sum = self.charges.not_charged.entry(project.clone()).or_default();
            *sum = sum.checked_add(missing).ok()?;
        }
        self.charges.charged = self.charges.charged.checked_add(settled.charged).ok()?;
        // A hold that only claims an idempotency key is no call.
        if !settled.lines.is_empty() || settled.loss != NanoDollars::ZERO {
            self.charges.calls = self.charges.calls.saturating_add(1);
        }
        Some(())
    }
}
