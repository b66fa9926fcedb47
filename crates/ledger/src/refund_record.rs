//! Encodes refunds, for journal rows of format 6 and snapshots of format 3. A change of shape takes a new format number.

use headrace_domain::{HoldId, NanoDollars};

use crate::codec::{ByteReader, ByteWriter, MalformedBytes};
use crate::lot_record::read_lot_id;
use crate::refund::{ChargeRefunded, RefundPart, RefundTarget};
use crate::refund_state::{RefundState, RefundedCharge};

pub(crate) fn write_refund(w: &mut ByteWriter, refund: &ChargeRefunded) {
    let ChargeRefunded { hold, org, project, charged, amount, reference, parts } = refund;
    w.u128(hold.bits());
    w.str(org.as_str());
    w.str(project.as_str());
    w.i64(charged.get());
    w.i64(amount.get());
    w.str(reference);
    w.len_of(parts.len());
    for RefundPart { to, amount } in parts {
        let (tag, lot) = match to {
            RefundTarget::Balance => (0, None),
            RefundTarget::Lot(lot) => (1, Some(lot)),
            RefundTarget::Contract(lot) => (2, Some(lot)),
            RefundTarget::NewLot(lot) => (3, Some(lot)),
        };
        w.u8(tag);
        if let Some(lot) = lot {
            w.u64(lot.get());
        }
        w.i64(amount.get());
    }
}

pub(crate) fn read_refund(r: &mut ByteReader<'_>) -> Result<ChargeRefunded, MalformedBytes> {
    Ok(ChargeRefunded {
        hold: HoldId::from_bits(r.u128()?),
        org: r.id("org id")?,
        project: r.id("project id")?,
        charged: NanoDollars::new(r.i64()?),
        amount: NanoDollars::new(r.i64()?),
        reference: r.str()?.into(),
        parts: {
            let count = r.len_of()?;
            (0..count).map(|_| read_part(r)).collect::<Result<_, _>>()?
        },
    })
}

fn read_part(r: &mut ByteReader<'_>) -> Result<RefundPart, MalformedBytes> {
    let to = match r.u8()? {
        0 => RefundTarget::Balance,
        1 => RefundTarget::Lot(read_lot_id(r)?),
        2 => RefundTarget::Contract(read_lot_id(r)?),
        3 => RefundTarget::NewLot(read_lot_id(r)?),
        _ => return Err(r.malformed("target of a refund")),
    };
    Ok(RefundPart { to, amount: NanoDollars::new(r.i64()?) })
}

/// Encodes all refunds, in one canonical order.
pub(crate) fn write_refunds(w: &mut ByteWriter, refunds: &RefundState) {
    w.len_of(refunds.references.values().map(std::collections::BTreeMap::len).sum());
    for (org, entries) in &refunds.references {
        for (reference, entry) in entries {
            let Some(charge) = refunds.charges.get(&entry.hold) else { continue };
            let RefundedCharge { project, charged, .. } = charge;
            write_refund(
                w,
                &ChargeRefunded {
                    hold: entry.hold,
                    org: org.clone(),
                    project: project.clone(),
                    charged: *charged,
                    amount: entry.amount,
                    reference: reference.clone(),
                    parts: Vec::new(),
                },
            );
        }
    }
}

/// Decodes what [`write_refunds`] encodes.
pub(crate) fn read_refunds(r: &mut ByteReader<'_>, refunds: &mut RefundState) -> Result<(), MalformedBytes> {
    for _ in 0..r.len_of()? {
        let refund = read_refund(r)?;
        refunds.check(&refund).map_err(|why| r.malformed(why))?;
        refunds.note(&refund);
    }
    Ok(())
}
