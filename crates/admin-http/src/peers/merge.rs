//! Pages of calls from several gateways, merged into one page, newest first. Must not know how a gateway is asked.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use headrace_domain::UnixNanos;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A position in the calls of all gateways, newest first. Any of the gateways can continue from it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct FleetCursor {
    /// By the address of a gateway: the cursor of its own next page, or `None` if it has no more calls.
    at: BTreeMap<String, Option<String>>,
    /// The start time of the oldest call before the position, in nanoseconds. Gateways without an entry begin there.
    oldest: Option<u64>,
}

/// A page that a gateway answered.
pub(crate) struct GatewayPage {
    /// The gateway's address, or an empty text for a gateway without one.
    pub(crate) address: String,
    /// The gateway's name for operators.
    pub(crate) name: String,
    /// The cursor that it was asked for. `None` for its newest calls.
    pub(crate) after: Option<String>,
    /// The page: `data`, `next`, `searched_to` and `unindexed`.
    pub(crate) page: Value,
}

/// A gateway that did not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct MissingGateway {
    /// Its name for operators.
    pub(crate) gateway: String,
    /// The reason, in words for operators.
    pub(crate) why: String,
}

/// The start of a row, for the order.
#[derive(Deserialize)]
struct RowStart {
    #[serde(with = "headrace_domain::rfc3339")]
    started: UnixNanos,
}

impl FleetCursor {
    /// Reads the text of a cursor. `None` if it is not one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
    }

    /// The position after a page that a gateway's own search returned, at that gateway under the empty address.
    pub(crate) fn of_own(cursor: &str) -> Option<Self> {
        let oldest = started_at(cursor)?;
        Some(Self { at: [(String::new(), Some(cursor.to_owned()))].into(), oldest: Some(oldest) })
    }

    fn text(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    /// Returns the cursor for a gateway, which is `None` for its newest calls. Returns `None` if the gateway has no more
    /// calls.
    #[allow(clippy::option_option, reason = "no more calls, and no cursor yet")]
    pub(crate) fn of(&self, address: &str) -> Option<Option<String>> {
        match self.at.get(address) {
            Some(cursor) => cursor.clone().map(Some),
            None => Some(self.oldest.map(before)),
        }
    }
}

/// The cursor of a gateway's calls that started before a time. Rows are numbered from 1.
fn before(started: u64) -> String {
    format!("{started:x}.0")
}

/// The start time in a gateway's cursor.
fn started_at(cursor: &str) -> Option<u64> {
    u64::from_str_radix(cursor.split_once('.')?.0, 16).ok()
}

/// A gateway's rows in order, and how many of them are on the merged page.
struct PageRows {
    starts: Vec<u64>,
    rows: Vec<Value>,
    next: Option<String>,
    taken: usize,
}

impl PageRows {
    fn read(page: &mut Value, name: &str) -> Result<Self, String> {
        let unread = || format!("the answer of {name} is no page of calls");
        let Some(Value::Array(mut rows)) = page.get_mut("data").map(Value::take) else {
            return Err(unread());
        };
        let mut starts = Vec::with_capacity(rows.len());
        for row in &mut rows {
            starts.push(RowStart::deserialize(&*row).map_err(|_| unread())?.started.get());
            row["gateway"] = name.into();
        }
        let next = page.get("next").and_then(Value::as_str).map(str::to_owned);
        if next.as_deref().is_some_and(|next| started_at(next).is_none()) {
            return Err(unread());
        }
        Ok(Self { starts, rows, next, taken: 0 })
    }

    /// The start time of the call before its next page. `None` if this is its last page.
    fn end(&self) -> Option<u64> {
        self.next.as_deref().and_then(started_at)
    }
}

