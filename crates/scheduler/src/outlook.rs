//! Forecasts how long a new sequence would wait. Uses the work ahead of it in its class, the tenants' turns, and recent
//! step costs, with prefill and decode apart. The forecast is a guess, because the lengths of answers are unknown. Has
//! no clock.

use headrace_domain::PrefixKeys;
use headrace_kv_layout::PerGroup;

use crate::config::SchedulerConfig;
use crate::fair::{FairQueue, SCALE};
use crate::prefixes::Prefixes;
use crate::rate::{Rate, StepCost};
use crate::running::Running;
use crate::sequence::{Class, Sequence, SequenceSpec, Slab};
use crate::waiting::Waiting;

/// Shortest retry delay that a caller is given, in nanoseconds.
pub(crate) const LEAST_RETRY_NS: u64 = 1_000_000_000;
/// Retry delay, in nanoseconds, before anything was measured. A shorter one would be a guess.
const UNKNOWN_RETRY_NS: u64 = 10_000_000_000;

/// Read access to the state that a wait depends on.
#[derive(Debug)]
pub(crate) struct Outlook<'a> {
    pub(crate) config: &'a SchedulerConfig,
    pub(crate) sequences: &'a Slab,
    pub(crate) running: &'a Running,
    pub(crate) waiting: &'a Waiting,
    pub(crate) tenants: &'a FairQueue,
    pub(crate) prefixes: &'a Prefixes,
    pub(crate) rate: &'a Rate,
}

/// The sequence whose wait is forecast.
#[derive(Debug)]
pub(crate) struct NewSequence<'a> {
    tenant: u64,
    weight: u32,
    class: Class,
    prompt: usize,
    keys: Option<&'a PrefixKeys>,
}

/// The forecast for a new sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Forecast {
    /// Nanoseconds until its first chunk is computed.
    pub(crate) wait_ns: u64,
    /// Nanoseconds from there to its first token.
    pub(crate) prefill_ns: u64,
}

/// Work that is done before the new sequence's turn.
#[derive(Debug, Clone, Copy, Default)]
struct Ahead {
    sequences: f64,
    /// Prompt tokens to compute.
    tokens: f64,
}

impl<'a> NewSequence<'a> {
    pub(crate) fn of(spec: &'a SequenceSpec) -> Self {
        let keys = spec.keys.as_ref().filter(|keys| keys.are_of(&spec.salt, &spec.prompt));
        let keys = keys.filter(|_| !spec.score_prompt);
        Self {
            tenant: spec.tenant,
            weight: spec.weight.max(1),
            class: spec.class,
            prompt: spec.prompt.len(),
            keys,
        }
    }
}

