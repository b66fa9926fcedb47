//! The messages of OTLP that are sent, by the field numbers of `opentelemetry-proto` 1.x
//! (<https://github.com/open-telemetry/opentelemetry-proto>). Only what is written or read here. Must not know what is said with
//! them.

use crate::writing::{self, Message};

/// `common.v1.AnyValue`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct AnyValue {
    pub(crate) value: Option<Value>,
}

impl Message for AnyValue {
    fn put(&self, out: &mut Vec<u8>) {
        // Of alternatives the one that is meant is written, also where it is empty.
        match &self.value {
            None => {}
            Some(Value::Text(text)) => writing::block(1, text.as_bytes(), out),
            Some(Value::Flag(flag)) => writing::number(2, u64::from(*flag), out),
            #[allow(clippy::cast_sign_loss, reason = "the bits are meant")]
            Some(Value::Count(count)) => writing::number(3, *count as u64, out),
            Some(Value::Number(number)) => writing::eight(4, number.to_le_bytes(), out),
            Some(Value::List(list)) => writing::block(5, &list.encoded(), out),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Text(String),
    Flag(bool),
    Count(i64),
    Number(f64),
    List(ArrayValue),
}

/// `common.v1.ArrayValue`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ArrayValue {
    pub(crate) values: Vec<AnyValue>,
}

impl Message for ArrayValue {
    fn put(&self, out: &mut Vec<u8>) {
        writing::many(1, &self.values, out);
    }
}

/// `common.v1.KeyValue`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct KeyValue {
    pub(crate) key: String,
    pub(crate) value: Option<AnyValue>,
}

impl Message for KeyValue {
    fn put(&self, out: &mut Vec<u8>) {
        writing::text(1, &self.key, out);
        writing::one(2, &self.value, out);
    }
}

/// `common.v1.InstrumentationScope`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Scope {
    pub(crate) name: String,
    pub(crate) version: String,
}

impl Message for Scope {
    fn put(&self, out: &mut Vec<u8>) {
        writing::text(1, &self.name, out);
        writing::text(2, &self.version, out);
    }
}

/// `resource.v1.Resource`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Resource {
    pub(crate) attributes: Vec<KeyValue>,
}

impl Message for Resource {
    fn put(&self, out: &mut Vec<u8>) {
        writing::many(1, &self.attributes, out);
    }
}

/// `collector.trace.v1.ExportTraceServiceRequest`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Traces {
    pub(crate) resource_spans: Vec<ResourceSpans>,
}

impl Message for Traces {
    fn put(&self, out: &mut Vec<u8>) {
        writing::many(1, &self.resource_spans, out);
    }
}

/// `trace.v1.ResourceSpans`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ResourceSpans {
    pub(crate) resource: Option<Resource>,
    pub(crate) scope_spans: Vec<ScopeSpans>,
    pub(crate) schema_url: String,
}

impl Message for ResourceSpans {
    fn put(&self, out: &mut Vec<u8>) {
        writing::one(1, &self.resource, out);
        writing::many(2, &self.scope_spans, out);
        writing::text(3, &self.schema_url, out);
    }
}

/// `trace.v1.ScopeSpans`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ScopeSpans {
    pub(crate) scope: Option<Scope>,
    pub(crate) spans: Vec<Span>,
    pub(crate) schema_url: String,
}

impl Message for ScopeSpans {
    fn put(&self, out: &mut Vec<u8>) {
        writing::one(1, &self.scope, out);
        writing::many(2, &self.spans, out);
        writing::text(3, &self.schema_url, out);
    }
}

/// `trace.v1.Span.SpanKind`
pub(crate) const KIND_INTERNAL: i32 = 1;
/// Answers a call of somebody else's.
pub(crate) const KIND_SERVER: i32 = 2;
/// Calls somebody else.
pub(crate) const KIND_CLIENT: i32 = 3;

/// `trace.v1.Status.StatusCode`
pub(crate) const STATUS_ERROR: i32 = 2;

/// `trace.v1.Span`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Span {
    pub(crate) trace_id: Vec<u8>,
    pub(crate) span_id: Vec<u8>,
    pub(crate) parent_span_id: Vec<u8>,
    pub(crate) name: String,
    pub(crate) kind: i32,
    pub(crate) start_time_unix_nano: u64,
    pub(crate) end_time_unix_nano: u64,
    pub(crate) attributes: Vec<KeyValue>,
    pub(crate) events: Vec<Event>,
    pub(crate) links: Vec<Link>,
    pub(crate) status: Option<Status>,
    pub(crate) flags: u32,
}

