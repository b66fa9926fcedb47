//! Usage: calls, tokens and money by whatever they are told apart by, hour by hour, day by day or month by month. Sums only; must not
//! know where the books are, nor what anything costs.

use headrace_domain::rfc3339::Rfc3339;
use headrace_domain::{NanoDollars, OrgId, ProjectId, TokenClass, UnixNanos, Usage};
use serde_json::{Value, json};

use crate::search::moment;
use crate::units::{aligned, bare_dollars, csv_line, grouped, plain};

/// Nanoseconds of an hour: no finer is usage kept.
pub const HOUR_NS: u64 = 3_600_000_000_000;
/// Most rows of a report.
pub const MAX_USAGE_ROWS: usize = 10_000;

/// What usage is told apart by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageBy {
    /// Who pays.
    Org,
    /// Of which project.
    Project,
    /// With which key; the public id. The books do not know keys: those of the traces do.
    Key,
    /// The model that was charged for.
    Model,
    /// Whose server answered, as `Key`.
    Upstream,
    /// Whom the caller said that a call is for, as `Key`.
    User,
}

impl UsageBy {
    /// Every one, in the order of a list.
    pub const ALL: [Self; 6] = [Self::Org, Self::Project, Self::Key, Self::Model, Self::Upstream, Self::User];

    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Org => "org",
            Self::Project => "project",
            Self::Key => "key",
            Self::Model => "model",
            Self::Upstream => "upstream",
            Self::User => "user",
        }
    }

    /// The one of that name.
    ///
    /// # Errors
    /// Which there are.
    pub fn named(name: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|by| by.name() == name);
        found.ok_or_else(|| format!("it must be one or more of {}", names()))
    }
}

/// The steps of time that usage is told in, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageInterval {
    /// Hours.
    Hour,
    /// Days.
    Day,
    /// Calendar months.
    Month,
}

impl UsageInterval {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::Hour, Self::Day, Self::Month];

    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
        }
    }

    /// The one of that name.
    ///
    /// # Errors
    /// Which there are.
    pub fn named(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|interval| interval.name() == name);
        found.ok_or_else(|| "it must be hour, day or month".to_owned())
    }
}

/// Which usage is meant. Default: all of it, in one sum.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UsageQuery {
    /// What it is told apart by, each once.
    pub by: Vec<UsageBy>,
    /// In which steps of time; `None`: in one.
    pub interval: Option<UsageInterval>,
    /// Of this hour and later ones.
    pub since: Option<UnixNanos>,
    /// Before this moment; the hour that it lies in counts whole.
    pub until: Option<UnixNanos>,
    /// Of one organisation.
    pub org: Option<OrgId>,
    /// Of one project.
    pub project: Option<ProjectId>,
}

impl UsageQuery {
    /// What may be set by name.
    pub const NAMES: [&str; 6] = ["by", "interval", "from", "to", "org", "project"];

    /// Sets one of [`UsageQuery::NAMES`] from its text.
    ///
    /// # Errors
    /// What the value must be, or that there is no such name.
    pub fn set(&mut self, name: &str, value: &str, now: UnixNanos) -> Result<(), String> {
        match name {
            "by" => {
                self.by.clear();
                for by in value.split(',').filter(|name| !name.is_empty()) {
                    let by = UsageBy::named(by)?;
                    if !self.by.contains(&by) {
                        self.by.push(by);
                    }
                }
            }
            "interval" => self.interval = Some(UsageInterval::named(value)?),
            "from" => self.since = Some(moment(value, now)?),
            "to" => self.until = Some(moment(value, now)?),
            "org" => self.org = Some(value.parse().map_err(|error| format!("{error}"))?),
            "project" => self.project = Some(value.parse().map_err(|error| format!("{error}"))?),
            _ => return Err(format!("there is no such filter: there are {}", Self::NAMES.join(", "))),
        }
        Ok(())
    }
}

