//! The same of calls that are stored: reads a bounded number of records through the seam of traces. Reads block. Knows no store.

use headrace_domain::{RequestId, TraceRecord};
use headrace_trace::{TraceError, TraceReader};

use crate::cost::{CostExplanation, why_cost};
use crate::diff::{Difference, diff};
use crate::explanation::{Explanation, explain};
use crate::usual::{MOST_COMPARED, Usual};

/// Explains a stored call beside the newest [`MOST_COMPARED`] others; `None`: it is not stored.
///
/// # Errors
/// The store cannot be read.
pub fn explain_stored(reader: &dyn TraceReader, id: RequestId) -> Result<Option<Explanation>, TraceError> {
    let Some(record) = reader.get(id)? else { return Ok(None) };
    explain_beside(reader, &record).map(Some)
}

/// The same of a record that is at hand.
///
/// # Errors
/// The store cannot be read.
pub fn explain_beside(reader: &dyn TraceReader, record: &TraceRecord) -> Result<Explanation, TraceError> {
    let compared = reader.last(MOST_COMPARED)?;
    Ok(explain(record, &Usual::of(&compared, record)))
}

/// Why a stored call cost what it cost; `None`: it is not stored.
///
/// # Errors
/// The store cannot be read.
pub fn why_cost_stored(
    reader: &dyn TraceReader,
    id: RequestId,
) -> Result<Option<CostExplanation>, TraceError> {
    Ok(reader.get(id)?.as_ref().map(why_cost))
}

/// Two stored calls side by side; `None`: one of them is not stored.
///
/// # Errors
/// The store cannot be read.
pub fn diff_stored(
    reader: &dyn TraceReader,
    a: RequestId,
    b: RequestId,
) -> Result<Option<Difference>, TraceError> {
    let (Some(a), Some(b)) = (reader.get(a)?, reader.get(b)?) else { return Ok(None) };
    Ok(Some(diff(&a, &b)))
}
