//! [`Telemetry`]: takes finished calls and exports them on its own thread. Encoding hundreds of calls takes
//! milliseconds, and no call waits for that. The entry point of this crate. Must not know how a body is encoded or
//! sent.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use headrace_domain::{Clock, TraceRecord};
use headrace_trace::{Metrics, RecordObserver, SharedRecord, TraceContext};
use prost::Message;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval_at, timeout};

use crate::attributes::{SCHEMA, text};
use crate::config::{TelemetryConfig, TelemetryError};
use crate::genai::GenAi;
use crate::proto::{
    ExportLogsServiceRequest, ExportMetricsServiceRequest, ExportTraceServiceRequest, InstrumentationScope,
    Metric, Resource, ResourceLogs, ResourceMetrics, ResourceSpans, ScopeLogs, ScopeMetrics, ScopeSpans,
};
use crate::record_queue::{Batching, Counts, RecordQueue, batch, deliver, ended};
use crate::send::{Sender, headers};
use crate::{logs, points, spans};

/// The name of the instrumentation scope.
const SCOPE: &str = "headrace";

/// Exports telemetry about calls. Handing over a call is cheap. Calls that cannot be sent are counted.
pub struct Telemetry {
    traces: Option<RecordQueue>,
    metrics: Option<RecordQueue>,
    logs: Option<RecordQueue>,
    sample_percent: u64,
    closing: watch::Sender<bool>,
    /// Watches the thread: its sender is dropped when the thread ends.
    ended: watch::Receiver<()>,
}

/// State shared by all export tasks.
#[derive(Clone)]
struct Common {
    resource: Resource,
    scope: InstrumentationScope,
    batching: Batching,
    clock: Arc<dyn Clock>,
    closing: watch::Receiver<bool>,
}

impl Telemetry {
    /// Checks that the configured targets are usable, without sending anything.
    ///
    /// # Errors
    /// [`TelemetryError`] if a URL or a header is invalid.
    pub fn check(config: &TelemetryConfig) -> Result<(), TelemetryError> {
        let targets = [&config.traces, &config.metrics, &config.logs];
        targets.into_iter().flatten().try_for_each(|target| headers(target).map(drop))
    }

    /// Starts a thread, with one task for each signal that has a target. Registers the tasks' counters with `metrics`,
    /// which is also the source of the exported metrics.
    ///
    /// # Errors
    /// [`TelemetryError`] if a URL, a header or a certificate is invalid, or if no thread can be started.
    pub fn start(
        config: &TelemetryConfig,
        version: &str,
        metrics: &Arc<Metrics>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Arc<Self>, TelemetryError> {
        let no_thread = |error: std::io::Error| TelemetryError::Client { why: error.to_string() };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
        let (closing, closed) = watch::channel(false);
        let attributes = config.resource.iter().map(|(key, value)| text(key, value.clone())).collect();
        let common = Common {
            resource: Resource { attributes, ..Resource::default() },
            scope: InstrumentationScope {
                name: SCOPE.to_owned(),
                version: version.to_owned(),
                ..InstrumentationScope::default()
            },
            batching: Batching { records: config.batch_records.max(1), linger: config.linger },
            clock: Arc::clone(clock),
            closing: closed,
        };
        let mut tasks = JoinSet::new();
        let new_queue = |signal: &'static str| {
            let (queue, receiver, counts) = RecordQueue::new(config.queue_records);
            register(metrics, signal, &counts);
            (queue, receiver, counts)
        };
        let traces = config.traces.as_ref().map(|target| -> Result<RecordQueue, TelemetryError> {
            let sender = Sender::new(target, config)?;
            let (queue, receiver, counts) = new_queue(TRACES.name);
            tasks.spawn_on(send_calls(common.clone(), TRACES, sender, receiver, counts), runtime.handle());
            Ok(queue)
        });
        let logs = config.logs.as_ref().map(|target| -> Result<RecordQueue, TelemetryError> {
            let sender = Sender::new(target, config)?;
            let (queue, receiver, counts) = new_queue(LOGS.name);
            tasks.spawn_on(send_calls(common.clone(), LOGS, sender, receiver, counts), runtime.handle());
            Ok(queue)
        });
        let numbers = config.metrics.as_ref().map(|target| -> Result<RecordQueue, TelemetryError> {
            let sender = Sender::new(target, config)?;
            let (queue, receiver, counts) = new_queue("metrics");
            let of = Numbers { metrics: Arc::clone(metrics), every: config.metrics_every };
            tasks.spawn_on(send_metrics(common.clone(), sender, receiver, counts, of), runtime.handle());
            Ok(queue)
        });
        let (traces, logs, metrics) = (traces.transpose()?, logs.transpose()?, numbers.transpose()?);
        let (running, ended) = watch::channel(());
        let thread = std::thread::Builder::new().name("headrace-telemetry".to_owned());
        let run = move || {
            // A task that panicked has ended as well.
            runtime.block_on(async { while tasks.join_next().await.is_some() {} });
            // A pending DNS look-up no longer matters.
            runtime.shutdown_background();
            drop(running);
        };
        thread.spawn(run).map_err(no_thread)?;
        let sample_percent = config.sample_percent.min(100);
        Ok(Arc::new(Self { traces, metrics, logs, sample_percent, closing, ended }))
    }

