//! Usage reports of several gateways over one ledger, added up to one report. Must not know how a gateway is asked.
//!
//! Each gateway reads the whole ledger, so every report has the charges of all gateways. Keys, users, tags and upstreams come
//! from traces, and each call has its trace at one gateway. So the rows that a trace names are added up, and what they leave
//! of the ledger's sums has no name: it counts once, from the gateway that asks.

use std::collections::BTreeMap;

use headrace_domain::rfc3339;
use headrace_domain::{NanoDollars, UnixNanos, Usage};
use serde_json::Value;

use crate::usage::{UsageBy, UsageInterval, UsageReport, UsageRow, UsageSums};

/// The place of a row: the start of its time step, and its groups.
type RowPlace = (Option<UnixNanos>, Vec<Option<String>>);

/// Number of sums that come from the ledger.
const LEDGER_SUMS: usize = 14;

impl UsageReport {
    /// Adds the reports of other gateways over the same ledger, for the same query. The ledger's sums stay those of this
    /// report, which must be the newest: read it last.
    #[must_use]
    pub fn over_gateways(self, others: &[Self]) -> Self {
        if others.is_empty() {
            return self;
        }
        let places = TracedPlaces::of(&self.query.by);
        let mut rows: BTreeMap<RowPlace, (UsageSums, Option<UnixNanos>)> = BTreeMap::new();
        // What the ledger has of each group that it knows, without what traces name.
        let mut left: BTreeMap<RowPlace, [i128; LEDGER_SUMS]> = BTreeMap::new();
        for row in &self.rows {
            let group = (row.start, places.without_traced(&row.of));
            add(left.entry(group).or_default(), &ledger_sums(&row.sums), 1);
        }
        let all = std::iter::once(&self).chain(others);
        for (gateway, row) in
            all.enumerate().flat_map(|(at, report)| report.rows.iter().map(move |row| (at, row)))
        {
            let is_traced = places.is_traced(&row.of);
            let sums = if is_traced { row.sums } else { traced_sums(&row.sums) };
            if is_traced {
                let group = (row.start, places.without_traced(&row.of));
                add(left.entry(group).or_default(), &ledger_sums(&row.sums), -1);
            } else if gateway > 0 && sums == UsageSums::default() {
                continue;
            }
            let (known, last_hour) = rows.entry((row.start, row.of.clone())).or_default();
            *known = known.plus(&sums);
            *last_hour = (*last_hour).max(row.last_hour);
        }
        places.settle_models(&mut left);
        for (place, sums) in left {
            let (known, _) = rows.entry(place).or_default();
            *known = known.plus(&sums_of(&sums));
        }
        let rows = rows.into_iter().filter(|(_, (sums, _))| *sums != UsageSums::default());
        let rows = rows.map(|((start, of), (sums, last_hour))| UsageRow { start, of, last_hour, sums });
        Self { rows: rows.collect(), ..self }
    }

    /// Reads the answers of other gateways, by their names. Returns the reports, and the names of those whose answer cannot be
    /// read, with the reason.
    pub fn read_others(&self, answers: &[(String, Value)]) -> (Vec<Self>, Vec<(String, String)>) {
        let (mut reports, mut unread) = (Vec::new(), Vec::new());
        for (gateway, answer) in answers {
            match self.from_json(answer) {
                Ok(report) => reports.push(report),
                Err(why) => unread.push((gateway.clone(), format!("its answer: {why}"))),
            }
        }
        (reports, unread)
    }

    /// Reads the answer of another gateway to the same query, as [`UsageReport::json`] writes it.
    ///
    /// # Errors
    /// Returns what is wrong with it.
    pub fn from_json(&self, report: &Value) -> Result<Self, String> {
        let by: Vec<&str> = self.query.by.iter().map(|by| by.name()).collect();
        let interval = self.query.interval.map(UsageInterval::name);
        if report.get("by") != Some(&by.into()) || report.get("interval").and_then(Value::as_str) != interval
        {
            return Err("it is no usage of the groups that were asked for".to_owned());
        }
        let rows = report.get("rows").and_then(Value::as_array).ok_or("it has no rows")?;
        let rows = rows.iter().map(|row| {
            let group = |by: &UsageBy| row.get(by.name()).and_then(Value::as_str).map(str::to_owned);
            Ok(UsageRow {
                start: moment(row, "start")?,
                of: self.query.by.iter().map(group).collect(),
                last_hour: moment(row, "last_hour")?,
                sums: sums_in(row)?,
            })
        });
        let journal_row = count(report, "journal_row")?;
        Ok(Self { query: self.query.clone(), rows: rows.collect::<Result<_, String>>()?, journal_row })
    }
}

