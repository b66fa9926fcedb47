//! Shadow copies: copies of served calls that run at another model, at the server's expense, after the caller's last
//! byte, and within their own bounds. A copy is an internal call that passes every stage. Its trace names the
//! original call and says how the answers compare. Must not know what an answer says.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use headrace_call_api::{CallerInfo, MemoryAccount, MemoryReservation};
use headrace_call_state::delivery::DeliveredCopy;
use headrace_domain::{
    CallOutcome, Clock, Endpoint, KeyId, ModelName, NanoDollars, RequestId, ShadowOf, ShadowedCall,
    TraceRecord, UnixNanos,
};
use headrace_identity::{ModelAccess, Principal, RateLimits};
use parking_lot::Mutex;

mod compare;

mod queue;

mod runner;

use compare::ComparedShape;
use queue::{CopyQueue, SkipReason, SpendReservation};
pub use queue::{ShadowBudget, ShadowFigures, ShadowSpend};
pub use runner::{CopyRunner, run_copies};

/// The key id under which copies are traced and take memory. No real key has it.
pub const SHADOW_KEY: &str = "shadow";
/// The most bytes of bodies and answers that are kept for copies, over all names.
const MEMORY_BYTES: u64 = 64 << 20;
/// The longest answer that is compared, in bytes.
const COMPARED_BYTES: usize = 256 << 10;
/// Answers up to this many bytes are compared on the event loop.
const COMPARED_INLINE: usize = 32 << 10;

/// How calls for a name are copied.
#[derive(Debug, Clone, PartialEq)]
pub struct ShadowSpec {
    /// The model that gets the copies.
    pub model: ModelName,
    /// The share of calls that are copied, from 0 to 1.
    pub share: f64,
    /// The bound on the cost of the copies.
    pub budget: ShadowBudget,
    /// Compares the answers, and keeps the caller's answer for that.
    pub compare: bool,
    /// The most copies that run concurrently.
    pub in_flight: u32,
    /// The most copies that wait to run.
    pub queue: usize,
}

/// All shadow copies, by the name that was asked for and the model that gets the copies. Outlives a catalogue.
pub struct ShadowCopies {
    queues: Mutex<BTreeMap<(ModelName, ModelName), Arc<ShadowQueue>>>,
    memory: MemoryAccount,
    spending: OnceLock<Arc<dyn ShadowSpending>>,
}

/// Persists the cost of copies, so that a budget outlives a process.
pub trait ShadowSpending: Send + Sync {
    /// The latest persisted values.
    fn kept(&self) -> Vec<ShadowSpent>;

    /// Persists what the copies of one name's calls at one model have cost. Durable when it returns. May block.
    ///
    /// # Errors
    /// The reason why it cannot be persisted.
    fn keep(&self, spent: &ShadowSpent) -> Result<(), String>;
}

/// What the copies of one name's calls at one model have cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowSpent {
    /// The name that was asked for.
    pub name: ModelName,
    /// The model that got the copies.
    pub model: ModelName,
    /// The period and the amount.
    pub spent: ShadowSpend,
}

/// The queue of copies of one name's calls at one model.
pub type ShadowQueue = CopyQueue<Box<ShadowCopy>>;

/// A call's relation to shadow copies.
pub enum ShadowRole {
    /// A copy is to be made of this call, if it is served.
    Sampled(ShadowSample),
    /// The call is a copy itself.
    Copy(RunningCopy),
}

/// Everything that a copy is made from.
pub struct ShadowSample {
    spec: Arc<ShadowSpec>,
    queue: Arc<ShadowQueue>,
    body: Bytes,
    memory: Arc<MemoryReservation>,
    endpoint: Endpoint,
    dialect: Vec<(&'static str, String)>,
    principal: Arc<Principal>,
    keeper: Option<SpendingKeeper>,
}

/// Persists what the copies of one queue cost.
#[derive(Clone)]
struct SpendingKeeper {
    spending: Arc<dyn ShadowSpending>,
    name: ModelName,
    model: ModelName,
}

impl SpendingKeeper {
    /// Persists what the queue has spent or holds. Returns `false` if that fails.
    async fn keep(&self, queue: &ShadowQueue, budget: &ShadowBudget) -> bool {
        let Some(spent) = queue.unwritten(budget) else { return true };
        let (keeper, keeping) = (self.clone(), spent);
        let kept = tokio::task::spawn_blocking(move || {
            let Self { spending, name, model } = keeper;
            spending.keep(&ShadowSpent { name, model, spent: keeping })
        });
        match kept.await {
            Ok(Ok(())) => queue.wrote(spent),
            Ok(Err(why)) => {
                tracing::warn!(why, "what copies of calls cost cannot be kept: none is made");
                return false;
            }
            Err(_) => return false,
        }
        true
    }
}

/// A copy that is to be made.
pub struct ShadowCopy {
    sample: ShadowSample,
    of: ShadowOf,
    answer: Option<OriginalAnswer>,
}

/// The caller's answer that the copy is compared with.
struct OriginalAnswer {
    form: ComparedShape,
    bytes: Bytes,
}

/// A copy that is running.
pub struct RunningCopy {
    model: ModelName,
    spec: Arc<ShadowSpec>,
    queue: Arc<ShadowQueue>,
    answer: Option<OriginalAnswer>,
    memory: Arc<MemoryReservation>,
    keeper: Option<SpendingKeeper>,
    taken: Option<SpendReservation<Box<ShadowCopy>>>,
    /// Id of the original request.
    of: RequestId,
}

impl Default for ShadowCopies {
    /// No copies yet.
    fn default() -> Self {
        let memory = MemoryAccount::new(MEMORY_BYTES, MEMORY_BYTES);
        Self { queues: Mutex::default(), memory, spending: OnceLock::new() }
    }
}

impl ShadowCopies {
    /// Restores persisted spending, and persists it from now on. Only the first `spending` is used.
    pub fn keep_spending(&self, spending: Arc<dyn ShadowSpending>) {
        for ShadowSpent { name, model, spent } in spending.kept() {
            self.queue(&name, &model).resume(spent);
        }
        let _ = self.spending.set(spending);
    }

