//! Encodes lots, free tiers and the shares of holds, for journal rows of format 6 and snapshots of format 3. A change of
//! shape takes a new format number.

use std::sync::Arc;

use headrace_domain::{ModelName, NanoDollars, UnixNanos};

use crate::budget_record::{read_reservations, read_rule, write_reservations, write_rule};
use crate::codec::{ByteReader, ByteWriter, MalformedBytes};
use crate::command::LowBalance;
use crate::free_tier::FreeTier;
use crate::lot::{CreditLot, FundingShare, HoldFunding, LotId, LotKind, LotTerms, MoneySource};

pub(crate) fn write_lot(w: &mut ByteWriter, lot: &CreditLot) {
    let CreditLot { id, org, terms } = lot;
    let LotTerms { kind, amount, begins, ends, models, reference } = terms;
    w.u64(id.get());
    w.str(org.as_str());
    w.u8(match kind {
        LotKind::Paid => 0,
        LotKind::Promotional => 1,
        LotKind::Contract => 2,
    });
    w.i64(amount.get());
    w.u64(begins.get());
    w.bool(ends.is_some());
    if let Some(ends) = ends {
        w.u64(ends.get());
    }
    write_models(w, models.as_deref());
    w.str(reference);
}

pub(crate) fn read_lot(r: &mut ByteReader<'_>) -> Result<CreditLot, MalformedBytes> {
    Ok(CreditLot {
        id: read_lot_id(r)?,
        org: r.id("org id")?,
        terms: LotTerms {
            kind: match r.u8()? {
                0 => LotKind::Paid,
                1 => LotKind::Promotional,
                2 => LotKind::Contract,
                _ => return Err(r.malformed("lot kind")),
            },
            amount: NanoDollars::new(r.i64()?),
            begins: UnixNanos::new(r.u64()?),
            ends: r.option(|r| Ok(UnixNanos::new(r.u64()?)))?,
            models: read_models(r)?,
            reference: r.str()?.into(),
        },
    })
}

pub(crate) fn read_lot_id(r: &mut ByteReader<'_>) -> Result<LotId, MalformedBytes> {
    Ok(LotId::new(r.u64()?))
}

pub(crate) fn write_low_balance(w: &mut ByteWriter, policy: LowBalance) {
    w.u8(match policy {
        LowBalance::Refuse => 0,
        LowBalance::Cap => 1,
    });
}

pub(crate) fn read_low_balance(r: &mut ByteReader<'_>) -> Result<LowBalance, MalformedBytes> {
    match r.u8()? {
        0 => Ok(LowBalance::Refuse),
        1 => Ok(LowBalance::Cap),
        _ => Err(r.malformed("policy for a low balance")),
    }
}

pub(crate) fn write_models(w: &mut ByteWriter, models: Option<&[ModelName]>) {
    w.bool(models.is_some());
    if let Some(models) = models {
        w.len_of(models.len());
        models.iter().for_each(|model| w.str(model.as_str()));
    }
}

pub(crate) fn read_models(r: &mut ByteReader<'_>) -> Result<Option<Arc<[ModelName]>>, MalformedBytes> {
    r.option(|r| {
        let count = r.len_of()?;
        (0..count).map(|_| r.id("model name")).collect()
    })
}

pub(crate) fn write_free_tier(w: &mut ByteWriter, tier: &FreeTier) {
    let FreeTier { rule, models } = tier;
    write_rule(w, rule);
    write_models(w, models.as_deref());
}

pub(crate) fn read_free_tier(r: &mut ByteReader<'_>) -> Result<FreeTier, MalformedBytes> {
    Ok(FreeTier { rule: read_rule(r)?, models: read_models(r)? })
}

pub(crate) fn write_funding(w: &mut ByteWriter, funding: &HoldFunding) {
    let HoldFunding { shares } = funding;
    w.len_of(shares.len());
    for FundingShare { source, amount, free } in shares {
        match source {
            MoneySource::Balance => w.u8(0),
            MoneySource::Lot(id) => {
                w.u8(1);
                w.u64(id.get());
            }
            MoneySource::Contract(id) => {
                w.u8(2);
                w.u64(id.get());
            }
            MoneySource::Free => {
                w.u8(3);
                write_reservations(w, free.as_slice());
            }
        }
        w.i64(amount.get());
    }
}

pub(crate) fn read_funding(r: &mut ByteReader<'_>) -> Result<HoldFunding, MalformedBytes> {
    let count = r.len_of()?;
    let share = |_| {
        let (source, free) = match r.u8()? {
            0 => (MoneySource::Balance, None),
            1 => (MoneySource::Lot(read_lot_id(r)?), None),
            2 => (MoneySource::Contract(read_lot_id(r)?), None),
            3 => {
                let mut reservations = read_reservations(r)?;
                if reservations.len() != 1 {
                    return Err(r.malformed("reservation of a free tier"));
                }
                (MoneySource::Free, reservations.pop())
            }
            _ => return Err(r.malformed("source of money")),
        };
        Ok(FundingShare { source, amount: NanoDollars::new(r.i64()?), free })
    };
    Ok(HoldFunding { shares: (0..count).map(share).collect::<Result<_, _>>()? })
}
