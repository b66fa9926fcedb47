//! Compares the pool with a plain model of a cache in which tenants pin prefixes. After any calls, both know the same
//! prefixes.

use headrace_domain::{BLOCK_TOKENS, BlockKey, CacheLife, CacheSalt};

use super::*;
use crate::config::SchedulerConfig;

const BLOCKS: usize = 24;
const PREFIXES: u32 = 60;
const TENANTS: u64 = 3;
const MINUTE: u64 = 60_000_000_000;

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

fn salt(tenant: u64) -> CacheSalt {
    CacheSalt::derive(&[1; 32], &tenant.to_string(), "m", None)
}

/// A prefix of one block that belongs to one tenant.
fn prefix(number: u32) -> CachedPrefix {
    let (salt, tokens) = (salt(tenant(number)), [number; BLOCK_TOKENS]);
    let key = BlockKey::chain(&salt, None, &tokens);
    CachedPrefix { key, salt, tokens, parent: None, content: u64::from(number) }
}

fn tenant(number: u32) -> u64 {
    u64::from(number) % TENANTS
}

/// A cached prefix in the model.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Entry {
    prefix: u32,
    pinned: Option<CacheLife>,
    /// When it was last used.
    used_ns: u64,
    /// When it joined the list of blocks that are reused in order.
    joined: u64,
    held: bool,
}

/// A model of the pool: one list that is searched from its beginning.
#[derive(Debug, Default)]
struct Model {
    entries: Vec<Entry>,
    now_ns: u64,
    clock: u64,
    /// Number of blocks without a prefix.
    empty: usize,
}

impl Model {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn advance(&mut self, by_ns: u64) {
        self.now_ns += by_ns;
        let now = self.now_ns;
        for life in CacheLife::ALL {
            let over = |e: &&Entry| !e.held && e.pinned == Some(life) && now - e.used_ns > life.nanos();
            let mut ended: Vec<Entry> = self.entries.iter().filter(over).copied().collect();
            ended.sort_by_key(|entry| (entry.used_ns, entry.joined));
            for entry in ended {
                let joined = self.tick();
                let own = self.entries.iter_mut().find(|own| own.prefix == entry.prefix).unwrap();
                (own.pinned, own.joined) = (None, joined);
            }
        }
    }

    /// Makes room for one more block. Returns `false` if every block is held.
    fn make_room(&mut self) -> bool {
        if self.empty > 0 {
            self.empty -= 1;
            return true;
        }
        let free = self.entries.iter().filter(|entry| !entry.held);
        let usual = free.clone().filter(|entry| entry.pinned.is_none()).min_by_key(|entry| entry.joined);
        let end =
            |entry: &&Entry| entry.pinned.map(|life| (entry.used_ns + life.nanos(), life, entry.joined));
        let Some(gone) = usual.or_else(|| free.min_by_key(end)).map(|entry| entry.prefix) else {
            return false;
        };
        self.entries.retain(|entry| entry.prefix != gone);
        true
    }

    fn pinned_of(&self, of: Option<u64>) -> usize {
        let own = |entry: &&Entry| of.is_none_or(|of| tenant(entry.prefix) == of);
        self.entries.iter().filter(own).filter(|entry| entry.pinned.is_some()).count()
    }

    fn wish(&mut self, number: u32, life: CacheLife, config: &SchedulerConfig) {
        let part = |percent: u8| BLOCKS * usize::from(percent) / 100;
        let room = self.pinned_of(None) < part(config.pinned_percent)
            && self.pinned_of(Some(tenant(number))) < part(config.pinned_percent_of_one);
        let entry = self.entries.iter_mut().find(|entry| entry.prefix == number).unwrap();
        match entry.pinned {
            Some(before) => entry.pinned = Some(before.max(life)),
            None if room => entry.pinned = Some(life),
            None => {}
        }
    }
}

struct World {
    pool: BlockPool,
    model: Model,
    config: SchedulerConfig,
    held: Vec<(u32, u32)>,
}

