//! The OTLP messages that are sent or read here, from `opentelemetry-proto`
//! (<https://github.com/open-telemetry/opentelemetry-proto>). Must not know what they contain.

pub(crate) use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
pub(crate) use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
pub(crate) use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
pub(crate) use opentelemetry_proto::tonic::common::v1::any_value::Value;
pub(crate) use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, InstrumentationScope, KeyValue,
};
pub(crate) use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
pub(crate) use opentelemetry_proto::tonic::metrics::v1::metric::Data;
pub(crate) use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Exemplar, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum, exemplar, number_data_point,
};
pub(crate) use opentelemetry_proto::tonic::resource::v1::Resource;
pub(crate) use opentelemetry_proto::tonic::trace::v1::span::{Event, Link, SpanKind};
pub(crate) use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
pub(crate) use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, SpanFlags, Status};
use prost::Message;

/// Counted since the process started.
pub(crate) const CUMULATIVE: i32 = AggregationTemporality::Cumulative as i32;

/// Reads from a response how many items were rejected, and why. The encoding is the same for all signals, so the trace
/// response can decode all of them.
pub(crate) fn not_taken(answer: &[u8]) -> Option<(u64, String)> {
    let partial = ExportTraceServiceResponse::decode(answer).ok()?.partial_success?;
    Some((u64::try_from(partial.rejected_spans).unwrap_or(0), partial.error_message))
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::logs::v1::{
        ExportLogsPartialSuccess, ExportLogsServiceResponse,
    };
    use opentelemetry_proto::tonic::collector::metrics::v1::{
        ExportMetricsPartialSuccess, ExportMetricsServiceResponse,
    };

    use super::*;

    #[test]
    fn answers_of_all_signals_are_read_and_a_broken_one_says_nothing() {
        let error_message = "too old".to_owned();
        let logs =
            ExportLogsPartialSuccess { rejected_log_records: 300, error_message: error_message.clone() };
        let logs = ExportLogsServiceResponse { partial_success: Some(logs) }.encode_to_vec();
        let points = ExportMetricsPartialSuccess { rejected_data_points: 300, error_message };
        let points = ExportMetricsServiceResponse { partial_success: Some(points) }.encode_to_vec();
        for answer in [logs, points] {
            assert_eq!(not_taken(&answer), Some((300, "too old".to_owned())));
            for end in 0..answer.len() {
                assert_ne!(not_taken(&answer[..end]), Some((300, "too old".to_owned())));
            }
        }
        assert_eq!(not_taken(&[]), None);
        assert_eq!(not_taken(&[0xff; 64]), None);
    }
}
