//! Limits how many calls one server handles at once, with a bounded queue that is fair by tenant. Must not know a
//! connection.
//!
//! A free place goes to the waiting tenant with the fewest places relative to its weight. Among equals, it goes to the
//! call that has waited longest. Within a tenant, the order is first come, first served. The last eighth of the queue
//! is reserved for tenants with few waiting calls, so that a flood from one tenant does not block the others.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use headrace_engine_api::{RelayError, Tenant};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::spec::QueueConfig;

/// One part in this many of the queue is reserved for tenants with few waiting calls.
const KEPT_FOR_OTHERS: usize = 8;
/// A tenant has few waiting calls if they fill less than one part in this many of the queue. It may always have one.
const LITTLE: usize = 64;

/// The places at one server.
#[derive(Debug)]
pub(crate) struct ConcurrencyGate {
    queue: QueueConfig,
    /// Used only if the number of places is bounded.
    held: Mutex<GateState>,
    /// How long places were held recently: a moving average in nanoseconds. 0 if unknown.
    held_ns: AtomicU64,
}

/// A call's tenant, and the tenant's weight relative to others, at least 1.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GateTenant {
    pub(crate) tenant: Tenant,
    pub(crate) weight: u32,
}

/// A call's place. Dropping it passes it to the next waiting call.
#[derive(Debug)]
pub(crate) struct ConcurrencySlot {
    gate: Arc<ConcurrencyGate>,
    since: Instant,
    /// `None` if places are not counted.
    tenant: Option<Tenant>,
}

/// Places in use, and waiting calls.
#[derive(Debug, Default)]
struct GateState {
    places: usize,
    waiting: usize,
    /// Holds only tenants with a place or a waiting call.
    tenants: HashMap<Tenant, TenantQueue>,
    /// Number of calls that ever waited. Gives the order of arrival.
    tickets: u64,
}

/// A tenant's places and waiting calls.
#[derive(Debug)]
struct TenantQueue {
    places: usize,
    weight: u32,
    queue: VecDeque<GateWaiter>,
}

#[derive(Debug)]
struct GateWaiter {
    ticket: u64,
    turn: oneshot::Sender<ConcurrencySlot>,
}

/// A position in the queue. Given up when dropped.
struct QueuedCall<'a> {
    gate: &'a ConcurrencyGate,
    tenant: Tenant,
    ticket: u64,
}

impl ConcurrencyGate {
    pub(crate) fn new(queue: QueueConfig) -> Self {
        Self { queue, held: Mutex::default(), held_ns: AtomicU64::new(0) }
    }

