//! Batches at work: their requests are read, run and written down, in a task for each batch that outlives its client and, through the
//! store, this process. Each request is a call of the house for the batch's key: it walks the whole path, in the idle class, within the
//! key's limits and for its money. Must not know what a request or an answer says.

mod line;
pub(crate) mod places;
mod read;
pub(crate) mod results;

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use headrace_domain::{HoldId, NanoDollars, RequestId, Stage, UnixNanos};
use headrace_identity::{AuthRefusal, KeyEnd};
use headrace_ledger::{Command, LedgerRefusal, Verdict};
use headrace_objects::{
    BatchFault, BatchRecord, BatchState, BatchStatus, BatchStore, BatchTimes, LineEnd, LineRecord,
};
use headrace_wire::named_request;
use tokio_util::sync::CancellationToken;

use crate::Gateway;
use crate::batch_line::{BatchLine, Paid};
use crate::pump::settle;
use crate::refused::Why;

use places::Batches;
use read::Read;

/// Requests of one batch that run at once.
const LINES_OF_ONE: usize = 16;
/// Bytes of requests that one batch has in memory before they run.
const AHEAD_BYTES: u64 = 1 << 20;
/// How often a batch looks whether its time is over.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a batch waits that met a failure of ours, at first and at most, before it goes on.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// What a batch takes of its key's memory while it runs, and while its file is read.
const MEMORY: u64 = 4 << 20;

/// Why no further request is begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// All have ended.
    Done,
    /// Somebody wants it to end.
    Cancelled,
    /// Its time is over.
    Expired,
    /// Its key was revoked, or has expired.
    KeyOver,
    /// The server is stopping: the next one goes on.
    Draining,
}

impl Gateway {
    /// Goes on with the batches that a process before this one left; how many.
    ///
    /// # Errors
    /// Why they cannot be read.
    pub async fn resume_batches(self: &Arc<Self>) -> Result<usize, String> {
        self.resume_batches_before(UnixNanos::new(u64::MAX)).await
    }

    /// As [`Self::resume_batches`], of those that were created before a time: while this process runs others.
    ///
    /// # Errors
    /// As there.
    pub async fn resume_batches_before(self: &Arc<Self>, before: UnixNanos) -> Result<usize, String> {
        if self.objects().files().is_none() {
            return Ok(0);
        }
        let open = self.objects().ask_files(|store| store.open_batches()).await;
        let mut open = open.map_err(|why| why.message.clone())?;
        open.retain(|batch| batch.state.created < before);
        let count = open.len();
        open.into_iter().for_each(|batch| self.run_batch(batch));
        Ok(count)
    }

    fn batches(&self) -> &Batches {
        self.objects().batches()
    }

    /// Has a batch worked on, in a task of its own.
    pub(crate) fn run_batch(self: &Arc<Self>, batch: BatchRecord) {
        let ends = CancellationToken::new();
        self.batches().ends.lock().insert(batch.id.clone(), ends.clone());
        // A drain waits until what is under way is written down.
        let counted = self.counted();
        let gateway = Arc::clone(self);
        tokio::spawn(async move {
            let id = batch.id.clone();
            gateway.work_on(batch, ends).await;
            gateway.batches().ends.lock().remove(&id);
            drop(counted);
        });
    }

    /// Tells a batch that somebody wants it to end.
    pub(crate) fn end_batch(&self, id: &str) {
        if let Some(ends) = self.batches().ends.lock().get(id) {
            ends.cancel();
        }
    }

    /// Works on a batch until it is over, or the server stops. A failure of ours delays it.
    async fn work_on(self: &Arc<Self>, mut batch: BatchRecord, ends: CancellationToken) {
        let mut pause = FIRST_PAUSE;
        while !batch.state.status.is_over() && !self.is_draining() {
            let job = Job { gateway: self, ends: &ends, batch: &batch };
            let step = AssertUnwindSafe(job.step()).catch_unwind().await;
            match step {
                Ok(Ok(Some(next))) => {
                    batch = next;
                    pause = FIRST_PAUSE;
                    continue;
                }
                // It was removed, or the server is stopping.
                Ok(Ok(None)) => return,
                Ok(Err(why)) => tracing::warn!(batch = batch.id, why = why.message, "a batch waits"),
                Err(_) => tracing::error!(batch = batch.id, "a step of a batch panicked; it is tried again"),
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                () = self.draining().cancelled() => return,
            }
        }
    }

    /// Changes what is known of a batch, in one step with looking at it.
    pub(crate) async fn change_batch(
        &self,
        id: &str,
        change: impl FnOnce(&mut BatchState, UnixNanos) + Send + 'static,
    ) -> Result<Option<BatchRecord>, Why> {
        let (id, now) = (id.to_owned(), self.parts().clock.now());
        let gone = now.after(self.config().object_retention);
        let mut change = Some(change);
        let changing = self.objects().ask_files(move |store| {
            store.change_batch(&id, gone, &mut |state| {
                if let Some(change) = change.take() {
                    change(state, now);
                }
            })
        });
        changing.await
    }
}