/// Which groups of a row come from traces.
struct TracedPlaces {
    traced: Vec<bool>,
    /// The place of the model. The ledger knows no model of a call without a charge, and its trace does.
    model: Option<usize>,
}

impl TracedPlaces {
    fn of(by: &[UsageBy]) -> Self {
        let is_traced =
            |by: &UsageBy| matches!(by, UsageBy::Key | UsageBy::Upstream | UsageBy::User | UsageBy::Tag);
        Self {
            traced: by.iter().map(is_traced).collect(),
            model: by.iter().position(|by| *by == UsageBy::Model),
        }
    }

    fn is_traced(&self, of: &[Option<String>]) -> bool {
        self.traced.iter().zip(of).any(|(is_traced, of)| *is_traced && of.is_some())
    }

    fn without_traced(&self, of: &[Option<String>]) -> Vec<Option<String>> {
        let of = self.traced.iter().zip(of);
        of.map(|(is_traced, of)| of.clone().filter(|_| !is_traced)).collect()
    }

    /// Takes what traces name beyond a model's sums from the sums without a model, and leaves nothing below zero.
    fn settle_models(&self, left: &mut BTreeMap<RowPlace, [i128; LEDGER_SUMS]>) {
        let mut beyond: BTreeMap<RowPlace, [i128; LEDGER_SUMS]> = BTreeMap::new();
        for ((start, of), sums) in left.iter_mut() {
            let mut unnamed = of.clone();
            match self.model.and_then(|place| unnamed.get_mut(place)) {
                Some(model) if model.is_some() => *model = None,
                _ => continue,
            }
            let beyond = beyond.entry((*start, unnamed)).or_default();
            for (sum, beyond) in sums.iter_mut().zip(beyond) {
                *beyond += (*sum).min(0);
                *sum = (*sum).max(0);
            }
        }
        for (place, beyond) in beyond {
            if let Some(sums) = left.get_mut(&place) {
                add(sums, &beyond, 1);
            }
        }
        left.values_mut().flatten().for_each(|sum| *sum = (*sum).max(0));
    }
}

fn add(sums: &mut [i128; LEDGER_SUMS], more: &[i128; LEDGER_SUMS], sign: i128) {
    for (sum, more) in sums.iter_mut().zip(more) {
        *sum += sign * more;
    }
}

/// The sums that the ledger knows, in the order of [`sums_of`].
fn ledger_sums(sums: &UsageSums) -> [i128; LEDGER_SUMS] {
    let UsageSums { calls, completed, cancelled, failed, released, tokens, charged, loss, .. } = sums;
    let Usage { input, cached_input, cache_write, cache_write_1h, output, reasoning, web_searches } = tokens;
    [
        (*calls).into(),
        (*completed).into(),
        (*cancelled).into(),
        (*failed).into(),
        (*released).into(),
        (*input).into(),
        (*cached_input).into(),
        (*cache_write).into(),
        (*cache_write_1h).into(),
        (*output).into(),
        (*reasoning).into(),
        (*web_searches).into(),
        charged.get().into(),
        loss.get().into(),
    ]
}

fn sums_of(sums: &[i128; LEDGER_SUMS]) -> UsageSums {
    let [calls, completed, cancelled, failed, released, input, cached_input, cache_write, more @ ..] = *sums;
    let [cache_write_1h, output, reasoning, web_searches, charged, loss] = more;
    let whole = |sum: i128| u64::try_from(sum).unwrap_or(u64::MAX);
    let money = |sum: i128| NanoDollars::new(i64::try_from(sum).unwrap_or(i64::MAX));
    UsageSums {
        calls: whole(calls),
        completed: whole(completed),
        cancelled: whole(cancelled),
        failed: whole(failed),
        released: whole(released),
        tokens: Usage {
            input: whole(input),
            cached_input: whole(cached_input),
            cache_write: whole(cache_write),
            cache_write_1h: whole(cache_write_1h),
            output: whole(output),
            reasoning: whole(reasoning),
            web_searches: whole(web_searches),
        },
        charged: money(charged),
        loss: money(loss),
        ..UsageSums::default()
    }
}

