//! What an organisation was charged in a period, by project, model, class of tokens and price, from the journal. Must not
//! know months, taxes or invoices.

use std::collections::{BTreeMap, HashMap};

use headrace_domain::{
    HoldId, ModelName, NanoDollars, NanoDollarsPerMillion, OrgId, ProjectId, TokenClass, UnixNanos,
};

use crate::admin::JournalHistory;
use crate::budget_rule::WindowBounds;
use crate::journal::JournalError;
use crate::lot::{ChargedShare, HoldFunding, LotId, LotKind, MoneySource};
use crate::record::decode_row;
use crate::refund::{ChargeRefunded, RefundTarget};
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
    /// The class of tokens.
    pub class: TokenClass,
    /// The price of a million tokens.
    pub price: NanoDollarsPerMillion,
}

/// The parts of an amount that were not paid beforehand. The rest came from the balance and from paid lots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FundedAmounts {
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
    /// What was not charged of the lines, by project: zero or negative. A call is charged at most its hold, and a failed call
    /// with an idempotency key nothing.
    pub not_charged: BTreeMap<ProjectId, NanoDollars>,
    /// Refunds of these charges, each with the number of its row. They may be later than the period.
    pub refunds: Vec<(u64, ChargeRefunded)>,
    /// What the organisation was charged. Lines and `not_charged` sum to it. Refunds are not taken off.
    pub charged: NanoDollars,
    /// The parts of `charged` that were not paid beforehand. Refunds are not taken off.
    pub funded: FundedAmounts,
    /// The same of each refund.
    refunded: Vec<FundedAmounts>,
    /// The number of settled calls.
    pub calls: u64,
    /// The number of the last row that was read.
    pub last_row: u64,
    /// The checksum of that row, which covers all rows before it.
    pub last_checksum: [u8; 32],
}

