//! The outbox of webhooks in a file and in a database: at least once with the same id, over crashes and several gateways.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

#[allow(dead_code, reason = "other tests use the rest")]
mod shared;

use std::collections::BTreeMap;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use headrace_domain::UnixNanos;
use headrace_ledger::{DeliveryOutcome, DeliveryState, DueDelivery, EventOutbox, OutboxEvent};
use shared::{TestPlace, check_all};

const NOW: UnixNanos = UnixNanos::new(1_790_000_000_000_000_000);

fn event(number: u64) -> OutboxEvent {
    OutboxEvent {
        id: format!("evt_{number}"),
        kind: "budget.alert".to_owned(),
        at: UnixNanos::new(NOW.get() + number),
        body: format!("{{\"n\":{number}}}"),
    }
}

fn names(all: &[&str]) -> Vec<String> {
    all.iter().map(|name| (*name).to_owned()).collect()
}

fn ids(due: &[DueDelivery]) -> Vec<String> {
    let mut ids: Vec<String> =
        due.iter().map(|due| format!("{} {} {}", due.event.id, due.endpoint, due.tries)).collect();
    ids.sort();
    ids
}

/// A seeded sequence of random numbers.
struct SeededNumbers(u64);

impl SeededNumbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }
}

fn events_are_taken_in_once_and_claimed_by_one(place: &TestPlace) {
    let (one, other) = (place.outbox(), place.outbox());
    let endpoints = names(&["ops", "mail"]);
    assert_eq!(one.position(7).unwrap(), 7);
    assert_eq!(other.position(9).unwrap(), 7, "the first start counts");
    one.take_in(7, 10, &[event(1), event(2)], &endpoints).unwrap();
    other.take_in(7, 10, &[event(1), event(3)], &endpoints).unwrap();
    assert_eq!(other.position(0).unwrap(), 10);
    let lease = Duration::from_secs(600);
    let first = one.claim(&endpoints, UnixNanos::new(NOW.get() + 10), lease, 3).unwrap();
    let second = other.claim(&endpoints, UnixNanos::new(NOW.get() + 10), lease, 3).unwrap();
    assert_eq!((first.len(), second.len()), (3, 1), "one outbox gives each delivery to one gateway");
    assert!(one.claim(&endpoints, UnixNanos::new(NOW.get() + 10), lease, 3).unwrap().is_empty());
    let all: Vec<DueDelivery> = first.into_iter().chain(second).collect();
    assert_eq!(ids(&all), ["evt_1 mail 0", "evt_1 ops 0", "evt_2 mail 0", "evt_2 ops 0"]);
    assert_eq!(all[0].event.body, event(all[0].event.id[4..].parse().unwrap()).body);
}

fn results_are_shown_and_a_gone_endpoint_waits_until_it_is_resumed(place: &TestPlace) {
    let outbox = place.outbox();
    let endpoints = names(&["ops"]);
    outbox.position(0).unwrap();
    outbox.take_in(0, 1, &[event(1), event(2), event(3)], &endpoints).unwrap();
    let now = UnixNanos::new(NOW.get() + 10);
    let claim = || outbox.claim(&endpoints, now, Duration::ZERO, 1).unwrap();
    let first = claim();
    outbox
        .record(&first[0], now, "status 500", DeliveryOutcome::Retry(now.after(Duration::from_secs(900))))
        .unwrap();
    let second = claim();
    outbox.record(&second[0], now, "status 204", DeliveryOutcome::Delivered).unwrap();
    let third = claim();
    assert_eq!(third[0].event.id, "evt_3");
    outbox.record(&third[0], now, "status 410", DeliveryOutcome::EndpointGone).unwrap();
    assert!(claim().is_empty());
    let reopened = place.outbox();
    let gone: Vec<String> = reopened.gone().unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(gone, ["ops"]);
    let shown: Vec<_> = reopened
        .deliveries(10)
        .unwrap()
        .into_iter()
        .map(|record| (record.event, record.state, record.tries, record.last.map(|(_, result)| result)))
        .collect();
    let result = |text: &str| Some(text.to_owned());
    assert_eq!(
        shown,
        [
            ("evt_3".to_owned(), DeliveryState::Pending, 1, result("status 410")),
            ("evt_2".to_owned(), DeliveryState::Delivered, 1, result("status 204")),
            ("evt_1".to_owned(), DeliveryState::Pending, 1, result("status 500")),
        ]
    );
    reopened.resume("ops").unwrap();
    assert_eq!(ids(&claim()), ["evt_3 ops 1"], "the first one waits for its time");
    outbox.sweep(UnixNanos::new(NOW.get() + 3)).unwrap();
    let left: Vec<String> = outbox.deliveries(10).unwrap().into_iter().map(|record| record.event).collect();
    assert_eq!(left, ["evt_3"]);
}