/// Merges pages into one of about `limit` calls. A page is shorter if a gateway searched only so far, and has more calls
/// if calls of one gateway started in the same nanosecond.
pub(crate) fn merge(
    position: &FleetCursor,
    pages: Vec<GatewayPage>,
    mut missing: Vec<MissingGateway>,
    limit: usize,
) -> Value {
    let mut read = Vec::with_capacity(pages.len());
    let mut searched_to = (0, Value::Null);
    let mut unindexed = 0_u64;
    for mut page in pages {
        match PageRows::read(&mut page.page, &page.name) {
            Ok(rows) => {
                unindexed =
                    unindexed.saturating_add(page.page.get("unindexed").and_then(Value::as_u64).unwrap_or(0));
                let to = page.page.get("searched_to").cloned().unwrap_or(Value::Null);
                if let Some(end) = rows.end().filter(|end| !to.is_null() && *end >= searched_to.0) {
                    searched_to = (end, to);
                }
                read.push((page.address, page.after, rows));
            }
            Err(why) => missing.push(MissingGateway { gateway: page.name, why }),
        }
    }
    // A gateway may have calls after its page that are newer than older ones of others.
    let horizon = read.iter().filter_map(|(_, _, rows)| rows.end()).max().unwrap_or(0);
    let mut order: Vec<(Reverse<u64>, usize)> = Vec::new();
    for (source, (_, _, rows)) in read.iter().enumerate() {
        let within = rows.starts.iter().filter(|started| **started >= horizon);
        order.extend(within.map(|started| (Reverse(*started), source)));
    }
    order.sort_unstable();
    for (_, source) in order.into_iter().take(limit) {
        if let Some((_, _, rows)) = read.get_mut(source) {
            rows.taken += 1;
        }
    }
    let answered: Vec<String> = read.iter().map(|(address, _, _)| address.clone()).collect();
    let (mut cursor, mut merged) = (position.clone(), Vec::new());
    for (source, (address, after, mut rows)) in read.into_iter().enumerate() {
        let last = rows.taken.checked_sub(1).and_then(|last| rows.starts.get(last)).copied();
        while last.is_some() && rows.starts.get(rows.taken).copied() == last {
            rows.taken += 1;
        }
        let next = match (last, rows.starts.first()) {
            _ if rows.taken == rows.rows.len() => rows.next,
            (Some(last), _) => Some(before(last)),
            // None of its calls is shown yet. The next page begins with the first one.
            (None, first) => after.or_else(|| first.map(|first| before(first.saturating_add(1)))),
        };
        cursor.at.insert(address, next);
        let taken = rows.starts.into_iter().zip(rows.rows).take(rows.taken);
        merged.extend(taken.map(|(started, row)| (Reverse(started), source, row)));
        if let Some(last) = last {
            cursor.oldest = Some(cursor.oldest.map_or(last, |oldest| oldest.min(last)));
        }
    }
    // Stable, so that calls of one gateway keep their order.
    merged.sort_by_key(|(started, source, _)| (*started, *source));
    let data: Vec<Value> = merged.into_iter().map(|(_, _, row)| row).collect();
    // An empty page does not lead to another one only because a gateway is silent.
    let has_more = cursor
        .at
        .iter()
        .any(|(address, next)| next.is_some() && (!data.is_empty() || answered.contains(address)));
    json!({
        "object": "list",
        "data": data,
        "next": has_more.then(|| cursor.text()),
        "searched_to": searched_to.1,
        "unindexed": unindexed,
        "missing_gateways": missing,
    })
}

#[cfg(test)]
mod tests {
    use headrace_domain::rfc3339::Rfc3339;

    use super::*;

    /// A gateway's calls: start times in nanoseconds, newest first.
    struct CallStore {
        address: &'static str,
        calls: Vec<u64>,
        /// Maximum calls that one search examines.
        most: usize,
    }

    impl CallStore {
        fn search(&self, after: Option<&str>, limit: usize) -> Value {
            // The number of a call is its position from the oldest one, from 1.
            let number = |at: usize| self.calls.len() - at;
            let after = after.map(|cursor| {
                let (started, number) = cursor.split_once('.').unwrap();
                (u64::from_str_radix(started, 16).unwrap(), usize::from_str_radix(number, 16).unwrap())
            });
            let rest: Vec<usize> = (0..self.calls.len())
                .filter(|at| after.is_none_or(|after| (self.calls[*at], number(*at)) < after))
                .collect();
            let shown: Vec<usize> = rest.iter().copied().take(limit.min(self.most)).collect();
            let next = shown.last().filter(|_| shown.len() < rest.len());
            let next = next.map(|at| format!("{:x}.{:x}", self.calls[*at], number(*at)));
            let data: Vec<Value> = shown
                .iter()
                .map(|at| {
                    let started = Rfc3339(UnixNanos::new(self.calls[*at])).to_string();
                    json!({ "id": format!("{}-{}", self.address, number(*at)), "started": started })
                })
                .collect();
            json!({ "data": data, "next": next, "searched_to": null, "unindexed": 1 })
        }
    }

