//! The KV blocks of all cache groups: one pool per group. A prefix is found up to a boundary at which every group can
//! continue, and blocks are taken in every group or in none. Knows nothing of budgets, turns or announcements.

use headrace_domain::{BlockKey, CacheSalt, RequestId};
use headrace_kv_layout::{BlockTables, FREED, KvLayout, PerGroup, StateCopy, StateSlots};

use crate::blocks::BlockPool;
use crate::config::SchedulerConfig;
use crate::nearest::CachedPrefix;
use crate::pins::{PinWish, Pins};

/// The blocks that a sequence holds.
#[derive(Debug, Default)]
pub(crate) struct HeldBlocks {
    /// The block table of each group. The table of states has the slot of the state before the next token, and during a
    /// step that completes a block also the slot of the state after it.
    ids: PerGroup<Vec<u32>>,
    /// Number of leading entries of the window's table that are [`FREED`].
    outside: usize,
    /// The cached state that the first chunk continues from, until that chunk is computed.
    source: Option<u32>,
    /// Number of leading blocks that the sequence's own state covers. 0 if its slot holds no state yet.
    state_blocks: usize,
}

impl HeldBlocks {
    /// The block tables, in the order of the groups.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Vec<u32>> {
        self.ids.iter()
    }

    /// Whether it holds nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.ids.iter().all(Vec::is_empty) && self.source.is_none()
    }

    /// Number of blocks held in each group.
    pub(crate) fn held(&self) -> PerGroup<usize> {
        let mut held = self.ids.map(Vec::len);
        *held.each_mut().1 -= self.outside;
        held
    }

    /// Number of leading entries of each group's table that hold no block.
    pub(crate) fn freed(&self) -> PerGroup<usize> {
        PerGroup::new([0, self.outside, 0])
    }

    /// Whether it holds a second slot, for the state after a step. The step's end releases one of the two.
    pub(crate) fn has_next_state(&self) -> bool {
        self.ids.state().len() > 1
    }

    /// The cached state that the first chunk continues from.
    pub(crate) fn source(&self) -> Option<u32> {
        self.source
    }

    /// For tests of the invariants: changes the tables.
    #[cfg(test)]
    pub(crate) fn ids_mut(&mut self) -> &mut PerGroup<Vec<u32>> {
        &mut self.ids
    }
}

/// A prefix to look up: the keys, the salt and the tokens of its blocks.
#[derive(Clone, Copy)]
pub(crate) struct PrefixBlocks<'a> {
    pub(crate) keys: &'a [BlockKey],
    pub(crate) salt: &'a CacheSalt,
    pub(crate) tokens: &'a [u32],
    pub(crate) block_tokens: usize,
}

impl PrefixBlocks<'_> {
    /// The block of a pool that holds block `at` of the prefix.
    fn find(&self, pool: &BlockPool, at: usize) -> Option<u32> {
        let tokens = self.tokens.get(at * self.block_tokens..(at + 1) * self.block_tokens)?;
        pool.lookup(self.keys.get(at)?, self.salt, tokens)
    }
}

/// How much of a prefix is cached.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CachedReach {
    /// The greatest number of leading blocks after which every group can continue.
    pub(crate) hits: usize,
    /// Number of leading blocks that the layers with every position have. If there are no such layers, the number of
    /// leading blocks that others are known to have computed.
    pub(crate) full: usize,
    /// Blocks of each group that a sequence continuing there shares.
    pub(crate) shared: PerGroup<usize>,
    /// How many cached blocks of each group no sequence holds, and are no longer free once it shares them.
    pub(crate) free: PerGroup<usize>,
}

/// The layout, and the block pool of each group.
#[derive(Debug)]
pub(crate) struct KvGroups {
    layout: KvLayout,
    pools: PerGroup<BlockPool>,
    /// Most tokens of one sequence in a step.
    chunk: usize,
}

impl KvGroups {
    /// Creates the pools, all blocks empty.
    pub(crate) fn new(config: &SchedulerConfig, layout: KvLayout) -> Self {
        let lifetime_ns = config.prefix_lifetime_ns.unwrap_or(u64::MAX);
        let pools = layout.groups().map(|group| {
            BlockPool::new(group.block_count, lifetime_ns, Pins::new(config, group.block_count))
        });
        Self { layout, pools, chunk: config.chunk() }
    }

