//! The kernels' sources, names and tile sizes. Must not know: how they are launched.

/// The common part that precedes each source file.
pub const COMMON: &str = include_str!("../kernels/common.cuh");

/// File names and texts of the kernels that every device has. Each is compiled after [`COMMON`].
pub const SOURCES: [(&str, &str); 3] = [
    ("rows.cu", include_str!("../kernels/rows.cu")),
    ("dense.cu", concat!(include_str!("../kernels/products.cuh"), include_str!("../kernels/dense.cu"))),
    ("attention.cu", include_str!("../kernels/attention.cu")),
];

/// The file that needs `wgmma` (compute capability 9.0, architecture `sm_90a`).
pub const WGMMA_SOURCE: (&str, &str) =
    ("wgmma.cu", concat!(include_str!("../kernels/products.cuh"), include_str!("../kernels/wgmma.cu")));

/// The files of an architecture such as `sm_80` or `sm_90a`.
pub fn sources(architecture: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    SOURCES.into_iter().chain((architecture == WGMMA_ARCHITECTURE).then_some(WGMMA_SOURCE))
}

/// The names of an architecture's kernels.
pub fn names(architecture: &str) -> impl Iterator<Item = &'static str> {
    let wgmma = if architecture == WGMMA_ARCHITECTURE { &WGMMA_NAMES[..] } else { &[] };
    NAMES.into_iter().chain(wgmma.iter().copied())
}

/// The only architecture with `wgmma`.
pub const WGMMA_ARCHITECTURE: &str = "sm_90a";

/// Compiler options besides the architecture. Contraction to fused multiply-adds is off, so that equal expressions give
/// equal bits in all kernels. Diagnostic 177 is the warning for an unused function, since no file uses all of
/// [`COMMON`]. The last option makes the assembler report registers and spills.
pub const OPTIONS: [&str; 4] = ["--std=c++17", "--fmad=false", "-diag-suppress=177", "--ptxas-options=-v"];

/// Version of the kernels' bits. Incremented when any result changes.
pub const KERNEL_VERSION: u32 = 3;

/// Head widths for which attention is compiled. A head is padded with zeros to the next of them.
pub const HEAD_WIDTHS: [usize; 5] = [32, 64, 96, 128, 256];

/// Dimensions of values that one block of attention sums. Wider heads take several blocks.
pub(crate) const VALUE_DIMS: usize = 128;

/// Positions of a tile of attention (`TILE` in `attention.cu`).
const ATTENTION_TILE: usize = 64;
/// Warps of a block of `attend_many`.
const MANY_WARPS: usize = 4;
/// Features of a block of `dense_few`.
pub(crate) const FEW_FEATURES: usize = 16;
/// Features of a tile of a product.
pub(crate) const TILE_FEATURES: usize = 128;
/// Stages of a tile's copy pipeline in `dense.cu`.
const STAGES: usize = 3;
/// Bytes by which `wgmma.cu` may move the start of its shared memory, to align it.
const WGMMA_ALIGNMENT: usize = 1024;
/// Inputs per stage.
const STEP: usize = 64;

/// The names of the kernels that every device has.
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

/// The names of the kernels in [`WGMMA_SOURCE`].
pub const WGMMA_NAMES: [&str; 13] = [
    "wgmma_deep_16",
    "wgmma_deep_32",
    "wgmma_deep_64",
    "wgmma_whole_16",
    "wgmma_whole_32",
    "wgmma_whole_64",
    "wgmma_whole_128",
    "wgmma_whole_192",
    "wgmma_part_16",
    "wgmma_part_32",
    "wgmma_part_64",
    "wgmma_part_128",
    "wgmma_part_192",
];

/// Dynamic shared memory that a kernel may request, in bytes.
pub fn shared_bytes(kernel: &str) -> usize {
    let tile = |rows: usize, stages: usize| stages * (TILE_FEATURES + rows) * STEP * 2;
    // The sums over whole splits, then one or two tiles of keys and values.
    let many = |width: usize| {
        let (values, stages) = (width.min(VALUE_DIMS), if width > VALUE_DIMS { 1 } else { 2 });
        values * 32 * MANY_WARPS * 2 + stages * ATTENTION_TILE * (width + values) * 2
    };
    match kernel {
        "attend_many_32" => many(32),
        "attend_many_64" => many(64),
        "attend_many_96" => many(96),
        "attend_many_128" => many(128),
        "attend_many_256" => many(256),
        "dense_whole_64" | "dense_part_64" => tile(64, STAGES),
        "dense_whole_128" | "dense_part_128" => tile(128, STAGES),
        // A ring of eight stages for each of four warps.
        "dense_few_8" | "dense_few_16" => 4 * 8 * FEW_FEATURES * STEP * 2,
        "wgmma_deep_16" => tile(16, 10) + WGMMA_ALIGNMENT,
        "wgmma_deep_32" => tile(32, 9) + WGMMA_ALIGNMENT,
        "wgmma_deep_64" => tile(64, 8) + WGMMA_ALIGNMENT,
        "wgmma_whole_16" | "wgmma_part_16" => tile(16, 6) + WGMMA_ALIGNMENT,
        "wgmma_whole_32" | "wgmma_part_32" => tile(32, 5) + WGMMA_ALIGNMENT,
        "wgmma_whole_64" | "wgmma_part_64" => tile(64, 4) + WGMMA_ALIGNMENT,
        "wgmma_whole_128" | "wgmma_part_128" => tile(128, 6) + WGMMA_ALIGNMENT,
        "wgmma_whole_192" | "wgmma_part_192" => tile(192, 5) + WGMMA_ALIGNMENT,
        _ => 0,
    }
}
