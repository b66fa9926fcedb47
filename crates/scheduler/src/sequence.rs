//! One sequence: what it consists of, how far it is computed, which blocks it holds; and where sequences are kept.
//! Knows nothing of other sequences.

use std::sync::Arc;

use headrace_domain::{BLOCK_TOKENS, BlockKey, CachePin, CacheSalt, PrefixKeys};

use crate::nearest::chain_content;
use crate::pins::Pinned;

/// Generated tokens that are computed in one step in the place of one.
const MOST_AT_ONCE: usize = 64;

/// Names a sequence for as long as it lives; a later sequence in the same slot has another name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId {
    index: u32,
    generation: u32,
}

impl SeqId {
    /// The slot: small, and unique among living sequences. For tables beside the scheduler's own.
    pub const fn slot(self) -> usize {
        self.index as usize
    }
}

/// How a sequence stands to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Class {
    /// Only when nothing else waits; gives way within a step.
    Idle,
    /// The usual.
    #[default]
    Normal,
}

impl Class {
    /// In the order in which they are served.
    pub(crate) const SERVED: [Self; 2] = [Self::Normal, Self::Idle];

    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

/// What is to be computed.
#[derive(Debug, Clone)]
pub struct SequenceSpec {
    /// The prompt's ids; at least one.
    pub prompt: Arc<[u32]>,
    /// Most tokens that will be appended.
    pub max_new: u32,
    /// Separates prefix caches.
    pub salt: CacheSalt,
    /// The keys of the prompt's blocks, where they are known already; those of another prompt or salt are passed over.
    pub keys: Option<PrefixKeys>,
    /// Whom to charge.
    pub tenant: u64,
    /// The tenant's share relative to others; 0 counts as 1.
    pub weight: u32,
    /// How it stands to others.
    pub class: Class,
    /// When its first token must be there, in the caller's nanoseconds: refused if that cannot be, and dropped if it
    /// has not started by then. In a group it binds the first sequence.
    pub start_deadline_ns: Option<u64>,
    /// Whether the first sequence of this spec needs the logits of every prompt position. Such a sequence takes
    /// nothing from the prefix cache: what is cached has no logits.
    pub score_prompt: bool,
    /// Prefixes of the prompt that are to be kept.
    pub pins: Arc<[CachePin]>,
}

impl SequenceSpec {
    /// A prompt of a tenant's, and everything else as usual: its keys are not known yet, it weighs 1, may wait for as long as
    /// it takes and is not scored.
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
        }
    }
}

/// Where a sequence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// In its tenant's queue.
    Waiting,
    /// Out of the queue until that sequence has computed the prefix they share.
    Deferred(SeqId),
    /// Holds blocks.
    Running,
    /// Paused, and in no list.
    Parked,
}

