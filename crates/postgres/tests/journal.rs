//! The shared ledger over real PostgreSQL servers: one suite for each version that `HEADRACE_POSTGRES_BIN` names, as the
//! step `postgres` of the test command does.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use headrace_domain::{BudgetName, Clock, HoldId, NanoDollars, OrgId, ProjectId, SystemClock};
use headrace_ledger::{
    BudgetMeasure, BudgetOrigin, BudgetRule, BudgetScope, BudgetWindow, CommandResult, GrantKind,
    JournalHistory as _, LedgerAdmin as _, LedgerOperation, LedgerRefusal, Owner, Receipt, SettleOutcome,
    SharedLedger, SharedLedgerOptions,
};
use headrace_postgres::{PostgresJournal, PostgresJournalHistory, PostgresPresence, PostgresUrl};

use support::{PostgresServer, versions};

static OWNERS: AtomicU64 = AtomicU64::new(1);
static HOLDS: AtomicU64 = AtomicU64::new(1);

fn owner() -> Owner {
    Owner::new(u128::from(OWNERS.fetch_add(1, Ordering::Relaxed)))
}

fn parsed(server: &PostgresServer) -> Arc<PostgresUrl> {
    Arc::new(server.url().parse().unwrap())
}

fn open_with(url: &Arc<PostgresUrl>, options: SharedLedgerOptions) -> SharedLedger {
    let journal = PostgresJournal::new(Arc::clone(url));
    let presence = PostgresPresence::new(Arc::clone(url));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let opened =
        SharedLedger::open(Box::new(journal), Box::new(presence), owner(), Box::new(owner), clock, options);
    opened.unwrap().0
}

fn open(url: &Arc<PostgresUrl>) -> SharedLedger {
    open_with(url, SharedLedgerOptions::default())
}

fn org() -> OrgId {
    OrgId::new("o").unwrap()
}

fn project() -> ProjectId {
    ProjectId::new("p").unwrap()
}

fn fund(ledger: &SharedLedger, amount: i64) {
    let now = SystemClock::new().now();
    let opened = LedgerOperation::OpenProject { org: org(), project: project() };
    let (kind, reference) = (GrantKind::Paid, "a test".into());
    let granted = LedgerOperation::Grant { org: org(), amount: NanoDollars::new(amount), kind, reference };
    let done = ledger.transact(vec![opened, granted], now);
    assert!(done.verdicts.iter().all(CommandResult::is_done), "{:?}", done.verdicts);
}

fn hold(ledger: &SharedLedger, amount: i64) -> (HoldId, CommandResult) {
    let now = SystemClock::new().now();
    let id = HoldId::from_bits(u128::from(HOLDS.fetch_add(1, Ordering::Relaxed)));
    let expires = now.after(Duration::from_secs(600));
    let (amount, owner) = (NanoDollars::new(amount), Owner::new(0));
    let asked = LedgerOperation::Hold {
        hold: id,
        org: org(),
        project: project(),
        amount,
        owner,
        expires,
        demand: None,
        idempotency: None,
    };
    (id, ledger.transact(vec![asked], now).verdicts.remove(0))
}

fn settle(ledger: &SharedLedger, hold: HoldId) -> CommandResult {
    let now = SystemClock::new().now();
    let (loss, outcome) = (NanoDollars::new(3), SettleOutcome::Completed);
    let settled = LedgerOperation::Settle { hold, lines: vec![], loss, outcome, answer: None };
    ledger.transact(vec![settled], now).verdicts.remove(0)
}

fn each_version(test: impl Fn(&Path)) {
    for bin in versions() {
        println!("{}", bin.display());
        test(&bin);
    }
}

#[test]
fn gateways_share_one_balance_and_the_journal_verifies_beside_them() {
    each_version(|bin| {
        let server = PostgresServer::start(bin);
        let url = parsed(&server);
        let gateways = [open(&url), open(&url), open(&url)];
        fund(&gateways[0], 100);
        let done = AtomicU64::new(0);
        let refused = AtomicU64::new(0);
        for _ in 0..5 {
            done.store(0, Ordering::Relaxed);
            refused.store(0, Ordering::Relaxed);
            let taken = std::thread::scope(|scope| {
                let callers: Vec<_> = (0..64)
                    .map(|n| {
                        let (gateway, done, refused) = (&gateways[n % 3], &done, &refused);
                        scope.spawn(move || match hold(gateway, 100) {
                            (id, CommandResult::Done(Receipt::Held { .. })) => {
                                done.fetch_add(1, Ordering::Relaxed);
                                Some((n % 3, id))
                            }
                            (_, CommandResult::Refused(LedgerRefusal::HeldInFlight { .. })) => {
                                refused.fetch_add(1, Ordering::Relaxed);
                                None
                            }
                            other => panic!("{other:?}"),
                        })
                    })
                    .collect();
                callers.into_iter().filter_map(|caller| caller.join().unwrap()).collect::<Vec<_>>()
            });
            assert_eq!((done.load(Ordering::Relaxed), refused.load(Ordering::Relaxed)), (1, 63));
            let [(gateway, id)] = taken[..] else { panic!("{taken:?}") };
            let verified = PostgresJournalHistory::new(Arc::clone(&url)).verify().unwrap();
            assert!(verified.ok(), "{:?}", verified.findings);
            assert!(settle(&gateways[gateway], id).is_done());
        }
        for gateway in &gateways {
            gateway.close().unwrap();
        }
        let again = open(&url);
        assert_eq!(again.totals().available, NanoDollars::new(100));
        assert_eq!(again.open_holds(), []);
    });
}

