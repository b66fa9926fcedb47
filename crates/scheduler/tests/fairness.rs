//! How much one tenant notices of another's flood, in virtual time with fixed costs per step, prompt token and
//! generated token. Also tests whether the waits that callers are given are true.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::HashMap;

use headrace_domain::{CacheSalt, PrefixKeys};
use headrace_scheduler::{AddRefusal, Class, Outcome, Scheduler, SchedulerConfig, SeqId, SequenceSpec};

mod common;

use common::{Rng, layout};

/// About the speed of a small model on two cores.
const FIXED_NS: u64 = 8_000_000;
const PREFILL_NS: u64 = 1_000_000;
const DECODE_NS: u64 = 1_500_000;
/// The tenant whose latency is measured.
const QUIET: u64 = 2;
const SECOND: u64 = 1_000_000_000;

/// A tenant's stream of requests.
#[derive(Clone)]
struct Sender {
    tenant: u64,
    weight: u32,
    class: Class,
    prompt: (u64, u64),
    output: (u64, u64),
    every_ns: f64,
    /// Leading tokens that all its prompts share.
    shared: usize,
    timeout_ns: Option<u64>,
}

fn sender(tenant: u64, prompt: (u64, u64), output: (u64, u64), every_ns: f64) -> Sender {
    Sender { tenant, weight: 1, class: Class::Normal, prompt, output, every_ns, shared: 0, timeout_ns: None }
}

struct Live {
    tenant: u64,
    arrived: u64,
    output: u64,
    generated: u64,
    started: bool,
}

/// Measurements of one sequence.
#[derive(Clone, Copy)]
struct Seen {
    tenant: u64,
    /// Nanoseconds from arrival to the first chunk. `ttft_ns` counts to the first token.
    queued_ns: u64,
    ttft_ns: u64,
    forecast: Option<(u64, u64)>,
}

struct World {
    scheduler: Scheduler,
    rng: Rng,
    now: u64,
    live: HashMap<SeqId, Live>,
    seen: Vec<Seen>,
    /// Forecasts per sequence: nanoseconds until the first chunk, and until the first token.
    forecast: HashMap<SeqId, (u64, u64)>,
    /// Whether to ask for a forecast before each arrival.
    asks: bool,
    queued: HashMap<SeqId, u64>,
    refused: HashMap<u64, u64>,
    refusals: Vec<AddRefusal>,
    expired: u64,
    longest_step: u64,
    steps: u64,
    next_prompt: u32,
}

fn config() -> SchedulerConfig {
    SchedulerConfig {
        step_tokens: 512,
        max_running: 32,
        max_chunk: 512,
        context_window: 8192,
        queue_sequences: 512,
        ..SchedulerConfig::default()
    }
}

impl World {
    fn new(config: SchedulerConfig, blocks: usize, seed: u64) -> Self {
        Self {
            scheduler: Scheduler::new(config, layout(blocks)).unwrap(),
            rng: Rng(seed),
            now: 1,
            live: HashMap::new(),
            seen: Vec::new(),
            forecast: HashMap::new(),
            asks: false,
            queued: HashMap::new(),
            refused: HashMap::new(),
            refusals: Vec::new(),
            expired: 0,
            longest_step: 0,
            steps: 0,
            next_prompt: 0,
        }
    }

    fn arrive(&mut self, from: &Sender, rng: &mut Rng, at: u64) -> Option<SeqId> {
        let (len, output) = (rng.between(from.prompt) as usize, rng.between(from.output));
        self.next_prompt += 1;
        let own = self.next_prompt;
        let prompt = (0..len)
            .map(|i| if i < from.shared { i as u32 } else { own.wrapping_mul(8192) + i as u32 })
            .collect();
        let salt = CacheSalt::derive(&[3; 32], &from.tenant.to_string(), "m", None);
        let spec = SequenceSpec {
            keys: self.asks.then(|| PrefixKeys::of(&salt, &prompt)),
            prompt,
            // Callers ask for more tokens than answers have.
            max_new: (output * 2) as u32,
            salt,
            tenant: from.tenant,
            weight: from.weight,
            class: from.class,
            start_deadline_ns: from.timeout_ns.map(|timeout| at + timeout),
            score_prompt: false,
            pins: Default::default(),
            held: None,
            long_context: false,
        };
        // Once costs are known, a deadline of now is refused. Only the refusal's forecast is kept.
        let at_once = SequenceSpec { start_deadline_ns: Some(at), ..spec.clone() };
        let forecast = match self.asks.then(|| self.scheduler.add(&at_once, at)) {
            Some(Err(AddRefusal::TooLate { wait_ns, prefill_ns, .. })) => {
                Some((wait_ns, wait_ns + prefill_ns))
            }
            Some(Ok(id)) => {
                self.scheduler.abort(id);
                None
            }
            _ => None,
        };
        match self.scheduler.add(&spec, at) {
            Ok(id) => {
                self.forecast.extend(forecast.map(|wait| (id, wait)));
                let live = Live { tenant: from.tenant, arrived: at, output, generated: 0, started: false };
                self.live.insert(id, live);
                Some(id)
            }
            Err(refusal) => {
                *self.refused.entry(from.tenant).or_default() += 1;
                self.refusals.push(refusal);
                None
            }
        }
    }

