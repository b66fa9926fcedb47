//! Encodes transactions as the payload of journal rows, formats 1 to 6. A change of shape takes a new format number and
//! keeps the readers of these formats. Format 2 adds two events: a hold was extended, and the clock was set. Format 3
//! adds a class of tokens: cache writes for an hour. Format 4 adds web searches as a class. Format 5 adds budget rules,
//! what holds reserve of them, and alerts. Format 6 adds
//! refunds, lots and free tiers. Knows no chains or disks.

use std::sync::Arc;

use headrace_domain::{HoldId, NanoDollars, NanoDollarsPerMillion, TokenClass, UnixNanos};

use crate::budget_record::{
    read_alert, read_budgeted, read_raise, read_reservations, read_rule, write_alert, write_budgeted,
    write_raise, write_reservations, write_rule,
};
use crate::codec::{ByteReader, ByteWriter, MalformedBytes};
use crate::command::{
    BudgetPeriod, ChargeLine, GrantKind, Owner, ProjectBudget, ReleaseReason, SettleOutcome, StoredAnswer,
};
use crate::journal::{FORMAT_VERSION, JournalError, JournalRow};
use crate::lot_record::{
    read_free_tier, read_funding, read_lot, read_lot_id, read_low_balance, write_free_tier, write_funding,
    write_lot, write_low_balance,
};
use crate::refund_record::{read_refund, write_refund};
use crate::transaction::{Account, Entries, HoldSettled, HoldTaken, JournalEvent, MoneyEntry, Transaction};

/// The first format that has budget rules.
pub(crate) const BUDGET_FORMAT: u32 = 5;
/// The first format that has refunds, lots and free tiers.
pub(crate) const LOT_FORMAT: u32 = 6;

/// Reads the transactions of a row. Checks the row's format, but not its checksum, which belongs to the chain.
///
/// # Errors
/// `NewerFormat` for a row of a newer Headrace. `Corrupt` for a payload that does not parse.
pub fn decode_row(row: &JournalRow) -> Result<Vec<Transaction>, JournalError> {
    if row.format_version > FORMAT_VERSION {
        return Err(JournalError::NewerFormat {
            what: "journal row",
            found: row.format_version,
            known: FORMAT_VERSION,
        });
    }
    let corrupt = |why: String| JournalError::Corrupt { sequence: row.sequence, why };
    if row.format_version == 0 {
        return Err(corrupt("a format that never was".into()));
    }
    let transactions = decode_payload(&row.payload).map_err(|error| corrupt(error.to_string()))?;
    if format_of(&transactions) > row.format_version {
        return Err(corrupt("an event or a class of tokens that its format does not have".into()));
    }
    Ok(transactions)
}

/// Returns the oldest format that supports all events and classes of these transactions.
fn format_of(transactions: &[Transaction]) -> u32 {
    let needed = |transaction: &Transaction| match &transaction.event {
        JournalEvent::Refunded(_)
        | JournalEvent::LotMade(_)
        | JournalEvent::LotEnded { .. }
        | JournalEvent::DebtPaid { .. }
        | JournalEvent::LowBalanceSet { .. }
        | JournalEvent::FreeTierSet { .. }
        | JournalEvent::FreeTierRemoved { .. } => LOT_FORMAT,
        JournalEvent::Held(held) if held.funding.is_some() => LOT_FORMAT,
        JournalEvent::Extended { funding: Some(_), .. } => LOT_FORMAT,
        JournalEvent::BudgetRuleSet { .. }
        | JournalEvent::BudgetRuleRemoved { .. }
        | JournalEvent::BudgetRaised { .. }
        | JournalEvent::AlertRaised(_) => BUDGET_FORMAT,
        JournalEvent::Held(held) if held.budgeted.is_some() => BUDGET_FORMAT,
        JournalEvent::Extended { reservations, .. } if !reservations.is_empty() => BUDGET_FORMAT,
        JournalEvent::Settled(settled)
            if settled.lines.iter().any(|line| line.class == TokenClass::WebSearch) =>
        {
            4
        }
        JournalEvent::Settled(settled)
            if settled.lines.iter().any(|line| line.class == TokenClass::CacheWrite1h) =>
        {
            3
        }
        JournalEvent::Extended { .. } | JournalEvent::ClockSet { .. } => 2,
        _ => 1,
    };
    transactions.iter().map(needed).max().unwrap_or(1)
}

