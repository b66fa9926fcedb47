//! The calls of a run and their times: a pure function of the configuration. Knows no server and no words: prompts are
//! numbers of tokens here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

use crate::random::{RandomStream, RunRandom};
use crate::{
    ArrivalSpread, BenchConfig, ConversationTurns, LoadShape, PauseLength, RequestShape, StopRule, TraceCall,
    Warmup,
};

/// The planned calls of a run, independent of the server's answers.
#[derive(Debug, Clone)]
pub struct RunPlan {
    source: PlanSource,
    total: Option<u64>,
}

#[derive(Debug, Clone)]
enum PlanSource {
    Made { shape: RequestShape, arrivals: Option<(f64, ArrivalSpread)>, think: PauseLength, seed: u64 },
    Recorded(Arc<Vec<PlannedSession>>),
}

/// Calls that follow each other: a conversation, or a single call.
#[derive(Debug, Clone)]
pub struct PlannedSession {
    /// The session's number, from 0, in the order of arrival.
    pub index: u64,
    /// When the first call is due, from the start of the run. Zero in a closed loop.
    pub at: Duration,
    /// The shared prefix of the prompt, if any.
    pub prefix: Option<SharedPrefixUse>,
    /// The calls, at least one.
    pub calls: Vec<PlannedCall>,
}

/// A prefix that other prompts share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedPrefixUse {
    /// The number of the prefix text.
    pub group: u64,
    /// Length of the prefix in tokens.
    pub tokens: u32,
}

/// A planned call.
#[derive(Debug, Clone)]
pub struct PlannedCall {
    /// The call's number in the whole run, from 0.
    pub index: u64,
    /// Tokens that the call adds to the conversation. For the first call, the whole prompt including the prefix.
    pub tokens: u32,
    /// Maximum tokens of the answer.
    pub output: Option<u32>,
    /// The caller's pause before the call.
    pub pause: Duration,
    /// Earliest due time, from the start of the run.
    pub not_before: Option<Duration>,
    /// The messages to send, if a trace has them.
    pub messages: Option<Arc<Vec<Box<RawValue>>>>,
    /// The blocks of the prompt, if a trace has them.
    pub blocks: Option<Arc<Vec<u64>>>,
}

impl RunPlan {
    /// Creates the plan of a run.
    pub fn new(config: &BenchConfig) -> Self {
        // Total number of calls. Unknown if the warm-up is a time, since only the run itself can count those calls.
        let total = match (config.stop, config.warmup) {
            (StopRule { requests: Some(requests), .. }, Warmup::Calls(warm)) => {
                Some(requests.saturating_add(warm))
            }
            _ => None,
        };
        let made = |arrivals, think| PlanSource::Made {
            shape: config.shape.clone(),
            arrivals,
            think,
            seed: config.seed,
        };
        match &config.load {
            LoadShape::Closed { think, .. } => Self { source: made(None, *think), total },
            LoadShape::Open { rate, arrivals } => {
                Self { source: made(Some((*rate, *arrivals)), PauseLength::NONE), total }
            }
            LoadShape::Replay { calls, speed } => {
                let sessions = recorded(calls, *speed, total.unwrap_or(u64::MAX));
                let calls: usize = sessions.iter().map(|session| session.calls.len()).sum();
                let total = u64::try_from(calls).ok();
                Self { source: PlanSource::Recorded(Arc::new(sessions)), total }
            }
        }
    }

    /// Total number of calls, if it is known.
    pub fn total(&self) -> Option<u64> {
        self.total
    }

    /// The sessions in the order of arrival. Endless if the plan has no end.
    pub fn sessions(&self) -> SessionIter {
        let seed = match &self.source {
            PlanSource::Made { seed, .. } => *seed,
            PlanSource::Recorded(_) => 0,
        };
        SessionIter {
            plan: self.clone(),
            next: 0,
            at: 0.0,
            gaps: RunRandom::new(seed, RandomStream::Arrivals, 0),
        }
    }
}

/// The iterator of [`RunPlan::sessions`].
#[derive(Debug)]
pub struct SessionIter {
    plan: RunPlan,
    next: u64,
    /// Arrival time in seconds. A float's 53 bits are finer than a microsecond for centuries.
    at: f64,
    gaps: RunRandom,
}