    /// Reads all pages. The stores in `silent` do not answer for the page with this number.
    fn pages(
        stores: &[CallStore],
        limit: usize,
        silent: impl Fn(usize, &str) -> bool,
    ) -> Vec<Vec<(u64, String)>> {
        let mut position = FleetCursor::default();
        let mut read = Vec::new();
        loop {
            let (mut asked, mut missing) = (Vec::new(), Vec::new());
            for store in stores {
                let Some(after) = position.of(store.address) else { continue };
                if silent(read.len(), store.address) {
                    missing.push(MissingGateway { gateway: store.address.into(), why: "silent".into() });
                    continue;
                }
                let page = store.search(after.as_deref(), limit);
                asked.push(GatewayPage {
                    address: store.address.into(),
                    name: store.address.into(),
                    after,
                    page,
                });
            }
            let count = missing.len();
            let page = merge(&position, asked, missing, limit);
            assert_eq!(page["missing_gateways"].as_array().unwrap().len(), count);
            let row = |row: &Value| {
                let start = RowStart::deserialize(row).unwrap().started.get();
                assert!(row["id"].as_str().unwrap().starts_with(row["gateway"].as_str().unwrap()));
                (start, row["id"].as_str().unwrap().to_owned())
            };
            read.push(page["data"].as_array().unwrap().iter().map(row).collect());
            let Some(next) = page["next"].as_str() else { return read };
            position = FleetCursor::parse(next).unwrap();
            assert!(read.len() < 1_000, "the pages do not end");
        }
    }

    #[test]
    fn every_call_of_every_gateway_is_on_one_page_newest_first() {
        let mut seed = 7_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for round in 0..300 {
            // Few start times, so that many calls start at the same time.
            let range = [5, 30, 100_000][round % 3];
            let stores: Vec<CallStore> = ["a", "b", ""]
                .map(|address| {
                    let mut calls: Vec<u64> = (0..random(40)).map(|_| 1_000 + random(range)).collect();
                    calls.sort_unstable_by_key(|started| Reverse(*started));
                    let most = [3, 1_000][usize::try_from(random(2)).unwrap()];
                    CallStore { address, calls, most }
                })
                .into();
            let limit = 1 + usize::try_from(random(10)).unwrap();
            let read: Vec<(u64, String)> = pages(&stores, limit, |_, _| false).concat();
            assert!(read.windows(2).all(|pair| pair[0].0 >= pair[1].0), "round {round}: {read:?}");
            let mut ids: Vec<String> = read.into_iter().map(|(_, id)| id).collect();
            let count = ids.len();
            ids.sort_unstable();
            ids.dedup();
            let all: usize = stores.iter().map(|store| store.calls.len()).sum();
            assert_eq!((ids.len(), count), (all, all), "round {round}");
        }
    }

    #[test]
    fn a_gateway_that_was_silent_continues_where_the_page_ended() {
        let store = |address, calls: &[u64]| CallStore { address, calls: calls.to_vec(), most: 1_000 };
        let stores = [store("a", &[90, 70, 50, 30, 10]), store("b", &[80, 60, 40, 20])];
        let times = |read: Vec<Vec<(u64, String)>>| -> Vec<Vec<u64>> {
            read.into_iter().map(|page| page.into_iter().map(|(started, _)| started).collect()).collect()
        };
        let all = times(pages(&stores, 3, |_, _| false));
        assert_eq!(all, [vec![90, 80, 70], vec![60, 50, 40], vec![30, 20, 10]]);
        let first = times(pages(&stores, 3, |page, address| page == 0 && address == "b"));
        assert_eq!(first[0], [90, 70, 50]);
        assert_eq!(first[1], [40, 30, 20], "older than the first page");
        let second = times(pages(&stores, 3, |page, address| page == 1 && address == "b"));
        assert_eq!(second, [vec![90, 80, 70], vec![50, 30, 10], vec![60, 40, 20]], "none is lost");
        let silent = times(pages(&stores, 3, |page, address| page > 0 && address == "b"));
        assert_eq!(silent, [vec![90, 80, 70], vec![50, 30, 10], vec![]], "pages end beside a silent gateway");
    }

    #[test]
    fn an_answer_that_is_no_page_names_its_gateway() {
        for page in [json!([]), json!({ "data": [{}] }), json!({ "data": [], "next": "x" })] {
            let page = GatewayPage { address: "a".into(), name: "first".into(), after: None, page };
            let merged = merge(&FleetCursor::default(), vec![page], Vec::new(), 3);
            assert_eq!(merged["missing_gateways"][0]["gateway"], "first", "{merged}");
            assert_eq!(merged["data"], json!([]));
        }
        for text in ["", "x", "5.1", "e30="] {
            assert_eq!(FleetCursor::parse(text), None, "{text}");
        }
    }
}
