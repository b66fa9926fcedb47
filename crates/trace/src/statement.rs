//! A project's monthly statement: every charge by model, token class and price, and the total. Must not know where the
//! ledger is.

use std::fmt;
use std::str::FromStr;

use headrace_domain::{NanoDollars, NanoDollarsPerMillion, OrgId, ProjectId, TokenClass, UnixNanos};
use jiff::civil::{Date, date};
use serde_json::{Value, json};

use crate::units::{aligned, bare_dollars, counted, csv_line, format_utc, grouped, plain};
use crate::usage::{UsageSums, money_json};

/// A calendar month in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Month(Date);

impl Month {
    /// The month that contains a time.
    pub fn of(time: UnixNanos) -> Self {
        // Cannot fail: the formatted time is a valid month.
        format_utc(time, "%Y-%m").parse().unwrap_or(Self(date(1970, 1, 1)))
    }

    /// The first moment of the month.
    pub fn start(self) -> UnixNanos {
        moment(self.0)
    }

    /// The first moment of the next month.
    pub fn end(self) -> UnixNanos {
        moment(self.0.last_of_month().saturating_add(jiff::Span::new().days(1)))
    }
}

fn moment(day: Date) -> UnixNanos {
    crate::units::utc_midnight(&day.to_string()).unwrap_or(UnixNanos::new(0))
}

impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}", self.0.year(), self.0.month())
    }
}

impl FromStr for Month {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || "it must be a month such as 2026-11".to_owned();
        let day = Date::strptime("%Y-%m-%d", format!("{text}-01")).map_err(|_| bad())?;
        let month = Self(day);
        // The parser accepts several spellings; only the canonical one is valid here.
        (month.to_string() == text && (1970..=2500).contains(&day.year())).then_some(month).ok_or_else(bad)
    }
}

/// All charges for one model, class and price.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatementLine {
    /// The model that served the calls.
    pub model: String,
    /// The token class.
    pub class: TokenClass,
    /// Price per million tokens.
    pub price: NanoDollarsPerMillion,
    /// Number of tokens.
    pub tokens: u64,
    /// The amount charged. Each call's line is rounded once to the nearest nano-dollar, so this need not equal tokens
    /// times price.
    pub amount: NanoDollars,
}

/// A monthly statement. See the top of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonthStatement {
    /// The project.
    pub project: ProjectId,
    /// The organisation that pays.
    pub org: OrgId,
    /// The month in UTC, by the ledger's time.
    pub month: Month,
    /// The charges by model, class and price.
    pub lines: Vec<StatementLine>,
    /// The amount charged per day, oldest first. Days without charges are left out.
    pub days: Vec<(UnixNanos, NanoDollars)>,
    /// The sums over all calls.
    pub sums: UsageSums,
    /// The amount that was refunded in the month, also of charges of earlier months.
    pub refunded: NanoDollars,
    /// Whether the month is over by the ledger's time, so that nothing is added any more.
    pub is_closed: bool,
}

impl MonthStatement {
    /// The part of the lines that was not charged, as zero or a negative amount. A charge never exceeds its hold, and a
    /// failed call with an idempotency key is free.
    pub fn not_charged(&self) -> NanoDollars {
        let lines = self.lines.iter().fold(0_i64, |sum, line| sum.saturating_add(line.amount.get()));
        NanoDollars::new(self.sums.charged.get().saturating_sub(lines))
    }

    /// The charges less the refunds.
    pub fn after_refunds(&self) -> NanoDollars {
        NanoDollars::new(self.sums.charged.get().saturating_sub(self.refunded.get()))
    }

    fn refunds(&self) -> NanoDollars {
        NanoDollars::new(self.refunded.get().saturating_neg())
    }

    /// The fields `lines`, `days`, call counts, `not_charged`, `total`, `refunded` and `after_refunds`. Money is `{dollars, nano_dollars}`, both
    /// strings.
    pub fn json(&self) -> Value {
        let line = |line: &StatementLine| {
            json!({
                "model": line.model,
                "class": line.class.name(),
                "tokens": line.tokens,
                "price_per_million": money_json(NanoDollars::new(line.price.get())),
                "amount": money_json(line.amount),
            })
        };
        let day = |(day, charged): &(UnixNanos, NanoDollars)| json!({ "day": crate::units::utc_date(*day), "charged": money_json(*charged) });
        json!({
            "object": "statement",
            "project": self.project.as_str(),
            "org": self.org.as_str(),
            "month": self.month.to_string(),
            "closed": self.is_closed,
            "currency": "USD",
            "lines": self.lines.iter().map(line).collect::<Vec<_>>(),
            "days": self.days.iter().map(day).collect::<Vec<_>>(),
            "calls": {
                "settled": self.sums.calls,
                "completed": self.sums.completed,
                "cancelled": self.sums.cancelled,
                "failed": self.sums.failed,
            },
            "not_charged": money_json(self.not_charged()),
            "total": money_json(self.sums.charged),
            "refunded": money_json(self.refunds()),
            "after_refunds": money_json(self.after_refunds()),
        })
    }

