//! Gauges and counters that other crates own. A callback reads each value when Prometheus scrapes. Knows nothing of
//! what they measure, and keeps their names well-formed and unique.

use parking_lot::Mutex;

use crate::family::{FamilyKind, MetricFamily, SampleValue};

/// Reads the current value.
pub(crate) type Read = Box<dyn Fn() -> f64 + Send + Sync>;

/// The registered gauges and counters, sorted by name.
#[derive(Default)]
pub(crate) struct GaugeRegistry {
    all: Mutex<Vec<RegisteredGauge>>,
}

struct RegisteredGauge {
    name: String,
    help: String,
    kind: FamilyKind,
    labels: Vec<(String, String)>,
    read: Read,
}

impl GaugeRegistry {
    /// Adds a gauge, or replaces the one with the same name and labels.
    pub(crate) fn register(
        &self,
        name: &str,
        help: &str,
        kind: FamilyKind,
        labels: &[(&str, &str)],
        read: Read,
    ) {
        let labels: Vec<_> =
            labels.iter().map(|(name, value)| (identifier(name, false), (*value).to_owned())).collect();
        let gauge =
            RegisteredGauge { name: identifier(name, true), help: help.to_owned(), kind, labels, read };
        let mut all = self.all.lock();
        match all.iter_mut().find(|old| old.name == gauge.name && old.labels == gauge.labels) {
            Some(old) => *old = gauge,
            None => all.push(gauge),
        }
        // The sort is stable, so the samples of one family stay together in the order of their registration.
        all.sort_by(|a, b| a.name.cmp(&b.name));
    }

    /// Removes all gauges that have this label.
    pub(crate) fn unregister(&self, (name, value): (&str, &str)) {
        let name = identifier(name, false);
        self.all.lock().retain(|gauge| !gauge.labels.iter().any(|(n, v)| *n == name && v == value));
    }

    /// All families, except those whose name is in `taken`.
    pub(crate) fn families(&self, taken: &[MetricFamily]) -> Vec<MetricFamily> {
        let all = self.all.lock();
        let families = all.chunk_by(|a, b| a.name == b.name).filter_map(|gauges| {
            let first = gauges.first()?;
            if taken.iter().any(|family| family.name == first.name) {
                return None;
            }
            let mut family = MetricFamily::new(&first.name, &first.help, first.kind);
            for gauge in gauges {
                let labels: Vec<_> = gauge.labels.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
                family.push(&labels, SampleValue::Number((gauge.read)()));
            }
            Some(family)
        });
        families.collect()
    }
}

/// Converts a name to the format's syntax: `[a-zA-Z_:][a-zA-Z0-9_:]*`, with colons in metric names only. Other
/// characters become `_`, since a misspelt gauge is better than a page that Prometheus refuses as a whole.
fn identifier(name: &str, colons: bool) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || (colons && c == ':');
    let mut clean: String = name.chars().map(|c| if fits(c) { c } else { '_' }).collect();
    if clean.is_empty() || clean.starts_with(|c: char| c.is_ascii_digit()) {
        clean.insert(0, '_');
    }
    clean
}
