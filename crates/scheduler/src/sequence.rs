//! One sequence: its tokens, how many of them are computed, and its blocks. Also the [`Slab`] that stores all
//! sequences. A sequence knows nothing of other sequences.

use std::sync::Arc;

use headrace_domain::{BlockKey, CachePin, CacheSalt, HeldPrefix, PrefixKeys};
use headrace_kv_layout::{KvLayout, PerGroup};

use crate::boundaries::KeptBoundaries;
use crate::kv_groups::HeldBlocks;
use crate::nearest::chain_content;
use crate::pins::PinnedBlocks;

/// Most generated tokens that are computed in one step as if they were one.
const MOST_AT_ONCE: usize = 64;

/// The id of a living sequence. A later sequence in the same slot has another id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId {
    index: u32,
    generation: u32,
}

impl SeqId {
    /// Index of the slot: small, and unique among living sequences. For tables kept beside the scheduler's own.
    pub const fn slot(self) -> usize {
        self.index as usize
    }
}

/// The priority class of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Class {
    /// Runs only if no other work waits, and yields within one step.
    Idle,
    /// The default.
    #[default]
    Normal,
}

impl Class {
    /// The classes in the order in which they are served.
    pub(crate) const SERVED: [Self; 2] = [Self::Normal, Self::Idle];

    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

/// A request to compute a sequence.
#[derive(Debug, Clone)]
pub struct SequenceSpec {
    /// The prompt's token ids, at least one.
    pub prompt: Arc<[u32]>,
    /// Upper bound on the tokens that will be appended.
    pub max_new: u32,
    /// Separates the prefix caches of different tenants.
    pub salt: CacheSalt,
    /// The keys of the prompt's blocks, if they are known already. Keys of another prompt or salt are ignored.
    pub keys: Option<PrefixKeys>,
    /// The tenant to charge.
    pub tenant: u64,
    /// The tenant's share relative to others; 0 counts as 1.
    pub weight: u32,
    /// The priority class.
    pub class: Class,
    /// Deadline of the first token, in the caller's nanoseconds. A sequence that cannot meet it is refused, and one
    /// that has not started by then is dropped. In a group it applies to the first sequence.
    pub start_deadline_ns: Option<u64>,
    /// Whether the first sequence of this spec needs the logits of every prompt position. Such a sequence takes nothing
    /// from the prefix cache, because cached blocks have no logits.
    pub score_prompt: bool,
    /// Prefixes of the prompt to pin in the cache.
    pub pins: Arc<[CachePin]>,
    /// The prefix of the prompt to pin until its call releases it ([`crate::Scheduler::release_pins`]).
    pub held: Option<HeldPrefix>,
    /// Whether the model computes the sequence as a long context. The scheduler only passes it on. Keys and values differ,
    /// so the salt of such a sequence must be another one.
    pub long_context: bool,
}

impl SequenceSpec {
    /// Creates a spec with defaults: no known keys, weight 1, normal class, no deadline, no scoring, no pins and nothing
    /// held.
    pub fn new(tenant: u64, salt: CacheSalt, prompt: impl Into<Arc<[u32]>>, max_new: u32) -> Self {
        Self {
            prompt: prompt.into(),
            max_new,
            salt,
            keys: None,
            tenant,
            weight: 1,
            class: Class::default(),
            start_deadline_ns: None,
            score_prompt: false,
            pins: Arc::default(),
            held: None,
            long_context: false,
        }
    }
}

/// The list that a sequence is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// In its tenant's queue.
    Waiting,
    /// Out of the queue until that sequence has computed their shared prefix.
    Deferred(SeqId),
    /// Running: holds blocks.
    Running,
    /// Paused, without blocks and in no list.
    Parked,
}

