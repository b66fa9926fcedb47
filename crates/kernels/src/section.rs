//! Weights of one type, repacked once at load into panels of 16 output columns.
//! Must not know: what a matrix means to a model, or where its bytes come from.

use crate::error::KernelError;
use crate::formats::with_format;
use crate::memory::{Region, Shared};
use crate::pack;
use crate::packed::Format;
use crate::pool::Pool;
use crate::shapes::LANES;
use crate::simd::{bf16_to_f32, f16_to_f32};
use crate::weight_type::{Part, WeightType};

/// Consecutive outputs of one weight type.
///
/// Layout: panels of 16 outputs. Dense types are `[k][16]` (bf16: `[k / 2][16][2]`), so that one vector load takes
/// the weights of 16 outputs. For quantized types see `formats`. The distance between two panels is an odd number of
/// cache lines. Streams that are read side by side are therefore never a power of two apart. Outputs past `n` in the
/// last panel are zero.
pub(crate) struct Section {
    region: Region,
    weight_type: WeightType,
    /// Index of the section's first output in its matrix.
    first: usize,
    n: usize,
    k: usize,
    panel_bytes: usize,
    bias: Option<Vec<f32>>,
}

const LINE_BYTES: usize = 64;
/// Cache lines of padding after a panel.
const PAD_LINES: usize = 5;

/// Returns the bytes of a panel's weights, without padding.
fn filled_bytes(weight_type: WeightType, k: usize) -> usize {
    match weight_type {
        WeightType::F32 => k * LANES * 4,
        WeightType::F16 => k * LANES * 2,
        WeightType::Bf16 => k.next_multiple_of(2) * LANES * 2,
        WeightType::Block(kind) => with_format!(kind, F => k.div_ceil(F::SPAN) * F::BYTES),
    }
}

/// Returns the bytes from one panel to the next.
pub(crate) fn panel_bytes(weight_type: WeightType, k: usize) -> usize {
    let lines = filled_bytes(weight_type, k).div_ceil(LINE_BYTES) + PAD_LINES;
    (lines | 1) * LINE_BYTES
}

impl Section {
    /// Packs parts of one type. `first` is the index of the section's first output in its matrix.
    pub(crate) fn pack(
        pool: &mut Pool,
        parts: &[Part<'_>],
        k: usize,
        first: usize,
    ) -> Result<Section, KernelError> {
        let weight_type = parts.first().map_or(WeightType::F32, |part| part.weight_type);
        let mut n = 0_usize;
        for part in parts {
            let wanted = weight_type.row_bytes(k).and_then(|row| row.checked_mul(part.rows));
            if wanted != Some(part.bytes.len()) {
                let (rows, found, name) = (part.rows, part.bytes.len(), weight_type.name());
                return Err(KernelError::shape(format!("{rows} × {k} {name} weights of {found} bytes")));
            }
            if part.bias.is_some_and(|bias| bias.len() != part.rows) {
                return Err(KernelError::shape(format!("a bias for {} rows of another length", part.rows)));
            }
            n += part.rows;
        }
        let (panels, filled, stride) =
            (n.div_ceil(LANES), filled_bytes(weight_type, k), panel_bytes(weight_type, k));
        let bytes = panels.checked_mul(stride).ok_or(KernelError::OutOfMemory { bytes: usize::MAX })?;
        let region = Region::zeroed(bytes)?;
        let start = Shared(region.start());
        pool.run(panels, |panel, _| {
            // SAFETY: panel `panel` is inside the region, which the system zeroed, and each task has its own panel.
            let out = unsafe { std::slice::from_raw_parts_mut(start.get().add(panel * stride), filled) };
            pack::panel(weight_type, parts, k, panel, out);
        })?;
        let bias = parts.iter().any(|part| part.bias.is_some()).then(|| gather_bias(parts, panels * LANES));
        Ok(Section { region, weight_type, first, n, k, panel_bytes: stride, bias })
    }

    /// Returns element `i` of row `row`, widened. `row` must be below `n`, `i` below `k`, and the section dense.
    pub(crate) fn element(&self, row: usize, i: usize) -> f32 {
        let (panel, lane) = (self.panel(row / LANES), row % LANES);
        // SAFETY: i < k and lane < 16, so the element is inside the panel.
        unsafe {
            match self.weight_type {
                WeightType::F16 => f16_to_f32(*panel.cast::<u16>().add(i * LANES + lane)),
                WeightType::Bf16 => bf16_to_f32(*panel.cast::<u16>().add((i / 2 * LANES + lane) * 2 + i % 2)),
                WeightType::F32 | WeightType::Block(_) => *panel.cast::<f32>().add(i * LANES + lane),
            }
        }
    }

    /// Returns the bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        self.region.bytes() + self.bias.as_ref().map_or(0, |bias| bias.len() * 4)
    }

    /// Number of outputs.
    pub(crate) fn n(&self) -> usize {
        self.n
    }

    /// Number of inputs.
    pub(crate) fn k(&self) -> usize {
        self.k
    }

    /// Index of the section's first output in its matrix.
    pub(crate) fn first(&self) -> usize {
        self.first
    }

    pub(crate) fn weight_type(&self) -> WeightType {
        self.weight_type
    }

    pub(crate) fn panels(&self) -> usize {
        self.n.div_ceil(LANES)
    }

    /// Bytes from one panel to the next.
    pub(crate) fn panel_bytes(&self) -> usize {
        self.panel_bytes
    }

    /// Bytes of a panel's weights, without padding.
    pub(crate) fn filled_bytes(&self) -> usize {
        filled_bytes(self.weight_type, self.k)
    }

    /// Returns the start of a panel, aligned to a cache line. `panel` must be below `panels`.
    pub(crate) fn panel(&self, panel: usize) -> *const u8 {
        debug_assert!(panel < self.panels());
        self.region.start().wrapping_add(panel * self.panel_bytes)
    }

    /// Returns the bias, padded to whole panels.
    pub(crate) fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }
}

fn gather_bias(parts: &[Part<'_>], padded: usize) -> Vec<f32> {
    let mut all = Vec::with_capacity(padded);
    for part in parts {
        match part.bias {
            Some(bias) => all.extend_from_slice(bias),
            None => all.resize(all.len() + part.rows, 0.0),
        }
    }
    all.resize(padded, 0.0);
    all
}
