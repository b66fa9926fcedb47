//! The operations of a step. Each checks its shapes and launches its kernels. Must not know: models, or batches. The
//! number of rows may select another kernel for a product, but never changes its bits (`kernels/dense.cu`).

use headrace_kv_layout::BLOCK_TOKENS;

use crate::device::{Arguments, Buffer, Device, DeviceError, Launch};
use crate::kernels::{HEAD_WIDTHS, TILE_FEATURES, shared_bytes};

/// The inputs of every product are a multiple of this. Rows of weights and activations are padded with zeros.
pub const INPUTS: usize = 32;
/// Threads of a block that computes a tile.
const TILE_THREADS: u32 = 256;
/// Number of parts in which a product's inputs are summed (`QUARTERS` in the kernels).
const QUARTERS: usize = 4;
/// Rows of attention that an entry with splits computes together.
pub const ENTRY_ROWS: usize = 16;
/// Rows of an entry whose block reads all positions.
pub const MANY_ROWS: usize = 64;
/// Positions per split.
pub const SPLIT: usize = 256;

/// Rounds up to the next multiple of [`INPUTS`].
pub fn padded(inputs: usize) -> usize {
    inputs.next_multiple_of(INPUTS)
}

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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finish {
    /// Stored as f32.
    Store,
    /// Added to an f32 output.
    Add,
    /// `silu(gate) · up` is stored as bf16, with half as many outputs as features.
    Gate,
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
    in_parts: bool,
}

