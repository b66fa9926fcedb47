//! The requests of a batch: an id, and a body on one line. Knows no endpoint.

use crate::fault::Read;
use crate::json::{JsonReader, ValueKind};

/// A request of a batch: the client's id for it, and the body of the call.
pub type BatchLine = (String, String);

/// Reads an object as it was written, on one line.
pub(crate) fn object_line(r: &mut JsonReader<'_>) -> Read<String> {
    r.require(ValueKind::Object)?;
    Ok(one_line(r.raw()?))
}

/// Replaces the line breaks in JSON with spaces. Between tokens they mean nothing, and within tokens JSON allows none.
pub fn one_line(json: &str) -> String {
    json.replace(['\n', '\r'], " ")
}