    /// Sends the waiting data, with one attempt, and ends the thread. Returns `false` if that takes longer than
    /// `within`.
    pub async fn close(&self, within: Duration) -> bool {
        self.closing.send_replace(true);
        let mut ended = self.ended.clone();
        let all = async { while ended.changed().await.is_ok() {} };
        timeout(within, all).await.is_ok()
    }

    /// Whether the trace's spans are sent. The decision depends on the trace id only, so all processes send either the
    /// whole trace or nothing.
    fn samples(&self, record: &TraceRecord) -> bool {
        // The low half of a trace id is random, even if the high half is a timestamp.
        let draw = TraceContext::of(record).trace & u128::from(u64::MAX >> 8);
        let bound = (u128::from(u64::MAX >> 8)).saturating_mul(u128::from(self.sample_percent)) / 100;
        self.sample_percent >= 100 || draw < bound
    }
}

impl RecordObserver for Telemetry {
    fn seen(&self, record: &SharedRecord) {
        if let Some(queue) = self.traces.as_ref().filter(|_| self.samples(record)) {
            queue.offer(record);
        }
        // The gateway logs and counts the call that a worker job is of.
        if record.worker_job.is_some() {
            return;
        }
        [&self.logs, &self.metrics].into_iter().flatten().for_each(|queue| queue.offer(record));
    }
}

fn register(metrics: &Metrics, signal: &'static str, counts: &Arc<Counts>) {
    type Read = fn(&Counts) -> u64;
    let dropped: [(&str, Read); 3] = [
        ("queue_full", |of| of.full.load(Relaxed)),
        ("failed", |of| of.failed.load(Relaxed)),
        ("rejected", |of| of.rejected.load(Relaxed)),
    ];
    #[allow(clippy::cast_precision_loss, reason = "no count comes near 2^53")]
    let read = |counts: &Arc<Counts>, read: Read| {
        let counts = Arc::clone(counts);
        Box::new(move || read(&counts) as f64)
    };
    for (reason, of) in dropped {
        let help = "Calls, or sets of points, of which nothing could be sent by OTLP.";
        let labels = [("signal", signal), ("reason", reason)];
        metrics.register_counter("headrace_telemetry_dropped_total", help, &labels, read(counts, of));
    }
    let help = "Calls, or sets of points, that were sent by OTLP.";
    let sent = read(counts, |of| of.sent.load(Relaxed));
    metrics.register_counter("headrace_telemetry_sent_total", help, &[("signal", signal)], sent);
    let help = "Sendings by OTLP that came to nothing.";
    let failures = read(counts, |of| of.failures.load(Relaxed));
    metrics.register_counter("headrace_telemetry_failures_total", help, &[("signal", signal)], failures);
}

