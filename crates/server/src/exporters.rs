//! Everything that the server emits besides answers: log lines, OTLP, and the metrics page. Assembles them; must not
//! know their content.

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::Clock;
use headrace_edge::{EdgeNumber, MetricsPage};
use headrace_telemetry::{Telemetry, TelemetryConfig};
use headrace_trace::{
    FamilyKind, MetricFamily, MetricSample, Metrics, PageFormat, RecordObserver, SampleValue, TraceRecorder,
};
use tokio::runtime::Handle;

use crate::call_log::CallLog;
use crate::log::LogQueue;

/// Time limit for sending the last telemetry.
const CLOSE: Duration = Duration::from_secs(5);

/// The exporters that run beside calls and see each call's record.
pub(crate) struct Exporters {
    telemetry: Option<Arc<Telemetry>>,
}

impl Exporters {
    /// Starts the configured exporters.
    ///
    /// # Errors
    /// Returns why an exporter cannot run as configured.
    pub(crate) fn start(
        config: &TelemetryConfig,
        recorder: &TraceRecorder,
        metrics: &Arc<Metrics>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, String> {
        let version = env!("CARGO_PKG_VERSION");
        let telemetry = config
            .is_on()
            .then(|| Telemetry::start(config, version, metrics, clock).map_err(|error| error.to_string()));
        let telemetry = telemetry.transpose()?;
        let sent = telemetry.iter().map(|telemetry| Arc::clone(telemetry) as Arc<dyn RecordObserver>);
        recorder.tap(sent.chain([Arc::new(CallLog) as Arc<dyn RecordObserver>]).collect());
        Ok(Self { telemetry })
    }

    /// Sends what is queued, and ends.
    pub(crate) fn close(self, runtime: &Handle) {
        let Some(telemetry) = self.telemetry else { return };
        if !runtime.block_on(telemetry.close(CLOSE)) {
            tracing::warn!("the last telemetry could not be sent in time");
        }
    }
}

/// Registers the counter of dropped log lines.
pub(crate) fn register_log(metrics: &Metrics, log: &LogQueue) {
    let log = log.clone();
    let help = "Lines of the log that were dropped, because they were not read in time.";
    #[allow(clippy::cast_precision_loss, reason = "no count comes near 2^53")]
    let read = Box::new(move || log.dropped() as f64);
    metrics.register_counter("headrace_log_lines_dropped_total", help, &[], read);
}

/// The metrics page, with the edge's own numbers.
pub(crate) fn page(metrics: Arc<Metrics>) -> Arc<MetricsPage> {
    Arc::new(move |accept: Option<&str>, numbers: &[EdgeNumber]| {
        let format = PageFormat::accepted(accept);
        (format.content_type(), metrics.page_with(format, numbers.iter().map(family)))
    })
}

fn family(number: &EdgeNumber) -> MetricFamily {
    let kind = if number.grows { FamilyKind::Counter } else { FamilyKind::Gauge };
    let samples = vec![MetricSample { labels: Vec::new(), value: SampleValue::Count(number.value) }];
    MetricFamily { name: number.name.to_owned(), help: number.help.to_owned(), kind, samples }
}