/// The sums that come from traces alone.
fn traced_sums(sums: &UsageSums) -> UsageSums {
    let UsageSums { refused, paid, paid_calls, paid_charged, .. } = *sums;
    UsageSums { refused, paid, paid_calls, paid_charged, ..UsageSums::default() }
}

fn moment(row: &Value, name: &str) -> Result<Option<UnixNanos>, String> {
    match row.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(text) => {
            rfc3339::deserialize(text.clone()).map(Some).map_err(|_| format!("`{name}` is no time"))
        }
    }
}

fn count(row: &Value, name: &str) -> Result<u64, String> {
    row.get(name).and_then(Value::as_u64).ok_or_else(|| format!("`{name}` is no number"))
}

fn sums_in(row: &Value) -> Result<UsageSums, String> {
    let money = |name: &str| {
        let amount = row.get(name).and_then(|amount| amount.get("nano_dollars")).and_then(Value::as_str);
        let amount = amount.and_then(|amount| amount.parse::<i64>().ok());
        amount.map(NanoDollars::new).ok_or_else(|| format!("`{name}` is no amount"))
    };
    let tokens = row.get("tokens").ok_or("it has no tokens")?;
    // A class that an older program does not know has no tokens there.
    let class = |name: &str| if tokens.get(name).is_some() { count(tokens, name) } else { Ok(0) };
    let (paid, margin) = (money("paid")?, money("margin")?);
    Ok(UsageSums {
        calls: count(row, "calls")?,
        completed: count(row, "completed")?,
        cancelled: count(row, "cancelled")?,
        failed: count(row, "failed")?,
        released: count(row, "released")?,
        refused: count(row, "refused")?,
        tokens: Usage {
            input: class("input")?,
            cached_input: class("cached_input")?,
            cache_write: class("cache_write")?,
            cache_write_1h: class("cache_write_1h")?,
            output: class("output")?,
            reasoning: class("reasoning")?,
            web_searches: class("web_search")?,
        },
        charged: money("charged")?,
        loss: money("loss")?,
        paid,
        paid_calls: count(row, "paid_calls")?,
        paid_charged: NanoDollars::new(paid.get().saturating_add(margin.get())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::UsageQuery;

    fn report(by: &[UsageBy], rows: &[(&[&str], UsageSums)]) -> UsageReport {
        let name = |name: &&str| Some((*name).to_owned()).filter(|name| !name.is_empty());
        let rows = rows.iter().map(|(of, sums)| UsageRow {
            start: Some(UnixNanos::new(3_600_000_000_000)),
            of: of.iter().map(name).collect(),
            last_hour: Some(UnixNanos::new(3_600_000_000_000)),
            sums: *sums,
        });
        let query =
            UsageQuery { by: by.to_vec(), interval: Some(UsageInterval::Hour), ..UsageQuery::default() };
        UsageReport { query, rows: rows.collect(), journal_row: 9 }
    }

    fn calls(calls: u64, charged: i64) -> UsageSums {
        let tokens = Usage { input: calls * 10, web_searches: calls, ..Usage::default() };
        UsageSums {
            calls,
            completed: calls,
            tokens,
            charged: NanoDollars::new(charged),
            ..UsageSums::default()
        }
    }

    fn refused(refused: u64) -> UsageSums {
        UsageSums { refused, ..UsageSums::default() }
    }

    fn shown(report: &UsageReport) -> Vec<(Vec<&str>, u64, i64, u64)> {
        let rows = report.rows.iter();
        rows.map(|UsageRow { of, sums, .. }| {
            let of = of.iter().map(|of| of.as_deref().unwrap_or("")).collect();
            (of, sums.calls, sums.charged.get(), sums.refused)
        })
        .collect()
    }

    /// Rows of a report: groups, and sums.
    type Rows<'r> = &'r [(&'r [&'r str], UsageSums)];
    /// Groups, and the calls, the charge and the refused calls of each.
    type Sums<'r> = &'r [(&'r [&'r str], u64, i64, u64)];

    #[test]
    fn calls_count_once_by_what_the_trace_of_one_gateway_says() {
        use UsageBy::{Key, Model, Project, User};
        // Groups; the rows of the own gateway and of two others; and the sum of them. The own gateway knows the calls of
        // the others without a name, as they know its own.
        let table: [(&[UsageBy], [Rows<'_>; 3], Sums<'_>); 6] = [
            (
                &[Key],
                [
                    &[(&[""], calls(5, 500)), (&["a"], calls(2, 200))],
                    &[(&[""], calls(4, 400)), (&["a"], calls(1, 100)), (&["b"], calls(2, 200))],
                    &[(&[""], calls(5, 500)), (&["b"], calls(2, 200))],
                ],
                // Seven calls in all, and all of them have a key.
                &[(&["a"], 3, 300, 0), (&["b"], 4, 400, 0)],
            ),
            // A call without a trace has no name anywhere.
            (
                &[User],
                [&[(&[""], calls(3, 300))], &[(&[""], calls(2, 200)), (&["u"], calls(1, 100))], &[]],
                &[(&[""], 2, 200, 0), (&["u"], 1, 100, 0)],
            ),
            // A gateway that is ahead of the own one makes no negative sums.
            (&[User], [&[(&[""], calls(1, 100))], &[(&["u"], calls(3, 300))], &[]], &[(&["u"], 3, 300, 0)]),
            // Groups that the ledger knows are those of one gateway. Refusals are each gateway's own.
            (
                &[Project],
                [
                    &[(&["p"], calls(5, 500).plus(&refused(1)))],
                    &[(&["p"], calls(5, 500).plus(&refused(2))), (&["q"], refused(4))],
                    &[(&["p"], calls(5, 500))],
                ],
                &[(&["p"], 5, 500, 3), (&["q"], 0, 0, 4)],
            ),
            (
                &[Project, Key],
                [
                    &[(&["p", ""], calls(2, 200)), (&["q", "k"], calls(1, 50))],
                    &[
                        (&["p", "k"], calls(2, 200).plus(&refused(1))),
                        (&["q", ""], calls(1, 50).plus(&refused(7))),
                    ],
                    &[],
                ],
                &[(&["p", "k"], 2, 200, 1), (&["q", ""], 0, 0, 7), (&["q", "k"], 1, 50, 0)],
            ),
            // The ledger has no model of a call that was not charged. Its trace names one.
            (
                &[Model, Key],
                [
                    &[(&["", ""], calls(2, 0)), (&["m", ""], calls(3, 300))],
                    &[(&["", ""], calls(1, 0)), (&["m", "k"], calls(4, 300))],
                    &[],
                ],
                &[(&["", ""], 1, 0, 0), (&["m", "k"], 4, 300, 0)],
            ),
        ];
        for (by, [own, one, two], expected) in table {
            let others = [report(by, one), report(by, two)];
            let sum = report(by, own).over_gateways(&others);
            let expected: Vec<_> = expected
                .iter()
                .map(|(of, calls, charged, refused)| (of.to_vec(), *calls, *charged, *refused))
                .collect();
            assert_eq!(shown(&sum), expected, "{by:?}");
        }
    }

    #[test]
    fn a_report_is_read_back_from_its_json() {
        let paid = UsageSums {
            paid: NanoDollars::new(70),
            paid_calls: 1,
            paid_charged: NanoDollars::new(100),
            ..calls(3, 300)
        };
        let written = report(&[UsageBy::Key, UsageBy::Tag], &[(&["k", ""], paid), (&["k", "t"], refused(2))]);
        assert_eq!(written.from_json(&written.json()), Ok(written.clone()));
        let other = report(&[UsageBy::Key], &[]);
        assert!(other.from_json(&written.json()).is_err());
        for broken in [Value::Null, serde_json::json!({ "by": ["key"], "interval": "hour", "rows": [{}] })] {
            assert!(other.from_json(&broken).is_err(), "{broken}");
        }
    }
}