    fn queue(&self, name: &ModelName, to: &ModelName) -> Arc<ShadowQueue> {
        Arc::clone(self.queues.lock().entry((name.clone(), to.clone())).or_default())
    }

    /// The figures for a name and a model.
    pub fn figures(&self, name: &ModelName, to: &ModelName) -> ShadowFigures {
        self.queue(name, to).figures()
    }
}

/// A call that may be copied.
pub struct SampledCall<'a> {
    /// The call's id.
    pub id: RequestId,
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The body.
    pub body: Bytes,
    /// Headers by which the dialect changes the meaning of the body.
    pub dialect: &'a [(&'static str, String)],
    /// The caller.
    pub principal: &'a Arc<Principal>,
    /// The time.
    pub now: UnixNanos,
}

impl ShadowCopies {
    /// Decides whether a copy is made of a call, and keeps what it needs. `name` is the name that the rule applies to.
    pub fn sample(
        &self,
        name: &ModelName,
        spec: &Arc<ShadowSpec>,
        call: SampledCall<'_>,
    ) -> Option<Box<ShadowRole>> {
        let SampledCall { id, endpoint, body, dialect, principal, now } = call;
        // The low bits of an id are random.
        let drawn = f64::from(u32::try_from(id.bits() & u128::from(u32::MAX)).unwrap_or(u32::MAX));
        if drawn >= spec.share * 2_f64.powi(32) {
            return None;
        }
        let queue = self.queue(name, &spec.model);
        if !queue.could_pay(&spec.budget, now) {
            queue.skip(SkipReason::Unpaid);
            return None;
        }
        let memory = self.memory.for_call_of(shadow_key()?);
        if memory.add(body.len() as u64).is_err() {
            queue.skip(SkipReason::Full);
            return None;
        }
        let keeper = self.spending.get().map(|spending| SpendingKeeper {
            spending: Arc::clone(spending),
            name: name.clone(),
            model: spec.model.clone(),
        });
        Some(Box::new(ShadowRole::Sampled(ShadowSample {
            keeper,
            spec: Arc::clone(spec),
            queue,
            body,
            memory: Arc::new(memory),
            endpoint,
            dialect: dialect.to_vec(),
            principal: Arc::clone(principal),
        })))
    }
}

fn shadow_key() -> Option<KeyId> {
    KeyId::new(SHADOW_KEY).ok()
}

impl ShadowRole {
    /// A buffer that keeps the answer for the comparison. `None` if the answer is not compared.
    pub fn keeps(&self) -> Option<DeliveredCopy> {
        let memory = match self {
            Self::Sampled(sample) => sample.spec.compare.then_some(&sample.memory)?,
            Self::Copy(copy) => copy.answer.is_some().then_some(&copy.memory)?,
        };
        Some(DeliveredCopy::new(Arc::clone(memory), COMPARED_BYTES))
    }

    /// The running copy, if the call is one.
    pub fn copy(&self) -> Option<&RunningCopy> {
        if let Self::Copy(copy) = self { Some(copy) } else { None }
    }

    /// As [`Self::copy`], mutable.
    pub fn copy_mut(&mut self) -> Option<&mut RunningCopy> {
        if let Self::Copy(copy) = self { Some(copy) } else { None }
    }
}

impl ShadowCopy {
    /// Starts the copy if the queue has a free slot: returns the copy and its queue. The caller then runs copies
    /// until none waits. Otherwise the copy waits in the queue, or is dropped if the queue is full.
    pub fn enter(self: Box<Self>) -> Option<(Box<Self>, Arc<ShadowQueue>)> {
        let (queue, spec) = (Arc::clone(&self.sample.queue), Arc::clone(&self.sample.spec));
        let mut org = DefaultHasher::new();
        self.sample.principal.org.hash(&mut org);
        let copy = queue.enter((org.finish(), self), queue.most_at_work(spec.in_flight), spec.queue)?;
        Some((copy, queue))
    }

