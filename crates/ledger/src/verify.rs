//! Checks every invariant of the ledger from the raw journal. It adds up the entries of the rows independently, and
//! replays the rows by the ledger's own rules. Both must agree. Changes nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;

use headrace_domain::{HoldId, NanoDollars, OrgId, ProjectId, Rounding, UnixNanos};

use crate::journal::{GENESIS, JournalError, JournalRow, LoadedJournal, StateSnapshot};
use crate::lot::{HoldFunding, LotKind};
use crate::record::decode_row;
use crate::snapshot;
use crate::standing::LedgerTotals;
use crate::state::LedgerState;
use crate::transaction::{Account, HoldSettled, HoldTaken, JournalEvent, Transaction};

use budgets::BudgetVerifier;
use lots::{ExpectedEntries, LotVerifier};
use refunds::RefundVerifier;

/// The maximum number of findings that a report lists. All findings are counted.
const MAX_FINDINGS_LISTED: usize = 100;

/// Checks a journal that is completely in memory: every row from the first on, and every snapshot.
pub fn verify(loaded: &LoadedJournal) -> VerifyReport {
    let mut verifier = JournalVerifier::new(&loaded.snapshots);
    for row in &loaded.rows {
        verifier.row(row);
    }
    verifier.finish()
}

/// Checks a journal row by row, so that it need not fit in memory.
#[derive(Debug)]
pub struct JournalVerifier {
    report: VerifyReport,
    snapshots: BTreeMap<u64, StateSnapshot>,
    checksum: [u8; 32],
    time: UnixNanos,
    balances: BTreeMap<Account, i64>,
    orgs: HashSet<OrgId>,
    projects: HashMap<ProjectId, OrgId>,
    open: HashMap<HoldId, HoldTaken>,
    resolved: HashSet<HoldId>,
    budgets: BudgetVerifier,
    refunds: RefundVerifier,
    lots: LotVerifier,
    /// The replayed state. `None` after a rule was broken, because later rows can then not be replayed.
    replayed: Option<LedgerState>,
}

/// The result of checking a journal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VerifyReport {
    /// The number of rows read.
    pub rows: u64,
    /// The number of the last row.
    pub last_sequence: u64,
    /// The number of transactions in the rows.
    pub transactions: u64,
    /// The number of snapshots compared with the replayed state.
    pub snapshots: u64,
    /// The final totals, added up from the entries.
    pub totals: LedgerTotals,
    /// The first hundred findings.
    pub findings: Vec<InvariantBreach>,
    /// The number of all findings.
    pub finding_count: u64,
}

/// One violated invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvariantBreach {
    /// The row in which it was found.
    pub sequence: u64,
    /// A description.
    pub what: String,
}

impl VerifyReport {
    /// Whether every invariant holds.
    pub const fn ok(&self) -> bool {
        self.finding_count == 0
    }

    fn find(&mut self, sequence: u64, what: impl Into<String>) {
        self.finding_count += 1;
        if self.findings.len() < MAX_FINDINGS_LISTED {
            self.findings.push(InvariantBreach { sequence, what: what.into() });
        }
    }
}

impl JournalVerifier {
    /// Creates a verifier at the first row. Each of `snapshots` is compared when its row is read.
    pub fn new(snapshots: &[StateSnapshot]) -> Self {
        Self {
            report: VerifyReport::default(),
            snapshots: snapshots.iter().map(|s| (s.sequence, s.clone())).collect(),
            checksum: GENESIS,
            time: UnixNanos::new(0),
            balances: BTreeMap::new(),
            orgs: HashSet::new(),
            projects: HashMap::new(),
            open: HashMap::new(),
            resolved: HashSet::new(),
            budgets: BudgetVerifier::default(),
            refunds: RefundVerifier::default(),
            lots: LotVerifier::default(),
            replayed: Some(LedgerState::default()),
        }
    }

