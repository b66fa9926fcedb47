//! Checks that the scheduler's counts and lists agree with each other. Tests and simulations call it after every step.

use headrace_kv_layout::{FREED, GROUPS, KvGroupKind, PerGroup};

use super::Scheduler;
use crate::blocks::BlockPool;
use crate::sequence::{Class, SeqId, Sequence, State};

macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(format!($($message)+));
        }
    };
}

/// Index of the group with states.
const STATES: usize = GROUPS - 1;

/// The holders of one block.
#[derive(Clone, Copy, Default)]
struct BlockHolders {
    count: u32,
    /// The sequence that was counted last, and the one that was counted first, with the index in its table.
    last: Option<SeqId>,
    first: Option<(SeqId, u32)>,
    /// Whether the block is in a free list.
    is_listed: bool,
}

/// The list that names a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum ListedState {
    #[default]
    Nowhere,
    Queued,
    Running,
}

/// The totals of each tenant. A list, because simulated worlds have few tenants.
struct TenantTable(Vec<(u64, TenantTotals)>);

impl TenantTable {
    fn entry(&mut self, tenant: u64) -> &mut TenantTotals {
        let at = self.0.iter().position(|(of, _)| *of == tenant).unwrap_or_else(|| {
            self.0.push((tenant, TenantTotals::default()));
            self.0.len() - 1
        });
        // Cannot panic: the entry was found or appended.
        &mut self.0[at].1
    }
}

/// What the sequences of one tenant add up to.
#[derive(Default)]
struct TenantTotals {
    /// Sequences that are computed, their blocks, and all that are neither idle work nor paused.
    share: (usize, PerGroup<usize>, usize),
    /// Pinned blocks and reserved pins of each group.
    pinned: PerGroup<usize>,
}

/// What all sequences add up to. Each is looked at once.
struct SequenceTotals {
    holders: PerGroup<Vec<BlockHolders>>,
    /// By slot.
    listed: Vec<ListedState>,
    promised: PerGroup<usize>,
    tenants: TenantTable,
    sequences: usize,
    deferred: usize,
    deferred_idle: usize,
    waiting_tokens: u64,
    deadlines: usize,
    paused: usize,
    parked: usize,
    /// Announced blocks that their sequences will compute.
    announced: usize,
}

impl Scheduler {
    /// Checks every block, count and list against the others. Takes time proportional to the state.
    ///
    /// # Errors
    /// Describes the first disagreement.
    pub fn check_invariants(&self) -> Result<(), String> {
        let mut totals = SequenceTotals {
            holders: self.prefixes.groups().pools().map(|pool| vec![BlockHolders::default(); pool.total()]),
            listed: vec![ListedState::Nowhere; self.sequences.slots()],
            promised: PerGroup::repeat(0),
            tenants: TenantTable(Vec::new()),
            sequences: 0,
            deferred: 0,
            deferred_idle: 0,
            waiting_tokens: 0,
            deadlines: 0,
            paused: 0,
            parked: 0,
            announced: 0,
        };
        let queued = self.check_lists(&mut totals)?;
        for (id, sequence) in self.sequences.iter() {
            self.check_blocks(id, sequence, &mut totals)?;
            self.check_state(id, sequence, &mut totals)?;
            check_share(id, sequence, &mut totals)?;
            let (from, to) = sequence.announced;
            let own = sequence.keys.get(from..to).unwrap_or(&[]);
            let announced = self.prefixes.audit();
            totals.announced += own.iter().filter(|key| announced.get(key) == Some(&id)).count();
        }
        self.check_pools(&mut totals)?;
        self.check_counts(&totals, queued)?;
        self.check_announced(totals.announced)
    }

    /// Checks that each listed sequence lives and is listed once. Returns the number of queued ones.
    fn check_lists(&self, totals: &mut SequenceTotals) -> Result<usize, String> {
        let mut queued = 0;
        self.tenants.audit(|id, tenant, class| {
            let sequence = self.sequences.get(id).ok_or_else(|| format!("{id:?} is queued and gone"))?;
            ensure!(sequence.tenant == tenant && sequence.class == class, "{id:?} is in another's queue");
            let before = list(&mut totals.listed, id, ListedState::Queued);
            ensure!(before == ListedState::Nowhere, "a sequence is queued twice");
            queued += 1;
            Ok(())
        })?;
        let running = self.running.audit();
        for &id in running {
            ensure!(self.sequences.get(id).is_some(), "{id:?} runs and is gone");
            let before = list(&mut totals.listed, id, ListedState::Running);
            ensure!(before != ListedState::Running, "a sequence runs twice");
            ensure!(before == ListedState::Nowhere, "{id:?} wrongly queued or not");
        }
        ensure!(running.len() <= self.config.max_running, "{} run", running.len());
        Ok(queued)
    }

