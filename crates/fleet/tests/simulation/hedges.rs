//! Hedged calls in virtual time: five workers, one that stalls now and then, and one that is drained.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{Clock, Dialect, ManualClock, ModelName, Residency};
use headrace_engine_api::{
    AbandonPolicy, EngineHealth, LoadReport, MessageRelay, MessageResume, PrefixCache, RelayAnswer, RelayAsk,
    RelayFacts, ReportAge,
};
use headrace_fleet::{Fleet, HedgePolicy, Placement, PrefixHashes, TriedWorkers, Worker, WorkerOutcome};

use crate::random::Random;
use crate::server::SECOND;

const MS: u64 = SECOND / 1_000;

/// A server that reports nothing useful.
struct Silent(RelayFacts);

impl MessageRelay for Silent {
    fn facts(&self) -> &RelayFacts {
        &self.0
    }
    fn send(&self, _: RelayAsk) -> Box<dyn RelayAnswer> {
        unreachable!("nobody is asked here")
    }
    fn count(&self, _: RelayAsk) -> Option<Box<dyn RelayAnswer>> {
        None
    }
    fn load(&self) -> LoadReport {
        LoadReport { reported: ReportAge::Now, ..LoadReport::default() }
    }
    fn health(&self) -> EngineHealth {
        EngineHealth::Up
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Arrives,
    /// An attempt of a call has its first output.
    Speaks(usize, usize),
    /// A call has waited for its hedge delay.
    Waited(usize),
    Ends(usize),
}

#[derive(Default)]
struct One {
    began_ns: u64,
    attempts: Vec<Option<Placement>>,
    spoke: bool,
}

struct Seen {
    firsts: Vec<u64>,
    races: usize,
    /// Calls that were hedged on a drained worker.
    to_drained: usize,
}

impl Seen {
    fn percentile(&self, percent: usize) -> u64 {
        self.firsts[(self.firsts.len() - 1) * percent / 100]
    }
}

/// 50 calls a second for five minutes. One in twelve calls of worker `c` stalls for two seconds. Worker `d` is drained.
fn run(seed: u64, hedge: Option<HedgePolicy>) -> Seen {
    let clock = Arc::new(ManualClock::default());
    let model = ModelName::new("m").unwrap();
    let worker = |id: &str| {
        let facts = RelayFacts {
            upstream: id.into(),
            dialect: Dialect::OpenAi,
            model: "m".into(),
            max_tokens_field: "max_tokens",
            context_window: None,
            abandoned: AbandonPolicy::Abort,
            resumes: MessageResume::Never,
            cache: PrefixCache::Disclosed,
            allow_unpriced: Arc::default(),
        };
        Arc::new(Worker::relay(id, model.clone(), Arc::new(Silent(facts))))
    };
    let workers: Vec<_> = ["a", "b", "c", "d", "e"].map(worker).into();
    workers[3].drain();
    let fleet = Fleet::with(workers, Arc::clone(&clock) as Arc<dyn Clock>, seed);
    let mut random = Random::new(seed);
    let (mut events, mut calls): (BinaryHeap<Reverse<(u64, What)>>, Vec<One>) = Default::default();
    let mut seen = Seen { firsts: Vec::new(), races: 0, to_drained: 0 };
    events.push(Reverse((1, What::Arrives)));
    let mut speaks_after = |placement: &Placement| {
        let stalls = &**placement.worker_id() == "c" && random.below(12) == 0;
        if stalls { 2 * SECOND } else { (50 + random.below(100)) * MS }
    };
    while let Some(Reverse((now_ns, what))) = events.pop() {
        clock.advance(Duration::from_nanos(now_ns - clock.monotonic_nanos()));
        match what {
            What::Arrives => {
                let Some(placement) = fleet.place_near(
                    &model,
                    PrefixHashes::default(),
                    &TriedWorkers::default(),
                    &Residency::Anywhere,
                ) else {
                    panic!("nobody")
                };
                let call = calls.len();
                events.push(Reverse((now_ns + speaks_after(&placement), What::Speaks(call, 0))));
                if let Some(patience) = hedge.and_then(|hedge| {
                    fleet.record_and_get_hedge_delay(&model, &placement, &hedge, &Residency::Anywhere)
                }) {
                    events.push(Reverse((now_ns + patience.as_nanos() as u64, What::Waited(call))));
                }
                calls.push(One { began_ns: now_ns, attempts: vec![Some(placement)], spoke: false });
                if now_ns < 300 * SECOND {
                    events.push(Reverse((now_ns + 20 * MS, What::Arrives)));
                }
            }
            What::Waited(at) => {
                let call = &mut calls[at];
                let mut passed = TriedWorkers::default();
                if call.spoke || !fleet.try_take_race(&model) {
                    continue;
                }
                passed.add_busy(call.attempts[0].as_ref().unwrap());
                let second =
                    fleet.place_near(&model, PrefixHashes::default(), &passed, &Residency::Anywhere).unwrap();
                assert_ne!(second.worker_id(), call.attempts[0].as_ref().unwrap().worker_id());
                seen.to_drained += usize::from(&**second.worker_id() == "d");
                seen.races += 1;
                events.push(Reverse((now_ns + speaks_after(&second), What::Speaks(at, 1))));
                call.attempts.push(Some(second));
            }
            What::Speaks(at, attempt) => {
                let call = &mut calls[at];
                if std::mem::replace(&mut call.spoke, true) {
                    continue;
                }
                seen.firsts.push(now_ns - call.began_ns);
                for (other, placement) in call.attempts.iter_mut().enumerate() {
                    match placement {
                        Some(placement) if other == attempt => placement.began(),
                        late => late.take().unwrap().outrun(),
                    }
                }
                events.push(Reverse((now_ns + SECOND, What::Ends(at))));
            }
            What::Ends(at) => {
                calls[at]
                    .attempts
                    .drain(..)
                    .flatten()
                    .for_each(|mut placement| placement.ended(&WorkerOutcome::Answered));
            }
        }
    }
    seen.firsts.sort_unstable();
    seen
}

#[test]
fn a_second_worker_takes_the_tail_and_no_more_calls_than_its_share() {
    for seed in 1..=5 {
        println!("HEADRACE_SEED={seed}");
        let plain = run(seed, None);
        for most_permille in [100, 50, 10] {
            let hedged = run(seed, Some(HedgePolicy { after_percent: 95, most_permille }));
            let share = hedged.races as f64 / hedged.firsts.len() as f64;
            let p99 = |seen: &Seen| seen.percentile(99) / MS;
            println!("p99 {} ms, {} ms with {:.1} % raced", p99(&plain), p99(&hedged), share * 100.0);
            assert_eq!((hedged.firsts.len(), hedged.to_drained), (plain.firsts.len(), 0));
            assert!(share <= f64::from(most_permille) / 1e3, "{share}");
            assert!(hedged.races > 20, "{}", hedged.races);
            assert!(hedged.percentile(50) <= plain.percentile(50) * 11 / 10);
            if most_permille == 100 {
                assert!(p99(&hedged) * 4 < p99(&plain), "{} of {} ms", p99(&hedged), p99(&plain));
            }
        }
    }
}
