//! The order of texts. They wait by tenant, and the tenant that was served least is next. Pure and synchronous.
//! Must not know: threads, time, or what a text is.
//!
//! Tenants are served by virtual token counters, divided by weight. A tenant that returns starts at the current
//! virtual time, so absence earns no credit. Idle texts are taken only if no normal text waits.

use std::collections::{BTreeMap, VecDeque};

use headrace_engine_api::{Priority, Tenant};

/// Counter units per token, so that a division by the weight stays precise.
const PARTS: u64 = 1 << 10;

/// A waiting text and its cost.
#[derive(Debug)]
pub(crate) struct Waiting<T> {
    pub(crate) what: T,
    pub(crate) tenant: Tenant,
    /// The tenant's share relative to others, at least 1.
    pub(crate) weight: u32,
    pub(crate) priority: Priority,
    /// Tokens of a batch that the text takes.
    pub(crate) tokens: usize,
}

#[derive(Debug)]
struct TenantQueue<T> {
    normal: VecDeque<Waiting<T>>,
    idle: VecDeque<Waiting<T>>,
    /// Counter units served, divided by weight.
    served: u64,
}

impl<T> TenantQueue<T> {
    fn of(&mut self, priority: Priority) -> &mut VecDeque<Waiting<T>> {
        match priority {
            Priority::Normal => &mut self.normal,
            Priority::Idle => &mut self.idle,
        }
    }

    fn list(&self, priority: Priority) -> &VecDeque<Waiting<T>> {
        match priority {
            Priority::Normal => &self.normal,
            Priority::Idle => &self.idle,
        }
    }

    fn len(&self) -> usize {
        self.normal.len() + self.idle.len()
    }
}

/// Waiting texts of all tenants.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    lines: BTreeMap<Tenant, TenantQueue<T>>,
    /// Virtual time: the largest `served` value at which a tenant was picked. A tenant that starts to wait begins at
    /// or above it.
    now: u64,
    texts: usize,
    tokens: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { lines: BTreeMap::new(), now: 0, texts: 0, tokens: 0 }
    }
}

impl<T> Queue<T> {
    /// Returns the number of waiting texts.
    pub(crate) fn texts(&self) -> usize {
        self.texts
    }

    /// Returns the tokens of all waiting texts.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Returns the number of waiting texts of one tenant.
    pub(crate) fn texts_of(&self, tenant: Tenant) -> usize {
        self.lines.get(&tenant).map_or(0, TenantQueue::len)
    }

    pub(crate) fn push(&mut self, waiting: Waiting<T>) {
        let now = self.now;
        let line = self.lines.entry(waiting.tenant).or_insert_with(|| TenantQueue {
            normal: VecDeque::new(),
            idle: VecDeque::new(),
            served: now,
        });
        if line.len() == 0 {
            line.served = line.served.max(now);
        }
        self.texts += 1;
        self.tokens += waiting.tokens as u64;
        line.of(waiting.priority).push_back(waiting);
    }

    /// Returns the texts of the next batch, the longest first. At least one text if any waits. At most `most_texts`
    /// texts and `most_tokens` tokens, except that a single longer text is a batch of its own.
    pub(crate) fn batch(&mut self, most_texts: usize, most_tokens: usize) -> Vec<Waiting<T>> {
        let mut batch: Vec<Waiting<T>> = Vec::new();
        let mut tokens = 0;
        let priority = match self.lines.values().any(|line| !line.normal.is_empty()) {
            true => Priority::Normal,
            false => Priority::Idle,
        };
        while batch.len() < most_texts {
            let least = self
                .lines
                .iter_mut()
                .filter(|(_, line)| !line.list(priority).is_empty())
                .min_by_key(|(tenant, line)| (line.served, **tenant));
            let Some((_, line)) = least else { break };
            let next = line.of(priority).front().map_or(0, |waiting| waiting.tokens);
            if !batch.is_empty() && tokens + next > most_tokens {
                break;
            }
            let Some(waiting) = line.of(priority).pop_front() else { break };
            self.now = self.now.max(line.served);
            let cost = (waiting.tokens as u64).saturating_mul(PARTS) / u64::from(waiting.weight.max(1));
            line.served = line.served.saturating_add(cost.max(1));
            self.texts -= 1;
            self.tokens -= waiting.tokens as u64;
            tokens += next;
            batch.push(waiting);
        }
        self.forget();
        batch.sort_by_key(|waiting| std::cmp::Reverse(waiting.tokens));
        batch
    }

