//! The KV blocks and the prefix cache as sequences see them: the blocks they hold, the blocks they find, and the blocks
//! they announce before computing them. Knows nothing of budgets or turns.

use headrace_domain::{CacheMiss, PrefixKeys};
use headrace_kv_layout::{KvLayout, PerGroup};

use crate::config::SchedulerConfig;
use crate::kv_groups::KvGroups;
use crate::miss;
use crate::nearest::CachedPrefix;
use crate::pins::{PinnedBlocks, life_of, rank};
use crate::sequence::{SeqId, Sequence, Slab};
use crate::tables::ByKey;

/// All blocks with their cached prefixes, and the announcements of blocks that are about to be computed.
#[derive(Debug)]
pub(crate) struct Prefixes {
    groups: KvGroups,
    /// Cold blocks that are about to be computed, each with the running sequence that announced it.
    announced: ByKey<SeqId>,
    /// Whether the prefix cache is on.
    enabled: bool,
    /// A cold prefix of at least this many tokens is waited for if another sequence computes it.
    dedup_tokens: usize,
}

/// The part of its own prefix that a waiting sequence finds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Found {
    /// Leading full blocks that every group has in the cache.
    pub(crate) hits: usize,
    /// How many of them no sequence holds, in each group. Taking them lowers the number of free blocks.
    pub(crate) hits_free: PerGroup<usize>,
    /// The sequence that is computing the blocks after the hits, and the end of the blocks that both share.
    pub(crate) leader: Option<(SeqId, usize)>,
}

impl Prefixes {
    /// Creates the blocks of all groups, all empty.
    pub(crate) fn new(config: &SchedulerConfig, layout: KvLayout) -> Self {
        Self {
            groups: KvGroups::new(config, layout),
            announced: ByKey::default(),
            enabled: config.prefix_cache,
            dedup_tokens: config.dedup_tokens,
        }
    }

    /// The cache groups: their sizes, the free blocks, and their contents.
    pub(crate) const fn groups(&self) -> &KvGroups {
        &self.groups
    }

    /// Advances the pools' clocks.
    pub(crate) fn set_now(&mut self, now_ns: u64) {
        self.groups.set_now(now_ns);
    }

    /// Number of leading prompt tokens in the cache. Counts whole blocks, and never the last token.
    pub(crate) fn cached_tokens(&self, keys: &PrefixKeys) -> usize {
        let (salt, ids) = (keys.salt(), keys.ids());
        let layout = self.groups.layout();
        let block_tokens = layout.block_tokens();
        let blocks = keys.keys().iter().zip(ids.chunks_exact(block_tokens));
        let blocks = blocks.take(layout.cacheable_blocks(ids.len()));
        let found =
            blocks.take_while(|(key, tokens)| self.groups.lookup(key, salt, tokens).is_some()).count();
        found * block_tokens
    }

    /// Number of a sequence's known blocks that it may look up.
    fn usable(&self, sequence: &Sequence) -> usize {
        if self.enabled && !sequence.scoring {
            self.groups.layout().cacheable_blocks(sequence.known().len())
        } else {
            0
        }
    }

    /// The cached blocks of a waiting sequence's own prefix, from the first one on. Ends at the first one that a group
    /// lacks.
    fn hits<'a>(&'a self, sequence: &'a Sequence, usable: usize) -> impl Iterator<Item = PerGroup<u32>> + 'a {
        let block_tokens = self.groups.layout().block_tokens();
        let blocks = sequence.keys.iter().zip(sequence.known().chunks_exact(block_tokens)).take(usable);
        blocks.map_while(|(key, tokens)| self.groups.lookup(key, &sequence.salt, tokens))
    }

    /// Looks up a waiting sequence's prefix. Takes nothing.
    pub(crate) fn find(&self, id: SeqId, sequences: &mut Slab) -> Found {
        let mut found = Found::default();
        let Some(sequence) = sequences.get_mut(id) else { return found };
        let usable = self.usable(sequence);
        let layout = self.groups.layout();
        sequence.ensure_keys(usable, layout);
        for blocks in self.hits(sequence, usable) {
            found.hits += 1;
            self.groups.count_free(&blocks, &mut found.hits_free);
        }
        let cold = sequence.keys.get(found.hits..usable).unwrap_or(&[]);
        if let Some(&leader) = cold.first().and_then(|key| self.announced.get(key)) {
            let shared = cold.iter().take_while(|key| self.announced.get(key) == Some(&leader)).count();
            if leader != id && shared * layout.block_tokens() >= self.dedup_tokens {
                found.leader = Some((leader, found.hits + shared));
            }
        }
        // Idle work stops while other work waits, so normal work would wait for it for ever.
        let class = sequence.class;
        found.leader =
            found.leader.filter(|&(leader, _)| sequences.get(leader).is_some_and(|l| l.class >= class));
        found
    }

    /// Takes the cached blocks of a waiting sequence's prefix, and counts them as computed. On the first call for a
    /// sequence, also returns why no more blocks were found.
    pub(crate) fn take_found(&mut self, sequence: &mut Sequence) -> Option<CacheMiss> {
        let first = !sequence.started;
        let usable = self.usable(sequence);
        sequence.ensure_keys(usable, self.groups.layout());
        let mut tables = std::mem::take(&mut sequence.tables);
        for blocks in self.hits(sequence, usable) {
            for (table, &block) in tables.iter_mut().zip(blocks.iter()) {
                table.push(block);
            }
        }
        let hits = tables.first().len();
        let miss = if first { miss::explain(sequence, hits, self.enabled, &self.groups) } else { None };
        // Blocks that the sequence computed itself before its preemption are still its own.
        self.groups.share(&tables, |at| first || at < sequence.found);
        if first {
            sequence.found = hits;
        }
        sequence.computed = hits * self.groups.layout().block_tokens();
        sequence.tables = tables;
        if first {
            self.reserve(sequence);
        }
        miss
    }

