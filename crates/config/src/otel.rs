//! Settings of OTLP export, and the variables of OpenTelemetry SDKs that set them too. Must not know how they are used.

use super::field::{SettingField, field, variable_of};
use super::kinds::{DAY, HOUR, count, millis, seconds};
use super::value::SettingKind;

/// The settings, in the order of the reference.
pub(super) const FIELDS: &[SettingField] = &[
    field(
        "telemetry.endpoint",
        SettingKind::Text,
        "",
        "Address for traces, metrics and logs, by OTLP over HTTP (protobuf), such as `\"http://127.0.0.1:4318\"`. Headrace appends `/v1/traces` and so on. Without any address, nothing is sent. `OTEL_EXPORTER_OTLP_ENDPOINT` also sets this.",
    ),
    field(
        "telemetry.traces_endpoint",
        SettingKind::Text,
        "",
        "Complete address for traces, if it differs. `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` also sets this.",
    ),
    field(
        "telemetry.metrics_endpoint",
        SettingKind::Text,
        "",
        "Complete address for metrics, if it differs. `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT` also sets this.",
    ),
    field(
        "telemetry.logs_endpoint",
        SettingKind::Text,
        "",
        "Complete address for logs, if it differs. `OTEL_EXPORTER_OTLP_LOGS_ENDPOINT` also sets this.",
    ),
    field(
        "telemetry.traces",
        SettingKind::Flag,
        "true",
        "Whether traces are sent: a span for each call, stage and attempt.",
    ),
    field(
        "telemetry.metrics",
        SettingKind::Flag,
        "true",
        "Whether metrics are sent: the metrics of `/metrics` and of the GenAI conventions.",
    ),
    field(
        "telemetry.logs",
        SettingKind::Flag,
        "true",
        "Whether logs are sent: a line for each call and each refusal.",
    ),
    field(
        "telemetry.headers_file",
        SettingKind::Path,
        "",
        "File with additional headers, one per line: `authorization: Bearer …`. `OTEL_EXPORTER_OTLP_HEADERS` also sets headers.",
    ),
    field(
        "telemetry.ca_file",
        SettingKind::Path,
        "",
        "Authorities (PEM) to trust in addition to those of this machine. `OTEL_EXPORTER_OTLP_CERTIFICATE` also sets this.",
    ),
    field(
        "telemetry.service_name",
        SettingKind::Text,
        "\"headrace\"",
        "The attribute `service.name`. `OTEL_SERVICE_NAME` also sets this.",
    ),
    field(
        "telemetry.resource",
        SettingKind::Text,
        "",
        "Further attributes of this process: `\"deployment.environment.name=prod,host.name=a\"`. `OTEL_RESOURCE_ATTRIBUTES` also sets this.",
    ),
    field(
        "telemetry.sample_percent",
        count(0, 100),
        "100",
        "Percentage of traces that are sent. Whole traces are chosen by their ids. Metrics and logs are not sampled.",
    ),
    field("telemetry.timeout", millis(1, HOUR * 1000), "\"10s\"", "Maximum time of one export request."),
    field(
        "telemetry.metrics_every",
        millis(100, DAY * 1000),
        "\"60s\"",
        "Interval at which metrics are sent.",
    ),
    field(
        "telemetry.queue_records",
        count(1, 1 << 20),
        "2048",
        "Maximum number of calls that wait to be sent, per signal. Further calls are dropped and counted (`headrace_telemetry_dropped_total`).",
    ),
    field(
        "telemetry.batch_records",
        count(1, 1 << 16),
        "512",
        "Maximum number of calls in one export request.",
    ),
    field(
        "telemetry.linger",
        millis(0, 60_000),
        "\"1s\"",
        "Maximum time that the first call of an export request waits for further calls.",
    ),
    field(
        "telemetry.retry_for",
        seconds(0, HOUR),
        "\"60s\"",
        "Maximum time for which a failed export request is retried, at growing intervals. Then the request is dropped and counted.",
    ),
    field(
        "telemetry.off",
        SettingKind::Flag,
        "false",
        "Disables the export, independently of all other settings. `OTEL_SDK_DISABLED` also sets this.",
    ),
];

/// The settings that name a destination.
pub(super) const ENDPOINTS: [&str; 4] = [
    "telemetry.endpoint",
    "telemetry.traces_endpoint",
    "telemetry.metrics_endpoint",
    "telemetry.logs_endpoint",
];

/// Whether a variable names a destination. It may be a Headrace variable or one of an OpenTelemetry SDK.
pub(super) fn is_address((name, text): &(String, String)) -> bool {
    let ours = || ENDPOINTS.iter().any(|path| variable_of(path) == *name);
    let theirs =
        || matches!(variable(name, text), Some(OtelVariable::Says(path, _)) if ENDPOINTS.contains(&path));
    !text.is_empty() && (theirs() || ours())
}

/// The effect of a variable of an OpenTelemetry SDK.
pub(super) enum OtelVariable {
    /// Sets the setting of this path to this text.
    Says(&'static str, String),
    /// Asks for something that Headrace does not support, with the reason.
    Refused(String),
}

/// The effect of a variable on Headrace's settings. `None` if it is not a supported variable of an OpenTelemetry SDK.
pub(super) fn variable(name: &str, text: &str) -> Option<OtelVariable> {
    let millis = |path| OtelVariable::Says(path, format!("{text}ms"));
    let exporter = |path| match text {
        "none" => OtelVariable::Says(path, "false".to_owned()),
        "otlp" => OtelVariable::Says(path, "true".to_owned()),
        other => OtelVariable::Refused(format!("`{other}` is neither otlp nor none")),
    };
    Some(match name {
        "OTEL_EXPORTER_OTLP_ENDPOINT" => OtelVariable::Says("telemetry.endpoint", text.to_owned()),
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" => {
            OtelVariable::Says("telemetry.traces_endpoint", text.to_owned())
        }
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT" => {
            OtelVariable::Says("telemetry.metrics_endpoint", text.to_owned())
        }
        "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT" => OtelVariable::Says("telemetry.logs_endpoint", text.to_owned()),
        "OTEL_EXPORTER_OTLP_CERTIFICATE" => OtelVariable::Says("telemetry.ca_file", text.to_owned()),
        "OTEL_SERVICE_NAME" => OtelVariable::Says("telemetry.service_name", text.to_owned()),
        "OTEL_RESOURCE_ATTRIBUTES" => OtelVariable::Says("telemetry.resource", text.to_owned()),
        "OTEL_SDK_DISABLED" => OtelVariable::Says("telemetry.off", text.to_ascii_lowercase()),
        "OTEL_EXPORTER_OTLP_TIMEOUT" => millis("telemetry.timeout"),
        "OTEL_METRIC_EXPORT_INTERVAL" => millis("telemetry.metrics_every"),
        "OTEL_TRACES_EXPORTER" => exporter("telemetry.traces"),
        "OTEL_METRICS_EXPORTER" => exporter("telemetry.metrics"),
        "OTEL_LOGS_EXPORTER" => exporter("telemetry.logs"),
        "OTEL_EXPORTER_OTLP_PROTOCOL" if text != "http/protobuf" => OtelVariable::Refused(format!(
            "`{text}` is not spoken here: set http/protobuf, and the port of that (4318, as a rule)"
        )),
        _ => return None,
    })
}