fn claims_at_the_same_time_share_no_delivery(place: &TestPlace) {
    const ROUNDS: u64 = 40;
    let gateways = [place.outbox(), place.outbox()];
    let endpoints = names(&["ops"]);
    gateways[0].position(0).unwrap();
    let events: Vec<OutboxEvent> = (0..4 * ROUNDS).map(event).collect();
    gateways[0].take_in(0, 1, &events, &endpoints).unwrap();
    let (now, lease) = (UnixNanos::new(NOW.get() + 4 * ROUNDS), Duration::from_secs(600));
    let start = Barrier::new(2);
    let claimed = std::thread::scope(|scope| {
        let claims = gateways.each_ref().map(|outbox| {
            let (start, endpoints) = (&start, &endpoints);
            scope.spawn(move || {
                let mut claimed = Vec::new();
                for _ in 0..ROUNDS {
                    start.wait();
                    claimed.extend(outbox.claim(endpoints, now, lease, 2).unwrap());
                }
                claimed
            })
        });
        claims.map(|claims| claims.join().unwrap()).concat()
    });
    let mut found: Vec<&str> = claimed.iter().map(|due| due.event.id.as_str()).collect();
    found.sort_unstable();
    let mut all: Vec<&str> = events.iter().map(|event| event.id.as_str()).collect();
    all.sort_unstable();
    assert_eq!(found, all, "each delivery has one claim");
}

fn a_late_result_of_a_delivered_event_changes_nothing(place: &TestPlace) {
    let (late, other) = (place.outbox(), place.outbox());
    let endpoints = names(&["ops"]);
    late.position(0).unwrap();
    late.take_in(0, 1, &[event(1)], &endpoints).unwrap();
    let now = UnixNanos::new(NOW.get() + 10);
    let claim = |outbox: &Arc<dyn EventOutbox>| outbox.claim(&endpoints, now, Duration::ZERO, 1).unwrap();
    // The lease of the first gateway ends before its endpoint answers.
    let (first, second) = (claim(&late), claim(&other));
    assert_eq!(first, second);
    other.record(&second[0], now, "status 204", DeliveryOutcome::Delivered).unwrap();
    let delivered = other.deliveries(10).unwrap();
    assert_eq!((delivered[0].state, delivered[0].tries), (DeliveryState::Delivered, 1));
    for outcome in [DeliveryOutcome::Retry(NOW), DeliveryOutcome::Failed, DeliveryOutcome::Delivered] {
        late.record(&first[0], now, "no answer in time", outcome).unwrap();
        assert_eq!(other.deliveries(10).unwrap(), delivered, "{outcome:?}");
    }
    assert!(claim(&late).is_empty());
}

fn an_outbox_is_copied_to_another_place_and_back_with_everything_that_waits(place: &TestPlace) {
    let outbox = place.outbox();
    let endpoints = names(&["ops", "mail"]);
    let files = TestPlace::of_files();
    assert_eq!((place.copy_outbox_to(&files), files.files_in_folder().len()), (0, 0), "nothing to copy");
    outbox.position(7).unwrap();
    outbox.take_in(7, 10, &[event(1), event(2), event(3)], &endpoints).unwrap();
    let now = UnixNanos::new(NOW.get() + 10);
    let later = DeliveryOutcome::Retry(now.after(Duration::from_secs(900)));
    let due = outbox.claim(&names(&["ops"]), now, Duration::ZERO, 3).unwrap();
    for (delivery, outcome) in due.iter().zip([DeliveryOutcome::Delivered, later, DeliveryOutcome::Failed]) {
        outbox.record(delivery, now, "tried", outcome).unwrap();
    }
    let due = outbox.claim(&names(&["mail"]), now, Duration::ZERO, 1).unwrap();
    outbox.record(&due[0], now, "status 410", DeliveryOutcome::EndpointGone).unwrap();
    let all = |outbox: &Arc<dyn EventOutbox>| {
        (outbox.position(0).unwrap(), outbox.deliveries(10).unwrap(), outbox.gone().unwrap())
    };
    let before = all(&outbox);
    drop(outbox);
    // The target has an outbox from before, which is replaced.
    let old = files.outbox();
    old.position(99).unwrap();
    old.take_in(99, 100, &[event(9)], &endpoints).unwrap();
    drop(old);
    assert_eq!(place.copy_outbox_to(&files), 3);
    assert_eq!(place.copy_outbox_to(&files), 3, "a copy can be repeated");
    assert_eq!(all(&files.outbox()), before);
    assert_eq!(files.copy_outbox_to(place), 3);
    let back = place.outbox();
    assert_eq!(all(&back), before);
    back.resume("mail").unwrap();
    let bodies: Vec<String> =
        claim_all(&back, &endpoints, now).into_iter().map(|due| due.event.body).collect();
    assert_eq!(bodies.len(), 3, "mail has three events: {bodies:?}");
}