    /// The lines as comma-separated values with a header (RFC 4180), followed by the amount not charged, the total, and the refunds.
    pub fn csv(&self) -> String {
        let head = ["project", "month", "model", "class", "tokens", "dollars_per_million", "amount_dollars"];
        let mut text = csv_line(&head.map(str::to_owned));
        let (project, month) = (self.project.to_string(), self.month.to_string());
        for line in &self.lines {
            text += &csv_line(&[
                project.clone(),
                month.clone(),
                line.model.clone(),
                line.class.name().to_owned(),
                line.tokens.to_string(),
                bare_dollars(NanoDollars::new(line.price.get())),
                bare_dollars(line.amount),
            ]);
        }
        let sums = [
            ("not charged", self.not_charged()),
            ("total", self.sums.charged),
            ("refunded", self.refunds()),
            ("after refunds", self.after_refunds()),
        ];
        for (name, amount) in sums {
            let empty = String::new;
            let amount = bare_dollars(amount);
            text += &csv_line(&[
                project.clone(),
                month.clone(),
                name.to_owned(),
                empty(),
                empty(),
                empty(),
                amount,
            ]);
        }
        text
    }

    /// Text for people. Each line ends in `\n`.
    pub fn text(&self) -> String {
        let state = if self.is_closed { "" } else { " (so far)" };
        let mut text = format!(
            "Statement of project {} (organisation {}) for {}{state}, UTC\n",
            self.project, self.org, self.month
        );
        let sums = &self.sums;
        text += &format!(
            "{}: {} completed · {} cancelled · {} failed\n\n",
            counted(sums.calls, "call"),
            grouped(sums.completed),
            grouped(sums.cancelled),
            grouped(sums.failed)
        );
        let head = ["model", "tokens of class", "tokens", "per million", "amount"];
        let mut lines: Vec<Vec<String>> = vec![head.map(str::to_owned).into()];
        for line in &self.lines {
            let price = NanoDollars::new(line.price.get()).to_string();
            let (class, tokens) = (line.class.name().to_owned(), grouped(line.tokens));
            lines.push(vec![plain(&line.model), class, tokens, price, line.amount.to_string()]);
        }
        let blank = String::new;
        let mut sum = |name: &str, amount: NanoDollars| {
            lines.push(vec![name.to_owned(), blank(), blank(), blank(), amount.to_string()]);
        };
        if self.not_charged() != NanoDollars::ZERO {
            sum("not charged", self.not_charged());
        }
        sum("total", sums.charged);
        if self.refunded != NanoDollars::ZERO {
            sum("refunded", self.refunds());
            sum("after refunds", self.after_refunds());
        }
        text += &aligned(&lines, 2);
        if !self.days.is_empty() {
            let mut days: Vec<Vec<String>> = vec![vec!["day".to_owned(), "charged".to_owned()]];
            let day = |(day, charged): &(UnixNanos, NanoDollars)| {
                vec![crate::units::utc_date(*day), charged.to_string()]
            };
            days.extend(self.days.iter().map(day));
            text += "\n";
            text += &aligned(&days, 1);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_ends_where_the_next_begins() {
        for (text, start, end) in [
            ("2026-11", 1_793_491_200, 1_796_083_200),
            ("2024-02", 1_706_745_600, 1_709_251_200),
            ("2026-12", 1_796_083_200, 1_798_761_600),
            ("1970-01", 0, 2_678_400),
        ] {
            let month: Month = text.parse().unwrap_or_else(|why| panic!("{text}: {why}"));
            assert_eq!((month.start().seconds(), month.end().seconds()), (start, end), "{text}");
            assert_eq!(month.to_string(), text);
            assert_eq!(Month::of(month.start()), month);
            assert_eq!(Month::of(UnixNanos::new(month.end().get() - 1)), month);
        }
        for bad in ["", "2026", "2026-13", "2026-1", "2026-11-01", "26-11", "1969-12", "+2026-11"] {
            assert!(bad.parse::<Month>().is_err(), "{bad}");
        }
    }
}
