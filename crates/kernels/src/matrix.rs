//! Dense weights, repacked once at load into panels of 16 output columns, in the element type they are stored in.
//! Must not know: what a matrix means to a model, or where its bytes come from.

use crate::error::KernelError;
use crate::memory::{Region, Shared};
use crate::pool::Pool;
use crate::simd::{LANES, bf16_to_f32, f16_to_f32};

/// How a weight is stored. It is widened to f32 in registers; products and sums are f32.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WeightType {
    /// 32-bit IEEE.
    F32,
    /// 16-bit IEEE.
    F16,
    /// The upper half of an f32.
    Bf16,
}

impl WeightType {
    /// Bytes of one weight.
    pub fn bytes(self) -> usize {
        match self {
            WeightType::F32 => 4,
            WeightType::F16 | WeightType::Bf16 => 2,
        }
    }

    /// Little-endian elements of this type as f32 (bytes past the last whole element are ignored).
    pub fn widen(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            WeightType::F32 => bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
            WeightType::F16 => {
                bytes.as_chunks().0.iter().map(|&b| f16_to_f32(u16::from_le_bytes(b))).collect()
            }
            WeightType::Bf16 => {
                bytes.as_chunks().0.iter().map(|&b| bf16_to_f32(u16::from_le_bytes(b))).collect()
            }
        }
    }
}

/// Some consecutive output rows of a [`Matrix`]: row-major `rows × k` little-endian elements, unaligned.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// How the elements are stored.
    pub weight_type: WeightType,
    /// How many output rows.
    pub rows: usize,
    /// `rows · k` elements.
    pub bytes: &'a [u8],
    /// One value per row, added to that output; absent means zero.
    pub bias: Option<&'a [f32]>,
}

/// `n × k` weights (n outputs, k inputs) with an optional bias: `y = W·x + b`.
///
/// Layout: panels of 16 outputs, each `[k][16]`, so that one vector load takes the weights of 16 outputs for one
/// input. The distance between two panels is an odd number of cache lines: streams read side by side then never
/// stand at a power of two from each other. Outputs past `n` in the last panel are zero.
pub struct Matrix {
    region: Region,
    weight_type: WeightType,
    n: usize,
    k: usize,
    panel_bytes: usize,
    bias: Option<Vec<f32>>,
}

const LINE_BYTES: usize = 64;
/// Cache lines between two panels, beyond the panel itself.
const PAD_LINES: usize = 5;
/// Elements of one row that are transposed at a time: 16 rows of them stay in the first-level cache.
const PACK_BLOCK: usize = 64;

/// Bytes from one panel to the next.
fn panel_bytes(weight_type: WeightType, k: usize) -> usize {
    let lines = (k * LANES * weight_type.bytes()).div_ceil(LINE_BYTES) + PAD_LINES;
    (lines | 1) * LINE_BYTES
}

