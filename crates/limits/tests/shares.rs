//! A seeded simulation of two to four gateways that share rate limits: late and lost exchanges, pauses, kills and clocks
//! that differ. `HEADRACE_SEEDS=100000` asks for more seeds, `HEADRACE_SEED=7` for one.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test"
)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use headrace_domain::{Clock, KeyId, OrgId, RequestId, UnixNanos};
use headrace_limits::{
    GatewayShares, Lease, LimitSpec, Limits, RateRule, Scope, ShareHolder, ShareKey, ShareStore,
    ShareStoreError, ShareTable,
};

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;
const START: u64 = 1_700_000_000 * SECOND;
const EXCHANGE_EVERY: u64 = 900 * MILLI;
/// How much faster or slower than the database's clock a gateway's clock may run, in thousandths.
const DRIFT: u64 = 10;

/// SplitMix64 (Steele, Lea and Flood 2014).
struct SeededRandom(Cell<u64>);

impl SeededRandom {
    fn next(&self) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut mixed = self.0.get();
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn happens(&self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// The time of the world, in nanoseconds since its start.
#[derive(Default)]
struct WorldTime(AtomicU64);

impl WorldTime {
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, nanos: u64) {
        self.0.store(nanos, Ordering::Relaxed);
    }
}

/// A clock with an offset and a speed of its own.
struct DriftingClock<'w> {
    world: &'w WorldTime,
    offset: u64,
    speed: u64,
}

impl Clock for DriftingClock<'_> {
    fn now(&self) -> UnixNanos {
        UnixNanos::new(START + self.offset + self.monotonic_nanos())
    }

    fn monotonic_nanos(&self) -> u64 {
        self.world.get() / 1_000 * self.speed
    }
}

struct SimGateway<'w> {
    limits: Limits,
    clock: DriftingClock<'w>,
    /// `None` while an exchange is under way.
    shares: RefCell<Option<GatewayShares>>,
    next_round: Cell<u64>,
    paused_until: Cell<u64>,
    is_dead: Cell<bool>,
    /// Calls for each of 100 ms, from this gateway's clients.
    load: Cell<u64>,
    open: RefCell<Vec<(Lease, usize, u64)>>,
}

/// Tokens that were admitted: when, and how many.
type Admitted = RefCell<Vec<(u64, u64)>>;

struct World<'w> {
    seed: u64,
    random: SeededRandom,
    time: &'w WorldTime,
    table: RefCell<ShareTable>,
    gateways: RefCell<Vec<Rc<SimGateway<'w>>>>,
    scopes: [(Scope, LimitSpec); 2],
    /// The percentage of exchanges that fail in some way.
    faults: Cell<u64>,
    requests: [Admitted; 2],
    tokens: Admitted,
    call_tokens: u64,
    next_holder: Cell<u128>,
    exchanges: Cell<u64>,
}

/// The way to the table from one gateway, with its faults.
struct FaultyStore<'a, 'w> {
    world: &'a World<'w>,
    gateway: &'a SimGateway<'w>,
}

impl ShareStore for FaultyStore<'_, '_> {
    fn exchange(&mut self, change: &mut dyn FnMut(&mut ShareTable, u64)) -> Result<(), ShareStoreError> {
        let world = self.world;
        let lost = || Err(ShareStoreError { why: "lost".to_owned() });
        let is_faulty = world.random.happens(world.faults.get());
        let delay = |world: &World<'_>| world.random.below(if is_faulty { 2_000 } else { 20 }) * MILLI;
        world.run(world.time.get() + delay(world));
        let fate = if is_faulty { world.random.below(6) } else { 5 };
        if self.gateway.is_dead.get() || fate == 0 {
            return lost();
        }
        let mut table = world.table.borrow().clone();
        change(&mut table, (START + world.time.get()) / 1_000);
        if fate > 1 {
            *world.table.borrow_mut() = table;
        }
        world.exchanges.set(world.exchanges.get() + 1);
        if is_faulty && world.random.happens(10) {
            // The whole process is stopped before it learns the outcome.
            self.gateway.paused_until.set(world.time.get() + world.random.below(25) * SECOND);
            world.run(self.gateway.paused_until.get());
        } else {
            world.run(world.time.get() + delay(world));
        }
        if fate <= 2 { lost() } else { Ok(()) }
    }
}

