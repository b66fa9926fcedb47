//! What a server may say of how busy it is: numbers that can be true, of each model or of all together. Knows neither where it is
//! said nor how.

/// Nobody has so many calls: what says so is no report.
const MOST_CALLS: f64 = 1e6;
/// The same of tokens.
const MOST_TOKENS: f64 = 1e12;

/// What a server says of one model, or of all together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Reading {
    pub(super) running: u32,
    pub(super) waiting: u32,
    pub(super) waiting_tokens: u64,
    /// Part of the KV memory in use, in thousandths.
    pub(super) cache_used: Option<u16>,
}

impl Reading {
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            running: self.running.saturating_add(other.running),
            waiting: self.waiting.saturating_add(other.waiting),
            waiting_tokens: self.waiting_tokens.saturating_add(other.waiting_tokens),
            // What is full somewhere is full.
            cache_used: self.cache_used.max(other.cache_used),
        }
    }
}

/// What one answer says: of models by their names there, and of what has no name.
#[derive(Debug, PartialEq, Eq, Default)]
pub(super) struct Readings {
    pub(super) by_model: Vec<(String, Reading)>,
    pub(super) unnamed: Option<Reading>,
}

impl Readings {
    pub(super) fn unnamed(reading: Reading) -> Self {
        Self { by_model: Vec::new(), unnamed: Some(reading) }
    }

    /// Of one model. A name that is not told apart, such as an adapter's, has the load of the whole server.
    pub(super) fn of(&self, model: &str) -> Option<Reading> {
        let named = self.by_model.iter().find(|(name, _)| name == model).map(|(_, reading)| *reading);
        let all = || {
            let named = self.by_model.iter().map(|(_, reading)| *reading);
            named.chain(self.unnamed).reduce(Reading::and)
        };
        named.or_else(all)
    }
}

/// What the head of an answer says; most say but a part.
#[derive(Debug, PartialEq, Eq, Default)]
pub(super) struct Part {
    pub(super) running: Option<u32>,
    pub(super) waiting: Option<u32>,
    pub(super) cache_used: Option<u16>,
}

/// A number of calls, if it is one.
pub(super) fn calls(value: f64) -> Option<u32> {
    (0.0..=MOST_CALLS).contains(&value).then_some(value as u32)
}

/// A number of tokens, if it is one.
pub(super) fn tokens(value: f64) -> Option<u64> {
    (0.0..=MOST_TOKENS).contains(&value).then_some(value as u64)
}

/// A part from 0 to 1, in thousandths, if it is one. Some servers are a little beyond when they are full.
pub(super) fn part(value: f64) -> Option<u16> {
    (0.0..=1.5).contains(&value).then(|| (value.min(1.0) * 1000.0).round() as u16)
}
