//! The errors of quantizing and dequantizing a row. Must not know: files or tensors. The caller adds the name.

use std::fmt;

use crate::BlockType;

/// Why a row or a matrix was not quantized, dequantized or unpacked.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum QuantError {
    /// A row's weights are not a whole number of blocks.
    RaggedRow {
        /// The format.
        kind: BlockType,
        /// Weights in the row.
        weights: usize,
    },
    /// The two buffers of a call do not match in length.
    Length {
        /// The format.
        kind: BlockType,
        /// Bytes of blocks that the weights or codes need.
        expected: usize,
        /// Bytes of blocks that were given.
        found: usize,
    },
    /// The output of [`crate::codes`] does not have the length of one block's codes.
    Codes {
        /// The format.
        kind: BlockType,
        /// Codes in a block.
        expected: usize,
        /// Length of the output that was given.
        found: usize,
    },
    /// A buffer of a matrix does not have the length that the other sizes call for.
    Part {
        /// What it holds.
        what: &'static str,
        /// Bytes that it needs. `usize::MAX` if the sizes overflow.
        expected: usize,
        /// Bytes that were given.
        found: usize,
    },
    /// A stored scale is NaN or infinite.
    Scale {
        /// Its index among the scales.
        index: usize,
        /// Its value.
        value: f32,
    },
    /// Groups of columns do not divide the columns.
    Groups {
        /// Number of columns.
        columns: usize,
        /// Columns in a group.
        group: usize,
    },
    /// No block format holds the groups of a matrix.
    NoBlockType {
        /// Columns in a group.
        group: usize,
    },
    /// A column is in a group that does not exist.
    Group {
        /// The column.
        column: usize,
        /// Its stored group.
        group: u32,
        /// Number of groups.
        groups: usize,
    },
    /// A stored weight is NaN, or infinite after it was scaled.
    Weight {
        /// The weight's row.
        row: usize,
        /// The weight's column.
        column: usize,
        /// The weight's value.
        value: f32,
    },
    /// The format is only read: no quantizer makes it.
    ReadOnly {
        /// The format.
        kind: BlockType,
    },
    /// A weight is NaN or infinite.
    NotFinite {
        /// The weight's index in the row.
        position: usize,
        /// The weight's value.
        value: f32,
    },
    /// A weight is so large that its block's scale overflows the format's f16.
    TooLarge {
        /// The format.
        kind: BlockType,
        /// Index in the row of the block's first weight.
        position: usize,
        /// The largest magnitude in the block.
        value: f32,
    },
}

impl fmt::Display for QuantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::RaggedRow { kind, weights } => {
                let block = kind.block_weights();
                write!(
                    f,
                    "a row of {weights} weights is not a whole number of {} blocks of {block}",
                    kind.name()
                )
            }
            Self::Length { kind, expected, found } => {
                write!(f, "{} needs {expected} bytes here, not {found}", kind.name())
            }
            Self::Codes { kind, expected, found } => {
                write!(f, "a {} block holds {expected} codes, not {found}", kind.name())
            }
            Self::Part { what, expected, found } => write!(f, "{what} of {found} bytes, not {expected}"),
            Self::Scale { index, value } => write!(f, "scale {index} is {value}"),
            Self::Groups { columns, group } => {
                write!(f, "groups of {group} columns do not divide {columns}")
            }
            Self::NoBlockType { group } => {
                write!(f, "no block format holds groups of {group} columns in this order")
            }
            Self::Group { column, group, groups } => {
                write!(f, "column {column} is in group {group} of {groups}")
            }
            Self::Weight { row, column, value } => write!(f, "row {row}, column {column} is {value}"),
            Self::ReadOnly { kind } => {
                let known = BlockType::QUANTIZED.map(BlockType::name).join(", ");
                write!(f, "{} is only read; weights can be quantized to {known}", kind.name())
            }
            Self::NotFinite { position, value } => write!(f, "weight {position} of the row is {value}"),
            Self::TooLarge { kind, position, value } => {
                write!(
                    f,
                    "{value} in the block at weight {position} is beyond what a {} scale can hold",
                    kind.name()
                )
            }
        }
    }
}

impl std::error::Error for QuantError {}