    /// The groups and the size of their blocks.
    pub(crate) const fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// The pool of each group.
    pub(crate) const fn pools(&self) -> &PerGroup<BlockPool> {
        &self.pools
    }

    /// The pool of the first group that has layers.
    pub(crate) fn first_pool(&self) -> &BlockPool {
        let used = self.layout.groups().iter().zip(self.pools.iter()).find(|(group, _)| group.is_used());
        used.map_or(self.pools.full(), |(_, pool)| pool)
    }

    /// Number of blocks of each group.
    pub(crate) fn totals(&self) -> PerGroup<usize> {
        self.pools.map(BlockPool::total)
    }

    /// Advances the pools' clocks.
    pub(crate) fn set_now(&mut self, now_ns: u64) {
        self.pools.iter_mut().for_each(|pool| pool.set_now(now_ns));
    }

    /// Number of blocks that each group lacks to compute the positions `start..end`. A state is never changed where it
    /// is read, so a chunk that completes a block takes a second slot.
    pub(crate) fn needs(&self, start: usize, end: usize, tables: &HeldBlocks) -> PerGroup<usize> {
        let mut needs = self.layout.blocks_for(end);
        for (need, table) in needs.iter_mut().zip(tables.iter()) {
            *need = need.saturating_sub(table.len());
        }
        let completes = self.layout.full_blocks(start) < self.layout.full_blocks(end);
        if self.layout.groups().state().is_used() && completes && start > 0 && tables.source.is_none() {
            *needs.each_mut().2 += 1;
        }
        needs
    }

    /// Number of blocks of each group that a sequence of `known` tokens takes until all of them are computed, beyond
    /// those that it `holds`. Its tables have `entries` entries.
    fn takes(&self, known: usize, holds: &PerGroup<usize>, entries: &PerGroup<usize>) -> PerGroup<usize> {
        let mut takes = self.layout.groups().map(|group| group.most_held(known, self.chunk));
        let all = self.layout.blocks_for(known);
        for (((takes, holds), entries), all) in
            takes.iter_mut().zip(holds.iter()).zip(entries.iter()).zip(all.iter())
        {
            *takes = takes.saturating_sub(*holds).min(all.saturating_sub(*entries));
        }
        takes
    }

    /// The blocks of each group to promise to a running sequence of `known` tokens.
    pub(crate) fn promises(&self, known: usize, tables: &HeldBlocks) -> PerGroup<usize> {
        self.takes(known, &tables.held(), &tables.ids.map(Vec::len))
    }

    /// The free blocks of each group that a sequence of `known` tokens takes when it starts with what was found.
    pub(crate) fn to_start(&self, known: usize, found: &CachedReach) -> PerGroup<usize> {
        let entries = PerGroup::new([found.hits, found.hits, 0]);
        let mut blocks = self.takes(known, &found.shared, &entries);
        for (blocks, &free) in blocks.iter_mut().zip(found.free.iter()) {
            *blocks += free;
        }
        blocks
    }

    /// Whether a sequence lacks only the slot for the state after its next step.
    pub(crate) fn lacks_next_state(&self, blocks: &PerGroup<usize>, tables: &HeldBlocks) -> bool {
        !tables.ids.state().is_empty() && *blocks.state() > self.pools.state().free()
    }

    /// Whether every group has this many free blocks.
    pub(crate) fn have_free(&self, blocks: &PerGroup<usize>) -> bool {
        self.pools.iter().zip(blocks.iter()).all(|(pool, &blocks)| blocks <= pool.free())
    }

    /// Appends this many free blocks to each group's table.
    pub(crate) fn take(&mut self, blocks: &PerGroup<usize>, tables: &mut HeldBlocks) {
        for ((pool, &blocks), table) in self.pools.iter_mut().zip(blocks.iter()).zip(tables.ids.iter_mut()) {
            table.extend((0..blocks).map_while(|_| pool.take()));
        }
    }

    /// Takes a slot for a copy of a state, if more than `promised` are free.
    pub(crate) fn take_copy(&mut self, promised: usize) -> Option<u32> {
        let pool = self.pools.each_mut().2;
        if pool.free() > promised { pool.take() } else { None }
    }

