//! The seam between gateway and engine: jobs, events, cancellation, capabilities and load. The `relay` module is the
//! seam between the gateway and upstream servers that take messages. This crate knows tokens, sampling and deliverable
//! text. It knows nothing of HTTP, keys, limits, money, KV blocks or weights.

mod channel;
mod grammar;
mod health;
mod job;
mod load;
mod pin_guard;
mod relay;
mod thought;

use std::sync::Arc;

pub use channel::{CancelledJob, EventSender, JobEvents, JobTicket, TicketControl, channel};
pub use grammar::{
    CompiledGrammar, FormKinds, FormThought, GrammarFailed, GrammarState, SharedGrammar, is_gbnf,
};
pub use health::EngineHealth;
pub use job::{Job, JobError, JobEvent, JobReport, Priority, PromptScores, Tenant};
pub use load::{Capabilities, GroupBlocks, LoadReport, ReportAge, ResumeSupport, SubmitRefusal};
pub use pin_guard::PinGuard;
pub use relay::{
    AbandonPolicy, AnswerBounds, AnswerMemory, AnswerMemoryFull, MessageRelay, MessageResume, PrefixCache,
    RelayAnswer, RelayAsk, RelayError, RelayEvent, RelayFacts, RelayHead, RelayWait, RelayedEvent, Screening,
    SharedRelay,
};
pub use thought::{MOST_MARK_IDS, ReasoningBudget};

use headrace_domain::{PrefixKeys, RequestId};

/// A backend that takes and returns token ids: the embedded engine, or a worker on another host.
pub trait Engine: Send + Sync {
    /// What the engine serves, and its limits. Fixed while it runs.
    fn capabilities(&self) -> &Capabilities;

    /// Accepts or refuses a job. A refused job has cost nothing. An accepted job ends with exactly one terminal event
    /// ([`JobEvent::Done`] or [`JobEvent::Failed`]).
    fn submit(&self, job: Job) -> Result<JobTicket, SubmitRefusal>;

    /// Number of tokens of a prompt, from its first on, that are in the prefix cache now. A hint for placement and for
    /// the displayed estimate, never a promise.
    fn cached_prefix(&self, keys: &PrefixKeys) -> usize;

    /// Releases what a call holds in the prefix cache ([`Job::held`]). Its jobs that still run hold nothing any more. An
    /// engine without pins does nothing.
    fn release_pins(&self, _owner: RequestId) {}

    /// Current load. A hint that may be one step old.
    fn load(&self) -> LoadReport;

    /// Whether the engine takes jobs.
    fn health(&self) -> EngineHealth;
}

/// An engine that several components share.
pub type SharedEngine = Arc<dyn Engine>;
