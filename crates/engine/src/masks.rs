//! Grammar work outside of the engine's step: accepting ids into a grammar's state, and finding the ids that may come
//! next. A task runs in pieces. Must not know: batches, logits, or any grammar's language.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use headrace_engine_api::{GrammarFailed, GrammarState};

pub(crate) mod pool;

/// Most forced ids that one task accepts into the state.
pub(crate) const MAX_FORCED_IDS: usize = 256;
/// Units of grammar work that a call may use in total, besides [`TOKEN_WORK_UNITS`] for each id. Its choices get
/// equal shares. About two seconds of one processor.
const CALL_WORK_UNITS: u64 = 32_000_000;
/// Units of grammar work that each id of an answer adds to the budget. About two milliseconds of one processor.
const TOKEN_WORK_UNITS: u64 = 32_000;

/// Runs mask tasks, now or later, on this thread or on others.
pub trait MaskRunner: Send {
    /// Accepts a task. The runner calls [`MaskTask::run_piece`] until no piece is left. If it drops the task instead,
    /// the answer fails.
    fn submit(&mut self, task: MaskTask);
}

/// Runs each task to its end on the caller's thread.
pub(crate) struct InlineMasks;

impl MaskRunner for InlineMasks {
    fn submit(&mut self, task: MaskTask) {
        let mut left = Some(task);
        while let Some(task) = left {
            left = task.run_piece();
        }
    }
}

/// The work budget of one choice's grammar.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkBudget {
    base_units: u64,
}

impl WorkBudget {
    /// Returns the budget of one of `choices` choices of a call.
    pub(crate) fn of_choice(choices: u32) -> Self {
        Self { base_units: CALL_WORK_UNITS / u64::from(choices.max(1)) }
    }

    /// Checks the work used by an answer with `ids` ids.
    ///
    /// # Errors
    /// The answer has used more than its budget.
    pub(crate) fn check(self, used_units: u64, ids: u64) -> Result<(), GrammarFailed> {
        let limit = self.base_units.saturating_add(TOKEN_WORK_UNITS.saturating_mul(ids));
        if used_units <= limit {
            return Ok(());
        }
        let why = format!(
            "following the form took {used_units} units of work for {ids} tokens, and the limit is {limit} \
             ({TOKEN_WORK_UNITS} more for each token)"
        );
        Err(GrammarFailed { why })
    }
}

/// A task's report to its choice.
pub(crate) enum Reply {
    /// The ids are accepted. `run` is the forced ids after them, which the state has accepted too.
    Accepted { run: Vec<u32>, over: bool },
    /// The task is done.
    Done { state: Box<dyn GrammarState>, mask: Vec<u32>, fresh: bool },
    /// The answer cannot continue.
    Failed(GrammarFailed),
}

/// Wakes the engine.
pub(crate) type Wake = Arc<dyn Fn() + Send + Sync>;

/// The state that a choice and its task share.
pub(crate) struct TaskLink {
    /// Set if the answer has ended, so that its task must be dropped.
    pub(crate) dropped: AtomicBool,
    /// Set if the choice is paused until a reply comes.
    pub(crate) awaited: AtomicBool,
    pub(crate) wake: Wake,
}

/// Work on the grammar of one choice. A choice has one task at a time.
pub struct MaskTask {
    tenant: u64,
    job: Option<TaskJob>,
    /// Ids to accept first. `None` after they are accepted.
    ids: Option<Vec<u32>>,
    /// Number of ids that the answer has, including those of this task.
    taken: u64,
    budget: WorkBudget,
    to: Sender<Reply>,
    link: Arc<TaskLink>,
}

struct TaskJob {
    state: Box<dyn GrammarState>,
    mask: Vec<u32>,
}

impl MaskTask {
    pub(crate) fn new(
        tenant: u64,
        (state, mask): (Box<dyn GrammarState>, Vec<u32>),
        (ids, taken): (Vec<u32>, u64),
        budget: WorkBudget,
        (to, link): (Sender<Reply>, Arc<TaskLink>),
    ) -> Self {
        Self { tenant, job: Some(TaskJob { state, mask }), ids: Some(ids), taken, budget, to, link }
    }

    /// Returns the tenant whose answer waits for this task.
    pub fn tenant(&self) -> u64 {
        self.tenant
    }

    /// Whether the answer still needs this task.
    pub fn is_wanted(&self) -> bool {
        !self.link.dropped.load(Ordering::Acquire)
    }

    /// Whether the next piece accepts ids. The plan of the next step depends on such a piece.
    pub fn is_accept(&self) -> bool {
        self.ids.is_some()
    }

    /// Runs one piece of the work. Returns the task if another piece is left.
    pub fn run_piece(mut self) -> Option<Self> {
        let job = self.job.take()?;
        if !self.is_wanted() {
            return None;
        }
        let ids = self.ids.take();
        let (taken, budget, to) = (self.taken, self.budget, self.to.clone());
        let piece = AssertUnwindSafe(move || match ids {
            Some(ids) => accept(job, &ids, taken, budget, &to),
            None => mask(job, taken, budget),
        });
        let (reply, left) = match catch_unwind(piece) {
            Ok(outcome) => outcome,
            Err(_) => (Reply::Failed(GrammarFailed::panicked()), None),
        };
        self.reply(reply);
        self.job = left;
        self.job.is_some().then_some(self)
    }

    fn reply(&self, reply: Reply) {
        // The choice may be gone, so an error here is ignored.
        let _ = self.to.send(reply);
        if self.link.awaited.load(Ordering::SeqCst) {
            (self.link.wake)();
        }
    }
}

impl Drop for MaskTask {
    fn drop(&mut self) {
        if self.job.take().is_some() && self.is_wanted() {
            self.reply(Reply::Failed(GrammarFailed { why: "its work was dropped".to_owned() }));
        }
    }
}

/// Accepts `ids` and the forced ids after them.
fn accept(
    job: TaskJob,
    ids: &[u32],
    taken: u64,
    budget: WorkBudget,
    to: &Sender<Reply>,
) -> (Reply, Option<TaskJob>) {
    let TaskJob { mut state, mask } = job;
    for id in ids {
        if let Err(failed) = state.accept(*id) {
            return (Reply::Failed(failed), None);
        }
    }
    let (mut run, mut outcome) = (Vec::new(), Ok(()));
    while run.len() < MAX_FORCED_IDS {
        let Some(next) = state.forced().first().copied() else { break };
        outcome = state.accept(next);
        if outcome.is_err() {
            break;
        }
        run.push(next);
    }
    let known = taken.saturating_add(run.len() as u64);
    outcome = outcome.and_then(|()| budget.check(state.work_units(), known));
    if let Err(failed) = outcome {
        // The accepted ids are reported before the failure.
        let _ = to.send(Reply::Accepted { run, over: false });
        return (Reply::Failed(failed), None);
    }
    let over = state.is_over();
    if !state.forced().is_empty() {
        let _ = to.send(Reply::Accepted { run, over });
        return (Reply::Done { state, mask, fresh: false }, None);
    }
    (Reply::Accepted { run, over }, Some(TaskJob { state, mask }))
}

/// Computes the mask of ids that may come next.
fn mask(job: TaskJob, taken: u64, budget: WorkBudget) -> (Reply, Option<TaskJob>) {
    let TaskJob { mut state, mut mask } = job;
    let found = state.mask(&mut mask).and_then(|()| budget.check(state.work_units(), taken));
    match found {
        Ok(()) => (Reply::Done { state, mask, fresh: true }, None),
        Err(failed) => (Reply::Failed(failed), None),
    }
}
