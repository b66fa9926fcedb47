//! The process that is killed: this test binary, started again for one test with a task in its environment. It prints a
//! line for each change after the ledger has acknowledged it as durable.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use headrace_domain::{
    Clock, HoldId, ModelName, NanoDollars, NanoDollarsPerMillion, OrgId, ProjectId, SystemClock, TokenClass,
};
use headrace_ledger::{
    ChargeLine, CommandResult, GrantKind, IdempotencyClaim, Ledger, LedgerOperation, LedgerOptions,
    LedgerRefusal, Owner, Receipt, ReleaseReason, SettleOutcome, StoredAnswer,
};
use headrace_store::CommitDurability;
use headrace_store::journal::SqliteJournal;

const TASK: &str = "HEADRACE_CRASH_TASK";
const DIRECTORY: &str = "HEADRACE_CRASH_DIRECTORY";
const RUN: &str = "HEADRACE_CRASH_RUN";
const DURABILITY: &str = "HEADRACE_CRASH_DURABILITY";

/// A message of the child on its standard output, one per line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    /// The ledger is open.
    Ready,
    /// A hold is durable.
    Held(HoldId),
    /// A settlement is durable, with the amount in nano-dollars.
    Settled(HoldId, i64),
    /// A release is durable.
    Released(HoldId),
    /// A change was rolled back because the journal failed.
    Failed,
    /// A command was refused because the journal is down.
    Unavailable,
    /// The script has ended.
    Done,
}

impl Said {
    fn say(self) {
        let line = match self {
            Self::Ready => "said ready\n".to_owned(),
            Self::Held(hold) => format!("said held {hold}\n"),
            Self::Settled(hold, charged) => format!("said settled {hold} {charged}\n"),
            Self::Released(hold) => format!("said released {hold}\n"),
            Self::Failed => "said failed\n".to_owned(),
            Self::Unavailable => "said unavailable\n".to_owned(),
            Self::Done => "said done\n".to_owned(),
        };
        // A single write, because a pipe takes a short line as a whole. If the parent is gone, the child is not at
        // fault.
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
    }

    /// Parses a whole line. `None` for lines of the test harness.
    pub(crate) fn heard(line: &str) -> Option<Self> {
        // The harness prints `test … ... ` without a line break before the child's first line.
        let (_, line) = line.split_once("said ")?;
        let words: Vec<&str> = line.split_whitespace().collect();
        Some(match words.as_slice() {
            ["ready"] => Self::Ready,
            ["held", hold] => Self::Held(hold.parse().ok()?),
            ["settled", hold, charged] => Self::Settled(hold.parse().ok()?, charged.parse().ok()?),
            ["released", hold] => Self::Released(hold.parse().ok()?),
            ["failed"] => Self::Failed,
            ["unavailable"] => Self::Unavailable,
            ["done"] => Self::Done,
            _ => return None,
        })
    }
}

