//! A run from its start to its report. Knows the order of the steps; other modules implement them.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use headrace_client::ModelInfo;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;

use crate::calibrate::calibrate;
use crate::conversation::Writer;
use crate::live::{Live, Snapshot, Watch};
use crate::pacer::pace;
use crate::report::Server;
use crate::session::{Event, Prepared, Stage};
use crate::tally::{Run, Tally};
use crate::target::Target;
use crate::window::Window;
use crate::{Api, BenchError, Config, Fault, Gauge, Load, MAX_WAITING, Plan, Report, Sessions, Warmup};

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
    config: &Config,
    watch: &mut dyn Watch,
    cancel: CancellationToken,
) -> Result<Report, BenchError> {
    let faults = config.faults();
    if !faults.is_empty() {
        return Err(BenchError::Config(faults));
    }
    let (target, model, writer) = tokio::select! {
        biased;
        () = cancel.cancelled() => return Err(BenchError::Cancelled),
        ready = prepare(config) => ready?,
    };
    let server = Server {
        url: target.base().to_owned(),
        endpoint: target.endpoint(),
        model: model.id,
        context_window: model.context_window,
    };
    let (end, gauge) = (cancel.child_token(), writer.gauge);
    let stage = Arc::new(Stage {
        target,
        writer,
        window: Window::new(config),
        live: Live::default(),
        slots: Semaphore::new(config.max_in_flight),
        no_more: end.child_token(),
        end,
        cancel: cancel.clone(),
        start: Instant::now(),
    });
    let plan = Plan::new(config);
    let mut tally = Tally::new(config);
    let probe = tokio::spawn(probe_wakes(stage.clone()));
    let driven = match &config.load {
        Load::Closed { users, .. } => {
            let events = closed(&stage, *users, plan.sessions());
            listen(config, &stage, &plan, (None, None, events), &mut tally, watch).await
        }
        Load::Open { .. } | Load::Replay { .. } => match pace(stage.clone(), plan.sessions()) {
            Ok(arrivals) => {
                let (send, events) = unbounded_channel();
                let ears = (Some(arrivals), Some(send), events);
                listen(config, &stage, &plan, ears, &mut tally, watch).await
            }
            Err(error) => return Err(BenchError::Thread(error)),
        },
    };
    probe.abort();
    let run = Run {
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
async fn prepare(config: &Config) -> Result<(Target, ModelInfo, Writer), BenchError> {
    let (target, model) = Target::open(config).await?;
    let mut writer = Writer::new(config, model.id.clone(), Gauge::ASSUMED);
    writer.gauge = match (config.tokens_per_word, needs_words(config)) {
        (Some(tokens_per_word), _) => Gauge { tokens_per_word, overhead_tokens: 0.0, source: "given" },
        (None, true) => calibrate(&target, &writer, &model.id).await?,
        (None, false) => Gauge::ASSUMED,
    };
    let least = config.shape.prompt.least().saturating_add(config.shape.output.least());
    let recorded = matches!(config.load, Load::Replay { .. });
    if let Some(window) = model.context_window.filter(|window| u64::from(least) > *window && !recorded) {
        let why = format!(
            "no call fits: the shortest prompt and answer are {least} tokens together and {} has a context of {window}",
            model.id
        );
        return Err(BenchError::Config(vec![Fault { flag: "--prompt-tokens", why }]));
    }
    Ok((target, model, writer))
}

/// Returns `true` if any prompt is made of words. A chat replay whose calls all have messages needs no words.
fn needs_words(config: &Config) -> bool {
    match &config.load {
        Load::Replay { calls, .. } => {
            config.api == Api::Completions || calls.iter().any(|call| call.messages.is_none())
        }
        Load::Closed { .. } | Load::Open { .. } => true,
    }
}

/// Starts the users. The event channel closes when the last user ends.
fn closed(stage: &Arc<Stage>, users: u32, sessions: Sessions) -> UnboundedReceiver<Event> {
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
    Option<UnboundedReceiver<(Prepared, Instant)>>,
    Option<UnboundedSender<Event>>,
    UnboundedReceiver<Event>,
);

/// Starts sessions when they are due and counts events, until both channels are closed. Returns the length of the run.
async fn listen(
    config: &Config,
    stage: &Arc<Stage>,
    plan: &Plan,
    (mut arrivals, mut send, mut events): Ears,
    tally: &mut Tally,
    watch: &mut dyn Watch,
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

async fn next(arrivals: &mut Option<UnboundedReceiver<(Prepared, Instant)>>) -> Option<(Prepared, Instant)> {
    match arrivals {
        Some(arrivals) => arrivals.recv().await,
        None => std::future::pending().await,
    }
}

fn arrive(
    stage: &Arc<Stage>,
    prepared: Prepared,
    due: Instant,
    send: &UnboundedSender<Event>,
    tally: &mut Tally,
) {
    if stage.live.waiting.load(std::sync::atomic::Ordering::Relaxed) >= MAX_WAITING {
        return tally.take(Event::Unsent, &stage.window);
    }
    let (stage, send) = (stage.clone(), send.clone());
    tokio::spawn(async move { stage.carry(prepared, due, &send).await });
}

fn snapshot(config: &Config, stage: &Stage, plan: &Plan, tally: &Tally, elapsed: Duration) -> Snapshot {
    use std::sync::atomic::Ordering::Relaxed;
    let warm = match config.warmup {
        Warmup::Time(time) => time,
        Warmup::Calls(_) => Duration::ZERO,
    };
    let length = stage.window.end().or_else(|| Some(config.stop.duration?.saturating_add(warm)));
    let (ended, failed) = tally.ended();
    Snapshot {
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
async fn probe_wakes(stage: Arc<Stage>) {
    loop {
        let slept = Instant::now();
        tokio::time::sleep(WAKE_PROBE).await;
        stage.live.woke_late(slept.elapsed().saturating_sub(WAKE_PROBE));
    }
}
