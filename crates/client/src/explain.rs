//! The `headrace` block of an answer, if the request asked for it: exact cost and stage timings. Parses the fields it
//! knows and keeps the whole block.

use headrace_domain::NanoDollars;
use serde_json::Value;

/// Stage timings and cost of one answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Explain {
    /// The amount charged.
    pub cost: Option<NanoDollars>,
    /// The stages in order, as far as they had ended when the block was written.
    pub stages: Vec<StageTime>,
    /// The whole block as JSON.
    pub raw: Value,
}

/// The time of one stage.
#[derive(Debug, Clone, PartialEq)]
pub struct StageTime {
    /// The stage's name, such as `prefill`.
    pub name: String,
    /// Start in microseconds since the request's first byte.
    pub start_us: f64,
    /// Duration in microseconds.
    pub duration_us: f64,
}

impl Explain {
    /// Reads a block, or a request's trace, which has the same fields and more. Fields of an unexpected shape are left
    /// out, never guessed.
    pub fn from_value(raw: Value) -> Self {
        let cost = raw.get("cost").and_then(|cost| cost.get("charged_nano_dollars"));
        let cost = cost.and_then(Value::as_i64).map(NanoDollars::new);
        Self { cost, stages: stages(&raw), raw }
    }

    /// The stage with this name.
    pub fn stage(&self, name: &str) -> Option<&StageTime> {
        self.stages.iter().find(|stage| stage.name == name)
    }
}

/// Reads the list `stages` of a `headrace` block or of a request's trace.
fn stages(raw: &Value) -> Vec<StageTime> {
    let list = raw.get("stages").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(stage).collect()
}

fn stage(value: &Value) -> Option<StageTime> {
    let name = value.get("stage")?.as_str()?.to_owned();
    let duration_us = value.get("duration_us")?.as_f64()?;
    let start_us = value.get("start_us").and_then(Value::as_f64).unwrap_or_default();
    Some(StageTime { name, start_us, duration_us })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn known_fields_are_read_and_others_kept() {
        let raw = json!({"cost": {"charged_nano_dollars": 9_400}, "new": 1, "stages": [
            {"stage": "parse", "start_us": 12.5, "duration_us": 30},
            {"stage": "odd", "duration_us": "long"}, 7, {"stage": "prefill", "duration_us": 2.0}]});
        let explain = Explain::from_value(raw.clone());
        assert_eq!(explain.cost, Some(NanoDollars::new(9_400)));
        let read: Vec<_> =
            explain.stages.iter().map(|s| (s.name.as_str(), s.start_us, s.duration_us)).collect();
        assert_eq!(read, [("parse", 12.5, 30.0), ("prefill", 0.0, 2.0)]);
        assert_eq!(explain.raw, raw);
        for odd in [
            json!(null),
            json!([]),
            json!({"cost": -1.5, "stages": {}}),
            json!({"cost": {"charged_nano_dollars": "5"}}),
        ] {
            assert_eq!(Explain::from_value(odd.clone()), Explain { raw: odd, ..Explain::default() });
        }
    }
}
