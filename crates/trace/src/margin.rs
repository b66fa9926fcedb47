//! What calls brought and what they cost: the sums of trace records, told apart by whatever an operator asks for. Must not know
//! which records are kept, or what anything costs.

use std::collections::BTreeMap;

use headrace_domain::{NanoDollars, TraceRecord};
use serde_json::{Value, json};

use crate::units::{aligned, plain, utc_date};

/// What calls are told apart by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarginBy {
    /// The day on which they arrived, UTC.
    Day,
    /// Who pays for them.
    Org,
    /// As `Org`.
    Project,
    /// As `Org`; the public id.
    Key,
    /// The model that served them, by its name here.
    Model,
    /// The upstream that was asked; none: an engine of ours.
    Upstream,
    /// The upstream that was asked and the model's name there.
    Target,
}

impl MarginBy {
    /// Every one, in the order of a list.
    pub const ALL: [Self; 7] =
        [Self::Day, Self::Org, Self::Project, Self::Key, Self::Model, Self::Upstream, Self::Target];

    /// As it is written.
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

    /// What it is of a call, as far as `worker` was asked for it; `None`: it has none.
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

/// How the id of an engine of this process ends, whatever its model is called.
const OURS: &str = "@local";

/// What calls brought and cost, by what they are told apart by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Margin {
    by: Vec<MarginBy>,
    rows: BTreeMap<Vec<Option<String>>, Sums>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Sums {
    /// Calls whose cost is known.
    known: Part,
    /// Calls whose cost is known in part or not at all.
    unknown: Part,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Part {
    calls: u64,
    charged: i64,
    paid: i64,
}

impl Part {
    fn plus(self, other: Self) -> Self {
        Self {
            calls: self.calls.saturating_add(other.calls),
            charged: self.charged.saturating_add(other.charged),
            paid: self.paid.saturating_add(other.paid),
        }
    }
}

impl Sums {
    fn plus(self, other: Self) -> Self {
        Self { known: self.known.plus(other.known), unknown: self.unknown.plus(other.unknown) }
    }
}

impl Margin {
    /// Of no calls.
    pub const fn new(by: Vec<MarginBy>) -> Self {
        Self { by, rows: BTreeMap::new() }
    }

    /// Adds a call. One that nobody was asked to answer, and nobody paid for, is left out, as is a worker job. The call and what it brought count for
    /// whoever was asked last; what each try cost counts for whoever was asked then.
    pub fn add(&mut self, record: &TraceRecord) {
        if record.worker_job.is_some() {
            return;
        }
        let last = record.attempts.last().map(|attempt| &*attempt.worker);
        if last.is_none() && record.cost == NanoDollars::ZERO {
            return;
        }
        let is_known = record.paid.is_some();
        self.count(record, last, is_known, Part { calls: 1, charged: record.cost.get(), paid: 0 });
        for attempt in &record.attempts {
            if let Some(paid) = attempt.paid {
                let part = Part { paid: paid.get(), ..Part::default() };
                self.count(record, Some(&attempt.worker), is_known, part);
            }
        }
    }

    fn count(&mut self, record: &TraceRecord, worker: Option<&str>, is_known: bool, part: Part) {
        let group = self.by.iter().map(|by| by.of(record, worker)).collect();
        let sums = self.rows.entry(group).or_default();
        let side = if is_known { &mut sums.known } else { &mut sums.unknown };
        *side = side.plus(part);
    }

    fn total(&self) -> Sums {
        self.rows.values().fold(Sums::default(), |sum, row| sum.plus(*row))
    }

    /// One object: `by`; `rows`, with what `by` names (null: it has none; of `upstream` and `target`: an engine of ours); and their
    /// `total`. Of calls whose cost is known: `calls`, `charged`, `paid` and `margin`; of the others, under `cost_unknown`, how many
    /// there are, what they brought and what of their cost is known. Money is integer nano-dollars.
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

    /// A table, lines ending in `\n`.
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

fn shown(Sums { known, unknown }: &Sums) -> Value {
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

/// As [`MONEY`] names them.
fn money(Sums { known, unknown }: &Sums) -> [String; 7] {
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
