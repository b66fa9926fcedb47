//! Metrics pages in Prometheus' text format: the few gauges that report a server's load. Must not know a connection.
//!
//! vLLM: `vllm/v1/metrics/loggers.py`. SGLang: `sglang/srt/metrics/collector.py`. llama.cpp: `tools/server/README.md`.

use std::collections::{BTreeMap, HashSet};

use crate::kind::UpstreamKind;
use crate::load_reading::{LoadReading, LoadReadings, calls, part};

/// Maximum number of series of the needed gauges. No real page has more.
const MAX_SERIES: usize = 4096;

/// Names of a kind's gauges. A field with several names covers different versions.
struct GaugeNames {
    running: &'static str,
    waiting: &'static str,
    cache_used: &'static [&'static str],
}

fn names(kind: UpstreamKind) -> Option<GaugeNames> {
    let (running, waiting, cache_used): (_, _, &[&str]) = match kind {
        UpstreamKind::Vllm => (
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            &["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"],
        ),
        UpstreamKind::Sglang => ("sglang:num_running_reqs", "sglang:num_queue_reqs", &["sglang:token_usage"]),
        UpstreamKind::LlamaCpp => {
            ("llamacpp:requests_processing", "llamacpp:requests_deferred", &["llamacpp:kv_cache_usage_ratio"])
        }
        UpstreamKind::OpenAi | UpstreamKind::Anthropic | UpstreamKind::Headrace => return None,
    };
    Some(GaugeNames { running, waiting, cache_used })
}

impl GaugeNames {
    /// Returns the field that the gauge `name` fills.
    fn field(&self, name: &str) -> Option<fn(&mut EngineLoad) -> &mut Option<f64>> {
        match name {
            _ if name == self.running => Some(|engine| &mut engine.running),
            _ if name == self.waiting => Some(|engine| &mut engine.waiting),
            _ if self.cache_used.contains(&name) => Some(|engine| &mut engine.cache_used),
            _ => None,
        }
    }
}

/// The gauges of one engine of one model. Several processes of one engine report the same calls.
#[derive(Debug, Default)]
struct EngineLoad {
    running: Option<f64>,
    waiting: Option<f64>,
    cache_used: Option<f64>,
}

/// Parses a page.
///
/// # Errors
/// What is missing or wrong, as text.
pub(super) fn read(text: &str, kind: UpstreamKind) -> Result<LoadReadings, String> {
    let Some(names) = names(kind) else { return Err(format!("pages of the kind `{kind}` are not read")) };
    let mut engines: BTreeMap<(Option<String>, String), EngineLoad> = BTreeMap::new();
    let mut seen: HashSet<&str> = HashSet::new();
    for line in text.lines() {
        let Some(series) = MetricLine::of(line) else { continue };
        let Some(field) = names.field(series.name) else { continue };
        if !seen.insert(series.key) {
            return Err(format!("its page of metrics has `{}` twice", series.key));
        }
        if seen.len() > MAX_SERIES {
            return Err(format!("its page of metrics has more than {MAX_SERIES} series of its gauges"));
        }
        let value = series.value.ok_or_else(|| format!("`{}` on its page is no number", series.key))?;
        let engine = engines.entry((series.label("model_name"), series.engine())).or_default();
        let slot = field(engine);
        *slot = Some(slot.map_or(value, |other| other.max(value)));
    }
    if engines.is_empty() {
        return Err(format!("its page of metrics has no `{}`; are its statistics off?", names.running));
    }
    let mut readings = LoadReadings::default();
    for ((model, _), engine) in engines {
        let reading = engine.reading(&names)?;
        match model {
            None => readings.unnamed = Some(readings.unnamed.map_or(reading, |other| other.and(reading))),
            Some(model) => match readings.by_model.last_mut().filter(|(last, _)| *last == model) {
                Some((_, sum)) => *sum = sum.and(reading),
                None => readings.by_model.push((model, reading)),
            },
        }
    }
    Ok(readings)
}

