//! The operations of [`crate::Kernels`]. Each one checks its shapes, then splits its work into tasks.
//! Must not know: architectures.

mod attention;
mod product;
mod rows;
mod states;

pub use attention::Queries;
pub use product::Write;
pub use rows::{GroupNorm, HeadColumns, HeadRows, ProjectedRows, RopeTable};
pub use states::{HeadRecurrence, RecurrenceRule, ShortConvolution};
