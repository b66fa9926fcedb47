//! The promises of the loop, over random drivers: models that call anything, tools that return anything, clocks, refusals
//! and cancels.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::collections::BTreeSet;
use std::time::Duration;

use headrace_agent::{
    AgentLoop, CallKey, CallOwner, CloseReason, EndReason, FirstChoice, LoopLimits, LoopRules, LoopStep,
    NextRound, RequestedCall, RoundChoice, RoundFinish, RoundReport, ToolReport,
};
use headrace_domain::{NanoDollars, RequestId, Usage};

const REQUEST: RequestId = RequestId::from_bits(7);

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

fn rules(rng: &mut Rng) -> LoopRules {
    let limits = LoopLimits {
        rounds: rng.below(8) as u32,
        tool_calls: rng.below(12) as u32,
        wall_time: Duration::from_nanos(rng.of(&[0, 50, 200, 100_000])),
        result_bytes: rng.of(&[0, 100, 1_000, 1 << 20]),
        cost: rng.of(&[None, Some(0), Some(20), Some(1_000)]).map(NanoDollars::new),
        repeats_noted: rng.of(&[0, 3]),
        repeats_closing: rng.of(&[0, 5]),
    };
    let choice = rng.of(&[FirstChoice::Auto, FirstChoice::Forced, FirstChoice::None]);
    LoopRules { limits, choice, one_call: rng.one_in(3) }
}

fn call(owner: CallOwner, name: &str) -> RequestedCall {
    RequestedCall { owner, name: name.to_owned(), arguments: "{}".to_owned() }
}

fn some_calls(rng: &mut Rng) -> Vec<RequestedCall> {
    let one = |rng: &mut Rng| {
        let owner = rng.of(&[CallOwner::Server, CallOwner::Server, CallOwner::Client]);
        call(owner, rng.of(&["a", "b"]))
    };
    (0..rng.below(5)).map(|_| one(rng)).collect()
}

fn stopped(calls: Vec<RequestedCall>) -> RoundReport {
    let usage = Usage { input: 3, output: 2, ..Usage::default() };
    RoundReport { finish: RoundFinish::Stopped, calls, usage, cost: NanoDollars::new(5) }
}

/// What a run has seen, summed over seeds, so that a tame test is noticed.
#[derive(Debug, Default)]
struct Tally {
    ran: u64,
    closed: BTreeSet<&'static str>,
    mixed: u64,
    skipped: u64,
    repeated: u64,
    cancelled: u64,
}

