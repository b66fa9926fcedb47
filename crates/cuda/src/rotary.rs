//! The rotary embeddings of a decoder on the device: their size and their upload. Must not know: how heads are rotated.

use headrace_checkpoint::decoder::QueryGrowth;
use headrace_kernels::math;
use headrace_model::rope;

use crate::attention::RotaryTables;
use crate::device::{Buffer, Device, DeviceError};
use crate::plan::DecoderPlan;

/// Bytes of the tables of all positions.
pub(crate) fn bytes(plan: &DecoderPlan<'_>, positions: usize) -> usize {
    let rows = positions + rope::short_positions(plan.config, positions).unwrap_or(0);
    let tables = plan.config.rotary.iter().map(|rotary| rows * (rotary.width / 2) * 8);
    let growths = plan.rotaries.iter().filter(|rotary| rotary.growth.is_some());
    tables.sum::<usize>() + growths.count() * positions * 4
}

/// Uploads the rotary embeddings of the layers.
pub(crate) fn upload(
    device: &mut dyn Device,
    plan: &DecoderPlan<'_>,
    positions: usize,
) -> Result<Vec<RotaryTables>, DeviceError> {
    let mut tables = Vec::with_capacity(plan.config.rotary.len());
    for table in rope::tables(plan.config, positions) {
        tables.push((floats(device, &table.cos)?, floats(device, &table.sin)?, 2 * table.half));
    }
    let mut rotaries = Vec::with_capacity(plan.rotaries.len());
    for rotary in &plan.rotaries {
        let &(cos, sin, rotated) = tables.get(rotary.table).ok_or_else(|| DeviceError::Shape {
            what: "rotary embedding",
            problem: format!("there is no table {} of {}", rotary.table, tables.len()),
        })?;
        let growth = match rotary.growth {
            Some(growth) => Some(floats(device, &growths(growth, positions))?),
            None => None,
        };
        rotaries.push(RotaryTables { cos, sin, rotated, growth });
    }
    Ok(rotaries)
}

/// The factor on the queries of each position.
fn growths(growth: QueryGrowth, positions: usize) -> Vec<f32> {
    let QueryGrowth { beta, positions: each } = growth;
    let factor = |position: usize| 1.0 + beta * math::ln((1 + position / each.max(1)) as f64) as f32;
    (0..positions).map(factor).collect()
}

fn floats(device: &mut dyn Device, values: &[f32]) -> Result<Buffer, DeviceError> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let buffer = device.allocate(bytes.len())?;
    device.upload(buffer, &bytes)?;
    Ok(buffer)
}
