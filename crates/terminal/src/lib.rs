//! The terminal of the commands and of the server: text, tables, progress lines, Ctrl-C. Must not know what is shown.

pub mod interruption;
pub mod output;
pub mod progress;
