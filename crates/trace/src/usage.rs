//! Usage reports: calls, tokens and money by several dimensions, per hour, day or month. Sums only; must not know where
//! the ledger is, nor what anything costs.

use headrace_domain::rfc3339::Rfc3339;
use headrace_domain::{NanoDollars, OrgId, ProjectId, TokenClass, UnixNanos, Usage};
use serde_json::{Value, json};

use crate::search::moment;
use crate::units::{aligned, bare_dollars, csv_line, grouped, plain};

/// Nanoseconds of an hour, the finest resolution of usage.
pub const HOUR_NS: u64 = 3_600_000_000_000;
/// Maximum rows of a report.
pub const MAX_USAGE_ROWS: usize = 10_000;

/// A dimension that usage is grouped by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageBy {
    /// The organisation that pays.
    Org,
    /// The caller's project.
    Project,
    /// The public id of the caller's key. The ledger does not record keys, so they come from the traces.
    Key,
    /// The model that was charged for.
    Model,
    /// The upstream that answered. From the traces, like `Key`.
    Upstream,
    /// The end user that the caller named. From the traces, like `Key`.
    User,
    /// The label `tag` in the call's `metadata`. From the traces, like `Key`.
    Tag,
}

impl UsageBy {
    /// All dimensions, in the order of lists.
    pub const ALL: [Self; 7] =
        [Self::Org, Self::Project, Self::Key, Self::Model, Self::Upstream, Self::User, Self::Tag];

    /// The dimension's name in queries and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Org => "org",
            Self::Project => "project",
            Self::Key => "key",
            Self::Model => "model",
            Self::Upstream => "upstream",
            Self::User => "user",
            Self::Tag => "tag",
        }
    }

    /// The dimension with this name.
    ///
    /// # Errors
    /// A message with the valid names.
    pub fn named(name: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|by| by.name() == name);
        found.ok_or_else(|| format!("it must be one or more of {}", names()))
    }
}

/// The time step of a report, in UTC.
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
    /// All intervals.
    pub const ALL: [Self; 3] = [Self::Hour, Self::Day, Self::Month];

    /// The interval's name in queries and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
        }
    }

    /// The interval with this name.
    ///
    /// # Errors
    /// A message with the valid names.
    pub fn named(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|interval| interval.name() == name);
        found.ok_or_else(|| "it must be hour, day or month".to_owned())
    }
}

/// Selects and groups usage. The default is all usage, in one sum.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UsageQuery {
    /// The dimensions to group by, without duplicates.
    pub by: Vec<UsageBy>,
    /// The time step. `None` sums over the whole period.
    pub interval: Option<UsageInterval>,
    /// Start of the period. The whole hour that contains it counts.
    pub since: Option<UnixNanos>,
    /// End of the period, exclusive. The whole hour that contains it counts.
    pub until: Option<UnixNanos>,
    /// Only this organisation.
    pub org: Option<OrgId>,
    /// Only this project.
    pub project: Option<ProjectId>,
}

impl UsageQuery {
    /// The names of all filters.
    pub const NAMES: [&str; 6] = ["by", "interval", "from", "to", "org", "project"];

    /// Sets one of the [`UsageQuery::NAMES`] from its text.
    ///
    /// # Errors
    /// A message that says what the value must be, or that there is no such filter.
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
    /// Settled calls, with any outcome.
    pub calls: u64,
    /// Of `calls`: calls that were completed.
    pub completed: u64,
    /// Of `calls`: calls whose client disconnected.
    pub cancelled: u64,
    /// Of `calls`: calls that an upstream or this server failed.
    pub failed: u64,
    /// Calls whose hold was released without a charge.
    pub released: u64,
    /// Refused calls, as far as they were traced.
    pub refused: u64,
    /// Tokens that were charged for.
    pub tokens: Usage,
    /// The amount charged.
    pub charged: NanoDollars,
    /// The amount booked to the loss account, at list price.
    pub loss: NanoDollars,
    /// The amount that upstreams charge, over the calls for which it is known.
    pub paid: NanoDollars,
    /// Number of calls for which `paid` is known.
    pub paid_calls: u64,
    /// The amount charged for those calls.
    pub paid_charged: NanoDollars,
}

impl UsageSums {
    /// The sum of both.
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

    /// Charges minus upstream cost, over the calls whose cost is known.
    pub fn margin(&self) -> NanoDollars {
        NanoDollars::new(self.paid_charged.get().saturating_sub(self.paid.get()))
    }

    fn json(&self) -> Value {
        let mut tokens: serde_json::Map<String, Value> = TokenClass::ALL
            .into_iter()
            .map(|class| (class.name().to_owned(), self.tokens.of(class).into()))
            .collect();
        if self.tokens.web_searches > 0 {
            tokens.insert(TokenClass::WebSearch.name().to_owned(), self.tokens.web_searches.into());
        }
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

/// An amount in both spellings, as strings.
pub(crate) fn money_json(amount: NanoDollars) -> Value {
    json!({ "dollars": bare_dollars(amount), "nano_dollars": amount.get().to_string() })
}

/// A row of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageRow {
    /// Start of the row's time step. `None` if the report has no steps.
    pub start: Option<UnixNanos>,
    /// The row's groups, in the order of `by`. `None` if the calls have no such value, or it is unknown.
    pub of: Vec<Option<String>>,
    /// The first moment of the last hour with a call or a refusal. `None` if there was neither.
    pub last_hour: Option<UnixNanos>,
    /// The sums.
    pub sums: UsageSums,
}

/// Usage by time step and group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageReport {
    /// The query that the report answers.
    pub query: UsageQuery,
    /// The rows, oldest first.
    pub rows: Vec<UsageRow>,
    /// The last row of the journal that the report includes.
    pub journal_row: u64,
}

impl UsageReport {
    /// The sum of all rows.
    pub fn total(&self) -> UsageSums {
        self.rows.iter().fold(UsageSums::default(), |sum, row| sum.plus(&row.sums))
    }

    /// One JSON object: `by`, `interval`, `rows`, `total`, and the `journal_row` up to which the ledger was read. Money
    /// is `{dollars, nano_dollars}`, both strings.
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

    /// Comma-separated values with a header (RFC 4180), with money in dollars.
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

    /// A text table. Each line ends in `\n`.
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

/// The columns in the order of [`FIGURES`].
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