impl Iterator for SessionIter {
    type Item = PlannedSession;

    fn next(&mut self) -> Option<PlannedSession> {
        let index = self.next;
        let session = match &self.plan.source {
            PlanSource::Recorded(sessions) => sessions.get(usize::try_from(index).ok()?)?.clone(),
            PlanSource::Made { shape, arrivals, think, seed } => {
                let first = index.checked_mul(u64::from(shape.turns.calls()))?;
                let left = self.plan.total.unwrap_or(u64::MAX).saturating_sub(first);
                if left == 0 {
                    return None;
                }
                if let Some((rate, arrivals)) = arrivals {
                    self.at += gap(&mut self.gaps, *rate, *arrivals, index);
                }
                let at = Duration::try_from_secs_f64(self.at).ok()?;
                made(shape, *think, *seed, index, at, left)
            }
        };
        self.next = index.checked_add(1)?;
        Some(session)
    }
}

/// Seconds between an arrival and the previous one. The first arrival comes at once.
fn gap(random: &mut RunRandom, rate: f64, arrivals: ArrivalSpread, index: u64) -> f64 {
    if index == 0 {
        return 0.0;
    }
    match arrivals {
        ArrivalSpread::Poisson => random.exponential() / rate,
        ArrivalSpread::Bursts(size) if !index.is_multiple_of(u64::from(size.max(1))) => 0.0,
        ArrivalSpread::Bursts(size) => random.exponential() * f64::from(size) / rate,
        ArrivalSpread::Gamma(shape) => random.gamma(shape) / (shape * rate),
    }
}

fn made(
    shape: &RequestShape,
    think: PauseLength,
    seed: u64,
    index: u64,
    at: Duration,
    left: u64,
) -> PlannedSession {
    let mut lengths = RunRandom::new(seed, RandomStream::Lengths, index);
    let mut pauses = RunRandom::new(seed, RandomStream::Pauses, index);
    let prefix = shape.prefix.and_then(|shared| {
        let mut draw = RunRandom::new(seed, RandomStream::Prefixes, index);
        let group = draw.below(u64::from(shared.groups));
        (draw.unit() < shared.share).then_some(SharedPrefixUse { group, tokens: shared.tokens })
    });
    let agent = matches!(shape.turns, ConversationTurns::Agent { .. });
    let turns = u64::from(shape.turns.calls());
    let calls = (0..turns.min(left)).map(|turn| {
        let first = turn == 0;
        let tokens = if first { shape.prompt } else { shape.turn_tokens }.sample(&mut lengths);
        PlannedCall {
            index: index.saturating_mul(turns).saturating_add(turn),
            // At least one token of its own after the prefix.
            tokens: tokens.max(prefix.filter(|_| first).map_or(1, |prefix| prefix.tokens.saturating_add(1))),
            output: Some(shape.output.sample(&mut lengths)),
            // An agent does not pause to think.
            pause: if agent && !first { Duration::ZERO } else { think.sample(&mut pauses) },
            not_before: None,
            messages: None,
            blocks: None,
        }
    });
    PlannedSession { index, at, prefix, calls: calls.collect() }
}

