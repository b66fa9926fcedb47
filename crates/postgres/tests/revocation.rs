//! Keys that are revoked on one gateway while another one takes holds with them, over real PostgreSQL servers: one suite
//! for each version that `HEADRACE_POSTGRES_BIN` names, as the step `postgres` of the test command does.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests use the rest")]
mod support;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use headrace_domain::{Clock, HoldId, KeyId, NanoDollars, OrgId, ProjectId, SystemClock, UnixNanos};
use headrace_identity::{Directory, HashSecret, KeyEnd, NewKey, RateLimits, Revocation, UserProfile};
use headrace_ledger::{
    CallerCheck, CommandResult, GrantKind, JournalError, JournalEvent, JournalHistory as _, LedgerAdmin as _,
    LedgerClient as _, LedgerOperation, LedgerRefusal, Owner, SharedIdentities, SharedLedger,
    SharedLedgerOptions, decode_row,
};
use headrace_postgres::{
    PostgresJournal, PostgresJournalHistory, PostgresKeyStore, PostgresPresence, PostgresUrl,
};

use support::{PostgresServer, versions};

const ROUNDS: u64 = 40;

struct Identities(Arc<Directory>);

impl SharedIdentities for Identities {
    fn loaded(&self) -> u64 {
        self.0.changes_loaded()
    }

    fn load(&self) -> Result<(), JournalError> {
        self.0.refresh().map(drop).map_err(|error| JournalError::Io(error.to_string()))
    }
}

struct Caller(Arc<Directory>, KeyId);

impl CallerCheck for Caller {
    fn is_valid(&self) -> bool {
        !matches!(self.0.key_end(&self.1), Some(KeyEnd::Revoked | KeyEnd::Inactive))
    }
}

/// Opens a gateway. It loads keys only within its turns.
fn open(url: &Arc<PostgresUrl>, owner: u128) -> (Arc<Directory>, SharedLedger) {
    let store = Arc::new(PostgresKeyStore::open(Arc::clone(url)).unwrap());
    let directory = Arc::new(Directory::open(store, HashSecret::new([7; 32])).unwrap());
    let ledger = SharedLedger::open(
        Box::new(PostgresJournal::new(Arc::clone(url))),
        Box::new(PostgresPresence::new(Arc::clone(url))),
        Owner::new(owner),
        Box::new(move || Owner::new(owner + 100)),
        Arc::new(SystemClock::new()),
        SharedLedgerOptions::default(),
    );
    let ledger = ledger.unwrap().0;
    ledger.check_callers(Arc::new(Identities(Arc::clone(&directory))));
    (directory, ledger)
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    let (mut future, waker) = (pin!(future), Waker::from(Arc::new(Unpark(std::thread::current()))));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn after_a_revocation_was_acknowledged_no_gateway_takes_a_hold_with_the_key() {
    for bin in versions() {
        println!("{}", bin.display());
        let server = PostgresServer::start(&bin);
        let url: Arc<PostgresUrl> = Arc::new(server.url().parse().unwrap());
        let history = PostgresJournalHistory::new(Arc::clone(&url));
        let (here, ledger_here) = open(&url, 1);
        let (there, ledger_there) = open(&url, 2);
        let (org, project) = (OrgId::new("o").unwrap(), ProjectId::new("p").unwrap());
        let (now, none) = (SystemClock::new().now(), RateLimits::default());
        here.create_org(org.clone(), none, "test", now).unwrap();
        here.create_project(project.clone(), org.clone(), none, "test", now).unwrap();
        let (amount, reference) = (NanoDollars::new(1_000_000_000), "a test".into());
        let opened = LedgerOperation::OpenProject { org: org.clone(), project: project.clone() };
        let granted = LedgerOperation::Grant { org: org.clone(), amount, kind: GrantKind::Paid, reference };
        assert!(ledger_here.transact(vec![opened, granted], now).verdicts.iter().all(CommandResult::is_done));

        let (holds, mut rows_read, mut taken) = (AtomicU64::new(1), 0, 0);
        for round in 0..ROUNDS {
            // In every other round the key's owner is deactivated in place of the key.
            let owner = UserProfile::new(&format!("user {round}"));
            let owner = here.create_user(org.clone(), owner, "test", now).unwrap().id;
            let mut new = NewKey::new(org.clone(), project.clone(), "racing");
            new.details.owner = Some(owner.to_string());
            let (key, _) = here.create_key(new, "test", now).unwrap();
            let first = holds.load(Ordering::Relaxed);
            let (report_hold, held) = mpsc::channel();
            let head = std::thread::scope(|scope| {
                let (there, ledger, key, holds) = (&there, &ledger_there, &key.id, &holds);
                let (org, project) = (&org, &project);
                let calls = scope.spawn(move || {
                    loop {
                        let hold = LedgerOperation::Hold {
                            hold: HoldId::from_bits(u128::from(holds.fetch_add(1, Ordering::Relaxed))),
                            org: org.clone(),
                            project: project.clone(),
                            amount: NanoDollars::new(1),
                            owner: Owner::new(0),
                            expires: UnixNanos::new(u64::MAX),
                            demand: None,
                            idempotency: None,
                        };
                        let caller = Arc::new(Caller(Arc::clone(there), key.clone()));
                        let done = wait(ledger.decide_for(caller, vec![hold], now));
                        match &done.verdicts[0] {
                            CommandResult::Done(_) => report_hold.send(()).unwrap(),
                            CommandResult::Refused(LedgerRefusal::CallerEnded) => break,
                            other => panic!("{other:?}"),
                        }
                    }
                });
                // The gateway takes holds with the key before this one revokes it, however slow the machine is.
                for _ in 0..=round % 3 {
                    held.recv_timeout(Duration::from_secs(60)).expect("the other gateway takes a hold");
                }
                std::thread::sleep(Duration::from_millis(round % 7));
                match round % 2 {
                    0 => assert_eq!(here.revoke(key, "test", now).unwrap(), Revocation::Written),
                    _ => here.set_account_active(&owner, false, "test", now).unwrap(),
                }
                let head = last_row(&history, rows_read);
                calls.join().unwrap();
                head
            });
            let asked = u128::from(first)..u128::from(holds.load(Ordering::Relaxed));
            for row in history.rows_after(rows_read, usize::MAX >> 1).unwrap() {
                rows_read = row.sequence;
                for transaction in decode_row(&row).unwrap() {
                    let JournalEvent::Held(held) = transaction.event else { continue };
                    assert!(asked.contains(&held.hold.bits()));
                    assert!(
                        row.sequence <= head,
                        "row {} holds with a key revoked at row {head}",
                        row.sequence
                    );
                    taken += 1;
                }
            }
        }
        println!("{taken} holds before {ROUNDS} revocations, none after");
        assert!(taken >= ROUNDS, "calls and revocations raced");
        ledger_here.close().unwrap();
        ledger_there.close().unwrap();
    }
}

fn last_row(history: &PostgresJournalHistory, after: u64) -> u64 {
    history.rows_after(after, usize::MAX >> 1).unwrap().last().map_or(after, |row| row.sequence)
}