/// Starts this binary again for a task. `extra` is set in its environment.
pub(crate) fn start(
    task: &str,
    directory: &Path,
    run: u64,
    durability: CommitDurability,
    extra: &[(&str, String)],
) -> Child {
    let durability = match durability {
        CommitDurability::Full => "full",
        CommitDurability::Normal => "normal",
        CommitDurability::Off => "off",
    };
    Process::new(std::env::current_exe().unwrap())
        .args(["--exact", "child::works_until_it_is_struck_down", "--nocapture", "--test-threads=1"])
        .env(TASK, task)
        .env(DIRECTORY, directory)
        .env(RUN, run.to_string())
        .env(DURABILITY, durability)
        .envs(extra.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

pub(crate) fn journal_path(directory: &Path) -> PathBuf {
    directory.join("ledger.sqlite")
}

/// Not a test of its own. Without a task it does nothing.
#[test]
fn works_until_it_is_struck_down() {
    let Ok(task) = std::env::var(TASK) else { return };
    let directory = PathBuf::from(std::env::var(DIRECTORY).unwrap());
    let run: u128 = std::env::var(RUN).unwrap().parse().unwrap();
    let durability = match std::env::var(DURABILITY).unwrap().as_str() {
        "full" => CommitDurability::Full,
        "normal" => CommitDurability::Normal,
        _ => CommitDurability::Off,
    };
    let worker = Worker::open(&directory, run, durability);
    Said::Ready.say();
    match task.as_str() {
        "load" => worker.load(),
        "script" => worker.script(),
        "full disk" => worker.endure_a_full_disk(),
        other => panic!("no task {other}"),
    }
}

struct Worker {
    ledger: Ledger,
    clock: SystemClock,
    owner: Owner,
    /// The upper half of every hold's id.
    run: u128,
    next: AtomicU64,
}

fn org() -> OrgId {
    OrgId::new("org").unwrap()
}

fn project() -> ProjectId {
    ProjectId::new("project").unwrap()
}

/// A bill of `amount` nano-dollars.
fn lines(amount: u64) -> Vec<ChargeLine> {
    vec![ChargeLine {
        model: ModelName::new("demo-1").unwrap(),
        class: TokenClass::Output,
        tokens: amount,
        price: NanoDollarsPerMillion::new(1_000_000).unwrap(),
        amount: NanoDollars::new(amount.cast_signed()),
    }]
}

impl Worker {
    fn open(directory: &Path, run: u128, durability: CommitDurability) -> Self {
        let clock = SystemClock::new();
        let journal = SqliteJournal::open_with(&journal_path(directory), durability).unwrap();
        let owner = Owner::new(run + 1);
        // Frequent snapshots, so that a kill may hit one.
        let retry = Duration::from_millis(5);
        let options = LedgerOptions { snapshot_rows: 8, retry, ..LedgerOptions::default() };
        let (ledger, _) = Ledger::open_with(Box::new(journal), owner, clock.now(), options).unwrap();
        let worker = Self { ledger, clock, owner, run, next: AtomicU64::new(1) };
        if worker.ledger.totals().transactions == 0 {
            let (kind, reference) = (GrantKind::Paid, "tests".into());
            let money = NanoDollars::new(1_000_000_000_000);
            let opened = worker.ledger.transact(
                vec![
                    LedgerOperation::OpenProject { org: org(), project: project() },
                    LedgerOperation::Grant { org: org(), amount: money, kind, reference },
                ],
                worker.clock.now(),
            );
            opened.durable.wait().unwrap();
        }
        worker
    }

    /// Runs a batch, and reports the changes once they are durable.
    fn transact(&self, batch: Vec<LedgerOperation>) -> bool {
        let done = self.ledger.transact(batch, self.clock.now());
        if done.durable.wait().is_err() {
            Said::Failed.say();
            return false;
        }
        let mut all = true;
        for verdict in done.verdicts {
            match verdict {
                CommandResult::Done(Receipt::Held { hold, .. }) => Said::Held(hold).say(),
                CommandResult::Done(Receipt::Settled { hold, charged, .. }) => {
                    Said::Settled(hold, charged.get()).say()
                }
                CommandResult::Done(Receipt::Released { hold, .. }) => Said::Released(hold).say(),
                CommandResult::Done(_) => {}
                CommandResult::Refused(LedgerRefusal::Unavailable { .. }) => {
                    Said::Unavailable.say();
                    all = false;
                }
                CommandResult::Refused(refusal) => panic!("{refusal:?}"),
            }
        }
        all
    }

    fn hold(&self) -> (HoldId, LedgerOperation) {
        let n = u128::from(self.next.fetch_add(1, Ordering::Relaxed));
        let hold = HoldId::from_bits(self.run << 64 | n);
        let command = LedgerOperation::Hold {
            hold,
            org: org(),
            project: project(),
            amount: NanoDollars::new(1000),
            owner: self.owner,
            expires: self.clock.now().after(Duration::from_secs(600)),
            demand: None,
            idempotency: n
                .is_multiple_of(3)
                .then(|| IdempotencyClaim { key: hold.to_string(), request_hash: [1; 32] }),
        };
        (hold, command)
    }

    /// One call: a hold, then usually a settlement, and sometimes a release or nothing.
    fn call(&self) -> bool {
        let (hold, take) = self.hold();
        if !self.transact(vec![take]) {
            return false;
        }
        let n = hold.bits() as u64;
        match n % 7 {
            5 => self.transact(vec![LedgerOperation::Release { hold, why: ReleaseReason::Cancelled }]),
            6 => true,
            _ => {
                let answer = StoredAnswer {
                    status: 200,
                    content_type: "application/json".into(),
                    body: vec![b'x'; (n % 5000) as usize].into(),
                };
                let (outcome, loss) = (SettleOutcome::Completed, NanoDollars::new((n % 3).cast_signed()));
                let answer = Some(answer);
                self.transact(vec![LedgerOperation::Settle {
                    hold,
                    lines: lines(n % 1100),
                    loss,
                    outcome,
                    answer,
                }])
            }
        }
    }

    /// Calls from many threads until the process is killed.
    fn load(&self) {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| while self.call() {});
            }
        });
    }

    /// Always makes the same writes in the same order.
    fn script(self) {
        for _ in 0..24 {
            assert!(self.call());
        }
        let (first, take) = self.hold();
        let (_, take_another) = self.hold();
        assert!(self.transact(vec![take, take_another]));
        assert!(self.transact(vec![LedgerOperation::Release { hold: first, why: ReleaseReason::Failed }]));
        self.ledger.close().unwrap();
        Said::Done.say();
    }

    /// Makes calls one after the other, through failures, until the file `stop` appears.
    fn endure_a_full_disk(self) {
        let stop = PathBuf::from(std::env::var(DIRECTORY).unwrap()).join("stop");
        while !stop.exists() {
            if !self.call() {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        self.ledger.close().unwrap();
        Said::Done.say();
    }
}
