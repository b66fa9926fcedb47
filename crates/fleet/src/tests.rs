//! How a fleet chooses workers, and what it learns from how calls end.

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{CacheSalt, Clock, ManualClock, ModelName, PrefixKeys, Region, Residency};
use headrace_engine_api::{
    Capabilities, EngineHealth, Job, JobTicket, LoadReport, ReportAge, ResumeSupport, SubmitRefusal,
};

use crate::remembered::PrefixMarks;
use crate::worker::Worker;
use crate::{
    BlockOwner, FailureKind, Fleet, HedgePolicy, Placement, PrefixHashes, PrefixIndex, StoredRun,
    TriedWorkers, WorkerOutcome, WorkerSite, WorkerStanding,
};

const ANY: Residency = Residency::Anywhere;

/// An engine with a fixed load and cache.
struct FixedEngine {
    capabilities: Capabilities,
    load: LoadReport,
    cached: usize,
    health: EngineHealth,
}

impl headrace_engine_api::Engine for FixedEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn submit(&self, _job: Job) -> Result<JobTicket, SubmitRefusal> {
        Err(SubmitRefusal::Unavailable { why: "a test".into() })
    }
    fn cached_prefix(&self, keys: &PrefixKeys) -> usize {
        self.cached.min(keys.ids().len())
    }
    fn load(&self) -> LoadReport {
        self.load
    }
    fn health(&self) -> EngineHealth {
        self.health.clone()
    }
}

fn worker(id: &str, waiting_tokens: u64, running: u32, cached: usize) -> Worker {
    worker_that_is(EngineHealth::Up, id, waiting_tokens, running, cached)
}

fn worker_that_is(
    health: EngineHealth,
    id: &str,
    waiting_tokens: u64,
    running: u32,
    cached: usize,
) -> Worker {
    let capabilities = Capabilities {
        model: "m".into(),
        compute_mode: "exact".into(),
        numerics: String::new(),
        vocab: 1,
        context_window: 1,
        max_logprobs: 0,
        kv_tokens: 1,
        continues: ResumeSupport::Never,
        grammars: false,
        thought_caps: false,
        forms: headrace_engine_api::FormKinds::NONE,
        short_context: None,
    };
    let load = LoadReport { running, waiting_tokens, ..LoadReport::default() };
    let model = ModelName::new("m").unwrap();
    Worker::new(id, model, Arc::new(FixedEngine { capabilities, load, cached, health }))
}

fn keys(len: usize) -> PrefixKeys {
    PrefixKeys::of(&CacheSalt::derive(&[0; 32], "t", "m", None), &vec![1; len].into())
}

/// Places a prompt that was not tried anywhere yet.
fn first_of(fleet: &Fleet, model: &ModelName, prompt: usize) -> Option<Placement> {
    fleet.place(model, &keys(prompt), &TriedWorkers::default(), &ANY)
}

#[test]
fn the_least_work_before_the_first_token_wins() {
    let model = ModelName::new("m").unwrap();
    for (workers, expected) in [
        (vec![worker("a", 0, 0, 0), worker("b", 0, 0, 160)], "b"),
        (vec![worker("a", 0, 0, 0), worker("b", 0, 3, 160)], "a"),
        (vec![worker("a", 640, 0, 0), worker("b", 0, 0, 0)], "b"),
        (vec![worker("a", 0, 0, 0), worker("b", 0, 0, 0)], "a"),
    ] {
        let fleet = Fleet::new(workers);
        assert_eq!(first_of(&fleet, &model, 320).unwrap().worker_id().as_ref(), expected);
    }
}

#[test]
fn what_was_dispatched_counts_before_the_engine_reports_it() {
    let model = ModelName::new("m").unwrap();
    let fleet = Fleet::new(vec![worker("a", 0, 0, 0), worker("b", 0, 0, 0)]);
    let first = first_of(&fleet, &model, 1).unwrap();
    let second = first_of(&fleet, &model, 1).unwrap();
    assert_eq!((&first.worker_id()[..], &second.worker_id()[..]), ("a", "b"));
    drop(first);
    assert_eq!(first_of(&fleet, &model, 1).unwrap().worker_id().as_ref(), "a");
    assert!(first_of(&fleet, &ModelName::new("none").unwrap(), 1).is_none());
}