    /// Runs one step. Returns `false` if there was nothing to do.
    fn step(&mut self) -> bool {
        let plan = self.scheduler.plan(self.now).clone();
        for expired in &plan.expired {
            self.live.remove(&expired.seq).unwrap();
            self.expired += 1;
        }
        for started in &plan.started {
            let live = self.live.get_mut(&started.seq).unwrap();
            live.started = true;
            self.queued.insert(started.seq, self.now - live.arrived);
        }
        if plan.chunks.is_empty() {
            return false;
        }
        let mut took = FIXED_NS;
        let mut outcomes = Vec::new();
        let mut first = Vec::new();
        for chunk in &plan.chunks {
            let live = self.live.get_mut(&chunk.seq).unwrap();
            let decodes = chunk.len == 1 && chunk.reaches_end;
            took += if decodes { DECODE_NS } else { chunk.len as u64 * PREFILL_NS };
            if !chunk.reaches_end {
                outcomes.push(Outcome::Advanced);
                continue;
            }
            live.generated += 1;
            if live.generated == 1 {
                first.push(chunk.seq);
            }
            outcomes.push(if live.generated >= live.output { Outcome::Ended } else { Outcome::Token(7) });
        }
        self.now += took;
        self.longest_step = self.longest_step.max(took);
        for id in first {
            let live = &self.live[&id];
            let (queued_ns, ttft_ns) = (self.queued[&id], self.now - live.arrived);
            let forecast = self.forecast.get(&id).copied();
            self.seen.push(Seen { tenant: live.tenant, queued_ns, ttft_ns, forecast });
        }
        for (chunk, outcome) in plan.chunks.iter().zip(&outcomes) {
            if *outcome == Outcome::Ended {
                self.live.remove(&chunk.seq);
            }
        }
        self.scheduler.commit(&outcomes, self.now);
        self.steps += 1;
        if self.steps.is_multiple_of(64) {
            self.scheduler.check_invariants().unwrap();
        }
        true
    }

    /// Runs the senders until `answers` requests of tenant `of` have got their first token.
    fn run(&mut self, senders: &[Sender], of: u64, answers: usize) {
        let mut streams: Vec<(Rng, u64)> =
            senders.iter().map(|s| (Rng(s.tenant * 7919 + self.rng.0), 0)).collect();
        for (stream, sender) in streams.iter_mut().zip(senders) {
            stream.1 = self.now + stream.0.exponential(sender.every_ns);
        }
        while self.seen.iter().filter(|seen| seen.tenant == of).count() < answers {
            for (at, sender) in senders.iter().enumerate() {
                while streams[at].1 <= self.now {
                    let (mut rng, due) = (Rng(streams[at].0.0), streams[at].1);
                    self.arrive(sender, &mut rng, due);
                    streams[at] = (Rng(rng.next()), due + rng.exponential(sender.every_ns));
                }
            }
            if !self.step() {
                self.now = streams.iter().map(|stream| stream.1).min().unwrap();
            }
        }
    }

    fn ttft(&self, tenant: u64, percent: usize) -> u64 {
        let mut all: Vec<u64> =
            self.seen.iter().filter(|seen| seen.tenant == tenant).map(|s| s.ttft_ns).collect();
        all.sort_unstable();
        all[(all.len() * percent / 100).min(all.len() - 1)]
    }
}