#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) prompt: Arc<[u32]>,
    /// Prompt and output. Empty until the sequence is first admitted, so that a long queue costs no copies.
    tokens: Vec<u32>,
    /// The keys of the prompt's blocks, until they are moved into `keys`.
    given_keys: Option<PrefixKeys>,
    pub(crate) max_new: u32,
    pub(crate) salt: CacheSalt,
    pub(crate) tenant: u64,
    pub(crate) class: Class,
    pub(crate) deadline: Option<u64>,
    pub(crate) scoring: bool,
    pub(crate) long_context: bool,
    /// End of the prompt positions whose logits were returned, so that a recompute does not ask for them again.
    pub(crate) scored: usize,
    pub(crate) state: State,
    /// Whether it is paused, in [`State::Running`] or [`State::Parked`].
    pub(crate) paused: bool,
    /// Number of tokens whose keys and values are stored.
    pub(crate) computed: usize,
    /// The blocks that it holds.
    pub(crate) tables: HeldBlocks,
    /// Where other sequences are likely to continue from its prefix.
    pub(crate) boundaries: KeptBoundaries,
    /// Keys of the leading full blocks of `known()`, as many as were needed so far.
    pub(crate) keys: Vec<BlockKey>,
    /// Content hashes of the same blocks, chained without the salt, as many as were needed so far.
    pub(crate) contents: Vec<u64>,
    /// Blocks that its known tokens still need in each group: promised, not yet taken.
    pub(crate) promised: PerGroup<usize>,
    /// Tokens that it counts towards the queue's token bound while it waits.
    pub(crate) queued_tokens: u64,
    /// How often a later sequence started before it.
    pub(crate) bypassed: u32,
    /// Its admission number. The higher, the younger.
    pub(crate) admitted: u64,
    pub(crate) started: bool,
    /// Number of blocks found in the cache at its start. It computed the blocks after them itself.
    pub(crate) found: usize,
    /// The prefixes of its prompt to pin.
    pub(crate) pins: Arc<[CachePin]>,
    /// The prefix of its prompt that its call holds.
    pub(crate) held: Option<HeldPrefix>,
    /// The blocks reserved for those pins, and the blocks over the limit.
    pub(crate) pinned: PinnedBlocks,
    /// Blocks of each group that are reserved in the pin limits and not yet pinned.
    pub(crate) reserved: PerGroup<usize>,
    /// End of the block range that `reserved` is for.
    pub(crate) reserved_to: usize,
    /// Prompt tokens that its tenant is no longer charged for: found in the cache, or charged already.
    pub(crate) charged: usize,
    /// The sequences that wait for its prefix, and how many blocks of it each needs.
    pub(crate) followers: Vec<(SeqId, usize)>,
    /// Range of the known blocks that it announced as being computed: `[from, to)`.
    pub(crate) announced: (usize, usize),
}

impl Sequence {
    pub(crate) fn new(spec: &SequenceSpec, first: bool) -> Self {
        Self {
            prompt: Arc::clone(&spec.prompt),
            tokens: Vec::new(),
            given_keys: spec.keys.clone().filter(|keys| keys.are_of(&spec.salt, &spec.prompt)),
            max_new: spec.max_new,
            salt: spec.salt,
            tenant: spec.tenant,
            class: spec.class,
            // A group counts as started when its first sequence has started.
            deadline: spec.start_deadline_ns.filter(|_| first),
            scoring: spec.score_prompt && first,
            long_context: spec.long_context,
            scored: 0,
            state: State::Waiting,
            paused: false,
            computed: 0,
            tables: HeldBlocks::default(),
            boundaries: KeptBoundaries::default(),
            keys: Vec::new(),
            contents: Vec::new(),
            promised: PerGroup::repeat(0),
            // The other sequences of a group take the first one's prefix from the cache.
            queued_tokens: if first { spec.prompt.len() as u64 } else { 1 },
            bypassed: 0,
            admitted: 0,
            started: false,
            found: 0,
            // The other sequences of a group find the blocks that the first one pins.
            pins: if first { Arc::clone(&spec.pins) } else { Arc::default() },
            held: spec.held.filter(|_| first),
            pinned: PinnedBlocks::default(),
            reserved: PerGroup::repeat(0),
            reserved_to: 0,
            charged: 0,
            followers: Vec::new(),
            announced: (0, 0),
        }
    }

    /// Every token known so far. All of them are to be computed.
    pub(crate) fn known(&self) -> &[u32] {
        if self.tokens.is_empty() { &self.prompt } else { &self.tokens }
    }

    pub(crate) fn append(&mut self, token: u32) {
        self.own_tokens();
        self.tokens.push(token);
    }

    /// Copies the prompt into `tokens`, on the first call only.
    pub(crate) fn own_tokens(&mut self) {
        if self.tokens.is_empty() {
            // Reserves space for a few more tokens, not for `max_new`, which may be huge and stay unused.
            self.tokens.reserve(self.prompt.len() + 64);
            self.tokens.extend_from_slice(&self.prompt);
        }
    }

    /// For tests of the invariants: overwrites the leading tokens with the prompt's.
    #[cfg(test)]
    pub(crate) fn replace_tokens(&mut self) {
        let prompt = std::sync::Arc::clone(&self.prompt);
        self.tokens.iter_mut().zip(prompt.iter()).for_each(|(own, other)| *own = *other);
    }

