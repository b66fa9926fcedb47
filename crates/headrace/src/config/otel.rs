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
        "Where traces, metrics and logs go by OTLP over HTTP (protobuf), such as `\"http://127.0.0.1:4318\"`; `/v1/traces` and so on are put behind it. Without any address nothing is sent. `OTEL_EXPORTER_OTLP_ENDPOINT` sets it too.",
    ),
    field(
        "telemetry.traces_endpoint",
        SettingKind::Text,
        "",
        "The whole address for traces, where it is another one. `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` sets it too.",
    ),
    field(
        "telemetry.metrics_endpoint",
        SettingKind::Text,
        "",
        "The same for metrics. `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT` sets it too.",
    ),
    field(
        "telemetry.logs_endpoint",
        SettingKind::Text,
        "",
        "The same for logs. `OTEL_EXPORTER_OTLP_LOGS_ENDPOINT` sets it too.",
    ),
    field(
        "telemetry.traces",
        SettingKind::Flag,
        "true",
        "Whether traces are sent: a span for each call, stage and try.",
    ),
    field(
        "telemetry.metrics",
        SettingKind::Flag,
        "true",
        "Whether metrics are sent: those of `/metrics`, and those of GenAI's conventions.",
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
        "A file of headers that go with it, a line each: `authorization: Bearer …`. `OTEL_EXPORTER_OTLP_HEADERS` gives them too.",
    ),
    field(
        "telemetry.ca_file",
        SettingKind::Path,
        "",
        "Authorities (PEM) to trust beside the machine's. `OTEL_EXPORTER_OTLP_CERTIFICATE` sets it too.",
    ),
    field(
        "telemetry.service_name",
        SettingKind::Text,
        "\"headrace\"",
        "The attribute `service.name`. `OTEL_SERVICE_NAME` sets it too.",
    ),
    field(
        "telemetry.resource",
        SettingKind::Text,
        "",
        "Further attributes of this process: `\"deployment.environment.name=prod,host.name=a\"`. `OTEL_RESOURCE_ATTRIBUTES` sets it too.",
    ),
    field(
        "telemetry.sample_percent",
        count(0, 100),
        "100",
        "Of a hundred traces, those that are sent; whole traces, by their ids. Metrics and logs are not sampled.",
    ),
    field("telemetry.timeout", millis(1, HOUR * 1000), "\"10s\"", "How long one sending may take."),
    field("telemetry.metrics_every", millis(100, DAY * 1000), "\"60s\"", "How often metrics are sent."),
    field(
        "telemetry.queue_records",
        count(1, 1 << 20),
        "2048",
        "Calls that may wait to be sent, for each signal; more are dropped and counted (`headrace_telemetry_dropped_total`).",
    ),
    field("telemetry.batch_records", count(1, 1 << 16), "512", "Most calls in one sending."),
    field(
        "telemetry.linger",
        millis(0, 60_000),
        "\"1s\"",
        "How long the first call of a sending waits for company.",
    ),
    field(
        "telemetry.retry_for",
        seconds(0, HOUR),
        "\"60s\"",
        "How long a sending that failed is tried again, at growing intervals, before it is dropped and counted.",
    ),
    field(
        "telemetry.off",
        SettingKind::Flag,
        "false",
        "Sends nothing, whatever else is set. `OTEL_SDK_DISABLED` sets it too.",
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