    /// Checks the blocks that a sequence holds and is promised.
    fn check_blocks(
        &self,
        id: SeqId,
        sequence: &Sequence,
        totals: &mut SequenceTotals,
    ) -> Result<(), String> {
        for (all, own) in totals.promised.iter_mut().zip(sequence.promised.iter()) {
            *all += own;
        }
        if sequence.reserved.total() > 0 {
            let pinned = &mut totals.tenants.entry(sequence.tenant).pinned;
            for (all, own) in pinned.iter_mut().zip(sequence.reserved.iter()) {
                *all += own;
            }
        }
        if sequence.state != State::Running {
            ensure!(sequence.tables.is_empty() && sequence.computed == 0, "{id:?} waits and holds blocks");
            return Ok(());
        }
        let (groups, freed) = (self.prefixes.groups(), sequence.tables.freed());
        let tables = groups.layout().groups().iter().zip(sequence.tables.iter()).zip(freed.iter());
        for (at, ((group, table), &freed)) in tables.enumerate() {
            // A sequence that continues from a cached state has no own slot yet.
            let needed = match sequence.tables.source() {
                Some(_) if group.kind == KvGroupKind::State => 0,
                _ => group.blocks_for(sequence.computed),
            };
            ensure!(needed <= table.len(), "{id:?} is computed beyond its blocks");
            let (outside, held) = table.split_at(freed.min(table.len()));
            ensure!(outside.iter().all(|&block| block == FREED), "{id:?} lost count of freed blocks");
            ensure!(freed <= group.blocks_outside(sequence.computed), "{id:?} freed blocks of its window");
            self.check_held((id, sequence), at, (held, freed), totals)?;
        }
        ensure!(sequence.computed <= sequence.known().len(), "{id:?} is computed beyond its tokens");
        count_slot(&mut totals.holders, sequence.tables.source())
    }

    /// Counts the blocks that a sequence holds in a group, from index `freed` of its table on. Checks that no two salts
    /// share a block, and that holders of a block have the same computed tokens up to its end.
    fn check_held(
        &self,
        (id, sequence): (SeqId, &Sequence),
        group: usize,
        (held, freed): (&[u32], usize),
        totals: &mut SequenceTotals,
    ) -> Result<(), String> {
        let block_tokens = self.layout().block_tokens();
        let Some(holders) = totals.holders.iter_mut().nth(group) else { return Ok(()) };
        let blocks = self.prefixes.groups().pools().iter().nth(group).map_or(&[][..], BlockPool::audit);
        let (known, computed) = (sequence.known(), sequence.computed);
        // The other holder of the previous block, and the number of leading tokens that were found equal.
        let mut agreed: (Option<SeqId>, usize) = (None, 0);
        for (at, &block) in (freed..).zip(held) {
            ensure!(block != FREED, "{id:?} needs a block that it has freed");
            let of = holders.get_mut(block as usize);
            let of = of.ok_or_else(|| format!("{id:?} holds block {block}, which is not one"))?;
            ensure!(of.last.replace(id) != Some(id), "{id:?} has a block twice");
            of.count += 1;
            // Slots of states are never shared, except as the state that a sequence continues from.
            if group == STATES {
                continue;
            }
            let end = (at + 1) * block_tokens;
            if let Some(prefix) = blocks.get(block as usize).and_then(|block| block.cached.as_ref()) {
                ensure!(prefix.salt == sequence.salt, "{id:?} holds block {block} of another salt");
                let own = known.get(end - block_tokens..end);
                ensure!(own == Some(&prefix.tokens[..]), "{id:?} holds block {block} of other tokens");
                ensure!(end <= computed, "{id:?}: block {block} is findable before it is computed");
            }
            let Some((other, place)) = of.first else {
                of.first = Some((id, at as u32));
                continue;
            };
            let Some(twin) = self.sequences.get(other) else { continue };
            ensure!(twin.salt == sequence.salt, "{id:?} and {other:?} share block {block} across salts");
            let from = if agreed.0 == Some(other) { agreed.1 } else { 0 };
            let same = place as usize == at && twin.known().get(from..end) == known.get(from..end);
            ensure!(same, "{id:?} and {other:?} share block {block} with other tokens");
            agreed = (Some(other), end);
            ensure!(end <= computed && end <= twin.computed, "block {block} is shared half computed");
        }
        Ok(())
    }