#[test]
fn a_crashed_database_refuses_new_calls_in_time_and_loses_nothing() {
    each_version(|bin| {
        let mut server = PostgresServer::start(bin);
        let url = parsed(&server);
        let gateways = [open(&url), open(&url)];
        fund(&gateways[0], 1_000_000);
        let stop = AtomicU64::new(0);
        let (settled, unavailable) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for n in 0..8 {
                let (gateway, stop) = (&gateways[n % 2], &stop);
                let (settled, unavailable) = (&settled, &unavailable);
                scope.spawn(move || {
                    while stop.load(Ordering::Relaxed) == 0 {
                        let asked = Instant::now();
                        match hold(gateway, 10) {
                            (id, CommandResult::Done(_)) => {
                                let verdict = settle(gateway, id);
                                assert!(verdict.is_done(), "{verdict:?}");
                                settled.fetch_add(1, Ordering::Relaxed);
                            }
                            (_, CommandResult::Refused(LedgerRefusal::Unavailable { .. })) => {
                                assert!(
                                    asked.elapsed() < Duration::from_millis(1_500),
                                    "{:?}",
                                    asked.elapsed()
                                );
                                unavailable.fetch_add(1, Ordering::Relaxed);
                            }
                            (_, other) => panic!("{other:?}"),
                        }
                    }
                });
            }
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(700));
                server.crash();
                std::thread::sleep(Duration::from_millis(1_800));
                let before = settled.load(Ordering::Relaxed);
                server.resume();
                let back = Instant::now();
                while settled.load(Ordering::Relaxed) < before + 8 {
                    assert!(back.elapsed() < Duration::from_secs(5), "calls again within five seconds");
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
            stop.store(1, Ordering::Relaxed);
        });
        assert!(unavailable.load(Ordering::Relaxed) > 0);
        // Holds of callers that were refused, and whose commit arrived all the same, are released.
        let until = Instant::now() + Duration::from_secs(5);
        while !gateways[0].open_holds().is_empty() {
            assert!(Instant::now() < until, "{:?}", gateways[0].open_holds());
            gateways.iter().for_each(SharedLedger::refresh);
        }
        let verified = PostgresJournalHistory::new(Arc::clone(&url)).verify().unwrap();
        assert!(verified.ok(), "{:?}", verified.findings);
        let losses = i64::try_from(settled.load(Ordering::Relaxed) * 3).unwrap();
        assert_eq!(verified.totals.loss, NanoDollars::new(-losses), "each settlement once");
        println!(
            "{} settlements, {} calls refused while the database was away",
            settled.load(Ordering::Relaxed),
            unavailable.load(Ordering::Relaxed)
        );
    });
}