    /// Checks the next row.
    pub fn row(&mut self, row: &JournalRow) {
        let sequence = row.sequence;
        if let Err(error) = row.check_follows(self.report.last_sequence, &self.checksum) {
            self.report.find(sequence, error.to_string());
        }
        self.report.rows += 1;
        self.report.last_sequence = sequence;
        self.checksum = row.checksum;
        match decode_row(row) {
            Ok(transactions) => {
                for transaction in &transactions {
                    self.transaction(sequence, transaction);
                }
                if transactions.last().is_some_and(|last| last.time != row.time) {
                    self.report.find(sequence, "the row's time is not that of its last transaction");
                }
            }
            Err(error) => {
                self.report.find(sequence, error.to_string());
                self.replayed = None;
            }
        }
        if let Some(snapshot) = self.snapshots.remove(&sequence) {
            self.snapshot(&snapshot);
        }
    }

    /// Adds a finding of the caller that reads the rows.
    pub fn find(&mut self, sequence: u64, what: impl Into<String>) {
        self.report.find(sequence, what);
    }

    fn transaction(&mut self, sequence: u64, transaction: &Transaction) {
        self.report.transactions += 1;
        match transaction.event {
            JournalEvent::ClockSet { from } => {
                if from != self.time || transaction.time >= from {
                    self.report
                        .find(sequence, "the clock is set from a time that it did not show, or not back");
                }
                self.time = transaction.time;
            }
            _ if transaction.time < self.time => self.report.find(sequence, "ledger time runs backwards"),
            _ => self.time = transaction.time,
        }
        self.entries(sequence, transaction);
        self.event(sequence, transaction);
        let report = &mut self.report;
        self.budgets.event(&transaction.event, transaction.time, &mut |what| report.find(sequence, what));
        if let Some(state) = &mut self.replayed
            && let Err(breach) = state.replay(transaction)
        {
            self.report.find(sequence, format!("it cannot be replayed: {}", breach.why()));
            self.replayed = None;
        }
    }

    fn entries(&mut self, sequence: u64, transaction: &Transaction) {
        let sum: i128 = transaction.entries.iter().map(|entry| i128::from(entry.amount.get())).sum();
        if sum != 0 {
            self.report
                .find(sequence, format!("a transaction's entries sum to {sum} nano-dollars, not to zero"));
        }
        for entry in &transaction.entries {
            let balance = self.balances.entry(entry.account.clone()).or_insert(0);
            match balance.checked_add(entry.amount.get()) {
                Some(sum) => *balance = sum,
                None => self.report.find(sequence, format!("{} overflows", entry.account)),
            }
            let may_be_negative = matches!(
                entry.account,
                Account::PaidIn
                    | Account::Promotional
                    | Account::Loss
                    | Account::Refunded
                    | Account::Receivable(_)
            );
            if *balance > 0 && matches!(entry.account, Account::Receivable(_)) {
                self.report.find(sequence, format!("{} is above zero", entry.account));
            }
            if *balance < 0 && !may_be_negative {
                let amount = NanoDollars::new(*balance);
                self.report.find(sequence, format!("{} is below zero: {amount}", entry.account));
            }
        }
    }

