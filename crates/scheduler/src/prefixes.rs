//! The KV blocks and the prefix cache as sequences see them: the blocks they hold, the blocks they find, and the blocks
//! they announce before computing them. Knows nothing of budgets or turns.

use headrace_domain::{BLOCK_TOKENS, CacheMiss, PrefixKeys};

use crate::blocks::BlockPool;
use crate::config::SchedulerConfig;
use crate::miss;
use crate::nearest::CachedPrefix;
use crate::pins::{Pinned, Pins, life_of, rank};
use crate::sequence::{SeqId, Sequence, Slab, usable_blocks};
use crate::tables::ByKey;

/// All blocks with their cached prefixes, and the announcements of blocks that are about to be computed.
#[derive(Debug)]
pub(crate) struct Prefixes {
    pool: BlockPool,
    /// Cold blocks that are about to be computed, each with the running sequence that announced it.
    announced: ByKey<SeqId>,
    /// Whether the prefix cache is on.
    kept: bool,
    /// A cold prefix of at least this many tokens is waited for if another sequence computes it.
    dedup_tokens: usize,
}

/// The part of its own prefix that a waiting sequence finds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Found {
    /// Full blocks in the cache.
    pub(crate) hits: usize,
    /// Cached blocks that no sequence holds. Taking them lowers the number of free blocks.
    pub(crate) hits_free: usize,
    /// The sequence that is computing the blocks after the hits, and the end of the blocks that both share.
    pub(crate) leader: Option<(SeqId, usize)>,
}

impl Prefixes {
    /// Creates `blocks` blocks, all empty.
    pub(crate) fn new(config: &SchedulerConfig, blocks: usize) -> Self {
        Self {
            pool: BlockPool::new(
                blocks,
                config.prefix_lifetime_ns.unwrap_or(u64::MAX),
                Pins::new(config, blocks),
            ),
            announced: ByKey::default(),
            kept: config.prefix_cache,
            dedup_tokens: config.dedup_tokens,
        }
    }

    /// The block pool: its size, the free blocks, and their contents.
    pub(crate) fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Advances the pool's clock.
    pub(crate) fn set_now(&mut self, now_ns: u64) {
        self.pool.set_now(now_ns);
    }

    /// Number of leading prompt tokens in the cache. Counts whole blocks, and never the last token.
    pub(crate) fn cached_tokens(&self, keys: &PrefixKeys) -> usize {
        let (salt, ids) = (keys.salt(), keys.ids());
        let blocks = keys.keys().iter().zip(ids.chunks_exact(BLOCK_TOKENS)).take(usable_blocks(ids.len()));
        let found = blocks.take_while(|(key, tokens)| self.pool.lookup(key, salt, tokens).is_some()).count();
        found * BLOCK_TOKENS
    }

    /// Number of a sequence's known blocks that it may look up.
    fn usable(&self, sequence: &Sequence) -> usize {
        if self.kept && !sequence.scoring { usable_blocks(sequence.known().len()) } else { 0 }
    }

    /// The cached blocks of a waiting sequence's own prefix, from the first one on.
    fn hits<'a>(&'a self, sequence: &'a Sequence, usable: usize) -> impl Iterator<Item = u32> + 'a {
        let blocks = sequence.keys.iter().zip(sequence.known().chunks_exact(BLOCK_TOKENS)).take(usable);
        blocks.map_while(|(key, tokens)| self.pool.lookup(key, &sequence.salt, tokens))
    }