impl World {
    fn ask(&mut self, number: u32, life: Option<CacheLife>) {
        if self.held.iter().any(|(held, _)| *held == number) {
            return;
        }
        let wanted = prefix(number);
        let found = self.pool.lookup(&wanted.key, &wanted.salt, &wanted.tokens);
        let block = match found {
            Some(block) => {
                self.pool.share(block, true);
                block
            }
            None => {
                let room = self.model.make_room();
                let taken = self.pool.take();
                assert_eq!(taken.is_some(), room);
                let Some(block) = taken else { return };
                assert_eq!(self.pool.publish(block, &wanted), block);
                let (used_ns, joined) = (self.model.now_ns, 0);
                self.model.entries.push(Entry { prefix: number, pinned: None, used_ns, joined, held: true });
                block
            }
        };
        self.model.entries.iter_mut().find(|entry| entry.prefix == number).unwrap().held = true;
        if let Some(life) = life {
            self.model.wish(number, life, &self.config);
            // Some pins are reserved before their block exists, as for blocks that will be computed.
            let reserved = found.is_none() && number.is_multiple_of(2);
            if !reserved {
                self.pool.pin(block, PinWish::lasting(life), tenant(number), false);
            } else if self.pool.pins().reserve(tenant(number)) {
                assert!(self.pool.pin(block, PinWish::lasting(life), tenant(number), true));
            }
        }
        self.held.push((number, block));
    }

    fn release(&mut self, at: usize) {
        let (number, block) = self.held.swap_remove(at);
        self.pool.release(block);
        let (joined, now_ns) = (self.model.tick(), self.model.now_ns);
        let entry = self.model.entries.iter_mut().find(|entry| entry.prefix == number).unwrap();
        (entry.held, entry.joined, entry.used_ns) = (false, joined, now_ns);
    }

    fn check(&self, seed: u64) {
        for number in 0..PREFIXES {
            let wanted = prefix(number);
            let found = self.pool.lookup(&wanted.key, &wanted.salt, &wanted.tokens);
            let known = self.model.entries.iter().find(|entry| entry.prefix == number);
            assert_eq!(found.is_some(), known.is_some(), "seed {seed}: {number}: {known:?}");
            let pinned =
                found.and_then(|block| self.pool.blocks[block as usize].pinned.as_ref()).map(|pin| pin.life);
            assert_eq!(pinned, known.and_then(|entry| entry.pinned), "seed {seed}: {number}");
        }
        assert_eq!(self.pool.pins.all().0, self.model.pinned_of(None));
        for one in 0..TENANTS {
            assert_eq!(self.pool.pins.of(one), self.model.pinned_of(Some(one)));
        }
    }
}

#[test]
fn the_pool_knows_what_a_plain_model_of_it_knows() {
    let (mut pinned, mut full, mut ended) = (0, 0, 0);
    for seed in 0..300 {
        let mut rng = Rng(seed);
        let config = SchedulerConfig {
            pinned_percent: [100, 50, 30][rng.below(3) as usize],
            pinned_percent_of_one: [100, 25, 10][rng.below(3) as usize],
            ..SchedulerConfig::default()
        };
        let pool = BlockPool::new(BLOCKS, u64::MAX, Pins::new(&config, BLOCKS));
        let model = Model { empty: BLOCKS, ..Model::default() };
        let mut world = World { pool, model, config, held: Vec::new() };
        for _ in 0..400 {
            match rng.below(10) {
                0 => {
                    let before = world.model.pinned_of(None);
                    world.model.advance(rng.below(12 * MINUTE));
                    world.pool.set_now(world.model.now_ns);
                    ended += before - world.model.pinned_of(None);
                }
                1..=6 => {
                    let life = [None, Some(CacheLife::Minutes), Some(CacheLife::Hour)][rng.below(3) as usize];
                    let number = rng.below(u64::from(PREFIXES)) as u32;
                    let most = world.pool.pins.all();
                    world.ask(number, life);
                    full += usize::from(life.is_some() && most.0 == most.1);
                }
                _ if world.held.is_empty() => {}
                _ => {
                    let at = rng.below(world.held.len() as u64) as usize;
                    world.release(at);
                }
            }
            world.check(seed);
            pinned += world.model.pinned_of(None);
        }
    }
    assert!(pinned > 10_000 && full > 1_000 && ended > 1_000, "too tame: {pinned}, {full}, {ended}");
}