impl ProductKernel {
    /// Selects the kernel. For few rows it reads the weights directly from memory. For more rows it uses tiles. If
    /// there are too few tiles to keep the device busy, the quarters of a tile are distributed over several blocks.
    fn of(count: usize, features: usize, multiprocessors: usize) -> ProductKernel {
        let tiles = |rows: usize| features.div_ceil(TILE_FEATURES) * count.div_ceil(rows);
        let (kernel, rows, in_parts) = match count {
            0..=8 => ("dense_few_8", 8, false),
            9..=16 => ("dense_few_16", 16, false),
            17..=64 if tiles(64) < multiprocessors => ("dense_part_64", 64, true),
            17..=64 => ("dense_whole_64", 64, false),
            _ if tiles(128) < multiprocessors => ("dense_part_128", 128, true),
            _ => ("dense_whole_128", 128, false),
        };
        ProductKernel { kernel, rows, in_parts }
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
        (multiprocessors * QUARTERS * TILE_FEATURES * 128 * 4, multiprocessors * 4)
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
    let (outputs, size) = if finish == Finish::Gate { (features / 2, 2) } else { (features, 4) };
    check("inputs of a product", inputs > 0 && inputs.is_multiple_of(INPUTS), || {
        format!("{inputs} is no multiple of {INPUTS}")
    })?;
    check(
        "features of a product",
        features > 0 && (finish != Finish::Gate || features.is_multiple_of(16)),
        || format!("{features}"),
    )?;
    check("stride of a product", stride >= outputs, || format!("{stride} for {outputs} outputs"))?;
    at_least("weights", weights, features * inputs * 2)?;
    at_least("rows of a product", rows, count * inputs * 2)?;
    at_least("output of a product", out, ((count - 1) * stride + outputs) * size)?;
    if let Some(bias) = bias {
        at_least("biases", bias, features * 4)?;
    }
    let way = ProductKernel::of(count, features, device.multiprocessors());
    let (down, across) = (features.div_ceil(TILE_FEATURES), count.div_ceil(way.rows));
    let product = Arguments::default().words(&[
        weights.address,
        rows.address,
        bias.map_or(0, |bias| bias.address),
        out.address,
        pair(int("features", features)?, int("inputs", inputs)?),
        pair(int("rows", count)?, int("stride", stride)?),
        finish as u64,
    ]);
    let few = way.rows <= 16;
    let grid = match (few, way.in_parts) {
        (true, _) => [count_of("blocks", features.div_ceil(16))?, 1, 1],
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

/// Computes `stream[row] = table[tokens[row]]` for `count` rows of `hidden` floats. The table's rows are bf16, with
/// `stride` elements each. Only the first `hidden` elements are used.
///
/// # Errors
/// [`DeviceError::Shape`] if a buffer is too short. Also returns the device's errors.
pub fn embed(
    device: &mut dyn Device,
    (table, stride): (Buffer, usize),
    tokens: Buffer,
    (stream, count): (Buffer, usize),
    hidden: usize,
) -> Result<(), DeviceError> {
    at_least("stream", stream, count * hidden * 4)?;
    at_least("tokens", tokens, count * 4)?;
    let arguments = Arguments::default()
        .address(Some(table))
        .address(Some(tokens))
        .address(Some(stream))
        .int(int("hidden", hidden)?)
        .int(int("stride", stride)?);
    rows_launch(device, "embed", count, 1, 256, arguments)
}

/// Computes `out[i] = norm(stream[rows[i]])` for `count` rows. Without `rows`, it takes the rows in their order. `out`
/// is bf16, with rows of [`padded`] hidden size.
///
/// # Errors
/// [`DeviceError::Shape`] if a buffer is too short. Also returns the device's errors.
pub fn rms_norm(
    device: &mut dyn Device,
    (stream, rows): (Buffer, Option<Buffer>),
    weight: Buffer,
    (out, count): (Buffer, usize),
    hidden: usize,
    eps: f32,
) -> Result<(), DeviceError> {
    at_least("weight of a norm", weight, hidden * 4)?;
    at_least("output of a norm", out, count * padded(hidden) * 2)?;
    let arguments = Arguments::default()
        .address(Some(stream))
        .address(rows)
        .address(Some(weight))
        .address(Some(out))
        .int(int("hidden", hidden)?)
        .int(int("stride", padded(hidden))?)
        .float(eps);
    rows_launch(device, "rms_norm", count, 1, 256, arguments)
}

/// Sizes of a model's heads.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Heads {
    /// Number of query heads.
    pub heads: usize,
    /// Number of key heads, and of value heads. Divides `heads`.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Padded width of a head in queries and pages: one of [`HEAD_WIDTHS`].
    pub width: usize,
}

impl Heads {
    /// Selects the width for these heads.
    ///
    /// # Errors
    /// [`DeviceError::Shape`] if no kernel is wide enough, or if `kv_heads` does not divide `heads`.
    pub fn new(heads: usize, kv_heads: usize, head_dim: usize) -> Result<Heads, DeviceError> {
        let shares = kv_heads > 0 && heads > 0 && heads.is_multiple_of(kv_heads);
        check("num_key_value_heads", shares, || format!("{kv_heads} for {heads} heads"))?;
        let width = HEAD_WIDTHS.into_iter().find(|&width| width >= head_dim);
        let width = width.filter(|_| head_dim > 0 && head_dim.is_multiple_of(2));
        width.map(|width| Heads { heads, kv_heads, head_dim, width }).ok_or_else(|| DeviceError::Shape {
            what: "head_dim",
            problem: format!(
                "{head_dim}; on a CUDA device heads are even and at most {} wide",
                HEAD_WIDTHS[3]
            ),
        })
    }

    /// Number of query heads that share a key head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Bytes of a block of keys, or of values, in one layer.
    pub fn block_bytes(&self) -> usize {
        self.kv_heads * self.width * BLOCK_TOKENS * 2
    }

    /// Bytes of the partial results that one split stores per entry.
    pub fn partial_bytes(&self) -> usize {
        self.kv_heads * ENTRY_ROWS * (self.width + 2) * 4
    }
}

/// The keys and values of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Pages {
    /// Order of dimensions: block, head, token, dimension.
    pub keys: Buffer,
    /// Order of dimensions: block, head, dimension, token.
    pub values: Buffer,
}

/// Parameters that normalize and rotate heads.
#[derive(Clone, Copy, Debug)]
pub struct HeadWeights {
    /// `head_dim` weights. `None` if queries are not normalized.
    pub query_norm: Option<Buffer>,
    /// `head_dim` weights. `None` if keys are not normalized.
    pub key_norm: Option<Buffer>,
    /// Cosines, `positions × head_dim / 2`.
    pub cos: Buffer,
    /// Sines, `positions × head_dim / 2`.
    pub sin: Buffer,
    /// Epsilon of the norms.
    pub eps: f32,
}

/// Splits `qkv` into heads. Queries are normalized and rotated into `queries`. Keys are normalized and rotated, and
/// stored with the values in their pages.
///
/// # Errors
/// [`DeviceError::Shape`] if a buffer is too short. Also returns the device's errors.
pub fn write_heads(
    device: &mut dyn Device,
    heads: &Heads,
    weights: &HeadWeights,
    (qkv, count): (Buffer, usize),
    (positions, slots): (Buffer, Buffer),
    queries: Buffer,
    pages: &Pages,
) -> Result<(), DeviceError> {
    let all = heads.heads + 2 * heads.kv_heads;
    at_least("heads", qkv, count * all * heads.head_dim * 4)?;
    at_least("queries", queries, count * heads.heads * heads.width * 2)?;
    at_least("positions", positions, count * 4)?;
    at_least("slots", slots, count * 4)?;
    let arguments = Arguments::default()
        .address(Some(qkv))
        .address(Some(positions))
        .address(Some(slots))
        .address(weights.query_norm)
        .address(weights.key_norm)
        .address(Some(weights.cos))
        .address(Some(weights.sin))
        .address(Some(queries))
        .address(Some(pages.keys))
        .address(Some(pages.values))
        .int(int("heads", heads.heads)?)
        .int(int("heads", heads.kv_heads)?)
        .int(int("heads", heads.head_dim)?)
        .int(int("heads", heads.width)?)
        .float(weights.eps);
    rows_launch(device, "write_heads", count, all.div_ceil(4), 128, arguments)
}

/// Work items of attention. An entry of 16 rows has its splits computed in parallel. An entry of 64 rows has one block
/// for all positions.
#[derive(Clone, Copy, Debug)]
pub struct Entries {
    /// Entries of 16 rows, 32 bytes each (`Entry` in `kernels/attention.cu`).
    pub few: Buffer,
    /// Number of entries in `few`.
    pub few_count: usize,
    /// Number of splits of the longest entry in `few`.
    pub splits: usize,
    /// Entries of 64 rows.
    pub many: Buffer,
    /// Number of entries in `many`.
    pub many_count: usize,
    /// The block tables to which the entries refer.
    pub tables: Buffer,
}

/// Computes attention for all entries. `out` is bf16, with rows of [`padded`] heads. If `partial` is too short for all
/// entries at once, they are computed in several launches.
///
/// # Errors
/// [`DeviceError::Shape`] if `partial` is too short for a single entry. Also returns the device's errors.
pub fn attend(
    device: &mut dyn Device,
    heads: &Heads,
    entries: &Entries,
    (queries, pages): (Buffer, &Pages),
    partial: Buffer,
    out: Buffer,
) -> Result<(), DeviceError> {
    let [few, join, many] = attention_kernels(heads.width)?;
    let stride = padded(heads.heads * heads.head_dim);
    let scale = std::f32::consts::LOG2_E / (heads.head_dim as f32).sqrt();
    let (query_heads, kv_heads) = (int("heads", heads.heads)?, int("heads", heads.kv_heads)?);
    let (head_dim, out_stride) = (int("heads", heads.head_dim)?, int("heads", stride)?);
    let seen = || {
        Arguments::default().address(Some(queries)).words(&[
            pages.keys.address,
            pages.values.address,
            entries.tables.address,
        ])
    };
    let kv_grid = count_of("heads", heads.kv_heads)?;
    let each = heads.partial_bytes() * entries.splits.max(1);
    let at_once = (partial.bytes / each).min(65_535);
    check("attention's partial results", at_once > 0, || {
        format!("{each} bytes, and there are {}", partial.bytes)
    })?;
    for first in (0..entries.few_count).step_by(at_once) {
        let count = (entries.few_count - first).min(at_once);
        let these = entries.few.part(first * 32, count * 32)?;
        let arguments =
            seen().address(Some(these)).address(Some(partial)).int(query_heads).int(kv_heads).float(scale);
        let grid = [count_of("splits", entries.splits)?, kv_grid, count as u32];
        device.launch(&Launch { kernel: few, grid, threads: 128, shared_bytes: 0, arguments })?;
        let arguments = Arguments::default()
            .address(Some(these))
            .address(Some(partial))
            .address(Some(out))
            .int(query_heads)
            .int(kv_heads)
            .int(head_dim)
            .int(out_stride)
            .int(int("splits", entries.splits)?);
        let grid = [kv_grid, count as u32, 1];
        device.launch(&Launch { kernel: join, grid, threads: 128, shared_bytes: 0, arguments })?;
    }
    if entries.many_count == 0 {
        return Ok(());
    }
    let arguments = seen()
        .address(Some(entries.many))
        .address(Some(out))
        .int(query_heads)
        .int(kv_heads)
        .int(head_dim)
        .int(out_stride)
        .float(scale);
    let grid = [count_of("entries", entries.many_count)?, kv_grid, 1];
    device.launch(&Launch { kernel: many, grid, threads: 128, shared_bytes: 0, arguments })
}

fn attention_kernels(width: usize) -> Result<[&'static str; 3], DeviceError> {
    match width {
        32 => Ok(["attend_few_32", "join_32", "attend_many_32"]),
        64 => Ok(["attend_few_64", "join_64", "attend_many_64"]),
        96 => Ok(["attend_few_96", "join_96", "attend_many_96"]),
        128 => Ok(["attend_few_128", "join_128", "attend_many_128"]),
        other => Err(DeviceError::Shape { what: "width of a head", problem: other.to_string() }),
    }
}

fn rows_launch(
    device: &mut dyn Device,
    kernel: &'static str,
    count: usize,
    beside: usize,
    threads: u32,
    arguments: Arguments,
) -> Result<(), DeviceError> {
    if count == 0 {
        return Ok(());
    }
    let grid = [count_of("rows", count)?, count_of("heads", beside)?, 1];
    device.launch(&Launch { kernel, grid, threads, shared_bytes: 0, arguments })
}

fn check(what: &'static str, good: bool, problem: impl FnOnce() -> String) -> Result<(), DeviceError> {
    if good { Ok(()) } else { Err(DeviceError::Shape { what, problem: problem() }) }
}

fn at_least(what: &'static str, buffer: Buffer, bytes: usize) -> Result<(), DeviceError> {
    check(what, buffer.bytes >= bytes, || format!("{} bytes where {bytes} are read or written", buffer.bytes))
}

fn int(what: &'static str, value: usize) -> Result<i32, DeviceError> {
    i32::try_from(value).map_err(|_| DeviceError::Shape { what, problem: format!("{value} is too many") })
}

fn count_of(what: &'static str, value: usize) -> Result<u32, DeviceError> {
    int(what, value).map(i32::cast_unsigned)
}

/// Packs two 32-bit integers in their order in memory.
fn pair(first: i32, second: i32) -> u64 {
    u64::from(first.cast_unsigned()) | u64::from(second.cast_unsigned()) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_stream_the_weights_and_few_tiles_are_parted() {
        for (count, features, kernel) in [
            (1, 4096, "dense_few_8"),
            (8, 4096, "dense_few_8"),
            (9, 4096, "dense_few_16"),
            (17, 4096, "dense_part_64"),
            (64, 28_672, "dense_whole_64"),
            (65, 4096, "dense_part_128"),
            (16_384, 4096, "dense_whole_128"),
        ] {
            assert_eq!(ProductKernel::of(count, features, 132).kernel, kernel, "{count} rows of {features}");
        }
    }
}