impl<'w> World<'w> {
    fn start_gateway(&self) {
        let holder = self.next_holder.get();
        self.next_holder.set(holder + 1);
        let (limits, shares) = Limits::over_gateways(Duration::from_secs(300), ShareHolder::new(holder));
        let speed = 1_000 - DRIFT + self.random.below(2 * DRIFT + 1);
        let offset = self.random.below(7_200) * SECOND;
        self.gateways.borrow_mut().push(Rc::new(SimGateway {
            limits,
            clock: DriftingClock { world: self.time, offset, speed },
            shares: RefCell::new(Some(shares)),
            next_round: Cell::new(self.time.get()),
            paused_until: Cell::new(0),
            is_dead: Cell::new(false),
            load: Cell::new(0),
            open: RefCell::default(),
        }));
    }

    fn alive(&self) -> Vec<Rc<SimGateway<'w>>> {
        self.gateways.borrow().iter().filter(|gateway| !gateway.is_dead.get()).cloned().collect()
    }

    /// Runs all gateways until a time. Exchanges that wait run it again within.
    fn run(&self, until: u64) {
        while self.time.get() < until {
            for gateway in self.alive() {
                let now = self.time.get();
                if gateway.is_dead.get() || gateway.paused_until.get() > now {
                    continue;
                }
                self.call(&gateway);
                if gateway.next_round.get() <= now {
                    let taken = gateway.shares.borrow_mut().take();
                    let Some(mut shares) = taken else { continue };
                    let _ =
                        shares.exchange(&mut FaultyStore { world: self, gateway: &gateway }, &gateway.clock);
                    *gateway.shares.borrow_mut() = Some(shares);
                    gateway.next_round.set(now + EXCHANGE_EVERY);
                    self.check_shares();
                }
            }
            self.check_shares();
            self.time.set(self.time.get() + 20 * MILLI);
        }
    }

    /// Makes the calls of 20 ms at a gateway.
    fn call(&self, gateway: &SimGateway<'w>) {
        let load = gateway.load.get();
        for _ in 0..load / 5 + u64::from(self.random.below(5) < load % 5) {
            let now = gateway.clock.now();
            let Ok(mut lease) = gateway.limits.enter(&self.scopes, RequestId::from_bits(1), now) else {
                continue;
            };
            self.requests.iter().for_each(|admitted| admitted.borrow_mut().push((self.time.get(), 1)));
            let tokens = 1 + self.random.below(self.call_tokens);
            if lease.take(&[], tokens, now).is_ok() {
                let row = self.tokens.borrow().len();
                self.tokens.borrow_mut().push((self.time.get(), tokens));
                gateway.open.borrow_mut().push((lease, row, tokens));
            }
        }
        while self.random.happens(30) {
            let mut open = gateway.open.borrow_mut();
            if open.is_empty() {
                break;
            }
            let index = usize::try_from(self.random.below(open.len() as u64)).unwrap();
            let (lease, row, tokens) = open.swap_remove(index);
            let used = self.random.below(tokens + 1);
            self.tokens.borrow_mut()[row].1 = used;
            lease.settle(used, gateway.clock.now());
        }
        if self.random.below(250) == 0 {
            gateway.limits.sweep(gateway.clock.now());
        }
    }

    fn keys(&self) -> [(ShareKey, u64); 3] {
        let [(key, first), (org, second)] = &self.scopes;
        let of = |scope: &Scope, rule| ShareKey { scope: scope.clone(), rule };
        [
            (of(key, RateRule::Requests), u64::from(first.requests_per_minute.unwrap())),
            (of(org, RateRule::Requests), u64::from(second.requests_per_minute.unwrap())),
            (of(org, RateRule::Tokens), second.tokens_per_minute.unwrap()),
        ]
    }

    /// What each gateway may use of a limit now. A stopped gateway may be stopped just before it uses its share.
    fn usable(&self, key: &ShareKey, limit: u64) -> Vec<u64> {
        let usable = |gateway: &Rc<SimGateway<'w>>| {
            let now = gateway.clock.now();
            gateway.limits.usable_share(key, limit, now)
        };
        self.alive().iter().map(usable).collect()
    }

    fn check_shares(&self) {
        for (key, limit) in self.keys() {
            let usable = self.usable(&key, limit);
            assert!(
                usable.iter().sum::<u64>() <= limit,
                "seed {}: {usable:?} of {limit}, {key:?}",
                self.seed
            );
        }
    }

    /// No window has more than one gateway would admit: the limit, and its refill during the window. Clocks run up to one
    /// percent faster.
    fn check_windows(&self) {
        let all = [&self.requests[0], &self.requests[1], &self.tokens];
        for ((key, limit), admitted) in self.keys().into_iter().zip(all) {
            let (mut missing, mut at) = (0_u128, 0);
            for (time, amount) in admitted.borrow().iter() {
                let refilled = u128::from(limit) * u128::from(time - at) * u128::from(1_000 + DRIFT) / 60;
                missing = missing.saturating_sub(refilled) + u128::from(*amount) * u128::from(1_000 * SECOND);
                at = *time;
                let most = u128::from(limit) * u128::from(1_000 * SECOND);
                assert!(missing <= most, "seed {}: {missing} of {most} missing, {key:?}", self.seed);
            }
        }
    }
}

