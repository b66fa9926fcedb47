//! Measures a prefix lookup among a million cached blocks, with hashing and finding timed separately. Also measures the
//! explanation of a miss. Run `cargo bench -p headrace-scheduler --bench lookup`.

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use headrace_domain::{BLOCK_TOKENS, CacheSalt, PrefixKeys};
use headrace_kv_layout::{KvGroup, KvLayout};
use headrace_scheduler::{Outcome, Scheduler, SchedulerConfig, SequenceSpec};

const BLOCKS: usize = 1_000_000;
/// Tokens of each cached prompt.
const PROMPT: usize = 16_384;
const LOOKUPS: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let config = SchedulerConfig {
        step_tokens: PROMPT,
        max_chunk: PROMPT,
        context_window: PROMPT + 1,
        queue_tokens: u64::MAX,
        ..SchedulerConfig::default()
    };
    let mut scheduler = Scheduler::new(config, KvLayout::single(KvGroup::full(BLOCKS + PROMPT, 0)))?;
    let salt = CacheSalt::derive(&[1; 32], "t", "m", None);
    let prompt = |number: usize| -> Arc<[u32]> {
        (0..PROMPT).map(|i| (number.wrapping_mul(0x9e37_79b9) ^ i.wrapping_mul(0x85eb_ca6b)) as u32).collect()
    };
    let begun = Instant::now();
    for number in 0..BLOCKS * BLOCK_TOKENS / PROMPT {
        run(&mut scheduler, &salt, prompt(number))?;
    }
    let cached = scheduler.load().blocks.full().cached;
    println!("{cached} blocks cached in {:.1} s", begun.elapsed().as_secs_f64());

    // Shuffled, so that neither the table nor the blocks are in a CPU cache.
    let prompts: Vec<Arc<[u32]>> =
        (0..LOOKUPS).map(|i| prompt(i * 7919 % (BLOCKS * BLOCK_TOKENS / PROMPT))).collect();
    let blocks = LOOKUPS * (PROMPT / BLOCK_TOKENS);
    let each = |begun: Instant| begun.elapsed().as_secs_f64() * 1e6 / blocks as f64;
    let begun = Instant::now();
    let keys: Vec<PrefixKeys> = prompts.iter().map(|prompt| PrefixKeys::of(&salt, prompt)).collect();
    let hashing = each(begun);
    let begun = Instant::now();
    let found: usize = keys.iter().map(|keys| scheduler.cached_prefix(keys)).sum();
    let looking = each(begun);
    assert!(found > blocks * BLOCK_TOKENS * 9 / 10, "{found} tokens found");
    println!("lookup: {:.3} µs a block ({hashing:.3} hashing, {looking:.3} finding)", hashing + looking);

    // Each prompt differs from a cached one in its last block but one, so that a miss is explained and computed there.
    let begun = Instant::now();
    for prompt in &prompts {
        let mut other = prompt.to_vec();
        if let Some(token) = other.get_mut(PROMPT - 2 * BLOCK_TOKENS + 3) {
            *token ^= 1;
        }
        black_box(run(&mut scheduler, &salt, other.into())?);
    }
    println!("a request of {} cached blocks and a miss: {:.0} µs", PROMPT / BLOCK_TOKENS - 2, {
        begun.elapsed().as_secs_f64() * 1e6 / LOOKUPS as f64
    });
    Ok(())
}

/// Computes one prompt to its end, and returns the number of steps.
fn run(scheduler: &mut Scheduler, salt: &CacheSalt, prompt: Arc<[u32]>) -> Result<usize, Box<dyn Error>> {
    let keys = Some(PrefixKeys::of(salt, &prompt));
    let spec = SequenceSpec { keys, ..SequenceSpec::new(1, *salt, prompt, 0) };
    scheduler.add(&spec, 0)?;
    let mut steps = 0;
    while !scheduler.is_idle() {
        let reaches: Vec<bool> = scheduler.plan(0).chunks.iter().map(|chunk| chunk.reaches_end).collect();
        let outcome = |reaches| if reaches { Outcome::Ended } else { Outcome::Advanced };
        let outcomes: Vec<Outcome> = reaches.into_iter().map(outcome).collect();
        scheduler.commit(&outcomes, 1_000_000);
        steps += 1;
    }
    Ok(steps)
}