    /// Checks that a sequence is in exactly the list that its state names.
    fn check_state(&self, id: SeqId, sequence: &Sequence, totals: &mut SequenceTotals) -> Result<(), String> {
        let state = sequence.state;
        totals.sequences += 1;
        let at = totals.listed.get(id.slot()).copied().unwrap_or_default();
        ensure!((at == ListedState::Running) == (state == State::Running), "{id:?} wrongly runs or does not");
        ensure!((at == ListedState::Queued) == (state == State::Waiting), "{id:?} wrongly queued or not");
        if let State::Deferred(leader) = state {
            totals.deferred += 1;
            totals.deferred_idle += usize::from(sequence.is_idle_work());
            let leader = self
                .sequences
                .get(leader)
                .ok_or_else(|| format!("{id:?} waits for a sequence that is gone"))?;
            ensure!(leader.followers.iter().any(|&(f, _)| f == id), "{id:?} waits unknown to its leader");
            ensure!(leader.state == State::Running, "{id:?} waits for one that does not run");
        }
        if !matches!(state, State::Running | State::Parked) {
            totals.waiting_tokens += sequence.queued_tokens;
            totals.deadlines += usize::from(sequence.deadline.is_some());
        }
        ensure!(state == State::Running || sequence.followers.is_empty(), "{id:?} has followers");
        Ok(())
    }

    /// Checks each group's pool, and that its pinned blocks are counted for their tenants and within the limits.
    fn check_pools(&self, totals: &mut SequenceTotals) -> Result<(), String> {
        for chunk in &self.plan.chunks {
            count_slot(&mut totals.holders, chunk.copy.map(|copy| copy.slot))?;
        }
        let SequenceTotals { holders, tenants, .. } = totals;
        let pools = self.prefixes.groups().pools();
        for (group, (pool, holders)) in pools.iter().zip(holders.iter_mut()).enumerate() {
            check_pool((group, pool), holders, tenants)?;
            let pins = pool.audit_pins();
            let (counted, most_of_one) = pins.audit();
            let (all, most) = pins.all();
            let (mut found, mut of_all) = (0, 0);
            for (tenant, totals) in &tenants.0 {
                let own = totals.pinned.iter().nth(group).copied().unwrap_or(0);
                let known = counted.get(tenant).copied();
                ensure!(known == (own > 0).then_some(own), "{tenant} pins {own}, {counted:?} counted");
                ensure!(own <= most_of_one, "{tenant} pins {own} of {most_of_one}");
                found += usize::from(known.is_some());
                of_all += own;
            }
            ensure!(of_all == all && all <= most, "{all} pinned of {most}, {of_all} found");
            ensure!(found == counted.len(), "{found} tenants pin blocks, {counted:?} counted");
        }
        let counted = self.running.promised();
        let promised = &totals.promised;
        ensure!(promised == counted, "{promised:?} blocks promised, {counted:?} counted");
        Ok(())
    }

    /// Checks that waiting and paused sequences are counted, and that paused ones earn no share.
    fn check_counts(&self, totals: &SequenceTotals, queued: usize) -> Result<(), String> {
        let found = (totals.deferred, totals.deferred_idle, totals.deadlines);
        let counted = self.waiting.audit();
        ensure!(found == counted, "{found:?} deferred, of them idle, and deadlines, {counted:?} counted");
        let (tokens, counted) = (totals.waiting_tokens, self.waiting.tokens());
        ensure!(tokens == counted, "{tokens} tokens wait, {counted} counted");
        let live = self.running.len() + queued + totals.deferred + self.waiting.parked();
        let count = totals.sequences;
        ensure!(count == live, "{count} sequences live, {live} listed or parked");
        let found = (totals.paused, totals.parked);
        let counted = (self.running.paused(), self.waiting.parked());
        ensure!(found == counted, "{found:?} are paused, {counted:?} counted");
        for (tenant, totals) in &totals.tenants.0 {
            let (tenant, share) = (*tenant, totals.share);
            let counted =
                (self.tenants.running(tenant), self.tenants.blocks(tenant), self.tenants.busy(tenant));
            ensure!(
                share == counted,
                "tenant {tenant} has {share:?} places, blocks and calls, {counted:?} counted"
            );
        }
        Ok(())
    }

    /// Checks that each announced block is one that its sequence will compute. `owned` blocks were found to be.
    fn check_announced(&self, owned: usize) -> Result<(), String> {
        let announced = self.prefixes.audit();
        if owned == announced.len() {
            return Ok(());
        }
        for (key, &id) in announced {
            let sequence = self.sequences.get(id).ok_or_else(|| format!("{id:?} announced and is gone"))?;
            let (from, to) = sequence.announced;
            let own = sequence.keys.get(from..to).unwrap_or(&[]);
            ensure!(own.contains(key), "{id:?} announced a block that it will not compute");
        }
        Err(format!("{} blocks are announced, and sequences will compute {owned}", announced.len()))
    }
}

