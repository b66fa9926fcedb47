//! Runs batches: reads their requests, runs them and stores the results. Each batch has its own task, which outlives
//! its client. Through the store it also outlives this process. Each request is an internal call for the batch's key.
//! It passes every stage, in the idle service class, within the key's limits and at its expense. Must not know what a
//! request or an answer says.

mod line;
mod read;
pub(crate) mod results;

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use headrace_call_state::Rejection;
use headrace_domain::{HoldId, NanoDollars, RequestId, Stage, UnixNanos};
use headrace_identity::{AuthRefusal, KeyEnd};
use headrace_ledger::{CommandResult, LedgerOperation, LedgerRefusal};
use headrace_objects::{
    BatchFault, BatchRecord, BatchState, BatchStatus, BatchStore, BatchTimes, LineEnd, LineRecord,
};
use headrace_wire::named_request;
use tokio_util::sync::CancellationToken;

use crate::batch_line::{BatchLine, PaidHold};
use crate::resources::StoredResources;
use crate::runner::CallRunner;
use crate::running_batches::{BatchSignals, RunningBatches};

use read::ReadOutcome;

/// Requests of one batch that run concurrently.
const LINES_OF_ONE: usize = 16;
/// Bytes of requests that one batch holds in memory before they run.
const AHEAD_BYTES: u64 = 1 << 20;
/// How often a batch checks whether its window has closed.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Pause of a batch after a server-side failure. The pause doubles from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Bytes that a batch reserves from its key's memory while it runs and while its file is read.
const MEMORY: u64 = 4 << 20;

/// Why a batch starts no further request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BatchStopReason {
    /// All requests have ended.
    Done,
    /// The batch was cancelled.
    Cancelled,
    /// The batch's window has closed.
    Expired,
    /// The batch's key was revoked or has expired.
    KeyOver,
    /// The server is stopping, or another one runs the batch. The other process continues the batch.
    Draining,
}

impl StoredResources {
    /// Resumes the batches that an earlier process left unfinished. Returns how many there are.
    ///
    /// # Errors
    /// The store's message if the batches cannot be read.
    pub async fn resume_batches<R: CallRunner>(self: &Arc<Self>, runner: &Arc<R>) -> Result<usize, String> {
        self.resume_batches_before(runner, UnixNanos::new(u64::MAX)).await
    }

    /// Like [`Self::resume_batches`], but only for batches created before `before`. Lets a caller resume while this
    /// process already runs newer batches.
    ///
    /// # Errors
    /// The same as [`Self::resume_batches`].
    pub async fn resume_batches_before<R: CallRunner>(
        self: &Arc<Self>,
        runner: &Arc<R>,
        before: UnixNanos,
    ) -> Result<usize, String> {
        if self.objects().files().is_none() {
            return Ok(0);
        }
        let open = self.objects().ask_files(|store| store.open_batches()).await;
        let mut open = open.map_err(|rejection| rejection.message.clone())?;
        open.retain(|batch| batch.state.created < before);
        let count = open.len();
        open.into_iter().for_each(|batch| self.run_batch(runner, batch));
        Ok(count)
    }

    /// Runs the batches that this process is to run and does not run yet, in a store that several processes share. Ends
    /// those that were cancelled through another process, or that another one runs now. Returns how many it started.
    ///
    /// # Errors
    /// The store's message if the batches cannot be read.
    pub async fn follow_batches<R: CallRunner>(self: &Arc<Self>, runner: &Arc<R>) -> Result<usize, String> {
        if self.objects().files().is_none() || self.is_draining() {
            return Ok(0);
        }
        // One that starts later may be missing in what the store returns.
        let running: Vec<String> = self.batches().running.lock().keys().cloned().collect();
        let own = self.objects().ask_files(|store| store.own_batches()).await;
        let own = own.map_err(|rejection| rejection.message.clone())?;
        for id in running.iter().filter(|id| own.iter().all(|batch| batch.id != **id)) {
            if let Some(signals) = self.batches().running.lock().get(id) {
                signals.lost.cancel();
                signals.ends.cancel();
            }
        }
        let mut started = 0;
        for batch in own {
            if batch.state.status == BatchStatus::Cancelling {
                self.end_batch(&batch.id);
            }
            if self.batches().has(&batch.id) {
                continue;
            }
            let Some(signals) = self.batches().start(&batch.id) else { continue };
            // It may have ended since the store was read.
            let (project, id) = (batch.project.clone(), batch.id.clone());
            match self.objects().ask_files(move |store| store.batch(&project, &id)).await {
                Ok(Some(current)) if !current.state.status.is_over() => {
                    started += 1;
                    self.spawn_batch(runner, current, signals);
                }
                _ => drop(self.batches().running.lock().remove(&batch.id)),
            }
        }
        Ok(started)
    }

