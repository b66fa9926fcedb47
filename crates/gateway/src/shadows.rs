//! Copies of served calls at another model: on the house's account, behind the caller's last byte, within bounds of their own.
//! A copy is a call of the house that walks the whole path; its trace says whose copy it is, and how the answers compare. Must not
//! know what an answer says.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use headrace_call_api::{Credentials, Head, Memory, Peer, Reserved};
use headrace_domain::{
    Clock, Endpoint, KeyId, ModelName, NanoDollars, Outcome, RequestId, ShadowOf, ShadowedCall, TraceRecord,
    UnixNanos,
};
use headrace_identity::{ModelAccess, Principal, RateLimits};
use parking_lot::Mutex;

use crate::delivery::Kept;

mod compare;

mod lane;

use compare::Form;
use lane::{Lane, Skipped, Taken};
pub use lane::{ShadowBudget, ShadowFigures, Spent};

/// The id under which copies are traced, and take memory: no key has it.
pub const SHADOW_KEY: &str = "shadow";
/// Bytes of bodies and answers that are kept for copies, of all names together.
const MEMORY_BYTES: u64 = 64 << 20;
/// The longest answer that is compared.
const COMPARED_BYTES: usize = 256 << 10;
/// Answers up to this long are compared on the event loop.
const COMPARED_INLINE: usize = 32 << 10;

/// How calls for a name are copied.
#[derive(Debug, Clone, PartialEq)]
pub struct ShadowSpec {
    /// Who gets the copies.
    pub model: ModelName,
    /// Of how many calls, from 0 to 1.
    pub share: f64,
    /// What they may cost.
    pub budget: ShadowBudget,
    /// The answers are compared, for which the caller's is kept until then.
    pub compare: bool,
    /// The most copies at work.
    pub in_flight: u32,
    /// The most that wait for that.
    pub queue: usize,
}

/// All copies of a gateway's calls, by the name that was asked for and the model that gets the copies. They outlive a catalogue.
pub(crate) struct Shadows {
    lanes: Mutex<BTreeMap<(ModelName, ModelName), Arc<CopyLane>>>,
    memory: Memory,
    spending: OnceLock<Arc<dyn ShadowSpending>>,
}

/// Keeps what copies have cost, so that a budget outlives a process.
pub trait ShadowSpending: Send + Sync {
    /// What was kept last.
    fn kept(&self) -> Vec<ShadowSpent>;

    /// Keeps what the copies of one name's calls at one model have cost. Durable when it returns; may block.
    ///
    /// # Errors
    /// Why it cannot be kept.
    fn keep(&self, spent: &ShadowSpent) -> Result<(), String>;
}

/// What the copies of one name's calls at one model have cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShadowSpent {
    /// The name that was asked for.
    pub name: ModelName,
    /// The model that got the copies.
    pub model: ModelName,
    /// In which period, and how much.
    pub spent: Spent,
}

/// Where the copies of one name's calls wait.
pub(crate) type CopyLane = Lane<Box<Copy>>;

/// What a call has to do with copies.
pub(crate) enum Shadow {
    /// One is to be made of it, if it is served.
    Sampled(Sample),
    /// It is one.
    Copy(Running),
}

