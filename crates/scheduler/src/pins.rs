//! Limits on pinned prefixes: how many blocks each tenant may pin, and how many it has pinned. Knows counts and
//! tenants. The block pool knows which block is pinned for which tenant.

use headrace_domain::{CacheLife, CachePin, RequestId};
use headrace_kv_layout::KvLayout;

use crate::config::SchedulerConfig;
use crate::tables::ByTenant;

/// How many of the blocks that a sequence will compute are to be pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PinnedBlocks {
    /// Blocks pinned for [`CacheLife::Minutes`], and for [`CacheLife::Hour`].
    pub blocks: [u32; 2],
    /// Blocks that are cached without a pin, because a limit on pins is reached.
    pub beyond: u32,
}

/// Index of a lifetime in lists with one entry per lifetime.
pub(crate) const fn rank(life: CacheLife) -> usize {
    match life {
        CacheLife::Minutes => 0,
        CacheLife::Hour => 1,
    }
}

/// How long block number `at` of a prompt is pinned. `None` if no pin covers it.
pub(crate) fn life_of(pins: &[CachePin], at: usize, layout: &KvLayout) -> Option<CacheLife> {
    let covers = |pin: &&CachePin| layout.full_blocks(pin.tokens as usize) > at;
    pins.iter().filter(covers).map(|pin| pin.life).max()
}

/// How a block is to be pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PinWish {
    pub(crate) life: CacheLife,
    /// A caller asked for the pin, so that it outlasts every call.
    pub(crate) lasts: bool,
    /// The call that releases the pin when it no longer needs the block.
    pub(crate) owner: Option<RequestId>,
}

impl PinWish {
    /// A pin that a caller asked for.
    pub(crate) const fn lasting(life: CacheLife) -> Self {
        Self { life, lasts: true, owner: None }
    }

    /// Joins the life that a caller asked for and the call that holds the block. `None` if there is neither.
    pub(crate) fn of(asked: Option<CacheLife>, owner: Option<RequestId>) -> Option<Self> {
        let life = asked.max(owner.map(|_| CacheLife::Minutes))?;
        Some(Self { life, lasts: asked.is_some(), owner })
    }
}

/// The pin of a block.
#[derive(Debug, Clone)]
pub(crate) struct BlockPin {
    pub(crate) life: CacheLife,
    /// The tenant whose limit counts it.
    pub(crate) tenant: u64,
    /// See [`PinWish::lasts`].
    pub(crate) lasts: bool,
    /// The calls that hold it.
    pub(crate) owners: Vec<RequestId>,
}

/// Number of blocks pinned or reserved, in total and by tenant.
#[derive(Debug)]
pub(crate) struct Pins {
    most: usize,
    most_of_one: usize,
    all: usize,
    by_tenant: ByTenant<usize>,
}

impl Pins {
    /// Creates empty counts, with limits for a pool of `blocks` blocks.
    pub(crate) fn new(config: &SchedulerConfig, blocks: usize) -> Self {
        let part = |percent: u8| blocks.saturating_mul(usize::from(percent.min(100))) / 100;
        let most = part(config.pinned_percent);
        let most_of_one = part(config.pinned_percent_of_one).min(most);
        Self { most, most_of_one, all: 0, by_tenant: ByTenant::default() }
    }

    /// Reserves one block for a tenant. Returns `false` if the total or the tenant is at its limit.
    pub(crate) fn reserve(&mut self, tenant: u64) -> bool {
        let own = self.of(tenant);
        if self.all >= self.most || own >= self.most_of_one {
            return false;
        }
        self.all += 1;
        self.by_tenant.insert(tenant, own + 1);
        true
    }

    /// Releases `blocks` blocks of a tenant.
    pub(crate) fn release(&mut self, tenant: u64, blocks: usize) {
        self.all = self.all.saturating_sub(blocks);
        if let Some(own) = self.by_tenant.get_mut(&tenant) {
            *own = own.saturating_sub(blocks);
            if *own == 0 {
                self.by_tenant.remove(&tenant);
            }
        }
    }

    /// Blocks pinned or reserved by a tenant.
    pub(crate) fn of(&self, tenant: u64) -> usize {
        self.by_tenant.get(&tenant).copied().unwrap_or(0)
    }

    /// The number of all pinned or reserved blocks, and its limit.
    pub(crate) fn all(&self) -> (usize, usize) {
        (self.all, self.most)
    }

    /// For tests: the counts by tenant, and the limit for one tenant.
    pub(crate) fn audit(&self) -> (&ByTenant<usize>, usize) {
        (&self.by_tenant, self.most_of_one)
    }
}
