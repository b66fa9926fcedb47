//! Products and the operations on rows. Each checks its shapes and launches its kernels. Must not know: models, or
//! batches. The number of rows may select another kernel for a product, but never changes its bits
//! (`kernels/dense.cu`).

pub use crate::checks::{INPUTS, padded};
use crate::checks::{at_least, check, count_of, int, pair, rows_launch};
use crate::device::{Arguments, Buffer, Device, DeviceError, Launch};
use crate::kernels::{FEW_FEATURES, TILE_FEATURES, shared_bytes};

/// Threads of a block that computes a tile.
const TILE_THREADS: u32 = 256;
/// Number of parts in which a product's inputs are summed (`QUARTERS` in the kernels).
const QUARTERS: usize = 4;
/// The most rows of a tile that is computed in parts.
const MOST_TILE_ROWS: usize = 192;
/// Columns of a block of [`scale_and_cap`].
const CAPPED_COLUMNS: usize = 4096;

/// A dense layer: `features × inputs` weights in bf16, and biases in f32.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Row-major. Each row is [`padded`].
    pub weights: Buffer,
    /// One bias per feature.
    pub bias: Option<Buffer>,
    /// Number of outputs. For [`Finish::Gate`]: gate and up rows, alternating in groups of eight.
    pub features: usize,
    /// Number of inputs, [`padded`].
    pub inputs: usize,
}

/// How the result of a product is written.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Finish {
    /// Stored as f32.
    Store,
    /// Multiplied by this factor and added to an f32 output.
    Add(f32),
    /// `activation(gate) · up` is stored as bf16, with half as many outputs as features.
    Gate(GateActivation),
}

/// The activation of a gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GateActivation {
    /// `x·σ(x)`.
    Silu,
    /// GELU, approximated with tanh.
    GeluTanh,
}

impl Finish {
    /// Whether features are gates and ups.
    pub fn is_gate(self) -> bool {
        matches!(self, Finish::Gate(_))
    }
}

/// Memory that all products share: partial sums that blocks exchange, and the counters of finished parts.
#[derive(Clone, Copy, Debug)]
pub struct Workspace {
    parts: Buffer,
    arrived: Buffer,
}

/// The kernel that computes a product, and its tiling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ProductKernel {
    kernel: &'static str,
    rows: usize,
    /// Whether a block has [`FEW_FEATURES`] features instead of a tile.
    is_few: bool,
    in_parts: bool,
}

impl ProductKernel {
    /// Selects the kernel. For few rows it reads the weights directly from memory. For more rows it uses tiles. If
    /// there are too few tiles to keep the device busy, the quarters of a tile are distributed over several blocks.
    fn of(count: usize, features: usize, multiprocessors: usize, has_wgmma: bool) -> ProductKernel {
        let few = |kernel, rows| ProductKernel { kernel, rows, is_few: true, in_parts: false };
        let tiled = |rows: usize, [whole, part, deep]: [&'static str; 3]| {
            let tiles = features.div_ceil(TILE_FEATURES) * count.div_ceil(rows);
            let in_parts = tiles < multiprocessors;
            let part = if tiles * QUARTERS <= multiprocessors { deep } else { part };
            let kernel = if in_parts { part } else { whole };
            ProductKernel { kernel, rows, is_few: false, in_parts }
        };
        match (count, has_wgmma) {
            (0..=4, _) | (5..=8, false) => few("dense_few_8", 8),
            (5..=16, true) => tiled(16, ["wgmma_whole_16", "wgmma_part_16", "wgmma_deep_16"]),
            (17..=32, true) => tiled(32, ["wgmma_whole_32", "wgmma_part_32", "wgmma_deep_32"]),
            (33..=64, true) => tiled(64, ["wgmma_whole_64", "wgmma_part_64", "wgmma_deep_64"]),
            (65..=256, true) => tiled(128, ["wgmma_whole_128", "wgmma_part_128", "wgmma_part_128"]),
            (_, true) => tiled(192, ["wgmma_whole_192", "wgmma_part_192", "wgmma_part_192"]),
            (9..=16, false) => few("dense_few_16", 16),
            (17..=64, false) => tiled(64, ["dense_whole_64", "dense_part_64", "dense_part_64"]),
            (_, false) => tiled(128, ["dense_whole_128", "dense_part_128", "dense_part_128"]),
        }
    }
}

impl Workspace {
    /// Allocates the workspace for all products of a device. At most as many tiles as multiprocessors are computed in
    /// parts.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    pub fn new(device: &mut dyn Device) -> Result<Workspace, DeviceError> {
        let (parts, arrived) = Self::sizes(device.multiprocessors());
        let workspace = Workspace { parts: device.allocate(parts)?, arrived: device.allocate(arrived)? };
        device.clear(workspace.arrived)?;
        Ok(workspace)
    }

    /// Size of a workspace in bytes.
    pub fn bytes(multiprocessors: usize) -> usize {
        let (parts, arrived) = Self::sizes(multiprocessors);
        parts + arrived
    }

    fn sizes(multiprocessors: usize) -> (usize, usize) {
        (multiprocessors * QUARTERS * TILE_FEATURES * MOST_TILE_ROWS * 4, multiprocessors * 4)
    }
}

