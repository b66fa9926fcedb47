//! A ledger over a journal that several gateways append to. Each gateway keeps the whole state in memory. It writes in
//! *turns*: it locks the head of the journal, applies the rows that others wrote, decides the commands that wait, appends
//! one row and releases the head. So every decision rests on everything that any gateway wrote before, and the same
//! [`LedgerCore`](crate::core::LedgerCore) decides as in a ledger of one process.
//!
//! **Verdicts come after the commit.** A caller learns a verdict when the row that it rests on is durable. A refusal
//! counts only if it was decided in a turn.
//!
//! **A commit whose outcome is unknown** (the connection broke before the answer came) is resolved by the next turn: it
//! happened if the journal has exactly that row. Otherwise its commands are decided again.
//!
//! **Callers are checked within the turn.** Revoking a key locks the same head. If identities changed, the turn ends, this
//! gateway loads the changes, and the turn begins anew. So after a revocation was acknowledged, no gateway takes a hold
//! with that key.
//!
//! **Time** is that of the journal, which is one clock for all gateways.
//!
//! **A gateway that ends** stops renewing its presence. After a lease, another gateway declares it dead in a turn and
//! releases its holds. A gateway that was declared dead by mistake writes nothing more under its old [`Owner`]; it
//! continues under a new one.

mod clock_check;
mod decide;
mod journal;
mod ledger;
mod memory;
mod reply;
mod shared;
mod thread;
mod vanished;
mod writer;

pub use journal::{GatewayPresence, SharedIdentities, SharedJournal, StartedTurn, TurnStamp};
pub use ledger::{SharedLedger, TurnHand};
pub use memory::{CommitFault, MemorySharedJournal};
pub use shared::SharedLedgerOptions;
pub use writer::TurnOutcome;