/// Runs one world. Returns the number of admitted calls and of exchanges.
fn simulate(seed: u64) -> (u64, u64) {
    let time = WorldTime::default();
    let random = SeededRandom(Cell::new(seed));
    let requests = [60, 600, 6_000, 7, 100][usize::try_from(random.below(5)).unwrap()];
    let tokens = u64::from(requests) * (1 + random.below(200));
    let spec = |factor: u32, tokens| LimitSpec {
        requests_per_minute: Some(requests * factor),
        tokens_per_minute: tokens,
        concurrency: None,
    };
    let scopes = [
        (Scope::Key(KeyId::new("k").unwrap()), spec(1, None)),
        (
            Scope::Org(OrgId::new("o").unwrap()),
            spec(1 + u32::try_from(random.below(3)).unwrap(), Some(tokens)),
        ),
    ];
    let call_tokens = 1 + random.below(tokens / 3);
    let world = World {
        seed,
        random,
        time: &time,
        table: RefCell::default(),
        gateways: RefCell::default(),
        scopes,
        faults: Cell::new(0),
        requests: Default::default(),
        tokens: RefCell::default(),
        call_tokens,
        next_holder: Cell::new(1),
        exchanges: Cell::new(0),
    };
    // A lone gateway has everything after its first exchange.
    world.start_gateway();
    world.run(60 * MILLI);
    for (key, limit) in world.keys() {
        assert_eq!(world.usable(&key, limit), [limit], "seed {seed}");
    }
    let count = 2 + world.random.below(3);
    (1..count).for_each(|_| world.start_gateway());
    world.faults.set([0, 10, 50][usize::try_from(world.random.below(3)).unwrap()]);
    let hot = u64::from(requests) / 20 + 1;
    for _ in 0..4 + world.random.below(12) {
        for gateway in world.alive() {
            gateway.load.set(
                [0, 1, hot, world.random.below(hot * 3)][usize::try_from(world.random.below(4)).unwrap()]
                    .min(60),
            );
        }
        match world.random.below(8) {
            0 => {
                if let Some(gateway) = world.alive().first() {
                    gateway.is_dead.set(true);
                    gateway.open.borrow_mut().clear();
                }
                world.start_gateway();
            }
            1 => {
                if let Some(gateway) = world.alive().last() {
                    gateway.paused_until.set(time.get() + world.random.below(30) * SECOND);
                }
            }
            _ => {}
        }
        world.run(time.get() + (1 + world.random.below(12)) * SECOND);
    }
    // Faults end. Within two leases, every gateway takes part again.
    world.faults.set(0);
    world.run(time.get() + 32 * SECOND);
    for gateway in world.alive() {
        gateway.load.set(hot.min(60));
    }
    world.run(time.get() + 3 * SECOND + world.random.below(1_000) * MILLI);
    // All load moves to one gateway.
    let alive = world.alive();
    let chosen = usize::try_from(world.random.below(alive.len() as u64)).unwrap();
    for (index, gateway) in alive.iter().enumerate() {
        gateway.load.set(if index == chosen { (hot * 3).min(100) } else { 0 });
    }
    world.run(time.get() + 3 * SECOND);
    let (key, limit) = &world.keys()[0];
    let usable = world.usable(key, *limit);
    assert!(usable[chosen] * 10 >= limit * 9, "seed {seed}: {usable:?} of {limit}");
    world.check_windows();
    let admitted = world.requests[0].borrow().len() as u64;
    (admitted, world.exchanges.get())
}

#[test]
fn shares_never_exceed_a_limit_and_follow_the_load() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("HEADRACE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("HEADRACE_SEEDS").unwrap_or(1_000),
    };
    let (mut admitted, mut exchanges) = (0, 0);
    for seed in seeds.clone() {
        let (calls, rounds) = simulate(seed);
        admitted += calls;
        exchanges += rounds;
    }
    println!("{} seeds: {admitted} calls admitted, {exchanges} exchanges", seeds.end - seeds.start);
    assert!(admitted > 0 && exchanges > 0);
}
