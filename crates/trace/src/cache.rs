//! The cache report: the share of prompts that came from prefix caches, why the rest missed, and where the prompts
//! diverged. It also bounds what a different order of the prompt's parts could save. Uses trace records only; must not
//! know the prompts' text.

use std::collections::BTreeMap;

use headrace_domain::{BLOCK_TOKENS, CacheMiss, MissReason, PromptPlace, RequestId, TraceRecord, UnixNanos};
use serde_json::{Value, json};

use crate::search::moment;
use crate::units::{aligned, counted, grouped, micros, percent, plain};

/// Maximum number of calls in a report. The newest calls of the period count.
pub const MAX_CACHE_CALLS: usize = 20_000;
/// Maximum number of places per row. The places with the most computed tokens are listed first.
const PLACES_LISTED: usize = 10;

/// A dimension that the report is grouped by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheBy {
    /// The organisation that pays.
    Org,
    /// The model that served the call.
    Model,
    /// The part of the prompt in which it diverged from the nearest cached prompt.
    Prefix,
}

impl CacheBy {
    /// All dimensions.
    pub const ALL: [Self; 3] = [Self::Org, Self::Model, Self::Prefix];

    /// The dimension's name in queries and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Org => "org",
            Self::Model => "model",
            Self::Prefix => "prefix",
        }
    }

    /// The dimension with this name.
    ///
    /// # Errors
    /// A message with the valid names.
    pub fn named(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|by| by.name() == name);
        found.ok_or_else(|| "it must be one or more of org, model, prefix".to_owned())
    }

    fn of(self, record: &TraceRecord) -> Option<String> {
        match self {
            Self::Org => record.org.as_ref().map(ToString::to_string),
            Self::Model => record.model_served.clone(),
            Self::Prefix => Some(match record.engine.as_ref().map(|engine| engine.miss) {
                None => "not reported (another's server)".to_owned(),
                Some(None) => "the whole prompt".to_owned(),
                Some(Some(miss)) => {
                    miss.place.map_or_else(|| miss.reason.name().to_owned(), |place| up_to(&place))
                }
            }),
        }
    }
}

/// Selects and groups the calls of a report. The default selects the newest calls, without grouping.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CacheQuery {
    /// The dimensions to group by, without duplicates.
    pub by: Vec<CacheBy>,
    /// Calls that started at this time or later.
    pub since: Option<UnixNanos>,
    /// Calls that started before this time.
    pub until: Option<UnixNanos>,
}

impl CacheQuery {
    /// Parses `value` and sets the filter `by`, `from` or `to`.
    ///
    /// # Errors
    /// A message that says what the value must be, or that there is no such filter.
    pub fn set(&mut self, name: &str, value: &str, now: UnixNanos) -> Result<(), String> {
        match name {
            "by" => {
                self.by.clear();
                for by in value.split(',').filter(|name| !name.is_empty()) {
                    let by = CacheBy::named(by)?;
                    if !self.by.contains(&by) {
                        self.by.push(by);
                    }
                }
            }
            "from" => self.since = Some(moment(value, now)?),
            "to" => self.until = Some(moment(value, now)?),
            _ => return Err("there is no such filter: there are by, from, to".to_owned()),
        }
        Ok(())
    }
}

/// The cache report. See the top of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct CacheReport {
    by: Vec<CacheBy>,
    rows: BTreeMap<Vec<Option<String>>, CacheSums>,
    calls: u64,
    oldest: Option<UnixNanos>,
    is_whole: bool,
}

#[derive(Debug, Clone, PartialEq, Default)]
struct CacheSums {
    calls: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    /// Missed calls, by reason.
    reasons: BTreeMap<&'static str, MissedCalls>,
    /// Missed calls, by reason and place.
    places: BTreeMap<(&'static str, String), MissedCalls>,
}

/// Sums over calls that missed.
#[derive(Debug, Clone, PartialEq, Default)]
struct MissedCalls {
    calls: u64,
    /// Prompt tokens that were computed.
    computed: u64,
    /// Computed tokens after the place of divergence, in all calls.
    behind: u64,
    /// Computed tokens after the place of divergence, in the call with the most such tokens.
    most_behind: u64,
    prefill_ns: u64,
    /// The newest of these calls.
    example: Option<RequestId>,
}

impl CacheReport {
    /// Creates a report without calls.
    pub const fn new(by: Vec<CacheBy>) -> Self {
        Self { by, rows: BTreeMap::new(), calls: 0, oldest: None, is_whole: true }
    }

    /// Records that the report leaves out older calls of its period.
    pub const fn is_cut(&mut self) {
        self.is_whole = false;
    }

