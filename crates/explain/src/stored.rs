//! The same beside calls that are stored: reads a bounded number of records through the seam of traces. Reads block. Knows no store.

use headrace_domain::TraceRecord;
use headrace_trace::{TraceError, TraceReader};

use crate::explanation::{Explanation, explain};
use crate::usual::{MOST_COMPARED, Usual};

/// Explains a call beside the newest [`MOST_COMPARED`] that are stored.
///
/// # Errors
/// The store cannot be read.
pub fn explain_beside(reader: &dyn TraceReader, record: &TraceRecord) -> Result<Explanation, TraceError> {
    let compared = reader.last(MOST_COMPARED)?;
    Ok(explain(record, &Usual::of(&compared, record)))
}
