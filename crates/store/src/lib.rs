//! SQLite behind the seams that `identity`, `ledger` and `trace` define. Knows no HTTP and no engine.

mod sqlite;

pub mod identity;
pub mod journal;
pub mod trace;

pub use sqlite::Durability;