    /// Waits for a place, at most until `deadline`.
    ///
    /// # Errors
    /// [`RelayError::Unavailable`] if the queue is full or the wait took too long.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        asker: GateTenant,
        deadline: Instant,
    ) -> Result<ConcurrencySlot, RelayError> {
        let Some(most) = self.queue.in_flight else { return Ok(self.place(None)) };
        let (ticket, turn) = {
            let mut held = self.held.lock();
            if held.places < most && held.waiting == 0 {
                held.take(asker);
                return Ok(self.place(Some(asker.tenant)));
            }
            if !held.may_wait(asker.tenant, self.queue.waiting) {
                let why = format!("{} wait for one", held.waiting);
                drop(held);
                return Err(self.refused(most, &why));
            }
            held.join(asker)
        };
        let _waiting = QueuedCall { gate: self, tenant: asker.tenant, ticket };
        let until = deadline.min(Instant::now() + self.queue.wait);
        match tokio::time::timeout_at(until, turn).await {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(_)) | Err(_) => Err(self.refused(most, "none became free in time")),
        }
    }

    /// Returns the number of calls that wait for a place.
    pub(crate) fn waiting(&self) -> usize {
        self.held.lock().waiting
    }

    fn place(self: &Arc<Self>, tenant: Option<Tenant>) -> ConcurrencySlot {
        ConcurrencySlot { gate: Arc::clone(self), since: Instant::now(), tenant }
    }

    /// Returns a place of `tenant` and gives it to the next waiting call.
    fn give_back(self: &Arc<Self>, tenant: Tenant) {
        let next = {
            let mut held = self.held.lock();
            held.leave(tenant);
            held.next()
        };
        if let Some((tenant, turn)) = next {
            // If that call has stopped waiting, the place is dropped here and so passed on to the next one.
            drop(turn.send(self.place(Some(tenant))));
        }
    }

    fn refused(&self, most: usize, why: &str) -> RelayError {
        RelayError::Unavailable {
            why: format!("all {most} places that we take there are in use, and {why}"),
            retry_after: Some(self.expected_wait(most)),
        }
    }

    /// Estimates when a place may be free for one more call: the calls ahead of it at the recent pace. Clamped to 1 to
    /// 60 seconds.
    fn expected_wait(&self, places: usize) -> Duration {
        let ahead = u64::try_from(self.waiting() + 1).unwrap_or(u64::MAX);
        let places = u64::try_from(places.max(1)).unwrap_or(u64::MAX);
        let wait = Duration::from_nanos(self.held_ns.load(Ordering::Relaxed).saturating_mul(ahead) / places);
        wait.clamp(Duration::from_secs(1), Duration::from_secs(60))
    }
}

impl GateState {
    fn part(&mut self, asker: GateTenant) -> &mut TenantQueue {
        let weight = asker.weight.max(1);
        let part = self.tenants.entry(asker.tenant).or_insert_with(|| TenantQueue::new(weight));
        part.weight = weight;
        part
    }

    fn take(&mut self, asker: GateTenant) {
        self.part(asker).places += 1;
        self.places += 1;
    }

    /// Returns whether one more call of a tenant may wait.
    fn may_wait(&self, tenant: Tenant, most: usize) -> bool {
        let own = self.tenants.get(&tenant).map_or(0, |part| part.queue.len());
        let for_all = most - most / KEPT_FOR_OTHERS;
        self.waiting < for_all || (self.waiting < most && own < (most / LITTLE).max(1))
    }

    fn join(&mut self, asker: GateTenant) -> (u64, oneshot::Receiver<ConcurrencySlot>) {
        let (turn, waits) = oneshot::channel();
        self.tickets += 1;
        self.waiting += 1;
        let ticket = self.tickets;
        self.part(asker).queue.push_back(GateWaiter { ticket, turn });
        (ticket, waits)
    }

    /// Removes a call from the queue, if it still waits.
    fn give_up(&mut self, tenant: Tenant, ticket: u64) {
        let Some(part) = self.tenants.get_mut(&tenant) else { return };
        let before = part.queue.len();
        part.queue.retain(|waiter| waiter.ticket != ticket);
        self.waiting -= before - part.queue.len();
        self.forget(tenant);
    }

    fn leave(&mut self, tenant: Tenant) {
        self.places = self.places.saturating_sub(1);
        if let Some(part) = self.tenants.get_mut(&tenant) {
            part.places = part.places.saturating_sub(1);
        }
        self.forget(tenant);
    }

    /// Takes a place for the next waiting call, if there is one.
    fn next(&mut self) -> Option<(Tenant, oneshot::Sender<ConcurrencySlot>)> {
        let waits = |(tenant, part): (&Tenant, &TenantQueue)| Some((part.turn()?, *tenant));
        let (_, tenant) = self.tenants.iter().filter_map(waits).min_by_key(|(turn, _)| *turn)?;
        let part = self.tenants.get_mut(&tenant)?;
        let waiter = part.queue.pop_front()?;
        part.places += 1;
        self.places += 1;
        self.waiting -= 1;
        Some((tenant, waiter.turn))
    }

    fn forget(&mut self, tenant: Tenant) {
        if self.tenants.get(&tenant).is_some_and(|part| part.places == 0 && part.queue.is_empty()) {
            self.tenants.remove(&tenant);
        }
    }
}