    /// Checks the entries of an event against expected values, which are computed independently of the ledger's rules.
    fn event(&mut self, sequence: u64, transaction: &Transaction) {
        let moved = |account: &Account| {
            let here = transaction.entries.iter().filter(|entry| entry.account == *account);
            here.map(|entry| i128::from(entry.amount.get())).sum::<i128>()
        };
        let expect = |report: &mut VerifyReport, account: Account, amount: i128| {
            let found = moved(&account);
            if found != amount {
                report.find(sequence, format!("{account} moved by {found} nano-dollars instead of {amount}"));
            }
        };
        let of = |amount: NanoDollars| i128::from(amount.get());
        let (report, lots, time) = (&mut self.report, &mut self.lots, transaction.time);
        match &transaction.event {
            JournalEvent::ProjectOpened { org, project } => {
                self.orgs.insert(org.clone());
                if self.projects.insert(project.clone(), org.clone()).is_some() {
                    report.find(sequence, format!("project {project} is opened twice"));
                }
            }
            JournalEvent::ClockSet { .. } => lots.has_merged = true,
            JournalEvent::LotMade(lot) => {
                let expected = lots.made(lot, &mut |what| report.find(sequence, what));
                compare(report, sequence, transaction, &expected);
                if !self.orgs.contains(&lot.org) {
                    report.find(sequence, format!("{} is of an unknown org", lot.id));
                }
            }
            JournalEvent::LotEnded { lot } => {
                // The entries are in the balances already, so what was left is what they moved.
                let left = self.balances.get(&Account::Lot(*lot)).copied().unwrap_or(0);
                let left = i128::from(left) - moved(&Account::Lot(*lot));
                let left = i64::try_from(left).unwrap_or(i64::MAX);
                let expected = lots.ended(*lot, left, &mut |what| report.find(sequence, what));
                compare(report, sequence, transaction, &expected);
            }
            JournalEvent::DebtPaid { org, amount, .. } => {
                compare(report, sequence, transaction, &lots.paid(org, *amount));
            }
            JournalEvent::FreeTierSet { number, tier } => {
                lots.tier_set(*number, tier, &mut |what| report.find(sequence, what));
            }
            JournalEvent::FreeTierRemoved { number } => lots.tier_removed(*number),
            JournalEvent::BudgetSet { .. }
            | JournalEvent::LowBalanceSet { .. }
            | JournalEvent::BudgetRuleSet { .. }
            | JournalEvent::BudgetRuleRemoved { .. }
            | JournalEvent::BudgetRaised { .. }
            | JournalEvent::AlertRaised(_) => {}
            JournalEvent::Granted { org, amount, .. } => {
                expect(report, Account::Available(org.clone()), of(*amount))
            }
            JournalEvent::Held(held) => {
                let funding = (held.amount, held.funding.as_deref());
                let expected = lots.drawn(held, funding, time, &mut |what| report.find(sequence, what));
                match expected {
                    Some(expected) => compare(report, sequence, transaction, &expected),
                    None => {
                        expect(report, Account::Available(held.org.clone()), -of(held.amount));
                        expect(report, Account::Held(held.project.clone()), of(held.amount));
                    }
                }
                report.totals.holds += 1;
                if self.projects.get(&held.project) != Some(&held.org) {
                    report.find(sequence, format!("{} is on a project that its org lacks", held.hold));
                }
                let known = self.resolved.contains(&held.hold);
                if self.open.insert(held.hold, held.clone()).is_some() || known {
                    report.find(sequence, format!("{} is taken twice", held.hold));
                }
            }
            JournalEvent::Extended { hold, amount, funding, .. } => match self.open.get_mut(hold) {
                None => report.find(sequence, format!("{hold} is extended and was not open")),
                Some(held) => {
                    let funding = funding.as_deref();
                    let find = &mut |what| report.find(sequence, what);
                    match lots.drawn(held, (*amount, funding), time, find) {
                        Some(expected) => compare(report, sequence, transaction, &expected),
                        None => {
                            expect(report, Account::Available(held.org.clone()), -of(*amount));
                            expect(report, Account::Held(held.project.clone()), of(*amount));
                        }
                    }
                    let before = held.funding.as_deref();
                    held.funding = HoldFunding::extended(before, held.amount, funding, *amount).map(Box::new);
                    held.amount = held.amount.checked_add(*amount).unwrap_or(NanoDollars::MAX);
                }
            },
            JournalEvent::Settled(settled) => {
                let HoldSettled { hold, lines, charged, loss, .. } = settled;
                report.totals.settled += 1;
                let used: i128 = lines.iter().map(|line| of(line.amount)).sum();
                for line in lines {
                    if line.price.cost(line.tokens, Rounding::Nearest) != Ok(line.amount) {
                        report.find(sequence, format!("{hold}: a line is not its tokens times its price"));
                    }
                }
                if of(*charged) > used || used - of(*charged) > of(*loss) {
                    report.find(sequence, format!("{hold}: charge and loss do not cover its lines"));
                }
                expect(report, Account::Revenue, of(*charged) + of(*loss));
                expect(report, Account::Loss, -of(*loss));
                self.resolve(sequence, *hold, Some(settled), transaction);
            }
            JournalEvent::Refunded(refund) => {
                let expected = lots.refunded(refund, time, &mut |what| report.find(sequence, what));
                compare(report, sequence, transaction, &expected);
                if self.projects.get(&refund.project) != Some(&refund.org) {
                    report.find(sequence, format!("{} is refunded to another org", refund.hold));
                }
                self.refunds.refunded(refund, &mut |what| report.find(sequence, what));
            }
            JournalEvent::Released { hold, .. } => {
                report.totals.released += 1;
                self.resolve(sequence, *hold, None, transaction);
            }
        }
    }

