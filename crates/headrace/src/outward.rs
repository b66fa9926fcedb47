//! What goes out of the server beside its answers: lines of the log, OTLP, and the page of metrics. Puts them together; must not know what any
//! of them says.

use std::sync::Arc;
use std::time::Duration;

use headrace_domain::Clock;
use headrace_edge::{EdgeNumber, MetricsPage};
use headrace_telemetry::{Telemetry, TelemetryConfig};
use headrace_trace::{Family, FamilyKind, Metrics, PageFormat, Recorder, Sample, SampleValue, Tap};
use tokio::runtime::Runtime;

use crate::call_log::CallLog;
use crate::log::Log;

/// How long the last of it may take to go out.
const CLOSE: Duration = Duration::from_secs(5);

/// What runs beside calls and hears of each.
pub(crate) struct Outward {
    telemetry: Option<Arc<Telemetry>>,
}

impl Outward {
    /// Starts what is configured.
    ///
    /// # Errors
    /// What cannot be sent as it is configured.
    pub(crate) fn start(
        config: &TelemetryConfig,
        recorder: &Recorder,
        metrics: &Arc<Metrics>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, String> {
        let version = env!("CARGO_PKG_VERSION");
        let telemetry = config
            .is_on()
            .then(|| Telemetry::start(config, version, metrics, clock).map_err(|error| error.to_string()));
        let telemetry = telemetry.transpose()?;
        let sent = telemetry.iter().map(|telemetry| Arc::clone(telemetry) as Arc<dyn Tap>);
        recorder.tap(sent.chain([Arc::new(CallLog) as Arc<dyn Tap>]).collect());
        Ok(Self { telemetry })
    }

    /// Sends what waits, and ends.
    pub(crate) fn close(self, runtime: &Runtime) {
        let Some(telemetry) = self.telemetry else { return };
        if !runtime.block_on(telemetry.close(CLOSE)) {
            tracing::warn!("the last telemetry could not be sent in time");
        }
    }
}

/// Registers what is lost of the log.
pub(crate) fn register_log(metrics: &Metrics, log: &Log) {
    let log = log.clone();
    let help = "Lines of the log that were dropped, because they were not read in time.";
    #[allow(clippy::cast_precision_loss, reason = "no count comes near 2^53")]
    let read = Box::new(move || log.dropped() as f64);
    metrics.register_counter("headrace_log_lines_dropped_total", help, &[], read);
}

/// The page of metrics, with the edge's own numbers.
pub(crate) fn page(metrics: Arc<Metrics>) -> Arc<MetricsPage> {
    Arc::new(move |accept: Option<&str>, numbers: &[EdgeNumber]| {
        let format = PageFormat::accepted(accept);
        (format.content_type(), metrics.page_with(format, numbers.iter().map(family)))
    })
}

fn family(number: &EdgeNumber) -> Family {
    let kind = if number.grows { FamilyKind::Counter } else { FamilyKind::Gauge };
    let samples = vec![Sample { labels: Vec::new(), value: SampleValue::Count(number.value) }];
    Family { name: number.name.to_owned(), help: number.help.to_owned(), kind, samples }
}