    pub(crate) fn remaining(&self) -> usize {
        self.known().len().saturating_sub(self.computed)
    }

    /// Whether it is idle work, computed only if no other work waits.
    pub(crate) fn is_idle_work(&self) -> bool {
        self.class == Class::Idle
    }

    /// Whether it is not paused and continues from its latest generated tokens: one, or a few that became known
    /// together.
    pub(crate) fn decodes(&self) -> bool {
        !self.paused && self.only_decode_left()
    }

    /// Whether it is not paused and has more to compute than recently generated tokens.
    pub(crate) fn prefills(&self) -> bool {
        !self.paused && self.remaining() > 0 && !self.only_decode_left()
    }

    /// Whether only recently generated tokens are left to compute.
    pub(crate) fn only_decode_left(&self) -> bool {
        let few = self.computed >= self.prompt.len() && self.remaining() <= MOST_AT_ONCE;
        self.remaining() == 1 || (few && self.remaining() > 0)
    }

    /// Whether a chunk that starts at `start` covers prompt positions whose logits are still needed. All but the last
    /// position predict a prompt token.
    pub(crate) fn scores_at(&self, start: usize) -> bool {
        let upto = self.prompt.len().saturating_sub(1);
        self.scoring && self.scored < upto && start < upto
    }

    /// Tokens generated so far.
    pub(crate) fn generated(&self) -> usize {
        self.known().len() - self.prompt.len()
    }

    /// Computes keys until at least the first `blocks` full blocks have one.
    pub(crate) fn ensure_keys(&mut self, blocks: usize, layout: &KvLayout) {
        if let Some(given) = self.given_keys.take_if(|_| blocks > 0) {
            self.keys.clear();
            self.keys.extend_from_slice(given.keys());
        }
        while self.keys.len() < blocks {
            let at = self.keys.len() * layout.block_tokens();
            let Some(tokens) = self.known().get(at..at + layout.block_tokens()) else { return };
            let key = BlockKey::chain(&self.salt, self.keys.last(), tokens);
            self.keys.push(key);
        }
    }

    /// Computes content hashes, without the salt, until at least the first `blocks` full blocks have one.
    pub(crate) fn ensure_contents(&mut self, blocks: usize, layout: &KvLayout) {
        while self.contents.len() < blocks {
            let at = self.contents.len() * layout.block_tokens();
            let Some(tokens) = self.known().get(at..at + layout.block_tokens()) else { return };
            let content = chain_content(self.contents.last().copied(), tokens);
            self.contents.push(content);
        }
    }
}

/// All living sequences.
#[derive(Debug, Default)]
pub(crate) struct Slab {
    slots: Vec<(u32, Option<Sequence>)>,
    vacant: Vec<u32>,
}

impl Slab {
    pub(crate) fn insert(&mut self, sequence: Sequence) -> SeqId {
        if let Some(index) = self.vacant.pop()
            && let Some(slot) = self.slots.get_mut(index as usize)
        {
            slot.1 = Some(sequence);
            return SeqId { index, generation: slot.0 };
        }
        // The queue's bound keeps this far below 2^32.
        let index = self.slots.len() as u32;
        self.slots.push((0, Some(sequence)));
        SeqId { index, generation: 0 }
    }

    pub(crate) fn get(&self, id: SeqId) -> Option<&Sequence> {
        let (generation, sequence) = self.slots.get(id.index as usize)?;
        if *generation == id.generation { sequence.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, id: SeqId) -> Option<&mut Sequence> {
        let (generation, sequence) = self.slots.get_mut(id.index as usize)?;
        if *generation == id.generation { sequence.as_mut() } else { None }
    }

    pub(crate) fn remove(&mut self, id: SeqId) -> Option<Sequence> {
        let (generation, sequence) = self.slots.get_mut(id.index as usize)?;
        if *generation != id.generation {
            return None;
        }
        let taken = sequence.take()?;
        *generation = generation.wrapping_add(1);
        self.vacant.push(id.index);
        Some(taken)
    }

    /// Number of slots, vacant ones included. Each id's slot is below it.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.slots.iter_mut().filter_map(|(_, sequence)| sequence.as_mut())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SeqId, &Sequence)> {
        self.slots.iter().enumerate().filter_map(|(index, (generation, sequence))| {
            let id = SeqId { index: index as u32, generation: *generation };
            sequence.as_ref().map(|s| (id, s))
        })
    }
}