/// All that a copy is made from.
pub(crate) struct Sample {
    spec: Arc<ShadowSpec>,
    lane: Arc<CopyLane>,
    body: Bytes,
    memory: Arc<Reserved>,
    endpoint: Endpoint,
    dialect: Vec<(&'static str, String)>,
    principal: Arc<Principal>,
    keeper: Option<SpendingKeeper>,
}

/// Keeps what the copies of one lane cost.
#[derive(Clone)]
struct SpendingKeeper {
    spending: Arc<dyn ShadowSpending>,
    name: ModelName,
    model: ModelName,
}

impl SpendingKeeper {
    /// Keeps what the lane has spent or holds. False if it cannot be kept.
    async fn keep(&self, lane: &CopyLane, budget: &ShadowBudget) -> bool {
        let Some(spent) = lane.unwritten(budget) else { return true };
        let (keeper, keeping) = (self.clone(), spent);
        let kept = tokio::task::spawn_blocking(move || {
            let Self { spending, name, model } = keeper;
            spending.keep(&ShadowSpent { name, model, spent: keeping })
        });
        match kept.await {
            Ok(Ok(())) => lane.wrote(spent),
            Ok(Err(why)) => {
                tracing::warn!(why, "what copies of calls cost cannot be kept: none is made");
                return false;
            }
            Err(_) => return false,
        }
        true
    }
}

/// A copy to be made.
pub(crate) struct Copy {
    sample: Sample,
    of: ShadowOf,
    answer: Option<Real>,
}

/// The answer that it is compared with.
struct Real {
    form: Form,
    bytes: Bytes,
}

/// A copy that is being made.
pub(crate) struct Running {
    model: ModelName,
    spec: Arc<ShadowSpec>,
    lane: Arc<CopyLane>,
    answer: Option<Real>,
    memory: Arc<Reserved>,
    keeper: Option<SpendingKeeper>,
    taken: Option<Taken<Box<Copy>>>,
    /// Whose copy it is.
    of: RequestId,
}

impl Shadows {
    pub(crate) fn new() -> Self {
        let memory = Memory::new(MEMORY_BYTES, MEMORY_BYTES);
        Self { lanes: Mutex::default(), memory, spending: OnceLock::new() }
    }

    /// Resumes what was kept, and keeps what is spent from now on. The first one stays.
    pub(crate) fn keep_spending(&self, spending: Arc<dyn ShadowSpending>) {
        for ShadowSpent { name, model, spent } in spending.kept() {
            self.lane(&name, &model).resume(spent);
        }
        let _ = self.spending.set(spending);
    }

    fn lane(&self, name: &ModelName, to: &ModelName) -> Arc<CopyLane> {
        Arc::clone(self.lanes.lock().entry((name.clone(), to.clone())).or_default())
    }