    pub(crate) fn batches(&self) -> &RunningBatches {
        self.objects().batches()
    }

    /// Starts the task that runs a batch, unless it runs already.
    pub(crate) fn run_batch<R: CallRunner>(self: &Arc<Self>, runner: &Arc<R>, batch: BatchRecord) {
        if let Some(signals) = self.batches().start(&batch.id) {
            self.spawn_batch(runner, batch, signals);
        }
    }

    fn spawn_batch<R: CallRunner>(
        self: &Arc<Self>,
        runner: &Arc<R>,
        batch: BatchRecord,
        signals: BatchSignals,
    ) {
        // A drain waits until the running requests are written down.
        let counted = self.parts().tasks.token();
        let (resources, runner) = (Arc::clone(self), Arc::clone(runner));
        tokio::spawn(async move {
            let id = batch.id.clone();
            resources.work_on(&runner, batch, signals).await;
            resources.batches().running.lock().remove(&id);
            drop(counted);
        });
    }

    /// Signals a running batch to end.
    pub(crate) fn end_batch(&self, id: &str) {
        if let Some(signals) = self.batches().running.lock().get(id) {
            signals.ends.cancel();
        }
    }

    /// Runs a batch until it is over, the server stops or another one runs it. A server-side failure delays it.
    async fn work_on<R: CallRunner>(
        self: &Arc<Self>,
        runner: &Arc<R>,
        mut batch: BatchRecord,
        signals: BatchSignals,
    ) {
        let BatchSignals { ends, lost } = signals;
        let mut pause = FIRST_PAUSE;
        while !batch.state.status.is_over() && !self.is_draining() && !lost.is_cancelled() {
            let job = BatchJob { resources: self, runner, ends: &ends, lost: &lost, batch: &batch };
            let step = AssertUnwindSafe(job.step()).catch_unwind().await;
            match step {
                Ok(Ok(Some(next))) => {
                    batch = next;
                    pause = FIRST_PAUSE;
                    continue;
                }
                // The batch was removed, or the server is stopping.
                Ok(Ok(None)) => return,
                Ok(Err(rejection)) => {
                    tracing::warn!(batch = batch.id, why = rejection.message, "a batch waits")
                }
                Err(_) => tracing::error!(batch = batch.id, "a step of a batch panicked; it is tried again"),
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                () = self.parts().draining.cancelled() => return,
                () = lost.cancelled() => return,
            }
        }
    }