/// The usual size of an encoded transaction, in bytes.
const TRANSACTION_BYTES: usize = 256;

/// Returns the payload of a row and its format.
pub(crate) fn encode_payload(transactions: &[Transaction]) -> (u32, Vec<u8>) {
    let mut w = ByteWriter::with_capacity(TRANSACTION_BYTES.saturating_mul(transactions.len()));
    w.len_of(transactions.len());
    for transaction in transactions {
        w.u64(transaction.time.get());
        write_event(&mut w, &transaction.event);
        w.len_of(transaction.entries.len());
        for entry in &transaction.entries {
            write_account(&mut w, &entry.account);
            w.i64(entry.amount.get());
        }
    }
    (format_of(transactions), w.into_bytes())
}

fn decode_payload(payload: &[u8]) -> Result<Vec<Transaction>, MalformedBytes> {
    let r = &mut ByteReader::new(payload);
    let count = r.len_of()?;
    let mut transactions = Vec::with_capacity(count.min(4096));
    for _ in 0..count {
        let time = UnixNanos::new(r.u64()?);
        let event = read_event(r)?;
        let entry_count = r.len_of()?;
        let mut entries = Entries::new();
        for _ in 0..entry_count {
            entries.push(MoneyEntry { account: read_account(r)?, amount: NanoDollars::new(r.i64()?) });
        }
        transactions.push(Transaction { time, event, entries });
    }
    r.end()?;
    Ok(transactions)
}

fn write_event(w: &mut ByteWriter, event: &JournalEvent) {
    match event {
        JournalEvent::ProjectOpened { org, project } => {
            w.u8(1);
            w.str(org.as_str());
            w.str(project.as_str());
        }
        JournalEvent::Granted { org, kind, amount, reference } => {
            w.u8(2);
            w.str(org.as_str());
            w.u8(match kind {
                GrantKind::Paid => 0,
                GrantKind::Promotional => 1,
            });
            w.i64(amount.get());
            w.str(reference);
        }
        JournalEvent::BudgetSet { project, budget } => {
            w.u8(3);
            w.str(project.as_str());
            write_budget(w, *budget);
        }
        JournalEvent::Held(held) => {
            w.u8(match (&held.funding, &held.budgeted) {
                (Some(_), _) => 16,
                (None, Some(_)) => 13,
                (None, None) => 4,
            });
            write_held(w, held);
            if let Some(funding) = &held.funding {
                write_funding(w, funding);
                w.bool(held.budgeted.is_some());
            }
            if let Some(budgeted) = &held.budgeted {
                write_budgeted(w, budgeted);
            }
        }
        JournalEvent::Settled(settled) => {
            w.u8(5);
            write_settled(w, settled);
        }
        JournalEvent::Released { hold, why } => {
            w.u8(6);
            w.u128(hold.bits());
            write_reason(w, *why);
        }
        JournalEvent::ClockSet { from } => {
            w.u8(7);
            w.u64(from.get());
        }
        JournalEvent::Extended { hold, amount, reservations, funding } => {
            w.u8(match funding {
                Some(_) => 17,
                None if reservations.is_empty() => 8,
                None => 14,
            });
            w.u128(hold.bits());
            w.i64(amount.get());
            if funding.is_some() || !reservations.is_empty() {
                write_reservations(w, reservations);
            }
            if let Some(funding) = funding {
                write_funding(w, funding);
            }
        }
        JournalEvent::BudgetRuleSet { number, rule } => {
            w.u8(9);
            w.u64(*number);
            write_rule(w, rule);
        }
        JournalEvent::BudgetRuleRemoved { number } => {
            w.u8(10);
            w.u64(*number);
        }
        JournalEvent::BudgetRaised { number, raise } => {
            w.u8(11);
            w.u64(*number);
            write_raise(w, *raise);
        }
        JournalEvent::AlertRaised(alert) => {
            w.u8(12);
            write_alert(w, alert);
        }
        JournalEvent::Refunded(refund) => {
            w.u8(15);
            write_refund(w, refund);
        }
        JournalEvent::LotMade(lot) => {
            w.u8(18);
            write_lot(w, lot);
        }
        JournalEvent::LotEnded { lot } => {
            w.u8(19);
            w.u64(lot.get());
        }
        JournalEvent::DebtPaid { org, amount, reference } => {
            w.u8(20);
            w.str(org.as_str());
            w.i64(amount.get());
            w.str(reference);
        }
        JournalEvent::FreeTierSet { number, tier } => {
            w.u8(21);
            w.u64(*number);
            write_free_tier(w, tier);
        }
        JournalEvent::LowBalanceSet { project, policy } => {
            w.u8(23);
            w.str(project.as_str());
            write_low_balance(w, *policy);
        }
        JournalEvent::FreeTierRemoved { number } => {
            w.u8(22);
            w.u64(*number);
        }
    }
}