    fn resolve(
        &mut self,
        sequence: u64,
        hold: HoldId,
        settled: Option<&HoldSettled>,
        transaction: &Transaction,
    ) {
        let charged = settled.map_or(NanoDollars::ZERO, |settled| settled.charged);
        if !self.resolved.insert(hold) {
            self.report.find(sequence, format!("{hold} is resolved twice"));
        }
        let Some(held) = self.open.remove(&hold) else {
            self.report.find(sequence, format!("{hold} is resolved and was not open"));
            return;
        };
        if charged > held.amount || charged.is_negative() {
            self.report.find(sequence, format!("{hold} held {} and is charged {charged}", held.amount));
        }
        self.refunds.charged(hold, &held.project, charged);
        if let Some(expected) = self.lots.resolved(&held, settled, transaction.time) {
            compare(&mut self.report, sequence, transaction, &expected);
            return;
        }
        let back = held.amount.get().saturating_sub(charged.get());
        for (account, amount) in [
            (Account::Held(held.project), held.amount.get().saturating_neg()),
            (Account::Available(held.org), back),
        ] {
            let here = transaction.entries.iter().filter(|entry| entry.account == account);
            let found: i128 = here.map(|entry| i128::from(entry.amount.get())).sum();
            if found != i128::from(amount) {
                let what = format!("{hold}: {account} moved by {found} nano-dollars instead of {amount}");
                self.report.find(sequence, what);
            }
        }
    }

    fn snapshot(&mut self, kept: &StateSnapshot) {
        self.report.snapshots += 1;
        let sequence = kept.sequence;
        if kept.row_checksum != self.checksum {
            self.report.find(sequence, "the snapshot was taken of another history");
        }
        match (snapshot::decode(kept), &self.replayed) {
            (Err(error @ JournalError::NewerFormat { .. }), _) => {
                self.report.find(sequence, error.to_string())
            }
            (Err(error), _) => self.report.find(sequence, error.to_string()),
            (Ok(state), Some(replayed)) => {
                let is_kept = |(format, payload): (u32, Vec<u8>)| {
                    (format, payload.as_slice()) == (kept.format_version, kept.payload.as_slice())
                };
                if !is_kept(snapshot::encode(replayed)) || !is_kept(snapshot::encode(&state)) {
                    self.report.find(sequence, "the snapshot is not what replaying gives");
                }
            }
            (Ok(_), None) => {}
        }
    }

    /// Compares the replayed state with the added-up entries, and returns the report.
    pub fn finish(mut self) -> VerifyReport {
        let last = self.report.last_sequence;
        for sequence in self.snapshots.keys().filter(|sequence| **sequence > last) {
            self.report.find(*sequence, "a snapshot is at a row that the journal lacks");
        }
        let global: i128 = self.balances.values().map(|balance| i128::from(*balance)).sum();
        if global != 0 {
            self.report.find(last, format!("all accounts sum to {global} nano-dollars, not to zero"));
        }
        self.add_up();
        self.compare_with_replay();
        self.report
    }

    fn add_up(&mut self) {
        let mut sums = [0i64; 10];
        for (account, balance) in &self.balances {
            let place = match account {
                Account::PaidIn => 0,
                Account::Promotional => 1,
                Account::Revenue => 2,
                Account::Loss => 3,
                Account::Available(_) => 4,
                Account::Held(_) => 5,
                Account::Refunded => 6,
                Account::Expired => 7,
                Account::Receivable(_) => 8,
                Account::Lot(_) => 9,
            };
            if let Some(sum) = sums.get_mut(place) {
                *sum = sum.saturating_add(*balance);
            }
        }
        let [paid_in, promotional, revenue, loss, available, held, refunded, expired, receivable, in_lots] =
            sums.map(NanoDollars::new);
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let LedgerTotals { holds, settled, released, .. } = self.report.totals;
        self.report.totals = LedgerTotals {
            paid_in,
            promotional,
            revenue,
            loss,
            refunded,
            expired,
            receivable,
            in_lots,
            available,
            held,
            orgs: count(self.orgs.len()),
            projects: count(self.projects.len()),
            open_holds: count(self.open.len()),
            holds,
            settled,
            released,
            transactions: self.report.transactions,
        };
    }