impl TenantQueue {
    fn new(weight: u32) -> Self {
        Self { places: 0, weight, queue: VecDeque::new() }
    }

    /// Returns the sort key of the tenant's first waiting call: places held relative to weight, then order of arrival.
    /// `None` if no call waits.
    fn turn(&self) -> Option<(u64, u64)> {
        let first = self.queue.front()?;
        let places = u64::try_from(self.places).unwrap_or(u64::MAX);
        Some((places.saturating_mul(1 << 20) / u64::from(self.weight), first.ticket))
    }
}

impl Drop for QueuedCall<'_> {
    fn drop(&mut self) {
        self.gate.held.lock().give_up(self.tenant, self.ticket);
    }
}

impl Drop for ConcurrencySlot {
    fn drop(&mut self) {
        let held = u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // Two places that are dropped at the same time may lose one update. The value is only an estimate.
        let former = self.gate.held_ns.load(Ordering::Relaxed);
        let next = if former == 0 { held } else { former - former / 8 + held / 8 };
        self.gate.held_ns.store(next, Ordering::Relaxed);
        if let Some(tenant) = self.tenant {
            self.gate.give_back(tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn gate(in_flight: usize, waiting: usize) -> Arc<ConcurrencyGate> {
        let wait = Duration::from_secs(10);
        Arc::new(ConcurrencyGate::new(QueueConfig { in_flight: Some(in_flight), waiting, wait }))
    }

    fn in_an_hour() -> Instant {
        Instant::now() + Duration::from_secs(3600)
    }

    fn of(tenant: u64) -> GateTenant {
        GateTenant { tenant: Tenant(tenant), weight: 1 }
    }

    /// Lets each of these tenants call, each holding its place for a second. Returns the tenants in the order in which
    /// they got a place.
    async fn order_of(
        gate: &Arc<ConcurrencyGate>,
        first: ConcurrencySlot,
        askers: &[GateTenant],
    ) -> Vec<u64> {
        let (order, mut came) = tokio::sync::mpsc::unbounded_channel();
        for asker in askers.iter().copied() {
            let (gate, order) = (Arc::clone(gate), order.clone());
            tokio::spawn(async move {
                let place = gate.enter(asker, in_an_hour()).await.unwrap();
                order.send(asker.tenant.0).unwrap();
                tokio::time::sleep(Duration::from_millis(100)).await;
                drop(place);
            });
            tokio::task::yield_now().await;
        }
        assert_eq!(gate.waiting(), askers.len());
        drop((first, order));
        let mut all = Vec::new();
        while let Some(tenant) = came.recv().await {
            all.push(tenant);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(gate.waiting(), 0);
        assert!(gate.held.lock().tenants.is_empty(), "nothing is kept of who has nothing");
        all
    }

    #[tokio::test(start_paused = true)]
    async fn within_a_tenant_places_go_to_those_who_waited_longest() {
        let gate = gate(1, 8);
        let first = gate.enter(of(0), in_an_hour()).await.unwrap();
        let (order, mut came) = tokio::sync::mpsc::unbounded_channel();
        for number in 0..4 {
            let (gate, order) = (Arc::clone(&gate), order.clone());
            tokio::spawn(async move {
                let place = gate.enter(of(0), in_an_hour()).await.unwrap();
                order.send(number).unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
                drop(place);
            });
            tokio::task::yield_now().await;
        }
        assert_eq!(gate.waiting(), 4);
        drop(first);
        for number in 0..4 {
            assert_eq!(came.recv().await, Some(number));
        }
        assert_eq!(gate.waiting(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn one_who_floods_the_queue_holds_nobody_else_up() {
        let gate = gate(2, 64);
        let first = gate.enter(of(1), in_an_hour()).await.unwrap();
        let second = gate.enter(of(1), in_an_hour()).await.unwrap();
        // The flood already waits when two other tenants arrive with one call each.
        let mut askers = vec![of(1); 20];
        askers.extend([of(2), of(3)]);
        let waits = order_of(&gate, first, &askers);
        let keeps = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(second);
        };
        let (order, ()) = tokio::join!(waits, keeps);
        assert_eq!(order.len(), 22);
        assert!(order[..3].contains(&2) && order[..3].contains(&3), "{order:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn places_follow_weights() {
        let gate = gate(4, 256);
        let mut places = Vec::new();
        for _ in 0..4 {
            places.push(gate.enter(of(9), in_an_hour()).await.unwrap());
        }
        let heavy = GateTenant { tenant: Tenant(1), weight: 3 };
        let askers: Vec<_> = (0..80).map(|n| if n % 2 == 0 { heavy } else { of(2) }).collect();
        let first = places.pop().unwrap();
        let waits = order_of(&gate, first, &askers);
        let keeps = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(places);
        };
        let (order, ()) = tokio::join!(waits, keeps);
        // While both tenants wait, the heavier one has three of four places.
        let heavies = order[..32].iter().filter(|tenant| **tenant == 1).count();
        assert!((22..=26).contains(&heavies), "{heavies} of 32: {order:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_the_queue_is_kept_for_those_of_whom_little_waits() {
        let gate = gate(1, 64);
        let _place = gate.enter(of(1), in_an_hour()).await.unwrap();
        for tenant in std::iter::repeat_n(1, 56).chain(2..10) {
            let waits = Arc::clone(&gate);
            tokio::spawn(async move { waits.enter(of(tenant), in_an_hour()).await.map(drop) });
            tokio::task::yield_now().await;
            if tenant == 2 {
                let refused = gate.enter(of(1), in_an_hour()).await.unwrap_err();
                assert!(refused.to_string().contains("57 wait for one"), "{refused}");
            }
        }
        assert_eq!(gate.waiting(), 64);
        assert!(gate.enter(of(11), in_an_hour()).await.is_err(), "the queue is bounded for all");
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_and_a_long_wait_are_refused_with_when_to_come_again() {
        let gate = gate(1, 1);
        let place = gate.enter(of(0), in_an_hour()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(4)).await;
        drop(place);
        let _place = gate.enter(of(0), in_an_hour()).await.unwrap();
        let begun = Instant::now();
        let waiting = {
            let gate = Arc::clone(&gate);
            tokio::spawn(async move { gate.enter(of(0), in_an_hour()).await.map(drop) })
        };
        tokio::task::yield_now().await;
        let RelayError::Unavailable { why, retry_after } = gate.enter(of(0), in_an_hour()).await.unwrap_err()
        else {
            panic!("it is unavailable");
        };
        assert!(why.contains("all 1 places") && why.contains("1 wait for one"), "{why}");
        assert_eq!(retry_after, Some(Duration::from_secs(8)));
        let error = waiting.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("none became free in time"), "{error}");
        assert_eq!(begun.elapsed(), Duration::from_secs(10));
        // A call that stops waiting leaves the queue, and no place goes to it.
        drop(tokio::time::timeout(Duration::from_secs(1), gate.enter(of(0), in_an_hour())).await);
        assert_eq!(gate.waiting(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_given_to_one_who_has_just_left_goes_on() {
        let gate = gate(1, 8);
        let place = gate.enter(of(0), in_an_hour()).await.unwrap();
        let mut leaves = Box::pin(gate.enter(of(1), in_an_hour()));
        let mut stays = Box::pin(gate.enter(of(2), in_an_hour()));
        assert!((&mut leaves).now_or_never().is_none());
        assert!((&mut stays).now_or_never().is_none());
        // The place is given to the first call, which never polls for it.
        drop(place);
        assert_eq!(gate.waiting(), 1);
        drop(leaves);
        assert!((&mut stays).now_or_never().is_some());
    }
}
