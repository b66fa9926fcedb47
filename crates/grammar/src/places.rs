//! The slots in which forms are compiled, shared fairly by tenants. No tenant has more than half of them, and the
//! tenant with the fewest comes first. No two slots compile the same form. Knows no grammar.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::bounds::{MAX_COMPILING_THREADS, MAX_TENANT_WAITS, MOST_WAIT};
use crate::cache::Key;
use crate::fault::GrammarFault;

/// The compile slots of one vocabulary.
pub(crate) struct CompileSlots {
    taken: Mutex<TakenSlots>,
    /// Signalled when a slot is freed or a waiter leaves.
    changed: Condvar,
}

struct TakenSlots {
    /// Number of slots, at least two.
    most: usize,
    places: Vec<SlotEntry>,
    waiting: Vec<SlotEntry>,
    /// Number of waiters so far.
    count: u64,
}

#[derive(Clone, Copy)]
struct SlotEntry {
    number: u64,
    tenant: u64,
    key: Key,
}

/// A compile slot, held until this is dropped.
pub(crate) struct CompileSlot {
    places: Arc<CompileSlots>,
    pub(crate) key: Key,
}

impl Default for CompileSlots {
    /// One slot per processor, at least two and at most [`MAX_COMPILING_THREADS`], so that compiling keeps few
    /// processors busy.
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let taken = Mutex::new(TakenSlots::new(processors.clamp(2, MAX_COMPILING_THREADS)));
        Self { taken, changed: Condvar::new() }
    }
}

impl TakenSlots {
    fn new(most: usize) -> Self {
        Self { most, places: Vec::new(), waiting: Vec::new(), count: 0 }
    }

    fn places_of(&self, tenant: u64) -> usize {
        self.places.iter().filter(|place| place.tenant == tenant).count()
    }

    /// The next waiter, if a slot is free for one.
    fn next(&self) -> Option<SlotEntry> {
        if self.places.len() >= self.most {
            return None;
        }
        let may = |waiter: &&SlotEntry| {
            self.places_of(waiter.tenant) < self.most / 2
                && self.places.iter().all(|place| place.key != waiter.key)
        };
        let waiters = self.waiting.iter().filter(may);
        waiters.min_by_key(|waiter| (self.places_of(waiter.tenant), waiter.number)).copied()
    }

    fn wait(&mut self, tenant: u64, key: Key) -> Result<u64, GrammarFault> {
        if self.waiting.iter().filter(|waiter| waiter.tenant == tenant).count() >= MAX_TENANT_WAITS {
            return Err(GrammarFault::Busy);
        }
        self.count += 1;
        self.waiting.push(SlotEntry { number: self.count, tenant, key });
        Ok(self.count)
    }

    fn leave(&mut self, number: u64) {
        self.waiting.retain(|waiter| waiter.number != number);
    }
}

impl CompileSlot {
    /// Waits for a slot, for at most [`MOST_WAIT`].
    ///
    /// # Errors
    /// [`GrammarFault::Busy`] if no slot is free in time, or too many of the tenant's forms wait.
    pub(crate) fn take(places: &Arc<CompileSlots>, key: Key, tenant: u64) -> Result<Self, GrammarFault> {
        let until = Instant::now() + MOST_WAIT;
        let mut taken = places.taken.lock();
        let number = taken.wait(tenant, key)?;
        loop {
            if let Some(next) = taken.next().filter(|next| next.number == number) {
                taken.leave(number);
                taken.places.push(next);
                // A slot may be free for the next waiter too.
                places.changed.notify_all();
                return Ok(Self { places: Arc::clone(places), key });
            }
            if places.changed.wait_until(&mut taken, until).timed_out() {
                taken.leave(number);
                places.changed.notify_all();
                return Err(GrammarFault::Busy);
            }
        }
    }
}

impl Drop for CompileSlot {
    fn drop(&mut self) {
        self.places.taken.lock().places.retain(|place| place.key != self.key);
        self.places.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(at: u8) -> Key {
        [at; 32]
    }

    /// Gives out slots while some waiter may have one. Returns the tenants in that order.
    fn fill(taken: &mut TakenSlots) -> Vec<u64> {
        let mut given = Vec::new();
        while let Some(next) = taken.next() {
            taken.leave(next.number);
            taken.places.push(next);
            given.push(next.tenant);
        }
        given
    }

    #[test]
    fn no_tenant_has_all_places_and_who_has_fewest_comes_first() {
        let mut taken = TakenSlots::new(MAX_COMPILING_THREADS);
        for at in 0..12 {
            taken.wait(1, key(at)).unwrap();
        }
        assert_eq!(fill(&mut taken), [1; 2]);
        taken.wait(2, key(100)).unwrap();
        assert_eq!(fill(&mut taken), [2], "a place is left for another tenant");
        for tenant in [3, 4] {
            taken.wait(tenant, key(100 + tenant as u8)).unwrap();
        }
        assert_eq!(fill(&mut taken), [3]);
        taken.places.retain(|place| place.key != key(0));
        assert_eq!(fill(&mut taken), [4], "before the ten of the first tenant, which came earlier");
    }

    #[test]
    fn on_two_processors_a_tenant_has_one_place() {
        let mut taken = TakenSlots::new(2);
        for (at, tenant) in (0..).zip([1, 1, 1, 2, 3]) {
            taken.wait(tenant, key(at)).unwrap();
        }
        assert_eq!(fill(&mut taken), [1, 2]);
    }

    #[test]
    fn forms_of_one_tenant_that_wait_are_bounded() {
        let mut taken = TakenSlots::new(MAX_COMPILING_THREADS);
        let waits = (0..100).filter(|at| taken.wait(1, key(*at)).is_ok()).count();
        assert_eq!(waits, MAX_TENANT_WAITS);
        assert!(taken.wait(2, key(200)).is_ok());
    }

    #[test]
    fn the_same_form_is_compiled_once_at_a_time() {
        let mut taken = TakenSlots::new(MAX_COMPILING_THREADS);
        taken.wait(1, key(1)).unwrap();
        taken.wait(2, key(1)).unwrap();
        taken.wait(3, key(2)).unwrap();
        assert_eq!(fill(&mut taken), [1, 3]);
        taken.places.clear();
        assert_eq!(fill(&mut taken), [2]);
    }
}
