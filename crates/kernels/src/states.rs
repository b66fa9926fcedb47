//! Recurrent layers: states of fixed size, and the kernels that advance them. A short convolution keeps its last inputs;
//! the gated delta rule and Mamba2 keep a matrix for each head as well.
//! Must not know: which sequence a slot belongs to, or which sequences share one.
//!
//! **Same bits.** The arithmetic is defined on blocks of 16 tokens at absolute positions. A slot holds the state at a
//! block's start, and one row for each token of the block so far. A row's output depends on that state and on the rows
//! up to its own. Each of its elements is one chain of multiply-adds in a fixed order, with the elements of a value or the
//! channels in the lanes. The state changes only when all 16 rows of a block are there. Sixteen rows at once and one at a
//! time therefore give the same bits, with any instruction set by itself.

pub(crate) mod convolution;
pub(crate) mod plan;
mod product;
pub(crate) mod recurrence;
mod sharing;
mod store;

pub use plan::{StatePlan, StateSpan};
pub use sharing::HeadSharing;
pub use store::{StateShape, StateStore};