    /// The copy as an internal call that begins now.
    pub fn into_call(self, clock: &dyn Clock) -> Option<CopyCall> {
        let Self { sample, of, answer } = self;
        let ShadowSample { spec, queue, body, memory, endpoint, dialect, principal, keeper } = sample;
        let principal = Principal {
            key: shadow_key()?,
            models: ModelAccess::All,
            limits: RateLimits::default(),
            project_limits: RateLimits::default(),
            org_limits: RateLimits::default(),
            tier: None,
            ..(*principal).clone()
        };
        let caller = CallerInfo {
            dialect_headers: dialect,
            idempotency: None,
            ..CallerInfo::in_process(clock.now(), clock.monotonic_nanos())
        };
        let model = spec.model.clone();
        let running = RunningCopy { model, of: of.call, spec, queue, answer, memory, keeper, taken: None };
        Some(CopyCall { endpoint, caller, principal: Arc::new(principal), body, running, of })
    }
}

/// A copy as an internal call.
pub struct CopyCall {
    /// Its endpoint.
    pub endpoint: Endpoint,
    /// Its caller.
    pub caller: CallerInfo,
    /// The principal that it acts for.
    pub principal: Arc<Principal>,
    /// Its body.
    pub body: Bytes,
    /// Its state.
    pub running: RunningCopy,
    /// Its relation to the original call.
    pub of: ShadowOf,
}

impl RunningCopy {
    /// The model that gets the copy.
    pub fn model(&self) -> &ModelName {
        &self.model
    }

    /// The original request, whose id seeds the sampling, so that the same model gives the same answer.
    pub fn of(&self) -> RequestId {
        self.of
    }

    /// Takes the most that the copy may cost from the budget. Returns `false` if the budget does not cover it.
    pub async fn pay(&mut self, amount: NanoDollars, now: UnixNanos) -> bool {
        self.taken = self.queue.take(&self.spec.budget, amount, now);
        if self.taken.is_some() && !self.keep_spending().await {
            self.taken = None;
        }
        self.taken.is_some()
    }

    /// Persists what the queue has spent or holds, if spending is persisted. Returns `false` if that fails.
    async fn keep_spending(&self) -> bool {
        match &self.keeper {
            Some(keeper) => keeper.keep(&self.queue, &self.spec.budget).await,
            None => true,
        }
    }
}

impl ShadowRole {
    /// Handles the end of a call before `record` is written. For a copy, settles its cost and adds the comparison to
    /// `record`. For a sampled call, returns the copy to make, unless the call failed or the server is stopping.
    pub async fn end(
        self: Box<Self>,
        is_stopping: bool,
        secret: [u8; 32],
        kept: Option<Bytes>,
        record: &mut TraceRecord,
    ) -> Option<Box<ShadowCopy>> {
        let form = form(record);
        match *self {
            ShadowRole::Sampled(sample) => {
                let (Some(form), false) = (form, is_stopping) else {
                    sample.queue.skip(SkipReason::Unserved);
                    return None;
                };
                let of = ShadowOf {
                    call: record.request_id,
                    model: record.model_served.clone().unwrap_or_default(),
                    went: ShadowedCall {
                        first_token_ns: record.time_to_first_token_ns(),
                        server_ns: record.server_ns(),
                        output_tokens: record.usage.completion_tokens(),
                        cost: record.cost,
                    },
                    compared: None,
                };
                Some(Box::new(ShadowCopy {
                    sample,
                    of,
                    answer: kept.map(|bytes| OriginalAnswer { form, bytes }),
                }))
            }
            ShadowRole::Copy(mut copy) => {
                if let Some(taken) = &mut copy.taken {
                    taken.spend(record.loss);
                }
                if copy.taken.take().is_some() {
                    // The copy may have cost more than was held for it.
                    copy.keep_spending().await;
                }
                let same_form = copy.answer.take().filter(|real| Some(real.form) == form);
                if let (Some(real), Some(bytes), Some(of)) = (same_form, kept, &mut record.shadow_of) {
                    let long = real.bytes.len() + bytes.len() > COMPARED_INLINE;
                    let compare = move || compare::compare(real.form, &real.bytes, &bytes, &secret);
                    of.compared = match long {
                        true => tokio::task::spawn_blocking(compare).await.ok().flatten(),
                        false => compare(),
                    };
                }
                None
            }
        }
    }
}

/// The form of an answer that completed. `None` for other outcomes.
fn form(record: &TraceRecord) -> Option<ComparedShape> {
    let CallOutcome::Completed { finish } = &record.outcome else { return None };
    let choices = u32::try_from(finish.len()).ok()?;
    Some(ComparedShape { endpoint: record.endpoint?, stream: record.stream, choices })
}
