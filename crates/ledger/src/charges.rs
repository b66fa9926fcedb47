//! What an organisation was charged in a period, by project, model, class of tokens and price, from the journal. Must not
//! know months, taxes or invoices.

use std::collections::{BTreeMap, HashMap, HashSet};

use headrace_domain::{
    HoldId, ModelName, NanoDollars, NanoDollarsPerMillion, OrgId, ProjectId, TokenClass, UnixNanos,
};

use crate::admin::JournalHistory;
use crate::budget_rule::WindowBounds;
use crate::journal::JournalError;
use crate::lot::{HoldFunding, LotId, LotKind, MoneySource};
use crate::record::decode_row;
use crate::refund::{ChargeRefunded, RefundTarget};
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

/// An amount, by how it is paid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FundedAmounts {
    /// From the balance and from paid lots: paid beforehand.
    pub prepaid: NanoDollars,
    /// From free tiers and promotional lots: given by the seller.
    pub given: NanoDollars,
    /// From contracts: owed.
    pub owed: NanoDollars,
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
    /// How the charges were paid. The parts sum to `charged`.
    pub funded: FundedAmounts,
    /// The promotional lots among those that the charges were drawn from, or that refunds went to.
    promotional: HashSet<LotId>,
    /// The number of settled calls.
    pub calls: u64,
    /// The number of the last row that was read.
    pub last_row: u64,
    /// The checksum of that row, which covers all rows before it.
    pub last_checksum: [u8; 32],
}

impl OrgCharges {
    /// How the charges were paid whose refunds are in rows after `after`. Returns `None` if a sum does not fit.
    pub fn refunded_after(&self, after: u64) -> Option<FundedAmounts> {
        let mut sums = FundedAmounts::default();
        for (_, refund) in self.refunds.iter().filter(|(row, _)| *row > after) {
            for part in &refund.parts {
                let sum = match part.to {
                    RefundTarget::Lot(lot) if self.promotional.contains(&lot) => &mut sums.given,
                    RefundTarget::Balance | RefundTarget::Lot(_) | RefundTarget::NewLot(_) => {
                        &mut sums.prepaid
                    }
                    RefundTarget::Contract(_) => &mut sums.owed,
                };
                *sum = sum.checked_add(part.amount).ok()?;
            }
        }
        Some(sums)
    }
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
    let first = if whole { 0 } else { last_row_before(history, from)? };
    let (open, settled, lots, kinds) = (HashMap::new(), HashSet::new(), BTreeMap::new(), HashMap::new());
    let mut reader = ChargeReader { org, period, open, settled, lots, kinds, charges: OrgCharges::default() };
    let mut after = first;
    loop {
        let rows = history.rows_after(after, PAGE_ROWS)?;
        let Some(last) = rows.last() else { break };
        after = last.sequence;
        reader.charges.last_row = last.sequence;
        reader.charges.last_checksum = last.checksum;
        for row in &rows {
            for transaction in decode_row(row)? {
                let read = reader.read(row.sequence, transaction.time, transaction.event);
                read.ok_or_else(|| overflow(row.sequence))?;
            }
        }
    }
    if reader.names_unknown_lot() {
        reader.read_lots_until(history, first)?;
    }
    reader.finish().ok_or_else(|| overflow(after))
}

fn overflow(sequence: u64) -> JournalError {
    JournalError::Corrupt { sequence, why: "the charges of the period do not fit 64 bits".to_owned() }
}

/// An open hold of the organisation.
struct OpenCharge {
    project: ProjectId,
    held: NanoDollars,
    funding: Option<Box<HoldFunding>>,
}

struct ChargeReader<'a> {
    org: &'a OrgId,
    period: WindowBounds,
    /// The organisation's open holds.
    open: HashMap<HoldId, OpenCharge>,
    /// Holds that were settled in the period.
    settled: HashSet<HoldId>,
    /// The amounts that charges drew from lots.
    lots: BTreeMap<LotId, NanoDollars>,
    /// The kinds of the organisation's lots that were made in the rows read so far.
    kinds: HashMap<LotId, LotKind>,
    charges: OrgCharges,
}

