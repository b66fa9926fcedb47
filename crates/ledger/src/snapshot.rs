//! Encodes a state as the payload of a snapshot, in one canonical order: equal states give equal bytes. Format 2 adds budget
//! rules, and format 3 refunds, lots and free tiers. Each is used only if there were any. Does not know where snapshots are kept.

use std::sync::Arc;

use headrace_domain::{HoldId, NanoDollars, OrgId, ProjectId, UnixNanos};

use crate::budget_record::{read_budgeted, write_budgeted};
use crate::budget_snapshot::{read_budgets, write_budgets};
use crate::calendar::MonthNumber;
use crate::codec::{ByteReader, ByteWriter, MalformedBytes};
use crate::command::LowBalance;
use crate::journal::{JournalError, SNAPSHOT_FORMAT_VERSION, StateSnapshot};
use crate::lot_record::{read_funding, read_low_balance, write_funding, write_low_balance};
use crate::lot_snapshot::{read_free_tiers, read_lots, write_free_tiers, write_lots};
use crate::record::{
    read_answer, read_budget, read_held, read_reason, write_answer, write_budget, write_held, write_reason,
};
use crate::refund_record::{read_refunds, write_refunds};
use crate::refusal::HoldResolution;
use crate::state::{
    FinishedAnswer, IdempotencyEntry, LedgerState, OrgAccount, PlatformAccounts, ProjectAccount, StateCounts,
};

/// The format of a state without budget rules.
const FIRST_FORMAT: u32 = 1;
/// The format of a state with budget rules.
pub(crate) const BUDGET_FORMAT: u32 = 2;
/// The format of a state with refunds, lots or free tiers. It always has all of them and budget rules, possibly none.
pub(crate) const LOT_FORMAT: u32 = 3;

/// Returns the payload of a snapshot and its format.
pub(crate) fn encode(state: &LedgerState) -> (u32, Vec<u8>) {
    let has_lots = !state.refunds.is_unused()
        || !state.lots.is_unused()
        || !state.free_tiers.is_unused()
        || state.projects.values().any(|project| project.low_balance != LowBalance::default());
    let has_budgets =
        has_lots || !state.budgets.is_unused() || state.open.values().any(|held| held.budgeted.is_some());
    let format = match (has_lots, has_budgets) {
        (true, _) => LOT_FORMAT,
        (false, true) => BUDGET_FORMAT,
        (false, false) => FIRST_FORMAT,
    };
    let mut w = ByteWriter::default();
    w.u64(state.time.get());
    let StateCounts { transactions, holds, settled, released } = state.counts;
    [transactions, holds, settled, released].into_iter().for_each(|n| w.u64(n));
    let PlatformAccounts { paid_in, promotional, revenue, loss, refunded, expired } = state.platform;
    [paid_in, promotional, revenue, loss].into_iter().for_each(|n| w.i64(n));
    if has_lots {
        [refunded, expired].into_iter().for_each(|n| w.i64(n));
    }

    let mut orgs: Vec<_> = state.orgs.iter().collect();
    orgs.sort_unstable_by_key(|(id, _)| *id);
    w.len_of(orgs.len());
    for (id, org) in orgs {
        w.str(id.as_str());
        w.i64(org.available);
        if has_lots {
            w.i64(org.receivable);
        }
    }

    let mut projects: Vec<_> = state.projects.iter().collect();
    projects.sort_unstable_by_key(|(id, _)| *id);
    w.len_of(projects.len());
    for (id, project) in projects {
        w.str(id.as_str());
        w.str(project.org.as_str());
        w.i64(project.held);
        w.i64(project.spent);
        w.u64(u64::from(project.month.0));
        w.i64(project.spent_in_month);
        write_budget(&mut w, project.budget);
        if has_lots {
            write_low_balance(&mut w, project.low_balance);
        }
    }

    let open = state.open_holds();
    w.len_of(open.len());
    for held in &open {
        write_held(&mut w, held);
        if has_budgets {
            w.bool(held.budgeted.is_some());
            if let Some(budgeted) = &held.budgeted {
                write_budgeted(&mut w, budgeted);
            }
        }
        if has_lots {
            w.bool(held.funding.is_some());
            if let Some(funding) = &held.funding {
                write_funding(&mut w, funding);
            }
        }
    }

    w.len_of(state.resolved.len());
    for (hold, how) in state.resolved.iter() {
        w.u128(hold.bits());
        match how {
            HoldResolution::Released { why } => {
                w.u8(0);
                write_reason(&mut w, *why);
            }
            HoldResolution::Settled { charged } => {
                w.u8(1);
                w.i64(charged.get());
            }
        }
    }
    encode_keys(&mut w, state);
    if has_budgets {
        write_budgets(&mut w, &state.budgets, state.time);
    }
    if has_lots {
        write_refunds(&mut w, &state.refunds);
        write_lots(&mut w, &state.lots);
        write_free_tiers(&mut w, &state.free_tiers, state.time);
    }
    (format, w.into_bytes())
}

/// Encodes the keys of finished calls, oldest first. The keys of running calls are part of their holds.
fn encode_keys(w: &mut ByteWriter, state: &LedgerState) {
    let finished = state.finished.iter().filter_map(|(_, project, name)| {
        let key = state.projects.get(project)?.keys.get(name)?;
        Some((project, name, key, key.finished.as_ref()?))
    });
    let finished: Vec<_> = finished.collect();
    w.len_of(finished.len());
    for (project, name, key, FinishedAnswer { until, answer }) in finished {
        w.str(project.as_str());
        w.str(name);
        w.u128(key.hold.bits());
        w.hash(&key.request_hash);
        w.u64(until.get());
        write_answer(w, answer.as_deref());
    }
}