    /// Adds a call. Call it for the newest calls first. Calls without prompt tokens and shadow copies are skipped.
    pub fn add(&mut self, record: &TraceRecord) {
        let prompt = record.usage.prompt_tokens();
        if prompt == 0 || !record.is_call() {
            return;
        }
        self.calls += 1;
        self.oldest = Some(self.oldest.map_or(record.started, |oldest| oldest.min(record.started)));
        let group = self.by.iter().map(|by| by.of(record)).collect();
        let sums = self.rows.entry(group).or_default();
        sums.calls += 1;
        sums.prompt_tokens = sums.prompt_tokens.saturating_add(prompt);
        sums.cached_tokens = sums.cached_tokens.saturating_add(record.usage.cached_input);
        let Some(engine) = &record.engine else { return };
        let Some(miss) = engine.miss else { return };
        let reason = miss.reason.name();
        sums.reasons.entry(reason).or_default().add(record, &miss, engine.prefill_ns);
        if let Some(place) = &miss.place {
            let place = sums.places.entry((reason, up_to(place))).or_default();
            place.add(record, &miss, engine.prefill_ns);
        }
    }

    /// One JSON object: `by`; `rows`; `calls` and `since`, and whether these are the `whole` period. Each row has the
    /// groups of `by`, the hit rate of tokens, the `misses` by reason, and the `places` where prompts diverge. Each
    /// place has the most that another order could save there.
    pub fn json(&self) -> Value {
        let by: Vec<&str> = self.by.iter().map(|by| by.name()).collect();
        let rows = self.rows.iter().map(|(group, sums)| {
            let mut row = sums.json();
            for (name, of) in by.iter().zip(group) {
                row[*name] = of.as_deref().into();
            }
            row
        });
        json!({
            "object": "cache",
            "by": by,
            "rows": rows.collect::<Vec<_>>(),
            "calls": self.calls,
            "since": self.oldest.map(|oldest| headrace_domain::rfc3339::Rfc3339(oldest).to_string()),
            "whole": self.is_whole,
            "how_savings_are_estimated": HOW,
        })
    }

    /// Text tables. Each line ends in `\n`.
    pub fn table(&self) -> String {
        if self.rows.is_empty() {
            return "no calls with prompts of that time are kept in the traces\n".to_owned();
        }
        let texts = self.by.len();
        let head = ["calls", "prompt tokens", "cached", "hit rate", "misses (calls)"];
        let by = self.by.iter().map(|by| by.name().to_owned());
        let mut lines: Vec<Vec<String>> = vec![by.chain(head.map(str::to_owned)).collect()];
        let mut places = Vec::new();
        for (group, sums) in &self.rows {
            let names = group.iter().map(|of| of.as_deref().map_or_else(|| "–".to_owned(), plain));
            let reasons: Vec<String> = sums
                .reasons
                .iter()
                .map(|(reason, missed)| format!("{} {}", grouped(missed.calls), in_short(reason)))
                .collect();
            let figures = [
                grouped(sums.calls),
                grouped(sums.prompt_tokens),
                grouped(sums.cached_tokens),
                percent(sums.cached_tokens, sums.prompt_tokens),
                reasons.join(", "),
            ];
            lines.push(names.chain(figures).collect());
            places.extend(sums.worst_places());
        }
        let mut text = if self.is_whole {
            String::new()
        } else {
            format!("the newest {}\n", counted(self.calls, "call"))
        };
        text += &aligned(&lines, texts);
        places.sort_by_key(|(_, missed)| std::cmp::Reverse(missed.computed));
        for ((reason, place), missed) in places.into_iter().take(PLACES_LISTED) {
            let example = missed.example.map(|id| format!(", such as {id}")).unwrap_or_default();
            text += &format!(
                "- {} {} {}{example}\n",
                counted(missed.calls, "call"),
                said(reason, missed.calls),
                place
            );
            text += &format!("  {}\n", missed.way_out(reason));
        }
        text
    }
}

/// Explains how the savings are estimated, for readers of the report.
const HOW: &str = "Several calls part from cached prompts at one place. With the differing text at the end of the prompt, the first of \
    these calls would compute what follows the place, and the others would find it in the cache. The estimate adds the tokens \
    that follow the place in all of these calls but the longest. It is an upper bound: whether those tokens are the same is not \
    known.";

impl CacheSums {
    fn json(&self) -> Value {
        let misses = self.reasons.iter().map(|(reason, missed)| {
            json!({
                "reason": reason,
                "calls": missed.calls,
                "computed_tokens": missed.computed,
                "example": missed.example.map(|id| id.to_string()),
            })
        });
        let places = self.worst_places().into_iter().map(|((reason, place), missed)| {
            let saved = missed.could_save(reason);
            json!({
                "reason": reason,
                "place": place,
                "calls": missed.calls,
                "computed_tokens": missed.computed,
                "example": missed.example.map(|id| id.to_string()),
                "could_save_tokens": saved.map(|(tokens, _)| tokens),
                "could_save_prefill_us": saved.map(|(_, nanos)| micros(nanos)),
            })
        });
        json!({
            "calls": self.calls,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "hit_rate": (self.prompt_tokens > 0).then(|| self.cached_tokens as f64 / self.prompt_tokens as f64),
            "misses": misses.collect::<Vec<_>>(),
            "places": places.collect::<Vec<_>>(),
        })
    }