#[test]
fn a_worker_that_takes_no_calls_is_passed_over_and_a_model_without_another_is_down() {
    let model = ModelName::new("m").unwrap();
    let dead = |id| worker_that_is(EngineHealth::Dead { why: "a test".into() }, id, 0, 0, 320);
    let fleet = Fleet::new(vec![dead("a"), worker("b", 640, 3, 0)]);
    assert_eq!(first_of(&fleet, &model, 320).unwrap().worker_id().as_ref(), "b");
    assert_eq!(fleet.down(), []);
    let fleet = Fleet::new(vec![dead("a"), worker_that_is(EngineHealth::Draining, "b", 0, 0, 0)]);
    assert!(first_of(&fleet, &model, 320).is_none());
    let [(name, why)] = &fleet.down()[..] else { panic!("one model is down") };
    assert!(
        **name == model && why.contains("worker a: it broke") && why.contains("worker b: it is shutting"),
        "{why}"
    );
}

#[test]
fn who_was_tried_is_passed_over_until_nobody_is_left() {
    let model = ModelName::new("m").unwrap();
    let three = vec![worker("a", 0, 0, 0), worker("b", 0, 0, 160), worker("c", 0, 3, 0)];
    for (workers, expected) in [(three, "b a c"), (vec![worker("a", 0, 0, 0)], "a")] {
        let (fleet, mut tried, mut order) = (Fleet::new(workers), TriedWorkers::default(), Vec::new());
        while let Some(placement) = fleet.place(&model, &keys(320), &tried, &ANY) {
            order.push(placement.worker_id().to_string());
            tried.add(placement);
        }
        assert_eq!(order.join(" "), expected);
        assert!(fleet.workers().all(|worker| worker.in_flight() == 0));
    }
}

/// Workers that are judged by their calls, each at its own site, with the given reported loads.
struct TestFleet {
    fleet: Fleet,
    clock: Arc<ManualClock>,
    sites: Vec<Arc<WorkerSite>>,
    workers: Vec<Arc<Worker>>,
    model: ModelName,
}

impl TestFleet {
    fn of(loads: &[(ReportAge, u32, u32)]) -> Self {
        Self::over(
            &(0..loads.len()).map(|at| Arc::new(WorkerSite::new(&format!("s{at}")))).collect::<Vec<_>>(),
            loads,
        )
    }

    /// Each load is (age of the report, running sequences, weight).
    fn over(sites: &[Arc<WorkerSite>], loads: &[(ReportAge, u32, u32)]) -> Self {
        let clock = Arc::new(ManualClock::default());
        clock.advance(Duration::from_secs(100));
        let model = ModelName::new("m").unwrap();
        let each = loads.iter().enumerate().map(|(at, &(reported, running, weight))| {
            let load = LoadReport { reported, running, ..LoadReport::default() };
            let engine = Arc::new(FixedEngine { load, ..fixed() });
            Arc::new(Worker::new(&format!("w{at}"), model.clone(), engine).at(&sites[at]).weighted(weight))
        });
        let workers: Vec<_> = each.collect();
        let fleet = Fleet::with(workers.iter().map(Arc::clone), clock.clone(), 7);
        Self { fleet, clock, sites: sites.to_vec(), workers, model }
    }

    fn place(&self) -> Option<Placement> {
        self.fleet.place_near(&self.model, PrefixHashes::default(), &TriedWorkers::default(), &ANY)
    }

    /// Makes a call that ends at once. Returns the worker's id.
    fn call(&self, outcome: impl Fn(&str) -> WorkerOutcome) -> Option<String> {
        let mut placement = self.place()?;
        let id = placement.worker_id().to_string();
        placement.ended(&outcome(&id));
        Some(id)
    }

    fn standing(&self, at: usize) -> WorkerStanding {
        self.fleet.status().remove(at).standing
    }

    fn pass(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
    }

    /// Number of calls that each worker gets out of `calls`. `ms` gives a worker's answer time by its index.
    fn shares(&self, calls: usize, ms: impl Fn(usize) -> u64) -> Vec<usize> {
        let mut shares = vec![0; self.workers.len()];
        for _ in 0..calls {
            let mut placement = self.place().unwrap();
            let at = self.workers.iter().position(|worker| worker.id() == placement.worker_id()).unwrap();
            self.pass(ms(at));
            placement.ended(&WorkerOutcome::Answered);
            shares[at] += 1;
        }
        shares
    }
}

const UNKNOWN: (ReportAge, u32, u32) = (ReportAge::Never, 0, 1);
const OLD: ReportAge = ReportAge::Ago { nanos: 1_000_000_000 };