impl Message for Span {
    fn put(&self, out: &mut Vec<u8>) {
        writing::bytes(1, &self.trace_id, out);
        writing::bytes(2, &self.span_id, out);
        writing::bytes(4, &self.parent_span_id, out);
        writing::text(5, &self.name, out);
        writing::int32(6, &self.kind, out);
        writing::fixed64(7, &self.start_time_unix_nano, out);
        writing::fixed64(8, &self.end_time_unix_nano, out);
        writing::many(9, &self.attributes, out);
        writing::many(11, &self.events, out);
        writing::many(13, &self.links, out);
        writing::one(15, &self.status, out);
        writing::fixed32(16, &self.flags, out);
    }
}

/// `trace.v1.Span.Event`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Event {
    pub(crate) time_unix_nano: u64,
    pub(crate) name: String,
    pub(crate) attributes: Vec<KeyValue>,
}

impl Message for Event {
    fn put(&self, out: &mut Vec<u8>) {
        writing::fixed64(1, &self.time_unix_nano, out);
        writing::text(2, &self.name, out);
        writing::many(3, &self.attributes, out);
    }
}

/// `trace.v1.Span.Link`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Link {
    pub(crate) trace_id: Vec<u8>,
    pub(crate) span_id: Vec<u8>,
    pub(crate) attributes: Vec<KeyValue>,
}

impl Message for Link {
    fn put(&self, out: &mut Vec<u8>) {
        writing::bytes(1, &self.trace_id, out);
        writing::bytes(2, &self.span_id, out);
        writing::many(4, &self.attributes, out);
    }
}

/// `trace.v1.Status`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Status {
    pub(crate) message: String,
    pub(crate) code: i32,
}

impl Message for Status {
    fn put(&self, out: &mut Vec<u8>) {
        writing::text(2, &self.message, out);
        writing::int32(3, &self.code, out);
    }
}

/// `collector.logs.v1.ExportLogsServiceRequest`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Logs {
    pub(crate) resource_logs: Vec<ResourceLogs>,
}

impl Message for Logs {
    fn put(&self, out: &mut Vec<u8>) {
        writing::many(1, &self.resource_logs, out);
    }
}

/// `logs.v1.ResourceLogs`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ResourceLogs {
    pub(crate) resource: Option<Resource>,
    pub(crate) scope_logs: Vec<ScopeLogs>,
    pub(crate) schema_url: String,
}

impl Message for ResourceLogs {
    fn put(&self, out: &mut Vec<u8>) {
        writing::one(1, &self.resource, out);
        writing::many(2, &self.scope_logs, out);
        writing::text(3, &self.schema_url, out);
    }
}

/// `logs.v1.ScopeLogs`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ScopeLogs {
    pub(crate) scope: Option<Scope>,
    pub(crate) log_records: Vec<LogRecord>,
}

impl Message for ScopeLogs {
    fn put(&self, out: &mut Vec<u8>) {
        writing::one(1, &self.scope, out);
        writing::many(2, &self.log_records, out);
    }
}

/// `logs.v1.SeverityNumber`
pub(crate) const SEVERITY_INFO: i32 = 9;
/// Worth a look.
pub(crate) const SEVERITY_WARN: i32 = 13;
/// Something failed.
pub(crate) const SEVERITY_ERROR: i32 = 17;

/// `logs.v1.LogRecord`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct LogRecord {
    pub(crate) time_unix_nano: u64,
    pub(crate) severity_number: i32,
    pub(crate) severity_text: String,
    pub(crate) body: Option<AnyValue>,
    pub(crate) attributes: Vec<KeyValue>,
    pub(crate) trace_id: Vec<u8>,
    pub(crate) span_id: Vec<u8>,
    pub(crate) observed_time_unix_nano: u64,
    pub(crate) event_name: String,
}

impl Message for LogRecord {
    fn put(&self, out: &mut Vec<u8>) {
        writing::fixed64(1, &self.time_unix_nano, out);
        writing::int32(2, &self.severity_number, out);
        writing::text(3, &self.severity_text, out);
        writing::one(5, &self.body, out);
        writing::many(6, &self.attributes, out);
        writing::bytes(9, &self.trace_id, out);
        writing::bytes(10, &self.span_id, out);
        writing::fixed64(11, &self.observed_time_unix_nano, out);
        writing::text(12, &self.event_name, out);
    }
}

/// `collector.metrics.v1.ExportMetricsServiceRequest`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Metrics {
    pub(crate) resource_metrics: Vec<ResourceMetrics>,
}

impl Message for Metrics {
    fn put(&self, out: &mut Vec<u8>) {
        writing::many(1, &self.resource_metrics, out);
    }
}

/// `metrics.v1.ResourceMetrics`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ResourceMetrics {
    pub(crate) resource: Option<Resource>,
    pub(crate) scope_metrics: Vec<ScopeMetrics>,
    pub(crate) schema_url: String,
}