    /// Removes and returns the texts for which `gone` returns true.
    pub(crate) fn remove(&mut self, mut gone: impl FnMut(&T) -> bool) -> Vec<Waiting<T>> {
        let mut removed = Vec::new();
        for line in self.lines.values_mut() {
            for list in [&mut line.normal, &mut line.idle] {
                if !list.iter().any(|waiting| gone(&waiting.what)) {
                    continue;
                }
                let (out, kept): (Vec<_>, Vec<_>) =
                    std::mem::take(list).into_iter().partition(|waiting| gone(&waiting.what));
                list.extend(kept);
                removed.extend(out);
            }
        }
        self.texts -= removed.len();
        self.tokens -= removed.iter().map(|waiting| waiting.tokens as u64).sum::<u64>();
        self.forget();
        removed
    }

    /// Forgets tenants that have no waiting text and whose counter is not ahead of the virtual time.
    fn forget(&mut self) {
        let now = self.now;
        self.lines.retain(|_, line| line.len() > 0 || line.served > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(tenant: u64, tokens: usize, weight: u32) -> Waiting<(u64, usize)> {
        let priority = Priority::Normal;
        Waiting { what: (tenant, tokens), tenant: Tenant(tenant), weight, priority, tokens }
    }

    fn drained(queue: &mut Queue<(u64, usize)>, batch: usize) -> Vec<u64> {
        let mut order = Vec::new();
        while queue.texts() > 0 {
            order.extend(queue.batch(batch, 1 << 20).into_iter().map(|waiting| waiting.what.0));
        }
        order
    }

    #[test]
    fn a_flood_does_not_keep_the_others_waiting() {
        let mut queue = Queue::default();
        (0..1000).for_each(|_| queue.push(text(1, 64, 1)));
        queue.batch(100, 1 << 20);
        // A tenant that comes late starts level with the flood and gets every second slot.
        (0..10).for_each(|_| queue.push(text(2, 64, 1)));
        let order = drained(&mut queue, 1);
        let last = order.iter().rposition(|tenant| *tenant == 2).unwrap();
        assert!(last <= 21, "the last of ten was number {last}");
        assert_eq!((queue.texts(), queue.tokens()), (0, 0));
    }

    #[test]
    fn shares_follow_weights_and_tokens() {
        let mut queue = Queue::default();
        for _ in 0..300 {
            queue.push(text(1, 16, 1));
            queue.push(text(2, 64, 2));
            queue.push(text(3, 16, 2));
        }
        let mut tokens = [0; 4];
        for _ in 0..200 {
            for waiting in queue.batch(1, 1) {
                tokens[waiting.what.0 as usize] += waiting.tokens;
            }
        }
        let [_, one, two, three] = tokens;
        for (weighed, other) in [(one * 2, two), (one * 2, three)] {
            assert!(weighed.abs_diff(other) <= 130, "{tokens:?}");
        }
    }

    #[test]
    fn being_away_earns_no_credit_and_being_ahead_is_not_forgotten() {
        let mut queue = Queue::default();
        for _ in 0..100 {
            queue.push(text(1, 64, 1));
            queue.batch(1, 1 << 20);
        }
        for _ in 0..4 {
            queue.push(text(1, 64, 1));
            queue.push(text(2, 64, 1));
        }
        let order = drained(&mut queue, 1);
        let firsts = order.iter().take(4).filter(|tenant| **tenant == 2).count();
        assert!((2..=3).contains(&firsts), "{order:?}");
    }

    #[test]
    fn idle_texts_are_taken_where_nothing_else_waits() {
        let mut queue = Queue::default();
        queue.push(Waiting { priority: Priority::Idle, ..text(1, 16, 1) });
        queue.push(text(2, 16, 1));
        let first: Vec<u64> = queue.batch(8, 1 << 20).iter().map(|waiting| waiting.what.0).collect();
        assert_eq!(first, [2]);
        assert_eq!(queue.batch(8, 1 << 20).len(), 1);
    }

    #[test]
    fn batches_keep_their_bounds_and_begin_with_the_longest() {
        let mut queue = Queue::default();
        for tokens in [16, 4096, 32, 48, 16] {
            queue.push(text(1, tokens, 1));
        }
        let mut batches = Vec::new();
        while queue.texts() > 0 {
            batches.push(queue.batch(3, 64).iter().map(|waiting| waiting.tokens).collect::<Vec<_>>());
        }
        assert_eq!(batches, [vec![16], vec![4096], vec![32], vec![48, 16]]);
    }

    #[test]
    fn what_is_gone_is_taken_out() {
        let mut queue = Queue::default();
        (0..10).for_each(|at| queue.push(text(at % 3, 16, 1)));
        let removed = queue.remove(|what| what.0 == 1);
        assert_eq!((removed.len(), queue.texts(), queue.tokens()), (3, 7, 7 * 16));
        assert_eq!(queue.texts_of(Tenant(1)), 0);
    }
}
