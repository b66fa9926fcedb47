//! Prefixes that callers wish to be kept: how many blocks each tenant may keep so, and how many it does. Knows counts and tenants;
//! which block is kept for whom is the pool's to know.

use headrace_domain::{BLOCK_TOKENS, CacheLife, CachePin};

use crate::config::SchedulerConfig;
use crate::tables::ByTenant;

/// What becomes of the blocks that a sequence is to compute and that are to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pinned {
    /// Blocks kept for as long as [`CacheLife::Minutes`], and as [`CacheLife::Hour`].
    pub blocks: [u32; 2],
    /// Blocks that are cached as any others, since their tenant keeps as many as it may.
    pub beyond: u32,
}

/// Where a lifetime stands in lists of them.
pub(crate) const fn rank(life: CacheLife) -> usize {
    match life {
        CacheLife::Minutes => 0,
        CacheLife::Hour => 1,
    }
}

/// For how long block number `at` of a prompt is to be kept; `None`: as any other.
pub(crate) fn life_of(pins: &[CachePin], at: usize) -> Option<CacheLife> {
    let covers = |pin: &&CachePin| pin.tokens as usize / BLOCK_TOKENS > at;
    pins.iter().filter(covers).map(|pin| pin.life).max()
}

/// Blocks that are kept, or spoken for, by tenant.
#[derive(Debug)]
pub(crate) struct Pins {
    most: usize,
    most_of_one: usize,
    all: usize,
    by_tenant: ByTenant<usize>,
}

impl Pins {
    /// None of so many blocks.
    pub(crate) fn new(config: &SchedulerConfig, blocks: usize) -> Self {
        let part = |percent: u8| blocks.saturating_mul(usize::from(percent.min(100))) / 100;
        let most = part(config.pinned_percent);
        let most_of_one = part(config.pinned_percent_of_one).min(most);
        Self { most, most_of_one, all: 0, by_tenant: ByTenant::default() }
    }

    /// One more for a tenant; `false`: there are as many as there may be.
    pub(crate) fn reserve(&mut self, tenant: u64) -> bool {
        let own = self.of(tenant);
        if self.all >= self.most || own >= self.most_of_one {
            return false;
        }
        self.all += 1;
        self.by_tenant.insert(tenant, own + 1);
        true
    }

    /// So many fewer for a tenant.
    pub(crate) fn release(&mut self, tenant: u64, blocks: usize) {
        self.all = self.all.saturating_sub(blocks);
        if let Some(own) = self.by_tenant.get_mut(&tenant) {
            *own = own.saturating_sub(blocks);
            if *own == 0 {
                self.by_tenant.remove(&tenant);
            }
        }
    }

    /// Those of a tenant.
    pub(crate) fn of(&self, tenant: u64) -> usize {
        self.by_tenant.get(&tenant).copied().unwrap_or(0)
    }

    /// All of them, and the most that there may be.
    pub(crate) fn all(&self) -> (usize, usize) {
        (self.all, self.most)
    }

    /// For tests: by tenant, and the most of one.
    pub(crate) fn audit(&self) -> (&ByTenant<usize>, usize) {
        (&self.by_tenant, self.most_of_one)
    }
}