/// Requests of the quiet tenant, which need about a tenth of the machine.
fn quiet(prompt: (u64, u64), weight: u32) -> Sender {
    let work = (prompt.0 + prompt.1) as f64 / 2.0 * PREFILL_NS as f64 + 30.0 * (FIXED_NS + DECODE_NS) as f64;
    Sender { weight, ..sender(QUIET, prompt, (10, 50), work * 8.0) }
}

#[test]
fn a_flood_a_hundred_times_the_load_moves_p99_ttft_by_at_most_one_and_a_half_of_solo_and_a_chunk() {
    let chat = (100, 400);
    let flood = |of: &Sender, prompt, output| sender(1, prompt, output, of.every_ns / 100.0);
    let rows: Vec<(&str, Sender, Vec<Sender>)> = vec![
        ("long prompts", quiet(chat, 1), vec![flood(&quiet(chat, 1), (3000, 4000), (10, 100))]),
        ("short prompts", quiet(chat, 1), vec![flood(&quiet(chat, 1), (20, 100), (10, 100))]),
        ("long answers", quiet(chat, 1), vec![flood(&quiet(chat, 1), (20, 100), (800, 1500))]),
        (
            "many conversations",
            quiet(chat, 1),
            vec![Sender { shared: 600, ..flood(&quiet(chat, 1), (700, 1500), (50, 200)) }],
        ),
        ("weight 4 to 1", quiet(chat, 4), vec![flood(&quiet(chat, 4), (500, 2000), (10, 200))]),
        ("long against short", quiet((1500, 2500), 1), vec![flood(&quiet(chat, 1), (20, 100), (10, 100))]),
        (
            "many tenants",
            quiet(chat, 1),
            (10..30)
                .map(|tenant| Sender { tenant, every_ns: 40.0 * quiet(chat, 1).every_ns, ..quiet(chat, 1) })
                .chain([flood(&quiet(chat, 1), (100, 3000), (10, 300))])
                .collect(),
        ),
        (
            "many tenants flood",
            quiet(chat, 8),
            (10..14)
                .map(|tenant| Sender { tenant, ..flood(&quiet(chat, 1), (20, 800), (10, 100)) })
                .collect(),
        ),
    ];
    let mut bad = 0;
    let ms = |ns: u64| ns as f64 / 1e6;
    println!(
        "{:22} {:>10} {:>10} {:>6} {:>10} {:>9}",
        "A sends", "solo p99", "p99", "ratio", "allowed", "refused"
    );
    for (what, own, others) in rows {
        // Enough answers for a meaningful p99, and fewer if each takes long.
        let answers = if own.prompt.0 > 1000 { 150 } else { 600 };
        let mut alone = World::new(config(), 1024, 5);
        alone.run(std::slice::from_ref(&own), QUIET, answers);
        let mut together = World::new(config(), 1024, 5);
        together.run(&[vec![own.clone()], others].concat(), QUIET, answers);
        let (solo, p99) = (alone.ttft(QUIET, 99), together.ttft(QUIET, 99));
        let chunk = together.longest_step;
        let allowed = solo * 3 / 2 + chunk;
        let refused = together.refused.get(&1).copied().unwrap_or(0);
        println!(
            "{what:22} {:>8.0}ms {:>8.0}ms {:>6.2} {:>8.0}ms {refused:>9}",
            ms(solo),
            ms(p99),
            p99 as f64 / solo as f64,
            ms(allowed)
        );
        assert_eq!(together.refused.get(&QUIET), None, "{what}: the flood shut the quiet tenant out");
        bad += usize::from(p99 > allowed);
    }
    assert_eq!(bad, 0, "rows beyond what is allowed");
}