/// Drives one loop to its end and checks each step.
fn drive(seed: u64, tally: &mut Tally) {
    let mut rng = Rng(seed);
    let rules = rules(&mut rng);
    let (limits, start_ns) = (rules.limits, 1_000);
    let deadline_ns = start_ns + limits.wall_time.as_nanos() as u64;
    let mut now_ns = start_ns;
    let mut agent = AgentLoop::new(REQUEST, rules, now_ns);
    let mut started: BTreeSet<CallKey> = BTreeSet::new();
    let (mut rounds, mut bytes, mut cost, mut used) = (0_u32, 0_u64, 0_i64, Usage::default());
    let mut next: NextRound = agent.first().unwrap();
    assert!(agent.first().is_err(), "it begins once");
    loop {
        assert_eq!(next.round, rounds, "seed {seed}");
        assert!(rounds < limits.rounds.max(1), "seed {seed}: {rounds} rounds of {}", limits.rounds);
        assert_eq!(
            next.choice == RoundChoice::AsAsked,
            rounds == 0 && next.closing.is_none() && rules.choice != FirstChoice::None
        );
        if next.closing.is_some() {
            assert_eq!(next.choice, RoundChoice::None, "seed {seed}: a closing round calls nothing");
        }
        assert!(agent.tools_ended(&[], now_ns).is_err(), "no tools run");
        if rng.one_in(12) {
            match agent.round_refused().unwrap() {
                LoopStep::Round(closing) => {
                    assert!(next.closing.is_none() && closing.closing == Some(CloseReason::Refused));
                    next = closing;
                    continue;
                }
                LoopStep::End(end) => {
                    assert!(next.closing.is_some() && end.reason == EndReason::Refused);
                    break;
                }
                LoopStep::Run(_) => panic!("seed {seed}: tools of a refused round"),
            }
        }
        if rng.one_in(40) {
            assert!(agent.cancel().is_empty());
            tally.cancelled += 1;
            break;
        }
        // Even in a closing round the model may try to call.
        let calls = some_calls(&mut rng);
        let finish = if rng.one_in(15) {
            rng.of(&[RoundFinish::Length, RoundFinish::ContentFilter, RoundFinish::Failed])
        } else {
            RoundFinish::Stopped
        };
        now_ns += rng.below(40);
        let report = RoundReport { finish, ..stopped(calls.clone()) };
        (cost, used) = (cost + report.cost.get(), used.plus(&report.usage));
        let step = agent.round_ended(report, now_ns).unwrap();
        assert_eq!((agent.cost().get(), *agent.usage()), (cost, used), "seed {seed}");
        let seen = if rules.one_call { calls.get(..1.min(calls.len())).unwrap() } else { &calls[..] };
        let key = |index: usize| CallKey { request: REQUEST, round: rounds, index: index as u32 };
        let of = |owner: CallOwner| -> Vec<CallKey> {
            let own = seen.iter().enumerate().filter(|(_, call)| call.owner == owner);
            own.map(|(index, _)| key(index)).collect()
        };
        let (server, client) = (of(CallOwner::Server), of(CallOwner::Client));
        let was_closing = next.closing;
        let run = match step {
            LoopStep::Run(run) => run,
            LoopStep::Round(round) => {
                // The server's calls do not run, because a bound is reached.
                assert!(
                    round.closing.is_some() && client.is_empty() && round.skipped == server,
                    "seed {seed}"
                );
                tally.skipped += 1;
                (next, rounds) = (round, rounds + 1);
                continue;
            }
            LoopStep::End(end) => {
                match end.reason {
                    EndReason::Answered => assert!(seen.is_empty() && was_closing.is_none(), "seed {seed}"),
                    EndReason::Closed(why) => {
                        assert_eq!(was_closing, Some(why), "seed {seed}");
                        tally.closed.insert(why.name());
                    }
                    EndReason::ClientCalls(calls) => {
                        assert_eq!(calls, client, "seed {seed}");
                        assert!(!calls.is_empty() && was_closing.is_none() && end.skipped == server);
                    }
                    EndReason::Length | EndReason::ContentFilter | EndReason::Failed => {
                        assert_ne!(finish, RoundFinish::Stopped, "seed {seed}");
                    }
                    EndReason::Refused => panic!("seed {seed}: nothing was refused"),
                }
                break;
            }
        };
        assert!(was_closing.is_none() && finish == RoundFinish::Stopped, "seed {seed}");
        assert!(now_ns < deadline_ns && run.deadline_ns == deadline_ns, "seed {seed}: after its time");
        assert!(bytes < limits.result_bytes && run.bytes_left == limits.result_bytes - bytes, "seed {seed}");
        assert!(limits.cost.is_none_or(|most| cost < most.get()), "seed {seed}");
        let keys: Vec<CallKey> = run.calls.iter().map(|call| call.key).collect();
        assert!(!keys.is_empty() && server.starts_with(&keys), "seed {seed}: only the server's, in order");
        for key in &keys {
            assert!(started.insert(*key), "seed {seed}: {key:?} starts twice");
        }
        assert!(started.len() <= limits.tool_calls as usize, "seed {seed}");
        tally.ran += keys.len() as u64;
        if rng.one_in(30) {
            assert_eq!(agent.cancel(), keys, "seed {seed}");
            break;
        }
        let result = |rng: &mut Rng, key: &CallKey| {
            let (bytes, hash) = (rng.below(200), rng.of(&[1, 1, 1, 2]));
            ToolReport { key: *key, bytes, result_hash: [hash; 32] }
        };
        let mut results: Vec<ToolReport> = keys.iter().map(|key| result(&mut rng, key)).collect();
        // Results out of order are fine. A missing, a second or a foreign one is not.
        results.reverse();
        let foreign = ToolReport { key: CallKey { round: rounds + 1, ..keys[0] }, ..results[0] };
        let twice = [results[0]].into_iter().chain(results.clone()).collect::<Vec<_>>();
        for bad in [results[1..].to_vec(), twice, vec![foreign]] {
            assert!(agent.tools_ended(&bad, now_ns).is_err(), "seed {seed}");
        }
        now_ns += rng.below(40);
        bytes += results.iter().map(|result| result.bytes).sum::<u64>();
        assert!(agent.round_ended(stopped(Vec::new()), now_ns).is_err(), "no round runs");
        match agent.tools_ended(&results, now_ns).unwrap() {
            LoopStep::Round(round) => {
                assert!(client.is_empty(), "seed {seed}: the client's calls are lost");
                assert_eq!(round.skipped, server[keys.len()..], "seed {seed}");
                tally.repeated += round.repeated.len() as u64;
                let is_last = rounds + 2 >= limits.rounds;
                let is_over = now_ns >= deadline_ns || bytes >= limits.result_bytes || is_last;
                assert!(round.closing.is_some() || !is_over, "seed {seed}");
                (next, rounds) = (round, rounds + 1);
            }
            LoopStep::End(end) => {
                assert_eq!(end.reason, EndReason::ClientCalls(client), "seed {seed}: ours ran first");
                tally.mixed += 1;
                break;
            }
            LoopStep::Run(_) => panic!("seed {seed}: tools after tools"),
        }
    }
    assert!(agent.is_over(), "seed {seed}");
    assert!(agent.round_ended(stopped(Vec::new()), now_ns).is_err() && agent.round_refused().is_err());
    assert!(agent.cancel().is_empty(), "seed {seed}: nothing runs any more");
}