    /// The greatest boundary, at most `usable` blocks, at which every group can continue.
    pub(crate) fn reach(&self, prefix: &PrefixBlocks<'_>, usable: usize) -> CachedReach {
        let (groups, block_tokens) = (self.layout.groups(), self.layout.block_tokens());
        let mut reach = CachedReach { hits: usable, full: usable, ..CachedReach::default() };
        if groups.full().is_used() {
            let pool = self.pools.full();
            let found = (0..usable).map_while(|at| prefix.find(pool, at));
            let (mut full, mut free) = (0, 0);
            for block in found {
                full += 1;
                free += usize::from(pool.is_free(block));
            }
            reach = CachedReach { hits: full, full, shared: reach.shared, free: PerGroup::new([free, 0, 0]) };
        }
        if groups.window().is_used() || groups.state().is_used() {
            while reach.hits > 0 {
                if groups.state().is_used() && prefix.find(self.pools.state(), reach.hits - 1).is_none() {
                    reach.hits -= 1;
                    continue;
                }
                let from = groups.window().blocks_outside(reach.hits * block_tokens);
                let lacks = |&at: &usize| prefix.find(self.pools.window(), at).is_none();
                match (from..reach.hits).rev().filter(|_| groups.window().is_used()).find(lacks) {
                    Some(missing) => reach.hits = missing,
                    None => break,
                }
            }
            reach.free = self.free_among(prefix, &reach);
            if !groups.full().is_used() {
                // Blocks that were computed before, as far as is remembered.
                let pool = self.pools.window();
                let was_there = |at: &usize| {
                    let evicted = |key| pool.nearest().was_evicted(key);
                    prefix.find(pool, *at).is_some() || prefix.keys.get(*at).is_some_and(evicted)
                };
                reach.full = (0..usable).take_while(was_there).count().max(reach.hits);
            }
        }
        let outside = groups.window().blocks_outside(reach.hits * block_tokens);
        let held = |used: bool, count: usize| if used { count } else { 0 };
        reach.shared = PerGroup::new([
            held(groups.full().is_used(), reach.hits),
            held(groups.window().is_used(), reach.hits - outside.min(reach.hits)),
            0,
        ]);
        reach
    }

    /// Whether a state at the boundary after `blocks` blocks is cached. `true` if the model has no states.
    pub(crate) fn keeps_state(
        &self,
        keys: &[BlockKey],
        salt: &CacheSalt,
        tokens: &[u32],
        blocks: usize,
    ) -> bool {
        let prefix = PrefixBlocks { keys, salt, tokens, block_tokens: self.layout.block_tokens() };
        let last = blocks.checked_sub(1);
        !self.layout.groups().state().is_used()
            || last.is_some_and(|last| prefix.find(self.pools.state(), last).is_some())
    }

    /// How many of the blocks that a sequence continuing at `reach.hits` shares are free.
    fn free_among(&self, prefix: &PrefixBlocks<'_>, reach: &CachedReach) -> PerGroup<usize> {
        let (groups, hits) = (self.layout.groups(), reach.hits);
        let free =
            |pool: &BlockPool, at: usize| prefix.find(pool, at).is_some_and(|block| pool.is_free(block));
        let count = |pool: &BlockPool, from: usize| (from..hits).filter(|&at| free(pool, at)).count();
        let full = match reach.full == hits {
            true => *reach.free.full(),
            false => count(self.pools.full(), 0),
        };
        let outside = groups.window().blocks_outside(hits * self.layout.block_tokens());
        let state = hits.checked_sub(1).is_some_and(|last| free(self.pools.state(), last));
        PerGroup::new([full, count(self.pools.window(), outside), usize::from(state)])
    }

    /// Shares the blocks that a sequence finds for its first `hits` blocks. `relies` says, by index in the table,
    /// whether the sequence is another than the one that computed the block.
    pub(crate) fn take_hits(
        &mut self,
        prefix: &PrefixBlocks<'_>,
        hits: usize,
        tables: &mut HeldBlocks,
        relies: impl Fn(usize) -> bool,
    ) {
        let groups = *self.layout.groups();
        let outside = groups.window().blocks_outside(hits * self.layout.block_tokens()).min(hits);
        let (full, window, state) = self.pools.each_mut();
        let (full_table, window_table, _) = tables.ids.each_mut();
        let share = |pool: &mut BlockPool, at: usize| {
            let block = prefix.find(pool, at)?;
            pool.share(block, relies(at));
            Some(block)
        };
        if groups.full().is_used() {
            full_table.extend((0..hits).map_while(|at| share(full, at)));
        }
        if groups.window().is_used() {
            window_table.extend((0..outside).map(|_| FREED));
            window_table.extend((outside..hits).map_while(|at| share(window, at)));
            tables.outside = outside;
        }
        if groups.state().is_used() {
            tables.source = hits.checked_sub(1).and_then(|last| share(state, last));
        }
    }