fn fixed() -> FixedEngine {
    let capabilities = Capabilities {
        model: "m".into(),
        compute_mode: "exact".into(),
        numerics: String::new(),
        vocab: 1,
        context_window: 1,
        max_logprobs: 0,
        kv_tokens: 1 << 20,
        continues: ResumeSupport::Never,
        grammars: false,
        thought_caps: false,
        forms: headrace_engine_api::FormKinds::NONE,
        short_context: None,
    };
    FixedEngine { capabilities, load: LoadReport::default(), cached: 0, health: EngineHealth::Up }
}

fn broke(failure: FailureKind) -> WorkerOutcome {
    WorkerOutcome::Failed { failure, why: "a test".to_owned() }
}

#[test]
fn failures_open_a_worker_and_one_trial_closes_it() {
    let team = TestFleet::of(&[UNKNOWN, UNKNOWN]);
    let outcome =
        |id: &str| if id == "w0" { broke(FailureKind::Status(500)) } else { WorkerOutcome::Answered };
    (0..1000)
        .take_while(|_| team.standing(0) == WorkerStanding::Ready)
        .for_each(|_| drop(team.call(outcome)));
    assert!(matches!(team.standing(0), WorkerStanding::Open(left) if left > Duration::from_millis(700)));
    let of_w0 = team.fleet.status().remove(0);
    assert_eq!((of_w0.totals.calls, of_w0.totals.failures, of_w0.breaker.trips), (5, 5, 1));
    assert_eq!((of_w0.failed_last_minute, of_w0.failed_last_5_minutes), (Some(1.0), Some(1.0)));
    assert_eq!(of_w0.last_error.as_deref(), Some("status 500: a test"));
    // An error response shows that the server is alive.
    assert_eq!(team.fleet.site_status(&team.sites[0]).breaker.state, "closed");
    for _ in 0..20 {
        assert_eq!(team.call(outcome).unwrap(), "w1");
    }
    team.pass(1000);
    let mut trial = team.place().unwrap();
    assert_eq!(
        (&trial.worker_id()[..], trial.is_trial(), team.standing(0)),
        ("w0", true, WorkerStanding::TrialIsOut)
    );
    assert_eq!(team.call(outcome).unwrap(), "w1");
    trial.began();
    assert_eq!(team.standing(0), WorkerStanding::Ready, "the first thing of an answer is enough");
    drop(trial);
    assert_eq!(team.fleet.status()[0].in_flight, 0);
}

#[test]
fn one_callers_failures_do_not_take_the_only_worker_from_another() {
    let team = TestFleet::of(&[UNKNOWN]);
    let call = |caller, outcome: &WorkerOutcome| {
        let mut placement = team.place()?.called_by(caller);
        placement.ended(outcome);
        Some(())
    };
    call(1, &WorkerOutcome::Answered).unwrap();
    for _ in 0..100 {
        for failure in
            [FailureKind::Status(500), FailureKind::NoAnswer, FailureKind::Broke, FailureKind::Timeout]
        {
            call(2, &broke(failure)).unwrap();
        }
    }
    assert_eq!(team.standing(0), WorkerStanding::Ready);
    // No body makes a server refuse connections.
    call(2, &broke(FailureKind::Connect)).unwrap();
    assert!(matches!(team.standing(0), WorkerStanding::Open(_)));
}

#[test]
fn a_trial_that_comes_to_nothing_gives_its_leave_to_the_next() {
    let team = TestFleet::of(&[UNKNOWN, UNKNOWN]);
    (0..50).for_each(|_| {
        drop(team.call(|id| if id == "w0" { broke(FailureKind::Broke) } else { WorkerOutcome::Answered }))
    });
    team.pass(1000);
    for outcome in [None, Some(WorkerOutcome::Cancelled), Some(WorkerOutcome::CallersFault)] {
        let mut trial = team.place().unwrap();
        assert!(trial.is_trial());
        if let Some(outcome) = outcome {
            trial.ended(&outcome);
        }
    }
    assert_eq!(team.standing(0), WorkerStanding::Trial);
}

