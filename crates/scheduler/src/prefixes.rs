//! The KV blocks and the prefix cache as sequences see them: the blocks they hold, the blocks they find, and the blocks
//! they announce before computing them. Knows nothing of budgets or turns.

use headrace_domain::{CacheLife, CacheMiss, CachePin, HeldPrefix, PrefixKeys, RequestId};
use headrace_kv_layout::{KvLayout, PerGroup, StateCopy};

use crate::boundaries::KeptBoundaries;
use crate::config::SchedulerConfig;
use crate::kv_groups::{CachedReach, KvGroups, PrefixBlocks};
use crate::miss;
use crate::nearest::CachedPrefix;
use crate::pins::{PinWish, PinnedBlocks, life_of, rank};
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
    /// The cached blocks.
    pub(crate) reach: CachedReach,
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
        let layout = self.groups.layout();
        let block_tokens = layout.block_tokens();
        let prefix = PrefixBlocks { keys: keys.keys(), salt: keys.salt(), tokens: keys.ids(), block_tokens };
        let usable = layout.cacheable_blocks(prefix.tokens.len()).min(prefix.keys.len());
        self.groups.reach(&prefix, usable).hits * block_tokens
    }

    /// Number of a sequence's known blocks that it may look up.
    fn usable(&self, sequence: &Sequence) -> usize {
        if self.enabled && !sequence.scoring {
            self.groups.layout().cacheable_blocks(sequence.known().len())
        } else {
            0
        }
    }

    /// The known blocks of a sequence, to look them up. Its keys must have been computed.
    fn prefix_of<'a>(&self, sequence: &'a Sequence) -> PrefixBlocks<'a> {
        let block_tokens = self.groups.layout().block_tokens();
        PrefixBlocks { keys: &sequence.keys, salt: &sequence.salt, tokens: sequence.known(), block_tokens }
    }

    /// Looks up a waiting sequence's prefix. Takes nothing.
    pub(crate) fn find(&self, id: SeqId, sequences: &mut Slab) -> Found {
        let mut found = Found::default();
        let Some(sequence) = sequences.get_mut(id) else { return found };
        let usable = self.usable(sequence);
        let layout = self.groups.layout();
        sequence.ensure_keys(usable, layout);
        found.reach = self.groups.reach(&self.prefix_of(sequence), usable);
        let hits = found.reach.hits;
        let cold = sequence.keys.get(hits..usable).unwrap_or(&[]);
        if let Some(&leader) = cold.first().and_then(|key| self.announced.get(key)) {
            let shared = cold.iter().take_while(|key| self.announced.get(key) == Some(&leader)).count();
            if leader != id && shared * layout.block_tokens() >= self.dedup_tokens {
                found.leader = Some((leader, hits + shared));
            }
        }
        // Idle work stops while other work waits, so normal work would wait for it for ever.
        let class = sequence.class;
        found.leader =
            found.leader.filter(|&(leader, _)| sequences.get(leader).is_some_and(|l| l.class >= class));
        // The leader keeps what is needed to continue where the two part.
        if let Some((leader, end)) = found.leader
            && self.groups.layout().keeps_less()
            && let Some(leader) = sequences.get_mut(leader)
        {
            leader.boundaries.want(end);
        }
        found
    }

    /// Takes the cached blocks of a waiting sequence's prefix, and counts them as computed. On the first call for a
    /// sequence, also returns why no more blocks were found.
    pub(crate) fn take_found(&mut self, sequence: &mut Sequence) -> Option<CacheMiss> {
        let first = !sequence.started;
        let usable = self.usable(sequence);
        sequence.ensure_keys(usable, self.groups.layout());
        let reach = self.groups.reach(&self.prefix_of(sequence), usable);
        if first && self.enabled {
            sequence.boundaries =
                KeptBoundaries::of_prompt(sequence.prompt.len(), &sequence.pins, self.groups.layout());
        }
        sequence.boundaries.copied_at(reach.hits);
        if reach.full > reach.hits {
            // Other sequences went on from here, so a further one may continue here too.
            sequence.boundaries.want(reach.full);
        }
        let miss = if first { miss::explain(sequence, reach, self.enabled, &self.groups) } else { None };
        let mut tables = std::mem::take(&mut sequence.tables);
        // Blocks that the sequence computed itself before its preemption are still its own.
        let found = sequence.found;
        let prefix = self.prefix_of(sequence);
        self.groups.take_hits(&prefix, reach.hits, &mut tables, |at| first || at < found);
        if first {
            sequence.found = reach.hits;
        }
        sequence.computed = reach.hits * self.groups.layout().block_tokens();
        sequence.tables = tables;
        if first {
            self.reserve(sequence);
        }
        miss
    }

    /// How the blocks at index `at` of a sequence's tables are pinned, for each group.
    fn wishes(&self, sequence: &Sequence, at: usize) -> PerGroup<Option<PinWish>> {
        let asked = self.lives(&sequence.pins, at);
        let Some((held, pins)) = held_pin(sequence) else {
            return asked.map(|life| life.map(PinWish::lasting));
        };
        let kept = self.lives(&pins, at);
        let of = |asked: &Option<CacheLife>, kept: &Option<CacheLife>| {
            PinWish::of(*asked, kept.map(|_| held.owner))
        };
        PerGroup::new([of(asked.full(), kept.full()), of(asked.window(), kept.window()), None])
    }

    /// How long these pins keep the blocks at index `at` of a sequence's tables, for each group.
    fn lives(&self, pins: &[CachePin], at: usize) -> PerGroup<Option<CacheLife>> {
        let layout = self.groups.layout();
        let window = layout.groups().window();
        let in_window =
            |end: usize| window.is_used() && window.blocks_outside(end * window.block_tokens) <= at;
        let ends = |tokens: u32| layout.full_blocks(tokens as usize);
        let near = pins.iter().filter(|pin| ends(pin.tokens) > at && in_window(ends(pin.tokens)));
        PerGroup::new([life_of(pins, at, layout), near.map(|pin| pin.life).max(), None])
    }

    /// How a state at a boundary is pinned.
    fn wish_at(&self, sequence: &Sequence, boundary: usize) -> Option<PinWish> {
        let layout = self.groups.layout();
        let is_here = |tokens: u32| layout.full_blocks(tokens as usize) == boundary;
        let asked = sequence.pins.iter().filter(|pin| is_here(pin.tokens)).map(|pin| pin.life).max();
        PinWish::of(asked, sequence.held.filter(|held| is_here(held.tokens)).map(|held| held.owner))
    }

    /// Pins the blocks found for a sequence, and reserves pins for the blocks that it will compute.
    fn reserve(&mut self, sequence: &mut Sequence) {
        if !self.enabled || (sequence.pins.is_empty() && sequence.held.is_none()) {
            return;
        }
        let (tenant, layout) = (sequence.tenant, *self.groups.layout());
        for at in 0..sequence.found {
            self.groups.pin(&sequence.tables, at, self.wishes(sequence, at), tenant);
        }
        if let Some(wish) = self.wish_at(sequence, sequence.found) {
            self.groups.pin_source(&sequence.tables, wish, tenant);
        }
        let full = layout.groups().full().is_used();
        let windows = !full && layout.groups().window().is_used();
        let (mut pinned, mut reserved) = (PinnedBlocks::default(), 0);
        sequence.reserved_to = sequence.found;
        for at in sequence.found..layout.full_blocks(sequence.prompt.len()) {
            let asked = life_of(&sequence.pins, at, &layout);
            let kept = held_pin(sequence).and_then(|(_, pins)| life_of(&pins, at, &layout));
            if asked.is_none() && kept.is_none() {
                break;
            }
            if windows && self.wishes(sequence, at).window().is_none() {
                continue;
            }
            // Callers learn only of the pins that they asked for.
            if !self.groups.reserve_pin(tenant) {
                pinned.beyond += u32::from(asked.is_some());
                continue;
            }
            if let Some(life) = asked {
                pinned.blocks[rank(life)] += 1;
            }
            reserved += 1;
            sequence.reserved_to = at + 1;
        }
        let of = |used: bool| if used { reserved } else { 0 };
        sequence.reserved = PerGroup::new([of(full), of(windows), 0]);
        sequence.pinned = pinned;
    }

    /// Releases all pins that a call holds.
    pub(crate) fn release_pins_of(&mut self, owner: RequestId) {
        self.groups.release_pins_of(owner);
    }

    /// Ends what a sequence holds for its call. Blocks that it computes later are pinned only if their caller asked for
    /// that.
    pub(crate) fn let_go(&mut self, sequence: &mut Sequence) {
        sequence.held = None;
        self.groups.release_pins(sequence.tenant, &sequence.reserved);
        sequence.reserved = PerGroup::repeat(0);
    }

    /// Releases the pins that a leaving sequence had reserved for blocks that it never computed.
    pub(crate) fn leave(&mut self, sequence: &Sequence) {
        self.groups.release_pins(sequence.tenant, &sequence.reserved);
    }

    /// Gives a running sequence this many more free blocks in each group.
    pub(crate) fn take(&mut self, sequence: &mut Sequence, blocks: &PerGroup<usize>) {
        self.groups.take(blocks, &mut sequence.tables);
    }

    /// Takes a slot for a copy of a state, if more than `promised` are free.
    pub(crate) fn take_copy(&mut self, promised: usize) -> Option<u32> {
        if self.enabled { self.groups.take_copy(promised) } else { None }
    }

    /// Releases the slot of a copy that was not made.
    pub(crate) fn drop_copy(&mut self, copy: Option<StateCopy>) {
        self.groups.drop_copy(copy);
    }

    /// Takes back everything that a sequence holds or has announced, tail first. With `keep`, the blocks that it
    /// computed itself and its state stay findable. Without it they do not, unless others have built on them.
    pub(crate) fn give_back(&mut self, id: SeqId, sequence: &mut Sequence, keep: bool) {
        if keep
            && self.enabled
            && let Some(boundary) = self.groups.own_state(&sequence.tables)
            && let Some(prefix) = self.cached_prefix(sequence, boundary - 1)
        {
            self.groups.publish_own_state(&sequence.tables, &prefix);
        }
        sequence.computed = 0;
        self.groups.release(&mut sequence.tables, sequence.found, keep);
        self.withdraw(id, sequence, usize::MAX);
    }

    /// Describes block `at` of a sequence's known tokens, so that it can be found. `None` if it is not full.
    fn cached_prefix(&self, sequence: &mut Sequence, at: usize) -> Option<CachedPrefix> {
        let layout = self.groups.layout();
        sequence.ensure_keys(at + 1, layout);
        sequence.ensure_contents(at + 1, layout);
        let tokens = *sequence.known().get(at * layout.block_tokens()..)?.first_chunk()?;
        let parent = at.checked_sub(1).and_then(|before| sequence.keys.get(before)).copied();
        let (key, content) = (*sequence.keys.get(at)?, *sequence.contents.get(at)?);
        Some(CachedPrefix { key, salt: sequence.salt, tokens, parent, content })
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

    /// Makes the blocks findable that a running sequence has filled since it had computed `before` tokens, and the copy
    /// of its state. Returns the number of its computed blocks if there are new ones among them.
    pub(crate) fn publish(
        &mut self,
        id: SeqId,
        sequence: &mut Sequence,
        before: usize,
        copy: Option<StateCopy>,
    ) -> Option<usize> {
        let layout = *self.groups.layout();
        let (from, to) = (layout.full_blocks(before), layout.full_blocks(sequence.computed));
        self.publish_copy(sequence, copy);
        if from >= to || !self.enabled {
            return None;
        }
        sequence.ensure_keys(to, &layout);
        sequence.ensure_contents(to, &layout);
        for at in from..to {
            if let Some(prefix) = self.cached_prefix(sequence, at) {
                let wishes = match at < sequence.reserved_to {
                    true => self.wishes(sequence, at),
                    false => PerGroup::repeat(None),
                };
                let Sequence { tables, tenant, reserved, .. } = &mut *sequence;
                self.groups.publish((tables, at), &prefix, (wishes, *tenant), reserved);
            }
        }
        self.withdraw(id, sequence, to);
        Some(to)
    }

    /// Makes a copy of a sequence's state findable.
    fn publish_copy(&mut self, sequence: &mut Sequence, copy: Option<StateCopy>) {
        let Some(made) = copy else { return };
        let boundary = self.groups.layout().full_blocks(made.position);
        let is_computed = made.position <= sequence.computed;
        match boundary.checked_sub(1).and_then(|at| self.cached_prefix(sequence, at)) {
            Some(prefix) if is_computed => {
                let wish = self.wish_at(sequence, boundary);
                self.groups.publish_state(made.slot, &prefix, (wish, sequence.tenant));
                sequence.boundaries.copied_at(boundary);
            }
            _ => self.groups.drop_copy(copy),
        }
    }

    /// Releases what a sequence no longer needs after its chunk was computed. Returns the number of blocks released in
    /// each group.
    pub(crate) fn advance(&mut self, sequence: &mut Sequence) -> PerGroup<usize> {
        let window = *self.groups.layout().groups().window();
        let Sequence { tables, boundaries, computed, .. } = sequence;
        let needed = |at| self.enabled && boundaries.need(at, &window);
        self.groups.advance(tables, *computed, needed)
    }

    /// Releases the slot for the state after a chunk that does not count. Returns the blocks released.
    pub(crate) fn stay(&mut self, sequence: &mut Sequence) -> PerGroup<usize> {
        self.groups.stay(&mut sequence.tables)
    }

    /// For tests: the announced blocks, each with its sequence.
    pub(crate) fn audit(&self) -> &ByKey<SeqId> {
        &self.announced
    }
}

/// What a sequence holds for its call, as the pin that it is.
fn held_pin(sequence: &Sequence) -> Option<(HeldPrefix, [CachePin; 1])> {
    let held = sequence.held?;
    Some((held, [CachePin { tokens: held.tokens, life: CacheLife::Minutes }]))
}