fn claim_all(outbox: &Arc<dyn EventOutbox>, endpoints: &[String], now: UnixNanos) -> Vec<DueDelivery> {
    outbox.claim(endpoints, now, Duration::from_secs(600), 10).unwrap()
}

/// Gateways that crash between any two steps, over one outbox.
fn every_event_arrives_at_least_once_with_its_id(place: &TestPlace) {
    for seed in 0..6_u64 {
        println!("seed {seed}");
        let mut random = SeededNumbers(seed);
        let first = 1 + seed * 1_000;
        let endpoints = names(&["ops", "mail"]);
        let mut gateways: Vec<Arc<dyn EventOutbox>> = vec![place.outbox(), place.outbox()];
        let start = gateways[0].position(0).unwrap();
        let journal: Vec<OutboxEvent> = (first..first + 40).map(event).collect();
        // What each endpoint got: body by id, and how often.
        let mut got: BTreeMap<(String, String), (String, u32)> = BTreeMap::new();
        let mut steps = 0;
        loop {
            steps += 1;
            assert!(steps < 5_000, "it never ends");
            let at = usize::try_from(random.below(2)).unwrap();
            let outbox = Arc::clone(&gateways[at]);
            if random.below(4) == 0 {
                gateways[at] = place.outbox();
            }
            let position = outbox.position(0).unwrap();
            let taken = usize::try_from(position - start).unwrap();
            if taken < journal.len() && random.below(3) == 0 {
                let more = (taken + 1 + usize::try_from(random.below(5)).unwrap()).min(journal.len());
                let to = start + more as u64;
                outbox.take_in(position, to, &journal[taken..more], &endpoints).unwrap();
                if random.below(3) == 0 {
                    // The same rows again, as after an answer that was lost.
                    outbox.take_in(position, to, &journal[taken..more], &endpoints).unwrap();
                }
                continue;
            }
            // A lease of nothing: each claim may find what a crashed gateway had.
            let far = UnixNanos::new(NOW.get() + 1_000_000);
            let due = outbox.claim(&endpoints, far, Duration::ZERO, 3).unwrap();
            if due.is_empty() && taken == journal.len() {
                break;
            }
            for delivery in due {
                if random.below(4) == 0 {
                    continue; // It crashes before it sends.
                }
                let arrives = random.below(4) > 0;
                if arrives {
                    let key = (delivery.endpoint.clone(), delivery.event.id.clone());
                    let entry = got.entry(key).or_insert_with(|| (delivery.event.body.clone(), 0));
                    assert_eq!(entry.0, delivery.event.body, "the same id has the same body");
                    entry.1 += 1;
                }
                if random.below(4) == 0 {
                    continue; // It crashes before it records.
                }
                let outcome = if arrives { DeliveryOutcome::Delivered } else { DeliveryOutcome::Retry(NOW) };
                outbox.record(&delivery, NOW, "tried", outcome).unwrap();
            }
        }
        for endpoint in &endpoints {
            for event in &journal {
                let key = (endpoint.clone(), event.id.clone());
                let (body, count) = got.get(&key).unwrap_or_else(|| panic!("seed {seed}: {key:?} is lost"));
                assert!(*body == event.body && *count >= 1);
            }
        }
        assert!(got.values().any(|(_, count)| *count > 1), "seed {seed}: no crash made a second delivery");
        assert_eq!(got.len(), endpoints.len() * journal.len());
    }
}

#[test]
fn the_outbox_keeps_its_promises_in_files_and_databases() {
    check_all(&[
        ("taken in once", events_are_taken_in_once_and_claimed_by_one),
        ("results", results_are_shown_and_a_gone_endpoint_waits_until_it_is_resumed),
        ("claims at once", claims_at_the_same_time_share_no_delivery),
        ("late result", a_late_result_of_a_delivered_event_changes_nothing),
        ("copied", an_outbox_is_copied_to_another_place_and_back_with_everything_that_waits),
        ("at least once", every_event_arrives_at_least_once_with_its_id),
    ]);
}
