//! The KV blocks of all cache groups: one pool per group. A prefix is found if every group holds it, and blocks are
//! taken in every group or in none. Knows nothing of budgets, turns or announcements.

use headrace_domain::{BlockKey, CacheLife, CacheSalt};
use headrace_kv_layout::{KvLayout, PerGroup};

use crate::blocks::BlockPool;
use crate::config::SchedulerConfig;
use crate::nearest::CachedPrefix;
use crate::pins::Pins;

/// The block tables of a sequence, one per group.
pub(crate) type Tables = PerGroup<Vec<u32>>;

/// The layout, and the block pool of each group.
#[derive(Debug)]
pub(crate) struct KvGroups {
    layout: KvLayout,
    pools: PerGroup<BlockPool>,
}

impl KvGroups {
    /// Creates the pools, all blocks empty.
    pub(crate) fn new(config: &SchedulerConfig, layout: KvLayout) -> Self {
        let lifetime_ns = config.prefix_lifetime_ns.unwrap_or(u64::MAX);
        let pools = layout.groups().map(|group| {
            BlockPool::new(group.block_count, lifetime_ns, Pins::new(config, group.block_count))
        });
        Self { layout, pools }
    }

    /// The groups and the size of their blocks.
    pub(crate) const fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// The pool of each group.
    pub(crate) const fn pools(&self) -> &PerGroup<BlockPool> {
        &self.pools
    }

    /// Number of blocks in all groups.
    pub(crate) fn total(&self) -> usize {
        self.pools.iter().map(BlockPool::total).sum()
    }

    /// Advances the pools' clocks.
    pub(crate) fn set_now(&mut self, now_ns: u64) {
        self.pools.iter_mut().for_each(|pool| pool.set_now(now_ns));
    }

    /// Number of blocks that each group's table lacks to cover the positions before `end`.
    pub(crate) fn needs(&self, end: usize, tables: &Tables) -> PerGroup<usize> {
        let mut needs = self.layout.blocks_for(end);
        for (need, table) in needs.iter_mut().zip(tables.iter()) {
            *need = need.saturating_sub(table.len());
        }
        needs
    }

    /// Whether every group has this many free blocks.
    pub(crate) fn have_free(&self, blocks: &PerGroup<usize>) -> bool {
        self.pools.iter().zip(blocks.iter()).all(|(pool, &blocks)| blocks <= pool.free())
    }

    /// Appends this many free blocks to each group's table.
    pub(crate) fn take(&mut self, blocks: &PerGroup<usize>, tables: &mut Tables) {
        for ((pool, &blocks), table) in self.pools.iter_mut().zip(blocks.iter()).zip(tables.iter_mut()) {
            table.extend((0..blocks).map_while(|_| pool.take()));
        }
    }

    /// The block for `key` in each group. `None` if a group does not hold it.
    pub(crate) fn lookup(&self, key: &BlockKey, salt: &CacheSalt, tokens: &[u32]) -> Option<PerGroup<u32>> {
        self.pools.try_map(|pool| pool.lookup(key, salt, tokens))
    }

    /// Adds 1 for each group in which no sequence holds the block.
    pub(crate) fn count_free(&self, blocks: &PerGroup<u32>, free: &mut PerGroup<usize>) {
        for ((pool, &block), free) in self.pools.iter().zip(blocks.iter()).zip(free.iter_mut()) {
            *free += usize::from(pool.is_free(block));
        }
    }

    /// Adds a holder to the blocks of every table. `relies` says, by index in the table, whether the holder is another
    /// sequence than the one that computed the block.
    pub(crate) fn share(&mut self, tables: &Tables, relies: impl Fn(usize) -> bool) {
        for (pool, table) in self.pools.iter_mut().zip(tables.iter()) {
            for (at, &block) in table.iter().enumerate() {
                pool.share(block, relies(at));
            }
        }
    }

    /// Removes a holder from the blocks of every table, tail first. With `keep`, the blocks stay findable. Without it
    /// those from index `own` on do not, unless others have built on them.
    pub(crate) fn release(&mut self, tables: &Tables, own: usize, keep: bool) {
        for (pool, table) in self.pools.iter_mut().zip(tables.iter()) {
            table.iter().rev().for_each(|&block| pool.release(block));
            if !keep {
                // From the end, so that the first blocks are at the front of the free list and are reused first.
                let own = table.get(own..).unwrap_or(&[]);
                own.iter().rev().for_each(|&block| pool.take_back(block));
            }
        }
    }

    /// Makes the computed block at index `at` of every table findable, and pins it if `pin` has a lifetime. `reserved`
    /// counts each group's reserved pins of the tenant, and falls by those that are used.
    pub(crate) fn publish(
        &mut self,
        (tables, at): (&Tables, usize),
        prefix: &CachedPrefix,
        (pin, tenant): (Option<CacheLife>, u64),
        reserved: &mut PerGroup<usize>,
    ) {
        for ((pool, table), reserved) in self.pools.iter_mut().zip(tables.iter()).zip(reserved.iter_mut()) {
            let Some(&block) = table.get(at) else { continue };
            let block = pool.publish(block, prefix);
            if let Some(life) = pin
                && pool.pin(block, life, tenant, *reserved > 0)
            {
                *reserved -= 1;
            }
        }
    }

    /// Pins the cached block at index `at` of every table.
    pub(crate) fn pin(&mut self, tables: &Tables, at: usize, life: CacheLife, tenant: u64) {
        for (pool, table) in self.pools.iter_mut().zip(tables.iter()) {
            if let Some(&block) = table.get(at) {
                pool.pin(block, life, tenant, false);
            }
        }
    }

    /// Reserves a pin in every group for a tenant. Returns `false`, and reserves none, if a group is at a limit.
    pub(crate) fn reserve_pin(&mut self, tenant: u64) -> bool {
        let mut reserved = 0;
        for pool in self.pools.iter_mut() {
            if !pool.pins().reserve(tenant) {
                break;
            }
            reserved += 1;
        }
        if reserved == headrace_kv_layout::GROUPS {
            return true;
        }
        self.pools.iter_mut().take(reserved).for_each(|pool| pool.pins().release(tenant, 1));
        false
    }

    /// Releases reserved pins of a tenant.
    pub(crate) fn release_pins(&mut self, tenant: u64, reserved: &PerGroup<usize>) {
        for (pool, &reserved) in self.pools.iter_mut().zip(reserved.iter()) {
            pool.pins().release(tenant, reserved);
        }
    }
}