#[test]
fn forecast_waits_are_near_the_measured_ones() {
    let pressed = |tenant, prompt, output, load: f64| {
        let mean = |(a, b): (u64, u64)| (a + b) as f64 / 2.0;
        let work = mean(prompt) * PREFILL_NS as f64 + mean(output) * (DECODE_NS + FIXED_NS / 16) as f64;
        sender(tenant, prompt, output, work / load)
    };
    let small = SchedulerConfig { max_running: 8, ..config() };
    let rows: Vec<(&str, SchedulerConfig, Vec<Sender>)> = vec![
        ("light load", config(), vec![pressed(1, (100, 1000), (10, 100), 0.3)]),
        ("prefill bound", config(), vec![pressed(1, (500, 3000), (5, 20), 1.1)]),
        ("places bound", small.clone(), vec![pressed(1, (50, 200), (100, 300), 1.0)]),
        (
            "two tenants",
            small.clone(),
            vec![pressed(1, (50, 2000), (20, 200), 0.7), pressed(2, (50, 400), (20, 200), 0.4)],
        ),
        (
            "a flood of the other",
            small,
            vec![pressed(1, (50, 400), (20, 100), 3.0), pressed(2, (50, 400), (20, 100), 0.2)],
        ),
    ];
    println!("{:22} {:>9} {:>9} {:>7} {:>7} {:>7}", "load", "waited", "forecast", "p10", "p50", "p90");
    for (what, config, senders) in rows {
        let mut world = World::new(config, 1024, 9);
        world.asks = true;
        let of = senders.last().unwrap().tenant;
        world.run(&senders, of, 400);
        // Only waits that matter. The first sequences are skipped, because they teach the costs.
        let late = world.seen.iter().skip(20).filter(|seen| seen.ttft_ns > SECOND / 4);
        let (mut ratios, mut waited, mut forecast) = (Vec::new(), 0.0, 0.0);
        for seen in late {
            let Some((_, wait)) = seen.forecast else { continue };
            ratios.push(wait as f64 / seen.ttft_ns as f64);
            waited += seen.ttft_ns as f64;
            forecast += wait as f64;
        }
        ratios.sort_by(f64::total_cmp);
        let at = |percent: usize| ratios[ratios.len() * percent / 100];
        let n = ratios.len() as f64;
        println!(
            "{what:22} {:>7.1} s {:>7.1} s {:>7.2} {:>7.2} {:>7.2}",
            waited / n / 1e9,
            forecast / n / 1e9,
            at(10),
            at(50),
            at(90)
        );
        assert!(
            (0.5..=2.0).contains(&at(50)),
            "{what}: half of the answers are off by more than a factor of two"
        );
        assert!(at(10) > 0.2 && at(90) < 4.0, "{what}: {:.2} to {:.2}", at(10), at(90));
    }
}

#[test]
fn a_timeout_that_cannot_be_met_is_refused_at_once_and_its_retry_after_is_honest() {
    let timeout = 6 * SECOND;
    let flood = Sender { timeout_ns: Some(timeout), ..sender(1, (100, 800), (10, 100), 1.5e8) };
    let mut world = World::new(SchedulerConfig { max_running: 8, ..config() }, 1024, 3);
    world.run(std::slice::from_ref(&flood), 1, 600);
    let answered: Vec<_> = world.seen.iter().skip(50).collect();
    let late = answered.iter().filter(|seen| seen.ttft_ns > timeout).count();
    let refused = world.refusals.len();
    let started_in_time = answered.iter().filter(|seen| seen.queued_ns <= timeout).count();
    println!("{} answered, {late} late, {} expired, {refused} refused", answered.len(), world.expired);
    assert_eq!(started_in_time, answered.len(), "what starts too late is dropped instead");
    assert!(refused > 100, "an overload refuses");
    assert!(late + world.expired as usize <= answered.len() / 5, "what is accepted is in time, as a rule");
    for refusal in &world.refusals {
        let AddRefusal::TooLate { wait_ns, prefill_ns, retry_after_ns } = refusal else {
            panic!("{refusal}");
        };
        assert!(wait_ns + wait_ns / 8 + prefill_ns > timeout);
        let retry = retry_after_ns.expect("this prompt alone fits");
        assert!(retry >= SECOND && retry + timeout >= wait_ns + prefill_ns);
    }
    // A prompt that alone takes longer than the deadline gets no retry delay, because waiting would not help.
    let long = Sender { timeout_ns: Some(SECOND), ..sender(1, (3000, 3000), (5, 5), 1.0) };
    while world.step() {}
    let at = world.now;
    assert!(world.arrive(&long, &mut Rng(1), at).is_none());
    let last = world.refusals.last();
    assert!(
        matches!(last, Some(AddRefusal::TooLate { retry_after_ns: None, prefill_ns, .. }) if *prefill_ns > 2 * SECOND),
        "{last:?}"
    );
}