/// Computes `out[row] = weights · rows[row]` and writes it as `finish` says. There are `count` rows of bf16 with the
/// matrix's inputs each. `stride` is the number of elements from one row of `out` to the next.
///
/// # Errors
/// [`DeviceError::Shape`] if a buffer is too short. Also returns the device's errors.
pub fn product(
    device: &mut dyn Device,
    workspace: &Workspace,
    matrix: &Matrix,
    (rows, count): (Buffer, usize),
    (out, stride): (Buffer, usize),
    finish: Finish,
) -> Result<(), DeviceError> {
    let &Matrix { weights, bias, features, inputs } = matrix;
    if count == 0 {
        return Ok(());
    }
    let (outputs, size) = if finish.is_gate() { (features / 2, 2) } else { (features, 4) };
    check("inputs of a product", inputs > 0 && inputs.is_multiple_of(INPUTS), || {
        format!("{inputs} is no multiple of {INPUTS}")
    })?;
    check(
        "features of a product",
        features > 0 && (!finish.is_gate() || features.is_multiple_of(16)),
        || format!("{features}"),
    )?;
    check("stride of a product", stride >= outputs, || format!("{stride} for {outputs} outputs"))?;
    at_least("weights", weights, features * inputs * 2)?;
    at_least("rows of a product", rows, count * inputs * 2)?;
    at_least("output of a product", out, ((count - 1) * stride + outputs) * size)?;
    if let Some(bias) = bias {
        at_least("biases", bias, features * 4)?;
    }
    let way = ProductKernel::of(count, features, device.multiprocessors(), device.has_wgmma());
    // The codes are those of `Finish` in the kernels.
    let (code, factor) = match finish {
        Finish::Store => (0, 1.0),
        Finish::Add(factor) => (1, factor),
        Finish::Gate(GateActivation::Silu) => (2, 1.0),
        Finish::Gate(GateActivation::GeluTanh) => (3, 1.0),
    };
    let (down, across) = (features.div_ceil(TILE_FEATURES), count.div_ceil(way.rows));
    let product = Arguments::default().words(&[
        weights.address,
        rows.address,
        bias.map_or(0, |bias| bias.address),
        out.address,
        pair(count_of("features", features)?, count_of("inputs", inputs)?),
        pair(count_of("rows", count)?, count_of("stride", stride)?),
        pair(code, factor.to_bits()),
    ]);
    let few = way.is_few;
    let grid = match (few, way.in_parts) {
        (true, _) => [count_of("blocks", features.div_ceil(FEW_FEATURES))?, 1, 1],
        (false, false) => [count_of("blocks", down.saturating_mul(across))?, 1, 1],
        (false, true) => [count_of("blocks", across)?, count_of("blocks", down)?, QUARTERS as u32],
    };
    let arguments = match way.in_parts {
        false => product,
        true => product.address(Some(workspace.parts)).address(Some(workspace.arrived)),
    };
    let threads = if few { 128 } else { TILE_THREADS };
    let shared_bytes = count_of("shared memory", shared_bytes(way.kernel))?;
    device.launch(&Launch { kernel: way.kernel, grid, threads, shared_bytes, arguments })
}

/// Computes `stream[row] = scale · table[tokens[row]]` for `count` rows of `hidden` floats. The table's rows are bf16,
/// with `stride` elements each. Only the first `hidden` elements are used.
///
/// # Errors
/// [`DeviceError::Shape`] if a buffer is too short. Also returns the device's errors.
pub fn embed(
    device: &mut dyn Device,
    (table, stride): (Buffer, usize),
    tokens: Buffer,
    (stream, count): (Buffer, usize),
    (hidden, scale): (usize, f32),
) -> Result<(), DeviceError> {
    at_least("stream", stream, count * hidden * 4)?;
    at_least("tokens", tokens, count * 4)?;
    let arguments = Arguments::default()
        .address(Some(table))
        .address(Some(tokens))
        .address(Some(stream))
        .int(int("hidden", hidden)?)
        .int(int("stride", stride)?)
        .float(scale);
    rows_launch(device, "embed", count, 1, 256, arguments)
}

/// The weight of a root-mean-square norm, and its epsilon.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct NormWeights {
    /// One f32 factor for each element.
    pub weight: Buffer,
    /// Added to the mean square.
    pub eps: f32,
}

/// Computes `out[i] = norm(stream[rows[i]])` for `count` rows. Without `rows`, it takes the rows in their order. `out`
/// is bf16, with rows of [`padded`] hidden size.
///
/// # Errors
/// [`DeviceError::Shape`] if a buffer is too short. Also returns the device's errors.
pub fn rms_norm(
    device: &mut dyn Device,
    (stream, rows): (Buffer, Option<Buffer>),
    norm: NormWeights,
    (out, count): (Buffer, usize),
    hidden: usize,
) -> Result<(), DeviceError> {
    at_least("weight of a norm", norm.weight, hidden * 4)?;
    at_least("output of a norm", out, count * padded(hidden) * 2)?;
    let arguments = Arguments::default()
        .address(Some(stream))
        .address(rows)
        .address(Some(norm.weight))
        .address(Some(out))
        .int(int("hidden", hidden)?)
        .int(int("stride", padded(hidden))?)
        .float(norm.eps);
    rows_launch(device, "rms_norm", count, 1, 256, arguments)
}

