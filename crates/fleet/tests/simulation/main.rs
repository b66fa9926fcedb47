//! Fleets in virtual time: gateways that know nothing of each other, and servers that report late, die and come back.
//! The assertions hold for every seed. `HEADRACE_SEEDS=n` runs more seeds. A failure prints its seed, and
//! `HEADRACE_SEED=n` runs that one alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod hedges;
mod random;
mod server;
mod world;

use server::{Death, SECOND};
use world::{Plan, Seen, World};

const SEEDS: u64 = 2;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Runs a plan under several seeds.
fn under_seeds(plan: &Plan, check: impl Fn(&Seen)) {
    let seeds = 1..=number("HEADRACE_SEEDS").unwrap_or(SEEDS);
    for seed in number("HEADRACE_SEED").map_or(seeds, |seed| seed..=seed) {
        println!("HEADRACE_SEED={seed}");
        check(&World::run(&Plan { seed, ..plan.clone() }));
    }
}

fn plan() -> Plan {
    Plan {
        seed: 0,
        gateways: 4,
        servers: 8,
        report_every_ns: Some(SECOND),
        arrivals_every_ns: Some(SECOND / 48),
        decode_ns: 4 * SECOND,
        conversations: 0,
        death: None,
        probe_every_ns: None,
        until_ns: 120 * SECOND,
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Eight workers, with reports up to a second old or none, and one or many independent gateways. Calls last longer than
/// a report is fresh, or end before the next one.
#[test]
fn nobody_herds_after_stale_reports() {
    let (long, short) = ((4 * SECOND, 48, 60 * SECOND), (SECOND / 2, 400, 30 * SECOND));
    // Limits on the busiest worker's load over the mean: averaged over the run, and at the worst moment.
    for (gateways, report_every_ns, (decode_ns, rate, until_ns), most, most_ever) in [
        (1, Some(SECOND), long, 1.1, 1.3),
        (4, Some(SECOND), long, 1.15, 1.3),
        (32, Some(SECOND), long, 1.25, 1.7),
        (1, Some(SECOND), short, 1.15, 1.3),
        (4, Some(SECOND), short, 1.15, 1.3),
        (1, None, long, 1.3, 1.7),
        (4, None, long, 1.3, 1.7),
        (4, None, short, 1.3, 1.7),
    ] {
        let arrivals_every_ns = Some(SECOND / rate);
        let plan = Plan { gateways, report_every_ns, arrivals_every_ns, decode_ns, until_ns, ..plan() };
        under_seeds(&plan, |seen| {
            let herding = mean(&seen.herding);
            let worst = seen.herding.iter().copied().fold(0.0, f64::max);
            let text =
                format!("{gateways} gateways, {rate} calls/s: max/mean {herding:.2}, worst {worst:.2}");
            println!("{text}");
            assert!(herding <= most && worst <= most_ever, "{text}");
            assert_eq!(seen.failed, 0);
            // No worker starves.
            let each = seen.calls as f64 / seen.by_server.len() as f64;
            let least = *seen.by_server.iter().min().unwrap() as f64;
            assert!(least >= 0.8 * each, "{:?}", seen.by_server);
        });
    }
}

/// Agents with shared system prompts and growing conversations, on workers that do not report their caches.
#[test]
fn agents_find_nine_tenths_of_what_could_be_cached() {
    for report_every_ns in [Some(SECOND), None] {
        let plan = Plan {
            gateways: 1,
            report_every_ns,
            arrivals_every_ns: None,
            decode_ns: SECOND,
            conversations: 240,
            until_ns: 40 * SECOND,
            ..plan()
        };
        under_seeds(&plan, |seen| {
            let found = seen.hit_blocks as f64 / seen.ideal_blocks as f64;
            let (herding, calls) = (mean(&seen.herding), seen.calls);
            println!(
                "reports {report_every_ns:?}: {found:.3} of the ideal hits in {calls} calls, max/mean {herding:.2}"
            );
            assert!(found >= 0.9, "{found:.3} of the ideal hits");
            let each = seen.calls as f64 / seen.by_server.len() as f64;
            let least = *seen.by_server.iter().min().unwrap() as f64;
            assert!(least >= 0.3 * each, "caches do not draw everything to one: {:?}", seen.by_server);
        });
    }
}

/// A prober finds a recovered server sooner than trial calls do.
#[test]
fn who_answers_a_probe_is_tried_at_once() {
    let death = Some((2, Death::Refuses, 30 * SECOND, 70 * SECOND));
    let probe_every_ns = Some(2 * SECOND);
    let plan = Plan { gateways: 1, death, probe_every_ns, until_ns: 90 * SECOND, ..plan() };
    under_seeds(&plan, |seen| {
        let back_after_ns = seen.answered_back_ns.first().unwrap() - 70 * SECOND;
        println!("back after {} ms, {} trials", back_after_ns / 1_000_000, seen.trials_ns.len());
        assert!(back_after_ns <= 5 * SECOND, "{back_after_ns}");
        assert_eq!(seen.failed, 0);
    });
}

/// One of eight servers dies and comes back. The fleet learns it from calls alone.
#[test]
fn a_dead_worker_gets_trials_alone_and_calls_again_when_it_is_back() {
    let hangs = Death::Hangs { timeout_ns: 3 * SECOND };
    for (death, gone_within_ns) in [(Death::Refuses, SECOND), (hangs, 5 * SECOND)] {
        for report_every_ns in [Some(SECOND), None] {
            let (dies_ns, back_ns) = (30 * SECOND, 70 * SECOND);
            let death = Some((2, death, dies_ns, back_ns));
            let until_ns = 130 * SECOND;
            let plan = Plan { gateways: 1, report_every_ns, death, until_ns, ..plan() };
            under_seeds(&plan, |seen| {
                let sent_to = seen.sent_to_dead_ns.iter().filter(|&&at_ns| at_ns < back_ns);
                let last_ns = sent_to.max().map_or(0, |at_ns| at_ns - dies_ns);
                let while_dead = seen.trials_ns.iter().filter(|&&at_ns| at_ns < back_ns).count();
                let back_after_ns = seen.answered_back_ns.first().map(|at_ns| at_ns - back_ns);
                println!(
                    "{death:?}: the last call {} ms after, {while_dead} trials, {} at once, back after {:?} ms, {} of {} failed",
                    last_ns / 1_000_000,
                    seen.most_trials_at_once,
                    back_after_ns.map(|ns| ns / 1_000_000),
                    seen.failed,
                    seen.calls
                );
                assert!(last_ns <= gone_within_ns, "a call went to it {last_ns} ns after its death");
                assert!((1..=8).contains(&while_dead), "{while_dead} trials");
                assert_eq!(seen.most_trials_at_once, 1);
                assert_eq!(seen.failed, 0);
                // The longest open time of a breaker, and one call.
                assert!(back_after_ns.unwrap() <= 40 * SECOND, "{back_after_ns:?}");
                let of_late = seen.answered_back_ns.iter().filter(|&&at_ns| at_ns > until_ns - 10 * SECOND);
                // 48 calls a second over eight workers.
                assert!(of_late.count() >= 30, "it gets its share again");
            });
        }
    }
}