#[test]
fn idle_work_that_fills_places_and_blocks_yields_within_one_step() {
    for (what, max_running, blocks) in [("places", 4, 256), ("blocks", 32, 40)] {
        let mut world = World::new(SchedulerConfig { max_running, ..config() }, blocks, 1);
        let idle = Sender { class: Class::Idle, ..sender(1, (100, 150), (200, 200), 1.0) };
        (0..12).for_each(|_| assert!(world.arrive(&idle, &mut Rng(1), 1).is_some()));
        (0..60).for_each(|_| assert!(world.step()));
        assert!(world.scheduler.load().running >= 3, "{what}");
        let at = world.now;
        let id = world.arrive(&sender(2, (300, 300), (20, 20), 1.0), &mut Rng(1), at).unwrap();
        let plan = world.scheduler.plan(at).clone();
        let whole = plan.chunks.iter().map(|chunk| (chunk.seq, chunk.len)).find(|&(seq, _)| seq == id);
        assert_eq!(whole, Some((id, 300)), "{what}: it is computed in the very next step, in one chunk");
        assert!(!plan.preempted.is_empty(), "{what}: idle work gave way");
    }
}

/// Four tenants keep the engine full for ever. Two others send only idle work.
#[test]
fn idle_work_ends_beside_a_flood_that_never_does_tenant_by_tenant() {
    let mut world = World::new(SchedulerConfig { max_running: 8, ..config() }, 512, 1);
    let floods: Vec<Sender> = (10..14).map(|tenant| sender(tenant, (40, 60), (30, 60), 1.0)).collect();
    let idle = |tenant| Sender { class: Class::Idle, ..sender(tenant, (20, 20), (16, 16), 1.0) };
    let refill = |world: &mut World| {
        for flood in &floods {
            while world.live.values().filter(|live| live.tenant == flood.tenant).count() < 16 {
                let (mut rng, at) = (Rng(world.rng.next()), world.now);
                world.arrive(flood, &mut rng, at).unwrap();
            }
        }
    };
    refill(&mut world);
    (0..20).for_each(|_| assert!(world.step()));
    // Many sequences of one tenant do not delay another tenant's only one.
    let (at, heap) = (world.now, 6);
    (0..heap).for_each(|_| assert!(world.arrive(&idle(1), &mut Rng(1), at).is_some()));
    let single = world.arrive(&idle(2), &mut Rng(1), at).unwrap();
    let (mut raised, mut single_ended) = (Vec::new(), None);
    while world.live.values().any(|live| live.tenant < 10) {
        refill(&mut world);
        assert!(world.step());
        raised.extend(world.scheduler.current().raised.iter().copied());
        if single_ended.is_none() && !world.live.contains_key(&single) {
            single_ended = Some(world.now - at);
        }
        assert!(world.now - at < 120 * SECOND, "idle work stands still beside a flood: {raised:?}");
    }
    assert_eq!(raised.len(), heap + 1, "each is raised once");
    // Two raises: a second of patience each, and 16 steps among those of the flood.
    let single_ended = single_ended.unwrap();
    assert!(single_ended < 12 * SECOND, "the other tenant's one call took {single_ended} ns");
    // The time taken from the flood is bounded: one running slot of eight.
    let flood: usize = world.seen.iter().filter(|seen| seen.tenant >= 10).count();
    assert!(flood >= 7 * (heap + 1), "{flood} of the flood began beside {} of idle work", heap + 1);
}

#[test]
fn idle_work_whose_reader_stops_makes_way_for_other_idle_work() {
    let mut world = World::new(SchedulerConfig { max_running: 2, ..config() }, 512, 1);
    let flood = sender(9, (40, 40), (400, 400), 1.0);
    let idle = |tenant| Sender { class: Class::Idle, ..sender(tenant, (20, 20), (16, 16), 1.0) };
    (0..200).for_each(|_| assert!(world.arrive(&flood, &mut Rng(1), 1).is_some()));
    let first = world.arrive(&idle(1), &mut Rng(1), 1).unwrap();
    let second = world.arrive(&idle(2), &mut Rng(1), 1).unwrap();
    let raised = |world: &mut World| loop {
        assert!(world.step() && world.now < 60 * SECOND, "none is raised");
        if let Some(id) = world.scheduler.current().raised.first() {
            return *id;
        }
    };
    assert_eq!(raised(&mut world), first);
    assert!(world.scheduler.pause(first));
    world.scheduler.check_invariants().unwrap();
    assert_eq!(raised(&mut world), second);
    // It was paused, so it must wait for its turn again.
    assert!(world.scheduler.resume(first));
    world.scheduler.check_invariants().unwrap();
    while world.live.contains_key(&second) {
        assert!(world.step());
        assert!(world.scheduler.current().raised.is_empty(), "one at a time");
    }
    assert_eq!(raised(&mut world), first);
}