    /// Looks up a waiting sequence's prefix. Takes nothing.
    pub(crate) fn find(&self, id: SeqId, sequences: &mut Slab) -> Found {
        let mut found = Found::default();
        let Some(sequence) = sequences.get_mut(id) else { return found };
        let usable = self.usable(sequence);
        sequence.ensure_keys(usable);
        for block in self.hits(sequence, usable) {
            found.hits += 1;
            found.hits_free += usize::from(self.pool.is_free(block));
        }
        let cold = sequence.keys.get(found.hits..usable).unwrap_or(&[]);
        if let Some(&leader) = cold.first().and_then(|key| self.announced.get(key)) {
            let shared = cold.iter().take_while(|key| self.announced.get(key) == Some(&leader)).count();
            if leader != id && shared * BLOCK_TOKENS >= self.dedup_tokens {
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
        sequence.ensure_keys(usable);
        let mut blocks = std::mem::take(&mut sequence.blocks);
        blocks.extend(self.hits(sequence, usable));
        let miss = if first { miss::explain(sequence, blocks.len(), self.kept, &self.pool) } else { None };
        for (at, &block) in blocks.iter().enumerate() {
            // Blocks that the sequence computed itself before its preemption are still its own.
            self.pool.share(block, first || at < sequence.found);
        }
        if first {
            sequence.found = blocks.len();
        }
        sequence.computed = blocks.len() * BLOCK_TOKENS;
        sequence.blocks = blocks;
        if first {
            self.reserve(sequence);
        }
        miss
    }

    /// Pins the blocks found for a sequence, and reserves pins for the blocks that it will compute.
    fn reserve(&mut self, sequence: &mut Sequence) {
        if !self.kept || sequence.pins.is_empty() {
            return;
        }
        let tenant = sequence.tenant;
        for (at, &block) in sequence.blocks.iter().enumerate() {
            if let Some(life) = life_of(&sequence.pins, at) {
                self.pool.keep(block, life, tenant, false);
            }
        }
        let mut pinned = Pinned::default();
        for at in sequence.found..sequence.prompt.len() / BLOCK_TOKENS {
            let Some(life) = life_of(&sequence.pins, at) else { break };
            match self.pool.pins().reserve(tenant) {
                true => pinned.blocks[rank(life)] += 1,
                false => pinned.beyond += 1,
            }
        }
        sequence.reserved = pinned.blocks.iter().sum::<u32>() as usize;
        sequence.reserved_to = sequence.found + sequence.reserved;
        sequence.pinned = pinned;
    }

    /// Releases the pins that a leaving sequence had reserved for blocks that it never computed.
    pub(crate) fn leave(&mut self, sequence: &Sequence) {
        self.pool.pins().release(sequence.tenant, sequence.reserved);
    }

    /// Gives a running sequence `blocks` more free blocks.
    pub(crate) fn take(&mut self, sequence: &mut Sequence, blocks: usize) {
        sequence.blocks.extend((0..blocks).map_while(|_| self.pool.take()));
    }

    /// Takes back everything that a sequence holds or has announced, tail first. With `keep`, the blocks that it
    /// computed itself stay findable. Without it they do not, unless others have built on them.
    pub(crate) fn give_back(&mut self, id: SeqId, sequence: &mut Sequence, keep: bool) {
        sequence.computed = 0;
        sequence.blocks.iter().rev().for_each(|&block| self.pool.release(block));
        if !keep {
            // From the end, so that the first blocks are at the front of the free list and are reused first.
            let own = sequence.blocks.get(sequence.found..).unwrap_or(&[]);
            own.iter().rev().for_each(|&block| self.pool.take_back(block));
        }
        sequence.blocks.clear();
        self.withdraw(id, sequence, usize::MAX);
    }

    /// Announces the cold blocks of its known tokens that a running sequence will compute.
    pub(crate) fn announce(&mut self, id: SeqId, sequences: &mut Slab) {
        let Some(sequence) = sequences.get_mut(id).filter(|_| self.kept) else { return };
        let (from, to) = (sequence.computed / BLOCK_TOKENS, sequence.known().len() / BLOCK_TOKENS);
        sequence.ensure_keys(to);
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
        let (from, to) = (before / BLOCK_TOKENS, sequence.computed / BLOCK_TOKENS);
        if from == to || !self.kept {
            return None;
        }
        sequence.ensure_keys(to);
        sequence.ensure_contents(to);
        for at in from..to {
            let tokens = sequence.known().get(at * BLOCK_TOKENS..).and_then(|rest| rest.first_chunk());
            if let (Some(&block), Some(&key), Some(&content), Some(&tokens)) =
                (sequence.blocks.get(at), sequence.keys.get(at), sequence.contents.get(at), tokens)
            {
                let parent = at.checked_sub(1).and_then(|before| sequence.keys.get(before)).copied();
                let prefix = CachedPrefix { key, salt: sequence.salt, tokens, parent, content };
                let block = self.pool.publish(block, prefix);
                if at < sequence.reserved_to
                    && let Some(life) = life_of(&sequence.pins, at)
                {
                    let reserved = sequence.reserved > 0;
                    if self.pool.keep(block, life, sequence.tenant, reserved) {
                        sequence.reserved -= 1;
                    }
                }
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
