//! Slots shared by organisations. A free slot goes to the organisation with the fewest. Each organisation may also
//! have a few of its own, even if all shared ones are taken. Must not know what a slot is used for.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use headrace_domain::OrgId;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The slots, and the queues of those that wait for one.
#[derive(Debug)]
pub struct OrgSlots {
    /// Slots that all organisations share.
    shared: usize,
    /// Slots that each organisation may have even if all shared ones are taken.
    own: usize,
    state: Mutex<SlotState>,
}

#[derive(Debug, Default)]
struct SlotState {
    /// Slots taken by all organisations.
    taken: usize,
    /// Slots granted so far. Serves as the logical time of this file.
    handed_out: u64,
    /// Organisations that have a slot or wait for one.
    orgs: HashMap<OrgId, OrgShare>,
}

#[derive(Debug, Default)]
struct OrgShare {
    taken: usize,
    /// Logical time at which the organisation last got a slot.
    last: u64,
    waiting: VecDeque<oneshot::Sender<OrgSlot>>,
}

/// A slot of an organisation. Dropping it frees the slot.
#[derive(Debug)]
pub struct OrgSlot {
    places: Arc<OrgSlots>,
    org: OrgId,
}

impl OrgSlots {
    /// Creates `shared` slots for all, and `own` slots for each organisation.
    pub fn new(shared: usize, own: usize) -> Arc<Self> {
        Arc::new(Self { shared, own, state: Mutex::default() })
    }

    /// Waits for a slot. Within an organisation the request that has waited longest is next.
    pub async fn take(self: &Arc<Self>, org: &OrgId) -> OrgSlot {
        loop {
            let (sender, receiver) = oneshot::channel();
            self.state.lock().orgs.entry(org.clone()).or_default().waiting.push_back(sender);
            self.hand_out();
            // The sender stays in the queue until it is used, so this cannot fail while `self` exists.
            if let Ok(place) = receiver.await {
                return place;
            }
        }
    }

    /// Grants the free slots.
    fn hand_out(self: &Arc<Self>) {
        while let Some((receiver, place)) = self.next() {
            // If the receiver is gone, `send` returns the slot. Dropping it here, outside the lock, frees it.
            drop(receiver.send(place));
        }
    }

    /// The next request that gets a slot. The slot is counted as taken.
    fn next(self: &Arc<Self>) -> Option<(oneshot::Sender<OrgSlot>, OrgSlot)> {
        let state = &mut *self.state.lock();
        for share in state.orgs.values_mut() {
            share.waiting.retain(|sender| !sender.is_closed());
        }
        state.orgs.retain(|_, share| share.taken > 0 || !share.waiting.is_empty());
        let is_free = state.taken < self.shared;
        let may = |share: &OrgShare| !share.waiting.is_empty() && (is_free || share.taken < self.own);
        let next = state.orgs.iter_mut().filter(|(_, share)| may(share));
        let (org, share) = next.min_by_key(|(_, share)| (share.taken, share.last))?;
        let sender = share.waiting.pop_front()?;
        state.taken += 1;
        state.handed_out += 1;
        (share.taken, share.last) = (share.taken + 1, state.handed_out);
        Some((sender, OrgSlot { places: Arc::clone(self), org: org.clone() }))
    }
}

impl Drop for OrgSlot {
    fn drop(&mut self) {
        {
            let mut state = self.places.state.lock();
            state.taken = state.taken.saturating_sub(1);
            if let Some(share) = state.orgs.get_mut(&self.org) {
                share.taken = share.taken.saturating_sub(1);
            }
        }
        self.places.hand_out();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn org(name: &str) -> OrgId {
        OrgId::new(name).unwrap()
    }

    async fn is_free(places: &Arc<OrgSlots>, org: &OrgId) -> Option<OrgSlot> {
        tokio::time::timeout(Duration::from_millis(1), places.take(org)).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn an_organisation_that_has_all_places_keeps_no_other_from_its_own() {
        let places = OrgSlots::new(4, 2);
        let (a, b, c) = (org("a"), org("b"), org("c"));
        let mut held = Vec::new();
        while let Some(place) = is_free(&places, &a).await {
            held.push(place);
        }
        assert_eq!(held.len(), 4);
        for other in [&b, &c] {
            let own = [is_free(&places, other).await, is_free(&places, other).await];
            assert!(own.iter().all(Option::is_some), "two are its own");
            assert!(is_free(&places, other).await.is_none());
        }
        drop(held);
        assert!(is_free(&places, &b).await.is_some());
        let state = places.state.lock();
        assert_eq!((state.taken, state.orgs.len()), (0, 0), "nothing is kept of organisations that are gone");
    }

    /// Under any load, a free slot goes to the organisation with the fewest, and every waiting request is served.
    #[tokio::test(start_paused = true)]
    async fn a_free_place_goes_to_the_organisation_with_the_fewest() {
        let places = OrgSlots::new(4, 1);
        let (a, b) = (org("a"), org("b"));
        let mut of_a: Vec<_> = Vec::new();
        for _ in 0..4 {
            of_a.push(places.take(&a).await);
        }
        let taken = Arc::new(Mutex::new(Vec::new()));
        let waits = |org: &OrgId, count: usize| {
            for _ in 0..count {
                let (places, org, taken) = (Arc::clone(&places), org.clone(), Arc::clone(&taken));
                tokio::spawn(async move {
                    let place = places.take(&org).await;
                    taken.lock().push((org.to_string(), place));
                });
            }
        };
        // One organisation queues many requests before another queues a few.
        waits(&a, 20);
        tokio::task::yield_now().await;
        waits(&b, 3);
        tokio::time::sleep(Duration::from_millis(1)).await;
        let names = || taken.lock().iter().map(|(org, _)| org.clone()).collect::<Vec<_>>();
        assert_eq!(names(), ["b"], "its own, beyond the four");
        // Two slots become free. One makes up for `b`'s extra slot. The other goes to `b`, which has one while `a`
        // has two.
        of_a.truncate(2);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(names(), ["b", "b"]);
        of_a.clear();
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut all = names();
        all.sort();
        assert_eq!(all, ["a", "a", "b", "b"], "two and two");
        // All requests are served in the end.
        let mut served = 0;
        while served < 23 {
            let places: Vec<_> = taken.lock().drain(..).collect();
            assert!(!places.is_empty(), "{served} were served");
            served += places.len();
            drop(places);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_waits_no_longer_takes_no_place_along() {
        let places = OrgSlots::new(1, 0);
        let (a, b) = (org("a"), org("b"));
        let held = places.take(&a).await;
        for _ in 0..3 {
            assert!(is_free(&places, &b).await.is_none());
        }
        // The waiting future gets a slot, and is dropped without being polled again.
        let mut waits = Box::pin(places.take(&b));
        assert!(futures_util::poll!(&mut waits).is_pending());
        drop(held);
        drop(waits);
        assert!(is_free(&places, &a).await.is_some());
    }
}