/// Sums over calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UsageSums {
    /// Calls that were settled, however they ended.
    pub calls: u64,
    /// Of those, calls that ran to their end.
    pub completed: u64,
    /// Of those, calls whose client went away.
    pub cancelled: u64,
    /// Of those, calls that an upstream or we failed.
    pub failed: u64,
    /// Calls for which money was held and given back, uncharged.
    pub released: u64,
    /// Calls that were refused, as far as they were traced.
    pub refused: u64,
    /// Tokens that were charged for.
    pub tokens: Usage,
    /// What was charged.
    pub charged: NanoDollars,
    /// What went to the loss account, at list price.
    pub loss: NanoDollars,
    /// What others charge us, of calls where that is known.
    pub paid: NanoDollars,
    /// How many those are.
    pub paid_calls: u64,
    /// What they were charged.
    pub paid_charged: NanoDollars,
}

impl UsageSums {
    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let money = |a: NanoDollars, b: NanoDollars| NanoDollars::new(a.get().saturating_add(b.get()));
        Self {
            calls: self.calls.saturating_add(other.calls),
            completed: self.completed.saturating_add(other.completed),
            cancelled: self.cancelled.saturating_add(other.cancelled),
            failed: self.failed.saturating_add(other.failed),
            released: self.released.saturating_add(other.released),
            refused: self.refused.saturating_add(other.refused),
            tokens: self.tokens.plus(&other.tokens),
            charged: money(self.charged, other.charged),
            loss: money(self.loss, other.loss),
            paid: money(self.paid, other.paid),
            paid_calls: self.paid_calls.saturating_add(other.paid_calls),
            paid_charged: money(self.paid_charged, other.paid_charged),
        }
    }

    /// What is left of what was charged, of the calls whose cost is known.
    pub fn margin(&self) -> NanoDollars {
        NanoDollars::new(self.paid_charged.get().saturating_sub(self.paid.get()))
    }

    fn json(&self) -> Value {
        let tokens: serde_json::Map<String, Value> = TokenClass::ALL
            .into_iter()
            .map(|class| (class.name().to_owned(), self.tokens.of(class).into()))
            .collect();
        json!({
            "calls": self.calls,
            "completed": self.completed,
            "cancelled": self.cancelled,
            "failed": self.failed,
            "released": self.released,
            "refused": self.refused,
            "tokens": tokens,
            "prompt_tokens": self.tokens.prompt_tokens(),
            "completion_tokens": self.tokens.completion_tokens(),
            "charged": money_json(self.charged),
            "loss": money_json(self.loss),
            "paid": money_json(self.paid),
            "paid_calls": self.paid_calls,
            "margin": money_json(self.margin()),
        })
    }
}

/// An amount in both spellings, as texts.
pub(crate) fn money_json(amount: NanoDollars) -> Value {
    json!({ "dollars": bare_dollars(amount), "nano_dollars": amount.get().to_string() })
}

/// A row of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageRow {
    /// When its step of time begins; `None`: all is one step.
    pub start: Option<UnixNanos>,
    /// What it is of, in the order of `by`; `None`: of none, or of nobody who is known.
    pub of: Vec<Option<String>>,
    /// The first moment of the last hour with a call or a refusal. `None` if there was neither.
    pub last_hour: Option<UnixNanos>,
    /// The sums.
    pub sums: UsageSums,
}

/// Usage by steps of time and by what it is told apart by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageReport {
    /// What was asked.
    pub query: UsageQuery,
    /// The rows, oldest first.
    pub rows: Vec<UsageRow>,
    /// The last row of the journal that is in it.
    pub journal_row: u64,
}

impl UsageReport {
    /// All rows together.
    pub fn total(&self) -> UsageSums {
        self.rows.iter().fold(UsageSums::default(), |sum, row| sum.plus(&row.sums))
    }

    /// One object: `by`, `interval`, `rows`, `total`, and the `journal_row` up to which the books were read. Money is `{dollars,
    /// nano_dollars}`, both texts.
    pub fn json(&self) -> Value {
        let by: Vec<&str> = self.query.by.iter().map(|by| by.name()).collect();
        let rows = self.rows.iter().map(|row| {
            let time = |at: Option<UnixNanos>| at.map(|at| Rfc3339(at).to_string());
            let mut shown = json!({ "start": time(row.start), "last_hour": time(row.last_hour) });
            for (name, of) in by.iter().zip(&row.of) {
                shown[*name] = of.as_deref().into();
            }
            if let (Some(shown), Value::Object(sums)) = (shown.as_object_mut(), row.sums.json()) {
                shown.extend(sums);
            }
            shown
        });
        json!({
            "object": "usage",
            "by": by,
            "interval": self.query.interval.map(UsageInterval::name),
            "rows": rows.collect::<Vec<_>>(),
            "total": self.total().json(),
            "journal_row": self.journal_row,
        })
    }

