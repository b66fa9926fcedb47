//! The numbers of a load report, checked for plausibility: per model or for the whole server. Must not know the source
//! or the format of a report.

/// Maximum plausible number of calls. A report with more is rejected.
const MOST_CALLS: f64 = 1e6;
/// Maximum plausible number of tokens.
const MOST_TOKENS: f64 = 1e12;

/// The load of one model, or of the whole server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LoadReading {
    pub(crate) running: u32,
    pub(crate) waiting: u32,
    pub(crate) waiting_tokens: u64,
    /// Share of the KV memory in use, in thousandths.
    pub(crate) cache_used: Option<u16>,
}

impl LoadReading {
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            running: self.running.saturating_add(other.running),
            waiting: self.waiting.saturating_add(other.waiting),
            waiting_tokens: self.waiting_tokens.saturating_add(other.waiting_tokens),
            // The fullest cache counts.
            cache_used: self.cache_used.max(other.cache_used),
        }
    }
}

/// The content of one report: loads by model name, and loads without a name.
#[derive(Debug, PartialEq, Eq, Default)]
pub(crate) struct LoadReadings {
    pub(crate) by_model: Vec<(String, LoadReading)>,
    pub(crate) unnamed: Option<LoadReading>,
}

impl LoadReadings {
    pub(crate) fn unnamed(reading: LoadReading) -> Self {
        Self { by_model: Vec::new(), unnamed: Some(reading) }
    }

    /// Returns the load of one model. A name that the report does not contain, such as an adapter's, has the load of
    /// the whole server.
    pub(crate) fn of(&self, model: &str) -> Option<LoadReading> {
        let named = self.by_model.iter().find(|(name, _)| name == model).map(|(_, reading)| *reading);
        let all = || {
            let named = self.by_model.iter().map(|(_, reading)| *reading);
            named.chain(self.unnamed).reduce(LoadReading::and)
        };
        named.or_else(all)
    }
}

/// The report in the head of an answer. Most are partial.
#[derive(Debug, PartialEq, Eq, Default)]
pub(crate) struct PartialLoad {
    pub(crate) running: Option<u32>,
    pub(crate) waiting: Option<u32>,
    pub(crate) cache_used: Option<u16>,
}

/// Converts a number of calls. Returns `None` if it is not plausible.
pub(crate) fn calls(value: f64) -> Option<u32> {
    (0.0..=MOST_CALLS).contains(&value).then_some(value as u32)
}

/// Converts a number of tokens. Returns `None` if it is not plausible.
pub(crate) fn tokens(value: f64) -> Option<u64> {
    (0.0..=MOST_TOKENS).contains(&value).then_some(value as u64)
}

/// Converts a share from 0 to 1 to thousandths. Returns `None` if it is not plausible. Values slightly above 1, which
/// some full servers report, count as 1.
pub(crate) fn part(value: f64) -> Option<u16> {
    (0.0..=1.5).contains(&value).then(|| (value.min(1.0) * 1000.0).round() as u16)
}
