//! The search for recorded requests and answers. It walks the newest contents and looks for a text in each, within a
//! bound. There is no index of words: it would keep words of deleted contents.

use headrace_domain::{EndUser, UnixNanos};
use headrace_trace::{
    CallCursor, ContentPage, ContentQuery, MAX_CALLS_PER_PAGE, MAX_CONTENTS_EXAMINED, TraceError,
};
use sqlx::{QueryBuilder, Sqlite};

use super::content_file::SqliteContents;
use super::rows::{COLUMNS, ContentRow};
use crate::trace::integer;

/// Contents in memory at once.
const ROWS_AT_ONCE: usize = 64;

/// Finds the next page. See [`headrace_trace::ContentStore::search`].
pub(super) fn search(
    store: &SqliteContents,
    query: &ContentQuery,
    mut after: Option<CallCursor>,
    limit: usize,
) -> Result<ContentPage, TraceError> {
    let limit = limit.clamp(1, MAX_CALLS_PER_PAGE);
    let lower = query.text.as_ref().map(|text| text.to_lowercase());
    let (mut page, mut examined) = (ContentPage::default(), 0);
    loop {
        let rows = rows(store, query, after)?;
        let is_last = rows.len() < ROWS_AT_ONCE;
        for row in rows {
            if page.contents.len() >= limit {
                page.next = after;
                return Ok(page);
            }
            let at = CallCursor {
                started: UnixNanos::new(u64::try_from(row.started).unwrap_or(0)),
                number: u64::try_from(row.seq).unwrap_or(0),
            };
            let content = row.content()?;
            if query.matches(&content, lower.as_deref()) {
                page.contents.push(content);
            }
            after = Some(at);
            examined += 1;
            if examined >= MAX_CONTENTS_EXAMINED {
                (page.next, page.searched_to) = (after, Some(at.started));
                return Ok(page);
            }
        }
        if is_last {
            return Ok(page);
        }
    }
}

/// The next rows that meet all criteria except the text.
fn rows(
    store: &SqliteContents,
    query: &ContentQuery,
    after: Option<CallCursor>,
) -> Result<Vec<ContentRow>, TraceError> {
    store.read(async |connection| {
        let mut sql = QueryBuilder::<Sqlite>::new("SELECT ");
        sql.push(COLUMNS).push(" FROM content WHERE TRUE");
        if let Some(CallCursor { started, number }) = after {
            sql.push(" AND (started, seq) < (").push_bind(integer(started.get())).push(", ");
            sql.push_bind(integer(number)).push(")");
        }
        if let Some(since) = query.since {
            sql.push(" AND started >= ").push_bind(integer(since.get()));
        }
        if let Some(until) = query.until {
            sql.push(" AND started < ").push_bind(integer(until.get()));
        }
        let equal = [
            ("org", query.org.as_ref().map(|org| org.as_str())),
            ("project", query.project.as_ref().map(|project| project.as_str())),
            ("user", query.user.as_ref().map(EndUser::as_str)),
            ("model", query.model.as_deref()),
        ];
        for (column, value) in equal {
            if let Some(value) = value {
                sql.push(" AND ").push(column).push(" = ").push_bind(value);
            }
        }
        sql.push(" ORDER BY started DESC, seq DESC LIMIT ").push_bind(integer(ROWS_AT_ONCE));
        let rows = sql.build().fetch_all(connection).await?;
        Ok(rows.iter().map(ContentRow::of).collect::<Result<_, _>>()?)
    })
}
