//! What calls earned and what they cost: sums of trace records, grouped by the dimensions that an operator asks for.
//! Must not know which records are kept, or what anything costs.

use std::collections::BTreeMap;

use headrace_domain::{NanoDollars, TraceRecord};
use serde_json::{Value, json};

use crate::units::{aligned, plain, utc_date};

/// A dimension that calls are grouped by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarginBy {
    /// The day on which the call arrived, UTC.
    Day,
    /// The organisation that pays.
    Org,
    /// The caller's project.
    Project,
    /// The public id of the caller's key.
    Key,
    /// The model that served the call, by its name on this server.
    Model,
    /// The upstream that was asked. `None` for a local engine.
    Upstream,
    /// The upstream that was asked, and the model's name there. `None` for a local engine.
    Target,
}

impl MarginBy {
    /// All dimensions, in the order of lists.
    pub const ALL: [Self; 7] =
        [Self::Day, Self::Org, Self::Project, Self::Key, Self::Model, Self::Upstream, Self::Target];

    /// The dimension's name in queries and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Org => "org",
            Self::Project => "project",
            Self::Key => "key",
            Self::Model => "model",
            Self::Upstream => "upstream",
            Self::Target => "target",
        }
    }

    /// The call's value in this dimension, for the attempt at `worker`. `None` if it has none.
    fn of(self, record: &TraceRecord, worker: Option<&str>) -> Option<String> {
        let target = || worker.filter(|worker| !worker.ends_with(OURS) && worker.contains('/'));
        match self {
            Self::Day => Some(utc_date(record.started)),
            Self::Org => record.org.as_ref().map(ToString::to_string),
            Self::Project => record.project.as_ref().map(ToString::to_string),
            Self::Key => record.key.as_ref().map(ToString::to_string),
            Self::Model => record.model_served.clone(),
            Self::Upstream => target().and_then(|target| Some(target.split_once('/')?.0.to_owned())),
            Self::Target => target().map(str::to_owned),
        }
    }
}

/// Suffix of the ids of this process's engines, for any model name.
const OURS: &str = "@local";

/// Earnings and costs of calls, by group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarginReport {
    by: Vec<MarginBy>,
    rows: BTreeMap<Vec<Option<String>>, MarginSums>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct MarginSums {
    /// Calls whose cost is known.
    known: MarginPart,
    /// Calls whose cost is known only in part, or not at all.
    unknown: MarginPart,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct MarginPart {
    calls: u64,
    charged: i64,
    paid: i64,
}

impl MarginPart {
    fn plus(self, other: Self) -> Self {
        Self {
            calls: self.calls.saturating_add(other.calls),
            charged: self.charged.saturating_add(other.charged),
            paid: self.paid.saturating_add(other.paid),
        }
    }
}

impl MarginSums {
    fn plus(self, other: Self) -> Self {
        Self { known: self.known.plus(other.known), unknown: self.unknown.plus(other.unknown) }
    }
}

impl MarginReport {
    /// Creates sums over no calls.
    pub const fn new(by: Vec<MarginBy>) -> Self {
        Self { by, rows: BTreeMap::new() }
    }

    /// Adds a call. Skips worker jobs, and a call that reached no worker and was charged nothing. The call and its charge
    /// count for the last worker. The cost of each attempt counts for the worker of that attempt.
    pub fn add(&mut self, record: &TraceRecord) {
        if record.worker_job.is_some() {
            return;
        }
        let last = record.attempts.last().map(|attempt| &*attempt.worker);
        if last.is_none() && record.cost == NanoDollars::ZERO {
            return;
        }
        let is_known = record.paid.is_some();
        self.count(record, last, is_known, MarginPart { calls: 1, charged: record.cost.get(), paid: 0 });
        for attempt in &record.attempts {
            if let Some(paid) = attempt.paid {
                let part = MarginPart { paid: paid.get(), ..MarginPart::default() };
                self.count(record, Some(&attempt.worker), is_known, part);
            }
        }
    }

    fn count(&mut self, record: &TraceRecord, worker: Option<&str>, is_known: bool, part: MarginPart) {
        let group = self.by.iter().map(|by| by.of(record, worker)).collect();
        let sums = self.rows.entry(group).or_default();
        let side = if is_known { &mut sums.known } else { &mut sums.unknown };
        *side = side.plus(part);
    }

    fn total(&self) -> MarginSums {
        self.rows.values().fold(MarginSums::default(), |sum, row| sum.plus(*row))
    }

    /// One JSON object: `by`; `rows`, with the groups of `by`; and their `total`. A group is null if the call has no
    /// such value; in `upstream` and `target`, null is a local engine. For calls whose cost is known: `calls`,
    /// `charged`, `paid` and `margin`. For the others, `cost_unknown` has their number, their charges and the known
    /// part of their cost. Money is integer nano-dollars.
    pub fn json(&self) -> Value {
        let rows = self.rows.iter().map(|(group, sums)| {
            let mut row = shown(sums);
            for (by, name) in self.by.iter().zip(group) {
                row[by.name()] = name.as_deref().into();
            }
            row
        });
        let by: Vec<&str> = self.by.iter().map(|by| by.name()).collect();
        json!({ "object": "margin", "by": by, "rows": rows.collect::<Vec<_>>(), "total": shown(&self.total()) })
    }

    /// A text table. Each line ends in `\n`.
    pub fn table(&self) -> String {
        if self.rows.is_empty() {
            return "no calls of that time are kept in the traces\n".to_owned();
        }
        let head = self.by.iter().map(|by| by.name()).chain(MONEY).map(str::to_owned);
        let mut lines: Vec<Vec<String>> = vec![head.collect()];
        for (group, sums) in &self.rows {
            let names = self.by.iter().zip(group).map(|(by, name)| match (name, by) {
                (Some(name), _) => plain(name),
                (None, MarginBy::Upstream | MarginBy::Target) => "(here)".to_owned(),
                (None, _) => "–".to_owned(),
            });
            lines.push(names.chain(money(sums)).collect());
        }
        let total = self.by.iter().enumerate().map(|(at, _)| if at == 0 { "total" } else { "" }.to_owned());
        lines.push(total.chain(money(&self.total())).collect());
        aligned(&lines, self.by.len())
    }
}

const MONEY: [&str; 7] = ["calls", "charged", "paid", "margin", "", "cost unknown", "charged"];

fn shown(MarginSums { known, unknown }: &MarginSums) -> Value {
    json!({
        "calls": known.calls,
        "charged_nano_dollars": known.charged,
        "paid_nano_dollars": known.paid,
        "margin_nano_dollars": known.charged.saturating_sub(known.paid),
        "cost_unknown": {
            "calls": unknown.calls,
            "charged_nano_dollars": unknown.charged,
            "paid_nano_dollars": unknown.paid,
        },
    })
}

/// The columns in the order of [`MONEY`].
fn money(MarginSums { known, unknown }: &MarginSums) -> [String; 7] {
    let dollars = |nanos: i64| NanoDollars::new(nanos).to_string();
    let margin = known.charged.saturating_sub(known.paid);
    let percent = match known.charged {
        0 => "–".to_owned(),
        charged => format!("{:.1} %", margin as f64 / charged as f64 * 100.0),
    };
    let [calls, charged] = match unknown.calls {
        0 => [String::new(), String::new()],
        calls => [calls.to_string(), dollars(unknown.charged)],
    };
    let (brought, paid) = (dollars(known.charged), dollars(known.paid));
    [known.calls.to_string(), brought, paid, dollars(margin), percent, calls, charged]
}
