//! The loop that reads the answers of a round until they are complete or something else ends the call. Each thing that
//! may wake the loop has its own step. Must not know what the end of a call costs.

use std::time::Duration;

use headrace_call_api::AbortReason;
use headrace_call_state::{KeptCallHandle, Rejection};
use headrace_domain::ReplyEvent;
use headrace_ledger::JournalFailed;

use crate::Gateway;
use crate::request_context::RequestContext;
use crate::settle::CallSettlement;

use super::client_stream::ClientStream;
use super::early_end::{cut_off, key_over, too_long};
use super::event_batcher::EventBatcher;
use super::placement::Placed;
use super::reply::ReplyWriter;
use super::round::Round;
use super::source::source_event::{LostJob, SourceEvent};
use super::{CallEnding, CallTask, not_held};

/// See the top of the file.
struct AnswerLoop<'a> {
    gateway: &'a Gateway,
    context: &'a mut RequestContext,
    settlement: &'a mut CallSettlement,
    line: &'a mut ClientStream,
    reply: &'a mut ReplyWriter,
    round: &'a mut Round,
    ticker: &'a mut KeptCallHandle,
    batcher: EventBatcher,
    /// The reply events that are not encoded yet.
    events: Vec<ReplyEvent>,
    /// The hold is on the disk, so the answer may begin.
    is_durable: bool,
    /// How long the client has been sent nothing, in whole ticks.
    silent: Duration,
    /// How long the call has run, in whole ticks. `None` before the first tick.
    waited: Option<Duration>,
}

impl CallTask {
    /// Reads the source until its answers are complete or something else ends the call.
    pub(super) async fn run(&mut self, gateway: &Gateway, _: &Placed) -> CallEnding {
        let Self { context, settlement, line, reply, round, ticker, .. } = self;
        if let Some(engine) = round.source.as_engine_mut() {
            engine.make_parsers(context.id);
        }
        // One answer in one encoder, however many rounds it takes.
        let reply = reply.get_or_insert_with(|| ReplyWriter::new(&round.work, context));
        let hedge_delay = round.patience(gateway, context);
        if gateway.cut_off().is_cancelled() {
            return CallEnding::Failed(cut_off());
        }
        line.content_type = reply.content_type();
        let mut answer_loop = AnswerLoop {
            gateway,
            context,
            settlement,
            line,
            reply,
            round,
            ticker,
            batcher: EventBatcher::default(),
            events: Vec::new(),
            is_durable: false,
            silent: Duration::ZERO,
            waited: None,
        };
        match answer_loop.read(hedge_delay).await {
            Ok(()) => CallEnding::Completed,
            Err(ending) => ending,
        }
    }
}

