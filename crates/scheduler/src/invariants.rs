//! Whether the scheduler's books agree with each other: for tests and simulations, after every step.

use std::collections::{BTreeMap, HashMap, HashSet};

use headrace_domain::BLOCK_TOKENS;

use crate::sequence::{State, blocks_for};
use crate::{Scheduler, SeqId};

macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        if !$holds {
            return Err(format!($($message)+));
        }
    };
}

impl Scheduler {
    /// Checks every block, count and list against the others. Costs as much as there is state.
    ///
    /// # Errors
    /// What disagrees, in words.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.check_blocks()?;
        self.check_sharing()?;
        self.check_queue()?;
        self.check_shares()?;
        self.check_announced()
    }

    /// Blocks are conserved: each is held as often as its count says or stands in the free list once.
    fn check_blocks(&self) -> Result<(), String> {
        let (blocks, free, index) = self.pool.audit();
        let mut holders: HashMap<u32, u32> = HashMap::new();
        for (id, sequence) in self.sequences.iter() {
            let running = sequence.state == State::Running;
            ensure!(running || sequence.blocks.is_empty(), "{id:?} waits and holds blocks");
            ensure!(
                blocks_for(sequence.computed) <= sequence.blocks.len(),
                "{id:?} is computed beyond its blocks"
            );
            ensure!(sequence.computed <= sequence.known().len(), "{id:?} is computed beyond its tokens");
            let own: HashSet<_> = sequence.blocks.iter().collect();
            ensure!(own.len() == sequence.blocks.len(), "{id:?} has a block twice");
            for &block in &sequence.blocks {
                *holders.entry(block).or_default() += 1;
            }
        }
        let listed: HashSet<_> = free.iter().copied().collect();
        ensure!(listed.len() == free.len(), "the free list has a block twice");
        ensure!(free.len() == self.pool.free(), "{} free listed, {} counted", free.len(), self.pool.free());
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
        let near = self.pool.nearest().audit()?;
        ensure!(
            near == (cached, cached),
            "{near:?} blocks among their siblings and contents, {cached} cached"
        );
        let free_cached =
            free.iter().filter(|&&b| blocks.get(b as usize).is_some_and(|b| b.cached.is_some()));
        ensure!(free_cached.count() == self.pool.free_cached(), "cached free blocks miscounted");
        let promised: usize = self.sequences.iter().map(|(_, s)| s.promised).sum();
        ensure!(promised == self.promised, "{promised} blocks promised, {} counted", self.promised);
        Ok(())
    }

    /// No block is shared by two salts, and whoever shares one has the same tokens before and in it, all computed.
    fn check_sharing(&self) -> Result<(), String> {
        let (blocks, _, _) = self.pool.audit();
        let mut seen: BTreeMap<u32, (SeqId, usize)> = BTreeMap::new();
        for (id, sequence) in self.sequences.iter() {
            for (at, &block) in sequence.blocks.iter().enumerate() {
                let end = (at + 1) * BLOCK_TOKENS;
                if let Some(prefix) = blocks.get(block as usize).and_then(|b| b.cached.as_ref()) {
                    ensure!(prefix.salt == sequence.salt, "{id:?} holds block {block} of another salt");
                    let own = sequence.known().get(end - BLOCK_TOKENS..end);
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

    /// Each sequence stands in exactly the one list that its state says.
    fn check_queue(&self) -> Result<(), String> {
        let queued = self.queue.audit()?;
        let ids: HashSet<_> = queued.iter().map(|&(id, ..)| id).collect();
        ensure!(ids.len() == queued.len(), "a sequence is queued twice");
        for &(id, tenant, class) in &queued {
            let sequence = self.sequences.get(id).ok_or_else(|| format!("{id:?} is queued and gone"))?;
            ensure!(sequence.tenant == tenant && sequence.class == class, "{id:?} is in another's queue");
        }
        let running: HashSet<_> = self.running.iter().copied().collect();
        ensure!(running.len() == self.running.len(), "a sequence runs twice");
        ensure!(running.len() <= self.config.max_running, "{} run", running.len());
        let (mut deferred, mut tokens, mut deadlines, mut count) = (0, 0, 0, 0);
        for (id, sequence) in self.sequences.iter() {
            count += 1;
            ensure!(
                running.contains(&id) == (sequence.state == State::Running),
                "{id:?} wrongly runs or does not"
            );
            ensure!(ids.contains(&id) == (sequence.state == State::Waiting), "{id:?} wrongly queued or not");
            if let State::Deferred(leader) = sequence.state {
                deferred += 1;
                let leader = self.sequences.get(leader).ok_or_else(|| format!("{id:?} waits for nobody"))?;
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
        ensure!(deferred == self.deferred, "{deferred} deferred, {} counted", self.deferred);
        ensure!(tokens == self.waiting_tokens, "{tokens} tokens wait, {} counted", self.waiting_tokens);
        ensure!(deadlines == self.deadlines.len(), "{deadlines} deadlines, {} listed", self.deadlines.len());
        let live = running.len() + queued.len() + deferred + self.parked;
        ensure!(count == live, "{count} sequences live, {live} listed or parked");
        Ok(())
    }

    /// What stands still is counted, announces nothing and counts for nobody's share.
    fn check_shares(&self) -> Result<(), String> {
        let (mut still, mut parked) = (0, 0);
        let mut shares: HashMap<u64, (usize, usize, usize)> = HashMap::new();
        for (id, sequence) in self.sequences.iter() {
            let runs = sequence.state == State::Running;
            if sequence.paused {
                still += usize::from(runs);
                ensure!(runs || sequence.state == State::Parked, "{id:?} stands still and waits");
                ensure!(sequence.announced.0 == sequence.announced.1, "{id:?} stands still and announces");
                ensure!(sequence.followers.is_empty(), "{id:?} stands still and is waited for");
            }
            parked += usize::from(sequence.state == State::Parked);
            ensure!(sequence.paused || sequence.state != State::Parked, "{id:?} is parked for nothing");
            let share = shares.entry(sequence.tenant).or_default();
            if sequence.class != crate::Class::Idle && !sequence.paused {
                let (places, blocks) = if runs { (1, sequence.blocks.len()) } else { (0, 0) };
                *share = (share.0 + places, share.1 + blocks, share.2 + 1);
            }
        }
        let counted = (self.paused_running, self.parked);
        ensure!((still, parked) == counted, "{:?} stand still, {counted:?} counted", (still, parked));
        for (tenant, share) in shares {
            let counted = (self.queue.running(tenant), self.queue.blocks(tenant), self.queue.busy(tenant));
            ensure!(
                share == counted,
                "tenant {tenant} has {share:?} places, blocks and calls, {counted:?} counted"
            );
        }
        Ok(())
    }

    fn check_announced(&self) -> Result<(), String> {
        for (key, &id) in &self.announced {
            let sequence = self.sequences.get(id).ok_or_else(|| format!("{id:?} announced and is gone"))?;
            let (from, to) = sequence.announced;
            let own = sequence.keys.get(from..to).unwrap_or(&[]);
            ensure!(own.contains(key), "{id:?} announced a block that it will not compute");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use headrace_domain::CacheSalt;

    use super::*;
    use crate::scheduler::Outcome;
    use crate::{Class, SchedulerConfig, SequenceSpec};

    /// Two running sequences of two tenants that share nothing, one that waits, and some cached blocks.
    fn busy() -> Scheduler {
        let config = SchedulerConfig { max_running: 2, ..SchedulerConfig::default() };
        let mut s = Scheduler::new(config, 64).unwrap();
        for (tenant, first) in [(1, 0), (2, 1000), (1, 2000)] {
            let spec = SequenceSpec {
                prompt: (first..first + 50).collect::<Arc<[u32]>>(),
                max_new: 9,
                salt: CacheSalt::derive(&[1; 32], &tenant.to_string(), "m", None),
                keys: None,
                tenant,
                weight: 1,
                class: Class::Normal,
                start_deadline_ns: None,
                score_prompt: false,
            };
            s.add(&spec, 0).unwrap();
        }
        let chunks = s.plan(0).chunks.len();
        s.commit(&vec![Outcome::Token(5); chunks], 0);
        s.plan(0);
        s.check_invariants().unwrap();
        s
    }

    fn running(s: &mut Scheduler, at: usize) -> &mut crate::sequence::Sequence {
        let id = s.running[at];
        s.sequences.get_mut(id).unwrap()
    }

    /// The checks can fail: each book is falsified in turn.
    #[test]
    fn a_falsified_book_is_caught() {
        type Falsify = fn(&mut Scheduler);
        let rows: [(&str, Falsify); 13] = [
            // One reference fewer, or more, than holders.
            ("references", |s| {
                let block = running(s, 0).blocks[0];
                s.pool.release(block);
            }),
            ("references", |s| {
                let block = running(s, 0).blocks[0];
                s.pool.share(block, true);
            }),
            ("has a block twice", |s| {
                let blocks = &mut running(s, 0).blocks;
                let first = blocks[0];
                blocks.push(first);
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
            ("blocks promised", |s| s.promised += 1),
            ("tokens wait", |s| s.waiting_tokens += 1),
            ("wrongly runs", |s| {
                s.running.pop();
            }),
            ("places, blocks and calls", |s| s.queue.holds(1, Class::Normal, 1)),
            ("stand still", |s| s.paused_running += 1),
            ("will not compute", |s| {
                let key = running(s, 1).keys[0];
                let id = s.running[0];
                s.announced.insert(key, id);
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