#[test]
fn a_dead_server_opens_all_its_models_and_a_probe_lets_them_try_early() {
    let site = Arc::new(WorkerSite::new("shared"));
    let other = Arc::new(WorkerSite::new("other"));
    let team = TestFleet::over(&[Arc::clone(&site), Arc::clone(&site), other], &[UNKNOWN, UNKNOWN, UNKNOWN]);
    let outcome = |id: &str| if id == "w2" { WorkerOutcome::Answered } else { broke(FailureKind::Connect) };
    let trips = || team.fleet.site_status(&site).breaker.trips;
    (0..1000).take_while(|_| trips() == 0).for_each(|_| drop(team.call(outcome)));
    assert!(matches!(
        (team.standing(0), team.standing(1)),
        (WorkerStanding::Open(_), WorkerStanding::Open(_))
    ));
    assert_eq!(team.call(outcome).unwrap(), "w2");
    let readiness = team.fleet.readiness(&team.model, &ANY).unwrap();
    assert!(readiness.ready && readiness.words.contains("worker w1: too many calls failed"), "{readiness:?}");
    team.fleet.probed(&site, Ok(()));
    assert_eq!((team.standing(0), team.standing(1)), (WorkerStanding::Trial, WorkerStanding::Trial));
    let trial = team.place().unwrap();
    assert!(trial.is_trial());
    assert_eq!(team.call(outcome).unwrap(), "w2", "one tries for the whole of it");
    drop(trial);
    (0..5).for_each(|_| team.fleet.probed(&team.sites[2], Err("no answer")));
    assert!(matches!(team.standing(2), WorkerStanding::Open(_)), "probes alone open it");
}

#[test]
fn who_has_too_much_to_do_is_left_alone_until_it_said_and_is_not_ill() {
    let team = TestFleet::of(&[UNKNOWN, UNKNOWN]);
    let busy = |seconds: Option<u64>| {
        move |id: &str| match id {
            "w0" => WorkerOutcome::Refused { retry_after: seconds.map(Duration::from_secs) },
            _ => WorkerOutcome::Answered,
        }
    };
    assert!((0..1000).any(|_| team.call(busy(Some(7))).unwrap() == "w0"));
    assert_eq!(team.standing(0), WorkerStanding::Cooling(Duration::from_secs(7)));
    assert!((0..30).all(|_| team.call(busy(None)).unwrap() == "w1"));
    team.pass(7000);
    assert_eq!(team.standing(0), WorkerStanding::Ready);
    (0..50).for_each(|_| {
        team.call(busy(Some(0)));
    });
    let status = team.fleet.status().remove(0);
    assert!(status.totals.refusals > 10 && status.totals.failures == 0 && status.breaker.trips == 0);
    let alone = TestFleet::of(&[UNKNOWN]);
    alone.call(busy(Some(3)));
    assert!(alone.place().is_none());
    let readiness = alone.fleet.readiness(&alone.model, &ANY).unwrap();
    assert_eq!((readiness.ready, readiness.retry_after), (false, Some(Duration::from_secs(3))));
}

#[test]
fn a_drained_worker_gets_nothing_new_until_it_resumes() {
    let team = TestFleet::of(&[UNKNOWN, UNKNOWN]);
    team.workers[0].drain();
    assert!((0..30).all(|_| team.call(|_| WorkerOutcome::Answered).unwrap() == "w1"));
    team.sites[1].drain();
    assert!(team.place().is_none());
    let words = team.fleet.readiness(&team.model, &ANY).unwrap().words;
    assert_eq!(words, "worker w0: an operator drained it; worker w1: an operator drained it");
    team.workers[0].resume();
    assert!((0..30).all(|_| team.call(|_| WorkerOutcome::Answered).unwrap() == "w0"));
    let alone = Fleet::new([worker("a", 0, 0, 0)]);
    alone.workers().for_each(|worker| worker.drain());
    assert!(alone.place_near(&team.model, PrefixHashes::default(), &TriedWorkers::default(), &ANY).is_none());
}

#[test]
fn shares_follow_weights_where_workers_are_alike() {
    for reported in [ReportAge::Now, OLD, ReportAge::Never] {
        let team = TestFleet::of(&[(reported, 0, 3), (reported, 0, 1), (reported, 0, 1)]);
        let shares = team.shares(5000, |_| 10);
        let part = shares[0] as f64 / 5000.0;
        // The heavy worker is nearly always one of the two drawn, and then wins three of four times.
        let expected = if reported == ReportAge::Never { 0.55..0.75 } else { 0.58..0.62 };
        assert!(expected.contains(&part), "{reported:?}: {shares:?}");
        assert!(shares.iter().all(|&share| share > 500), "{shares:?}");
        team.workers[0].weigh(1);
        let shares = team.shares(3000, |_| 10);
        let even = reported == ReportAge::Now || shares.iter().all(|share| (900..1100).contains(share));
        assert!(even, "{reported:?}: {shares:?}");
    }
}

