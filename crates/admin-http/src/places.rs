//! Slots that operators share: a bound over all of them, a bound for each operator, and slots left for the next ones.
//! Knows counts only. A holder is any value that can be compared.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Slots, counted by holder.
///
/// A holder gets one more slot only while more slots are free than it has (dynamic thresholds, Choudhury and Hahne 1998). So
/// one that takes all it can get leaves at least half of what was free.
#[derive(Debug)]
pub(crate) struct HolderSlots<K> {
    shared: Arc<SlotCounts<K>>,
}

#[derive(Debug)]
struct SlotCounts<K> {
    all: usize,
    of_holder: usize,
    taken: Mutex<TakenSlots<K>>,
}

#[derive(Debug)]
struct TakenSlots<K> {
    all: usize,
    /// Only holders that have a slot.
    of_holder: HashMap<K, usize>,
}

/// One slot of a holder. Dropping it gives the slot back.
#[derive(Debug)]
pub(crate) struct HolderSlot<K: Eq + Hash> {
    shared: Arc<SlotCounts<K>>,
    holder: K,
}

/// Which bound leaves no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// The holder has this many slots, as many as it may have now.
    OfHolder(usize),
    /// All of this many slots are taken.
    All(usize),
}

impl<K: Eq + Hash + Clone> HolderSlots<K> {
    /// Makes a table of `all` slots. One holder has at most `of_holder` of them.
    pub(crate) fn new(all: usize, of_holder: usize) -> Self {
        let taken = Mutex::new(TakenSlots { all: 0, of_holder: HashMap::new() });
        Self { shared: Arc::new(SlotCounts { all, of_holder, taken }) }
    }

    /// Takes one slot for `holder`.
    ///
    /// # Errors
    /// [`NoPlace`]
    pub(crate) fn take(&self, holder: K) -> Result<HolderSlot<K>, NoPlace> {
        let SlotCounts { all, of_holder, .. } = *self.shared;
        let mut taken = self.shared.taken();
        let free = all.saturating_sub(taken.all);
        let has = taken.of_holder.get(&holder).copied().unwrap_or(0);
        if free == 0 && has == 0 {
            return Err(NoPlace::All(all));
        }
        if has >= of_holder || has >= free {
            return Err(NoPlace::OfHolder(has));
        }
        taken.all += 1;
        *taken.of_holder.entry(holder.clone()).or_default() += 1;
        Ok(HolderSlot { shared: Arc::clone(&self.shared), holder })
    }
}

impl<K> SlotCounts<K> {
    fn taken(&self) -> MutexGuard<'_, TakenSlots<K>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash> Drop for HolderSlot<K> {
    fn drop(&mut self) {
        let mut taken = self.shared.taken();
        taken.all = taken.all.saturating_sub(1);
        if let Some(has) = taken.of_holder.get_mut(&self.holder) {
            *has -= 1;
            if *has == 0 {
                taken.of_holder.remove(&self.holder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes as many slots as there are for `holder`, and returns why there is no further one.
    fn all_of(places: &HolderSlots<u32>, holder: u32) -> (Vec<HolderSlot<u32>>, NoPlace) {
        let mut held = Vec::new();
        loop {
            match places.take(holder) {
                Ok(place) => held.push(place),
                Err(why) => return (held, why),
            }
        }
    }

    #[test]
    fn one_holder_has_at_most_its_share() {
        let places = HolderSlots::new(256, 64);
        let (held, why) = all_of(&places, 1);
        assert_eq!((held.len(), why), (64, NoPlace::OfHolder(64)));
        drop(held);
        assert_eq!(places.shared.taken().all, 0);
        assert!(places.shared.taken().of_holder.is_empty(), "nothing is kept of holders without slots");
    }

    #[test]
    fn a_greedy_holder_leaves_half_of_what_is_free() {
        let places = HolderSlots::new(256, 200);
        let mut held = Vec::new();
        for (holder, most) in [(1, 128), (2, 64), (3, 32), (4, 16)] {
            let (slots, why) = all_of(&places, holder);
            assert_eq!((slots.len(), why), (most, NoPlace::OfHolder(most)));
            held.push(slots);
        }
        assert!(places.take(5).is_ok());
    }

    #[test]
    fn the_bound_over_all_holds() {
        let places = HolderSlots::new(3, 3);
        let held: Vec<_> = (0..3).map(|holder| places.take(holder).unwrap()).collect();
        assert_eq!(places.take(9).err(), Some(NoPlace::All(3)));
        assert_eq!(places.take(1).err(), Some(NoPlace::OfHolder(1)));
        drop(held);
        assert_eq!(places.shared.taken().all, 0);
    }
}