fn read_event(r: &mut ByteReader<'_>) -> Result<JournalEvent, MalformedBytes> {
    Ok(match r.u8()? {
        1 => JournalEvent::ProjectOpened { org: r.id("org id")?, project: r.id("project id")? },
        2 => JournalEvent::Granted {
            org: r.id("org id")?,
            kind: match r.u8()? {
                0 => GrantKind::Paid,
                1 => GrantKind::Promotional,
                _ => return Err(r.malformed("grant kind")),
            },
            amount: NanoDollars::new(r.i64()?),
            reference: r.str()?.into(),
        },
        3 => JournalEvent::BudgetSet { project: r.id("project id")?, budget: read_budget(r)? },
        4 => JournalEvent::Held(read_held(r)?),
        5 => JournalEvent::Settled(read_settled(r)?),
        6 => JournalEvent::Released { hold: HoldId::from_bits(r.u128()?), why: read_reason(r)? },
        7 => JournalEvent::ClockSet { from: UnixNanos::new(r.u64()?) },
        tag @ (8 | 14 | 17) => JournalEvent::Extended {
            hold: HoldId::from_bits(r.u128()?),
            amount: NanoDollars::new(r.i64()?),
            reservations: if tag == 8 { Vec::new() } else { read_reservations(r)? },
            funding: if tag == 17 { Some(Box::new(read_funding(r)?)) } else { None },
        },
        9 => JournalEvent::BudgetRuleSet { number: r.u64()?, rule: Box::new(read_rule(r)?) },
        10 => JournalEvent::BudgetRuleRemoved { number: r.u64()? },
        11 => JournalEvent::BudgetRaised { number: r.u64()?, raise: read_raise(r)? },
        12 => JournalEvent::AlertRaised(Box::new(read_alert(r)?)),
        13 => {
            let held = read_held(r)?;
            JournalEvent::Held(HoldTaken { budgeted: Some(Box::new(read_budgeted(r)?)), ..held })
        }
        15 => JournalEvent::Refunded(Box::new(read_refund(r)?)),
        16 => {
            let held = read_held(r)?;
            let funding = Some(Box::new(read_funding(r)?));
            let budgeted = r.option(|r| read_budgeted(r).map(Box::new))?;
            JournalEvent::Held(HoldTaken { budgeted, funding, ..held })
        }
        18 => JournalEvent::LotMade(Box::new(read_lot(r)?)),
        19 => JournalEvent::LotEnded { lot: read_lot_id(r)? },
        20 => JournalEvent::DebtPaid {
            org: r.id("org id")?,
            amount: NanoDollars::new(r.i64()?),
            reference: r.str()?.into(),
        },
        21 => JournalEvent::FreeTierSet { number: r.u64()?, tier: Box::new(read_free_tier(r)?) },
        22 => JournalEvent::FreeTierRemoved { number: r.u64()? },
        23 => JournalEvent::LowBalanceSet { project: r.id("project id")?, policy: read_low_balance(r)? },
        _ => return Err(r.malformed("event")),
    })
}

