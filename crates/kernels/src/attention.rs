//! Paged attention, one arithmetic for prefill and decode: storing keys and values, and attending over them.
//! Must not know: which sequence a block belongs to, or who shares it.
//!
//! **Same bits.** A query takes its keys in splits that stand at absolute multiples of [`SPLIT`] positions. Within a split:
//! scores (each one chain over the head's elements), their maximum, 2^(score − maximum), and the weighted values (each one
//! chain over the split's keys in ascending order). Splits merge in ascending order, whether by the worker that computed
//! them or later. A query's result depends on its own row and on the stored keys and values that it sees ([`Sees`]): not on which
//! queries stand beside it, on who computes which split, or on how the work is cut.

pub(crate) mod attend;
pub(crate) mod plan;
mod softmax;
mod span;
mod store;
pub(crate) mod tile;
pub(crate) mod workspace;

pub(crate) use span::SPLIT;
pub use span::{Sees, Span};
pub use store::{KvShape, KvSlot, KvStore, KvType};
