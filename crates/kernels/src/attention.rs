//! Paged attention: stores keys and values, and attends over them. Prefill and decode use the same arithmetic.
//! Must not know: which sequence a block belongs to, or which sequences share it.
//!
//! **Same bits.** A query processes its keys in splits that start at absolute multiples of [`SPLIT`] positions. Each
//! split computes the scores, their maximum, 2^(score − maximum), and the weighted values. A score is one chain over
//! the head's elements. A weighted value is one chain over the split's keys in ascending order. Splits merge in
//! ascending order, either in the worker that computed them or later. A query's result depends only on its own row and
//! on the stored keys and values that it sees ([`Sees`]). It does not depend on other queries, on which worker
//! computes a split, or on how the work is cut.

pub(crate) mod attend;
pub(crate) mod plan;
mod softmax;
mod span;
mod store;
mod widen;
pub(crate) mod workspace;

pub(crate) use span::SPLIT;
pub use span::{Sees, Span};
pub use store::{KvShape, KvSlot, KvStore, KvType, KvValues};