#[test]
fn pinned_blocks_are_reused_last_and_in_the_order_in_which_their_pins_end() {
    let config =
        SchedulerConfig { pinned_percent: 100, pinned_percent_of_one: 100, ..SchedulerConfig::default() };
    let mut pool = BlockPool::new(4, u64::MAX, Pins::new(&config, 4));
    let lives = [Some(CacheLife::Hour), None, Some(CacheLife::Minutes), Some(CacheLife::Minutes)];
    for (number, life) in lives.into_iter().enumerate() {
        let block = pool.take().unwrap();
        pool.publish(block, &prefix(number as u32));
        if let Some(life) = life {
            pool.pin(block, PinWish::lasting(life), 0, false);
        }
        pool.release(block);
        pool.set_now((number as u64 + 1) * MINUTE);
    }
    let mut pool_is = |expected: &[u32]| {
        let known = |number: &u32| {
            let wanted = prefix(*number);
            pool.lookup(&wanted.key, &wanted.salt, &wanted.tokens).is_some()
        };
        let found: Vec<u32> = (0..4).filter(known).collect();
        assert_eq!(found, expected);
        pool.take();
    };
    pool_is(&[0, 1, 2, 3]);
    pool_is(&[0, 2, 3]);
    pool_is(&[0, 3]);
    pool_is(&[0]);
    pool_is(&[]);
    assert_eq!(pool.pins.all().0, 0);
}

#[test]
fn a_call_releases_its_own_pins_and_no_others() {
    let config =
        SchedulerConfig { pinned_percent: 100, pinned_percent_of_one: 100, ..SchedulerConfig::default() };
    let [first, second] = [1, 2].map(RequestId::from_bits);
    let held = |owner| PinWish::of(None, Some(owner)).unwrap();
    // The pins of a block; how many blocks stay pinned after the first call released its own, and after the second.
    type Row = (Vec<PinWish>, [usize; 2]);
    let rows: [Row; 6] = [
        (vec![held(first)], [0, 0]),
        (vec![held(first), held(first)], [0, 0]),
        (vec![held(first), held(second)], [1, 0]),
        (vec![PinWish::lasting(CacheLife::Minutes), held(first)], [1, 1]),
        (vec![held(first), PinWish::lasting(CacheLife::Hour)], [1, 1]),
        (vec![PinWish::of(Some(CacheLife::Hour), Some(second)).unwrap(), held(first)], [1, 1]),
    ];
    for is_free in [true, false] {
        for (wishes, left) in &rows {
            let mut pool = BlockPool::new(4, u64::MAX, Pins::new(&config, 4));
            let block = pool.take().unwrap();
            pool.publish(block, &prefix(0));
            for wish in wishes {
                pool.pin(block, *wish, 0, false);
            }
            assert_eq!(pool.pins.all().0, 1, "{wishes:?}");
            if is_free {
                pool.release(block);
            }
            for (owner, left) in [first, second].into_iter().zip(left) {
                pool.release_pins_of(owner);
                assert_eq!(pool.pins.all().0, *left, "{wishes:?}");
                assert!(!pool.owned.contains_key(&owner), "{wishes:?}");
            }
            // The prefix is still there, and all lists still have all blocks.
            let wanted = prefix(0);
            assert_eq!(pool.lookup(&wanted.key, &wanted.salt, &wanted.tokens), Some(block), "{wishes:?}");
            assert_eq!(pool.audit_free().count(), pool.free(), "{wishes:?}");
        }
    }
}

#[test]
fn a_pin_that_ended_by_itself_is_no_longer_held() {
    let config =
        SchedulerConfig { pinned_percent: 100, pinned_percent_of_one: 100, ..SchedulerConfig::default() };
    let owner = RequestId::from_bits(1);
    let mut pool = BlockPool::new(1, u64::MAX, Pins::new(&config, 1));
    let block = pool.take().unwrap();
    pool.publish(block, &prefix(0));
    pool.pin(block, PinWish::of(None, Some(owner)).unwrap(), 0, false);
    pool.release(block);
    pool.set_now(6 * MINUTE);
    assert!(pool.owned.is_empty());
    // Another tenant pins what the block holds next. A late release does not touch that.
    let block = pool.take().unwrap();
    pool.publish(block, &prefix(1));
    pool.pin(block, PinWish::lasting(CacheLife::Minutes), 1, false);
    pool.release_pins_of(owner);
    assert_eq!((pool.pins.of(1), pool.pins.all().0), (1, 1));
}