/// A batch at work.
#[derive(Clone, Copy)]
struct Job<'a> {
    gateway: &'a Arc<Gateway>,
    ends: &'a CancellationToken,
    batch: &'a BatchRecord,
}

impl Job<'_> {
    /// What is next for it; what it is then. `None`: nothing, for now.
    async fn step(self) -> Result<Option<BatchRecord>, Why> {
        let memory = self.gateway.memory().reserve(&self.batch.state.key, MEMORY);
        let _memory = memory.map_err(|full| full.at(Stage::Receive))?;
        match self.batch.state.status {
            BatchStatus::Validating => self.read().await,
            BatchStatus::InProgress => match self.run().await? {
                Stop::Draining => Ok(None),
                Stop::Cancelled => self.look_again().await,
                Stop::KeyOver => self.end_for_its_key().await,
                stop @ (Stop::Done | Stop::Expired) => {
                    if stop == Stop::Expired {
                        self.end_rest(LineEnd::Expired).await?;
                    }
                    self.goes_on(BatchStatus::InProgress, BatchStatus::Finalizing, |times, now| {
                        times.finalizing = Some(now);
                    })
                    .await
                }
            },
            BatchStatus::Cancelling => {
                // What was begun when the last process ended may have been paid for.
                if self.run().await? == Stop::Draining {
                    return Ok(None);
                }
                self.end_rest(LineEnd::Cancelled).await?;
                self.write_down().await
            }
            BatchStatus::Finalizing => self.write_down().await,
            BatchStatus::Failed | BatchStatus::Completed | BatchStatus::Expired | BatchStatus::Cancelled => {
                Ok(None)
            }
        }
    }

    /// As it is stored now.
    async fn look_again(self) -> Result<Option<BatchRecord>, Why> {
        let (project, id) = (self.batch.project.clone(), self.batch.id.clone());
        self.gateway.objects().ask_files(move |store| store.batch(&project, &id)).await
    }

    /// Brings it a step further, unless somebody wanted it to end meanwhile.
    async fn goes_on(
        self,
        from: BatchStatus,
        to: BatchStatus,
        note: impl FnOnce(&mut BatchTimes, UnixNanos) + Send + 'static,
    ) -> Result<Option<BatchRecord>, Why> {
        let change = move |state: &mut BatchState, now| {
            if state.status == from {
                state.status = to;
                note(&mut state.times, now);
            }
        };
        self.gateway.change_batch(&self.batch.id, change).await
    }

    /// Cancels it, and says that it was for its key.
    async fn end_for_its_key(self) -> Result<Option<BatchRecord>, Why> {
        let refusal = if self.key_refusal() == Some(AuthRefusal::Expired) {
            ("expired_api_key", "The batch's API key has expired: requests that had not ended were not run.")
        } else {
            ("invalid_api_key", "The batch's API key was revoked: requests that had not ended were not run.")
        };
        let change = move |state: &mut BatchState, now| {
            if state.status == BatchStatus::InProgress {
                (state.status, state.times.cancelling) = (BatchStatus::Cancelling, Some(now));
                let (code, message) = (refusal.0.to_owned(), refusal.1.to_owned());
                state.faults.push(BatchFault { code, message, param: None, line: None });
            }
        };
        self.gateway.change_batch(&self.batch.id, change).await
    }

    /// Why its key is not good any more. `None` while it is.
    fn key_refusal(self) -> Option<AuthRefusal> {
        let parts = self.gateway.parts();
        match parts.directory.key_end(&self.batch.state.key)? {
            KeyEnd::Revoked => Some(AuthRefusal::Revoked),
            KeyEnd::At(end) => (parts.clock.now() >= end).then_some(AuthRefusal::Expired),
            KeyEnd::Open => None,
        }
    }

    async fn end_rest(self, end: LineEnd) -> Result<(), Why> {
        let id = self.batch.id.clone();
        self.gateway.objects().ask_files(move |store| store.end_rest(&id, end)).await
    }

    /// Reads its requests out of its file.
    async fn read(self) -> Result<Option<BatchRecord>, Why> {
        let (batch, limits) = (self.batch.clone(), self.gateway.config().wire.clone());
        let ends = self.ends.clone();
        let found = self
            .gateway
            .objects()
            .ask_files(move |store| read::read_within_bounds(store, &batch, &limits, &ends))
            .await?;
        match found {
            Read::Stopped => self.look_again().await,
            Read::Whole => {
                self.goes_on(BatchStatus::Validating, BatchStatus::InProgress, |times, now| {
                    times.in_progress = Some(now);
                })
                .await
            }
            Read::Faults(faults) => {
                let change = move |state: &mut BatchState, now| {
                    if state.status == BatchStatus::Validating {
                        (state.status, state.faults, state.times.failed) =
                            (BatchStatus::Failed, faults, Some(now));
                    }
                };
                let id = self.batch.id.clone();
                self.gateway.objects().ask_files(move |store| store.clear_lines(&id)).await?;
                self.gateway.change_batch(&self.batch.id, change).await
            }
        }
    }

    /// Runs its requests, several at once, until none is to be begun any more and those under way have ended.
    async fn run(self) -> Result<Stop, Why> {
        let Self { gateway, ends, batch } = self;
        self.end_begun().await?;
        let (mut waiting, mut from, mut is_all) = (VecDeque::new(), 0, false);
        let (mut stop, mut failed) = (None, None);
        let mut under_way = FuturesUnordered::new();
        loop {
            stop = stop.or_else(|| self.stops());
            if stop == Some(Stop::KeyOver) {
                // Those that wait to be tried again end now.
                ends.cancel();
            }
            while stop.is_none() && failed.is_none() && under_way.len() < self.width() {
                if let Some(line) = waiting.pop_front() {
                    under_way.push(self.run_line(line));
                    continue;
                }
                if is_all {
                    break;
                }
                let (id, project) = (batch.id.clone(), batch.project.clone());
                let ask = move |store: &dyn BatchStore| {
                    let more = store.lines(&id, from, AHEAD_BYTES)?;
                    if !more.is_empty() {
                        // What could not be kept is not computed.
                        store.check_room(&project)?;
                    }
                    Ok(more)
                };
                match gateway.objects().ask_files(ask).await {
                    Ok(more) => {
                        is_all = more.is_empty();
                        from = more.last().map_or(from, |line| line.at + 1);
                        waiting.extend(more);
                    }
                    Err(why) => failed = Some(why),
                }
            }
            if under_way.is_empty() {
                return failed.map_or(Ok(stop.unwrap_or(Stop::Done)), Err);
            }
            tokio::select! {
                // Whatever became of one, the others are waited for: who lets go of a call pays for what it came to.
                Some(ended) = under_way.next() => if let Err(why) = ended {
                    failed.get_or_insert(why);
                },
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = ends.cancelled(), if stop.is_none() => {}
            }
        }
    }

    /// Ends the requests that an earlier process was about to end: whose answer is written down, and was paid for. What was not paid
    /// for is run anew.
    async fn end_begun(self) -> Result<(), Why> {
        let id = self.batch.id.clone();
        let begun = self.gateway.objects().ask_files(move |store| store.begun_lines(&id)).await?;
        for line in begun {
            let noted = line.noted.as_deref().and_then(named_request).map(RequestId::hold);
            if noted.is_some() && self.paid(&line).await? == noted {
                self.ended(line.at).await?;
            }
        }
        Ok(())
    }

    /// The hold by which a request was paid for, if it was. The books know it by its key: a hold of nothing is refused for it.
    async fn paid(self, line: &LineRecord) -> Result<Option<HoldId>, Why> {
        let parts = self.gateway.parts();
        let Some(key) = parts.directory.key(&self.batch.state.key) else { return Ok(None) };
        let of =
            BatchLine::new(&self.batch.id, line.at, &line.custom_id, line.body.as_bytes(), Paid::default());
        let now = parts.clock.now();
        let hold = RequestId::fresh(now).hold();
        let asked = Command::Hold {
            hold,
            org: key.org,
            project: key.project,
            amount: NanoDollars::ZERO,
            owner: parts.owner,
            expires: now.after(self.gateway.config().hold_lifetime),
            idempotency: Some(of.claim()),
        };
        let mut told = parts.books.decide(vec![asked], now).await;
        match told.verdicts.pop().map(Verdict::into_result) {
            Some(Err(LedgerRefusal::IdempotencyReplay { hold, .. })) => Ok(Some(hold)),
            Some(Err(refusal)) => Err(refusal.into()),
            _ => {
                settle::let_go(self.gateway, hold).await;
                Ok(None)
            }
        }
    }

    /// Why no further request is to be begun.
    fn stops(self) -> Option<Stop> {
        if self.gateway.is_draining() {
            Some(Stop::Draining)
        } else if self.ends.is_cancelled() || self.batch.state.status == BatchStatus::Cancelling {
            Some(Stop::Cancelled)
        } else if self.key_refusal().is_some() {
            Some(Stop::KeyOver)
        } else if self.gateway.parts().clock.now() >= self.batch.state.expires {
            Some(Stop::Expired)
        } else {
            None
        }
    }

    /// How many of its requests may run at once: no more than half of the places that its key, project and organisation have in
    /// flight, so that calls of people find one.
    fn width(self) -> usize {
        let now = self.gateway.parts().clock.now();
        let Ok(principal) = self.gateway.parts().directory.principal(&self.batch.state.key, now) else {
            return 1;
        };
        let limits = [principal.limits, principal.project_limits, principal.org_limits];
        let least = limits.iter().filter_map(|limits| limits.concurrency).min();
        let half = least.map_or(LINES_OF_ONE, |least| usize::try_from(least / 2).unwrap_or(LINES_OF_ONE));
        half.clamp(1, LINES_OF_ONE)
    }
}