    /// Comma-separated values with a head (RFC 4180); money in dollars.
    pub fn csv(&self) -> String {
        let by = self.query.by.iter().map(|by| by.name().to_owned());
        let mut head: Vec<String> =
            self.query.interval.iter().map(|_| "start".to_owned()).chain(by).collect();
        let counts = ["calls", "completed", "cancelled", "failed", "released", "refused"];
        head.extend(counts.map(str::to_owned));
        head.extend(TokenClass::ALL.map(|class| format!("{}_tokens", class.name())));
        let money = ["charged_dollars", "loss_dollars", "paid_dollars", "margin_dollars"];
        head.extend(money.map(str::to_owned));
        let mut text = csv_line(&head);
        for UsageRow { start, of, last_hour: _, sums } in &self.rows {
            let start = self.query.interval.and(*start).map(|start| Rfc3339(start).to_string());
            let names = of.iter().map(|of| of.clone().unwrap_or_default());
            let mut line: Vec<String> = start.into_iter().chain(names).collect();
            let counts =
                [sums.calls, sums.completed, sums.cancelled, sums.failed, sums.released, sums.refused];
            line.extend(counts.map(|count| count.to_string()));
            line.extend(TokenClass::ALL.map(|class| sums.tokens.of(class).to_string()));
            line.extend([sums.charged, sums.loss, sums.paid, sums.margin()].map(bare_dollars));
            text += &csv_line(&line);
        }
        text
    }

    /// A table, lines ending in `\n`.
    pub fn table(&self) -> String {
        if self.rows.is_empty() {
            return "nothing was used in that time\n".to_owned();
        }
        let by = self.query.by.iter().map(|by| by.name().to_owned());
        let texts = usize::from(self.query.interval.is_some()) + self.query.by.len();
        let head: Vec<String> = self
            .query
            .interval
            .iter()
            .map(|interval| interval.name().to_owned())
            .chain(by)
            .chain(FIGURES.map(str::to_owned))
            .collect();
        let mut lines = vec![head];
        for UsageRow { start, of, last_hour: _, sums } in &self.rows {
            let start = self.query.interval.zip(*start).map(|(interval, start)| step(interval, start));
            let names = of.iter().map(|of| of.as_deref().map_or_else(|| "–".to_owned(), plain));
            lines.push(start.into_iter().chain(names).chain(figures(sums)).collect());
        }
        if texts > 0 {
            let total = (0..texts).map(|at| if at == 0 { "total" } else { "" }.to_owned());
            lines.push(total.chain(figures(&self.total())).collect());
        }
        aligned(&lines, texts)
    }
}

const FIGURES: [&str; 9] = ["calls", "failed", "refused", "in", "cached", "out", "charged", "paid", "margin"];

/// As [`FIGURES`] names them.
fn figures(sums: &UsageSums) -> [String; 9] {
    let known =
        |amount: NanoDollars| if sums.paid_calls == 0 { "–".to_owned() } else { amount.to_string() };
    [
        grouped(sums.calls),
        grouped(sums.failed),
        grouped(sums.refused),
        grouped(sums.tokens.prompt_tokens()),
        grouped(sums.tokens.cached_input),
        grouped(sums.tokens.completion_tokens()),
        sums.charged.to_string(),
        known(sums.paid),
        known(sums.margin()),
    ]
}

fn step(interval: UsageInterval, start: UnixNanos) -> String {
    let pattern = match interval {
        UsageInterval::Hour => "%Y-%m-%d %H:00",
        UsageInterval::Day => "%Y-%m-%d",
        UsageInterval::Month => "%Y-%m",
    };
    crate::units::format_utc(start, pattern)
}