    /// Reads and changes a batch's state in one atomic step. Returns `None` if the batch is gone.
    pub(crate) async fn change_batch(
        &self,
        id: &str,
        change: impl FnOnce(&mut BatchState, UnixNanos) + Send + 'static,
    ) -> Result<Option<BatchRecord>, Rejection> {
        let (id, now) = (id.to_owned(), self.now());
        let gone = now.after(self.config().retention);
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

/// A batch that is being run.
struct BatchJob<'a, R> {
    resources: &'a Arc<StoredResources>,
    runner: &'a Arc<R>,
    ends: &'a CancellationToken,
    /// Cancelled when another gateway runs the batch.
    lost: &'a CancellationToken,
    batch: &'a BatchRecord,
}

impl<R> Clone for BatchJob<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for BatchJob<'_, R> {}

impl<R: CallRunner> BatchJob<'_, R> {
    /// Performs the batch's next step and returns its new record. Returns `None` if there is nothing to do for now.
    async fn step(self) -> Result<Option<BatchRecord>, Rejection> {
        let memory = self.resources.memory().reserve(&self.batch.state.key, MEMORY);
        let _memory = memory.map_err(|full| full.at(Stage::Receive))?;
        match self.batch.state.status {
            BatchStatus::Validating => self.read().await,
            BatchStatus::InProgress => match self.run().await? {
                BatchStopReason::Draining => Ok(None),
                BatchStopReason::Cancelled => self.look_again().await,
                BatchStopReason::KeyOver => self.end_for_its_key().await,
                stop @ (BatchStopReason::Done | BatchStopReason::Expired) => {
                    if stop == BatchStopReason::Expired {
                        self.end_rest(LineEnd::Expired).await?;
                    }
                    self.change_status(BatchStatus::InProgress, BatchStatus::Finalizing, |times, now| {
                        times.finalizing = Some(now);
                    })
                    .await
                }
            },
            BatchStatus::Cancelling => {
                // Requests that an earlier process started may have been paid for.
                if self.run().await? == BatchStopReason::Draining {
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

    /// Reads the batch's current record from the store.
    async fn look_again(self) -> Result<Option<BatchRecord>, Rejection> {
        let (project, id) = (self.batch.project.clone(), self.batch.id.clone());
        self.resources.objects().ask_files(move |store| store.batch(&project, &id)).await
    }

    /// Moves the batch from status `from` to status `to`, unless its status changed in between, for example by a
    /// cancellation.
    async fn change_status(
        self,
        from: BatchStatus,
        to: BatchStatus,
        note: impl FnOnce(&mut BatchTimes, UnixNanos) + Send + 'static,
    ) -> Result<Option<BatchRecord>, Rejection> {
        let change = move |state: &mut BatchState, now| {
            if state.status == from {
                state.status = to;
                note(&mut state.times, now);
            }
        };
        self.resources.change_batch(&self.batch.id, change).await
    }

    /// Cancels the batch and records that its key is the reason.
    async fn end_for_its_key(self) -> Result<Option<BatchRecord>, Rejection> {
        let refusal = match self.key_refusal() {
            Some(AuthRefusal::Expired) => (
                "expired_api_key",
                "The batch's API key has expired: requests that had not ended were not run.",
            ),
            Some(AuthRefusal::OwnerInactive) => (
                "user_inactive",
                "The batch's user or service account was deactivated: requests that had not ended were not run.",
            ),
            _ => (
                "invalid_api_key",
                "The batch's API key was revoked: requests that had not ended were not run.",
            ),
        };
        let change = move |state: &mut BatchState, now| {
            if state.status == BatchStatus::InProgress {
                (state.status, state.times.cancelling) = (BatchStatus::Cancelling, Some(now));
                let (code, message) = (refusal.0.to_owned(), refusal.1.to_owned());
                state.faults.push(BatchFault { code, message, param: None, line: None });
            }
        };
        self.resources.change_batch(&self.batch.id, change).await
    }

    /// Why the batch's key is no longer valid. `None` while it is valid.
    fn key_refusal(self) -> Option<AuthRefusal> {
        let parts = self.resources.parts();
        match parts.directory.key_end(&self.batch.state.key)? {
            KeyEnd::Revoked => Some(AuthRefusal::Revoked),
            KeyEnd::Inactive => Some(AuthRefusal::OwnerInactive),
            KeyEnd::At(end) => (parts.clock.now() >= end).then_some(AuthRefusal::Expired),
            KeyEnd::Open => None,
        }
    }

    async fn end_rest(self, end: LineEnd) -> Result<(), Rejection> {
        let id = self.batch.id.clone();
        self.resources.objects().ask_files(move |store| store.end_rest(&id, end)).await
    }

    /// Reads the requests from the batch's input file.
    async fn read(self) -> Result<Option<BatchRecord>, Rejection> {
        let (batch, limits) = (self.batch.clone(), self.resources.config().wire.clone());
        let ends = self.ends.clone();
        let found = self
            .resources
            .objects()
            .ask_files(move |store| read::read_within_bounds(store, &batch, &limits, &ends))
            .await?;
        match found {
            ReadOutcome::Stopped => self.look_again().await,
            ReadOutcome::Whole => {
                self.change_status(BatchStatus::Validating, BatchStatus::InProgress, |times, now| {
                    times.in_progress = Some(now);
                })
                .await
            }
            ReadOutcome::Faults(faults) => {
                let change = move |state: &mut BatchState, now| {
                    if state.status == BatchStatus::Validating {
                        (state.status, state.faults, state.times.failed) =
                            (BatchStatus::Failed, faults, Some(now));
                    }
                };
                let id = self.batch.id.clone();
                self.resources.objects().ask_files(move |store| store.clear_lines(&id)).await?;
                self.resources.change_batch(&self.batch.id, change).await
            }
        }
    }

    /// Runs requests concurrently until no further one may start and all started ones have ended.
    async fn run(self) -> Result<BatchStopReason, Rejection> {
        let Self { resources, ends, batch, .. } = self;
        self.end_begun().await?;
        let (mut waiting, mut from, mut is_all) = (VecDeque::new(), 0, false);
        let (mut stop, mut failed) = (None, None);
        let mut under_way = FuturesUnordered::new();
        loop {
            stop = stop.or_else(|| self.stops());
            if stop == Some(BatchStopReason::KeyOver) {
                // Wakes the requests that wait to be retried, so that they stop.
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
                        // Requires free space first: an answer that cannot be stored must not be computed.
                        store.check_room(&project)?;
                    }
                    Ok(more)
                };
                match resources.objects().ask_files(ask).await {
                    Ok(more) => {
                        is_all = more.is_empty();
                        from = more.last().map_or(from, |line| line.at + 1);
                        waiting.extend(more);
                    }
                    Err(rejection) => failed = Some(rejection),
                }
            }
            if under_way.is_empty() {
                return failed.map_or(Ok(stop.unwrap_or(BatchStopReason::Done)), Err);
            }
            tokio::select! {
                // If one request fails, the others are still awaited: a call that is dropped is charged for its work.
                Some(ended) = under_way.next() => if let Err(rejection) = ended {
                    failed.get_or_insert(rejection);
                },
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = ends.cancelled(), if stop.is_none() => {}
            }
        }
    }

    /// Ends the requests whose answers an earlier process wrote down and charged, but did not mark as ended. Requests
    /// that were not charged run again.
    async fn end_begun(self) -> Result<(), Rejection> {
        let id = self.batch.id.clone();
        let begun = self.resources.objects().ask_files(move |store| store.begun_lines(&id)).await?;
        for line in begun {
            let noted = line.noted.as_deref().and_then(named_request).map(RequestId::hold);
            if noted.is_some() && self.paid(&line).await? == noted {
                self.ended(line.at).await?;
            }
        }
        Ok(())
    }

    /// The hold that paid for a request, if it was paid for. Asks the ledger for a hold of zero under the request's
    /// idempotency claim. The ledger refuses it as a replay if the request was paid for.
    async fn paid(self, line: &LineRecord) -> Result<Option<HoldId>, Rejection> {
        let parts = self.resources.parts();
        let Some(key) = parts.directory.key(&self.batch.state.key) else { return Ok(None) };
        let of = BatchLine::new(
            &self.batch.id,
            line.at,
            &line.custom_id,
            line.body.as_bytes(),
            PaidHold::default(),
        );
        let now = parts.clock.now();
        let hold = RequestId::fresh(now).hold();
        let asked = LedgerOperation::Hold {
            hold,
            org: key.org,
            project: key.project,
            amount: NanoDollars::ZERO,
            owner: parts.owner,
            expires: now.after(self.resources.config().hold_lifetime),
            demand: None,
            idempotency: Some(of.claim()),
        };
        let mut decided = parts.ledger.decide(vec![asked], now).await;
        match decided.verdicts.pop().map(CommandResult::into_result) {
            Some(Err(LedgerRefusal::IdempotencyReplay { hold, .. })) => Ok(Some(hold)),
            Some(Err(refusal)) => Err(refusal.into()),
            _ => {
                self.runner.release(hold).await;
                Ok(None)
            }
        }
    }

    /// Why no further request may start. `None` if more may start.
    fn stops(self) -> Option<BatchStopReason> {
        if self.resources.is_draining() || self.lost.is_cancelled() {
            Some(BatchStopReason::Draining)
        } else if self.ends.is_cancelled() || self.batch.state.status == BatchStatus::Cancelling {
            Some(BatchStopReason::Cancelled)
        } else if self.key_refusal().is_some() {
            Some(BatchStopReason::KeyOver)
        } else if self.resources.now() >= self.batch.state.expires {
            Some(BatchStopReason::Expired)
        } else {
            None
        }
    }

    /// How many of the batch's requests may run concurrently. At most half of the smallest concurrency limit
    /// of its key, project and organisation, so that interactive calls find room.
    fn width(self) -> usize {
        let now = self.resources.now();
        let Ok(principal) = self.resources.parts().directory.principal(&self.batch.state.key, now) else {
            return 1;
        };
        let limits = [principal.limits, principal.project_limits, principal.org_limits];
        let least = limits.iter().filter_map(|limits| limits.concurrency).min();
        let half = least.map_or(LINES_OF_ONE, |least| usize::try_from(least / 2).unwrap_or(LINES_OF_ONE));
        half.clamp(1, LINES_OF_ONE)
    }
}