impl OrgCharges {
    /// Returns the parts of the refunds in rows after `after` that were not paid beforehand. `None` if a sum does not fit.
    pub fn refunded_after(&self, after: u64) -> Option<FundedAmounts> {
        let mut sums = FundedAmounts::default();
        for ((row, _), parts) in self.refunds.iter().zip(&self.refunded) {
            if *row > after {
                sums.given = sums.given.checked_add(parts.given).ok()?;
                sums.owed = sums.owed.checked_add(parts.owed).ok()?;
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
    charges_with(history, org, period, READ_WHOLE_ROWS)
}

fn charges_with(
    history: &dyn JournalHistory,
    org: &OrgId,
    period: WindowBounds,
    read_whole_rows: u64,
) -> Result<OrgCharges, JournalError> {
    let whole = history.last_row_before(UnixNanos::new(u64::MAX))? <= read_whole_rows;
    let from = UnixNanos::new(period.start.get().saturating_sub(LEAD_NS));
    let first = if whole { 0 } else { history.last_row_before(from)? };
    let (open, settled, kinds) = (HashMap::new(), HashMap::new(), HashMap::new());
    let mut reader = ChargeReader { org, period, open, settled, kinds, charges: OrgCharges::default() };
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
    /// The charges of the period, with their parts by origin. Empty if all came from the balance.
    settled: HashMap<HoldId, Vec<ChargedShare>>,
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
                    let shares = open.funding.map(|funding| funding.charged(settled.charged));
                    self.settled.insert(settled.hold, shares.unwrap_or_default());
                    self.settle(&open.project, &settled)?;
                }
            }
            JournalEvent::Refunded(refund) if refund.org == *self.org => {
                self.note_new_lots(&refund);
                if self.settled.contains_key(&refund.hold) {
                    self.charges.refunds.push((row, *refund));
                }
            }
            JournalEvent::LotMade(lot) if lot.org == *self.org => {
                self.kinds.insert(lot.id, lot.terms.kind);
            }
            _ => {}
        }
        Some(())
    }

    /// A refund makes promotional lots.
    fn note_new_lots(&mut self, refund: &ChargeRefunded) {
        for part in &refund.parts {
            if let RefundTarget::NewLot(lot) = part.to {
                self.kinds.insert(lot, LotKind::Promotional);
            }
        }
    }

    fn names_unknown_lot(&self) -> bool {
        let is_unknown = |share: &ChargedShare| match share.source {
            MoneySource::Lot(lot) => !self.kinds.contains_key(&lot),
            _ => false,
        };
        self.settled.values().flatten().any(is_unknown)
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
                    match transaction.event {
                        JournalEvent::LotMade(lot) if lot.org == *self.org => {
                            self.kinds.insert(lot.id, lot.terms.kind);
                        }
                        JournalEvent::Refunded(refund) if refund.org == *self.org => {
                            self.note_new_lots(&refund);
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }

    fn is_given(&self, source: MoneySource) -> bool {
        match source {
            MoneySource::Free => true,
            MoneySource::Lot(lot) => self.kinds.get(&lot) == Some(&LotKind::Promotional),
            MoneySource::Balance | MoneySource::Contract(_) => false,
        }
    }

    /// Returns the parts of a refund that were not paid beforehand, after `before` of the same charge was refunded. As the
    /// refund itself, it takes the last parts of the charge first, and nothing that a free tier paid.
    fn refunded(&self, refund: &ChargeRefunded, before: i64) -> Option<FundedAmounts> {
        let shares = self.settled.get(&refund.hold)?;
        let (mut skip, mut rest, mut given) = (before, refund.amount.get(), 0_i64);
        for share in shares.iter().rev().filter(|share| share.source != MoneySource::Free) {
            let skipped = skip.min(share.amount.get());
            skip -= skipped;
            let taken = rest.min(share.amount.get() - skipped);
            rest -= taken;
            if self.is_given(share.source) {
                given = given.checked_add(taken)?;
            }
        }
        let forgiven = refund.parts.iter().filter(|part| matches!(part.to, RefundTarget::Contract(_)));
        let owed = NanoDollars::checked_sum(forgiven.map(|part| part.amount)).ok()?;
        Some(FundedAmounts { given: NanoDollars::new(given), owed })
    }

    /// Computes how charges and refunds were paid, once the kinds of all lots are known. Returns `None` if a sum does not fit.
    fn finish(mut self) -> Option<OrgCharges> {
        let mut funded = FundedAmounts::default();
        for share in self.settled.values().flatten() {
            let sum = match share.source {
                source if self.is_given(source) => &mut funded.given,
                MoneySource::Contract(_) => &mut funded.owed,
                _ => continue,
            };
            *sum = sum.checked_add(share.amount).ok()?;
        }
        let mut before: HashMap<HoldId, i64> = HashMap::new();
        let mut refunded = Vec::with_capacity(self.charges.refunds.len());
        for (_, refund) in &self.charges.refunds {
            let of_charge = before.entry(refund.hold).or_default();
            refunded.push(self.refunded(refund, *of_charge)?);
            *of_charge = of_charge.checked_add(refund.amount.get())?;
        }
        (self.charges.funded, self.charges.refunded) = (funded, refunded);
        Some(self.charges)
    }

    fn settle(&mut self, project: &ProjectId, settled: &HoldSettled) -> Option<()> {
        let mut of_lines = NanoDollars::ZERO;
        for line in &settled.lines {
            let group = ChargeGroup {
                project: project.clone(),
                model: line.model.clone(),
                class: line.class,
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        GrantKind, Ledger, LedgerOperation, LedgerOptions, LotTerms, MemoryJournal, Owner, SettleOutcome,
    };

    const DAY: u64 = 86_400 * 1_000_000_000;

    #[test]
    fn a_long_journal_gives_the_same_charges_as_one_that_is_read_whole() {
        let journal = MemoryJournal::new();
        let at = |time: u64| UnixNanos::new(1_795_132_800_000_000_000 + time);
        let options = LedgerOptions { retry: Duration::from_millis(1), ..LedgerOptions::default() };
        let ledger = Ledger::open_with(Box::new(journal.clone()), Owner::new(7), at(0), options).unwrap().0;
        let run = |command: LedgerOperation, now| {
            let done = ledger.transact(vec![command], at(now));
            done.durable.wait().unwrap();
            assert!(done.verdicts.iter().all(crate::CommandResult::is_done), "{:?}", done.verdicts);
        };
        let (org, project) = (OrgId::new("o").unwrap(), ProjectId::new("p").unwrap());
        let [amount, lot_amount] = [1_000, 500].map(NanoDollars::new);
        run(LedgerOperation::OpenProject { org: org.clone(), project: project.clone() }, 0);
        let reference = || "a test".to_owned();
        run(
            LedgerOperation::Grant {
                org: org.clone(),
                amount,
                kind: GrantKind::Paid,
                reference: reference(),
            },
            0,
        );
        let (begins, ends, models) = (at(0), Some(at(100 * DAY)), None);
        let kind = LotKind::Promotional;
        let terms =
            LotTerms { kind, amount: lot_amount, begins, ends, models, reference: reference().into() };
        run(LedgerOperation::MakeLot { org: org.clone(), terms: Box::new(terms) }, 0);
        // Each call begins before midnight and ends after it.
        for day in 1..20_u64 {
            let hold = HoldId::from_bits(u128::from(day));
            let held = LedgerOperation::Hold {
                hold,
                org: org.clone(),
                project: project.clone(),
                amount: NanoDollars::new(40),
                owner: Owner::new(7),
                expires: at((day + 1) * DAY),
                demand: None,
                idempotency: None,
            };
            run(held, day * DAY - 1_000);
            let line = crate::ChargeLine {
                model: ModelName::new("m").unwrap(),
                class: TokenClass::Output,
                tokens: 30,
                price: NanoDollarsPerMillion::new(1_000_000).unwrap(),
                amount: NanoDollars::new(30),
            };
            let (lines, loss, outcome) = (vec![line], NanoDollars::ZERO, SettleOutcome::Completed);
            run(LedgerOperation::Settle { hold, lines, loss, outcome, answer: None }, day * DAY + 1_000);
        }
        for day in 0..20_u64 {
            let period = WindowBounds { start: at(day * DAY), end: at((day + 1) * DAY) };
            let whole = charges_of(&journal, &org, period).unwrap();
            assert_eq!(charges_with(&journal, &org, period, 0).unwrap(), whole, "day {day}");
            let charged = if day == 0 { 0 } else { 30 };
            assert_eq!(whole.charged, NanoDollars::new(charged), "day {day}");
        }
    }
}