impl Matrix {
    /// Packs `parts`, one below the other, on the pool's threads. Parts stored in different types are widened to f32 (which is
    /// exact). Errors when a part's length is not `rows · k`, or when there is no memory.
    pub fn pack(pool: &mut Pool, parts: &[Part<'_>], k: usize) -> Result<Matrix, KernelError> {
        let mut n = 0_usize;
        for part in parts {
            let wanted = part.rows.checked_mul(k).and_then(|e| e.checked_mul(part.weight_type.bytes()));
            if wanted != Some(part.bytes.len()) {
                let (rows, found) = (part.rows, part.bytes.len());
                return Err(KernelError::shape(format!("{rows} × {k} weights of {found} bytes")));
            }
            if part.bias.is_some_and(|bias| bias.len() != part.rows) {
                return Err(KernelError::shape(format!("a bias for {} rows of another length", part.rows)));
            }
            n += part.rows;
        }
        let weight_type = Matrix::stored_type(parts.iter().map(|part| part.weight_type));
        let panel_bytes = panel_bytes(weight_type, k);
        let panels = n.div_ceil(LANES);
        let region = Region::zeroed(Matrix::packed_bytes(weight_type, n, k))?;
        let start = Shared(region.start());
        pool.run(panels, |panel, _| {
            // SAFETY: panel `panel` is inside the region, and each task has one panel to itself.
            unsafe {
                let at = start.get().add(panel * panel_bytes);
                match weight_type {
                    WeightType::F32 => pack_panel(
                        parts,
                        k,
                        panel,
                        std::slice::from_raw_parts_mut(at.cast(), k * LANES),
                        f32_of,
                    ),
                    _ => pack_panel(
                        parts,
                        k,
                        panel,
                        std::slice::from_raw_parts_mut(at.cast(), k * LANES),
                        u16_of,
                    ),
                }
            }
        })?;
        let bias = parts.iter().any(|part| part.bias.is_some()).then(|| gather_bias(parts, panels * LANES));
        Ok(Matrix { region, weight_type, n, k, panel_bytes, bias })
    }

    /// The type that parts of these types are stored in together.
    pub fn stored_type(types: impl IntoIterator<Item = WeightType>) -> WeightType {
        let mut types = types.into_iter();
        let first = types.next().unwrap_or(WeightType::F32);
        if types.all(|next| next == first) { first } else { WeightType::F32 }
    }

    /// Bytes that a packed `n × k` matrix takes.
    pub fn packed_bytes(weight_type: WeightType, n: usize, k: usize) -> usize {
        n.div_ceil(LANES).saturating_mul(panel_bytes(weight_type, k))
    }

    /// How many outputs.
    pub fn n(&self) -> usize {
        self.n
    }

    /// How many inputs.
    pub fn k(&self) -> usize {
        self.k
    }

    /// How the weights are stored.
    pub fn weight_type(&self) -> WeightType {
        self.weight_type
    }

    /// Bytes of memory held.
    pub fn bytes(&self) -> usize {
        self.region.bytes() + self.bias.as_ref().map_or(0, |bias| bias.len() * 4)
    }

    /// Writes row `row` (the weights of one output) to `out`, widened: the lookup of a token's embedding. Errors when `row`
    /// is not below `n` or `out` is not `k` long.
    pub fn row(&self, row: usize, out: &mut [f32]) -> Result<(), KernelError> {
        if row >= self.n || out.len() != self.k {
            return Err(KernelError::shape(format!(
                "row {row} of {}, {} of {} long",
                self.n,
                out.len(),
                self.k
            )));
        }
        let panel = self.panel(row / LANES);
        let lane = row % LANES;
        for (i, value) in out.iter_mut().enumerate() {
            // SAFETY: i < k and lane < 16, so the element is inside the panel.
            *value = unsafe {
                match self.weight_type {
                    WeightType::F32 => *panel.cast::<f32>().add(i * LANES + lane),
                    WeightType::F16 => f16_to_f32(*panel.cast::<u16>().add(i * LANES + lane)),
                    WeightType::Bf16 => bf16_to_f32(*panel.cast::<u16>().add(i * LANES + lane)),
                }
            };
        }
        Ok(())
    }

    pub(crate) fn panels(&self) -> usize {
        self.n.div_ceil(LANES)
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

fn f32_of(weight_type: WeightType, bytes: &[u8], index: usize) -> f32 {
    match weight_type {
        WeightType::F32 => bytes.as_chunks().0.get(index).map_or(0.0, |&b| f32::from_le_bytes(b)),
        WeightType::F16 => f16_to_f32(u16_of(weight_type, bytes, index)),
        WeightType::Bf16 => bf16_to_f32(u16_of(weight_type, bytes, index)),
    }
}

fn u16_of(_weight_type: WeightType, bytes: &[u8], index: usize) -> u16 {
    bytes.as_chunks().0.get(index).map_or(0, |&b| u16::from_le_bytes(b))
}

fn pack_panel<T>(
    parts: &[Part<'_>],
    k: usize,
    panel: usize,
    out: &mut [T],
    element: impl Fn(WeightType, &[u8], usize) -> T,
) {
    for block in (0..k).step_by(PACK_BLOCK) {
        let end = (block + PACK_BLOCK).min(k);
        for lane in 0..LANES {
            let Some((part, row)) = locate(parts, panel * LANES + lane) else { continue };
            let width = k * part.weight_type.bytes();
            let Some(bytes) = part.bytes.get(row * width..(row + 1) * width) else { continue };
            let targets = out.iter_mut().skip(block * LANES + lane).step_by(LANES);
            for (i, target) in (block..end).zip(targets) {
                *target = element(part.weight_type, bytes, i);
            }
        }
    }
}

/// The part that holds an output row, and the row's number in it.
fn locate<'p, 'a>(parts: &'p [Part<'a>], mut row: usize) -> Option<(&'p Part<'a>, usize)> {
    for part in parts {
        if row < part.rows {
            return Some((part, row));
        }
        row -= part.rows;
    }
    None
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
