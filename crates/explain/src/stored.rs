//! Explains a call by comparison with stored calls, through the trace reader. Reads a bounded number of records, and
//! blocks. Knows no store.

use headrace_domain::TraceRecord;
use headrace_trace::{TraceError, TraceReader};

use crate::explanation::{Explanation, explain};
use crate::usual::{MOST_COMPARED, Usual};

/// Explains a call by comparison with the newest [`MOST_COMPARED`] stored calls.
///
/// # Errors
/// [`TraceError`] if the store cannot be read.
pub fn explain_beside(reader: &dyn TraceReader, record: &TraceRecord) -> Result<Explanation, TraceError> {
    let compared = reader.last(MOST_COMPARED)?;
    Ok(explain(record, &Usual::of(&compared, record)))
}