impl ChargeReader<'_> {
    /// Reads an event. Returns `None` if a sum does not fit.
    fn read(&mut self, row: u64, time: UnixNanos, event: JournalEvent) -> Option<()> {
        match event {
            JournalEvent::Held(HoldTaken { hold, org, project, amount, funding, .. }) if org == *self.org => {
                self.open.insert(hold, OpenCharge { project, held: amount, funding });
            }
            JournalEvent::Extended { hold, amount, funding, .. } => {
                if let Some(open) = self.open.get_mut(&hold) {
                    let more = funding.as_deref();
                    let funding = HoldFunding::extended(open.funding.as_deref(), open.held, more, amount);
                    open.funding = funding.map(Box::new);
                    open.held = open.held.checked_add(amount).ok()?;
                }
            }
            JournalEvent::Released { hold, .. } => {
                self.open.remove(&hold);
            }
            JournalEvent::Settled(settled) => {
                let open = self.open.remove(&settled.hold);
                let WindowBounds { start, end } = self.period;
                if let Some(open) = open.filter(|_| start <= time && time < end) {
                    self.settled.insert(settled.hold);
                    self.settle(&open.project, &settled)?;
                    self.fund(open.funding.as_deref(), settled.charged)?;
                }
            }
            JournalEvent::Refunded(refund) if self.settled.contains(&refund.hold) => {
                self.charges.refunds.push((row, *refund));
            }
            JournalEvent::LotMade(lot) if lot.org == *self.org => {
                self.kinds.insert(lot.id, lot.terms.kind);
            }
            _ => {}
        }
        Some(())
    }

    /// Adds a charge to the amounts of its sources.
    fn fund(&mut self, funding: Option<&HoldFunding>, charged: NanoDollars) -> Option<()> {
        let funded = &mut self.charges.funded;
        let Some(funding) = funding else {
            funded.prepaid = funded.prepaid.checked_add(charged).ok()?;
            return Some(());
        };
        for part in funding.charged(charged) {
            let sum = match part.source {
                MoneySource::Balance => &mut funded.prepaid,
                MoneySource::Lot(lot) => self.lots.entry(lot).or_default(),
                MoneySource::Contract(_) => &mut funded.owed,
                MoneySource::Free => &mut funded.given,
            };
            *sum = sum.checked_add(part.amount).ok()?;
        }
        Some(())
    }

    /// The lots that charges drew from, or that refunds went to.
    fn named_lots(&self) -> impl Iterator<Item = LotId> {
        let parts = self.charges.refunds.iter().flat_map(|(_, refund)| &refund.parts);
        let refunded = parts.filter_map(|part| match part.to {
            RefundTarget::Lot(lot) => Some(lot),
            _ => None,
        });
        self.lots.keys().copied().chain(refunded)
    }

    fn names_unknown_lot(&self) -> bool {
        self.named_lots().any(|lot| !self.kinds.contains_key(&lot))
    }

    /// Reads the lots of the organisation in the rows up to `last`.
    fn read_lots_until(&mut self, history: &dyn JournalHistory, last: u64) -> Result<(), JournalError> {
        let mut after = 0;
        while after < last {
            let rows = history.rows_after(after, PAGE_ROWS)?;
            let Some(end) = rows.last() else { return Ok(()) };
            after = end.sequence;
            for row in &rows {
                for transaction in decode_row(row)? {
                    if let JournalEvent::LotMade(lot) = transaction.event
                        && lot.org == *self.org
                    {
                        self.kinds.insert(lot.id, lot.terms.kind);
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds the lots to the amounts by how they are paid. Returns `None` if a sum does not fit.
    fn finish(mut self) -> Option<OrgCharges> {
        let is_given = |lot: &LotId| self.kinds.get(lot) == Some(&LotKind::Promotional);
        let promotional: HashSet<LotId> = self.named_lots().filter(is_given).collect();
        let funded = &mut self.charges.funded;
        for (lot, amount) in &self.lots {
            let sum = if promotional.contains(lot) { &mut funded.given } else { &mut funded.prepaid };
            *sum = sum.checked_add(*amount).ok()?;
        }
        self.charges.promotional = promotional;
        Some(self.charges)
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
