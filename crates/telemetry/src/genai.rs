//! The histograms of the GenAI conventions, computed from trace records: call duration, time to the first token, time
//! between tokens, and tokens used. Their attributes are bounded. Must not know who reads them.

use std::collections::HashMap;

use headrace_domain::{CallOutcome, Endpoint, TraceRecord, steers_terminals};
use headrace_trace::TraceContext;

use crate::attributes::{error_type, operation, provider, seconds, text};
use crate::proto::{CUMULATIVE, Data, Exemplar, Histogram, HistogramDataPoint, KeyValue, Metric, exemplar};

/// Maximum series (attribute sets) per metric. Further ones are counted together.
const MOST_SERIES: usize = 256;
/// The attribute of the overflow series, as specified for OpenTelemetry SDKs.
const OVERFLOW: &str = "otel.metric.overflow";

const DURATION_BOUNDS: &[f64] =
    &[0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];
const FIRST_TOKEN_BOUNDS: &[f64] =
    &[0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
const EACH_TOKEN_BOUNDS: &[f64] = &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5];
const TOKENS_BOUNDS: &[f64] = &[
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// A metric's name, description, unit and bucket bounds, as the conventions define them.
struct Kind {
    name: &'static str,
    description: &'static str,
    unit: &'static str,
    bounds: &'static [f64],
}

const KINDS: [Kind; 5] = [
    Kind {
        name: "gen_ai.client.operation.duration",
        description: "Duration of a call at the server that answers it, with attempts and waiting.",
        unit: "s",
        bounds: DURATION_BOUNDS,
    },
    Kind {
        name: "gen_ai.client.token.usage",
        description: "Tokens of a call, by type.",
        unit: "{token}",
        bounds: TOKENS_BOUNDS,
    },
    Kind {
        name: "gen_ai.server.request.duration",
        description: "From the first byte of a call to its last.",
        unit: "s",
        bounds: DURATION_BOUNDS,
    },
    Kind {
        name: "gen_ai.server.time_to_first_token",
        description: "From when a call was whole to its first token, of calls that were answered.",
        unit: "s",
        bounds: FIRST_TOKEN_BOUNDS,
    },
    Kind {
        name: "gen_ai.server.time_per_output_token",
        description: "Time of each token behind the first, of calls that were answered.",
        unit: "s",
        bounds: EACH_TOKEN_BOUNDS,
    },
];
const OPERATION: usize = 0;
const TOKENS: usize = 1;
const REQUEST: usize = 2;
const FIRST_TOKEN: usize = 3;
const EACH_TOKEN: usize = 4;

/// The attributes that distinguish series. Names that callers invent are not among them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Labels {
    operation: &'static str,
    provider: String,
    model: Option<String>,
    answered: Option<String>,
    error: Option<String>,
    token: Option<&'static str>,
}

struct Series {
    buckets: Vec<u64>,
    sum: f64,
    count: u64,
    /// The latest call of each bucket.
    exemplars: Vec<Option<Exemplar>>,
}

impl Series {
    fn new(bounds: &[f64]) -> Self {
        let buckets = bounds.len().saturating_add(1);
        Self { buckets: vec![0; buckets], sum: 0.0, count: 0, exemplars: vec![None; buckets] }
    }

    fn observe(&mut self, value: f64, bounds: &[f64], exemplar: Exemplar) {
        // A bound is inclusive.
        let at = bounds.partition_point(|bound| *bound < value);
        if let Some(bucket) = self.buckets.get_mut(at) {
            *bucket = bucket.saturating_add(1);
        }
        if let Some(last) = self.exemplars.get_mut(at) {
            *last = Some(exemplar);
        }
        self.count = self.count.saturating_add(1);
        self.sum += value;
    }
}

/// Maximum number of model names that upstreams may report for one served model. Upstreams choose these names; further
/// ones count as `other`.
const MOST_ANSWERERS: usize = 8;
/// Maximum bytes of such a name.
const MOST_ANSWERER_BYTES: usize = 128;

