//! Attention over pages: heads are split, normalized, rotated and written to their pages, then attended. Each operation
//! checks its shapes and launches its kernels. Must not know: models, or batches.

use headrace_kv_layout::BLOCK_TOKENS;

use crate::checks::{at_least, check, count_of, int, padded, rows_launch};
use crate::device::{Arguments, Buffer, Device, DeviceError, Launch};
use crate::kernels::{HEAD_WIDTHS, VALUE_DIMS, shared_bytes};

/// Rows of attention that an entry with splits computes together.
pub const ENTRY_ROWS: usize = 16;
/// Rows of an entry whose block reads all positions.
pub const MANY_ROWS: usize = 64;
/// Positions per split.
pub const SPLIT: usize = 256;

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
                HEAD_WIDTHS[4]
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

/// A rotary embedding, for all positions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RotaryTables {
    /// Cosines, `positions × rotated / 2`.
    pub cos: Buffer,
    /// Sines, `positions × rotated / 2`.
    pub sin: Buffer,
    /// Rotated elements of a head, from its start. Even.
    pub rotated: usize,
    /// A factor on the queries of each position. `None` means 1.
    pub growth: Option<Buffer>,
}

/// Parameters that normalize and rotate heads.
#[derive(Clone, Copy, Debug)]
pub struct HeadWeights {
    /// `head_dim` weights. `None` if queries are not normalized.
    pub query_norm: Option<Buffer>,
    /// `head_dim` weights. `None` if keys are not normalized.
    pub key_norm: Option<Buffer>,
    /// Epsilon of the norms.
    pub eps: f32,
    /// `None` if heads are not rotated.
    pub rotary: Option<RotaryTables>,
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
    let rotated = weights.rotary.map_or(0, |rotary| rotary.rotated);
    check("rotated elements", rotated <= heads.head_dim && rotated.is_multiple_of(2), || {
        format!("{rotated} of {}", heads.head_dim)
    })?;
    let arguments = Arguments::default()
        .address(Some(qkv))
        .address(Some(positions))
        .address(Some(slots))
        .address(weights.query_norm)
        .address(weights.key_norm)
        .address(weights.rotary.map(|rotary| rotary.cos))
        .address(weights.rotary.map(|rotary| rotary.sin))
        .address(weights.rotary.and_then(|rotary| rotary.growth))
        .address(Some(queries))
        .address(Some(pages.keys))
        .address(Some(pages.values))
        .int(int("heads", heads.heads)?)
        .int(int("heads", heads.kv_heads)?)
        .int(int("heads", heads.head_dim)?)
        .int(int("heads", heads.width)?)
        .int(int("rotated elements", rotated)?)
        .float(weights.eps);
    rows_launch(device, "write_heads", count, all.div_ceil(4), 128, arguments)
}

/// Work items of attention. An entry of 16 rows has its splits computed in parallel. An entry of 64 rows has one block
/// for all positions. The same entries serve all layers.
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
}

/// What the queries of a layer read.
#[derive(Clone, Copy, Debug)]
pub struct SeenKeys<'a> {
    /// The layer's keys and values.
    pub pages: &'a Pages,
    /// The block tables of the layer's cache group, to which the entries refer. Blocks before the window of an entry's
    /// first token are not read, so that their ids may be any number.
    pub tables: Buffer,
    /// Factor on every score.
    pub scale: f32,
    /// Scores become `cap · tanh(score / cap)`.
    pub cap: Option<f32>,
    /// A query sees key `j` at position `i` if `i − j` is below this. `None` if it sees all before it.
    pub window: Option<usize>,
}