#[test]
fn the_holds_of_a_gateway_that_ended_are_free_after_its_lease() {
    each_version(|bin| {
        let server = PostgresServer::start(bin);
        let url = parsed(&server);
        let options = SharedLedgerOptions { lease: Duration::from_secs(3), ..SharedLedgerOptions::default() };
        let survivor = open_with(&url, options);
        fund(&survivor, 100);
        // A gateway without threads renews nothing, like one that was killed.
        let journal = PostgresJournal::new(Arc::clone(&url));
        let presence = PostgresPresence::new(Arc::clone(&url));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let (killed, mut hand) = SharedLedger::open_by_hand(
            Box::new(journal),
            Box::new(presence),
            owner(),
            Box::new(owner),
            clock,
            options,
        )
        .unwrap();
        std::thread::scope(|scope| {
            let held = scope.spawn(|| hold(&killed, 100).1);
            while !held.is_finished() {
                hand.turn();
            }
            assert!(held.join().unwrap().is_done());
        });
        let taken = Instant::now();
        assert!(!hold(&survivor, 1).1.is_done(), "all the money is held");
        while !hold(&survivor, 1).1.is_done() {
            assert!(taken.elapsed() < Duration::from_secs(5), "the lease and two seconds");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(taken.elapsed() > Duration::from_secs(2), "not before the lease");
    });
}

#[test]
fn a_gateway_that_stops_with_the_lock_delays_others_for_less_than_a_second() {
    each_version(|bin| {
        let server = PostgresServer::start(bin);
        let url = parsed(&server);
        let ledger = open(&url);
        fund(&ledger, 1_000_000);
        let mut stopped = PostgresJournal::new(Arc::clone(&url));
        let name = owner();
        headrace_ledger::SharedJournal::join(&mut stopped, name, 4).unwrap();
        headrace_ledger::SharedJournal::begin(&mut stopped, name, 0, 1, None).unwrap();
        let asked = Instant::now();
        let (_, verdict) = hold(&ledger, 1);
        assert!(verdict.is_done(), "{verdict:?}");
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        let late = headrace_ledger::SharedJournal::commit(
            &mut stopped,
            None,
            headrace_ledger::TurnStamp { owner: name, turn: 1 },
            &[],
        );
        assert!(late.is_err(), "its turn has ended");
    });
}

#[test]
fn nobody_changes_a_row_of_the_journal_and_a_newer_programs_tables_are_refused() {
    each_version(|bin| {
        let server = PostgresServer::start(bin);
        let url = parsed(&server);
        let ledger = open(&url);
        fund(&ledger, 100);
        ledger.close().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (client, connection) =
                tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            for change in [
                "UPDATE headrace.journal SET turn = 9",
                "DELETE FROM headrace.journal",
                "TRUNCATE headrace.journal",
            ] {
                let error = client.batch_execute(change).await.unwrap_err();
                assert!(error.as_db_error().unwrap().message().contains("append-only"), "{change}");
            }
            client.batch_execute("UPDATE headrace.schema_version SET version = 99").await.unwrap();
        });
        let mut journal = PostgresJournal::new(Arc::clone(&url));
        let refused = headrace_ledger::SharedJournal::join(&mut journal, owner(), 4).unwrap_err();
        assert!(refused.to_string().contains("format 99"), "{refused}");
    });
}

/// The newest format of the first program that shared a ledger.
const OLDEST_SHARED_FORMAT: u32 = 4;

#[test]
fn a_rolling_update_under_load_meets_no_unreadable_row() {
    each_version(|bin| {
        let server = PostgresServer::start(bin);
        let url = parsed(&server);
        let older =
            SharedLedgerOptions { newest_format: OLDEST_SHARED_FORMAT, ..SharedLedgerOptions::default() };
        let gateways: Vec<_> = (0..3).map(|_| std::sync::RwLock::new(open_with(&url, older))).collect();
        fund(&gateways[0].read().unwrap(), 1_000_000_000);
        let rule = BudgetRule {
            name: BudgetName::new("daily").unwrap(),
            scope: BudgetScope::Project,
            org: None,
            subject: None,
            tier: None,
            window: BudgetWindow::Day,
            zone: "Europe/Berlin".into(),
            measure: BudgetMeasure::Dollars,
            limit: 1 << 62,
            is_hard: true,
            thresholds: Vec::new(),
            origin: BudgetOrigin::Operator,
        };
        let set = |gateway: &SharedLedger| {
            let rule = Box::new(rule.clone());
            let now = SystemClock::new().now();
            gateway.transact(vec![LedgerOperation::SetBudgetRule { rule }], now).verdicts.remove(0)
        };
        let (settled, stop) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for n in 0..6 {
                let (gateway, settled, stop) = (&gateways[n % 3], &settled, &stop);
                scope.spawn(move || {
                    while stop.load(Ordering::Relaxed) == 0 {
                        // The lock lets a gateway leave between two calls, as a server does once its calls have ended.
                        let gateway = gateway.read().unwrap();
                        let (id, verdict) = hold(&gateway, 10);
                        assert!(verdict.is_done(), "{verdict:?}");
                        let verdict = settle(&gateway, id);
                        assert!(verdict.is_done(), "{verdict:?}");
                        settled.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for replaced in 0..gateways.len() {
                std::thread::sleep(Duration::from_millis(300));
                let mut place = gateways[replaced].write().unwrap();
                place.close().unwrap();
                *place = open(&url);
                let verdict = set(&place);
                let is_last = replaced + 1 == gateways.len();
                let refusal = LedgerRefusal::OlderGateway { format: 5, known: OLDEST_SHARED_FORMAT };
                let is_refused = verdict == CommandResult::Refused(refusal);
                assert_eq!((verdict.is_done(), is_refused), (is_last, !is_last), "{verdict:?}");
            }
            std::thread::sleep(Duration::from_millis(300));
            stop.store(1, Ordering::Relaxed);
        });
        let verified = PostgresJournalHistory::new(Arc::clone(&url)).verify().unwrap();
        assert!(verified.ok(), "{:?}", verified.findings);
        let losses = i64::try_from(settled.load(Ordering::Relaxed) * 3).unwrap();
        assert_eq!(verified.totals.loss, NanoDollars::new(-losses), "each settlement once");
        println!("{} settlements while three gateways were replaced", settled.load(Ordering::Relaxed));
    });
}