    /// The blocks and slots for a chunk that ends at `end`.
    pub(crate) fn view<'a>(
        &self,
        tables: &'a HeldBlocks,
        end: usize,
        copy: Option<StateCopy>,
    ) -> Option<BlockTables<'a>> {
        let blocks = self.layout.blocks_for(end);
        let states = match (self.layout.groups().state().is_used(), &tables.ids.state()[..]) {
            (false, _) => None,
            (true, &[first, .., own]) => Some(StateSlots { from: tables.source.unwrap_or(first), own, copy }),
            (true, &[own]) => Some(StateSlots { from: tables.source.unwrap_or(own), own, copy }),
            (true, &[]) => return None,
        };
        Some(BlockTables {
            full: tables.ids.full().get(..*blocks.full())?,
            window: tables.ids.window().get(..*blocks.window())?,
            states,
        })
    }

    /// Records that a chunk of a sequence was computed, up to `computed`: releases the blocks before the window of the
    /// next position, the state that was read, and the cached state that the sequence began with. The window's blocks
    /// stay findable if `needed` says so. Returns the number of blocks released in each group.
    pub(crate) fn advance(
        &mut self,
        tables: &mut HeldBlocks,
        computed: usize,
        needed: impl Fn(usize) -> bool,
    ) -> PerGroup<usize> {
        let before = tables.held();
        let blocks = self.layout.full_blocks(computed);
        let outside = self.layout.groups().window().blocks_outside(computed);
        let (_, window, state) = self.pools.each_mut();
        let (_, window_table, state_table) = tables.ids.each_mut();
        let outside = outside.min(window_table.len());
        for at in tables.outside..outside {
            let Some(entry) = window_table.get_mut(at) else { break };
            let block = std::mem::replace(entry, FREED);
            window.release(block);
            if !needed(at) {
                window.drop_outside(block);
            }
        }
        tables.outside = outside.max(tables.outside);
        if state_table.len() > 1 {
            state.release(state_table.remove(0));
        }
        if let Some(source) = tables.source.take() {
            state.release(source);
        }
        if !state_table.is_empty() {
            tables.state_blocks = blocks;
        }
        let mut released = tables.held();
        for (released, before) in released.iter_mut().zip(before.iter()) {
            *released = before - *released;
        }
        released
    }

    /// Releases the slot for the state after a chunk that does not count. Returns the number of blocks released in each
    /// group.
    pub(crate) fn stay(&mut self, tables: &mut HeldBlocks) -> PerGroup<usize> {
        let (_, _, table) = tables.ids.each_mut();
        let extra = table.len().saturating_sub(1);
        table.drain(1.min(table.len())..).for_each(|slot| self.pools.each_mut().2.release(slot));
        PerGroup::new([0, 0, extra])
    }

    /// Removes a holder from the blocks of every table, tail first, and empties the tables. With `keep`, the blocks
    /// stay findable. Without it those from index `own` on do not, unless others have built on them.
    pub(crate) fn release(&mut self, tables: &mut HeldBlocks, own: usize, keep: bool) {
        let outside = tables.freed();
        let source = tables.source.take();
        for ((pool, table), &outside) in self.pools.iter_mut().zip(tables.ids.iter()).zip(outside.iter()) {
            let held = table.get(outside..).unwrap_or(&[]);
            held.iter().rev().for_each(|&block| pool.release(block));
            if !keep {
                // From the end, so that the first blocks are at the front of the free list and are reused first.
                let own = table.get(own.max(outside)..).unwrap_or(&[]);
                own.iter().rev().for_each(|&block| pool.take_back(block));
            }
        }
        if let Some(source) = source {
            self.pools.each_mut().2.release(source);
        }
        tables.ids.iter_mut().for_each(Vec::clear);
        (tables.outside, tables.state_blocks) = (0, 0);
    }

    /// Makes the computed block at index `at` of every table findable, and pins it if `pin` has a wish. `reserved`
    /// counts each group's reserved pins of the tenant, and falls by those that are used.
    pub(crate) fn publish(
        &mut self,
        (tables, at): (&HeldBlocks, usize),
        prefix: &CachedPrefix,
        (pin, tenant): (PerGroup<Option<PinWish>>, u64),
        reserved: &mut PerGroup<usize>,
    ) {
        let (full, window, _) = self.pools.each_mut();
        let (full_reserved, window_reserved, _) = reserved.each_mut();
        let groups = [
            (full, tables.ids.full(), full_reserved, pin.full()),
            (window, tables.ids.window(), window_reserved, pin.window()),
        ];
        for (pool, table, reserved, pin) in groups {
            let Some(&block) = table.get(at).filter(|&&block| block != FREED) else { continue };
            let block = pool.publish(block, prefix);
            if let Some(wish) = *pin
                && pool.pin(block, wish, tenant, *reserved > 0)
            {
                *reserved -= 1;
            }
        }
    }

    /// Makes a copy of a state findable, and pins it if there is a wish. Releases its slot.
    pub(crate) fn publish_state(
        &mut self,
        slot: u32,
        prefix: &CachedPrefix,
        (pin, tenant): (Option<PinWish>, u64),
    ) {
        let pool = self.pools.each_mut().2;
        let found = pool.publish(slot, prefix);
        if let Some(wish) = pin {
            pool.pin(found, wish, tenant, false);
        }
        pool.release(slot);
    }

    /// Makes the state in a sequence's own slot findable. The sequence still holds it.
    pub(crate) fn publish_own_state(&mut self, tables: &HeldBlocks, prefix: &CachedPrefix) {
        if let Some(&slot) = tables.ids.state().first() {
            self.pools.each_mut().2.publish(slot, prefix);
        }
    }

    /// The boundary, in blocks, of the state in a sequence's own slot. `None` if it has none.
    pub(crate) fn own_state(&self, tables: &HeldBlocks) -> Option<usize> {
        (tables.state_blocks > 0 && !tables.ids.state().is_empty()).then_some(tables.state_blocks)
    }

    /// Releases the slot of a copy that was not made.
    pub(crate) fn drop_copy(&mut self, copy: Option<StateCopy>) {
        if let Some(copy) = copy {
            self.pools.each_mut().2.release(copy.slot);
        }
    }

    /// Pins the cached block at index `at` of every table.
    pub(crate) fn pin(
        &mut self,
        tables: &HeldBlocks,
        at: usize,
        pin: PerGroup<Option<PinWish>>,
        tenant: u64,
    ) {
        for ((pool, table), wish) in self.pools.iter_mut().zip(tables.ids.iter()).zip(pin.iter()).take(2) {
            if let (Some(&block), Some(wish)) = (table.get(at).filter(|&&block| block != FREED), *wish) {
                pool.pin(block, wish, tenant, false);
            }
        }
    }

    /// Pins the cached state that a sequence continues from.
    pub(crate) fn pin_source(&mut self, tables: &HeldBlocks, wish: PinWish, tenant: u64) {
        if let Some(source) = tables.source {
            self.pools.each_mut().2.pin(source, wish, tenant, false);
        }
    }

    /// Reserves a pin for a tenant in the layers that keep every position, or in those with a window if no layer does.
    /// Returns `false` if a limit is reached. Other windows and states are pinned without a reservation, because only
    /// those near a pin's end are kept at all.
    pub(crate) fn reserve_pin(&mut self, tenant: u64) -> bool {
        let (full, window) = (self.layout.groups().full().is_used(), self.layout.groups().window().is_used());
        let (full_pool, window_pool, _) = self.pools.each_mut();
        match (full, window) {
            (true, _) => full_pool.pins().reserve(tenant),
            (false, true) => window_pool.pins().reserve(tenant),
            (false, false) => true,
        }
    }

    /// Releases all pins that a call holds.
    pub(crate) fn release_pins_of(&mut self, owner: RequestId) {
        self.pools.iter_mut().for_each(|pool| pool.release_pins_of(owner));
    }

    /// Releases reserved pins of a tenant.
    pub(crate) fn release_pins(&mut self, tenant: u64, reserved: &PerGroup<usize>) {
        for (pool, &reserved) in self.pools.iter_mut().zip(reserved.iter()) {
            pool.pins().release(tenant, reserved);
        }
    }
}
