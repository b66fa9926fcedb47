//! The KV blocks and the prefix cache as sequences see them: which blocks they hold, what they find, and what they announce
//! that they are about to compute. Knows nothing of budgets or turns.

use headrace_domain::{BLOCK_TOKENS, CacheMiss, PrefixKeys};

use crate::blocks::BlockPool;
use crate::config::SchedulerConfig;
use crate::miss;
use crate::nearest::CachedPrefix;
use crate::pins::{Pinned, Pins, life_of, rank};
use crate::sequence::{SeqId, Sequence, Slab, usable_blocks};
use crate::tables::ByKey;

/// All blocks, which of them hold what prefix, and who is about to compute which.
#[derive(Debug)]
pub(crate) struct Prefixes {
    pool: BlockPool,
    /// Cold blocks that a running sequence is about to compute, and which.
    announced: ByKey<SeqId>,
    /// Whether blocks are kept for later sequences.
    kept: bool,
    /// A cold prefix this long is waited for where another computes it.
    dedup_tokens: usize,
}

/// What a waiting sequence finds of its own prefix.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Found {
    /// Full blocks in the cache.
    pub(crate) hits: usize,
    /// Of those, the ones that nobody holds: taking them lowers the number of free blocks.
    pub(crate) hits_free: usize,
    /// Who computes the blocks after the hits right now, and up to which block.
    pub(crate) leader: Option<(SeqId, usize)>,
}

impl Prefixes {
    /// So many blocks, all empty.
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

    /// All blocks: how many, which are free, what they hold.
    pub(crate) fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// It is so late now.
    pub(crate) fn set_now(&mut self, now_ns: u64) {
        self.pool.set_now(now_ns);
    }

    /// How many tokens of a prompt, from the first on, lie in the cache: whole blocks, and never the last token.
    pub(crate) fn cached_tokens(&self, keys: &PrefixKeys) -> usize {
        let (salt, ids) = (keys.salt(), keys.ids());
        let blocks = keys.keys().iter().zip(ids.chunks_exact(BLOCK_TOKENS)).take(usable_blocks(ids.len()));
        let found = blocks.take_while(|(key, tokens)| self.pool.lookup(key, salt, tokens).is_some()).count();
        found * BLOCK_TOKENS
    }

    /// Blocks of a sequence's known tokens that it may look for.
    fn usable(&self, sequence: &Sequence) -> usize {
        if self.kept && !sequence.scoring { usable_blocks(sequence.known().len()) } else { 0 }
    }

    /// The cached blocks of its own prefix that a waiting sequence finds, from the first on.
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
        // Idle work stands still while anybody waits: waiting for it would be for ever.
        let class = sequence.class;
        found.leader =
            found.leader.filter(|&(leader, _)| sequences.get(leader).is_some_and(|l| l.class >= class));
        found
    }

    /// A waiting sequence takes what it finds of its prefix, and counts it as computed. Where that is the first time, also
    /// why it did not find more.
    pub(crate) fn take_found(&mut self, sequence: &mut Sequence) -> Option<CacheMiss> {
        let first = !sequence.started;
        let usable = self.usable(sequence);
        sequence.ensure_keys(usable);
        let mut blocks = std::mem::take(&mut sequence.blocks);
        blocks.extend(self.hits(sequence, usable));
        let miss = if first { miss::explain(sequence, blocks.len(), self.kept, &self.pool) } else { None };
        for (at, &block) in blocks.iter().enumerate() {
            // What it computed itself before it was preempted is still its own.
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

    /// Keeps what a sequence found of what it wishes to be kept, and speaks for the places of what it will compute of it.
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

    /// A sequence is gone: what it spoke for and has not computed is nobody's.
    pub(crate) fn leave(&mut self, sequence: &Sequence) {
        self.pool.pins().release(sequence.tenant, sequence.reserved);
    }

    /// A running sequence takes so many blocks more, of those that are free.
    pub(crate) fn take(&mut self, sequence: &mut Sequence, blocks: usize) {
        sequence.blocks.extend((0..blocks).map_while(|_| self.pool.take()));
    }

    /// A sequence gives back everything that it holds or has announced, tail first. What it computed itself stays findable
    /// (`keep`), or does not unless others have built on it.
    pub(crate) fn give_back(&mut self, id: SeqId, sequence: &mut Sequence, keep: bool) {
        sequence.computed = 0;
        sequence.blocks.iter().rev().for_each(|&block| self.pool.release(block));
        if !keep {
            // From the end, so that those used up first stand first again.
            let own = sequence.blocks.get(sequence.found..).unwrap_or(&[]);
            own.iter().rev().for_each(|&block| self.pool.take_back(block));
        }
        sequence.blocks.clear();
        self.withdraw(id, sequence, usize::MAX);
    }

    /// Tells others which cold blocks of its known tokens a running sequence will compute.
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

    /// Takes back what a sequence announced up to block `to`: it is computed, or will not be.
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

    /// Makes the blocks findable that a running sequence has filled since it had computed `before` tokens. `Some`: so
    /// many of its blocks are computed now, and there are new ones among them.
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

    /// For tests: what is announced by whom.
    pub(crate) fn audit(&self) -> &ByKey<SeqId> {
        &self.announced
    }
}
