//! Compares a ledger's file after a crash with the changes that were acknowledged to the child.

use std::collections::HashMap;
use std::path::Path;

use headrace_domain::{HoldId, NanoDollars, UnixNanos};
use headrace_ledger::{JournalEvent, Ledger, Owner, decode_row};
use headrace_store::journal::{SqliteJournal, load_file, verify_file};

use crate::child::{Said, journal_path};

/// How a hold ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Settled(i64),
    Released,
}

/// Every hold in the file, and how it ended.
type Holds = HashMap<HoldId, Option<End>>;

/// Reads every transaction. A hold that ends twice is an error.
fn holds_in(directory: &Path) -> Result<Holds, String> {
    let loaded = load_file(&journal_path(directory)).map_err(|error| error.to_string())?;
    let mut holds = Holds::new();
    for row in &loaded.rows {
        for transaction in decode_row(row).map_err(|error| error.to_string())? {
            let (hold, end) = match transaction.event {
                JournalEvent::Held(held) => {
                    if holds.insert(held.hold, None).is_some() {
                        return Err(format!("{} is taken twice", held.hold));
                    }
                    continue;
                }
                JournalEvent::Settled(settled) => (settled.hold, End::Settled(settled.charged.get())),
                JournalEvent::Released { hold, .. } => (hold, End::Released),
                _ => continue,
            };
            let slot = holds.get_mut(&hold).ok_or_else(|| format!("{hold} ends and was never taken"))?;
            if slot.replace(end).is_some() {
                return Err(format!("{hold} ends twice"));
            }
        }
    }
    Ok(holds)
}

/// The child's messages that the file does not confirm.
fn missing(holds: &Holds, said: &[Said]) -> Vec<String> {
    let wrong = said.iter().filter(|word| match **word {
        Said::Held(hold) => !holds.contains_key(&hold),
        Said::Settled(hold, charged) => holds.get(&hold) != Some(&Some(End::Settled(charged))),
        Said::Released(hold) => holds.get(&hold) != Some(&Some(End::Released)),
        _ => false,
    });
    wrong.map(|word| format!("{word:?}")).collect()
}

/// Checks the file as it is: every invariant, and every change that was acknowledged to the child.
pub(crate) fn check(directory: &Path, said: &[Said]) -> Result<(), String> {
    let report = verify_file(&journal_path(directory)).map_err(|error| error.to_string());
    let acknowledged = said.iter().any(|word| matches!(word, Said::Held(_) | Said::Ready));
    let report = match report {
        Ok(report) => report,
        // Killed before any change was acknowledged, so there may be no ledger yet.
        Err(_) if !acknowledged => return Ok(()),
        Err(error) => return Err(error),
    };
    if !report.ok() {
        return Err(report.to_string());
    }
    let lost = missing(&holds_in(directory)?, said);
    if lost.is_empty() { Ok(()) } else { Err(format!("lost: {}", lost.join(", "))) }
}

/// Opens the file as a new process would. Checks that orphaned holds are released and nothing is charged.
pub(crate) fn start_again(directory: &Path, said: &[Said]) -> Result<(), String> {
    let journal = SqliteJournal::open(&journal_path(directory)).map_err(|error| error.to_string())?;
    let before = holds_in(directory)?;
    let charged = |holds: &Holds| -> i64 {
        holds.values().map(|end| if let Some(End::Settled(charged)) = end { *charged } else { 0 }).sum()
    };
    let (ledger, report) = Ledger::open(Box::new(journal), Owner::new(u128::MAX), UnixNanos::new(0))
        .map_err(|error| error.to_string())?;
    if report.totals.held != NanoDollars::ZERO || report.totals.open_holds != 0 {
        return Err(format!("orphans stay held: {:?}", report.totals));
    }
    if before.values().filter(|end| end.is_none()).count() != report.orphans.len() {
        return Err(format!("not the open holds are orphans: {:?}", report.orphans));
    }
    ledger.close().map_err(|error| error.to_string())?;
    check(directory, said)?;
    let after = holds_in(directory)?;
    if charged(&before) != charged(&after) { Err("an orphan was charged".into()) } else { Ok(()) }
}