impl Message for ResourceMetrics {
    fn put(&self, out: &mut Vec<u8>) {
        writing::one(1, &self.resource, out);
        writing::many(2, &self.scope_metrics, out);
        writing::text(3, &self.schema_url, out);
    }
}

/// `metrics.v1.ScopeMetrics`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ScopeMetrics {
    pub(crate) scope: Option<Scope>,
    pub(crate) metrics: Vec<Metric>,
}

impl Message for ScopeMetrics {
    fn put(&self, out: &mut Vec<u8>) {
        writing::one(1, &self.scope, out);
        writing::many(2, &self.metrics, out);
    }
}

/// `metrics.v1.Metric`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Metric {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) unit: String,
    pub(crate) data: Option<Data>,
}

impl Message for Metric {
    fn put(&self, out: &mut Vec<u8>) {
        writing::text(1, &self.name, out);
        writing::text(2, &self.description, out);
        writing::text(3, &self.unit, out);
        match &self.data {
            None => {}
            Some(Data::Gauge(gauge)) => writing::block(5, &gauge.encoded(), out),
            Some(Data::Sum(sum)) => writing::block(7, &sum.encoded(), out),
            Some(Data::Histogram(histogram)) => writing::block(9, &histogram.encoded(), out),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Data {
    Gauge(Gauge),
    Sum(Sum),
    Histogram(Histogram),
}

/// `metrics.v1.AggregationTemporality`: since the process began.
pub(crate) const CUMULATIVE: i32 = 2;

/// `metrics.v1.Gauge`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Gauge {
    pub(crate) data_points: Vec<NumberPoint>,
}

impl Message for Gauge {
    fn put(&self, out: &mut Vec<u8>) {
        writing::many(1, &self.data_points, out);
    }
}

/// `metrics.v1.Sum`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Sum {
    pub(crate) data_points: Vec<NumberPoint>,
    pub(crate) aggregation_temporality: i32,
    pub(crate) is_monotonic: bool,
}

impl Message for Sum {
    fn put(&self, out: &mut Vec<u8>) {
        writing::many(1, &self.data_points, out);
        writing::int32(2, &self.aggregation_temporality, out);
        writing::flag(3, &self.is_monotonic, out);
    }
}

/// `metrics.v1.Histogram`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Histogram {
    pub(crate) data_points: Vec<HistogramPoint>,
    pub(crate) aggregation_temporality: i32,
}

impl Message for Histogram {
    fn put(&self, out: &mut Vec<u8>) {
        writing::many(1, &self.data_points, out);
        writing::int32(2, &self.aggregation_temporality, out);
    }
}

/// `metrics.v1.NumberDataPoint`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct NumberPoint {
    pub(crate) start_time_unix_nano: u64,
    pub(crate) time_unix_nano: u64,
    pub(crate) as_double: Option<f64>,
    pub(crate) attributes: Vec<KeyValue>,
}

impl Message for NumberPoint {
    fn put(&self, out: &mut Vec<u8>) {
        writing::fixed64(2, &self.start_time_unix_nano, out);
        writing::fixed64(3, &self.time_unix_nano, out);
        writing::double(4, &self.as_double, out);
        writing::many(7, &self.attributes, out);
    }
}

/// `metrics.v1.HistogramDataPoint`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct HistogramPoint {
    pub(crate) start_time_unix_nano: u64,
    pub(crate) time_unix_nano: u64,
    pub(crate) count: u64,
    pub(crate) sum: Option<f64>,
    pub(crate) bucket_counts: Vec<u64>,
    pub(crate) explicit_bounds: Vec<f64>,
    pub(crate) exemplars: Vec<Exemplar>,
    pub(crate) attributes: Vec<KeyValue>,
}

impl Message for HistogramPoint {
    fn put(&self, out: &mut Vec<u8>) {
        writing::fixed64(2, &self.start_time_unix_nano, out);
        writing::fixed64(3, &self.time_unix_nano, out);
        writing::fixed64(4, &self.count, out);
        writing::double(5, &self.sum, out);
        writing::fixed64s(6, &self.bucket_counts, out);
        writing::doubles(7, &self.explicit_bounds, out);
        writing::many(8, &self.exemplars, out);
        writing::many(9, &self.attributes, out);
    }
}

/// `metrics.v1.Exemplar`
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Exemplar {
    pub(crate) time_unix_nano: u64,
    pub(crate) as_double: Option<f64>,
    pub(crate) span_id: Vec<u8>,
    pub(crate) trace_id: Vec<u8>,
}

impl Message for Exemplar {
    fn put(&self, out: &mut Vec<u8>) {
        writing::fixed64(2, &self.time_unix_nano, out);
        writing::double(3, &self.as_double, out);
        writing::bytes(4, &self.span_id, out);
        writing::bytes(5, &self.trace_id, out);
    }
}
