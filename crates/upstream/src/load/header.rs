//! The answer header `endpoint-load-metrics`, in which servers report their load as text or JSON. Must not know a
//! connection.
//!
//! ORCA: `xds/data/orca/v3/orca_load_report.proto`, gRFC A51. vLLM: `vllm/entrypoints/openai/orca_metrics.py`.

use http::HeaderName;
use serde_json::{Map, Value};

use crate::load_reading::{PartialLoad, calls, part};

/// The header that reports the load.
pub(super) static LOAD_HEADER: HeaderName = HeaderName::from_static("endpoint-load-metrics");
/// The request header that asks for the report.
pub(crate) const FORMAT_HEADER: HeaderName = HeaderName::from_static("endpoint-load-metrics-format");
/// Longer values are ignored.
const MAX_BYTES: usize = 4096;

/// Parses all values of the header. Returns `None` if they hold no known metric or an invalid one.
pub(super) fn read(values: &[&[u8]]) -> Option<PartialLoad> {
    let mut found = PartialLoad::default();
    for value in values.iter().filter(|value| value.len() <= MAX_BYTES) {
        let value = std::str::from_utf8(value).ok()?.trim();
        let (form, rest) = value.split_once(char::is_whitespace).unwrap_or(("", value));
        match form.to_ascii_uppercase().as_str() {
            "JSON" => found.json(rest)?,
            "TEXT" => found.text(rest)?,
            _ if value.starts_with('{') => found.json(value)?,
            _ => found.text(value)?,
        }
    }
    (found != PartialLoad::default()).then_some(found)
}

impl PartialLoad {
    /// Parses a JSON report. Returns `None` if it is invalid.
    fn json(&mut self, text: &str) -> Option<()> {
        let report: Map<String, Value> = serde_json::from_str(text).ok()?;
        let inner =
            ["named_metrics", "utilization"].into_iter().filter_map(|name| report.get(name)?.as_object());
        for (name, value) in inner.chain([&report]).flatten() {
            if let Some(value) = value.as_f64() {
                self.metric(name, value)?;
            }
        }
        Some(())
    }

    fn text(&mut self, text: &str) -> Option<()> {
        for pair in text.split(',') {
            let (name, value) = pair.split_once('=')?;
            self.metric(name.trim(), value.trim().parse().ok()?)?;
        }
        Some(())
    }

    /// Applies one metric. Returns `None` if its value is impossible, which discards the whole report.
    fn metric(&mut self, name: &str, value: f64) -> Option<()> {
        let name = name.rsplit(['.', ':']).next().unwrap_or(name);
        match name {
            "num_requests_running" | "num_running_reqs" => self.running = Some(calls(value)?),
            "num_requests_waiting" | "num_queue_reqs" => self.waiting = Some(calls(value)?),
            "kv_cache_usage_perc" | "kv_cache_utilization" | "gpu_cache_usage_perc" | "token_usage" => {
                self.cache_used = Some(part(value)?);
            }
            _ => {}
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read_and_what_cannot_be_true_is_nothing() {
        let of = |running, waiting, cache_used| Some(PartialLoad { running, waiting, cache_used });
        for (values, part) in [
            // The format of vLLM 0.32, and of its Rust frontend.
            (
                &[r#"JSON {"named_metrics": {"num_requests_waiting": 3.0, "kv_cache_usage_perc": 0.25}}"#][..],
                of(None, Some(3), Some(250)),
            ),
            (
                &[r#"{"named_metrics":{"kv_cache_usage_perc":0.75,"num_requests_waiting":3}}"#],
                of(None, Some(3), Some(750)),
            ),
            (
                &["TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=2.0"],
                of(None, Some(2), Some(400)),
            ),
            (&["cpu_utilization=0.3,named_metrics.vllm:num_requests_running=7"], of(Some(7), None, None)),
            (
                &["TEXT named_metrics.num_requests_running=1", "TEXT num_requests_waiting=2"],
                of(Some(1), Some(2), None),
            ),
            (
                &[r#"JSON {"utilization":{"kv_cache_utilization":1.02},"cpu_utilization":7}"#],
                of(None, None, Some(1000)),
            ),
            (&["JSON {\"named_metrics\":{\"num_requests_waiting\":-1}}"], None),
            (&["TEXT num_requests_waiting=NaN"], None),
            (&["TEXT num_requests_waiting=1e30"], None),
            (&["TEXT kv_cache_usage_perc=42, num_requests_waiting=1"], None),
            (&["JSON {\"named_metrics\""], None),
            (&["BIN CgQIARAC"], None),
            (&["cpu_utilization=0.3"], None),
            (&[""], None),
            (&[], None),
        ] {
            let values: Vec<&[u8]> = values.iter().map(|value| value.as_bytes()).collect();
            assert_eq!(read(&values), part, "{values:?}");
        }
        let long = format!("TEXT num_requests_waiting=1, a={}", "1".repeat(MAX_BYTES));
        assert_eq!(read(&[long.as_bytes()]), None);
        assert_eq!(read(&[b"TEXT num_requests_waiting=\xff"]), None);
    }
}
