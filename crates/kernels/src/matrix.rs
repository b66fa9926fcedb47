//! Weights, repacked once at load into panels of 16 output columns, in the type they are stored in.
//! Must not know: what a matrix means to a model, or where its bytes come from.

use headrace_quant::BlockType;

use crate::entry_ints::dispatch_ints;
use crate::error::KernelError;
use crate::formats::{Format, with_format};
use crate::isa::Isa;
use crate::memory::{Region, Shared};
use crate::pack;
use crate::pool::Pool;
use crate::simd::{LANES, bf16_to_f32, f16_to_f32};

/// How a weight is stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WeightType {
    /// 32-bit IEEE.
    F32,
    /// 16-bit IEEE.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// Quantized blocks along a row.
    Block(BlockType),
}

impl WeightType {
    /// The name, as in configuration: `f32`, `f16`, `bf16`, or the block type's.
    pub fn name(self) -> &'static str {
        match self {
            WeightType::F32 => "f32",
            WeightType::F16 => "f16",
            WeightType::Bf16 => "bf16",
            WeightType::Block(kind) => kind.name(),
        }
    }

    /// Bytes of a stored row of `k` weights; `None` if blocks do not divide it, or on overflow.
    pub fn row_bytes(self, k: usize) -> Option<usize> {
        match self {
            WeightType::F32 => k.checked_mul(4),
            WeightType::F16 | WeightType::Bf16 => k.checked_mul(2),
            WeightType::Block(kind) => kind.row_bytes(k),
        }
    }

    /// Little-endian elements of this type as f32. Bytes past the last whole element or block are ignored.
    pub fn widen(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            WeightType::F32 => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
            WeightType::F16 => {
                bytes.as_chunks().0.iter().map(|&b| f16_to_f32(u16::from_le_bytes(b))).collect()
            }
            WeightType::Bf16 => {
                bytes.as_chunks().0.iter().map(|&b| bf16_to_f32(u16::from_le_bytes(b))).collect()
            }
            WeightType::Block(kind) => {
                let blocks = bytes.len() / kind.block_bytes();
                let mut out = vec![0.0; blocks * kind.block_weights()];
                let whole = bytes.get(..blocks * kind.block_bytes()).unwrap_or_default();
                // Cannot fail: the lengths are whole blocks.
                let _ = headrace_quant::dequantize_row(kind, whole, &mut out);
                out
            }
        }
    }
}

/// Some consecutive output rows of a [`Matrix`]: row-major `rows × k`, little-endian, unaligned.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// How the elements are stored.
    pub weight_type: WeightType,
    /// How many output rows.
    pub rows: usize,
    /// `rows` rows of [`WeightType::row_bytes`].
    pub bytes: &'a [u8],
    /// One value per row, added to that output; absent means zero.
    pub bias: Option<&'a [f32]>,
}

/// `n × k` weights (n outputs, k inputs) with an optional bias: `y = W·x + b`.
///
/// Parts of one type that follow each other stand in one [`Section`].
pub struct Matrix {
    sections: Vec<Section>,
    n: usize,
    k: usize,
}

/// Consecutive outputs of one weight type.
///
/// Layout: panels of 16 outputs. Dense types: `[k][16]` (bf16: `[k / 2][16][2]`), so that one vector load takes the weights of 16
/// outputs; quantized ones: see `formats`. The distance between two panels is an odd number of cache lines: streams
/// read side by side then never stand at a power of two from each other. Outputs past `n` in the last panel are zero.
pub(crate) struct Section {
    region: Region,
    weight_type: WeightType,
    /// The first output in the matrix.
    first: usize,
    n: usize,
    k: usize,
    panel_bytes: usize,
    bias: Option<Vec<f32>>,
}

const LINE_BYTES: usize = 64;
/// Cache lines between two panels, beyond the panel itself.
const PAD_LINES: usize = 5;

/// Bytes of a panel's weights.
fn filled_bytes(weight_type: WeightType, k: usize) -> usize {
    match weight_type {
        WeightType::F32 => k * LANES * 4,
        WeightType::F16 => k * LANES * 2,
        WeightType::Bf16 => k.next_multiple_of(2) * LANES * 2,
        WeightType::Block(kind) => with_format!(kind, F => k.div_ceil(F::SPAN) * F::BYTES),
    }
}

/// Bytes from one panel to the next.
fn panel_bytes(weight_type: WeightType, k: usize) -> usize {
    let lines = filled_bytes(weight_type, k).div_ceil(LINE_BYTES) + PAD_LINES;
    (lines | 1) * LINE_BYTES
}