impl SeenKeys<'_> {
    /// The most splits of an entry of 16 rows that its rows see, if the longest entry has `splits`.
    fn splits(&self, splits: usize) -> usize {
        // The rows of an entry belong to at most as many neighbouring tokens.
        let within = |window: usize| window.saturating_add(ENTRY_ROWS).div_ceil(SPLIT) + 1;
        self.window.map_or(splits, |window| splits.min(within(window)))
    }
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
    (queries, seen): (Buffer, &SeenKeys<'_>),
    partial: Buffer,
    out: Buffer,
) -> Result<(), DeviceError> {
    let [few, join, many] = attention_kernels(heads.width)?;
    let stride = padded(heads.heads * heads.head_dim);
    // Weights are powers of two.
    let scale = std::f32::consts::LOG2_E * seen.scale;
    let cap = seen.cap.map_or(0.0, |cap| std::f32::consts::LOG2_E * cap);
    check("cap", seen.cap.is_none_or(|cap| cap > 0.0), || "must be positive".to_owned())?;
    let window = int("window", seen.window.unwrap_or(i32::MAX as usize))?;
    check("window", window > 0, || "must be at least 1".to_owned())?;
    let (query_heads, kv_heads) = (int("heads", heads.heads)?, int("heads", heads.kv_heads)?);
    let (head_dim, out_stride) = (int("heads", heads.head_dim)?, int("heads", stride)?);
    let read = || {
        Arguments::default().address(Some(queries)).words(&[
            seen.pages.keys.address,
            seen.pages.values.address,
            seen.tables.address,
        ])
    };
    let kv_grid = count_of("heads", heads.kv_heads)?;
    let parts_grid = count_of("heads", heads.kv_heads * heads.width.div_ceil(VALUE_DIMS))?;
    let splits = seen.splits(entries.splits);
    let each = heads.partial_bytes() * splits.max(1);
    let at_once = (partial.bytes / each).min(65_535);
    check("attention's partial results", at_once > 0, || {
        format!("{each} bytes, and there are {}", partial.bytes)
    })?;
    for first in (0..entries.few_count).step_by(at_once) {
        let count = (entries.few_count - first).min(at_once);
        let these = entries.few.part(first * 32, count * 32)?;
        let arguments = read()
            .address(Some(these))
            .address(Some(partial))
            .int(query_heads)
            .int(kv_heads)
            .int(window)
            .float(scale)
            .float(cap);
        let grid = [count_of("splits", splits)?, parts_grid, count as u32];
        device.launch(&Launch { kernel: few, grid, threads: 128, shared_bytes: 0, arguments })?;
        let arguments = Arguments::default()
            .address(Some(these))
            .address(Some(partial))
            .address(Some(out))
            .int(query_heads)
            .int(kv_heads)
            .int(head_dim)
            .int(out_stride)
            .int(int("splits", splits)?)
            .int(window);
        let grid = [kv_grid, count as u32, 1];
        device.launch(&Launch { kernel: join, grid, threads: 128, shared_bytes: 0, arguments })?;
    }
    if entries.many_count == 0 {
        return Ok(());
    }
    let arguments = read()
        .address(Some(entries.many))
        .address(Some(out))
        .int(query_heads)
        .int(kv_heads)
        .int(head_dim)
        .int(out_stride)
        .int(window)
        .float(scale)
        .float(cap);
    let grid = [count_of("entries", entries.many_count)?, parts_grid, 1];
    let shared_bytes = count_of("shared memory", shared_bytes(many))?;
    device.launch(&Launch { kernel: many, grid, threads: 128, shared_bytes, arguments })
}

fn attention_kernels(width: usize) -> Result<[&'static str; 3], DeviceError> {
    match width {
        32 => Ok(["attend_few_32", "join_32", "attend_many_32"]),
        64 => Ok(["attend_few_64", "join_64", "attend_many_64"]),
        96 => Ok(["attend_few_96", "join_96", "attend_many_96"]),
        128 => Ok(["attend_few_128", "join_128", "attend_many_128"]),
        256 => Ok(["attend_few_256", "join_256", "attend_many_256"]),
        other => Err(DeviceError::Shape { what: "width of a head", problem: other.to_string() }),
    }
}