pub(crate) fn write_budget(w: &mut ByteWriter, budget: Option<ProjectBudget>) {
    w.bool(budget.is_some());
    if let Some(ProjectBudget { limit, period }) = budget {
        w.i64(limit.get());
        w.u8(match period {
            BudgetPeriod::Total => 0,
            BudgetPeriod::Month => 1,
        });
    }
}

pub(crate) fn read_budget(r: &mut ByteReader<'_>) -> Result<Option<ProjectBudget>, MalformedBytes> {
    r.option(|r| {
        let limit = NanoDollars::new(r.i64()?);
        let period = match r.u8()? {
            0 => BudgetPeriod::Total,
            1 => BudgetPeriod::Month,
            _ => return Err(r.malformed("budget period")),
        };
        Ok(ProjectBudget { limit, period })
    })
}

/// Writes all of a hold except what it draws from and what it reserves of budget rules.
pub(crate) fn write_held(w: &mut ByteWriter, held: &HoldTaken) {
    let HoldTaken { hold, org, project, amount, owner, expires, claim, budgeted: _, funding: _ } = held;
    w.u128(hold.bits());
    w.str(org.as_str());
    w.str(project.as_str());
    w.i64(amount.get());
    w.u128(owner.get());
    w.u64(expires.get());
    w.bool(claim.is_some());
    if let Some((key, hash)) = claim {
        w.str(key);
        w.hash(hash);
    }
}

pub(crate) fn read_held(r: &mut ByteReader<'_>) -> Result<HoldTaken, MalformedBytes> {
    Ok(HoldTaken {
        hold: HoldId::from_bits(r.u128()?),
        org: r.id("org id")?,
        project: r.id("project id")?,
        amount: NanoDollars::new(r.i64()?),
        owner: Owner::new(r.u128()?),
        expires: UnixNanos::new(r.u64()?),
        claim: r.option(|r| Ok((Arc::from(r.str()?), r.hash()?)))?,
        budgeted: None,
        funding: None,
    })
}

fn write_settled(w: &mut ByteWriter, settled: &HoldSettled) {
    let HoldSettled { hold, lines, charged, loss, outcome, answer } = settled;
    w.u128(hold.bits());
    w.len_of(lines.len());
    for line in lines {
        w.str(line.model.as_str());
        w.u8(class_number(line.class));
        w.u64(line.tokens);
        w.i64(line.price.get());
        w.i64(line.amount.get());
    }
    w.i64(charged.get());
    w.i64(loss.get());
    w.u8(match outcome {
        SettleOutcome::Completed => 0,
        SettleOutcome::Cancelled => 1,
        SettleOutcome::Failed => 2,
    });
    write_answer(w, answer.as_deref());
}

fn read_settled(r: &mut ByteReader<'_>) -> Result<HoldSettled, MalformedBytes> {
    let hold = HoldId::from_bits(r.u128()?);
    let count = r.len_of()?;
    let mut lines = Vec::with_capacity(count.min(8));
    for _ in 0..count {
        lines.push(ChargeLine {
            model: r.id("model name")?,
            class: read_class(r)?,
            tokens: r.u64()?,
            price: NanoDollarsPerMillion::new(r.i64()?).map_err(|_| r.malformed("price"))?,
            amount: NanoDollars::new(r.i64()?),
        });
    }
    Ok(HoldSettled {
        hold,
        lines,
        charged: NanoDollars::new(r.i64()?),
        loss: NanoDollars::new(r.i64()?),
        outcome: match r.u8()? {
            0 => SettleOutcome::Completed,
            1 => SettleOutcome::Cancelled,
            2 => SettleOutcome::Failed,
            _ => return Err(r.malformed("outcome")),
        },
        answer: read_answer(r)?,
    })
}