#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) prompt: Arc<[u32]>,
    /// Prompt and output; empty until first admitted, so that a long queue costs no copies.
    tokens: Vec<u32>,
    /// The keys of the prompt's blocks, until `keys` needs them.
    given_keys: Option<PrefixKeys>,
    pub(crate) max_new: u32,
    pub(crate) salt: CacheSalt,
    pub(crate) tenant: u64,
    pub(crate) class: Class,
    pub(crate) deadline: Option<u64>,
    pub(crate) scoring: bool,
    /// Prompt positions whose logits were handed out, so that a recompute does not ask again.
    pub(crate) scored: usize,
    pub(crate) state: State,
    /// Stands still: running or parked.
    pub(crate) paused: bool,
    /// Tokens whose keys and values are stored.
    pub(crate) computed: usize,
    pub(crate) blocks: Vec<u32>,
    /// Keys of the full blocks of `known()`, as far as they were needed.
    pub(crate) keys: Vec<BlockKey>,
    /// The same tokens chained without the salt, as far as they were needed.
    pub(crate) contents: Vec<u64>,
    /// Blocks that its known tokens still need: spoken for, not yet taken.
    pub(crate) promised: usize,
    /// What it counts in the queue's token bound while it waits.
    pub(crate) queued_tokens: u64,
    /// How often another one started before it although it came first.
    pub(crate) bypassed: u32,
    /// Number of its admission: higher is younger.
    pub(crate) admitted: u64,
    pub(crate) started: bool,
    /// Blocks that it found in the cache when it started: those behind them it computed itself.
    pub(crate) found: usize,
    /// What of its prompt is to be kept.
    pub(crate) pins: Arc<[CachePin]>,
    /// What becomes of that.
    pub(crate) pinned: Pinned,
    /// Places for blocks to be kept that are spoken for and not taken yet, and up to which block.
    pub(crate) reserved: usize,
    pub(crate) reserved_to: usize,
    /// Prompt tokens that its tenant need not be charged for any more: found in the cache, or charged.
    pub(crate) charged: usize,
    /// Who waits for its prefix, and for how many blocks of it.
    pub(crate) followers: Vec<(SeqId, usize)>,
    /// Blocks of its prompt that it announced as being computed: `[from, to)`.
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
            // A group has started when its first has.
            deadline: spec.start_deadline_ns.filter(|_| first),
            scoring: spec.score_prompt && first,
            scored: 0,
            state: State::Waiting,
            paused: false,
            computed: 0,
            blocks: Vec::new(),
            keys: Vec::new(),
            contents: Vec::new(),
            promised: 0,
            // The others of a group take the first one's prefix from the cache.
            queued_tokens: if first { spec.prompt.len() as u64 } else { 1 },
            bypassed: 0,
            admitted: 0,
            started: false,
            found: 0,
            // The others of a group find what the first one keeps.
            pins: if first { Arc::clone(&spec.pins) } else { Arc::default() },
            pinned: Pinned::default(),
            reserved: 0,
            reserved_to: 0,
            charged: 0,
            followers: Vec::new(),
            announced: (0, 0),
        }
    }

    /// Every token known so far: the target of what is to be computed.
    pub(crate) fn known(&self) -> &[u32] {
        if self.tokens.is_empty() { &self.prompt } else { &self.tokens }
    }

    pub(crate) fn append(&mut self, token: u32) {
        self.own_tokens();
        self.tokens.push(token);
    }

    /// Copies the prompt, once it is worth it.
    pub(crate) fn own_tokens(&mut self) {
        if self.tokens.is_empty() {
            // Room for a few more, not for `max_new`, which may be huge and stay unused.
            self.tokens.reserve(self.prompt.len() + 64);
            self.tokens.extend_from_slice(&self.prompt);
        }
    }

    /// For tests of the checks.
    #[cfg(test)]
    pub(crate) fn replace_tokens(&mut self) {
        let prompt = std::sync::Arc::clone(&self.prompt);
        self.tokens.iter_mut().zip(prompt.iter()).for_each(|(own, other)| *own = *other);
    }

    pub(crate) fn remaining(&self) -> usize {
        self.known().len().saturating_sub(self.computed)
    }

    /// Whether it computes when nobody else wants to.
    pub(crate) fn is_idle_work(&self) -> bool {
        self.class == Class::Idle
    }

    /// Whether it goes on by what was generated last: one token, or a few that were known together.
    pub(crate) fn decodes(&self) -> bool {
        !self.paused && self.goes_on()
    }

    /// Whether many of its known tokens are still to be computed.
    pub(crate) fn prefills(&self) -> bool {
        !self.paused && self.remaining() > 0 && !self.goes_on()
    }

    /// Whether what is still to be computed of it are tokens just generated.
    pub(crate) fn goes_on(&self) -> bool {
        let few = self.computed >= self.prompt.len() && self.remaining() <= MOST_AT_ONCE;
        self.remaining() == 1 || (few && self.remaining() > 0)
    }

    /// Whether a chunk that starts at `start` covers prompt positions whose logits are still wanted: all but the last
    /// predict a prompt token.
    pub(crate) fn scores_at(&self, start: usize) -> bool {
        let upto = self.prompt.len().saturating_sub(1);
        self.scoring && self.scored < upto && start < upto
    }

    /// Tokens generated so far.
    pub(crate) fn generated(&self) -> usize {
        self.known().len() - self.prompt.len()
    }

    /// Computes keys so that at least the first `blocks` full blocks have theirs.
    pub(crate) fn ensure_keys(&mut self, blocks: usize) {
        if let Some(given) = self.given_keys.take_if(|_| blocks > 0) {
            self.keys.clear();
            self.keys.extend_from_slice(given.keys());
        }
        while self.keys.len() < blocks {
            let at = self.keys.len() * BLOCK_TOKENS;
            let Some(tokens) = self.known().get(at..at + BLOCK_TOKENS) else { return };
            let key = BlockKey::chain(&self.salt, self.keys.last(), tokens);
            self.keys.push(key);
        }
    }

    /// Chains the tokens of at least the first `blocks` full blocks, whatever the salt.
    pub(crate) fn ensure_contents(&mut self, blocks: usize) {
        while self.contents.len() < blocks {
            let at = self.contents.len() * BLOCK_TOKENS;
            let Some(tokens) = self.known().get(at..at + BLOCK_TOKENS) else { return };
            let content = chain_content(self.contents.last().copied(), tokens);
            self.contents.push(content);
        }
    }
}

/// Full blocks of a prefix that may be taken from the cache: at least the last token is always computed, since its
/// logits are wanted.
pub const fn usable_blocks(tokens: usize) -> usize {
    tokens.saturating_sub(1) / BLOCK_TOKENS
}

/// Blocks that `tokens` tokens need.
pub(crate) const fn blocks_for(tokens: usize) -> usize {
    tokens.div_ceil(BLOCK_TOKENS)
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

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SeqId, &Sequence)> {
        self.slots.iter().enumerate().filter_map(|(index, (generation, sequence))| {
            let id = SeqId { index: index as u32, generation: *generation };
            sequence.as_ref().map(|s| (id, s))
        })
    }
}
