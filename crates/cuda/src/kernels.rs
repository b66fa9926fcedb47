//! The kernels' sources and what they are called. Must not know: how they are launched.

/// What stands before each of them.
pub const COMMON: &str = include_str!("../kernels/common.cuh");

/// File names and texts of the kernels, each compiled behind [`COMMON`].
pub const SOURCES: [(&str, &str); 3] = [
    ("rows.cu", include_str!("../kernels/rows.cu")),
    ("dense.cu", include_str!("../kernels/dense.cu")),
    ("attention.cu", include_str!("../kernels/attention.cu")),
];

/// What the compiler is told beside the architecture. Nothing is contracted, so that two kernels that say the same compute the
/// same; 177 says that a function of the common part is
/// not used here; the last has it tell registers and spills.
pub const OPTIONS: [&str; 4] = ["--std=c++17", "--fmad=false", "-diag-suppress=177", "--ptxas-options=-v"];

/// Counts up when bits change.
pub const KERNEL_VERSION: u32 = 1;

/// Head widths that attention is compiled for; a head is filled up with zeros to the next of them.
pub const HEAD_WIDTHS: [usize; 4] = [32, 64, 96, 128];

/// Every kernel.
pub const NAMES: [&str; 21] = [
    "embed",
    "rms_norm",
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
];