/// The histograms of all GenAI metrics.
#[derive(Default)]
pub(crate) struct GenAi {
    /// The names that upstreams reported, by served model.
    answerers: HashMap<String, Vec<String>>,
    series: [HashMap<Labels, Series>; KINDS.len()],
    overflow: [Option<Series>; KINDS.len()],
}

impl GenAi {
    /// Counts a caller's own call. Skips shadow copies, worker jobs, and calls that no model served.
    pub(crate) fn observe(&mut self, record: &TraceRecord) {
        if !record.is_call() || record.model_served.is_none() {
            return;
        }
        let answered = record.model_served.as_deref().zip(record.upstream_model.as_deref());
        let answered = answered.map(|(served, name)| self.answerer(served, name));
        let labels = Labels {
            operation: operation(record.endpoint),
            provider: provider(record).to_owned(),
            model: record.model_served.clone(),
            answered,
            error: error_type(record),
            token: None,
        };
        let example = |value: f64| {
            let context = TraceContext::of(record);
            Exemplar {
                time_unix_nano: record.started.get().saturating_add(record.duration_ns),
                value: Some(exemplar::Value::AsDouble(value)),
                span_id: context.span.to_be_bytes().to_vec(),
                trace_id: context.trace.to_be_bytes().to_vec(),
                ..Exemplar::default()
            }
        };
        let mut add = |kind: usize, labels: Labels, value: f64| self.add(kind, labels, value, example(value));
        add(REQUEST, labels.clone(), seconds(record.duration_ns));
        if let Some(nanos) = operation_ns(record) {
            add(OPERATION, labels.clone(), seconds(nanos));
        }
        let tokens = [("input", record.usage.prompt_tokens()), ("output", record.usage.completion_tokens())];
        for (token, count) in tokens.into_iter().filter(|(_, count)| *count > 0) {
            #[allow(clippy::cast_precision_loss, reason = "no call comes near 2^53 tokens")]
            add(TOKENS, Labels { error: None, token: Some(token), ..labels.clone() }, count as f64);
        }
        if !matches!(record.outcome, CallOutcome::Completed { .. }) || !generates(record.endpoint) {
            return;
        }
        if let Some(nanos) = record.time_to_first_token_ns() {
            add(FIRST_TOKEN, labels.clone(), seconds(nanos));
        }
        if let Some(nanos) = each_token_ns(record) {
            add(EACH_TOKEN, labels, seconds(nanos));
        }
    }

    /// The label for the model name that an upstream reported.
    fn answerer(&mut self, served: &str, name: &str) -> String {
        let other = || "other".to_owned();
        if self.answerers.len() >= MOST_SERIES && !self.answerers.contains_key(served) {
            return other();
        }
        let known = self.answerers.entry(served.to_owned()).or_default();
        if !known.iter().any(|known| known == name) {
            let fits = name.len() <= MOST_ANSWERER_BYTES && !name.contains(steers_terminals);
            if !fits || known.len() >= MOST_ANSWERERS {
                return other();
            }
            known.push(name.to_owned());
        }
        name.to_owned()
    }

    fn add(&mut self, kind: usize, labels: Labels, value: f64, exemplar: Exemplar) {
        let (Some(of), Some(series), Some(overflow)) =
            (KINDS.get(kind), self.series.get_mut(kind), self.overflow.get_mut(kind))
        else {
            return;
        };
        let series = match series.len() >= MOST_SERIES && !series.contains_key(&labels) {
            true => overflow.get_or_insert_with(|| Series::new(of.bounds)),
            false => series.entry(labels).or_insert_with(|| Series::new(of.bounds)),
        };
        series.observe(value, of.bounds, exemplar);
    }