impl AnswerLoop<'_> {
    /// Reads until the answers are complete and the hold is on the disk. After `hedge_delay`, if set, a second worker
    /// is asked.
    ///
    /// # Errors
    /// Something else ended the call.
    async fn read(&mut self, hedge_delay: Option<Duration>) -> Result<(), CallEnding> {
        let mut may_hedge = hedge_delay.is_some();
        let mut hedge = std::pin::pin!(tokio::time::sleep(hedge_delay.unwrap_or_default()));
        loop {
            self.begin_if_due();
            let is_full = self.note_pause();
            tokio::select! {
                biased;
                () = self.line.reader_moved() => self.on_reader()?,
                () = self.ticker.next() => {
                    self.on_tick()?;
                    if self.reply.end_if_unfit().await {
                        self.reply.hand_over(&self.line.sender, self.context);
                        break;
                    }
                }
                event = self.batcher.next(&mut self.round.source, self.context, &mut self.events),
                    if !is_full => match event {
                        SourceEvent::Over => break,
                        event => {
                            self.on_event(event).await?;
                            if self.reply.is_cut() {
                                break;
                            }
                        }
                    },
                // After the source. The first poll steps back for one turn, so that other calls' holds can join the
                // write. A second poll in the same turn would request the write at once.
                written = &mut self.settlement.durable, if !self.is_durable => self.on_durable(written)?,
                () = &mut hedge, if may_hedge => {
                    may_hedge = false;
                    self.round.race(self.gateway, self.context);
                }
            }
        }
        self.settlement.held().await.map_err(|failed| not_held(&failed))
    }

    /// Sends the head of a stream once there is something to show, or nothing came for long, if the hold is on the disk.
    fn begin_if_due(&mut self) {
        let config = self.gateway.config();
        if self.line.may_begin()
            && (self.reply.is_meaningful() || self.waited >= Some(config.first_event_wait))
        {
            if self.is_durable {
                self.line.begin(self.context);
            } else {
                self.settlement.durable.hurry();
            }
        }
    }

    /// Notes when the client's buffer becomes full, and when it no longer is. No events are read while it is full.
    fn note_pause(&mut self) -> bool {
        let is_full = self.line.sender.is_full();
        if is_full != self.round.pauses.is_paused() {
            self.round.pauses.set(is_full, self.context.elapsed_ns());
        }
        is_full
    }

    /// The client may have gone away or taken something.
    fn on_reader(&mut self) -> Result<(), CallEnding> {
        let Some(reason) = self.line.abort_reason() else { return Ok(()) };
        // The transport's stall time is longer than ours, even if it took a last frame in between.
        let stalled = self.line.stalled(self.context.clock.monotonic_nanos());
        Err(gave_up(reason, stalled.max(self.gateway.config().stall_timeout)))
    }

    /// Checks the deadlines of the call.
    fn on_tick(&mut self) -> Result<(), CallEnding> {
        let config = self.gateway.config();
        if self.gateway.cut_off().is_cancelled() {
            return Err(CallEnding::Failed(cut_off()));
        }
        if let Some(refusal) = self.ticker.key_refusal() {
            return Err(CallEnding::KeyOver(key_over(&refusal)));
        }
        let period = config.period();
        // The first tick comes at any time within the first period, so it counts as no wait.
        self.waited = Some(self.waited.map_or(Duration::ZERO, |waited| waited + period));
        self.silent += period;
        let (now_ns, longest) = (self.context.clock.monotonic_nanos(), config.longest_call());
        if Duration::from_nanos(now_ns.saturating_sub(self.settlement.taken_ns)) >= longest {
            return Err(CallEnding::Failed(too_long(longest)));
        }
        let stalled = self.line.stalled(now_ns);
        if stalled >= config.stall_timeout {
            return Err(CallEnding::Stalled { waited: stalled });
        }
        if self.line.has_begun() && self.silent >= config.keep_alive {
            self.silent = Duration::ZERO;
            self.reply.keep_alive(&self.line.sender);
        }
        Ok(())
    }

    /// Takes an event of the source, and hands what it yields to the client.
    async fn on_event(&mut self, event: SourceEvent) -> Result<(), CallEnding> {
        match event {
            SourceEvent::More(progress) => {
                let (source, events) = (&mut self.round.source, &mut self.events);
                self.batcher.take_in(self.reply, source, progress, events, self.context).await;
            }
            SourceEvent::Passed(piece) => self.reply.pass(piece, self.context),
            SourceEvent::Lost(lost) => return self.move_on(*lost).map_err(CallEnding::Failed),
            SourceEvent::Outrun(race) => {
                self.round.outrun(self.gateway, self.context, *race);
                return Ok(());
            }
            SourceEvent::Over => return Ok(()),
        }
        self.silent = Duration::ZERO;
        self.reply.hand_over(&self.line.sender, self.context);
        Ok(())
    }

    /// The write of the hold has ended.
    fn on_durable(&mut self, written: Result<(), JournalFailed>) -> Result<(), CallEnding> {
        written.map_err(|failed| not_held(&failed))?;
        self.is_durable = true;
        Ok(())
    }

    /// Moves a lost part of the call to another worker, unseen by the client or with a remark in the stream.
    fn move_on(&mut self, mut lost: LostJob) -> Result<(), Rejection> {
        let Self { gateway, context, settlement, line, reply, round, .. } = self;
        // What earlier rounds answered cannot be made again.
        let is_first = !settlement.has_ended_rounds();
        if lost.may_move_if_unseen && !line.has_begun() && is_first {
            line.sender.cut();
            **reply = ReplyWriter::new(&round.work, context);
            if let Some(relay) = round.source.as_relay_mut() {
                relay.discard_output();
            }
            lost.may_move = true;
        }
        let before = context.record.continued.len();
        round.place_again(gateway, context, lost)?;
        reply.remark(context.record.continued.get(before..).unwrap_or_default(), &line.sender);
        Ok(())
    }
}

fn gave_up(reason: AbortReason, waited: Duration) -> CallEnding {
    match reason {
        AbortReason::ClientGone => CallEnding::ClientGone,
        AbortReason::ReaderStalled => CallEnding::Stalled { waited },
        AbortReason::ShuttingDown => CallEnding::Failed(cut_off()),
    }
}