impl Matrix {
    /// Packs `parts`, one below the other, on the pool's threads. Errors when a part's length is not `rows` rows of `k`,
    /// when blocks do not divide `k`, or when there is no memory.
    pub fn pack(pool: &mut Pool, parts: &[Part<'_>], k: usize) -> Result<Matrix, KernelError> {
        let mut matrix = Matrix { sections: Vec::new(), n: 0, k };
        for run in parts.chunk_by(|a, b| a.weight_type == b.weight_type) {
            let section = Section::pack(pool, run, k, matrix.n)?;
            matrix.n += section.n;
            matrix.sections.push(section);
        }
        Ok(matrix)
    }

    /// Bytes that parts of these types and numbers of rows take when packed with `k` inputs.
    pub fn packed_bytes(parts: &[(WeightType, usize)], k: usize) -> usize {
        let runs = parts.chunk_by(|a, b| a.0 == b.0).filter_map(|run| {
            let &(weight_type, _) = run.first()?;
            let n: usize = run.iter().map(|&(_, rows)| rows).sum();
            Some(n.div_ceil(LANES).saturating_mul(panel_bytes(weight_type, k)))
        });
        runs.fold(0, usize::saturating_add)
    }

    /// How many outputs.
    pub fn n(&self) -> usize {
        self.n
    }

    /// How many inputs.
    pub fn k(&self) -> usize {
        self.k
    }

    /// How the weights are stored: a type for each run of outputs, with their number.
    pub fn weight_types(&self) -> impl Iterator<Item = (WeightType, usize)> {
        self.sections.iter().map(|section| (section.weight_type, section.n))
    }

    /// Bytes of memory held.
    pub fn bytes(&self) -> usize {
        let bias = |section: &Section| section.bias.as_ref().map_or(0, |bias| bias.len() * 4);
        self.sections.iter().map(|section| section.region.bytes() + bias(section)).sum()
    }

    /// Bytes of weights that a product reads: what is held without the gaps between panels.
    pub fn read_bytes(&self) -> usize {
        let read = |s: &Section| s.panels() * filled_bytes(s.weight_type, s.k);
        self.sections.iter().map(read).sum()
    }

    /// Writes row `row` (the weights of one output) to `out`, widened: the lookup of a token's embedding. Errors when `row`
    /// is not below `n` or `out` is not `k` long.
    pub fn row(&self, isa: Isa, row: usize, out: &mut [f32]) -> Result<(), KernelError> {
        let section = self.sections.iter().rev().find(|section| section.first <= row && row < self.n);
        let Some(section) = section.filter(|_| out.len() == self.k) else {
            let (n, found, k) = (self.n, out.len(), self.k);
            return Err(KernelError::shape(format!("row {row} of {n}, {found} of {k} long")));
        };
        section.row(isa, row - section.first, out);
        Ok(())
    }

    pub(crate) fn sections(&self) -> &[Section] {
        &self.sections
    }
}

impl Section {
    /// Packs parts of one type; `first` is the section's first output in its matrix.
    fn pack(pool: &mut Pool, parts: &[Part<'_>], k: usize, first: usize) -> Result<Section, KernelError> {
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
            // SAFETY: panel `panel` is inside the region, zeroed by the system, and each task has one panel to itself.
            let out = unsafe { std::slice::from_raw_parts_mut(start.get().add(panel * stride), filled) };
            pack::panel(weight_type, parts, k, panel, out);
        })?;
        let bias = parts.iter().any(|part| part.bias.is_some()).then(|| gather_bias(parts, panels * LANES));
        Ok(Section { region, weight_type, first, n, k, panel_bytes: stride, bias })
    }

    fn row(&self, isa: Isa, row: usize, out: &mut [f32]) {
        let panel = self.panel(row / LANES);
        let lane = row % LANES;
        if let WeightType::Block(kind) = self.weight_type {
            dispatch_ints!(isa, expand_row(self, kind, row, out));
            return;
        }
        for (i, value) in out.iter_mut().enumerate() {
            // SAFETY: i < k and lane < 16, so the element is inside the panel.
            *value = unsafe {
                match self.weight_type {
                    WeightType::F16 => f16_to_f32(*panel.cast::<u16>().add(i * LANES + lane)),
                    WeightType::Bf16 => {
                        bf16_to_f32(*panel.cast::<u16>().add((i / 2 * LANES + lane) * 2 + i % 2))
                    }
                    WeightType::F32 | WeightType::Block(_) => *panel.cast::<f32>().add(i * LANES + lane),
                }
            };
        }
    }

    /// How many outputs.
    pub(crate) fn n(&self) -> usize {
        self.n
    }

    /// How many inputs.
    pub(crate) fn k(&self) -> usize {
        self.k
    }

    /// The section's first output in its matrix.
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

    /// Bytes of a panel's weights.
    pub(crate) fn filled_bytes(&self) -> usize {
        filled_bytes(self.weight_type, self.k)
    }

    /// The start of a panel, aligned to a cache line. `panel` must be below `panels`.
    pub(crate) fn panel(&self, panel: usize) -> *const u8 {
        debug_assert!(panel < self.panels());
        self.region.start().wrapping_add(panel * self.panel_bytes)
    }

    /// The bias, padded to whole panels.
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
