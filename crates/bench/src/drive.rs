//! A run from its start to its report. Knows the order of the steps; other modules implement them.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use headrace_client::ModelInfo;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;

use crate::calibrate::calibrate;
use crate::conversation::CallWriter;
use crate::live::{RunCounters, RunSnapshot, RunWatcher};
use crate::pacer::pace;
use crate::report::ReportedServer;
use crate::session::{BenchContext, PreparedSession, SessionEvent};
use crate::tally::{RunFacts, RunTally};
use crate::target::BenchTarget;
use crate::window::MeasureWindow;
use crate::{
    Api, BenchConfig, BenchError, BenchReport, ConfigFault, LoadShape, MAX_WAITING, RunPlan, SessionIter,
    TokenizerGauge, Warmup,
};

/// Interval between calls of the watcher and checks for the end.
const TICK: Duration = Duration::from_millis(100);
/// Interval between measurements of how late the generator's own timers are.
const WAKE_PROBE: Duration = Duration::from_millis(20);

/// Runs a measurement: finds the model, calibrates the words, sends the load and waits for the calls in flight. If
/// `cancel` is cancelled, the run ends at once and reports the measurements so far.
///
/// Best run on a current-thread runtime, so that the generator takes at most one core from a server on the same
/// machine.
///
/// # Errors
/// [`BenchError`] if no load was sent. Calls that fail are figures of the report.
pub async fn run(
    config: &BenchConfig,
    watch: &mut dyn RunWatcher,
    cancel: CancellationToken,
) -> Result<BenchReport, BenchError> {
    let faults = config.faults();
    if !faults.is_empty() {
        return Err(BenchError::Config(faults));
    }
    let (target, model, writer) = tokio::select! {
        biased;
        () = cancel.cancelled() => return Err(BenchError::Cancelled),
        ready = prepare(config) => ready?,
    };
    let server = ReportedServer {
        url: target.base().to_owned(),
        endpoint: target.endpoint(),
        model: model.id,
        context_window: model.context_window,
    };
    let (end, gauge) = (cancel.child_token(), writer.gauge);
    let stage = Arc::new(BenchContext {
        target,
        writer,
        window: MeasureWindow::new(config),
        live: RunCounters::default(),
        slots: Semaphore::new(config.max_in_flight),
        no_more: end.child_token(),
        end,
        cancel: cancel.clone(),
        start: Instant::now(),
    });
    let plan = RunPlan::new(config);
    let mut tally = RunTally::new(config);
    let probe = tokio::spawn(probe_wakes(stage.clone()));
    let driven = match &config.load {
        LoadShape::Closed { users, .. } => {
            let events = closed(&stage, *users, plan.sessions());
            listen(config, &stage, &plan, (None, None, events), &mut tally, watch).await
        }
        LoadShape::Open { .. } | LoadShape::Replay { .. } => match pace(stage.clone(), plan.sessions()) {
            Ok(arrivals) => {
                let (send, events) = unbounded_channel();
                let ears = (Some(arrivals), Some(send), events);
                listen(config, &stage, &plan, ears, &mut tally, watch).await
            }
            Err(error) => return Err(BenchError::Thread(error)),
        },
    };
    probe.abort();
    let run = RunFacts {
        elapsed: driven,
        begin: stage.window.begin(),
        end: stage.window.end(),
        cut_short: cancel.is_cancelled(),
        in_flight_max: stage.live.in_flight_max.load(std::sync::atomic::Ordering::Relaxed),
        sent_again: stage.target.sent_again(),
        wake_lag: stage.live.wake_lag().clone(),
    };
    Ok(tally.report(config, server, gauge, &run))
}

/// Opens the server, selects the model and calibrates the words.
async fn prepare(config: &BenchConfig) -> Result<(BenchTarget, ModelInfo, CallWriter), BenchError> {
    let (target, model) = BenchTarget::open(config).await?;
    let mut writer = CallWriter::new(config, model.id.clone(), TokenizerGauge::ASSUMED);
    writer.gauge = match (config.tokens_per_word, needs_words(config)) {
        (Some(tokens_per_word), _) => {
            TokenizerGauge { tokens_per_word, overhead_tokens: 0.0, source: "given" }
        }
        (None, true) => calibrate(&target, &writer, &model.id).await?,
        (None, false) => TokenizerGauge::ASSUMED,
    };
    let least = config.shape.prompt.least().saturating_add(config.shape.output.least());
    let recorded = matches!(config.load, LoadShape::Replay { .. });
    if let Some(window) = model.context_window.filter(|window| u64::from(least) > *window && !recorded) {
        let why = format!(
            "no call fits: the shortest prompt and answer are {least} tokens together and {} has a context of {window}",
            model.id
        );
        return Err(BenchError::Config(vec![ConfigFault { flag: "--prompt-tokens", why }]));
    }
    Ok((target, model, writer))
}

