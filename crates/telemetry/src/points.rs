//! The metrics for Prometheus as OTLP points: the same values under names in OpenTelemetry's style, with the unit in a
//! field of its own. Prometheus's translation of these names restores the original ones. Must not know what is counted.

use headrace_trace::{Exemplar as Seen, FamilyKind, HistogramBuckets, MetricFamily, SampleValue};

use crate::attributes::text;
use crate::proto::{
    CUMULATIVE, Data, Exemplar, Gauge, Histogram, HistogramDataPoint, KeyValue, Metric, NumberDataPoint, Sum,
    exemplar, number_data_point,
};

/// The prefix of metric names. OpenTelemetry's names have a dot after it.
const PREFIX: &str = "headrace_";
/// Suffixes of names that state a unit.
const UNITS: [(&str, &str); 2] = [("_seconds", "s"), ("_bytes", "By")];

/// Converts one family of samples.
pub(crate) fn metric(family: &MetricFamily, since: u64, now: u64) -> Metric {
    let (name, unit) = name(&family.name);
    let labels = |labels: &[(String, String)]| -> Vec<KeyValue> {
        labels.iter().map(|(key, value)| text(key, value.clone())).collect()
    };
    let numbers = || {
        let each = family.samples.iter().filter_map(|sample| {
            #[allow(clippy::cast_precision_loss, reason = "OTLP has doubles and signed integers alone")]
            let value = match &sample.value {
                SampleValue::Count(count) => *count as f64,
                SampleValue::Number(number) => *number,
                SampleValue::Histogram(_) => return None,
            };
            Some(NumberDataPoint {
                start_time_unix_nano: since,
                time_unix_nano: now,
                value: Some(number_data_point::Value::AsDouble(value)),
                attributes: labels(&sample.labels),
                ..NumberDataPoint::default()
            })
        });
        each.collect::<Vec<_>>()
    };
    let data = match family.kind {
        FamilyKind::Gauge => Data::Gauge(Gauge { data_points: numbers() }),
        FamilyKind::Counter => {
            Data::Sum(Sum { data_points: numbers(), aggregation_temporality: CUMULATIVE, is_monotonic: true })
        }
        FamilyKind::Histogram => {
            let each = family.samples.iter().filter_map(|sample| match &sample.value {
                SampleValue::Histogram(buckets) => Some(HistogramDataPoint {
                    start_time_unix_nano: since,
                    time_unix_nano: now,
                    attributes: labels(&sample.labels),
                    ..histogram(buckets)
                }),
                SampleValue::Count(_) | SampleValue::Number(_) => None,
            });
            Data::Histogram(Histogram { data_points: each.collect(), aggregation_temporality: CUMULATIVE })
        }
    };
    Metric {
        name,
        description: family.help.clone(),
        unit: unit.to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

fn histogram(buckets: &HistogramBuckets) -> HistogramDataPoint {
    HistogramDataPoint {
        count: buckets.counts.iter().fold(0, |all, count| all.saturating_add(*count)),
        sum: Some(buckets.scaled(buckets.sum)),
        bucket_counts: buckets.counts.clone(),
        explicit_bounds: buckets.bounds.iter().map(|bound| buckets.scaled(*bound)).collect(),
        exemplars: buckets.exemplars.iter().flatten().map(|seen| example(buckets, seen)).collect(),
        ..HistogramDataPoint::default()
    }
}

fn example(buckets: &HistogramBuckets, seen: &Seen) -> Exemplar {
    Exemplar {
        time_unix_nano: seen.at.get(),
        value: Some(exemplar::Value::AsDouble(buckets.scaled(seen.value))),
        span_id: seen.context.span.to_be_bytes().to_vec(),
        trace_id: seen.context.trace.to_be_bytes().to_vec(),
        ..Exemplar::default()
    }
}

/// Converts a name: `headrace_request_duration_seconds` becomes `headrace.request_duration` in `s`.
fn name(family: &str) -> (String, &'static str) {
    let bare = family.strip_suffix("_total").unwrap_or(family);
    let unit = UNITS.into_iter().find_map(|(end, unit)| Some((bare.strip_suffix(end)?, unit)));
    let (bare, unit) = unit.unwrap_or((bare, "1"));
    match bare.strip_prefix(PREFIX) {
        Some(rest) => (format!("headrace.{rest}"), unit),
        None => (bare.to_owned(), unit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_what_their_kind_and_unit_say() {
        for (family, expected, unit) in [
            ("headrace_requests_total", "headrace.requests", "1"),
            ("headrace_request_duration_seconds", "headrace.request_duration", "s"),
            ("headrace_upstream_sent_bytes_total", "headrace.upstream_sent", "By"),
            ("headrace_engine_up", "headrace.engine_up", "1"),
            ("process_x", "process_x", "1"),
        ] {
            assert_eq!(name(family), (expected.to_owned(), unit));
        }
    }
}
