//! The seam between gateway and engine: jobs in, events out, cancel, capabilities, load. Beside it the one between gateway and
//! others' servers of messages (`relay`).
//! It knows tokens, sampling and deliverable text; nothing of HTTP, keys, limits, money, KV blocks or weights.

mod channel;
mod grammar;
mod health;
mod job;
mod load;
mod relay;
mod thought;

use std::sync::Arc;

pub use channel::{Cancelled, EventSender, Events, Ticket, TicketControl, channel};
pub use grammar::{FormKinds, FormThought, Grammar, GrammarFailed, GrammarState, SharedGrammar, is_gbnf};
pub use health::Health;
pub use job::{Event, Job, JobError, JobReport, Priority, PromptScores, Tenant};
pub use load::{Capabilities, Continues, LoadReport, Reported, SubmitRefusal};
pub use relay::{
    Abandoned, AnswerBounds, AnswerMemory, AnswerMemoryFull, PrefixCache, Relay, RelayAnswer, RelayAsk,
    RelayError, RelayEvent, RelayFacts, RelayHead, RelayWait, RelayedEvent, Resumes, Screening, SharedRelay,
};
pub use thought::{MOST_MARK_IDS, ThoughtCap};

use headrace_domain::PrefixKeys;

/// A backend that takes token ids and gives token ids: the embedded engine, or a worker on another host.
pub trait Engine: Send + Sync {
    /// What it serves and how much of it fits. Fixed while it runs.
    fn capabilities(&self) -> &Capabilities;

    /// Takes a job. What refuses it here has cost nothing. From acceptance on exactly one terminal event follows
    /// ([`Event::Done`] or [`Event::Failed`]).
    fn submit(&self, job: Job) -> Result<Ticket, SubmitRefusal>;

    /// How many tokens of a prompt, from the first on, lie in the prefix cache at this moment: a hint for placement and for
    /// the estimate shown, never a promise.
    fn cached_prefix(&self, keys: &PrefixKeys) -> usize;

    /// How busy it is: a hint that may be a step old.
    fn load(&self) -> LoadReport;

    /// Whether it takes jobs.
    fn health(&self) -> Health;
}

/// An engine that several rooms share.
pub type SharedEngine = Arc<dyn Engine>;
