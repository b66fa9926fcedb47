//! Static files of the admin listener, embedded in the program: the console and the documentation. Must not know HTTP,
//! operators, or what the program does.

mod asset;
pub mod console;
pub mod docs_site;

pub use asset::StaticAsset;