/// Returns `true` if any prompt is made of words. A chat replay whose calls all have messages needs no words.
fn needs_words(config: &BenchConfig) -> bool {
    match &config.load {
        LoadShape::Replay { calls, .. } => {
            config.api == Api::Completions || calls.iter().any(|call| call.messages.is_none())
        }
        LoadShape::Closed { .. } | LoadShape::Open { .. } => true,
    }
}

/// Starts the users. The event channel closes when the last user ends.
fn closed(stage: &Arc<BenchContext>, users: u32, sessions: SessionIter) -> UnboundedReceiver<SessionEvent> {
    let (send, events) = unbounded_channel();
    let sessions = Arc::new(Mutex::new(sessions));
    for _ in 0..users {
        let (stage, sessions, send) = (stage.clone(), sessions.clone(), send.clone());
        tokio::spawn(async move { stage.user(sessions, send).await });
    }
    events
}

/// The channels of a run: in an open loop, arrivals and the sender for their events; and the events themselves.
type Ears = (
    Option<UnboundedReceiver<(PreparedSession, Instant)>>,
    Option<UnboundedSender<SessionEvent>>,
    UnboundedReceiver<SessionEvent>,
);

/// Starts sessions when they are due and counts events, until both channels are closed. Returns the length of the run.
async fn listen(
    config: &BenchConfig,
    stage: &Arc<BenchContext>,
    plan: &RunPlan,
    (mut arrivals, mut send, mut events): Ears,
    tally: &mut RunTally,
    watch: &mut dyn RunWatcher,
) -> Duration {
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            biased;
            arrival = next(&mut arrivals) => match (arrival, &send) {
                (Some((prepared, due)), Some(send)) => arrive(stage, prepared, due, send, tally),
                // The plan has ended. The event channel closes when the last session ends.
                _ => (arrivals, send) = (None, None),
            },
            event = events.recv() => match event {
                Some(event) => tally.take(event, &stage.window),
                None => break,
            },
            _ = tick.tick() => {
                let elapsed = stage.start.elapsed();
                if stage.window.end().is_some_and(|end| elapsed >= end) {
                    stage.end.cancel();
                }
                watch.show(&snapshot(config, stage, plan, tally, elapsed));
            }
        }
    }
    let elapsed = stage.start.elapsed();
    watch.show(&snapshot(config, stage, plan, tally, elapsed));
    elapsed
}

async fn next(
    arrivals: &mut Option<UnboundedReceiver<(PreparedSession, Instant)>>,
) -> Option<(PreparedSession, Instant)> {
    match arrivals {
        Some(arrivals) => arrivals.recv().await,
        None => std::future::pending().await,
    }
}

fn arrive(
    stage: &Arc<BenchContext>,
    prepared: PreparedSession,
    due: Instant,
    send: &UnboundedSender<SessionEvent>,
    tally: &mut RunTally,
) {
    if stage.live.waiting.load(std::sync::atomic::Ordering::Relaxed) >= MAX_WAITING {
        return tally.take(SessionEvent::Unsent, &stage.window);
    }
    let (stage, send) = (stage.clone(), send.clone());
    tokio::spawn(async move { stage.carry(prepared, due, &send).await });
}

fn snapshot(
    config: &BenchConfig,
    stage: &BenchContext,
    plan: &RunPlan,
    tally: &RunTally,
    elapsed: Duration,
) -> RunSnapshot {
    use std::sync::atomic::Ordering::Relaxed;
    let warm = match config.warmup {
        Warmup::Time(time) => time,
        Warmup::Calls(_) => Duration::ZERO,
    };
    let length = stage.window.end().or_else(|| Some(config.stop.duration?.saturating_add(warm)));
    let (ended, failed) = tally.ended();
    RunSnapshot {
        elapsed,
        ended,
        failed,
        total: plan.total(),
        length,
        in_flight: stage.live.in_flight.load(Relaxed),
        waiting: stage.live.waiting.load(Relaxed),
        events: stage.live.events.load(Relaxed),
    }
}

/// Measures how late timers fire. A busy machine delays the reception of answers in the same way.
async fn probe_wakes(stage: Arc<BenchContext>) {
    loop {
        let slept = Instant::now();
        tokio::time::sleep(WAKE_PROBE).await;
        stage.live.woke_late(slept.elapsed().saturating_sub(WAKE_PROBE));
    }
}
