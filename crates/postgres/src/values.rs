//! How values of objects become values of the database, and back. Knows no statements.

use headrace_domain::{ProjectId, UnixNanos};
use headrace_objects::{ListOrder, ObjectError, PageAsk};
use tokio_postgres::Row;

/// Converts to the database's signed integers. Times and sizes stay far below the limit.
pub(crate) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn nanos(number: i64) -> UnixNanos {
    UnixNanos::new(number.unsigned_abs())
}

/// An id as a text of the database. No object has an id with U+0000, which texts cannot have, or an empty one.
pub(crate) fn id_text(id: &str) -> &str {
    if id.contains('\0') { "" } else { id }
}

/// Checks a limit.
///
/// # Errors
/// [`ObjectError::Full`]
pub(crate) fn fits(rule: &'static str, limit: u64, observed: u64) -> Result<(), ObjectError> {
    if observed > limit { Err(ObjectError::Full { rule, limit, observed }) } else { Ok(()) }
}

/// Reads a column of bytes as text.
///
/// # Errors
/// [`ObjectError::Unavailable`] if it is not UTF-8.
pub(crate) fn text_at(row: &Row, column: usize) -> Result<String, ObjectError> {
    let text = std::str::from_utf8(row.get(column));
    let text = text.map_err(|error| unreadable(&format!("a text is not UTF-8: {error}")))?;
    Ok(text.to_owned())
}

/// Reads a column with the id of a project.
///
/// # Errors
/// [`ObjectError::Unavailable`] if it is not a valid id.
pub(crate) fn project_at(row: &Row, column: usize) -> Result<ProjectId, ObjectError> {
    let project = ProjectId::new(row.get::<_, &str>(column));
    project.map_err(|error| unreadable(&format!("a row names a project that is none: {error}")))
}

pub(crate) fn unreadable(why: &str) -> ObjectError {
    ObjectError::Unavailable { why: why.to_owned() }
}

/// The end of a query that reads a page of rows in order of `seq`. Parameter `from` is the start row, the next one the
/// number of rows.
pub(crate) fn walk(ask: &PageAsk, from: usize) -> String {
    let (limit, (than, order)) = (
        from + 1,
        match ask.reads() {
            ListOrder::Descending => ("<", "DESC"),
            ListOrder::Ascending => (">", "ASC"),
        },
    );
    format!("seq {than} ${from} ORDER BY seq {order} LIMIT ${limit}")
}

/// The start row of a page without a cursor.
pub(crate) fn end(ask: &PageAsk) -> i64 {
    if ask.reads() == ListOrder::Descending { i64::MAX } else { i64::MIN }
}