impl EngineLoad {
    fn reading(&self, names: &GaugeNames) -> Result<LoadReading, String> {
        let count = |value: Option<f64>, name: &str| {
            let value = value.ok_or_else(|| format!("its page of metrics has no `{name}`"))?;
            calls(value).ok_or_else(|| format!("`{name}` on its page is {value}"))
        };
        Ok(LoadReading {
            running: count(self.running, names.running)?,
            waiting: count(self.waiting, names.waiting)?,
            waiting_tokens: 0,
            cache_used: self.cache_used.and_then(part),
        })
    }
}

/// A line that is not a comment.
struct MetricLine<'a> {
    name: &'a str,
    labels: &'a str,
    /// The line's name and labels.
    key: &'a str,
    value: Option<f64>,
}

impl<'a> MetricLine<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let line = line.trim();
        if line.starts_with('#') {
            return None;
        }
        let name_end = line.find(|c: char| c == '{' || c.is_whitespace())?;
        let name = line.get(..name_end)?;
        let rest = line.get(name_end..)?;
        let (labels, rest) = match rest.strip_prefix('{') {
            None => ("", rest),
            Some(inner) => inner.split_at_checked(labels_end(inner)?)?,
        };
        let value = rest.trim_start_matches('}').split_whitespace().next()?;
        let key = line.get(..line.len() - rest.len())?;
        Some(Self { name, labels, key, value: value.parse().ok().filter(|value: &f64| value.is_finite()) })
    }

    fn label(&self, wanted: &str) -> Option<String> {
        let mut rest = self.labels;
        loop {
            let (name, after) = rest.split_once("=\"")?;
            let end = value_end(after)?;
            if name.trim_start_matches(',').trim() == wanted {
                let value = after.get(..end)?;
                return Some(value.replace("\\\"", "\"").replace("\\n", "\n").replace("\\\\", "\\"));
            }
            rest = after.get(end + 1..)?;
        }
    }

    /// Returns the label that separates several engines of one model.
    fn engine(&self) -> String {
        self.label("engine").or_else(|| self.label("dp_rank")).unwrap_or_default()
    }
}

