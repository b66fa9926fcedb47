//! SQLite implementations of the seams that `identity`, `ledger`, `objects` and `trace` define. Knows no HTTP and no
//! engine.

pub mod backup;
pub mod disk;
mod grouped;
mod pair;
mod sqlite;
mod statement_error;

pub mod files;
pub mod identity;
pub mod journal;
pub mod late;
pub mod objects;
pub mod trace;
pub mod usage;

pub use sqlite::Durability;