#[test]
fn every_loop_ends_within_its_bounds_and_starts_each_call_once() {
    let mut tally = Tally::default();
    for seed in 0..40_000 {
        drive(seed, &mut tally);
    }
    let reasons = ["rounds", "tool_calls", "wall_time", "result_bytes", "cost", "repetition", "refused"];
    assert_eq!(tally.closed, BTreeSet::from(reasons), "{tally:?}");
    assert!(tally.ran > 10_000 && tally.mixed > 1_000 && tally.skipped > 1_000, "{tally:?}");
    assert!(tally.repeated > 100 && tally.cancelled > 1_000, "{tally:?}");
}

fn run_once(agent: &mut AgentLoop, name: &str, hash: u8) -> LoopStep {
    let step = agent.round_ended(stopped(vec![call(CallOwner::Server, name)]), 1).unwrap();
    let LoopStep::Run(run) = step else { panic!("{step:?}") };
    let result = ToolReport { key: run.calls[0].key, bytes: 1, result_hash: [hash; 32] };
    agent.tools_ended(&[result], 1).unwrap()
}

/// The results of one call, and for each how many calls are noted and whether the next round closes.
type ResultsRow<'r> = (&'r [u8], &'r [(usize, bool)]);

#[test]
fn the_same_call_with_the_same_result_is_noted_and_then_closes() {
    let rules =
        LoopRules { limits: LoopLimits { rounds: 100, ..LoopLimits::default() }, ..LoopRules::default() };
    let rows: [ResultsRow<'_>; 3] = [
        (&[1, 1, 1, 1, 1], &[(0, false), (0, false), (1, false), (1, false), (1, true)]),
        (
            &[1, 1, 2, 2, 2, 2, 2],
            &[(0, false), (0, false), (0, false), (0, false), (1, false), (1, false), (1, true)],
        ),
        (&[1, 2, 1, 2, 1, 2], &[(0, false); 6]),
    ];
    for (results, expected) in rows {
        let mut agent = AgentLoop::new(REQUEST, rules, 0);
        agent.first().unwrap();
        for (hash, (noted, closes)) in results.iter().zip(expected) {
            let LoopStep::Round(round) = run_once(&mut agent, "poll", *hash) else { panic!("{results:?}") };
            assert_eq!(round.repeated.len(), *noted, "{results:?}");
            assert_eq!(round.closing, closes.then_some(CloseReason::Repetition), "{results:?}");
        }
    }
}

#[test]
fn a_forced_choice_holds_for_the_first_round_only() {
    for (choice, first, later) in [
        (FirstChoice::Forced, RoundChoice::AsAsked, RoundChoice::Auto),
        (FirstChoice::Auto, RoundChoice::AsAsked, RoundChoice::Auto),
        (FirstChoice::None, RoundChoice::None, RoundChoice::None),
    ] {
        let mut agent = AgentLoop::new(REQUEST, LoopRules { choice, ..LoopRules::default() }, 0);
        assert_eq!(agent.first().unwrap().choice, first);
        let LoopStep::Round(round) = run_once(&mut agent, "a", 1) else { panic!("{choice:?}") };
        assert_eq!((round.choice, round.closing), (later, None), "{choice:?}");
    }
}