#[test]
fn an_unknown_load_is_not_an_idle_one() {
    let team = TestFleet::of(&[(OLD, 4, 1), (OLD, 9, 1), UNKNOWN]);
    assert!((0..50).all(|_| team.call(|_| WorkerOutcome::Answered).unwrap() == "w0"));
    // Older than the recorded traffic, so the report cannot be corrected.
    let ancient = ReportAge::Ago { nanos: 60_000_000_000 };
    let team = TestFleet::of(&[(OLD, 4, 1), (ancient, 0, 1)]);
    let first: Vec<_> = (0..50).map(|_| team.call(|_| WorkerOutcome::Answered).unwrap()).collect();
    assert!(first.iter().any(|id| id == "w0"), "{first:?}");
}

#[test]
fn who_is_idle_while_others_are_busy_takes_a_call_whatever_is_cached_elsewhere() {
    for (running, expected) in [(9, "w2"), (2, "home")] {
        let team = TestFleet::of(&[(OLD, running, 1), (OLD, running, 1), (OLD, 0, 1)]);
        let keys = keys(3200);
        let place = || {
            team.fleet
                .place(&team.model, &keys, &TriedWorkers::default(), &ANY)
                .unwrap()
                .worker_id()
                .to_string()
        };
        team.workers[2].drain();
        let home = place();
        team.workers[2].resume();
        assert_eq!(place(), if expected == "home" { &home[..] } else { expected });
    }
}

#[test]
fn of_two_the_faster_is_taken_and_a_slow_one_is_asked_again_in_time() {
    let team = TestFleet::of(&[UNKNOWN, UNKNOWN, UNKNOWN]);
    let shares = team.shares(6000, |at| if at == 0 { 400 } else { 20 });
    assert!(shares[0] < 60 && shares[1] > 2000 && shares[2] > 2000, "{shares:?}");
    assert!(shares[0] > 2, "it is not left out for good: {shares:?}");
}

#[test]
fn a_conversation_stays_where_it_was_unless_that_takes_much_longer() {
    let team = TestFleet::of(&[UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN]);
    let near = |marks: &[u64]| {
        team.fleet
            .place_near(&team.model, PrefixHashes { marks, tokens: 1000 }, &TriedWorkers::default(), &ANY)
            .unwrap()
    };
    for conversation in 0..20u64 {
        let (system, turns) = (conversation * 100, 10);
        let mut first = near(&[system, system + 1]);
        let home = first.worker_id().to_string();
        first.ended(&WorkerOutcome::Answered);
        for turn in 2..turns {
            let marks: Vec<u64> = (0..=turn).map(|at| system + at).collect();
            let mut placement = near(&marks);
            assert_eq!(placement.worker_id()[..], home);
            placement.ended(&WorkerOutcome::Answered);
        }
        let held: Vec<_> = (0..3).map(|_| near(&[system, system + 1])).collect();
        assert!(held.iter().any(|placement| placement.worker_id()[..] != home), "it is too busy now");
    }
}

#[test]
fn who_is_far_off_is_left_out_for_a_while_and_never_more_than_half() {
    for (bad, expected) in [(vec![2], 1), (vec![1, 2], 2), (vec![0, 1, 2], 0)] {
        let team = TestFleet::of(&[(OLD, 0, 1), (OLD, 0, 1), (OLD, 0, 1), (OLD, 0, 1)]);
        // Slow to start, but never failing.
        let mut under_way = Vec::new();
        for _ in 0..1200 {
            let placement = team.place().unwrap();
            let at: usize = placement.worker_id()[1..].parse().unwrap();
            under_way.push((if bad.contains(&at) { 40 } else { 2 }, placement));
            team.pass(10);
            for (left, placement) in &mut under_way {
                *left -= 1;
                if *left == 0 {
                    placement.ended(&WorkerOutcome::Answered);
                }
            }
            under_way.retain(|(left, _)| *left > 0);
        }
        let out = |at: &usize| matches!(team.standing(*at), WorkerStanding::Ejected(_));
        let ejected: Vec<_> = (0..4).filter(out).collect();
        assert_eq!(ejected.len(), expected, "{bad:?}: {ejected:?}");
        assert!(ejected.iter().all(|at| bad.contains(at)));
        drop(under_way);
        team.pass(11_000);
        assert!((0..4).all(|at| team.standing(at) == WorkerStanding::Ready));
    }
}