impl Outlook<'_> {
    /// The forecast for a new sequence. `None` before anything was measured.
    pub(crate) fn forecast(&self, new_sequence: &NewSequence<'_>) -> Option<Forecast> {
        let cost = self.rate.cost()?;
        let cached = new_sequence
            .keys
            .filter(|_| self.config.prefix_cache)
            .map_or(0, |k| self.prefixes.cached_tokens(k));
        let own = new_sequence.prompt.saturating_sub(cached);
        let ahead = self.ahead_of(new_sequence);
        let decoding = self.to_decode();
        let wait = self.steps_until_slot(new_sequence, own, ahead.sequences);
        // An arrival waits half a step on average for the step in progress.
        let busy = if self.computing().next().is_none() { 0.0 } else { 0.5 };
        let wait = self.nanos(&cost, wait.max(busy), ahead.tokens, decoding);
        let prefill = self.nanos(&cost, 1.0, own as f64, decoding);
        // The conversion of a float beyond `u64` saturates.
        Some(Forecast { wait_ns: wait as u64, prefill_ns: prefill as u64 })
    }

    /// Nanoseconds that another sequence of this tenant, weight and class would wait now. A default before anything was
    /// measured.
    pub(crate) fn wait_of_another(&self, (tenant, weight, class): (u64, u64, Class)) -> u64 {
        let weight = u32::try_from(weight).unwrap_or(u32::MAX);
        let another = NewSequence { tenant, weight, class, prompt: 1, keys: None };
        self.forecast(&another).map_or(UNKNOWN_RETRY_NS, |forecast| forecast.wait_ns)
    }

    /// Nanoseconds until `sequences` waiting sequences with `tokens` prompt tokens have left the queue. At least a
    /// second, and a default before anything was measured.
    pub(crate) fn until_queue_room(&self, sequences: usize, tokens: u64) -> u64 {
        let Some(cost) = self.rate.cost() else { return UNKNOWN_RETRY_NS };
        let steps = self.steps_until_ended(sequences as f64 - self.slots_free(1.0));
        let tokens = tokens as f64 * self.rate.computed_share();
        (self.nanos(&cost, steps, tokens, self.to_decode()) as u64).max(LEAST_RETRY_NS)
    }

    /// Prompt tokens per second in steps that compute nothing else, and generated tokens per second at the current
    /// batch.
    pub(crate) fn speeds(&self) -> (f64, f64) {
        let Some(cost) = self.rate.cost() else { return (0.0, 0.0) };
        let per_second = |tokens: f64, nanos: f64| if nanos > 0.0 { tokens * 1e9 / nanos } else { 0.0 };
        let chunk = self.config.max_chunk.min(self.config.step_tokens) as f64;
        let batch = self.decoding().max(1) as f64;
        (
            per_second(chunk, cost.fixed + cost.prefill * chunk),
            per_second(batch, cost.fixed + cost.decode * batch),
        )
    }

    /// Duration of the steps that compute `tokens` prompt tokens beside `decoding` sequences. Counts at least `steps`
    /// steps.
    fn nanos(&self, cost: &StepCost, steps: f64, tokens: f64, decoding: usize) -> f64 {
        let budget = self.config.step_tokens.saturating_sub(decoding).max(1);
        let steps = steps.max(tokens / budget as f64);
        let steps = if tokens > 0.0 { steps.max(1.0) } else { steps };
        steps * (cost.fixed + cost.decode * decoding as f64) + tokens * cost.prefill
    }

    fn decoding(&self) -> usize {
        let decodes = |s: &&Sequence| s.only_decode_left() && s.class != Class::Idle;
        self.computing().filter(decodes).count()
    }

    /// Number of running sequences that decode, or will decode once their prompts are computed. A wait passes beside
    /// them.
    fn to_decode(&self) -> usize {
        self.computing().filter(|s| s.class != Class::Idle).count()
    }

    /// Running sequences that are not paused.
    fn computing(&self) -> impl Iterator<Item = &Sequence> {
        self.running.of(self.sequences).map(|(_, s)| s).filter(|s| !s.paused)
    }

    /// The work before the new sequence's turn: higher classes, the queue of its own tenant, and part of every other
    /// tenant's queue. That part is the work that brings the other tenant's counter up to the new sequence's.
    fn ahead_of(&self, new_sequence: &NewSequence<'_>) -> Ahead {
        let share = self.rate.computed_share();
        let mut ahead = Ahead::default();
        let (tenant, class) = (new_sequence.tenant, new_sequence.class);
        let mut target = self.tenants.entry_counter(tenant, class) as f64;
        for queued in self.tenants.queued(class).filter(|queued| queued.tenant == tenant) {
            ahead.sequences += queued.sequences as f64;
            ahead.tokens += queued.tokens as f64 * share;
            target += self.service(queued.sequences as f64, queued.tokens as f64 * share) * SCALE as f64
                / f64::from(new_sequence.weight);
        }
        for &other in Class::SERVED.iter().filter(|&&other| other >= class) {
            for queued in self.tenants.queued(other).filter(|q| other > class || q.tenant != tenant) {
                let (sequences, tokens) = (queued.sequences as f64, queued.tokens as f64 * share);
                let all = self.service(sequences, tokens).max(1.0);
                let behind = (target - queued.counter as f64) * f64::from(queued.weight) / SCALE as f64;
                let part = if other > class { 1.0 } else { (behind / all).clamp(0.0, 1.0) };
                ahead.sequences += sequences * part;
                ahead.tokens += tokens * part;
            }
        }
        // Running prefills of tenants that were served less continue before the new sequence.
        for sequence in self.computing() {
            let before = sequence.class > class
                || (sequence.class == class && self.tenants.counter(sequence.tenant) as f64 <= target);
            if before && sequence.remaining() > 0 && !sequence.only_decode_left() {
                ahead.tokens += sequence.remaining() as f64;
            }
        }
        ahead
    }

    /// Tokens that will be charged for waiting sequences with this many prompt tokens, expected answers included.
    fn service(&self, sequences: f64, tokens: f64) -> f64 {
        tokens + sequences * self.rate.output_mean().unwrap_or(0.0)
    }

    /// Steps until the new sequence gets a running slot and blocks, behind `ahead` other sequences. A tenant within its
    /// fair share gets them at once.
    fn steps_until_slot(&self, new_sequence: &NewSequence<'_>, own: usize, ahead: f64) -> f64 {
        if new_sequence.class != Class::Idle {
            let queued: usize = self
                .tenants
                .queued(new_sequence.class)
                .filter(|q| q.tenant == new_sequence.tenant)
                .map(|q| q.sequences)
                .sum();
            let holds = self.tenants.running(new_sequence.tenant) + queued + 1;
            let alone = !self.computing().any(|s| s.tenant != new_sequence.tenant);
            if !alone && holds <= self.tenants.share(new_sequence.tenant, self.config.max_running) {
                return 0.0;
            }
        }
        self.steps_until_ended(ahead + 1.0 - self.slots_free(own as f64))
    }

    /// How many more sequences of `tokens` prompt tokens could start now. Capacity of idle work and of paused sequences
    /// counts as free.
    fn slots_free(&self, tokens: f64) -> f64 {
        let busy = self.computing().filter(|s| s.class != Class::Idle);
        let (mut count, mut held) = (0_usize, PerGroup::repeat(0));
        for sequence in busy {
            count += 1;
            let own = sequence.tables.held();
            for ((held, own), promised) in held.iter_mut().zip(own.iter()).zip(sequence.promised.iter()) {
                *held += own + promised;
            }
        }
        let places = self.config.max_running.saturating_sub(count);
        let waiting = self.waiting.len(self.tenants);
        let mean = if waiting > 0 { self.waiting.tokens() as f64 / waiting as f64 } else { tokens };
        let groups = self.prefixes.groups().layout().groups().iter().zip(held.iter());
        let fitting = groups.filter(|(group, _)| group.is_used()).map(|(group, held)| {
            let blocks = group.block_count.saturating_sub(held + count.div_ceil(4));
            blocks / group.most_held(mean.max(1.0) as usize, self.config.chunk()).max(1)
        });
        fitting.fold(places, usize::min) as f64
    }

    /// Steps until `count` running sequences have ended, if each freed slot is taken again.
    fn steps_until_ended(&self, count: f64) -> f64 {
        if count <= 0.0 || self.running.len() == 0 {
            return 0.0;
        }
        let share = self.rate.output_share();
        let left = |s: &Sequence| {
            let bound = (s.max_new as usize).saturating_sub(s.generated());
            // A sequence that has exceeded the usual length may continue to its bound.
            let usual = (s.max_new as f64 * share) as usize;
            let expected = usual.saturating_sub(s.generated()).max(bound / 4).min(bound);
            expected.max(1)
        };
        let busy = self.computing().filter(|s| s.class != Class::Idle);
        let mut left: Vec<usize> = busy.map(left).collect();
        left.sort_unstable();
        let places = left.len().max(1);
        let rounds = (count.ceil() as usize).saturating_sub(1);
        let nth = left.get(rounds % places).copied().unwrap_or(0) as f64;
        let mean =
            self.rate.output_mean().unwrap_or_else(|| left.iter().sum::<usize>() as f64 / places as f64);
        nth + (rounds / places) as f64 * mean
    }
}