/// Returns the end of the label value that begins here: the index of its closing quote.
fn value_end(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

/// Returns the end of the labels that begin here: the index of the closing brace.
fn labels_end(text: &str) -> Option<usize> {
    let mut at = 0;
    loop {
        let rest = text.get(at..)?;
        let stop = rest.find(['"', '}'])?;
        if rest.as_bytes().get(stop) == Some(&b'}') {
            return Some(at + stop);
        }
        at += stop + 1;
        at += value_end(text.get(at..)?)? + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The format of vLLM 0.32, shortened.
    const VLLM: &str = r#"# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"} 0.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.42
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 2739.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 9.0
"#;

    /// SGLang's format, with two data-parallel ranks and two processes of one of them.
    const SGLANG: &str = r#"# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="meta-llama/Llama-3.1-8B-Instruct",pp_rank="0",tp_rank="0",dp_rank="0"} 162.0
sglang:num_running_reqs{engine_type="unified",model_name="meta-llama/Llama-3.1-8B-Instruct",pp_rank="0",tp_rank="1",dp_rank="0"} 160.0
sglang:num_running_reqs{engine_type="unified",model_name="meta-llama/Llama-3.1-8B-Instruct",pp_rank="0",tp_rank="0",dp_rank="1"} 8.0
sglang:token_usage{model_name="meta-llama/Llama-3.1-8B-Instruct",dp_rank="0"} 0.28
sglang:token_usage{model_name="meta-llama/Llama-3.1-8B-Instruct",dp_rank="1"} 0.05
sglang:cache_hit_rate{model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.0075
sglang:num_queue_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct",dp_rank="0"} 2826.0
sglang:num_queue_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct",dp_rank="1"} 0.0
"#;

    const LLAMA: &str = "# HELP llamacpp:requests_processing Number of requests processing.\n\
        # TYPE llamacpp:requests_processing gauge\n\
        llamacpp:requests_processing 1\n\
        # TYPE llamacpp:predicted_tokens_seconds gauge\n\
        llamacpp:predicted_tokens_seconds nan\n\
        llamacpp:requests_deferred 4\n";

    fn reading(running: u32, waiting: u32, cache_used: Option<u16>) -> LoadReading {
        LoadReading { running, waiting, waiting_tokens: 0, cache_used }
    }

    #[test]
    fn pages_of_every_kind_are_read() {
        let old = VLLM.replace("kv_cache_usage_perc", "gpu_cache_usage_perc").replace("engine=\"0\",", "");
        let two_engines = format!("{VLLM}{}", VLLM.replace("engine=\"0\"", "engine=\"1\""));
        for (kind, page, model, expected) in [
            (UpstreamKind::Vllm, VLLM, "m", reading(3, 2, Some(420))),
            (UpstreamKind::Vllm, &old, "m", reading(3, 2, Some(420))),
            // Data-parallel ranks are separate engines that share a model's calls.
            (UpstreamKind::Vllm, &two_engines, "m", reading(6, 4, Some(420))),
            // No gauge names an adapter.
            (UpstreamKind::Vllm, VLLM, "adapter", reading(3, 2, Some(420))),
            (UpstreamKind::Sglang, SGLANG, "meta-llama/Llama-3.1-8B-Instruct", reading(170, 2826, Some(280))),
            (UpstreamKind::LlamaCpp, LLAMA, "any", reading(1, 4, None)),
        ] {
            let page = page.replace("HELP", "HELP \u{e9}");
            assert_eq!(read(&page, kind).unwrap().of(model), Some(expected), "{page}");
            let crlf = page.replace('\n', "\r\n");
            assert_eq!(read(&crlf, kind).unwrap().of(model), Some(expected), "{crlf}");
        }
    }

    #[test]
    fn models_are_kept_apart_by_their_labels() {
        let other = r#"we\\ird \"}{ =\",name\n"#;
        let page = VLLM
            .replace("model_name=\"m\"", &format!("model_name=\"{other}\""))
            .replace("} 3.0", "} 30 1700000000");
        let readings = read(&format!("{VLLM}{page}"), UpstreamKind::Vllm).unwrap();
        assert_eq!(readings.of("m"), Some(reading(3, 2, Some(420))));
        assert_eq!(readings.of("we\\ird \"}{ =\",name\n"), Some(reading(30, 2, Some(420))));
        assert_eq!(readings.of("neither"), Some(reading(33, 4, Some(420))));
    }

    #[test]
    fn what_is_no_load_is_told_and_never_taken_for_one() {
        let with = |from: &str, to: &str| VLLM.replace(from, to);
        for (page, words) in [
            (String::new(), "no `vllm:num_requests_running`; are its statistics off?"),
            (SGLANG.to_owned(), "no `vllm:num_requests_running`"),
            (with("} 3.0", "} NaN"), "is no number"),
            (with("} 3.0", "} +Inf"), "is no number"),
            (with("} 3.0", "} three"), "is no number"),
            (with("} 3.0", "} -1"), "is -1"),
            (with("} 3.0", "} 1e300"), "is 1000000"),
            (with("vllm:num_requests_waiting{", "gone{"), "has no `vllm:num_requests_waiting`"),
            (with("vllm:num_requests_running{", "gone{"), "has no `vllm:num_requests_running`"),
            (format!("{VLLM}{VLLM}"), "twice"),
            (with("model_name=\"m\"} 3.0", "model_name=\"m} 3.0"), "has no `vllm:num_requests_running`"),
            ("{}{}{}{\"\"\"=\n}} 1\n  \n".to_owned(), "statistics off"),
            (
                (0..MAX_SERIES + 1)
                    .map(|at| format!("vllm:num_requests_running{{engine=\"{at}\"}} 1\n"))
                    .collect(),
                "more than 4096 series",
            ),
        ] {
            let error = read(&page, UpstreamKind::Vllm).unwrap_err();
            assert!(error.contains(words), "{error} should say {words}");
        }
        // The cache usage decides nothing, so an impossible value is ignored.
        let odd = read(&with("} 0.42", "} 42.0"), UpstreamKind::Vllm).unwrap();
        assert_eq!(odd.of("m"), Some(reading(3, 2, None)));
    }
}