    fn worst_places(&self) -> Vec<((&'static str, &str), &MissedCalls)> {
        let places = self.places.iter().map(|((reason, place), missed)| ((*reason, place.as_str()), missed));
        let mut places: Vec<_> = places.collect();
        places.sort_by_key(|(_, missed)| std::cmp::Reverse(missed.computed));
        places.truncate(PLACES_LISTED);
        places
    }
}

impl MissedCalls {
    fn add(&mut self, record: &TraceRecord, miss: &CacheMiss, prefill_ns: u64) {
        self.calls += 1;
        self.computed = self.computed.saturating_add(record.usage.input);
        self.prefill_ns = self.prefill_ns.saturating_add(prefill_ns);
        // The block that contains the place is computed in any case, and so is the last token.
        let block = u64::try_from(BLOCK_TOKENS).unwrap_or(1);
        let behind = record.usage.prompt_tokens().saturating_sub(u64::from(miss.token)).saturating_sub(block);
        self.behind = self.behind.saturating_add(behind);
        self.most_behind = self.most_behind.max(behind);
        self.example = self.example.or(Some(record.request_id));
    }

    /// Returns the remedy and its gain.
    fn way_out(&self, reason: &str) -> String {
        match (self.could_save(reason), reason) {
            (Some((tokens, prefill_ns)), _) => {
                let (tokens, time) = (counted(tokens, "token"), crate::units::humane_duration(prefill_ns));
                format!(
                    "move what differs behind what stays: at most {tokens} less to compute, {time} of prefill"
                )
            }
            (None, "differs") => "no gain: too little of the prompt follows what differs".to_owned(),
            (None, "evicted") => "more memory for the cache keeps it: raise `engine.kv_memory`".to_owned(),
            (None, "state_not_kept" | "window_freed") => {
                "a cache mark (`cache_control`) where prompts part keeps what the next call continues from"
                    .to_owned()
            }
            (None, "expired") => {
                "calls at shorter intervals find it, or a longer life of a cache mark (`cache_control`)"
                    .to_owned()
            }
            (None, "never_seen") => {
                "no gain: text is computed once, such as a conversation's newest message".to_owned()
            }
            (None, _) => "no gain".to_owned(),
        }
    }

    /// The tokens and the nanoseconds of prefill that another order could save at most. `None` if the order makes no
    /// difference or there is nothing to save.
    fn could_save(&self, reason: &str) -> Option<(u64, u64)> {
        if reason != MissReason::Differs.name() || self.computed == 0 {
            return None;
        }
        // One call computes them first. Two calls have no more in common than the shorter of them.
        let tokens = self.behind.saturating_sub(self.most_behind).min(self.computed);
        let nanos = u128::from(self.prefill_ns) * u128::from(tokens) / u128::from(self.computed);
        (tokens > 0).then(|| (tokens, u64::try_from(nanos).unwrap_or(u64::MAX)))
    }
}

/// The verb phrase for a miss reason, which the name of the place completes.
fn said(reason: &str, calls: u64) -> &'static str {
    match (reason, calls) {
        ("differs", 1) => "differs from the nearest cached prompt in",
        ("differs", _) => "differ from the nearest cached prompt in",
        ("evicted", _) => "found the cached prompt evicted, from",
        ("expired", _) => "found the cached prompt expired, from",
        ("never_seen", 1) => "has text that was never cached, from",
        ("never_seen", _) => "have text that was never cached, from",
        _ => "missed the cache, in",
    }
}

/// A miss reason in words, for use after a number of calls.
fn in_short(reason: &str) -> &str {
    match reason {
        "below_block" => "shorter than a block",
        "bypassed" => "with log-probabilities",
        "disabled" => "without a cache",
        "differs" => "differ",
        "never_seen" => "never cached",
        "state_not_kept" => "without a state to continue from",
        "window_freed" => "without the window to continue from",
        other => other,
    }
}

/// Describes a place without its character offset, so that prompts of one kind share a place.
fn up_to(place: &PromptPlace) -> String {
    match place {
        PromptPlace::System { .. } => "the system prompt".to_owned(),
        PromptPlace::Message { index, .. } => format!("message {index}"),
        PromptPlace::Reasoning { index, .. } => format!("the reasoning of message {index}"),
        PromptPlace::ToolCall { index, call } => format!("call {call} of message {index}"),
        PromptPlace::Tool { index } => format!("tool {index}"),
        PromptPlace::Tools => "the list of tools".to_owned(),
        PromptPlace::Template { before_message } => format!("the template before message {before_message}"),
        PromptPlace::Prompt { index, .. } => format!("prompt {index}"),
    }
}