    /// The metrics that have at least one series.
    pub(crate) fn metrics(&self, since: u64, now: u64) -> Vec<Metric> {
        let each = KINDS.iter().zip(&self.series).zip(&self.overflow);
        each.filter(|((_, series), _)| !series.is_empty())
            .map(|((kind, series), overflow)| {
                let named = series.iter().map(|(labels, series)| (attributes(labels), series));
                let rest =
                    overflow.iter().map(|series| (vec![crate::attributes::flag(OVERFLOW, true)], series));
                let data_points = named
                    .chain(rest)
                    .map(|(attributes, series)| point(kind, attributes, series, since, now))
                    .collect();
                Metric {
                    name: kind.name.to_owned(),
                    description: kind.description.to_owned(),
                    unit: kind.unit.to_owned(),
                    data: Some(Data::Histogram(Histogram {
                        data_points,
                        aggregation_temporality: CUMULATIVE,
                    })),
                    ..Metric::default()
                }
            })
            .collect()
    }
}

fn point(
    kind: &Kind,
    attributes: Vec<KeyValue>,
    series: &Series,
    since: u64,
    now: u64,
) -> HistogramDataPoint {
    HistogramDataPoint {
        start_time_unix_nano: since,
        time_unix_nano: now,
        count: series.count,
        sum: Some(series.sum),
        bucket_counts: series.buckets.clone(),
        explicit_bounds: kind.bounds.to_vec(),
        exemplars: series.exemplars.iter().flatten().cloned().collect(),
        attributes,
        ..HistogramDataPoint::default()
    }
}

fn attributes(labels: &Labels) -> Vec<KeyValue> {
    let mut all = vec![
        text("gen_ai.operation.name", labels.operation),
        text("gen_ai.provider.name", labels.provider.clone()),
    ];
    let named = [
        ("gen_ai.request.model", labels.model.clone()),
        ("gen_ai.response.model", labels.answered.clone()),
        ("error.type", labels.error.clone()),
        ("gen_ai.token.type", labels.token.map(str::to_owned)),
    ];
    all.extend(named.into_iter().filter_map(|(key, value)| Some(text(key, value?))));
    all
}

/// Returns `true` if the endpoint generates tokens.
const fn generates(endpoint: Option<Endpoint>) -> bool {
    matches!(
        endpoint,
        Some(Endpoint::ChatCompletions | Endpoint::Messages | Endpoint::Responses | Endpoint::Completions)
    )
}

/// Nanoseconds from the start of the first attempt to the end of the last one. `None` without attempts.
fn operation_ns(record: &TraceRecord) -> Option<u64> {
    let ends = |start: u64, took: u64| start.saturating_add(took);
    let begun = record.attempts.iter().map(|attempt| attempt.start_ns).min()?;
    let ended = record.attempts.iter().map(|attempt| ends(attempt.start_ns, attempt.duration_ns)).max()?;
    Some(ended.saturating_sub(begun))
}

/// Mean nanoseconds between two tokens of an answer.
fn each_token_ns(record: &TraceRecord) -> Option<u64> {
    let CallOutcome::Completed { finish } = &record.outcome else { return None };
    let choices = u64::try_from(finish.len()).unwrap_or(1).max(1);
    let gaps = (record.usage.completion_tokens() / choices).checked_sub(1)?;
    let decode = record.span(headrace_domain::Stage::Decode)?.duration_ns;
    decode.checked_div(gaps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_an_upstream_makes_up_are_few_and_short() {
        let mut all = GenAi::default();
        assert_eq!(all.answerer("m", "m-2026"), "m-2026");
        assert_eq!(all.answerer("m", "a\u{1b}[31m"), "other");
        assert_eq!(all.answerer("m", &"a".repeat(MOST_ANSWERER_BYTES + 1)), "other");
        let others = (0..100).filter(|at| all.answerer("m", &format!("m{at}")) == "other").count();
        assert_eq!(others, 100 - (MOST_ANSWERERS - 1));
        assert_eq!(all.answerer("m", "m-2026"), "m-2026", "what was known stays");
        assert_eq!(all.answerer("other-model", "m1"), "m1", "models do not share their places");
    }
}
