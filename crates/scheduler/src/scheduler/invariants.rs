//! Checks that the scheduler's counts and lists agree with each other. Tests and simulations call it after every step.

use std::collections::{BTreeMap, HashMap, HashSet};

use headrace_kv_layout::{FREED, KvGroupKind, PerGroup};

use super::Scheduler;
use crate::blocks::{Block, BlockPool};
use crate::sequence::{Class, SeqId, State};

macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(format!($($message)+));
        }
    };
}

impl Scheduler {
    /// Checks every block, count and list against the others. Takes time proportional to the state.
    ///
    /// # Errors
    /// Describes the first disagreement.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.check_blocks()?;
        self.check_sharing()?;
        self.check_queue()?;
        self.check_shares()?;
        self.check_announced()
    }

    /// Checks the blocks that sequences hold and are promised, and each group's pool.
    fn check_blocks(&self) -> Result<(), String> {
        let groups = self.prefixes.groups();
        let mut holders: PerGroup<HashMap<u32, u32>> = PerGroup::default();
        let mut promised = PerGroup::repeat(0);
        for (id, sequence) in self.sequences.iter() {
            let running = sequence.state == State::Running;
            ensure!(running || sequence.blocks_held() == 0, "{id:?} waits and holds blocks");
            let freed = sequence.tables.freed();
            let tables = groups.layout().groups().iter().zip(sequence.tables.iter()).zip(freed.iter());
            for (((group, table), &freed), holders) in tables.zip(holders.iter_mut()) {
                // A sequence that continues from a cached state has no own slot yet.
                let needed = match sequence.tables.source() {
                    Some(_) if group.kind == KvGroupKind::State => 0,
                    _ => group.blocks_for(sequence.computed),
                };
                ensure!(needed <= table.len(), "{id:?} is computed beyond its blocks");
                let (outside, held) = table.split_at(freed.min(table.len()));
                ensure!(outside.iter().all(|&block| block == FREED), "{id:?} lost count of freed blocks");
                ensure!(!held.contains(&FREED), "{id:?} needs a block that it has freed");
                ensure!(
                    freed <= group.blocks_outside(sequence.computed),
                    "{id:?} freed blocks of its window"
                );
                let own: HashSet<_> = held.iter().collect();
                ensure!(own.len() == held.len(), "{id:?} has a block twice");
                for &block in held {
                    *holders.entry(block).or_default() += 1;
                }
            }
            if let Some(source) = sequence.tables.source() {
                *holders.each_mut().2.entry(source).or_default() += 1;
            }
            ensure!(sequence.computed <= sequence.known().len(), "{id:?} is computed beyond its tokens");
            for (all, own) in promised.iter_mut().zip(sequence.promised.iter()) {
                *all += own;
            }
        }
        for copy in self.plan.chunks.iter().filter_map(|chunk| chunk.copy) {
            *holders.each_mut().2.entry(copy.slot).or_default() += 1;
        }
        for (at, (pool, holders)) in groups.pools().iter().zip(holders.iter()).enumerate() {
            check_pool(pool, holders)?;
            self.check_pinned(at, pool)?;
        }
        let counted = self.running.promised();
        ensure!(promised == *counted, "{promised:?} blocks promised, {counted:?} counted");
        Ok(())
    }

    /// Checks that the pinned blocks of a group are cached, counted for their tenants, and within the limits.
    fn check_pinned(&self, group: usize, pool: &BlockPool) -> Result<(), String> {
        let (blocks, _, _) = pool.audit();
        let mut by_tenant: HashMap<u64, usize> = HashMap::new();
        for block in blocks {
            if let Some((_, tenant)) = block.pinned {
                ensure!(block.cached.is_some(), "a block is pinned that holds nothing");
                *by_tenant.entry(tenant).or_default() += 1;
            }
        }
        for (_, sequence) in self.sequences.iter() {
            let reserved = sequence.reserved.iter().nth(group).copied().unwrap_or(0);
            if reserved > 0 {
                *by_tenant.entry(sequence.tenant).or_default() += reserved;
            }
        }
        let pins = pool.audit_pins();
        let (counted, most_of_one) = pins.audit();
        let (all, most) = pins.all();
        ensure!(
            by_tenant.values().sum::<usize>() == all && all <= most,
            "{all} pinned of {most}: {by_tenant:?}"
        );
        ensure!(by_tenant.len() == counted.len(), "{by_tenant:?} pin blocks, {counted:?} counted");
        for (tenant, own) in by_tenant {
            ensure!(counted.get(&tenant) == Some(&own), "{tenant} pins {own}, {counted:?} counted");
            ensure!(own <= most_of_one, "{tenant} pins {own} of {most_of_one}");
        }
        Ok(())
    }

    /// Checks that no two salts share a block, and that holders of a block have the same computed tokens up to its end.
    fn check_sharing(&self) -> Result<(), String> {
        // Slots of states are never shared, except as the state that a sequence continues from.
        for (group, pool) in self.prefixes.groups().pools().iter().enumerate().take(2) {
            self.check_sharing_in(group, pool)?;
        }
        Ok(())
    }

    fn check_sharing_in(&self, group: usize, pool: &BlockPool) -> Result<(), String> {
        let block_tokens = self.layout().block_tokens();
        let (blocks, _, _) = pool.audit();
        let mut seen: BTreeMap<u32, (SeqId, usize)> = BTreeMap::new();
        for (id, sequence) in self.sequences.iter() {
            let Some(table) = sequence.tables.iter().nth(group) else { continue };
            for (at, &block) in table.iter().enumerate().filter(|(_, block)| **block != FREED) {
                let end = (at + 1) * block_tokens;
                if let Some(prefix) = blocks.get(block as usize).and_then(|b| b.cached.as_ref()) {
                    ensure!(prefix.salt == sequence.salt, "{id:?} holds block {block} of another salt");
                    let own = sequence.known().get(end - block_tokens..end);
                    ensure!(own == Some(&prefix.tokens[..]), "{id:?} holds block {block} of other tokens");
                    ensure!(
                        end <= sequence.computed,
                        "{id:?}: block {block} is findable before it is computed"
                    );
                }
                let Some(&(other, place)) = seen.get(&block) else {
                    seen.insert(block, (id, at));
                    continue;
                };
                let Some(twin) = self.sequences.get(other) else { continue };
                ensure!(twin.salt == sequence.salt, "{id:?} and {other:?} share block {block} across salts");
                let same = place == at && twin.known().get(..end) == sequence.known().get(..end);
                ensure!(same, "{id:?} and {other:?} share block {block} with other tokens");
                ensure!(
                    end <= sequence.computed && end <= twin.computed,
                    "block {block} is shared half computed"
                );
            }
        }
        Ok(())
    }

    /// Checks that each sequence is in exactly the list that its state names.
    fn check_queue(&self) -> Result<(), String> {
        let queued = self.tenants.audit()?;
        let ids: HashSet<_> = queued.iter().map(|&(id, ..)| id).collect();
        ensure!(ids.len() == queued.len(), "a sequence is queued twice");
        for &(id, tenant, class) in &queued {
            let sequence = self.sequences.get(id).ok_or_else(|| format!("{id:?} is queued and gone"))?;
            ensure!(sequence.tenant == tenant && sequence.class == class, "{id:?} is in another's queue");
        }
        let running: HashSet<_> = self.running.audit().iter().copied().collect();
        ensure!(running.len() == self.running.len(), "a sequence runs twice");
        ensure!(running.len() <= self.config.max_running, "{} run", running.len());
        let (mut deferred, mut deferred_idle, mut tokens, mut deadlines, mut count) = (0, 0, 0, 0, 0);
        for (id, sequence) in self.sequences.iter() {
            count += 1;
            ensure!(
                running.contains(&id) == (sequence.state == State::Running),
                "{id:?} wrongly runs or does not"
            );
            ensure!(ids.contains(&id) == (sequence.state == State::Waiting), "{id:?} wrongly queued or not");
            if let State::Deferred(leader) = sequence.state {
                deferred += 1;
                deferred_idle += usize::from(sequence.is_idle_work());
                let leader = self
                    .sequences
                    .get(leader)
                    .ok_or_else(|| format!("{id:?} waits for a sequence that is gone"))?;
                ensure!(leader.followers.iter().any(|&(f, _)| f == id), "{id:?} waits unknown to its leader");
                ensure!(leader.state == State::Running, "{id:?} waits for one that does not run");
            }
            if !matches!(sequence.state, State::Running | State::Parked) {
                tokens += sequence.queued_tokens;
                deadlines += usize::from(sequence.deadline.is_some());
            }
            ensure!(
                sequence.state == State::Running || sequence.followers.is_empty(),
                "{id:?} has followers"
            );
        }
        let (found, counted) = ((deferred, deferred_idle, deadlines), self.waiting.audit());
        ensure!(found == counted, "{found:?} deferred, of them idle, and deadlines, {counted:?} counted");
        let counted = self.waiting.tokens();
        ensure!(tokens == counted, "{tokens} tokens wait, {counted} counted");
        let live = running.len() + queued.len() + deferred + self.waiting.parked();
        ensure!(count == live, "{count} sequences live, {live} listed or parked");
        Ok(())
    }

    /// Checks that paused sequences are counted, announce nothing and earn no share.
    fn check_shares(&self) -> Result<(), String> {
        let (mut paused, mut parked) = (0, 0);
        let mut shares: HashMap<u64, (usize, usize, usize)> = HashMap::new();
        for (id, sequence) in self.sequences.iter() {
            let runs = sequence.state == State::Running;
            if sequence.paused {
                paused += usize::from(runs);
                ensure!(runs || sequence.state == State::Parked, "{id:?} is paused and waits");
                ensure!(sequence.announced.0 == sequence.announced.1, "{id:?} is paused and announces");
                ensure!(sequence.followers.is_empty(), "{id:?} is paused and is waited for");
            }
            parked += usize::from(sequence.state == State::Parked);
            ensure!(sequence.paused || sequence.state != State::Parked, "{id:?} is parked for nothing");
            let share = shares.entry(sequence.tenant).or_default();
            if sequence.class != Class::Idle && !sequence.paused {
                let (places, blocks) = if runs { (1, sequence.blocks_held()) } else { (0, 0) };
                *share = (share.0 + places, share.1 + blocks, share.2 + 1);
            }
        }
        let counted = (self.running.paused(), self.waiting.parked());
        ensure!((paused, parked) == counted, "{:?} are paused, {counted:?} counted", (paused, parked));
        for (tenant, share) in shares {
            let counted =
                (self.tenants.running(tenant), self.tenants.blocks(tenant), self.tenants.busy(tenant));
            ensure!(
                share == counted,
                "tenant {tenant} has {share:?} places, blocks and calls, {counted:?} counted"
            );
        }
        Ok(())
    }

    fn check_announced(&self) -> Result<(), String> {
        for (key, &id) in self.prefixes.audit() {
            let sequence = self.sequences.get(id).ok_or_else(|| format!("{id:?} announced and is gone"))?;
            let (from, to) = sequence.announced;
            let own = sequence.keys.get(from..to).unwrap_or(&[]);
            ensure!(own.contains(key), "{id:?} announced a block that it will not compute");
        }
        Ok(())
    }
}

