//! Measures the scheduler's own cost per step, with 1,000 sequences running and 10,000 queued over 100 tenants. Run
//! `cargo bench -p headrace-scheduler`.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use headrace_domain::CacheSalt;
use headrace_kv_layout::{KvGroup, KvLayout};
use headrace_scheduler::{Outcome, Scheduler, SchedulerConfig, SequenceSpec};

const RUNNING: usize = 1_000;
const QUEUED: usize = 10_000;
const PROMPT: u32 = 100;
const TENANTS: u64 = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let config = SchedulerConfig {
        step_tokens: 4096,
        max_running: RUNNING,
        queue_sequences: RUNNING + QUEUED,
        queue_tokens: u64::MAX,
        ..SchedulerConfig::default()
    };
    let mut scheduler = Scheduler::new(config, KvLayout::single(KvGroup::full(RUNNING * 80, 0)))?;
    let mut next = 0;
    let mut add = |scheduler: &mut Scheduler, count: usize| -> Result<(), Box<dyn Error>> {
        for _ in 0..count {
            next += 1;
            let tenant = u64::from(next) % TENANTS;
            let salt = CacheSalt::derive(&[1; 32], &tenant.to_string(), "m", None);
            let prompt: Arc<[u32]> = (0..PROMPT).map(|i| i + next * PROMPT).collect();
            let spec = SequenceSpec::new(tenant, salt, prompt, 1000);
            scheduler.add(&spec, 0)?;
        }
        Ok(())
    };
    let begun = Instant::now();
    add(&mut scheduler, RUNNING + QUEUED)?;
    println!("add: {:.2} µs a sequence", begun.elapsed().as_secs_f64() * 1e6 / (RUNNING + QUEUED) as f64);

    let mut outcomes = Vec::new();
    let mut step = |scheduler: &mut Scheduler, end_every: usize| {
        outcomes.clear();
        scheduler.plan(0);
        for (i, chunk) in scheduler.current().chunks.iter().enumerate() {
            outcomes.push(match chunk.reaches_end {
                true if end_every > 0 && i % end_every == 0 => Outcome::Ended,
                true => Outcome::Token(7),
                false => Outcome::Advanced,
            });
        }
        scheduler.commit(&outcomes, 1_000_000);
        outcomes.len()
    };
    while scheduler.load().running < RUNNING || scheduler.plan(0).chunks.iter().any(|c| !c.reaches_end) {
        step(&mut scheduler, 0);
    }
    for (what, end_every, refill) in [("decode only", 0, 0), ("10 end and 10 start", 100, 10)] {
        let (mut steps, mut sequences) = (0, 0);
        let mut took = Vec::new();
        while steps < 300 {
            let begun = Instant::now();
            sequences += step(&mut scheduler, end_every);
            took.push(begun.elapsed().as_secs_f64() * 1e6);
            add(&mut scheduler, refill)?;
            steps += 1;
        }
        took.sort_by(f64::total_cmp);
        let at = |part: usize| took.get(took.len() * part / 100).copied().unwrap_or(0.0);
        let load = scheduler.load();
        println!(
            "step, {what}: {:.0} µs, p99 {:.0} µs, for {} sequences ({} running, {} waiting)",
            at(50),
            at(99),
            sequences / 300,
            load.running,
            load.waiting
        );
    }
    Ok(())
}