#[test]
fn what_a_worker_tells_of_its_cache_goes_before_what_was_sent_to_it() {
    let team = TestFleet::of(&[(OLD, 0, 1), (OLD, 0, 1)]);
    let keys = keys(320);
    let place = || team.fleet.place(&team.model, &keys, &TriedWorkers::default(), &ANY).unwrap();
    let home = place().worker_id().to_string();
    assert!((0..20).all(|_| place().worker_id()[..] == home), "it was sent there");
    let at = usize::from(home == "w1");
    let tells = |at: usize, whole: bool, whose: Option<BlockOwner>| {
        let mut index = PrefixIndex::new(100, whole);
        if let Some(whose) = whose {
            let blocks: Vec<u128> = (0..20).collect();
            let stored =
                StoredRun { parent: None, blocks: &blocks, tokens: keys.ids(), block_tokens: 16, whose };
            index.stored(&stored).unwrap();
        }
        *team.sites[at].cache() = Some(index);
    };
    let own = BlockOwner::Labelled(keys.salt().label());
    tells(at, true, None);
    tells(1 - at, true, Some(own));
    assert!((0..20).all(|_| place().worker_id()[..] != home), "the other one says that it has it");
    // Blocks of other owners do not count. Blocks of an unknown owner count as far as this tenant sent them.
    for others in
        [BlockOwner::Others, BlockOwner::Labelled(CacheSalt::derive(&[0; 32], "u", "m", None).label())]
    {
        tells(at, true, Some(own));
        tells(1 - at, true, Some(others));
        assert!((0..20).all(|_| place().worker_id()[..] == home), "only this one has its own");
    }
    // The same prompt of another tenant, which was sent nowhere.
    let unsent = PrefixKeys::of(&CacheSalt::derive(&[0; 32], "u", "m", None), &vec![1; 320].into());
    tells(at, true, Some(BlockOwner::Unreported));
    tells(1 - at, true, None);
    assert!((0..20).all(|_| place().worker_id()[..] == home), "it was sent there, and is still there");
    assert_eq!(team.workers[at].cached(PrefixMarks::Keys(&keys), 320), 320);
    assert_eq!(team.workers[at].cached(PrefixMarks::Keys(&unsent), 320), 0);
    // An incomplete index does not override what was sent.
    tells(at, false, None);
    assert_eq!(team.workers[at].cached(PrefixMarks::Keys(&keys), 320), 320);
    tells(at, true, None);
    assert_eq!(team.workers[at].cached(PrefixMarks::Keys(&keys), 320), 0);
    assert_eq!(team.fleet.status().iter().map(|status| status.remembered).sum::<usize>(), 0);
}