/// Checks that the blocks of a pool are conserved: each has as many holders as its count says, or is in a free list
/// once.
fn check_pool(pool: &BlockPool, holders: &HashMap<u32, u32>) -> Result<(), String> {
    let (blocks, free, index) = pool.audit();
    let listed: HashSet<_> = free.iter().copied().collect();
    ensure!(listed.len() == free.len(), "the free list has a block twice");
    ensure!(free.len() == pool.free(), "{} free listed, {} counted", free.len(), pool.free());
    let mut cached = 0;
    for (at, block) in blocks.iter().enumerate() {
        let id = at as u32;
        let held = holders.get(&id).copied().unwrap_or(0);
        ensure!(block.refs == held, "block {id}: {} references, {held} holders", block.refs);
        ensure!(listed.contains(&id) == (held == 0), "block {id}: {held} holders, wrongly listed");
        if let Some(prefix) = &block.cached {
            cached += 1;
            ensure!(index.get(&prefix.key) == Some(&id), "block {id} is not the one its key finds");
        }
    }
    ensure!(index.len() == cached, "{} keys for {cached} cached blocks", index.len());
    let near = pool.nearest().audit()?;
    ensure!(near == (cached, cached), "{near:?} blocks among their siblings and contents, {cached} cached");
    let is_cached = |id: &&u32| blocks.get(**id as usize).is_some_and(|block: &Block| block.cached.is_some());
    ensure!(free.iter().filter(is_cached).count() == pool.free_cached(), "cached free blocks miscounted");
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
                assert!(stranger.blocks_held() > 0);
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
            ("places, blocks and calls", |s| s.tenants.holds(1, Class::Normal, 1)),
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
