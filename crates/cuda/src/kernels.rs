//! The kernels' sources, names and tile sizes. Must not know: how they are launched.

/// The common part that precedes each source file.
pub const COMMON: &str = include_str!("../kernels/common.cuh");

/// File names and texts of the kernels. Each is compiled after [`COMMON`].
pub const SOURCES: [(&str, &str); 3] = [
    ("rows.cu", include_str!("../kernels/rows.cu")),
    ("dense.cu", include_str!("../kernels/dense.cu")),
    ("attention.cu", include_str!("../kernels/attention.cu")),
];

/// Compiler options besides the architecture. Contraction to fused multiply-adds is off, so that equal expressions give
/// equal bits in all kernels. Diagnostic 177 is the warning for an unused function, since no file uses all of
/// [`COMMON`]. The last option makes the assembler report registers and spills.
pub const OPTIONS: [&str; 4] = ["--std=c++17", "--fmad=false", "-diag-suppress=177", "--ptxas-options=-v"];

/// Version of the kernels' bits. Incremented when any result changes.
pub const KERNEL_VERSION: u32 = 2;

/// Head widths for which attention is compiled. A head is padded with zeros to the next of them.
pub const HEAD_WIDTHS: [usize; 5] = [32, 64, 96, 128, 256];

/// Dimensions of values that one block of attention sums. Wider heads take several blocks.
pub(crate) const VALUE_DIMS: usize = 128;

/// Features of a tile of a product.
pub(crate) const TILE_FEATURES: usize = 128;
/// Stages of a tile's copy pipeline.
const STAGES: usize = 3;
/// Inputs per stage.
const STEP: usize = 64;

/// The names of all kernels.
pub const NAMES: [&str; 28] = [
    "embed",
    "rms_norm",
    "rms_norm_add",
    "rms_norm_columns",
    "round_rows",
    "scale_and_cap",
    "write_heads",
    "dense_few_8",
    "dense_few_16",
    "dense_whole_64",
    "dense_whole_128",
    "dense_part_64",
    "dense_part_128",
    "attend_few_32",
    "join_32",
    "attend_many_32",
    "attend_few_64",
    "join_64",
    "attend_many_64",
    "attend_few_96",
    "join_96",
    "attend_many_96",
    "attend_few_128",
    "join_128",
    "attend_many_128",
    "attend_few_256",
    "join_256",
    "attend_many_256",
];

/// Dynamic shared memory that a kernel may request, in bytes.
pub fn shared_bytes(kernel: &str) -> usize {
    let tile = |rows: usize| STAGES * (TILE_FEATURES + rows) * STEP * 2;
    match kernel {
        "dense_whole_64" | "dense_part_64" => tile(64),
        "dense_whole_128" | "dense_part_128" => tile(128),
        _ => 0,
    }
}