/// A signal that sends one batch of calls per request body.
#[derive(Clone, Copy)]
struct OfCalls {
    name: &'static str,
    body: fn(&Common, &[SharedRecord]) -> Bytes,
}

const TRACES: OfCalls = OfCalls { name: "traces", body: traces };
const LOGS: OfCalls = OfCalls { name: "logs", body: logs };

async fn send_calls(
    mut common: Common,
    signal: OfCalls,
    sender: Sender,
    mut receiver: mpsc::Receiver<SharedRecord>,
    counts: Arc<Counts>,
) {
    let mut closing = common.closing.clone();
    while let Some(records) = batch(&mut receiver, common.batching, &mut common.closing).await {
        let body = (signal.body)(&common, &records);
        let calls = u64::try_from(records.len()).unwrap_or(u64::MAX);
        deliver(&sender, signal.name, body, calls, &counts, &mut closing).await;
    }
}

fn traces(common: &Common, records: &[SharedRecord]) -> Bytes {
    let scope_spans = vec![ScopeSpans {
        scope: Some(common.scope.clone()),
        spans: records.iter().flat_map(|record| spans::spans(record)).collect(),
        schema_url: SCHEMA.to_owned(),
    }];
    let resource = Some(common.resource.clone());
    let resource_spans = vec![ResourceSpans { resource, scope_spans, schema_url: SCHEMA.to_owned() }];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec().into()
}

fn logs(common: &Common, records: &[SharedRecord]) -> Bytes {
    let now = common.clock.now().get();
    let scope_logs = vec![ScopeLogs {
        scope: Some(common.scope.clone()),
        log_records: records.iter().map(|record| logs::line(record, now)).collect(),
        schema_url: SCHEMA.to_owned(),
    }];
    let resource = Some(common.resource.clone());
    let resource_logs = vec![ResourceLogs { resource, scope_logs, schema_url: SCHEMA.to_owned() }];
    ExportLogsServiceRequest { resource_logs }.encode_to_vec().into()
}

fn numbers(common: &Common, metrics: Vec<Metric>) -> Bytes {
    let scope_metrics =
        vec![ScopeMetrics { scope: Some(common.scope.clone()), metrics, schema_url: SCHEMA.to_owned() }];
    let resource = Some(common.resource.clone());
    let resource_metrics = vec![ResourceMetrics { resource, scope_metrics, schema_url: SCHEMA.to_owned() }];
    ExportMetricsServiceRequest { resource_metrics }.encode_to_vec().into()
}

/// The registry of the metrics to send, and the sending interval.
struct Numbers {
    metrics: Arc<Metrics>,
    every: Duration,
}

async fn send_metrics(
    mut common: Common,
    sender: Sender,
    mut receiver: mpsc::Receiver<SharedRecord>,
    counts: Arc<Counts>,
    of: Numbers,
) {
    let since = common.clock.now().get();
    let mut genai = GenAi::default();
    let mut ticks = interval_at(tokio::time::Instant::now() + of.every, of.every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut closing = common.closing.clone();
    loop {
        let ends = tokio::select! {
            record = receiver.recv() => {
                record.iter().for_each(|record| genai.observe(record));
                if record.is_some() {
                    continue;
                }
                true
            }
            _ = ticks.tick() => false,
            () = ended(&mut common.closing) => true,
        };
        // Include all calls that have finished by now.
        while let Ok(record) = receiver.try_recv() {
            genai.observe(&record);
        }
        let now = common.clock.now().get();
        let families = of.metrics.families();
        let mut metrics: Vec<_> = families.iter().map(|family| points::metric(family, since, now)).collect();
        metrics.extend(genai.metrics(since, now));
        let things = u64::try_from(metrics.len()).unwrap_or(u64::MAX);
        let body = numbers(&common, metrics);
        let mut sending = pin!(deliver(&sender, "metrics", body, things, &counts, &mut closing));
        loop {
            tokio::select! {
                () = &mut sending => break,
                // The histograms are cumulative, so no call may be missed, however long sending takes.
                Some(record) = receiver.recv() => genai.observe(&record),
            }
        }
        if ends {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