    /// Pins the blocks found for a sequence, and reserves pins for the blocks that it will compute.
    fn reserve(&mut self, sequence: &mut Sequence) {
        if !self.enabled || sequence.pins.is_empty() {
            return;
        }
        let (tenant, layout) = (sequence.tenant, *self.groups.layout());
        for at in 0..sequence.found {
            if let Some(life) = life_of(&sequence.pins, at, &layout) {
                self.groups.pin(&sequence.tables, at, life, tenant);
            }
        }
        let mut pinned = PinnedBlocks::default();
        for at in sequence.found..layout.full_blocks(sequence.prompt.len()) {
            let Some(life) = life_of(&sequence.pins, at, &layout) else { break };
            match self.groups.reserve_pin(tenant) {
                true => pinned.blocks[rank(life)] += 1,
                false => pinned.beyond += 1,
            }
        }
        let reserved = pinned.blocks.iter().sum::<u32>() as usize;
        sequence.reserved = PerGroup::repeat(reserved);
        sequence.reserved_to = sequence.found + reserved;
        sequence.pinned = pinned;
    }

    /// Releases the pins that a leaving sequence had reserved for blocks that it never computed.
    pub(crate) fn leave(&mut self, sequence: &Sequence) {
        self.groups.release_pins(sequence.tenant, &sequence.reserved);
    }

    /// Gives a running sequence this many more free blocks in each group.
    pub(crate) fn take(&mut self, sequence: &mut Sequence, blocks: &PerGroup<usize>) {
        self.groups.take(blocks, &mut sequence.tables);
    }

    /// Takes back everything that a sequence holds or has announced, tail first. With `keep`, the blocks that it
    /// computed itself stay findable. Without it they do not, unless others have built on them.
    pub(crate) fn give_back(&mut self, id: SeqId, sequence: &mut Sequence, keep: bool) {
        sequence.computed = 0;
        self.groups.release(&sequence.tables, sequence.found, keep);
        sequence.tables.iter_mut().for_each(Vec::clear);
        self.withdraw(id, sequence, usize::MAX);
    }

    /// Announces the cold blocks of its known tokens that a running sequence will compute.
    pub(crate) fn announce(&mut self, id: SeqId, sequences: &mut Slab) {
        let Some(sequence) = sequences.get_mut(id).filter(|_| self.enabled) else { return };
        let layout = self.groups.layout();
        let (from, to) = (layout.full_blocks(sequence.computed), layout.full_blocks(sequence.known().len()));
        sequence.ensure_keys(to, layout);
        sequence.announced = (from, to.max(from));
        let Some(sequence) = sequences.get(id) else { return };
        for key in sequence.keys.get(from..to).unwrap_or(&[]) {
            let holder = self.announced.entry(*key).or_insert(id);
            if sequences.get(*holder).is_none_or(|other| other.class < sequence.class) {
                *holder = id;
            }
        }
    }

    /// Withdraws a sequence's announcements up to block `to`: those blocks are computed, or never will be.
    pub(crate) fn withdraw(&mut self, id: SeqId, sequence: &mut Sequence, to: usize) {
        let (from, end) = sequence.announced;
        let upto = to.clamp(from, end);
        for key in sequence.keys.get(from..upto).unwrap_or(&[]) {
            if self.announced.get(key) == Some(&id) {
                self.announced.remove(key);
            }
        }
        sequence.announced = (upto, end);
    }

    /// Makes the blocks findable that a running sequence has filled since it had computed `before` tokens. Returns the
    /// number of its computed blocks if there are new ones among them.
    pub(crate) fn publish(&mut self, id: SeqId, sequence: &mut Sequence, before: usize) -> Option<usize> {
        let layout = *self.groups.layout();
        let (from, to) = (layout.full_blocks(before), layout.full_blocks(sequence.computed));
        if from == to || !self.enabled {
            return None;
        }
        sequence.ensure_keys(to, &layout);
        sequence.ensure_contents(to, &layout);
        for at in from..to {
            let tokens =
                sequence.known().get(at * layout.block_tokens()..).and_then(|rest| rest.first_chunk());
            if let (Some(&key), Some(&content), Some(&tokens)) =
                (sequence.keys.get(at), sequence.contents.get(at), tokens)
            {
                let parent = at.checked_sub(1).and_then(|before| sequence.keys.get(before)).copied();
                let prefix = CachedPrefix { key, salt: sequence.salt, tokens, parent, content };
                let pin = if at < sequence.reserved_to { life_of(&sequence.pins, at, &layout) } else { None };
                let Sequence { tables, tenant, reserved, .. } = &mut *sequence;
                self.groups.publish((tables, at), &prefix, (pin, *tenant), reserved);
            }
        }
        self.withdraw(id, sequence, to);
        Some(to)
    }

    /// For tests: the announced blocks, each with its sequence.
    pub(crate) fn audit(&self) -> &ByKey<SeqId> {
        &self.announced
    }
}
