//! The prefix cache as sequences see it: what they find there, what they announce that they are about to compute, and
//! who waits for that instead of computing it twice. Knows nothing of budgets or turns.

use headrace_domain::{BLOCK_TOKENS, PrefixKeys};

use crate::blocks::CachedPrefix;
use crate::sequence::State;
use crate::{Scheduler, SeqId};

/// What a waiting sequence finds of its own prefix.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Prefix {
    /// Full blocks in the cache.
    pub(crate) hits: usize,
    /// Of those, the ones that nobody holds: taking them lowers the number of free blocks.
    pub(crate) hits_free: usize,
    /// Who computes the blocks after the hits right now, and up to which block.
    pub(crate) leader: Option<(SeqId, usize)>,
}

/// Full blocks of a prefix that may be taken from the cache: at least the last token is always computed, since its
/// logits are wanted.
pub const fn usable_blocks(tokens: usize) -> usize {
    tokens.saturating_sub(1) / BLOCK_TOKENS
}

impl Scheduler {
    /// How many tokens of a prompt, from the first on, lie in the prefix cache: whole blocks, and never the last token.
    pub fn cached_prefix(&self, keys: &PrefixKeys) -> usize {
        let (salt, ids) = (keys.salt(), keys.ids());
        let blocks = keys.keys().iter().zip(ids.chunks_exact(BLOCK_TOKENS)).take(usable_blocks(ids.len()));
        let found = blocks.take_while(|(key, tokens)| self.pool.lookup(key, salt, tokens).is_some()).count();
        found * BLOCK_TOKENS
    }

    /// Looks up a waiting sequence's prefix. With `hits_into`, also takes the hits' ids.
    pub(crate) fn find_prefix(&mut self, id: SeqId, mut hits_into: Option<&mut Vec<u32>>) -> Prefix {
        let mut found = Prefix::default();
        let Some(sequence) = self.sequences.get_mut(id) else { return found };
        if !self.config.prefix_cache || sequence.scoring {
            return found;
        }
        let usable = usable_blocks(sequence.known().len());
        sequence.ensure_keys(usable);
        for (key, tokens) in
            sequence.keys.iter().zip(sequence.known().chunks_exact(BLOCK_TOKENS)).take(usable)
        {
            let Some(block) = self.pool.lookup(key, &sequence.salt, tokens) else { break };
            found.hits += 1;
            found.hits_free += usize::from(self.pool.is_free(block));
            if let Some(blocks) = hits_into.as_deref_mut() {
                blocks.push(block);
            }
        }
        let cold = sequence.keys.get(found.hits..usable).unwrap_or(&[]);
        if let Some(&leader) = cold.first().and_then(|key| self.announced.get(key)) {
            let shared = cold.iter().take_while(|key| self.announced.get(key) == Some(&leader)).count();
            if leader != id && shared * BLOCK_TOKENS >= self.config.dedup_tokens {
                found.leader = Some((leader, found.hits + shared));
            }
        }
        // Idle work stands still while anybody waits: waiting for it would be for ever.
        let class = sequence.class;
        found.leader =
            found.leader.filter(|&(leader, _)| self.sequences.get(leader).is_some_and(|l| l.class >= class));
        found
    }

    /// Takes a sequence out of the queue until `leader` has computed the first `blocks` blocks, which both share.
    pub(crate) fn defer(&mut self, id: SeqId, leader: SeqId, blocks: usize) {
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        sequence.state = State::Deferred(leader);
        let (tenant, class, tokens) = (sequence.tenant, sequence.class, sequence.queued_tokens);
        self.queue.remove(tenant, class, id, tokens);
        self.deferred += 1;
        if let Some(leader) = self.sequences.get_mut(leader) {
            leader.followers.push((id, blocks));
        }
    }

    /// Puts those back at the head of their queues whose shared prefix is now computed, or whose leader is gone
    /// (`computed_blocks` = `usize::MAX`).
    pub(crate) fn wake_followers(&mut self, leader: SeqId, computed_blocks: usize) {
        let Some(sequence) = self.sequences.get_mut(leader) else { return };
        if sequence.followers.is_empty() {
            return;
        }
        let mut followers = std::mem::take(&mut sequence.followers);
        // From the back, so that whoever came first stands first again.
        for &(id, blocks) in followers.iter().rev() {
            if blocks > computed_blocks {
                continue;
            }
            if let Some(follower) = self.sequences.get_mut(id) {
                follower.state = State::Waiting;
                self.deferred -= 1;
                self.queue.push_front(follower.tenant, follower.class, id, follower.queued_tokens);
            }
        }
        followers.retain(|&(_, blocks)| blocks > computed_blocks);
        if let Some(sequence) = self.sequences.get_mut(leader) {
            sequence.followers = followers;
        }
    }

    /// Tells others which cold blocks of its known tokens this sequence, which has `from` blocks, will compute.
    pub(crate) fn announce(&mut self, id: SeqId, from: usize) {
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        if !self.config.prefix_cache {
            return;
        }
        let to = sequence.known().len() / BLOCK_TOKENS;
        sequence.ensure_keys(to);
        sequence.announced = (from, to.max(from));
        let Some(sequence) = self.sequences.get(id) else { return };
        for key in sequence.keys.get(from..to).unwrap_or(&[]) {
            let holder = self.announced.entry(*key).or_insert(id);
            if self.sequences.get(*holder).is_none_or(|other| other.class < sequence.class) {
                *holder = id;
            }
        }
    }

    /// Takes back what was announced up to block `to`: it is computed, or will not be.
    pub(crate) fn withdraw(&mut self, id: SeqId, to: usize) {
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        let (from, end) = sequence.announced;
        let upto = to.clamp(from, end);
        for key in sequence.keys.get(from..upto).unwrap_or(&[]) {
            if self.announced.get(key) == Some(&id) {
                self.announced.remove(key);
            }
        }
        sequence.announced = (upto, end);
    }

    /// Makes the full blocks between two computed counts findable.
    pub(crate) fn publish(&mut self, id: SeqId, before: usize, after: usize) {
        let (from, to) = (before / BLOCK_TOKENS, after / BLOCK_TOKENS);
        if from == to || !self.config.prefix_cache {
            return;
        }
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        sequence.ensure_keys(to);
        sequence.ensure_contents(to);
        for at in from..to {
            let tokens = sequence.known().get(at * BLOCK_TOKENS..).and_then(|rest| rest.first_chunk());
            if let (Some(&block), Some(&key), Some(&content), Some(&tokens)) =
                (sequence.blocks.get(at), sequence.keys.get(at), sequence.contents.get(at), tokens)
            {
                let parent = at.checked_sub(1).and_then(|before| sequence.keys.get(before)).copied();
                let prefix = CachedPrefix { key, salt: sequence.salt, tokens, parent, content };
                self.pool.publish(block, prefix);
            }
        }
        self.withdraw(id, to);
        self.wake_followers(id, to);
    }
}
