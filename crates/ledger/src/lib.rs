//! Double entry, holds and prices: a synchronous, deterministic core over a journal trait, and a service around it that
//! commits in groups. Knows no HTTP, no keys, no engine and no database: a store implements [`Journal`].

mod admin;
mod budget_commands;
mod budget_decisions;
mod budget_record;
mod budget_rule;
mod budget_snapshot;
mod calendar;
mod charges;
mod client;
mod codec;
mod command;
mod command_time;
pub mod core;
mod counters;
mod durable;
mod entries;
mod finished_keys;
mod free_tier;
mod free_tier_state;
mod funding;
mod hold_use;
mod journal;
mod lot;
mod lot_commands;
mod lot_record;
mod lot_rules;
mod lot_snapshot;
mod lot_state;
mod memory;
mod open_holds;
mod outbox;
mod posting;
pub mod prices;
mod record;
mod refund;
mod refund_commands;
mod refund_record;
mod refund_state;
mod refusal;
mod replay;
mod resolved;
mod service;
mod settlement;
mod snapshot;
mod snapshot_schedule;
mod standing;
mod state;
mod table;
mod time_zone;
mod transaction;
mod turns;
mod verdict;
pub mod verify;
mod windows;

pub use admin::{GatewayRecord, GatewayState, JournalHistory, LedgerAdmin, LocalLedgerAdmin};
pub use budget_rule::{
    AlertRaised, BudgetCounter, BudgetMeasure, BudgetOrigin, BudgetRaise, BudgetReport, BudgetReservation,
    BudgetRule, BudgetRuleFault, BudgetScope, BudgetWindow, BudgetedHold, HeldPlaces, HoldDemand,
    MAX_BUDGET_RULES, ModelDemand, PlaceLimits, WindowBounds,
};
pub use charges::{ChargeGroup, FundedAmounts, OrgCharges, charges_of};
pub use client::{CallerCheck, LedgerClient, PendingBatch, StandingHint};
pub use command::{
    BudgetPeriod, ChargeLine, GrantKind, IdempotencyClaim, LedgerOperation, LowBalance, Owner, ProjectBudget,
    Receipt, ReleaseReason, SettleOutcome, StoredAnswer,
};
pub use durable::{DurableFuture, JournalFailed};
pub use free_tier::{FreeLeft, FreeTier, FreeTierReport, MAX_FREE_TIERS};
pub use journal::{
    FORMAT_VERSION, Journal, JournalError, JournalRow, LedgerError, LoadedJournal, SNAPSHOT_FORMAT_VERSION,
    StateSnapshot,
};
pub use lot::{
    ChargedShare, CreditLot, FundingShare, HoldFunding, LotId, LotKind, LotReport, LotTerms, MAX_LOT_MODELS,
    MAX_LOTS_PER_ORG, MoneySource,
};
pub use memory::{AppendFault, MemoryJournal};
pub use outbox::{
    DeliveryOutcome, DeliveryRecord, DeliveryState, DueDelivery, EventOutbox, OutboxError, OutboxEvent,
};
pub use record::decode_row;
pub use refund::{ChargeRefunded, MAX_REFUNDS, RefundMade, RefundPart, RefundTarget, RefundableCharge};
pub use refusal::{ExceededBudget, HoldResolution, LedgerRefusal};
pub use resolved::MAX_RESOLVED_KEPT;
pub use service::{BatchResult, JournalHand, JournalHealth, Ledger, LedgerOptions, OpenReport};
pub use settlement::{JournaledSettlement, find_settlement};
pub use standing::{BudgetStanding, HoldView, LedgerTotals, SpendableBalance};
pub use state::{MAX_ANSWER_BYTES, MAX_ANSWERS_BYTES, MAX_KEYS_PER_PROJECT};
pub use transaction::{Account, Entries, HoldSettled, HoldTaken, JournalEvent, MoneyEntry, Transaction};
pub use turns::{
    CommitFault, GatewayPresence, MemorySharedJournal, SharedIdentities, SharedJournal, SharedLedger,
    SharedLedgerOptions, StartedTurn, TurnHand, TurnOutcome, TurnStamp,
};
pub use verdict::CommandResult;
pub use windows::{days_after, local_date, month_bounds};