    fn compare_with_replay(&mut self) {
        let last = self.report.last_sequence;
        let Some(state) = &self.replayed else { return };
        if state.totals() != self.report.totals {
            self.report.find(last, "replaying gives other totals than adding up the entries");
        }
        let mut open: HashMap<&ProjectId, i128> = HashMap::new();
        for hold in self.open.values() {
            *open.entry(&hold.project).or_default() += i128::from(hold.amount.get());
        }
        let mut held: HashMap<&OrgId, i128> = HashMap::new();
        for project in state.projects.values() {
            *held.entry(&project.org).or_default() += i128::from(project.held);
        }
        let balance = |account: Account| self.balances.get(&account).copied().unwrap_or(0);
        for (id, org) in state.orgs.iter() {
            if balance(Account::Available(id.clone())) != org.available {
                self.report.find(last, format!("replaying gives org {id} another balance than its entries"));
            }
        }
        for (id, org) in state.orgs.iter() {
            if balance(Account::Receivable(id.clone())) != org.receivable {
                self.report.find(last, format!("replaying gives org {id} another debt than its entries"));
            }
        }
        for (id, of) in &state.lots.lots {
            let is_contract = of.terms().kind == LotKind::Contract;
            if !is_contract && balance(Account::Lot(*id)) != of.left {
                self.report.find(last, format!("replaying leaves another amount in {id} than its entries"));
            }
            let drawn = of.left.saturating_add(of.held);
            if is_contract && (of.left < 0 || of.held < 0 || drawn > of.terms().amount.get()) {
                self.report.find(last, format!("contract {id} has more left or held than its amount"));
            }
        }
        for (id, project) in state.projects.iter() {
            if balance(Account::Held(id.clone())) != project.held {
                self.report.find(last, format!("replaying gives project {id} other holds than its entries"));
            }
            let open = open.get(id).copied().unwrap_or(0);
            if open != i128::from(project.held) {
                self.report.find(last, format!("project {id} holds another sum than its open holds"));
            }
        }
        for (id, org) in state.orgs.iter() {
            if held.get(id).copied().unwrap_or(0) != i128::from(org.held) {
                self.report.find(last, format!("org {id} holds another sum than its projects"));
            }
        }
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = &self.totals;
        let mut line =
            |name: &str, value: &dyn fmt::Display| writeln!(f, "{name:<20}{:>28}", value.to_string());
        line("rows", &self.rows)?;
        line("transactions", &self.transactions)?;
        line("snapshots checked", &self.snapshots)?;
        line("organisations", &t.orgs)?;
        line("projects", &t.projects)?;
        line("holds taken", &t.holds)?;
        line("  settled", &t.settled)?;
        line("  released", &t.released)?;
        line("  open", &t.open_holds)?;
        line("paid in", &t.paid_in)?;
        line("promotional", &t.promotional)?;
        line("available", &t.available)?;
        line("held", &t.held)?;
        line("revenue", &t.revenue)?;
        line("loss", &t.loss)?;
        line("refunded", &t.refunded)?;
        line("expired", &t.expired)?;
        line("receivable", &t.receivable)?;
        line("in lots", &t.in_lots)?;
        for InvariantBreach { sequence, what } in &self.findings {
            writeln!(f, "row {sequence}: {what}")?;
        }
        match self.finding_count {
            0 => write!(f, "every invariant holds"),
            count => write!(f, "{count} invariants broken"),
        }
    }
}

/// Compares the entries of a transaction with the expected ones.
fn compare(report: &mut VerifyReport, sequence: u64, transaction: &Transaction, expected: &ExpectedEntries) {
    let mut found = ExpectedEntries::new();
    for entry in &transaction.entries {
        *found.entry(entry.account.clone()).or_default() += i128::from(entry.amount.get());
    }
    for account in found.keys().chain(expected.keys()).collect::<BTreeSet<_>>() {
        let of = |entries: &ExpectedEntries| entries.get(account).copied().unwrap_or(0);
        let (found, expected) = (of(&found), of(expected));
        if found != expected {
            report.find(sequence, format!("{account} moved by {found} nano-dollars instead of {expected}"));
        }
    }
}

mod budgets;
mod lots;
mod refunds;
#[cfg(test)]
mod tests;
