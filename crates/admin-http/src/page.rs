//! Pagination: rows up to a limit, and a cursor for the next page. Must not know what is listed.

use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

/// Rows of a page if the client sets no limit, and the maximum.
const USUAL_ROWS: u32 = 100;
const MAX_ROWS: u32 = 500;

/// The requested page.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PageQuery {
    /// The maximum number of rows: 1 to 500.
    #[schemars(range(min = 1, max = 500))]
    #[serde(default, deserialize_with = "limit")]
    pub(crate) limit: Option<u32>,
    /// The cursor: the `next` of the previous page.
    pub(crate) cursor: Option<String>,
}

/// A page of rows, and the cursor of the next page.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "PageOf{T}")]
pub(crate) struct RowPage<T> {
    /// The rows.
    pub(crate) data: Vec<T>,
    /// The cursor of the next page. `null` if this is the last one.
    pub(crate) next: Option<String>,
}

/// Reads the limit. Refuses limits above the maximum, because a client would take a part for the whole.
fn limit<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let limit = Option::<u32>::deserialize(from)?;
    match limit.filter(|rows| !is_limit(*rows)) {
        Some(_) => Err(D::Error::custom(format_args!("`limit` is no number from 1 to {MAX_ROWS}"))),
        None => Ok(limit),
    }
}

/// Returns whether `rows` is an allowed length of a page.
pub(crate) fn is_limit(rows: u32) -> bool {
    (1..=MAX_ROWS).contains(&rows)
}

/// The number of rows for a limit.
pub(crate) fn rows(limit: Option<u32>) -> usize {
    let rows = limit.unwrap_or(USUAL_ROWS).clamp(1, MAX_ROWS);
    usize::try_from(rows).unwrap_or(usize::MAX)
}

impl<T> RowPage<T> {
    /// The rows after the cursor. The list must be sorted by `key`.
    pub(crate) fn by(
        sorted: impl IntoIterator<Item = T>,
        limit: Option<u32>,
        cursor: Option<&str>,
        key: impl Fn(&T) -> String,
    ) -> Self {
        let most = rows(limit);
        let after = |row: &T| cursor.is_none_or(|cursor| key(row).as_str() > cursor);
        let mut left = sorted.into_iter().filter(after);
        let data: Vec<T> = left.by_ref().take(most).collect();
        let next = left.next().and(data.last()).map(&key);
        Self { data, next }
    }

    /// The rows from an index on, for a list in its own order. The cursor is the index. `None` if it is not a number.
    pub(crate) fn from_place(rows_: Vec<T>, limit: Option<u32>, cursor: Option<&str>) -> Option<Self> {
        let place = cursor.map_or(Some(0), |cursor| cursor.parse::<usize>().ok())?;
        let (most, whole) = (rows(limit), rows_.len());
        let data: Vec<T> = rows_.into_iter().skip(place).take(most).collect();
        let end = place.saturating_add(data.len());
        Some(Self { data, next: (end < whole).then(|| end.to_string()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_rows_than_a_page_may_have_are_refused() {
        let read = |query: &str| asked(query).map(|query| query.limit);
        assert_eq!(
            (read(""), read("limit=1"), read("limit=500")),
            (Some(None), Some(Some(1)), Some(Some(500)))
        );
        for bad in ["limit=0", "limit=501", "limit=999999", "limit=-1", "limit=4294967296", "limit=x"] {
            assert!(read(bad).is_none(), "{bad}");
        }
    }

    fn asked(query: &str) -> Option<PageQuery> {
        let uri = format!("/x?{query}").parse().unwrap();
        axum::extract::Query::<PageQuery>::try_from_uri(&uri).ok().map(|axum::extract::Query(query)| query)
    }

    #[test]
    fn pages_together_are_the_list() {
        let list: Vec<String> = (0..250).map(|n| format!("{n:03}")).collect();
        for limit in [1, 7, 100, 249, 250, 251, 500] {
            let (mut seen, mut placed) = (Vec::new(), Vec::new());
            let mut cursor = None;
            loop {
                let page = RowPage::by(list.clone(), Some(limit), cursor.as_deref(), String::clone);
                assert!(page.data.len() <= limit as usize);
                seen.extend(page.data);
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
            loop {
                let page = RowPage::from_place(list.clone(), Some(limit), cursor.as_deref()).unwrap();
                placed.extend(page.data);
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
            assert_eq!((seen, placed), (list.clone(), list.clone()), "{limit}");
        }
        assert!(RowPage::from_place(list, None, Some("x")).is_none());
        assert_eq!((rows(None), rows(Some(0)), rows(Some(9_999))), (100, 1, 500));
    }
}