/// Checks that a paused sequence announces nothing, and counts what a sequence earns its tenant.
fn check_share(id: SeqId, sequence: &Sequence, totals: &mut SequenceTotals) -> Result<(), String> {
    let runs = sequence.state == State::Running;
    let is_parked = sequence.state == State::Parked;
    if sequence.paused {
        totals.paused += usize::from(runs);
        ensure!(runs || is_parked, "{id:?} is paused and waits");
        ensure!(sequence.announced.0 == sequence.announced.1, "{id:?} is paused and announces");
        ensure!(sequence.followers.is_empty(), "{id:?} is paused and is waited for");
    }
    totals.parked += usize::from(is_parked);
    ensure!(sequence.paused || !is_parked, "{id:?} is parked for nothing");
    let share = &mut totals.tenants.entry(sequence.tenant).share;
    if sequence.class != Class::Idle && !sequence.paused {
        let held = sequence.tables.held();
        if runs {
            share.1.iter_mut().zip(held.iter()).for_each(|(all, own)| *all += own);
        }
        *share = (share.0 + usize::from(runs), share.1, share.2 + 1);
    }
    Ok(())
}

/// Counts a holder of a slot of the states.
fn count_slot(holders: &mut PerGroup<Vec<BlockHolders>>, slot: Option<u32>) -> Result<(), String> {
    let Some(slot) = slot else { return Ok(()) };
    let of = holders.each_mut().2.get_mut(slot as usize);
    of.ok_or_else(|| format!("slot {slot} is held, which is not one"))?.count += 1;
    Ok(())
}

/// Records the list of a living sequence. Returns the list recorded before.
fn list(listed: &mut [ListedState], id: SeqId, at: ListedState) -> ListedState {
    listed.get_mut(id.slot()).map_or(ListedState::Nowhere, |entry| std::mem::replace(entry, at))
}