/// Computes `stream[i] += factor · norm(x[i])` for `count` rows of `hidden` floats.
///
/// # Errors
/// [`DeviceError::Shape`] if a buffer is too short. Also returns the device's errors.
pub fn rms_norm_add(
    device: &mut dyn Device,
    x: Buffer,
    norm: NormWeights,
    (stream, count): (Buffer, usize),
    hidden: usize,
    factor: f32,
) -> Result<(), DeviceError> {
    at_least("weight of a norm", norm.weight, hidden * 4)?;
    at_least("input of a norm", x, count * hidden * 4)?;
    at_least("stream", stream, count * hidden * 4)?;
    let arguments = Arguments::default()
        .address(Some(x))
        .address(Some(norm.weight))
        .address(Some(stream))
        .int(int("hidden", hidden)?)
        .float(norm.eps)
        .float(factor);
    rows_launch(device, "rms_norm_add", count, 1, 256, arguments)
}

/// Normalizes `width` columns of `count` rows in place, starting with column `first`. The rows have `stride` floats.
///
/// # Errors
/// [`DeviceError::Shape`] if a buffer is too short. Also returns the device's errors.
pub fn rms_norm_columns(
    device: &mut dyn Device,
    (rows, count): (Buffer, usize),
    stride: usize,
    (first, width): (usize, usize),
    norm: NormWeights,
) -> Result<(), DeviceError> {
    at_least("weight of a norm", norm.weight, width * 4)?;
    at_least("rows of a norm", rows, count * stride * 4)?;
    check("columns of a norm", first + width <= stride, || format!("{width} from {first} on, of {stride}"))?;
    let arguments = Arguments::default()
        .address(Some(rows))
        .address(Some(norm.weight))
        .int(int("stride", stride)?)
        .int(int("column", first)?)
        .int(int("columns", width)?)
        .float(norm.eps);
    rows_launch(device, "rms_norm_columns", count, 1, 256, arguments)
}

/// Rounds `count` rows of `hidden` floats to bf16 rows of [`padded`] hidden size.
///
/// # Errors
/// [`DeviceError::Shape`] if a buffer is too short. Also returns the device's errors.
pub fn round_rows(
    device: &mut dyn Device,
    stream: Buffer,
    (out, count): (Buffer, usize),
    hidden: usize,
) -> Result<(), DeviceError> {
    at_least("stream", stream, count * hidden * 4)?;
    at_least("rounded rows", out, count * padded(hidden) * 2)?;
    let arguments = Arguments::default()
        .address(Some(stream))
        .address(Some(out))
        .int(int("hidden", hidden)?)
        .int(int("stride", padded(hidden))?);
    rows_launch(device, "round_rows", count, 1, 256, arguments)
}

/// Multiplies `count` rows of `width` floats by `scale`. With a cap, each product becomes `cap · tanh(product / cap)`.
///
/// # Errors
/// [`DeviceError::Shape`] if the buffer is too short. Also returns the device's errors.
pub fn scale_and_cap(
    device: &mut dyn Device,
    (rows, count): (Buffer, usize),
    width: usize,
    scale: f32,
    cap: Option<f32>,
) -> Result<(), DeviceError> {
    at_least("rows", rows, count * width * 4)?;
    check("cap", cap.is_none_or(|cap| cap > 0.0), || "must be positive".to_owned())?;
    let arguments = Arguments::default()
        .address(Some(rows))
        .int(int("width", width)?)
        .float(scale)
        .float(cap.unwrap_or(0.0));
    rows_launch(device, "scale_and_cap", count, width.div_ceil(CAPPED_COLUMNS), 256, arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_stream_the_weights_and_few_tiles_are_parted() {
        for (count, features, mma, wgmma) in [
            (1, 4096, "dense_few_8", "dense_few_8"),
            (8, 4096, "dense_few_8", "wgmma_deep_16"),
            (8, 6144, "dense_few_8", "wgmma_part_16"),
            (9, 4096, "dense_few_16", "wgmma_deep_16"),
            (17, 4096, "dense_part_64", "wgmma_deep_32"),
            (64, 4096, "dense_part_64", "wgmma_deep_64"),
            (64, 28_672, "dense_whole_64", "wgmma_whole_64"),
            (65, 4096, "dense_part_128", "wgmma_part_128"),
            (256, 28_672, "dense_whole_128", "wgmma_whole_128"),
            (300, 4096, "dense_part_128", "wgmma_part_192"),
            (16_384, 4096, "dense_whole_128", "wgmma_whole_192"),
        ] {
            for (has_wgmma, kernel) in [(false, mma), (true, wgmma)] {
                let selected = ProductKernel::of(count, features, 132, has_wgmma).kernel;
                assert_eq!(selected, kernel, "{count} rows of {features}");
            }
        }
    }
}