/// For any workers in any state and any outcomes: no attempt of a pinned call leaves its regions. A pinned call is not
/// turned away while a worker within them is left.
#[test]
fn no_try_of_a_pinned_call_leaves_its_regions() {
    let region = |n: u64| ["eu", "us", "ch"].get(n as usize).map(|name| Region::new(name).unwrap());
    let model = ModelName::new("m").unwrap();
    let (mut tries, mut turned_away) = (0, 0);
    for seed in 0..400 {
        let random = crate::random::AtomicSplitMix::new(seed);
        let below = |n: u64| random.next() % n;
        let sites: Vec<_> = (0..3).map(|at| Arc::new(WorkerSite::new(&format!("s{at}")))).collect();
        let workers: Vec<Arc<Worker>> = (0..1 + below(6))
            .map(|at| {
                let health = if below(8) == 0 { EngineHealth::Draining } else { EngineHealth::Up };
                let one = worker_that_is(health, &format!("w{at}"), below(500), below(4) as u32, 0);
                let one = one.within(region(below(4)));
                Arc::new(if below(4) == 0 { one } else { one.at(&sites[below(3) as usize]) })
            })
            .collect();
        let clock = Arc::new(ManualClock::default());
        let fleet = Fleet::with(workers.iter().map(Arc::clone), clock.clone(), seed);
        for _ in 0..30 {
            let names = (0..3).filter(|_| below(2) == 0).filter_map(region);
            let pin = if below(5) == 0 { Residency::Anywhere } else { Residency::only(names) };
            let at = |id: &str| workers.iter().find(|worker| &**worker.id() == id).unwrap();
            let mut tried = TriedWorkers::default();
            assert_eq!(
                fleet.serves_within(&model, &pin),
                workers.iter().any(|worker| pin.allows(worker.region()))
            );
            // Tries until no worker is left, trials included.
            loop {
                let (keys, marks) = (keys(1 + below(200) as usize), [below(9), below(9)]);
                let placement = match below(2) {
                    0 => fleet.place(&model, &keys, &tried, &pin),
                    _ => fleet.place_near(&model, PrefixHashes { marks: &marks, tokens: 100 }, &tried, &pin),
                };
                let Some(mut placement) = placement else { break };
                let worker = at(placement.worker_id());
                assert!(pin.allows(worker.region()), "seed {seed}: {pin} and {:?}", worker.region());
                tries += 1;
                placement.ended(&match below(4) {
                    0 => WorkerOutcome::Answered,
                    1 => WorkerOutcome::Refused { retry_after: None },
                    2 => WorkerOutcome::Failed { failure: FailureKind::Broke, why: "a test".to_owned() },
                    _ => WorkerOutcome::Cancelled,
                });
                tried.add(placement);
            }
            turned_away += 1;
            let left = workers.iter().filter(|worker| pin.allows(worker.region()) && !tried.has(worker));
            let now_ns = clock.monotonic_nanos();
            assert!(
                !left.into_iter().any(|worker| worker.standing(now_ns) == WorkerStanding::Ready),
                "seed {seed}"
            );
            clock.advance(Duration::from_millis(below(2_000)));
        }
    }
    assert!(tries > 5_000 && turned_away == 400 * 30, "{tries}");
}

#[test]
fn a_call_has_the_patience_of_the_other_workers_calls_and_who_was_outrun_is_known_to_be_slow() {
    let (model, clock) = (ModelName::new("m").unwrap(), Arc::new(ManualClock::default()));
    let workers: Vec<_> = ["a", "b"].map(|id| Arc::new(worker(id, 0, 0, 0))).into();
    let fleet = Fleet::with(workers.clone(), Arc::clone(&clock) as Arc<dyn headrace_domain::Clock>, 1);
    let at = |busy: usize| {
        workers[busy].resume();
        workers[1 - busy].drain();
        let placement = first_of(&fleet, &model, 1).unwrap();
        workers[1 - busy].resume();
        placement
    };
    let hedge = HedgePolicy { after_percent: 95, most_permille: 500 };
    assert_eq!(
        fleet.record_and_get_hedge_delay(&model, &at(0), &hedge, &ANY),
        None,
        "nothing is known of the other one"
    );
    for (which, millis) in [(0, 1_000), (1, 10)] {
        for _ in 0..20 {
            let mut placement = at(which);
            clock.advance(Duration::from_millis(millis));
            placement.began();
            placement.ended(&WorkerOutcome::Answered);
        }
    }
    let patience = |which: usize| {
        fleet.record_and_get_hedge_delay(&model, &at(which), &hedge, &ANY).unwrap().as_millis()
    };
    assert!((10..=11).contains(&patience(0)), "{}", patience(0));
    assert!((1_000..=1_100).contains(&patience(1)), "{}", patience(1));
    let elsewhere = Residency::only([Region::new("eu").unwrap()]);
    assert_eq!(
        fleet.record_and_get_hedge_delay(&model, &at(0), &hedge, &elsewhere),
        None,
        "it may not go to the other one"
    );
    assert_eq!(
        fleet.record_and_get_hedge_delay(&ModelName::new("none").unwrap(), &at(0), &hedge, &ANY),
        None
    );
    // Four calls have paid for half a race each.
    assert_eq!([(); 3].map(|()| fleet.try_take_race(&model)), [true, true, false]);
    let first = |which: usize| fleet.status().swap_remove(which).first.unwrap();
    let mut late = at(1);
    clock.advance(Duration::from_secs(9));
    late.outrun();
    assert_eq!((first(1), fleet.status().swap_remove(1).totals.failures), (Duration::from_secs(9), 0));
    let mut passed = TriedWorkers::default();
    passed.add_busy(&at(0));
    assert_eq!(fleet.place(&model, &keys(1), &passed, &ANY).unwrap().worker_id().as_ref(), "b");
}
