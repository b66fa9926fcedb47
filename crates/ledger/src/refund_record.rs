//! Encodes refunds, for journal rows of format 6 and snapshots of format 3. A change of shape takes a new format number.

use headrace_domain::{HoldId, NanoDollars};

use crate::codec::{ByteReader, ByteWriter, MalformedBytes};
use crate::refund::ChargeRefunded;
use crate::refund_state::{RefundState, RefundedCharge};

pub(crate) fn write_refund(w: &mut ByteWriter, refund: &ChargeRefunded) {
    let ChargeRefunded { hold, org, project, charged, amount, reference } = refund;
    w.u128(hold.bits());
    w.str(org.as_str());
    w.str(project.as_str());
    w.i64(charged.get());
    w.i64(amount.get());
    w.str(reference);
}

pub(crate) fn read_refund(r: &mut ByteReader<'_>) -> Result<ChargeRefunded, MalformedBytes> {
    Ok(ChargeRefunded {
        hold: HoldId::from_bits(r.u128()?),
        org: r.id("org id")?,
        project: r.id("project id")?,
        charged: NanoDollars::new(r.i64()?),
        amount: NanoDollars::new(r.i64()?),
        reference: r.str()?.into(),
    })
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
