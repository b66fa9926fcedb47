//! The path as a whole, with a scripted engine, a journal in memory and real keys, limits, ledger and template.

mod ends;
mod holds;
mod refusals;
mod world;