pub(crate) fn write_answer(w: &mut ByteWriter, answer: Option<&StoredAnswer>) {
    w.bool(answer.is_some());
    if let Some(StoredAnswer { status, content_type, body }) = answer {
        w.u64(u64::from(*status));
        w.str(content_type);
        w.raw(body);
    }
}

pub(crate) fn read_answer(r: &mut ByteReader<'_>) -> Result<Option<Arc<StoredAnswer>>, MalformedBytes> {
    r.option(|r| {
        Ok(Arc::new(StoredAnswer {
            status: u16::try_from(r.u64()?).map_err(|_| r.malformed("status"))?,
            content_type: r.str()?.to_owned(),
            body: r.raw()?.into(),
        }))
    })
}

const fn class_number(class: TokenClass) -> u8 {
    match class {
        TokenClass::Input => 0,
        TokenClass::CachedInput => 1,
        TokenClass::CacheWrite => 2,
        TokenClass::Output => 3,
        TokenClass::Reasoning => 4,
        TokenClass::CacheWrite1h => 5,
        TokenClass::WebSearch => 6,
    }
}

fn read_class(r: &mut ByteReader<'_>) -> Result<TokenClass, MalformedBytes> {
    let number = r.u8()?;
    TokenClass::BILLED
        .into_iter()
        .find(|class| class_number(*class) == number)
        .ok_or_else(|| r.malformed("token class"))
}

pub(crate) fn write_reason(w: &mut ByteWriter, why: ReleaseReason) {
    w.u8(match why {
        ReleaseReason::Refused => 0,
        ReleaseReason::Failed => 1,
        ReleaseReason::Cancelled => 2,
        ReleaseReason::Rerouted => 3,
        ReleaseReason::Orphaned => 4,
        ReleaseReason::Expired => 5,
    });
}

pub(crate) fn read_reason(r: &mut ByteReader<'_>) -> Result<ReleaseReason, MalformedBytes> {
    Ok(match r.u8()? {
        0 => ReleaseReason::Refused,
        1 => ReleaseReason::Failed,
        2 => ReleaseReason::Cancelled,
        3 => ReleaseReason::Rerouted,
        4 => ReleaseReason::Orphaned,
        5 => ReleaseReason::Expired,
        _ => return Err(r.malformed("release reason")),
    })
}

fn write_account(w: &mut ByteWriter, account: &Account) {
    match account {
        Account::PaidIn => w.u8(0),
        Account::Promotional => w.u8(1),
        Account::Revenue => w.u8(2),
        Account::Loss => w.u8(3),
        Account::Refunded => w.u8(6),
        Account::Expired => w.u8(7),
        Account::Lot(lot) => {
            w.u8(8);
            w.u64(lot.get());
        }
        Account::Receivable(org) => {
            w.u8(9);
            w.str(org.as_str());
        }
        Account::Available(org) => {
            w.u8(4);
            w.str(org.as_str());
        }
        Account::Held(project) => {
            w.u8(5);
            w.str(project.as_str());
        }
    }
}

fn read_account(r: &mut ByteReader<'_>) -> Result<Account, MalformedBytes> {
    Ok(match r.u8()? {
        0 => Account::PaidIn,
        1 => Account::Promotional,
        2 => Account::Revenue,
        3 => Account::Loss,
        4 => Account::Available(r.id("org id")?),
        5 => Account::Held(r.id("project id")?),
        6 => Account::Refunded,
        7 => Account::Expired,
        8 => Account::Lot(read_lot_id(r)?),
        9 => Account::Receivable(r.id("org id")?),
        _ => return Err(r.malformed("account")),
    })
}