/// Checks that the blocks of a pool are conserved: each has as many holders as its count says, or is in a free list
/// once. Counts pinned blocks for their tenants.
fn check_pool(
    (group, pool): (usize, &BlockPool),
    holders: &mut [BlockHolders],
    tenants: &mut TenantTable,
) -> Result<(), String> {
    let blocks = pool.audit();
    let mut free = 0;
    for id in pool.audit_free() {
        let of = holders.get_mut(id as usize).ok_or_else(|| format!("block {id} is free and not one"))?;
        ensure!(!std::mem::replace(&mut of.is_listed, true), "the free list has a block twice");
        free += 1;
    }
    ensure!(free == pool.free(), "{free} free listed, {} counted", pool.free());
    let (mut cached, mut free_cached) = (0, 0);
    for ((id, block), holders) in (0_u32..).zip(blocks).zip(holders.iter()) {
        let BlockHolders { count: held, is_listed, .. } = *holders;
        ensure!(block.refs == held, "block {id}: {} references, {held} holders", block.refs);
        ensure!(is_listed == (held == 0), "block {id}: {held} holders, wrongly listed");
        cached += usize::from(block.cached.is_some());
        free_cached += usize::from(block.cached.is_some() && held == 0);
        if let Some(pin) = &block.pinned {
            ensure!(block.cached.is_some(), "a block is pinned that holds nothing");
            ensure!(pin.lasts || !pin.owners.is_empty(), "block {id} is pinned for nothing");
            for owner in &pin.owners {
                let owned = pool.audit_owned().get(owner);
                ensure!(owned.is_some_and(|owned| owned.contains(&id)), "{owner} holds block {id} unknown");
            }
            if let Some(pinned) = tenants.entry(pin.tenant).pinned.iter_mut().nth(group) {
                *pinned += 1;
            }
        }
    }
    for (owner, owned) in pool.audit_owned() {
        let holds = |block: &u32| {
            let pin = blocks.get(*block as usize).and_then(|block| block.pinned.as_ref());
            pin.is_some_and(|pin| pin.owners.contains(owner))
        };
        ensure!(!owned.is_empty() && owned.iter().all(holds), "{owner} holds blocks without pins");
    }
    // As many keys as cached blocks, each with a block of this key: so each cached block is the one its key finds.
    let index = pool.audit_index();
    for (key, &id) in index {
        let found = blocks.get(id as usize).and_then(|block| block.cached.as_ref());
        ensure!(found.is_some_and(|prefix| prefix.key == *key), "block {id} is not the one its key finds");
    }
    ensure!(index.len() == cached, "{} keys for {cached} cached blocks", index.len());
    let near = pool.nearest().audit()?;
    ensure!(near == (cached, cached), "{near:?} blocks among their siblings and contents, {cached} cached");
    ensure!(free_cached == pool.free_cached(), "cached free blocks miscounted");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use headrace_domain::CacheSalt;
    use headrace_kv_layout::{KvGroup, KvLayout};

    use super::*;
    use crate::sequence::Sequence;
    use crate::{Outcome, SchedulerConfig, SequenceSpec};

    fn spec(tenant: u64, first: u32) -> SequenceSpec {
        let salt = CacheSalt::derive(&[1; 32], &tenant.to_string(), "m", None);
        SequenceSpec::new(tenant, salt, (first..first + 50).collect::<Arc<[u32]>>(), 9)
    }

    /// Two running sequences of two tenants that share nothing, one waiting sequence, and some cached blocks.
    fn busy() -> Scheduler {
        let config = SchedulerConfig { max_running: 2, ..SchedulerConfig::default() };
        let mut s = Scheduler::new(config, KvLayout::single(KvGroup::full(64, 0))).unwrap();
        for (tenant, first) in [(1, 0), (2, 1000), (1, 2000)] {
            s.add(&spec(tenant, first), 0).unwrap();
        }
        let chunks = s.plan(0).chunks.len();
        s.commit(&vec![Outcome::Token(5); chunks], 0);
        s.plan(0);
        s.check_invariants().unwrap();
        s
    }

    fn running(s: &mut Scheduler, at: usize) -> &mut Sequence {
        let id = s.running.audit()[at];
        s.sequences.get_mut(id).unwrap()
    }

    fn waiting(s: &mut Scheduler) -> &mut Sequence {
        let (id, _) = s.sequences.iter().find(|(_, s)| s.state == State::Waiting).unwrap();
        s.sequences.get_mut(id).unwrap()
    }

    /// Shows that the checks can fail: each row falsifies one count or list.
    #[test]
    fn a_falsified_count_is_caught() {
        type Falsify = fn(&mut Scheduler);
        let rows: [(&str, Falsify); 13] = [
            // One reference fewer, or one more, than there are holders.
            ("references", |s| {
                let id = s.running.audit()[0];
                let mut stranger = Sequence::new(&spec(1, 0), true);
                let first = running(s, 0).tables.iter().next().unwrap()[0];
                stranger.tables.ids_mut().each_mut().0.push(first);
                s.prefixes.give_back(id, &mut stranger, true);
            }),
            ("references", |s| {
                let mut stranger = Sequence::new(&spec(1, 0), true);
                s.prefixes.take_found(&mut stranger);
                assert!(!stranger.tables.is_empty());
            }),
            ("has a block twice", |s| {
                let table = running(s, 0).tables.ids_mut().each_mut().0;
                table.push(table[0]);
            }),
            ("of another salt", |s| {
                running(s, 0).salt = CacheSalt::derive(&[2; 32], "x", "m", None);
            }),
            ("of other tokens", |s| {
                let foreign = running(s, 1).prompt.clone();
                let own = running(s, 0);
                own.prompt = foreign;
                own.replace_tokens();
            }),
            ("computed beyond its blocks", |s| running(s, 0).computed = 1000),
            ("findable before it is computed", |s| running(s, 0).computed = 3),
            ("blocks promised", |s| running(s, 0).promised.iter_mut().for_each(|blocks| *blocks += 1)),
            ("tokens wait", |s| waiting(s).queued_tokens += 1),
            ("wrongly runs", |s| {
                let id = s.running.audit()[1];
                s.running.leave(id, s.sequences.get_mut(id).unwrap(), &mut s.tenants);
            }),
            ("places, blocks and calls", |s| s.tenants.holds(1, Class::Normal, &PerGroup::repeat(1), true)),
            ("are paused", |s| {
                let id = s.running.audit()[0];
                s.running.set_paused(s.sequences.get(id).unwrap(), true, &mut s.tenants);
            }),
            ("will not compute", |s| {
                let id = s.running.audit()[0];
                let own = running(s, 0);
                let before = (own.computed, own.announced);
                own.computed = 0;
                s.prefixes.announce(id, &mut s.sequences);
                let own = running(s, 0);
                (own.computed, own.announced) = before;
            }),
        ];
        for (words, falsify) in rows {
            let mut s = busy();
            falsify(&mut s);
            let caught = s.check_invariants().expect_err(words);
            assert!(caught.contains(words), "{words}: {caught}");
        }
    }
}