/// Decodes the state in a snapshot. Checks its format and checksum.
pub(crate) fn decode(snapshot: &StateSnapshot) -> Result<LedgerState, JournalError> {
    let corrupt = |why: String| JournalError::Corrupt { sequence: snapshot.sequence, why };
    if snapshot.format_version > SNAPSHOT_FORMAT_VERSION {
        return Err(JournalError::NewerFormat {
            what: "snapshot",
            found: snapshot.format_version,
            known: SNAPSHOT_FORMAT_VERSION,
        });
    }
    if !(FIRST_FORMAT..=LOT_FORMAT).contains(&snapshot.format_version) {
        return Err(corrupt("its snapshot has a format that never was".into()));
    }
    if snapshot.computed_checksum() != snapshot.checksum {
        return Err(corrupt("its snapshot's checksum does not match its content".into()));
    }
    decode_state(&snapshot.payload, snapshot.format_version)
        .map_err(|error| corrupt(format!("its snapshot: {error}")))
}

fn decode_state(payload: &[u8], format: u32) -> Result<LedgerState, MalformedBytes> {
    let (has_budgets, has_lots) = (format >= BUDGET_FORMAT, format >= LOT_FORMAT);
    let r = &mut ByteReader::new(payload);
    let mut state = LedgerState { time: UnixNanos::new(r.u64()?), ..LedgerState::default() };
    state.counts =
        StateCounts { transactions: r.u64()?, holds: r.u64()?, settled: r.u64()?, released: r.u64()? };
    state.platform = PlatformAccounts {
        paid_in: r.i64()?,
        promotional: r.i64()?,
        revenue: r.i64()?,
        loss: r.i64()?,
        refunded: if has_lots { r.i64()? } else { 0 },
        expired: if has_lots { r.i64()? } else { 0 },
    };

    for _ in 0..r.len_of()? {
        let id: OrgId = r.id("org id")?;
        let available = r.i64()?;
        state.available_total =
            state.available_total.checked_add(available).ok_or_else(|| r.malformed("available balance"))?;
        if state.orgs.contains(&id) {
            return Err(r.malformed("an organisation that is there twice"));
        }
        let receivable = if has_lots { r.i64()? } else { 0 };
        state.receivable_total =
            state.receivable_total.checked_add(receivable).ok_or_else(|| r.malformed("a receivable"))?;
        state.orgs.place_or_insert(&id, || OrgAccount { available, receivable, ..OrgAccount::default() });
    }
    for _ in 0..r.len_of()? {
        let id: ProjectId = r.id("project id")?;
        let mut project = decode_project(r, &state)?;
        if has_lots {
            project.low_balance = read_low_balance(r)?;
        }
        let overflow = r.malformed("held balance");
        let org = state.orgs.at_mut(project.org_place).ok_or_else(|| r.malformed("a project's org"))?;
        org.held = org.held.checked_add(project.held).ok_or_else(|| overflow.clone())?;
        state.held_total = state.held_total.checked_add(project.held).ok_or(overflow)?;
        if state.projects.contains(&id) {
            return Err(r.malformed("a project that is there twice"));
        }
        state.projects.place_or_insert(&id, || project);
    }
    for _ in 0..r.len_of()? {
        let mut held = read_held(r)?;
        if has_budgets {
            held.budgeted = r.option(|r| read_budgeted(r).map(Box::new))?;
        }
        if has_lots {
            held.funding = r.option(|r| read_funding(r).map(Box::new))?;
        }
        let parties = state.parties_of(&held.project);
        let is_orgs = state.projects.get(&held.project).is_some_and(|project| project.org == held.org);
        if !is_orgs || !state.insert_open(&held, parties) {
            return Err(r.malformed("a hold's project"));
        }
    }
    for _ in 0..r.len_of()? {
        let hold = HoldId::from_bits(r.u128()?);
        let how = match r.u8()? {
            0 => HoldResolution::Released { why: read_reason(r)? },
            1 => HoldResolution::Settled { charged: NanoDollars::new(r.i64()?) },
            _ => return Err(r.malformed("resolution")),
        };
        state.resolved.insert(hold, how);
    }
    for _ in 0..r.len_of()? {
        let project: ProjectId = r.id("project id")?;
        let name: Arc<str> = r.str()?.into();
        let key =
            IdempotencyEntry { hold: HoldId::from_bits(r.u128()?), request_hash: r.hash()?, finished: None };
        let finished = FinishedAnswer { until: UnixNanos::new(r.u64()?), answer: read_answer(r)? };
        let known = state.projects.get_mut(&project).ok_or_else(|| r.malformed("a key's project"))?;
        known.keys.insert(Arc::clone(&name), key);
        state.finish_key(&project, &name, finished);
    }
    if has_budgets {
        read_budgets(r, &mut state.budgets)?;
    }
    if has_lots {
        read_refunds(r, &mut state.refunds)?;
        read_lots(r, &mut state.lots)?;
        state.count_held_contracts();
        read_free_tiers(r, &mut state.free_tiers)?;
    }
    r.end()?;
    Ok(state)
}

fn decode_project(r: &mut ByteReader<'_>, state: &LedgerState) -> Result<ProjectAccount, MalformedBytes> {
    let org: OrgId = r.id("org id")?;
    let place = state.orgs.place(&org).ok_or_else(|| r.malformed("a project's org"))?;
    let mut project = ProjectAccount::new(org, place);
    project.held = r.i64()?;
    project.spent = r.i64()?;
    project.month = MonthNumber(u32::try_from(r.u64()?).map_err(|_| r.malformed("month"))?);
    project.spent_in_month = r.i64()?;
    project.budget = read_budget(r)?;
    Ok(project)
}