    /// How it went so far, by name and model.
    pub(crate) fn figures(&self, name: &ModelName, to: &ModelName) -> ShadowFigures {
        self.lane(name, to).figures()
    }
}

/// Whether a copy is to be made of a call, and what from. `name`: under which that was said.
pub(crate) fn sample(
    (shadows, now): (&Shadows, UnixNanos),
    (name, spec): (&ModelName, &Arc<ShadowSpec>),
    id: RequestId,
    what: (Endpoint, Bytes, &[(&'static str, String)]),
    principal: &Arc<Principal>,
) -> Option<Box<Shadow>> {
    // The low bits of an id are random.
    let drawn = f64::from(u32::try_from(id.bits() & u128::from(u32::MAX)).unwrap_or(u32::MAX));
    if drawn >= spec.share * 2_f64.powi(32) {
        return None;
    }
    let (endpoint, body, dialect) = what;
    let lane = shadows.lane(name, &spec.model);
    if !lane.could_pay(&spec.budget, now) {
        lane.skip(Skipped::Unpaid);
        return None;
    }
    let memory = shadows.memory.for_call_of(house_key()?);
    if memory.add(body.len() as u64).is_err() {
        lane.skip(Skipped::Full);
        return None;
    }
    let keeper = shadows.spending.get().map(|spending| SpendingKeeper {
        spending: Arc::clone(spending),
        name: name.clone(),
        model: spec.model.clone(),
    });
    Some(Box::new(Shadow::Sampled(Sample {
        keeper,
        spec: Arc::clone(spec),
        lane,
        body,
        memory: Arc::new(memory),
        endpoint,
        dialect: dialect.to_vec(),
        principal: Arc::clone(principal),
    })))
}

fn house_key() -> Option<KeyId> {
    KeyId::new(SHADOW_KEY).ok()
}

impl Shadow {
    /// What its answer is kept in to be compared.
    pub(crate) fn keeps(&self) -> Option<Kept> {
        let memory = match self {
            Self::Sampled(sample) => sample.spec.compare.then_some(&sample.memory)?,
            Self::Copy(copy) => copy.answer.is_some().then_some(&copy.memory)?,
        };
        Some(Kept::new(Arc::clone(memory), COMPARED_BYTES))
    }

    /// The copy that is being made.
    pub(crate) fn copy(&self) -> Option<&Running> {
        if let Self::Copy(copy) = self { Some(copy) } else { None }
    }

    /// As `copy`.
    pub(crate) fn copy_mut(&mut self) -> Option<&mut Running> {
        if let Self::Copy(copy) = self { Some(copy) } else { None }
    }
}

impl Copy {
    /// The lane for the caller to work in until no copy waits, where there is a place: it is given back with the copy. Otherwise the
    /// copy waits there, or there are too many.
    pub(crate) fn enter(self: Box<Self>) -> Option<(Box<Self>, Arc<CopyLane>)> {
        let (lane, spec) = (Arc::clone(&self.sample.lane), Arc::clone(&self.sample.spec));
        let mut org = DefaultHasher::new();
        self.sample.principal.org.hash(&mut org);
        let copy = lane.enter((org.finish(), self), lane.most_at_work(spec.in_flight), spec.queue)?;
        Some((copy, lane))
    }

    /// As a call of the house that begins now: its head, the principal that it acts for, its body, and what makes it a copy.
    pub(crate) fn into_call(
        self,
        clock: &dyn Clock,
    ) -> Option<(Head, Arc<Principal>, Bytes, Running, ShadowOf)> {
        let Self { sample, of, answer } = self;
        let Sample { spec, lane, body, memory, endpoint, dialect, principal, keeper } = sample;
        let house = Principal {
            key: house_key()?,
            models: ModelAccess::All,
            limits: RateLimits::default(),
            project_limits: RateLimits::default(),
            org_limits: RateLimits::default(),
            ..(*principal).clone()
        };
        let head = Head {
            endpoint,
            credentials: Credentials::default(),
            peer: Peer { address: ([127, 0, 0, 1], 0).into() },
            traceparent: None,
            dialect,
            started: clock.now(),
            started_mono_ns: clock.monotonic_nanos(),
            connection: None,
        };
        let model = spec.model.clone();
        let running = Running { model, of: of.call, spec, lane, answer, memory, keeper, taken: None };
        Some((head, Arc::new(house), body, running, of))
    }
}

impl Running {
    /// Who gets it.
    pub(crate) fn model(&self) -> &ModelName {
        &self.model
    }

    /// Whose random numbers it draws, so that the same model says the same.
    pub(crate) fn of(&self) -> RequestId {
        self.of
    }

    /// Takes the most that it may cost from its budget; false: that does not cover it.
    pub(crate) async fn pay(&mut self, amount: NanoDollars, now: UnixNanos) -> bool {
        self.taken = self.lane.take(&self.spec.budget, amount, now);
        if self.taken.is_some() && !self.keep_spending().await {
            self.taken = None;
        }
        self.taken.is_some()
    }

    /// Keeps what the lane has spent or holds, where that outlives this process. False if it cannot be kept.
    async fn keep_spending(&self) -> bool {
        match &self.keeper {
            Some(keeper) => keeper.keep(&self.lane, &self.spec.budget).await,
            None => true,
        }
    }
}

/// A call has ended, and `record` is to be written: of a copy with how it compares. The copy that is to be made of a call, unless
/// the server is stopping.
pub(crate) async fn ended(
    (stopping, secret): (bool, [u8; 32]),
    shadow: Option<Box<Shadow>>,
    kept: Option<Bytes>,
    record: &mut TraceRecord,
) -> Option<Box<Copy>> {
    let form = form(record);
    match *shadow? {
        Shadow::Sampled(sample) => {
            let (Some(form), false) = (form, stopping) else {
                sample.lane.skip(Skipped::Unserved);
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
            Some(Box::new(Copy { sample, of, answer: kept.map(|bytes| Real { form, bytes }) }))
        }
        Shadow::Copy(mut copy) => {
            if let Some(taken) = &mut copy.taken {
                taken.spend(record.loss);
            }
            if copy.taken.take().is_some() {
                // It may have cost more than was held for it.
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

/// The form of an answer that ended well.
fn form(record: &TraceRecord) -> Option<Form> {
    let Outcome::Completed { finish } = &record.outcome else { return None };
    let choices = u32::try_from(finish.len()).ok()?;
    Some(Form { endpoint: record.endpoint?, stream: record.stream, choices })
}
