//! OTLP attributes of a call: GenAI names from OpenTelemetry's semantic conventions, in the version that [`SCHEMA`]
//! names, and Headrace's own names under `headrace.`. Must not know the receiver. No attribute contains text of a
//! prompt or an answer.

use headrace_domain::{CallOutcome, Endpoint, TraceRecord};

use crate::proto::{AnyValue, ArrayValue, KeyValue, Value};

/// The version of the semantic conventions that the names follow, the last one with the GenAI conventions
/// (<https://github.com/open-telemetry/semantic-conventions/tree/v1.41.1/docs/gen-ai>).
pub(crate) const SCHEMA: &str = "https://opentelemetry.io/schemas/1.41.1";
/// The provider name of local engines.
pub(crate) const OWN_PROVIDER: &str = "headrace";
/// The value for anything without a name.
const OTHER: &str = "_OTHER";

pub(crate) fn text(key: &str, value: impl Into<String>) -> KeyValue {
    of(key, Value::StringValue(value.into()))
}

pub(crate) fn count(key: &str, value: u64) -> KeyValue {
    of(key, Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)))
}

pub(crate) fn money(key: &str, nanos: i64) -> KeyValue {
    of(key, Value::IntValue(nanos))
}

pub(crate) fn flag(key: &str, value: bool) -> KeyValue {
    of(key, Value::BoolValue(value))
}

pub(crate) fn number(key: &str, value: f64) -> KeyValue {
    of(key, Value::DoubleValue(value))
}

pub(crate) fn texts(key: &str, values: &[String]) -> KeyValue {
    let value = |text: &String| AnyValue { value: Some(Value::StringValue(text.clone())) };
    of(key, Value::ArrayValue(ArrayValue { values: values.iter().map(value).collect() }))
}

fn of(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

/// Nanoseconds in seconds.
#[allow(clippy::cast_precision_loss, reason = "what is lost is less than a nanosecond in a month")]
pub(crate) fn seconds(nanos: u64) -> f64 {
    nanos as f64 * 1e-9
}

/// The value of `gen_ai.operation.name` for an endpoint.
pub(crate) const fn operation(endpoint: Option<Endpoint>) -> &'static str {
    match endpoint {
        Some(Endpoint::ChatCompletions | Endpoint::Messages | Endpoint::Responses) => "chat",
        Some(Endpoint::Completions) => "text_completion",
        Some(Endpoint::Embeddings) => "embeddings",
        Some(Endpoint::Rerank) => "rerank",
        Some(Endpoint::Score) => "score",
        None => OTHER,
    }
}

/// The operation of a record. A worker job continues token ids, so it is always a completion.
pub(crate) const fn operation_of(record: &TraceRecord) -> &'static str {
    if record.worker_job.is_some() {
        operation(Some(Endpoint::Completions))
    } else {
        operation(record.endpoint)
    }
}

/// The value of `gen_ai.provider.name`: the upstream's name in the configuration, or this program.
pub(crate) fn provider(record: &TraceRecord) -> &str {
    record.upstream.as_deref().unwrap_or(OWN_PROVIDER)
}

/// The value of `error.type`. `None` if the call completed or its client disconnected.
pub(crate) fn error_type(record: &TraceRecord) -> Option<String> {
    match &record.outcome {
        CallOutcome::Completed { .. } | CallOutcome::Cancelled { .. } => None,
        CallOutcome::Refused(refusal) => Some(refusal.code.clone()),
        CallOutcome::Failed { stage, .. } => Some(format!("failed_in_{stage}")),
    }
}

/// The outcome in one word.
pub(crate) const fn outcome(record: &TraceRecord) -> &'static str {
    match &record.outcome {
        CallOutcome::Completed { .. } => "completed",
        CallOutcome::Refused(_) => "refused",
        CallOutcome::Cancelled { .. } => "cancelled",
        CallOutcome::Failed { .. } => "failed",
    }
}

/// A span's name, such as `chat headrace-demo`.
pub(crate) fn span_name(record: &TraceRecord, model: Option<&str>) -> String {
    let is_known = record.endpoint.is_some() || record.worker_job.is_some();
    match (is_known, model) {
        (false, _) => "refused before its path was known".to_owned(),
        (true, Some(model)) => format!("{} {model}", operation_of(record)),
        (true, None) => operation_of(record).to_owned(),
    }
}

/// The attributes of a call, for its span and its log record.
pub(crate) fn of_call(record: &TraceRecord) -> Vec<KeyValue> {
    let mut all = vec![
        text("gen_ai.operation.name", operation_of(record)),
        text("gen_ai.provider.name", provider(record)),
        flag("gen_ai.request.stream", record.stream),
        text("headrace.request.id", record.request_id.to_string()),
        text("headrace.outcome", outcome(record)),
        count("headrace.duration_ns", record.duration_ns),
    ];
    let named = [
        ("gen_ai.request.model", record.model_asked.clone()),
        ("gen_ai.response.model", record.upstream_model.clone().or_else(|| record.model_served.clone())),
        ("headrace.model", record.model_served.clone()),
        ("headrace.org.id", record.org.as_ref().map(ToString::to_string)),
        ("headrace.project.id", record.project.as_ref().map(ToString::to_string)),
        ("headrace.key.id", record.key.as_ref().map(ToString::to_string)),
        ("headrace.endpoint", record.endpoint.map(|endpoint| endpoint.name().to_owned())),
        ("headrace.upstream", record.upstream.as_deref().map(str::to_owned)),
        ("error.type", error_type(record)),
    ];
    all.extend(named.into_iter().filter_map(|(key, value)| Some(text(key, value?))));
    usage(record, &mut all);
    if let CallOutcome::Completed { finish } = &record.outcome {
        all.push(texts("gen_ai.response.finish_reasons", finish));
    }
    if let CallOutcome::Refused(refusal) = &record.outcome {
        all.push(count("http.response.status_code", u64::from(refusal.status)));
        all.push(text("headrace.refused.stage", refusal.stage.name()));
        all.push(text("headrace.refused.rule", refusal.rule.clone()));
    }
    if let Some(nanos) = record.time_to_first_token_ns() {
        all.push(number("gen_ai.response.time_to_first_chunk", seconds(nanos)));
    }
    all
}

fn usage(record: &TraceRecord, all: &mut Vec<KeyValue>) {
    let usage = &record.usage;
    if usage.prompt_tokens() == 0 && usage.completion_tokens() == 0 {
        return;
    }
    let written = usage.cache_write.saturating_add(usage.cache_write_1h);
    all.extend([
        count("gen_ai.usage.input_tokens", usage.prompt_tokens()),
        count("gen_ai.usage.output_tokens", usage.completion_tokens()),
        count("gen_ai.usage.cache_read.input_tokens", usage.cached_input),
        count("gen_ai.usage.cache_creation.input_tokens", written),
        count("gen_ai.usage.reasoning.output_tokens", usage.reasoning),
        money("headrace.cost_nano_dollars", record.cost.get()),
        money("headrace.held_nano_dollars", record.held.get()),
        money("headrace.loss_nano_dollars", record.loss.get()),
    ]);
    if let Some(paid) = record.paid {
        all.push(money("headrace.paid_nano_dollars", paid.get()));
    }
}
