//! Encodes lots and free tiers as a part of a snapshot, in one canonical order.

use headrace_domain::UnixNanos;

use crate::budget_snapshot::{read_budgets, write_budgets};
use crate::codec::{ByteReader, ByteWriter, MalformedBytes};
use crate::free_tier_state::FreeTierState;
use crate::lot_record::{read_lot, read_models, write_lot, write_models};
use crate::lot_state::LotState;

/// Encodes all lots with what is left of each.
pub(crate) fn write_lots(w: &mut ByteWriter, lots: &LotState) {
    w.u64(lots.last_number);
    w.len_of(lots.lots.len());
    for of in lots.lots.values() {
        write_lot(w, &of.lot);
        w.i64(of.left);
    }
}

/// Decodes what [`write_lots`] encodes.
pub(crate) fn read_lots(r: &mut ByteReader<'_>, lots: &mut LotState) -> Result<(), MalformedBytes> {
    let last = r.u64()?;
    let mut before = 0;
    for _ in 0..r.len_of()? {
        let (lot, left) = (read_lot(r)?, r.i64()?);
        let number = lot.id.get();
        if number <= before || number > last || left < 0 || lots.total.checked_add(left).is_none() {
            return Err(r.malformed("a lot"));
        }
        before = number;
        lots.insert(lot, left);
    }
    lots.last_number = last;
    Ok(())
}

/// Encodes all free tiers with their counters, at ledger time `now`.
pub(crate) fn write_free_tiers(w: &mut ByteWriter, tiers: &FreeTierState, now: UnixNanos) {
    write_budgets(w, &tiers.budgets, now);
    w.len_of(tiers.models.len());
    for (number, models) in &tiers.models {
        w.u64(*number);
        write_models(w, Some(models));
    }
}

/// Decodes what [`write_free_tiers`] encodes.
pub(crate) fn read_free_tiers(
    r: &mut ByteReader<'_>,
    tiers: &mut FreeTierState,
) -> Result<(), MalformedBytes> {
    read_budgets(r, &mut tiers.budgets)?;
    for _ in 0..r.len_of()? {
        let number = r.u64()?;
        let models = read_models(r)?.ok_or_else(|| r.malformed("the models of a free tier"))?;
        if tiers.budgets.by_number(number).is_none() {
            return Err(r.malformed("the models of a free tier"));
        }
        tiers.models.insert(number, models);
    }
    Ok(())
}
