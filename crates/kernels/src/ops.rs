//! The operations of [`crate::Kernels`]. Each one checks its shapes, then splits its work into tasks.
//! Must not know: architectures.

mod attention;
mod product;
mod rows;

pub use attention::Queries;
pub use product::Write;
pub use rows::{HeadColumns, HeadRows, RopeTable};