/// The sessions of a trace. Each starts with its earliest call.
fn recorded(calls: &[TraceCall], speed: f64, most: u64) -> Vec<PlannedSession> {
    let mut order: Vec<&TraceCall> = calls.iter().collect();
    // The sort is stable: of calls at the same time, the first in the file comes first.
    order.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms));
    let start = order.first().map_or(0.0, |call| call.at_ms);
    let mut sessions: Vec<PlannedSession> = Vec::new();
    let mut known: HashMap<&str, (usize, u32)> = HashMap::new();
    for (index, call) in (0..most).zip(order) {
        let at = Duration::try_from_secs_f64((call.at_ms - start) / 1e3 / speed).unwrap_or(Duration::MAX);
        let prompt = call.prompt_tokens.unwrap_or(1);
        let total = prompt.saturating_add(call.output_tokens.unwrap_or(0));
        let place = call.session.as_deref().and_then(|name| known.get(name).copied());
        let planned = PlannedCall {
            index,
            tokens: place.map_or(prompt, |(_, total)| prompt.saturating_sub(total).max(1)),
            output: call.output_tokens.map(|tokens| tokens.max(1)),
            pause: Duration::ZERO,
            not_before: Some(at),
            messages: call.messages.clone().map(Arc::new),
            blocks: call.hash_ids.clone().map(Arc::new),
        };
        let at_place = match place.and_then(|(place, _)| Some((place, sessions.get_mut(place)?))) {
            Some((place, session)) => {
                session.calls.push(planned);
                place
            }
            None => {
                let prefix = call.prefix_group.zip(call.prefix_tokens);
                let prefix =
                    prefix.map(|(group, tokens)| SharedPrefixUse { group, tokens: tokens.min(prompt) });
                let place = sessions.len();
                let number = u64::try_from(place).unwrap_or(u64::MAX);
                sessions.push(PlannedSession { index: number, at, prefix, calls: vec![planned] });
                place
            }
        };
        if let Some(name) = &call.session {
            known.insert(name, (at_place, total));
        }
    }
    sessions
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{AgentRole, SharedPrefix};

    fn open(rate: f64, arrivals: ArrivalSpread, requests: u64) -> BenchConfig {
        let mut config = BenchConfig::new("http://h");
        config.load = LoadShape::Open { rate, arrivals };
        config.stop = StopRule { requests: Some(requests), duration: None };
        config
    }

    fn gaps(arrivals: ArrivalSpread) -> (f64, f64) {
        let config = open(50.0, arrivals, 40_000);
        let at: Vec<f64> = RunPlan::new(&config).sessions().map(|session| session.at.as_secs_f64()).collect();
        assert_eq!(at.len(), 40_000);
        let gaps: Vec<f64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|gap| *gap >= 0.0));
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        (1.0 / mean, variance.sqrt() / mean)
    }

    /// Each distribution keeps the rate. The coefficient of variation shows the distribution.
    #[test]
    fn arrivals_keep_their_rate_and_their_spread() {
        for (arrivals, spread) in [
            (ArrivalSpread::Poisson, 1.0),
            (ArrivalSpread::Gamma(1.0), 1.0),
            (ArrivalSpread::Gamma(0.25), 2.0),
            (ArrivalSpread::Gamma(100.0), 0.1),
            // Of 8 gaps, 7 are 0 and one is exponential with mean 8: E[x²] = 2·64/8 = 16, so √(16 − 1).
            (ArrivalSpread::Bursts(8), 15.0_f64.sqrt()),
        ] {
            let (rate, found) = gaps(arrivals);
            assert!((rate / 50.0 - 1.0).abs() < 0.05, "{arrivals:?}: {rate}");
            assert!((found / spread - 1.0).abs() < 0.07, "{arrivals:?}: {found}");
        }
    }

    #[test]
    fn bursts_arrive_together() {
        let plan = RunPlan::new(&open(8.0, ArrivalSpread::Bursts(4), 10));
        let at: Vec<Duration> = plan.sessions().map(|session| session.at).collect();
        assert!(at[0] == at[3] && at[3] < at[4] && at[4] == at[7] && at[7] < at[8] && at[8] == at[9]);
    }

    #[test]
    fn shares_and_groups_are_drawn_as_asked() {
        let mut config = open(1.0, ArrivalSpread::Poisson, 20_000);
        config.shape.prompt = "512".parse().unwrap();
        config.shape.prefix = Some(SharedPrefix { tokens: 448, groups: 4, share: 0.9 });
        let mut groups = [0_u32; 4];
        for session in RunPlan::new(&config).sessions() {
            if let Some(prefix) = session.prefix {
                groups[prefix.group as usize] += 1;
                assert_eq!((prefix.tokens, session.calls[0].tokens), (448, 512));
            }
        }
        assert!(groups.iter().all(|n| (4_300..4_700).contains(n)), "{groups:?}");
    }

    #[test]
    fn conversations_have_their_turns_and_the_last_is_cut_to_the_number_of_calls() {
        let mut config = open(1.0, ArrivalSpread::Poisson, 7);
        config.warmup = Warmup::Calls(1);
        config.shape.turns = ConversationTurns::Chat(3);
        config.shape.turn_tokens = "16".parse().unwrap();
        let plan = RunPlan::new(&config);
        let sessions: Vec<PlannedSession> = plan.sessions().collect();
        assert_eq!(plan.total(), Some(8));
        let shape: Vec<Vec<(u64, u32)>> = sessions
            .iter()
            .map(|session| session.calls.iter().map(|call| (call.index, call.tokens)).collect())
            .collect();
        assert_eq!(
            shape,
            [vec![(0, 128), (1, 16), (2, 16)], vec![(3, 128), (4, 16), (5, 16)], vec![(6, 128), (7, 16)]]
        );
        config.shape.turns = ConversationTurns::Agent { hops: 4, role: AgentRole::User };
        assert_eq!(RunPlan::new(&config).sessions().next().unwrap().calls.len(), 5);
    }

    #[test]
    fn users_think_and_agents_do_not() {
        let mut config = BenchConfig::new("http://h");
        config.load = LoadShape::Closed { users: 1, think: "2s".parse().unwrap() };
        let pauses = |turns| {
            config.shape.turns = turns;
            let session = RunPlan::new(&config).sessions().next().unwrap();
            session.calls.iter().map(|call| call.pause.as_secs()).collect::<Vec<u64>>()
        };
        let mut pauses = pauses;
        assert_eq!(pauses(ConversationTurns::Chat(3)), [2, 2, 2]);
        assert_eq!(pauses(ConversationTurns::Agent { hops: 2, role: AgentRole::User }), [2, 0, 0]);
    }

    #[test]
    fn a_trace_becomes_its_conversations() {
        let call = |at_ms, prompt, output, session: Option<&str>| TraceCall {
            at_ms,
            prompt_tokens: Some(prompt),
            output_tokens: Some(output),
            session: session.map(str::to_owned),
            ..TraceCall::default()
        };
        let mut config = BenchConfig::new("http://h");
        config.stop = StopRule { requests: None, duration: None };
        config.load = LoadShape::Replay {
            calls: vec![
                call(900.0, 50, 5, Some("b")),
                call(3_100.0, 260, 10, Some("a")),
                call(100.0, 100, 20, Some("a")),
                call(500.0, 30, 0, None),
                call(4_100.0, 40, 9, Some("b")),
            ],
            speed: 2.0,
        };
        let plan = RunPlan::new(&config);
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        type Row = (f64, Vec<(u64, u32, Option<u32>, f64)>);
        let rows: Vec<Row> = plan
            .sessions()
            .map(|session| {
                let calls = session.calls.iter();
                let calls =
                    calls.map(|call| (call.index, call.tokens, call.output, ms(call.not_before.unwrap())));
                (ms(session.at), calls.collect())
            })
            .collect();
        // Half the times. A later call adds the tokens of its prompt beyond the previous prompt and answer, at least
        // one.
        assert_eq!(
            rows,
            [
                (0.0, vec![(0, 100, Some(20), 0.0), (3, 140, Some(10), 1_500.0)]),
                (200.0, vec![(1, 30, Some(1), 200.0)]),
                (400.0, vec![(2, 50, Some(5), 400.0), (4, 1, Some(9), 2_000.0)]),
            ]
        );
        assert_eq!(plan.total(), Some(5));
        config.stop.requests = Some(2);
        assert_eq!(RunPlan::new(&config).sessions().count(), 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The same seed gives the same plan, and another seed gives another plan.
        #[test]
        fn a_plan_is_a_function_of_its_seed(seed in any::<u64>(), turns in 1_u32..4, burst in 1_u32..5) {
            let mut config = open(20.0, ArrivalSpread::Bursts(burst), 40);
            config.seed = seed;
            config.shape.prompt = "lognormal:300,0.5".parse().unwrap();
            config.shape.output = "uniform:8..64".parse().unwrap();
            config.shape.turns = ConversationTurns::Chat(turns);
            config.shape.prefix = Some(SharedPrefix { tokens: 64, groups: 3, share: 0.5 });
            let shown = |config: &BenchConfig| format!("{:?}", RunPlan::new(config).sessions().collect::<Vec<_>>());
            let first = shown(&config);
            prop_assert_eq!(&first, &shown(&config));
            config.text_seed = seed.wrapping_add(9);
            prop_assert_eq!(&first, &shown(&config));
            config.seed = seed.wrapping_add(1);
            prop_assert_ne!(&first, &shown(&config));
        }
    }
}
